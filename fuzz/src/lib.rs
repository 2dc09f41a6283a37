//! The parsers that the fuzz targets of this directory call. The end-to-end tests include the same files and replay the stored
//! inputs with a stable compiler: `make fuzz-replay`.

pub mod parsers;
