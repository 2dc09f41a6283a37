use super::*;
use crate::abi::flags::{self, fattr};
use crate::abi::inputs::*;
use crate::abi::opcode;
use proptest::prelude::*;
use sluice_base::Timestamp;
use zerocopy::IntoBytes;

fn packed(opcode: u32, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = (size_of::<InHeader>() + body.len()) as u32;
    let header = InHeader { len, opcode, unique: 8, nodeid: 5, uid: 1, gid: 2, pid: 3, ..Default::default() };
    [header.as_bytes(), &body].concat()
}

#[track_caller]
fn parses(opcode: u32, parts: &[&[u8]], operation: Operation<'_>) {
    let bytes = packed(opcode, parts);
    let expected = Request { unique: 8, nodeid: 5, uid: 1, gid: 2, pid: 3, operation };
    assert_eq!(Request::parse(&bytes), Ok(expected));
    // Every shorter body is refused, not misread; trailing bytes are ignored as the ABI grows at the end.
    let needs_body = !matches!(operation, Operation::Statx { .. }) && !parts.is_empty();
    if needs_body {
        let short = packed(opcode, &[&parts.concat()[..parts.concat().len() - 1]]);
        assert_eq!(Request::parse(&short), Err(Malformed::Body { unique: 8, opcode }));
    }
}

#[test]
fn names() {
    parses(opcode::LOOKUP, &[b"\xff.x\0"], Operation::Lookup { name: b"\xff.x" });
    parses(opcode::SYMLINK, &[b"a\0../b\0"], Operation::SymLink { name: b"a", target: b"../b" });
    let rename = Rename2In { newdir: 9, flags: 2, padding: 0 };
    let expected = Operation::Rename { name: b"a", new_parent: 9, new_name: b"b", flags: 2 };
    parses(opcode::RENAME2, &[rename.as_bytes(), b"a\0b\0"], expected);
    let expected = Operation::Rename { name: b"a", new_parent: 9, new_name: b"b", flags: 0 };
    parses(opcode::RENAME, &[RenameIn { newdir: 9 }.as_bytes(), b"a\0b\0"], expected);
    let create = CreateIn { flags: 0o102, mode: 0o100644, umask: 0o22, open_flags: flags::OPEN_KILL_SUIDGID };
    let expected = Operation::Create { name: b"n", flags: 0o102, mode: 0o100644, umask: 0o22, kill_suidgid: true };
    parses(opcode::CREATE, &[create.as_bytes(), b"n\0"], expected);
    parses(opcode::LINK, &[LinkIn { oldnodeid: 4 }.as_bytes(), b"n\0"], Operation::Link { target: 4, name: b"n" });
    assert!(Request::parse(&packed(opcode::LOOKUP, &[b"\0"])).is_err());
}

#[test]
fn set_attributes() {
    let valid = fattr::ATIME | fattr::MTIME | fattr::MTIME_NOW | fattr::SIZE | fattr::KILL_SUIDGID;
    let wire = SetattrIn { valid, size: 7, atime: -5, atimensec: 999_999_999, mode: 1, ..Default::default() };
    let expected = SetAttr {
        size: Some(7),
        atime: Some(SetTime::At(Timestamp { secs: -5, nanos: 999_999_999 })),
        mtime: Some(SetTime::Now),
        kill_suidgid: true,
        ..Default::default()
    };
    parses(opcode::SETATTR, &[wire.as_bytes()], Operation::SetAttr(expected));
    let bad = SetattrIn { atimensec: 1_000_000_000, ..wire };
    assert!(Request::parse(&packed(opcode::SETATTR, &[bad.as_bytes()])).is_err());
}

#[test]
fn data() {
    let write = WriteIn { fh: 1, offset: 2, size: 3, write_flags: flags::WRITE_CACHE, flags: 4, ..Default::default() };
    let expected = Operation::Write {
        fh: 1,
        offset: 2,
        data: b"abc",
        flags: 4,
        cached: true,
        kill_suidgid: false,
        lock_owner: None,
    };
    parses(opcode::WRITE, &[write.as_bytes(), b"abc"], expected);
    let set = SetxattrIn { size: 2, flags: 1, setxattr_flags: 1, padding: 0 };
    let expected = Operation::SetXattr { name: b"user.a", value: b"\0v", flags: 1, acl_kill_sgid: true };
    parses(opcode::SETXATTR, &[set.as_bytes(), b"user.a\0\0v"], expected);
    let range = CopyFileRangeIn { fh_in: 1, off_in: 2, nodeid_out: 3, fh_out: 4, off_out: 5, len: 1 << 40, flags: 0 };
    let expected = Operation::CopyFileRange {
        fh_in: 1,
        off_in: 2,
        nodeid_out: 3,
        fh_out: 4,
        off_out: 5,
        len: 1 << 40,
        flags: 0,
        wide: true,
    };
    parses(opcode::COPY_FILE_RANGE_64, &[range.as_bytes()], expected);
    let read = ReadIn { fh: 1, offset: u64::MAX, size: 4096, ..Default::default() };
    parses(opcode::READDIR, &[read.as_bytes()], Operation::ReadDir { fh: 1, offset: u64::MAX, size: 4096 });
}

#[test]
fn forgets() {
    let pairs = [ForgetOne { nodeid: 2, nlookup: 3 }, ForgetOne { nodeid: 4, nlookup: 1 }];
    let bytes = packed(opcode::BATCH_FORGET, &[BatchForgetIn { count: 2, dummy: 0 }.as_bytes(), pairs.as_bytes()]);
    let Operation::BatchForget(forgets) = Request::parse(&bytes).unwrap().operation else { panic!() };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(2, 3), (4, 1)]);
    let lying = packed(opcode::BATCH_FORGET, &[BatchForgetIn { count: u32::MAX, dummy: 0 }.as_bytes()]);
    assert!(Request::parse(&lying).is_err());
}

#[test]
fn headers() {
    assert_eq!(Request::parse(&[]), Err(Malformed::Header));
    let mut bytes = packed(opcode::STATFS, &[]);
    parses(opcode::STATFS, &[], Operation::StatFs);
    parses(4711, &[], Operation::Unknown { opcode: 4711 });
    bytes.push(0);
    assert_eq!(Request::parse(&bytes), Err(Malformed::Header));
    // One unit of extensions (8 bytes) behind the name is not part of it.
    let mut bytes = packed(opcode::LOOKUP, &[b"n\0", &[1; 8]]);
    bytes[36..38].copy_from_slice(&1u16.to_ne_bytes());
    assert_eq!(Request::parse(&bytes).unwrap().operation, Operation::Lookup { name: b"n" });
    bytes[36..38].copy_from_slice(&u16::MAX.to_ne_bytes());
    assert!(Request::parse(&bytes).is_err());
}

proptest! {
    #[test]
    fn any_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Request::parse(&bytes);
    }

    #[test]
    fn any_body_does_not_panic(opcode in 0u32..60, body in prop::collection::vec(any::<u8>(), 0..200)) {
        let bytes = packed(opcode, &[&body]);
        if let Ok(Request { operation: Operation::BatchForget(forgets), .. }) = Request::parse(&bytes) {
            prop_assert!(forgets.iter().count() <= body.len() / 16);
        }
    }
}
