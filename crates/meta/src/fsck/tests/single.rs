//! One thing broken at a time: what is said of it, and that mending brings back what was there.

use super::*;
use crate::records::{Dirent, Inode, ObjectRecord, ObjectState};

/// Breaks a sound volume, checks that a finding of this code comes up, and mends it. Returns the volume, what was there before,
/// and everything that was mended.
fn mend(code: &str, breakage: impl Fn(&Volume, &BTreeMap<&'static str, Ino>)) -> (Volume, Records, String) {
    let (volume, inos) = everything();
    let before = volume.records();
    breakage(&volume, &inos);
    assert!(volume.codes().contains(&code), "{code} not among: {}", text(&volume.check().findings));
    let said = text(&volume.repair().mended);
    (volume, before, said)
}

/// As [`mend`], where nothing is lost: all is as before but for change counters.
fn restores(code: &str, breakage: impl Fn(&Volume, &BTreeMap<&'static str, Ino>)) {
    let (volume, before, said) = mend(code, breakage);
    let after = volume.records();
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>(), "after {said}");
    for (key, value) in before {
        match key[0] {
            b'i' => {
                let (a, b) = (Inode::decode(&value).expect("sound"), Inode::decode(&after[&key]).expect("sound"));
                assert_eq!(a, Inode { change: a.change, ..b }, "after {said}");
            }
            b's' => assert_eq!(value[1..13], after[&key][1..13], "after {said}"),
            _ if *key == *b"vids" => {}
            _ => assert_eq!(value, after[&key], "{} after {said}", key.escape_ascii()),
        }
    }
}

fn cookie_of(volume: &Volume, dir: Ino, name: &[u8]) -> u64 {
    Dirent::decode(&volume.get(&keys::entry(dir, name))).expect("sound").cookie
}

fn change(volume: &Volume, ino: Ino, with: impl Fn(&mut Inode)) {
    let mut inode = Inode::decode(&volume.get(&keys::inode(ino))).expect("sound");
    with(&mut inode);
    volume.put(&keys::inode(ino), &inode.encode());
}

#[test]
fn half_entries_are_completed() {
    restores("entry-twins", |volume, inos| volume.delete(&keys::entry(inos["dir"], b"small")));
    restores("entry-twins", |volume, inos| {
        let cookie = cookie_of(volume, inos["dir"], b"small");
        volume.delete(&keys::cookie(inos["dir"], cookie));
    });
    restores("entry-twins", |volume, inos| volume.put(&keys::entry(inos["dir"], b"sub"), b"garbage"));
    restores("entry-twins", |volume, inos| {
        let cookie = cookie_of(volume, inos["dir"], b"sub");
        volume.put(&keys::cookie(inos["dir"], cookie), b"garbage");
    });
}

#[test]
fn of_two_inodes_the_one_that_misses_a_name_is_believed() {
    for (right, wrong) in [("small", "linked"), ("linked", "small")] {
        restores("entry-twins", |volume, inos| {
            let (dir, name) =
                if right == "small" { (inos["dir"], &b"small"[..]) } else { (inos["sub"], &b"linked"[..]) };
            let value = Dirent::encode(inos[wrong], mode::REGULAR, cookie_of(volume, dir, name), b"");
            volume.put(&keys::entry(dir, name), &value);
        });
    }
}

#[test]
fn wrong_counts_are_counted_anew() {
    restores("link-count", |volume, inos| change(volume, inos["linked"], |inode| inode.nlink = 7));
    restores("link-count", |volume, inos| change(volume, inos["dir"], |inode| inode.nlink = 0));
    restores("held-bytes", |volume, inos| change(volume, inos["big"], |inode| inode.held_bytes += 1));
    restores("flags", |volume, inos| change(volume, inos["small"], |inode| inode.flags = 0));
    restores("flags", |volume, inos| change(volume, inos["big"], |inode| inode.flags = 4 | 1));
    restores("parent", |volume, inos| change(volume, inos["sub"], |inode| inode.parent = Ino::ROOT));
    restores("size", |volume, inos| change(volume, inos["big"], |inode| inode.size = 3));
    restores("size", |volume, inos| change(volume, inos["symlink"], |inode| inode.size = 99));
    restores("directory-counts", |volume, inos| volume.flip(&keys::dir_stat(inos["dir"]), 1));
    restores("directory-counts", |volume, inos| volume.flip(&keys::dir_stat(inos["dir"]), 6));
    restores("directory-counts", |volume, inos| volume.delete(&keys::dir_stat(inos["sub"])));
    restores("directory-counts", |volume, _| volume.put(&keys::dir_stat(Ino::ROOT), b"garbage"));
    restores("usage", |volume, _| volume.delete(&keys::volume("usage")));
    restores("counter", |volume, _| volume.put(&keys::volume("ids"), &17u64.to_le_bytes()));
    restores("inode", |volume, inos| change(volume, inos["sub"], |inode| inode.mode ^= mode::TYPE));
    restores("leftover", |volume, _| volume.put(&keys::xattr(Ino(999), b"user.x"), b"y"));
    restores("leftover", |volume, _| volume.put(&keys::orphan(Ino(999)), b""));
}

#[test]
fn object_records_are_counted_anew() {
    let object = |volume: &Volume, with: &dyn Fn(&mut ObjectRecord)| {
        let key = keys::object(ObjectId([1; 16]));
        let mut record = ObjectRecord::decode(&volume.get(&key)).expect("sound");
        with(&mut record);
        volume.put(&key, &record.encode());
    };
    restores("live-bytes", |volume, _| object(volume, &|record| record.live_bytes = 0));
    restores("buried-object", |volume, _| object(volume, &|record| record.state = ObjectState::Tombstone));
}

#[test]
fn a_mark_on_what_has_a_name_is_no_death_warrant() {
    restores("orphan-mark", |volume, inos| {
        volume.put(&keys::orphan(inos["big"]), b"");
        change(volume, inos["big"], |inode| inode.nlink = 0);
    });
}

#[test]
fn what_lost_its_name_is_in_lost_and_found() {
    let (volume, _, said) = mend("nameless-inode", |volume, inos| {
        let dir = inos["dir"];
        let cookie = cookie_of(volume, dir, b"sub");
        volume.delete(&keys::entry(dir, b"sub"));
        volume.delete(&keys::cookie(dir, cookie));
    });
    assert!(said.contains("/lost+found"), "{said}");
    let lost = volume.names.lookup(Ino::ROOT, b"lost+found").expect("made");
    let (_, inos) = everything();
    let sub = volume.names.lookup(lost.ino, format!("#{}", inos["sub"]).as_bytes()).expect("named");
    assert!(lost.mode & 0o777 == 0o700 && lost.nlink == 3 && sub.nlink == 2);
    volume.names.lookup(sub.ino, b"big").expect("with all that is in it");
}

#[test]
fn a_loop_is_cut_and_keeps_its_files() {
    let (volume, _, _) = mend("directory-loop", |volume, inos| {
        // dir moves below its own child.
        let (dir, sub) = (inos["dir"], inos["sub"]);
        let cookie = cookie_of(volume, Ino::ROOT, b"dir");
        volume.delete(&keys::entry(Ino::ROOT, b"dir"));
        volume.delete(&keys::cookie(Ino::ROOT, cookie));
        volume.put(&keys::entry(sub, b"dir"), &Dirent::encode(dir, mode::DIRECTORY, cookie, b""));
        volume.put(&keys::cookie(sub, cookie), &Dirent::encode(dir, mode::DIRECTORY, cookie, b"dir"));
    });
    let lost = volume.names.lookup(Ino::ROOT, b"lost+found").expect("made");
    let (_, inos) = everything();
    let dir = volume.names.lookup(lost.ino, format!("#{}", inos["dir"]).as_bytes()).expect("named");
    volume.names.lookup(dir.ino, b"small").expect("still there");
}

#[test]
fn an_inode_record_is_rebuilt_around_its_content() {
    for damage in [false, true] {
        let (volume, before, said) = mend("inode", |volume, inos| {
            for ino in [inos["big"], inos["small"], inos["sub"], inos["symlink"]] {
                if damage { volume.put(&keys::inode(ino), b"garbage") } else { volume.delete(&keys::inode(ino)) }
            }
        });
        assert!(
            said.contains("(/dir/sub/big): the attributes") && said.contains("owner, mode and times are lost"),
            "{said}"
        );
        let after = volume.records();
        let (_, inos) = everything();
        for (key, value) in before.iter().filter(|(key, _)| b"bcdelx".contains(&key[0])) {
            assert_eq!(Some(value), after.get(key), "content and names stay");
        }
        let big = volume.names.getattr(inos["big"]).expect("rebuilt");
        assert_eq!((big.size, big.mode), ((64 << 20) + 500, mode::REGULAR | 0o600));
        assert_eq!(volume.names.readlink(inos["symlink"]).expect("kept"), b"target");
    }
}

#[test]
fn lost_objects_are_named_with_file_and_range() {
    let (volume, _, said) = mend("lost-data", |volume, _| volume.delete(&keys::object(ObjectId([2; 16]))));
    assert!(said.contains("(/dir/sub/big): DATA LOST: 11000 bytes"), "{said}");
    assert!(said.contains("they read as zeros: 50000..60000 67108364..67109364"), "{said}");
    assert!(said.contains("linked): DATA LOST: 10 bytes") || said.contains("link): DATA LOST: 10 bytes"), "{said}");
    let (_, inos) = everything();
    assert_eq!(volume.names.getattr(inos["big"]).expect("there").held_bytes, 90_000);
}

#[test]
fn an_object_that_the_store_has_is_not_lost() {
    for garbage in [None, Some(&b"garbage"[..])] {
        let (volume, _) = everything();
        let key = keys::object(ObjectId([2; 16]));
        match garbage {
            None => volume.delete(&key),
            Some(bytes) => volume.put(&key, bytes),
        }
        let before = volume.records();
        let copy = StoredCopy { segments: 1, stored_bytes: 25_000 };
        volume.repair_with(&|id| (id == ObjectId([2; 16])).then_some(copy));
        let record = ObjectRecord::decode(&volume.get(&key)).expect("made anew");
        assert_eq!((record.state, record.segments, record.live_bytes), (ObjectState::Stored, 1, 11_010));
        let after = volume.records();
        assert!(before.iter().filter(|(key, _)| key[0] == b'e').all(|(key, value)| after.get(key) == Some(value)));
    }
}

#[test]
fn bytes_past_the_end_of_their_object_are_lost_alone() {
    let (volume, _, said) = mend("lost-data", |volume, _| {
        let key = keys::object(ObjectId([1; 16]));
        let record = ObjectRecord::decode(&volume.get(&key)).expect("sound");
        volume.put(&key, &ObjectRecord { segments: 2, ..record }.encode());
    });
    assert!(said.contains("34464 bytes are in object 01") && said.contains("65536..100000"), "{said}");
    assert_eq!(ObjectRecord::decode(&volume.get(&keys::object(ObjectId([1; 16])))).expect("sound").live_bytes, 55_536);
}

#[test]
fn what_cannot_be_mended_is_removed_and_said() {
    let (_, _, said) = mend("entry-without-inode", |volume, inos| {
        volume.delete(&keys::inode(inos["symlink"]));
        volume.delete(&keys::symlink(inos["symlink"]));
    });
    assert!(
        said.contains("(/dir): entry \"symlink\" leads to inode") && said.contains("the entry is removed"),
        "{said}"
    );
    let (_, _, said) = mend("no-symlink-target", |volume, inos| volume.delete(&keys::symlink(inos["symlink"])));
    assert!(said.contains("(/dir/symlink): the target of this symbolic link is lost"), "{said}");
    let (_, _, said) = mend("lost-body", |volume, inos| volume.delete(&keys::body(inos["small"])));
    assert!(said.contains("(/dir/small): DATA LOST: the content is missing; 5 bytes read as zeros"), "{said}");
    let (_, _, said) = mend("bad-extents", |volume, inos| volume.put(&keys::extent(inos["big"], 0, 1), b"garbage"));
    assert!(said.contains("(/dir/sub/big): DATA LOST: a record of extents within 0..67108864"), "{said}");
    let (_, _, said) = mend("bad-key", |volume, _| volume.put(b"i\x01\x02", b"?"));
    assert!(said.contains("i\\x01\\x02"), "{said}");
    mend("two-contents", |volume, inos| volume.put(&keys::body(inos["big"]), b"stray"));
    mend("extra-directory-name", |volume, inos| {
        let cookie = 1 << 40;
        volume.put(&keys::entry(inos["sub"], b"again"), &Dirent::encode(inos["dir"], mode::DIRECTORY, cookie, b""));
        volume.put(&keys::cookie(inos["sub"], cookie), &Dirent::encode(inos["dir"], mode::DIRECTORY, cookie, b"again"));
    });
}

#[test]
fn a_missing_root_is_made_anew_over_its_entries() {
    let (volume, _, _) = mend("inode", |volume, _| volume.delete(&keys::inode(Ino::ROOT)));
    volume.names.lookup(Ino::ROOT, b"dir").expect("still there");
}

#[test]
fn the_files_of_a_damaged_object_are_found() {
    let (volume, inos) = everything();
    let damaged =
        sluice_run::collections::HashMap::from_iter([(ObjectId([2; 16]), vec![9_000..10_500, 20_005..20_006])]);
    let found = users(&volume.store, &damaged).expect("found");
    let ranges: Vec<_> = found.iter().map(|user| (user.ino, user.ranges.clone())).collect();
    let tail = (64 << 20) - 500;
    assert_eq!(
        ranges,
        [(inos["big"], vec![59_000..60_000, tail..tail + 500]), (inos["linked"], std::iter::once(10..11).collect())]
    );
    assert_eq!(found[0].path.as_deref(), Some(&b"/dir/sub/big"[..]));
}

#[test]
fn names_cannot_steer_the_terminal() {
    let volume = Volume::new();
    let ino = volume.file(Ino::ROOT, "a\u{1b}[2J\u{e9}");
    volume.delete(&keys::inode(ino));
    let said = text(&volume.check().findings);
    assert!(said.contains("a\\u{1b}[2J\u{e9}"), "{said}");
}

#[test]
fn much_of_one_thing_is_mended_in_many_transactions() {
    let volume = Volume::new();
    let file = volume.file(Ino::ROOT, "file");
    for index in 0..200 {
        volume.write(file, index * 100_000, 10, 1, index as u32 * 10);
        volume.write(file, index * 100_000 + 50_000, 10, 2, index as u32 * 10);
    }
    volume.delete(&keys::object(ObjectId([1; 16])));
    for index in 0u32..10_000 {
        volume.put(&keys::xattr(Ino(999), format!("user.{index}").as_bytes()), b"");
    }
    volume.repair();
    let attr = volume.names.getattr(file).expect("there");
    assert_eq!((attr.held_bytes, attr.size), (2000, 199 * 100_000 + 50_010));
}
