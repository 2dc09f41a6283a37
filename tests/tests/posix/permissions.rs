//! Who may do what: modes, ownership, sticky, setuid and setgid.

use std::{
    fs::{self, File},
    io::Write,
};

use rustix::{
    fs::{Access, AtFlags, CWD, FallocateFlags, OFlags, accessat, copy_file_range, fallocate},
    io::Errno,
};
use sluice_tests::{NOBODY, Place, as_user};

use crate::{chmod, chown, errno, open, stat};

const OWNER: u32 = 1001;
const GROUP: u32 = 2001;

fn mode(path: impl AsRef<std::path::Path>) -> u32 {
    stat(path).st_mode & 0o7777
}

#[test]
fn owner_group_and_others() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"x").unwrap();
    chown(&path, OWNER, GROUP).unwrap();
    chmod(&path, 0o640);
    let try_open = |flags| open(&path, flags).map(drop);
    as_user(OWNER, 1, &[], || try_open(OFlags::RDWR).unwrap());
    as_user(NOBODY, 1, &[GROUP], || {
        try_open(OFlags::RDONLY).unwrap();
        assert_eq!(try_open(OFlags::WRONLY).unwrap_err(), Errno::ACCESS);
        assert_eq!(accessat(CWD, &path, Access::WRITE_OK, AtFlags::EACCESS).unwrap_err(), Errno::ACCESS);
    });
    as_user(NOBODY, NOBODY, &[], || assert_eq!(try_open(OFlags::RDONLY).unwrap_err(), Errno::ACCESS));
    // The owner's class decides for the owner, even when others have more.
    chmod(&path, 0o077);
    as_user(OWNER, GROUP, &[], || assert_eq!(try_open(OFlags::RDONLY).unwrap_err(), Errno::ACCESS));
}

#[test]
fn directories_need_search_and_write() {
    let place = Place::new();
    let dir = place.path("d");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), b"x").unwrap();
    chown(&dir, OWNER, GROUP).unwrap();
    chmod(&dir, 0o711);
    as_user(NOBODY, NOBODY, &[], || {
        assert_eq!(fs::read(dir.join("f")).unwrap(), b"x");
        assert_eq!(errno(fs::read_dir(&dir)), Errno::ACCESS);
        assert_eq!(errno(File::create(dir.join("new"))), Errno::ACCESS);
        assert_eq!(errno(fs::remove_file(dir.join("f"))), Errno::ACCESS);
    });
    chmod(&dir, 0o744);
    as_user(NOBODY, NOBODY, &[], || {
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(errno(fs::metadata(dir.join("f"))), Errno::ACCESS);
    });
}

#[test]
fn sticky_directories_protect_what_others_own() {
    let place = Place::new();
    let dir = place.path("tmp");
    fs::create_dir(&dir).unwrap();
    chmod(&dir, 0o1777);
    as_user(OWNER, GROUP, &[], || fs::write(dir.join("mine"), b"x").unwrap());
    as_user(NOBODY, NOBODY, &[], || {
        fs::write(dir.join("theirs"), b"x").unwrap();
        assert_eq!(errno(fs::remove_file(dir.join("mine"))), Errno::PERM);
        assert_eq!(errno(fs::rename(dir.join("mine"), dir.join("moved"))), Errno::PERM);
        assert_eq!(errno(fs::rename(dir.join("theirs"), dir.join("mine"))), Errno::PERM);
        fs::remove_file(dir.join("theirs")).unwrap();
    });
    as_user(OWNER, GROUP, &[], || fs::remove_file(dir.join("mine")).unwrap());
}

#[test]
fn a_setgid_directory_hands_its_group_down() {
    let place = Place::new();
    let dir = place.path("shared");
    fs::create_dir(&dir).unwrap();
    chown(&dir, 0, GROUP).unwrap();
    chmod(&dir, 0o2777);
    as_user(NOBODY, NOBODY, &[], || {
        fs::write(dir.join("f"), b"").unwrap();
        fs::create_dir(dir.join("d")).unwrap();
        std::os::unix::fs::symlink("x", dir.join("s")).unwrap();
    });
    for name in ["f", "d", "s"] {
        assert_eq!((stat(dir.join(name)).st_uid, stat(dir.join(name)).st_gid), (NOBODY, GROUP), "{name}");
    }
    assert_eq!(mode(dir.join("d")) & 0o2000, 0o2000, "a directory inherits the bit itself");
    assert_eq!(mode(dir.join("f")) & 0o2000, 0);
}

#[test]
fn a_write_by_another_user_drops_setuid() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"x").unwrap();
    chmod(&path, 0o6777);
    as_user(NOBODY, NOBODY, &[], || File::options().append(true).open(&path).unwrap().write_all(b"y").unwrap());
    assert_eq!(mode(&path), 0o777);
    // The setgid bit of a file that its group cannot execute means something else (mandatory locks) and stays, at
    // least when a member of the group writes.
    chmod(&path, 0o2767);
    as_user(NOBODY, NOBODY, &[0], || File::options().append(true).open(&path).unwrap().write_all(b"y").unwrap());
    assert_eq!(mode(&path), 0o2767);
    chmod(&path, 0o6777);
    as_user(NOBODY, NOBODY, &[], || File::options().write(true).truncate(true).open(&path).map(drop).unwrap());
    assert_eq!(mode(&path), 0o777);
    fs::write(&path, b"x").unwrap();
    chmod(&path, 0o6777);
    as_user(NOBODY, NOBODY, &[], || File::options().write(true).open(&path).unwrap().set_len(0).unwrap());
    assert_eq!(mode(&path), 0o777);
}

#[test]
fn fallocate_and_copies_by_another_user_drop_setuid() {
    let place = Place::new();
    let (path, source) = (place.path("f"), place.path("source"));
    fs::write(&path, [1; 5000]).unwrap();
    fs::write(&source, [2; 5000]).unwrap();
    let keep = FallocateFlags::KEEP_SIZE;
    let change = |how: u8| {
        let file = File::options().write(true).open(&path).unwrap();
        match how {
            0 => fallocate(&file, FallocateFlags::empty(), 0, 200_000).unwrap(),
            1 => fallocate(&file, keep | FallocateFlags::PUNCH_HOLE, 0, 4096).unwrap(),
            _ => {
                let source = File::open(&source).unwrap();
                copy_file_range(&source, Some(&mut 0), &file, Some(&mut 0), 1000).map(drop).unwrap()
            }
        }
    };
    for how in 0..3 {
        chmod(&path, 0o6777);
        as_user(NOBODY, NOBODY, &[], || change(how));
        assert_eq!(mode(&path), 0o777, "by another user, {how}");
        chmod(&path, 0o6777);
        change(how);
        assert_eq!(mode(&path), 0o6777, "by the superuser, {how}");
    }
}

#[test]
fn chown_drops_setuid() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"x").unwrap();
    chown(&path, OWNER, OWNER).unwrap();
    chmod(&path, 0o6755);
    as_user(OWNER, OWNER, &[GROUP], || chown(&path, OWNER, GROUP).unwrap());
    assert_eq!(mode(&path), 0o755);
    chmod(&path, 0o6755);
    chown(&path, 0, 0).unwrap();
    assert_eq!(mode(&path), 0o755, "Linux drops the bits for root too");
    let dir = place.path("d");
    fs::create_dir(&dir).unwrap();
    chmod(&dir, 0o2755);
    chown(&dir, 0, GROUP).unwrap();
    assert_eq!(mode(&dir), 0o2755, "a directory keeps its bit");
}

#[test]
fn only_the_owner_and_root_change_modes_and_owners() {
    let place = Place::new();
    let path = place.path("f");
    fs::write(&path, b"x").unwrap();
    chown(&path, OWNER, OWNER).unwrap();
    as_user(NOBODY, NOBODY, &[], || {
        assert_eq!(rustix::fs::chmod(&path, 0o777.into()).unwrap_err(), Errno::PERM);
        assert_eq!(chown(&path, NOBODY, NOBODY).unwrap_err(), Errno::PERM);
    });
    as_user(OWNER, OWNER, &[GROUP], || {
        assert_eq!(chown(&path, NOBODY, OWNER).unwrap_err(), Errno::PERM);
        assert_eq!(chown(&path, OWNER, 3000).unwrap_err(), Errno::PERM, "a group that the owner is not in");
        chown(&path, OWNER, GROUP).unwrap();
        // Setting the setgid bit for a group that one is not in is not refused, but dropped.
        rustix::fs::chmod(&path, 0o2755.into()).unwrap();
    });
    assert_eq!(mode(&path), 0o2755);
    as_user(OWNER, OWNER, &[], || rustix::fs::chmod(&path, 0o2755.into()).unwrap());
    assert_eq!(mode(&path), 0o755);
}

#[test]
fn the_umask_applies() {
    let place = Place::new();
    // The umask belongs to the process, not to the thread: another process shows it.
    sluice_tests::shell(place.root(), "umask 027; touch f; mkdir d; mkfifo p");
    assert_eq!((mode(place.path("f")), mode(place.path("d")), mode(place.path("p"))), (0o640, 0o750, 0o640));
}
