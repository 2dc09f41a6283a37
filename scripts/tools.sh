# Sourced: where tools that Debian lacks are installed, and the versions of them that the project is checked with.
tools=${SLUICE_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/sluicefs-tools}
pjdfstest_version=0.2.2
cargo_deny_version=0.20.2
versitygw_version=v1.8.0
export PATH="$tools/bin:$PATH"
