//! What is believed of a directory made here, and of a file opened here.

use super::*;

const DIR: Ino = Ino(7);
const FILE: Ino = Ino(8);

fn attr(ino: Ino) -> Attr {
    let time = sluice_base::Timestamp::default();
    let (mode, nlink, uid, gid, rdev, size, held_bytes, change) = (0o100_644, 1, 0, 0, 0, 0, 0, 1);
    Attr {
        ino,
        mode,
        nlink,
        uid,
        gid,
        rdev,
        size,
        held_bytes,
        change,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
    }
}

fn inode() -> Inode {
    let Attr { mode, uid, gid, nlink, atime, mtime, ctime, btime, .. } = attr(FILE);
    let (rdev, flags, size, held_bytes, change, parent) = (0, 0, 0, 0, 1, Ino(0));
    Inode { mode, uid, gid, nlink, rdev, flags, size, held_bytes, change, parent, atime, mtime, ctime, btime }
}

/// The answer to a change about `inos`, with the directories that it changed.
fn changed(cache: &Cache, inos: &[Ino]) -> Heard {
    let heard = cache.begin(Some(inos));
    cache.end(heard, std::iter::empty());
    Heard {
        head: ReplyHead { cacheable: true, stamp: cache.taken.load(SeqCst), ..ReplyHead::default() },
        entries: true,
        ..heard
    }
}

fn made_dir(cache: &Cache) {
    cache.enter(changed(cache, &[Ino::ROOT]), DIR, Known::is_new_directory);
}

fn entry(name: &str) -> Invalidation {
    Invalidation::Entry(DIR, name.as_bytes().to_vec())
}

#[test]
fn a_new_directory_has_no_names_but_those_that_others_made() {
    let cache = Cache::default();
    assert_eq!(cache.name(DIR, b"a"), None);
    made_dir(&cache);
    assert_eq!(cache.name(DIR, b"a"), Some(None));
    cache.note_taken(1);
    cache.drop_what(&entry("a"), &mut Vec::new());
    cache.drop_what(&entry("b"), &mut Vec::new());
    assert_eq!((cache.name(DIR, b"a"), cache.name(DIR, b"b")), (None, None), "somebody may have made them");
    assert_eq!(cache.name(DIR, b"c"), Some(None));
    cache.drop_own(&entry("c"));
    assert_eq!(cache.name(DIR, b"c"), None);
    cache.enter(changed(&cache, &[DIR]), DIR, |known| known.set_name(b"c", Some(FILE)));
    assert_eq!((cache.name(DIR, b"c"), cache.name(DIR, b"d")), (Some(Some(FILE)), Some(None)));
    let mut told = Vec::new();
    cache.drop_what(&Invalidation::Inode(DIR), &mut told);
    assert!(told.contains(&entry("d")), "the kernel was told that it is not there: {told:?}");
    assert_eq!(cache.name(DIR, b"d"), None);
}

#[test]
fn a_push_that_overtook_the_answer_leaves_a_new_directory_unknown() {
    let cache = Cache::default();
    let heard = changed(&cache, &[Ino::ROOT]);
    cache.note_taken(1);
    cache.drop_what(&entry("a"), &mut Vec::new());
    cache.enter(heard, DIR, Known::is_new_directory);
    assert_eq!(cache.name(DIR, b"a"), None);
}

#[test]
fn what_was_asked_for_before_all_was_dropped_is_not_kept() {
    let cache = Cache::default();
    let heard = changed(&cache, &[Ino::ROOT]);
    cache.restart(0, &mut Vec::new());
    cache.enter(heard, DIR, Known::is_new_directory);
    assert_eq!(cache.name(DIR, b"a"), None, "nobody would push that it is there");
    made_dir(&cache);
    assert_eq!(cache.name(DIR, b"a"), Some(None));
}

#[test]
fn more_names_than_are_kept_are_not_all_of_them() {
    let cache = Cache::default();
    made_dir(&cache);
    for i in 0..=NAMES_MAX {
        assert_eq!(cache.name(DIR, i.to_string().as_bytes()), Some(None));
    }
    assert_eq!(cache.name(DIR, b"0"), None);
}

#[test]
fn a_file_is_opened_unasked_when_all_is_known_and_pages_stay_unless_others_changed_it() {
    let cache = Cache::default();
    let know = |known: &mut Known| {
        (known.attr, known.inode) = (Some(attr(FILE)), Some(inode()));
        known.body = Some(None);
        known.first_span = Some(SpanRecords { span: 0, records: Vec::new() });
    };
    let publish = || cache.enter(changed(&cache, &[FILE]), FILE, know);
    publish();
    assert_eq!(cache.open(FILE), Some((attr(FILE), false)), "it was not open here before");
    assert_eq!(cache.open(FILE), Some((attr(FILE), true)));
    cache.drop_own(&Invalidation::Data(FILE));
    assert_eq!(cache.open(FILE), None, "nothing is known after a change whose answer may not be kept");
    publish();
    assert_eq!(cache.open(FILE), Some((attr(FILE), true)), "only this mount changed it");
    cache.note_taken(1);
    cache.drop_what(&Invalidation::Data(FILE), &mut Vec::new());
    publish();
    assert_eq!(cache.open(FILE), Some((attr(FILE), false)), "another one did");
    cache.drop_own(&Invalidation::Attr(FILE));
    assert_eq!(cache.open(FILE), None);
}
