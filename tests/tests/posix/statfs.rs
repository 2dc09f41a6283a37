//! statfs with real numbers.

use std::{fs, path::Path, time::Duration};

use rustix::fs::{StatVfs, statvfs};
use sluice_tests::{Place, eventually};

use crate::pattern;

fn ask(path: &Path) -> StatVfs {
    let s = statvfs(path).unwrap();
    assert!(s.f_frsize > 0 && s.f_blocks > 0);
    assert!(s.f_bavail <= s.f_bfree && s.f_bfree <= s.f_blocks);
    assert!(s.f_ffree <= s.f_files);
    s
}

fn used(path: &Path) -> i128 {
    let s = ask(path);
    i128::from(s.f_blocks - s.f_bfree) * i128::from(s.f_frsize)
}

#[test]
fn the_numbers_follow_what_is_written() {
    // Large against what other programs may write to the same disk meanwhile.
    const LEN: usize = 64 << 20;
    let place = Place::new();
    assert_eq!(ask(place.root()).f_namemax, 255);
    let before = used(place.root());
    let path = place.path("f");
    fs::write(&path, pattern(LEN)).unwrap();
    fs::File::open(&path).unwrap().sync_all().unwrap();
    let grew = used(place.root()) - before;
    assert!((LEN as i128 / 2..LEN as i128 * 3).contains(&grew), "{LEN} bytes written, used grew by {grew}");
    fs::remove_file(&path).unwrap();
    // Room may come back only once something in the background has run, but it does.
    let back = eventually(Duration::from_secs(30), || used(place.root()) - before < LEN as i128 / 2);
    assert!(back, "before {before}, after unlink {}", used(place.root()));
}

#[test]
fn inodes_are_counted() {
    const FILES: u64 = 500;
    let place = Place::new();
    let before = ask(place.root());
    for i in 0..FILES {
        fs::write(place.path(format!("{i}")), b"").unwrap();
    }
    let after = ask(place.root());
    let taken = (after.f_files - after.f_ffree) as i64 - (before.f_files - before.f_ffree) as i64;
    assert!((FILES as i64 / 2..FILES as i64 * 20).contains(&taken), "{FILES} files made, {taken} inodes taken");
}

#[test]
fn df_works() {
    let place = Place::new();
    let ran = sluice_tests::shell(place.root(), "df -P . && df -iP .");
    assert_eq!(ran.stdout.lines().count(), 4, "{}", ran.stdout);
}
