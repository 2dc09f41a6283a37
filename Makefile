# The same targets serve people and CI (.ci/run). Every one installs what it needs first; that is quick when it is there.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
CARGO := cargo
# Tools that scripts/deps installs.
export PATH := $(shell . scripts/tools.sh && echo "$$tools/bin"):$(PATH)
export SLUICE_BIN ?= $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)/release/sluice
# Rounds of the long kill -9 test, operations of the long differential test, seeds of the long simulation.
LONG_KILL_ROUNDS ?= 200
LONG_DIFF_OPS ?= 50000
LONG_SIM_SEEDS ?= 10000
FUZZ_SECONDS ?= 60
POWER_SEED ?= 20
POWER_KINDS ?= 5
# Ends a test program that hangs, and runs what failed once more by itself.
RUNNER := CARGO_TARGET_$(shell rustc -vV | sed -n 's/^host: //p' | tr a-z- A-Z_)_RUNNER=$(CURDIR)/scripts/test-program

.PHONY: help deps build check test test-unit test-end-to-end pjdfstest test-long test-power fuzz-replay fuzz demo demo-s3 example bench bench-full

help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 26

deps: ## Install what building, testing and measuring need
	scripts/deps

build: ## Build target/release/sluice
	@scripts/deps --build
	$(CARGO) build --release --locked --package sluice

check: deps ## Format, clippy, licenses and sources of dependencies, documentation: warnings are errors
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	cargo-deny --locked check --hide-inclusion-graph bans licenses sources
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --locked --document-private-items

test: test-unit test-end-to-end pjdfstest fuzz-replay ## Every test

test-unit: deps ## The tests of the crates
	$(RUNNER) $(CARGO) test --workspace --exclude sluice-tests --locked --no-fail-fast
	SLUICE_TEST_FUSE_TRANSPORT=uring $(RUNNER) $(CARGO) test --package sluice-fuse --locked --test mount

test-end-to-end: deps build ## The tests of the binary: kernel mount, real programs, real object store
	$(RUNNER) $(CARGO) test --package sluice-tests --locked --no-fail-fast
	# The same rules by way of a server.
	SLUICE_TEST_REMOTE=1 $(RUNNER) $(CARGO) test --package sluice-tests --locked --test posix --test differential
	# And by io_uring instead of /dev/fuse, which the tests turn on in the kernel for as long as they need it.
	SLUICE_TEST_MOUNT_OPTIONS='--fuse-transport uring' $(RUNNER) $(CARGO) test --package sluice-tests --locked --test posix

pjdfstest: deps build ## The POSIX suite of the pjdfstest crate on a mount
	scripts/pjdfstest

test-long: deps build ## 200 kills, 50,000 random operations, 10,000 seeds of the simulation
	SLUICE_KILL_ROUNDS=$(LONG_KILL_ROUNDS) $(CARGO) test --package sluice-tests --locked --test crash -- --nocapture
	SLUICE_KILL_ROUNDS=$(LONG_KILL_ROUNDS) $(CARGO) test --package sluice-tests --locked --test mounts killed -- --nocapture
	SLUICE_KILL_ROUNDS=$(LONG_KILL_ROUNDS) $(CARGO) test --package sluice-tests --locked --test group killed -- --nocapture
	SLUICE_SIM_SEEDS=$(LONG_SIM_SEEDS) $(CARGO) test --release --package sluice-sim --locked --test seeds seeds_hold -- --nocapture
	SLUICE_DIFF_OPS=$(LONG_DIFF_OPS) $(CARGO) test --package sluice-tests --locked --test differential -- --nocapture

test-power: deps build ## A loss of power at every point of a recorded disk (40 minutes; with POWER_KINDS=1 ten); POWER_SEED chooses another recording
	SLUICE_POWER_CUTS=0 SLUICE_POWER_KINDS=$(POWER_KINDS) SLUICE_SEED=$(POWER_SEED) $(CARGO) test --package sluice-tests --locked --test power -- --nocapture

fuzz-replay: deps ## Every stored fuzz input through its parser, with the stable compiler
	$(CARGO) test --package sluice-tests --locked --test fuzz_corpus

fuzz: deps ## Fuzz every parser for FUZZ_SECONDS each; needs a nightly compiler and cargo-fuzz
	@for target in $$(cargo fuzz list); do \
		echo "== $$target"; \
		mkdir -p fuzz/corpus/$$target; \
		cargo +nightly fuzz run $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
			-max_total_time=$(FUZZ_SECONDS) -max_len=8192 -print_final_stats=1; \
	done

demo: deps build ## A tree through a mount, a crash, and out again; then a server, three nodes, two mounts
	scripts/demo

demo-s3: deps build ## The same with a real S3 server as the store
	scripts/demo --s3

example: deps build ## A model loaded cold, warmed, and warmed while the program starts up: small
	examples/model-loading/compare --small

bench: deps build ## The quick measurements for a moment: shows that they run
	bench/volume --short

bench-full: deps build ## Every measurement against the limits of this machine; stored in bench/runs/
	bench/volume
