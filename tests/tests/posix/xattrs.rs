//! Extended attributes, with Linux's limits.

use std::{fs, os::unix::fs::symlink, path::Path};

use rustix::{
    fs::{XattrFlags, getxattr, lgetxattr, listxattr, llistxattr, lsetxattr, removexattr, setxattr},
    io::Errno,
};
use sluice_tests::{NOBODY, Place, as_user, local_mode};

use crate::chmod;

fn set(path: &Path, name: &str, value: &[u8]) -> rustix::io::Result<()> {
    setxattr(path, name, value, XattrFlags::empty())
}

fn get(path: &Path, name: &str) -> rustix::io::Result<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    let len = getxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

fn list(path: &Path) -> Vec<String> {
    let mut names = vec![0; 1 << 16];
    let len = listxattr(path, &mut names).unwrap();
    let text = String::from_utf8(names[..len].to_vec()).unwrap();
    let mut names: Vec<_> = text.split_terminator('\0').map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn three_namespaces() {
    let mut place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    let names = ["security.test", "trusted.test", "user.test"];
    for name in names {
        set(&path, name, name.as_bytes()).unwrap();
    }
    set(&path, "user.empty", b"").unwrap();
    set(&path, "user.binary", b"\0\xff\0").unwrap();
    place.remount();
    for name in names {
        assert_eq!(get(&path, name).unwrap(), name.as_bytes());
    }
    assert_eq!(get(&path, "user.empty").unwrap(), b"");
    assert_eq!(get(&path, "user.binary").unwrap(), b"\0\xff\0");
    assert_eq!(list(&path), ["security.test", "trusted.test", "user.binary", "user.empty", "user.test"]);
    removexattr(&path, "user.test").unwrap();
    assert_eq!(removexattr(&path, "user.test").unwrap_err(), Errno::NODATA);
    assert_eq!(get(&path, "user.test").unwrap_err(), Errno::NODATA);
    assert_eq!(set(&path, "nonsense.test", b"x").unwrap_err(), Errno::OPNOTSUPP);
}

#[test]
fn create_and_replace() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    assert_eq!(setxattr(&path, "user.a", b"1", XattrFlags::REPLACE).unwrap_err(), Errno::NODATA);
    setxattr(&path, "user.a", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(setxattr(&path, "user.a", b"2", XattrFlags::CREATE).unwrap_err(), Errno::EXIST);
    setxattr(&path, "user.a", b"3", XattrFlags::REPLACE).unwrap();
    assert_eq!(get(&path, "user.a").unwrap(), b"3");
}

#[test]
fn linux_limits() {
    let mut place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    let longest = format!("user.{}", "n".repeat(250));
    set(&path, &longest, b"x").unwrap();
    assert_eq!(set(&path, &format!("{longest}n"), b"x").unwrap_err(), Errno::RANGE);
    assert_eq!(set(&path, "user.", b"x").unwrap_err(), Errno::INVAL);
    assert_eq!(set(&path, "user.big", &vec![1; (1 << 16) + 1]).unwrap_err(), Errno::TOOBIG);
    let largest = vec![0x5A; 1 << 16];
    match set(&path, "user.big", &largest) {
        // A limit of ext4, not of the interface.
        Err(Errno::NOSPC) if local_mode() => return,
        result => result.unwrap(),
    }
    place.remount();
    assert!(get(&path, "user.big").unwrap() == largest);
    assert_eq!(get(&path, &longest).unwrap(), b"x");
    let mut small = [0; 10];
    assert_eq!(getxattr(&path, "user.big", &mut small).unwrap_err(), Errno::RANGE);
    assert_eq!(listxattr(&path, &mut small).unwrap_err(), Errno::RANGE);
    // Lengths are asked for first, with a buffer of size 0, by every program that reads attributes as getfattr does.
    let shown = sluice_tests::shell(path.parent().unwrap(), "getfattr --absolute-names -d f").stdout;
    assert!(shown.contains(&longest) && shown.len() > 1 << 16, "getfattr shows {} bytes", shown.len());
}

#[test]
fn directories_and_links() {
    let place = Place::new();
    fs::create_dir(place.path("d")).unwrap();
    symlink("d", place.path("s")).unwrap();
    set(&place.path("s"), "user.followed", b"1").unwrap();
    assert_eq!(list(&place.path("d")), ["user.followed"]);
    lsetxattr(place.path("s"), "trusted.own", b"2", XattrFlags::empty()).unwrap();
    let user = lsetxattr(place.path("s"), "user.own", b"2", XattrFlags::empty());
    assert_eq!(user.unwrap_err(), Errno::PERM, "a symbolic link has no user attributes: xattr(7)");
    let mut value = [0; 10];
    assert_eq!(lgetxattr(place.path("s"), "trusted.own", &mut value).unwrap(), 1);
    let mut names = [0; 100];
    assert_eq!(llistxattr(place.path("s"), &mut names).unwrap(), "trusted.own".len() + 1);
}

#[test]
fn permissions_of_attributes() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    chmod(&path, 0o644);
    set(&path, "user.a", b"1").unwrap();
    set(&path, "trusted.a", b"1").unwrap();
    as_user(NOBODY, NOBODY, &[], || {
        assert_eq!(get(&path, "user.a").unwrap(), b"1");
        assert_eq!(set(&path, "user.a", b"2").unwrap_err(), Errno::ACCESS);
        assert_eq!(get(&path, "trusted.a").unwrap_err(), Errno::NODATA);
        assert_eq!(set(&path, "trusted.a", b"2").unwrap_err(), Errno::PERM);
    });
}

#[test]
fn many_attributes_on_one_file() {
    /// About 60 KiB of names: near the 64 KiB that a list may have.
    const NAMES: usize = 1000;
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"").unwrap();
    for i in 0..NAMES {
        match set(&path, &format!("user.{i:050}"), &i.to_le_bytes()) {
            Err(Errno::NOSPC) if local_mode() => return,
            result => result.unwrap(),
        }
    }
    assert_eq!(list(&path).len(), NAMES);
    assert_eq!(get(&path, &format!("user.{:050}", 777)).unwrap(), 777_usize.to_le_bytes());
}
