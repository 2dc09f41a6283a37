//! Every stored fuzz input through the parser it was made for, without a fuzzer. Inputs are in `fuzz/seeds/<target>/`; what a
//! fuzzer has found on this machine, in `fuzz/corpus/<target>/`, is replayed too.
//!
//! An input that once broke a parser is kept as a seed under a name that says what it broke.

#[path = "../../../fuzz/src/parsers.rs"]
mod parsers;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

use std::{
    fs,
    panic::catch_unwind,
    path::{Path, PathBuf},
};

fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

#[test]
fn every_stored_input_is_parsed_or_refused() {
    let mut broken = Vec::new();
    for (target, parse) in parsers::TARGETS {
        let mut count = 0;
        for directory in ["seeds", "corpus"].map(|name| fuzz_dir().join(name).join(target)) {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                let bytes = fs::read(entry.path()).expect("a stored input");
                if catch_unwind(|| parse(&bytes)).is_err() {
                    broken.push(entry.path());
                }
                count += 1;
            }
        }
        assert!(count > 0, "{target} has no stored input");
    }
    assert!(broken.is_empty(), "inputs that broke their parser: {broken:#?}");
}

/// Every seed cut short at each length, and with each byte changed: no fuzzer, but a start of one.
#[test]
fn damaged_seeds_are_parsed_or_refused() {
    for (target, name, bytes) in seeds::seeds() {
        let (_, parse) = parsers::TARGETS.into_iter().find(|(known, _)| *known == target).expect("a known target");
        // Some parsers open a journal or a cache each time: long inputs are sampled.
        let step = bytes.len().div_ceil(256).max(1);
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.clone();
            changed[at] ^= 0xff;
            for input in [&bytes[..at], &changed] {
                assert!(catch_unwind(|| parse(input)).is_ok(), "{target}: {name} broken at byte {at}");
            }
        }
    }
}

/// The encoders give what they gave when the seeds were stored. When a layout is meant to change: a new version number,
/// docs/disk-format.md, and `SLUICE_WRITE_SEEDS=1` for this test.
#[test]
fn stored_seeds_are_what_the_encoders_give() {
    let write = std::env::var_os("SLUICE_WRITE_SEEDS").is_some();
    for (target, name, bytes) in seeds::seeds() {
        let path = fuzz_dir().join("seeds").join(target).join(name);
        if write {
            fs::create_dir_all(path.parent().expect("it has one")).expect("a directory for seeds");
            fs::write(&path, &bytes).expect("a seed");
        }
        let stored = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(stored == bytes, "{} is no longer what the code writes", path.display());
    }
}
