#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sluice_fuzz::parsers::shipped_metadata(bytes));
