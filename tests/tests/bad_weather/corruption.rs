//! Flipped bits: found, mended from a good copy or answered with EIO; never wrong bytes.

use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::Path,
};

use rustix::{
    fs::{SeekFrom, seek},
    io::Errno,
};
use sluice_tests::Volume;

use crate::{needs_binary, noise};

const LEN: usize = 3 << 20;
/// Looked for in the volume's files: what starts the second segment of the file, which every layout keeps together.
const NEEDLE: std::ops::Range<usize> = 32 << 10..(32 << 10) + 64;

/// Flips one bit wherever `needle` is stored in the files under `dir`; returns how often it was found.
pub fn flip(dir: &Path, needle: &[u8]) -> usize {
    let mut found = 0;
    for entry in fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found += flip(&path, needle);
            continue;
        }
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let mut at = 0;
        // Slabs are mostly holes: look at the data only.
        while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
            at = seek(&file, SeekFrom::Hole(start)).unwrap();
            let mut bytes = vec![0; (at - start) as usize];
            file.read_exact_at(&mut bytes, start).unwrap();
            let mut from = 0;
            while let Some(index) = find(&bytes[from..], needle) {
                let place = from + index + 10;
                file.write_all_at(&[bytes[place] ^ 0x10], start + place as u64).unwrap();
                found += 1;
                from = place;
            }
        }
    }
    found
}

fn find(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    let first = u64::from_le_bytes(needle[..8].try_into().unwrap());
    bytes.windows(8).enumerate().find_map(|(i, w)| {
        let starts = u64::from_le_bytes(w.try_into().unwrap()) == first;
        (starts && bytes[i..].starts_with(needle)).then_some(i)
    })
}

fn volume() -> Volume {
    Volume::new().option("--cache-size", "256M")
}

/// To be survived: a cache disk returns other bytes than were written. The store still has them.
#[test]
fn a_bit_in_a_slab() {
    needs_binary!();
    let volume = volume();
    let mount = volume.up();
    let bytes = noise(1, LEN);
    fs::write(mount.path("f"), &bytes).unwrap();
    mount.umount();
    assert!(flip(&volume.dir().join("cache"), &bytes[NEEDLE]) > 0, "the file is not in the cache");
    let mount = volume.up();
    assert!(fs::read(mount.path("f")).unwrap() == bytes, "wrong bytes reached a reader");
    // And once more: the bad copy must not be served later either.
    let mount = mount.remount();
    assert!(fs::read(mount.path("f")).unwrap() == bytes);
}

/// To be survived: the store returns other bytes, and nobody has a good copy. EIO, and fsck names the file or object.
#[test]
fn a_bit_in_an_object() {
    needs_binary!();
    let volume = volume();
    let mount = volume.up();
    let bytes = noise(2, LEN);
    fs::write(mount.path("f"), &bytes).unwrap();
    fs::write(mount.path("other"), noise(3, LEN)).unwrap();
    mount.umount();
    assert_eq!(flip(&volume.dir().join("objects"), &bytes[NEEDLE]), 1, "places in the store");
    fs::remove_dir_all(volume.dir().join("cache")).unwrap();
    let mount = volume.up();
    let file = File::open(mount.path("f")).unwrap();
    let mut first = vec![0; 4096];
    let mut bad = vec![0; 4096];
    assert_eq!(Errno::from_io_error(&file.read_exact_at(&mut bad, 32 << 10).unwrap_err()), Some(Errno::IO));
    // Segments beside it are served, and so are other files.
    file.read_exact_at(&mut first, 1 << 20).unwrap();
    assert!(first == bytes[1 << 20..(1 << 20) + 4096]);
    assert!(fs::read(mount.path("other")).unwrap() == noise(3, LEN));
    drop(file);
    mount.umount();
    let ran = volume.sluice(["fsck".as_ref(), volume.dir().as_os_str(), "--data".as_ref()]);
    assert_eq!(ran.code, Some(1), "fsck --data finds it: {ran:#?}");
    volume.sluice(["fsck".as_ref(), volume.dir().as_os_str()]).ok();
}

/// To be survived: the journal's disk returns other bytes for a record that is not the last one. What was acknowledged
/// cannot all be there, so it must be said: a refusal, or a mount that has the right bytes, or none, and a message.
#[test]
fn a_bit_in_the_journal() {
    needs_binary!();
    let volume = volume();
    let mount = volume.up();
    for i in 0..20 {
        fs::write(mount.path(format!("{i}")), noise(10 + i, 20_000)).unwrap();
    }
    mount.kill9();
    let flipped = flip(&volume.dir().join("journal"), &noise(15, 20_000)[100..164]);
    if flipped == 0 {
        // Stored and freed before the kill: there is nothing to corrupt any more.
        eprintln!("the journal no longer held the record");
    }
    match volume.try_up() {
        Err(ran) => drop(ran.refused_with(&["journal"])),
        Ok(mount) => {
            let mut missing = 0;
            for i in 0..20 {
                match fs::read(mount.path(format!("{i}"))) {
                    Ok(bytes) => assert!(bytes == noise(10 + i, 20_000), "wrong bytes in file {i}"),
                    Err(_) => missing += 1,
                }
            }
            if missing > 0 {
                let log = mount.log().to_lowercase();
                assert!(log.contains("journal"), "{missing} files lost in silence: {log}");
            }
        }
    }
}
