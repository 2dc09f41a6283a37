use super::*;
use crate::abi::outputs::{AttrOut, Dirent, EntryOut, StatxOut};
use proptest::prelude::*;
use zerocopy::FromBytes;

fn attr() -> Attr {
    let past = Timestamp { secs: -1, nanos: 5 };
    Attr { ino: 7, size: 9, atime: past, mode: 0o100644, nlink: 1, rdev: 0x1234_5678, ..Attr::default() }
}

#[test]
fn bodies_are_the_same_now_and_later() {
    let entry = Entry { nodeid: 3, attr: attr(), entry_valid: Duration::from_millis(1500), ..Entry::default() };
    let mut now = ReplyBuffer::default();
    now.created(&entry, 11, crate::abi::flags::fopen::KEEP_CACHE);
    let later = Body::with(|body| body.created(&entry, 11, crate::abi::flags::fopen::KEEP_CACHE));
    assert_eq!(now.body(), later.as_pieces().concat());
    let wire = EntryOut::read_from_prefix(now.body()).unwrap().0;
    assert_eq!((wire.nodeid, wire.entry_valid, wire.entry_valid_nsec), (3, 1, 500_000_000));
    assert_eq!((wire.attr.atime, wire.attr.atimensec), (-1, 5));
}

#[test]
fn statx_splits_the_device_number() {
    let mut reply = ReplyBuffer::default();
    reply.statx(&attr(), Some(Timestamp { secs: 3, nanos: 0 }), Duration::ZERO);
    let stat = StatxOut::read_from_bytes(reply.body()).unwrap().stat;
    assert_eq!((stat.rdev_major, stat.rdev_minor), (0x456, 0x1_2378));
    assert_eq!((stat.mask, stat.btime.tv_sec), (0xfff, 3));
}

#[test]
fn the_buffer_is_filled_in_place_and_cleared() {
    let mut reply = ReplyBuffer::default();
    let data = reply.data_mut(1 << 20);
    assert_eq!(data.as_ptr() as usize % 4096, 0);
    data[..3].copy_from_slice(b"abc");
    reply.set_len(3);
    assert_eq!(reply.body(), b"abc");
    reply.clear();
    reply.attr(&attr(), Duration::ZERO);
    assert_eq!(reply.body().len(), size_of::<AttrOut>());
}

#[test]
fn a_full_directory_buffer_takes_nothing() {
    let mut reply = ReplyBuffer::default();
    let mut entries = reply.directory(64);
    assert!(entries.push(1, 1, 0o040755, b"."));
    assert!(entries.push(1, 2, 0o040755, b".."));
    assert!(!entries.push(2, 3, 0o100644, b"x"));
    assert_eq!(reply.body().len(), 64);
    let mut plus = reply.directory_plus(159);
    assert!(!plus.push(&Entry::default(), 1, b"name"));
    assert!(plus.is_empty());
}

proptest! {
    #[test]
    fn directories_read_back(names in prop::collection::vec(prop::collection::vec(1u8.., 1..255), 0..40), size in 0usize..8192) {
        let mut memory = vec![0xaa; size];
        let mut entries = DirBuffer::new(&mut memory);
        let fitting = names.iter().enumerate().take_while(|(i, name)| entries.push(*i as u64 + 10, *i as u64 + 1, 0o100644, name)).count();
        let len = entries.len();
        let mut rest = &memory[..len];
        for (i, name) in names.iter().enumerate().take(fitting) {
            let (dirent, tail) = Dirent::read_from_prefix(rest).unwrap();
            prop_assert_eq!((dirent.ino, dirent.off, dirent.kind), (i as u64 + 10, i as u64 + 1, 8));
            prop_assert_eq!(&tail[..dirent.namelen as usize], &name[..]);
            rest = &rest[(24 + name.len()).next_multiple_of(8)..];
        }
        prop_assert!(rest.is_empty());
    }
}
