//! One small sound input for each shape that a parser knows, made by the code that writes it. They are stored under `fuzz/seeds/`:
//! a fuzzer starts from them, and a layout that changes by accident no longer gives the bytes that were stored.

use crate::parsers::{OBJECT, VOLUME, journal_options, open_cache, wire_output, wire_pair};
use sluice_base::{
    Ino, ManualClock, Seq, SessionId, Timestamp,
    crc::segment_crc,
    disk::{Disk, MemoryDisk},
    limits::SEGMENT_BYTES,
};
use sluice_fuse::{HandOver, Negotiated, Parked};
use sluice_join::methods::{Report, Unstored, encode_pieces};
use sluice_journal::{Class, Journal, SEGMENT_HEADER_BYTES};
use sluice_meta::{
    Attachment, Caller, DataChange, Namespace, NewNode, SizeChange, XattrMode,
    dump::{FORMAT, Header, dump},
    extent::{Extent, FileExtents, Place},
    records::{Claimed, DirStat, Dirent, Inode, ObjectRecord, ObjectState, SessionRecord, Usage, mode},
    rpc::{AssertedLock, Body, Extents, LockKind, LockMode, LockRange, Name, message::*},
    store::{MemoryLog, MemoryTables, MetaStore, Options},
};
use sluice_node::{
    Member, Members, NodeName, Registry, State,
    message::{self as group, CheckSegments, Heartbeat, Join, MemberStatus, Numbers, ReadRange, ReadSegments},
};
use sluice_object::{
    Codec, StoredObject,
    format::{ObjectTable, SegmentEntry, encode_tail},
};
use sluice_store::{ScrubOptions, SegmentSum, SlotLocation};
use sluice_vfs::remote::{BookState, KnownNames, LockedHandle, Losses, SessionState};
use sluice_vfs::{DataNote, HandleId, OpenDir, OpenFile, OpenState, Orphan, Piece};
use sluice_wire::{Payload, PushNumber, RefusalCode, RequestId, Welcome};
use std::{path::Path, sync::Arc, time::Duration};

/// Target, name and bytes of every seed.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut all = Vec::new();
    let mut add = |target, made: Vec<(&'static str, Vec<u8>)>| {
        all.extend(made.into_iter().map(|(name, bytes)| (target, name, bytes)));
    };
    let records = journal();
    add("journal_record", vec![("empty", records[..40].to_vec()), ("data", records[40..].to_vec())]);
    add("journal_segment", vec![("two_records", records)]);
    add("metadata_record", transactions());
    add("dump", vec![("small", dumped())]);
    add("metadata_rpc", messages());
    add("shipped_metadata", sluice_ship::samples());
    add("value_records", values());
    add("extent_records", extents());
    add("data_note", notes());
    add("object_tail", tails());
    add("scrub_record", vec![("clean", scrub())]);
    add("slot_table", vec![("clean_and_dirty", slots())]);
    add("fuse_request", requests());
    add("hand_over", hand_overs());
    add("wire_frames", frames());
    add("node_messages", of_nodes());
    add("member_list", lists());
    add("unstored_bytes", unstored());
    let text = |name, text: &str| (name, text.as_bytes().to_vec());
    add(
        "store_url",
        vec![
            text("file", "file:/srv/volume"),
            text("memory", "memory:"),
            text("s3", "s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true"),
        ],
    );
    let volume = format!(
        "{{\n  \"format_version\": 1,\n  \"id\": \"{VOLUME}\",\n  \"store\": \"file:objects\",\n  \"durability\": \"journal\"\n}}\n"
    );
    add("volume_json", vec![("file_store", volume.into_bytes())]);
    let ini = "[default]\naws_access_key_id = AKID ; comment\nregion=eu\ns3 =\n  nested = 1\n# end\n[profile a]\nregion = x\n";
    add("credentials_ini", vec![text("two_profiles", ini)]);
    all
}

/// An empty record and one with some data, as they lie in a segment.
fn journal() -> Vec<u8> {
    let disk = MemoryDisk::default();
    let opened = Journal::open(Arc::new(disk.clone()), journal_options(), &mut |_, _| Ok(()));
    let (journal, _) = opened.expect("a new journal");
    journal.append(Class::Metadata, &[]).expect("room");
    journal.sync().expect("a disk in memory");
    journal.append(Class::Data, &[b"some ", b"data"]).expect("room");
    let segment = disk.open(Path::new("/journal/0000000000000001.log")).expect("the first segment");
    let mut bytes = vec![0; 40 + 56];
    segment.read_exact_at(&mut bytes, SEGMENT_HEADER_BYTES).expect("two records");
    bytes
}

/// The records of a mkdir, a write with an attachment, an attribute and a removal.
fn transactions() -> Vec<(&'static str, Vec<u8>)> {
    let log = Arc::new(MemoryLog::default());
    let store = MetaStore::new(Arc::new(MemoryTables::default()), log.clone(), Seq(0), Options::default());
    let clock = ManualClock::default();
    clock.advance(Duration::new(1_700_000_000, 5));
    let namespace = Namespace::new(Arc::new(store), Arc::new(clock));
    let caller = Caller { uid: 1000, gid: 100 };
    namespace.format(caller).expect("an empty volume");
    let node = |mode| NewNode { mode, rdev: 0, target: b"" };
    namespace.create(Ino::ROOT, b"dir", node(mode::DIRECTORY | 0o755), caller).expect("a new name");
    let file = namespace.create(Ino::ROOT, b"file", node(mode::REGULAR | 0o644), caller).expect("a new name").value;
    let [(_, note), ..] = &notes()[..] else { return Vec::new() };
    let change = DataChange {
        extents: vec![Extent { offset: 0, len: 9, place: Some(Place { object: OBJECT, offset: 40_000 }) }],
        size: SizeChange::AtLeast(9),
        new_objects: vec![(OBJECT, SessionId(1))],
        attachments: vec![Attachment { header: note.clone(), data: b"some data" }],
        ..DataChange::default()
    };
    namespace.change_data(file.ino, &mut FileExtents::default(), &change).expect("a regular file");
    namespace.setxattr(file.ino, b"user.a", b"value", XattrMode::Set).expect("a file");
    namespace.unlink(Ino::ROOT, b"file", &|_| false).expect("a name");
    let names = ["format", "ids", "mkdir", "create", "write", "setxattr", "unlink"];
    names.into_iter().zip(log.records()).map(|(name, (_, _, bytes))| (name, bytes)).collect()
}

/// A directory, a link and a name that is no text.
fn dumped() -> Vec<u8> {
    let store =
        MetaStore::new(Arc::new(MemoryTables::default()), Arc::new(MemoryLog::default()), Seq(0), Options::default());
    let (store, clock, caller) = (Arc::new(store), ManualClock::default(), Caller { uid: 1000, gid: 100 });
    let namespace = Namespace::new(store.clone(), Arc::new(clock));
    namespace.format(caller).expect("an empty volume");
    let node = |mode| NewNode { mode, rdev: 0, target: b"dir/\xff" };
    namespace.create(Ino::ROOT, b"dir", node(mode::DIRECTORY | 0o755), caller).expect("a new name");
    namespace.create(Ino::ROOT, b"link\xfe", node(mode::SYMLINK | 0o777), caller).expect("a new name");
    let file = namespace.create(Ino::ROOT, b"file", node(mode::REGULAR | 0o644), caller).expect("a new name").value;
    let change = DataChange {
        extents: vec![Extent { offset: 5, len: 9, place: Some(Place { object: OBJECT, offset: 40_000 }) }],
        size: SizeChange::AtLeast(14),
        new_objects: vec![(OBJECT, SessionId(1))],
        ..DataChange::default()
    };
    namespace.change_data(file.ino, &mut FileExtents::default(), &change).expect("a regular file");
    namespace.setxattr(file.ino, b"user.a", b"value", XattrMode::Set).expect("a file");
    let header = Header {
        format: FORMAT,
        volume: VOLUME.to_string(),
        store: "file:objects".into(),
        durability: "journal".into(),
        seq: store.visible().0,
        wall_secs: 1_700_000_000,
        segment_bytes: 32 << 10,
        object_bytes: 4 << 20,
        span_bytes: 64 << 20,
    };
    let mut out = Vec::new();
    dump(&store, header, &mut out, |_| {}).expect("sound metadata");
    out
}

/// A mount in which nothing is open, and one with a file that is open twice and has no name, a listing, and bytes that were lost.
fn hand_overs() -> Vec<(&'static str, Vec<u8>)> {
    let negotiated = Negotiated { minor: 45, flags: 0x1_4089_9821, max_write: 1 << 20, max_readahead: 1 << 20 };
    let file = |handle, atime_due| OpenFile { handle: HandleId(handle), ino: Ino(9), atime_due, owes_loss: !atime_due };
    let open = OpenState {
        files: vec![file(1, true), file(4, false)],
        dirs: vec![OpenDir { handle: HandleId(2), ino: Ino::ROOT, until: 77 }],
        orphans: vec![Orphan { ino: Ino(9), forgotten: false }, Orphan { ino: Ino(12), forgotten: true }],
        lost: true,
    };
    let of = |open, parked, served| HandOver { negotiated, open, parked, served }.encode();
    let waits = Parked { channel: 1, interrupted: false, request: vec![88; 88] };
    vec![
        ("nothing_open", of(OpenState::default(), Vec::new(), None)),
        ("some_open", of(open.clone(), Vec::new(), None)),
        ("served", of(open, vec![waits], Some(session()))),
    ]
}

/// A session with a lock, a loss, and names that the kernel knows.
fn session() -> SessionState {
    let (kind, range) = (LockKind::Record, LockRange::new(3, 9).expect("a range"));
    let lock = AssertedLock { ino: Ino(9), kind, owner: 5, range, mode: LockMode::Exclusive, pid: 7 };
    let handle = LockedHandle { handle: HandleId(4), ino: Ino(9), closing: false, owners: vec![(kind, 5)] };
    SessionState {
        session: SessionId(3),
        epoch: 1,
        life: 2,
        line: 6,
        lease_ms: 15_000,
        number: 1000,
        pushes: 20,
        held: vec![Ino::ROOT, Ino(9)],
        released: vec![Ino(10)],
        lost: Losses { inos: vec![Ino(9)], others: false },
        dropped: Losses { inos: Vec::new(), others: true },
        locks: BookState { locks: vec![lock], handles: vec![handle], lost: vec![HandleId(1)], attempts: 40 },
        known: vec![KnownNames { ino: Ino::ROOT, names: vec![b"a".as_slice().into(), b"name".as_slice().into()] }],
    }
}

fn values() -> Vec<(&'static str, Vec<u8>)> {
    let at = |secs| Timestamp { secs, nanos: 999_999_999 };
    let inode = Inode {
        mode: mode::REGULAR | 0o4755,
        uid: 1,
        gid: 2,
        nlink: 3,
        rdev: 4,
        flags: 5,
        size: 6,
        held_bytes: 7,
        change: 8,
        parent: Ino(9),
        atime: at(-10),
        mtime: at(11),
        ctime: at(12),
        btime: at(13),
    };
    let object = ObjectRecord {
        state: ObjectState::Stored,
        segments: 2,
        stored_bytes: 32_900,
        live_bytes: 5,
        since: at(6),
        ..ObjectRecord::open(SessionId(1))
    };
    let session = SessionRecord { epoch: 3, begun: at(4), name: b"host:/mnt".to_vec(), claimed: None, left: false };
    let taken_over = SessionRecord { claimed: Some(Claimed { from: 1, secret: 5 }), ..session.clone() };
    vec![
        ("inode", inode.encode()),
        ("entry_by_name", Dirent::encode(Ino(17), mode::REGULAR, 18, b"")),
        ("entry_by_cookie", Dirent::encode(Ino(17), mode::REGULAR, 18, b"name")),
        ("directory_statistics", DirStat { entries: 1, ..DirStat::empty(at(1)) }.encode()),
        ("object", object.encode()),
        ("usage", Usage { bytes: 4096, inodes: 2 }.encode()),
        ("session", session.encode()),
        ("session_taken_over", taken_over.encode()),
    ]
}

/// Requests of each kind, and a push.
fn messages() -> Vec<(&'static str, Vec<u8>)> {
    let framed = |method: u16, body: Vec<u8>| [method.to_le_bytes().to_vec(), body].concat();
    let number = Number { number: 7, seen_up_to: 5, again: None };
    let encoded = |request: Request<'_>| framed(request.method().number(), request.encode(number));
    let (dir, name) = (Ino::ROOT, Name::new(b"name").expect("a name"));
    let caller = Caller { uid: 1000, gid: 100 };
    let extent = Extent { offset: 9, len: 100, place: Some(Place { object: OBJECT, offset: 40_000 }) };
    let publish = Publish {
        ino: Ino(17),
        extents: Extents::new(vec![extent, Extent { place: None, ..extent }]).expect("sound ones"),
        body: Some(Body::new(b"body")),
        size: SizeChange::AtLeast(109),
        mtime: Some(Timestamp { secs: 5, nanos: 6 }),
        kill_suidgid: true,
        new_objects: vec![OBJECT],
        locked: true,
    };
    let items = vec![Invalidation::Attr(Ino(17)), Invalidation::Entry(dir, b"name".to_vec()), Invalidation::Everything];
    let node = Create { dir, name, mode: mode::SYMLINK | 0o777, rdev: 0, target: b"target", caller };
    let resume =
        Resume { session: SessionId(3), epoch: 2, take_over: Some(Claim { epoch: 4, secret: 5 }), uses: vec![Ino(17)] };
    let listing = ReadDir { dir, after: 2, until: 99, with_attributes: true, bytes_max: 4096 };
    vec![
        ("lookup", encoded(Request::Lookup(Lookup { dir, name }))),
        ("read_dir", encoded(Request::ReadDir(listing))),
        ("create", encoded(Request::Create(node))),
        ("publish", encoded(Request::Publish(publish))),
        ("begin", encoded(Request::Begin(Begin { name: b"host:/mnt" }))),
        ("resume", encoded(Request::Resume(resume))),
        ("push", framed(PUSH_METHOD, Push { number: 8, items }.encode())),
    ]
}

/// A packed record of two runs, and a later one that covers parts of both with a hole.
fn extents() -> Vec<(&'static str, Vec<u8>)> {
    let run = |offset: u32, len: u32, object: [u8; 16], at: u32| {
        [&offset.to_le_bytes()[..], &len.to_le_bytes(), &object, &at.to_le_bytes()].concat()
    };
    let packed = [vec![1], run(0, 4096, OBJECT.0, 0), run(8192, 100, OBJECT.0, 32_768)].concat();
    let hole = [vec![1], run(1000, 8000, [0; 16], 0)].concat();
    vec![("packed_and_hole", [vec![packed.len() as u8], packed, hole].concat())]
}

fn notes() -> Vec<(&'static str, Vec<u8>)> {
    let slot = Some(SlotLocation { slab: 3, slot: 77, generation: 1 << 40 });
    let sums = Some(vec![SegmentSum { len: 32_768, crc: 5 }, SegmentSum { len: 9, crc: 6 }]);
    let note = |slot, sums| DataNote { object: OBJECT, offset: 40_000, len: 9, slot, sums }.encode();
    vec![("in_record", note(None, None)), ("in_record_and_slot", note(slot, None)), ("in_slot", note(slot, sums))]
}

fn tails() -> Vec<(&'static str, Vec<u8>)> {
    let plain = |index: u32, len: usize| SegmentEntry {
        codec: Codec::Plain,
        stored_len: len as u32,
        crc: segment_crc(OBJECT, index, &vec![7; len]),
        tag: [0; 16],
    };
    let tail = |segments| encode_tail(OBJECT, &ObjectTable::new(segments, [0; 16]).expect("a sound table"));
    vec![
        ("one_segment", tail(vec![plain(0, 9)])),
        ("one_absent", tail(vec![plain(0, SEGMENT_BYTES), SegmentEntry::ABSENT, plain(2, 9)])),
    ]
}

/// Of a cache whose process ended well before its first pass.
fn scrub() -> Vec<u8> {
    let disk = MemoryDisk::default();
    let cache = open_cache(&disk);
    cache.start_scrub(ScrubOptions { rate: 0, ..ScrubOptions::default() }).expect("a disk in memory");
    cache.end_scrub(true);
    let mut record = vec![0; 128];
    disk.open(Path::new("/cache/scrub")).expect("the record").read_exact_at(&mut record, 0).expect("it is whole");
    record
}

fn slots() -> Vec<u8> {
    let disk = MemoryDisk::default();
    let cache = open_cache(&disk);
    cache.fill(OBJECT, 0, b"segment", segment_crc(OBJECT, 0, b"segment")).expect("room");
    let other = cache.create_dirty(sluice_base::ObjectId([1; 16])).expect("room");
    other.append(0, b"written").expect("room");
    cache.persist_table().expect("a disk in memory");
    let table = disk.open(Path::new("/cache/slots")).expect("the slot table");
    let mut records = vec![0; 2048];
    table.read_exact_at(&mut records, 8192).expect("two records");
    records
}

/// struct fuse_in_header and a body, field by field: numbers of linux/fuse.h.
fn requests() -> Vec<(&'static str, Vec<u8>)> {
    let request = |opcode: u32, body: &[&[u8]]| {
        let body = body.concat();
        let mut bytes = Vec::new();
        bytes.extend((40 + body.len() as u32).to_le_bytes());
        bytes.extend(opcode.to_le_bytes());
        bytes.extend(8u64.to_le_bytes());
        bytes.extend(5u64.to_le_bytes());
        [1u32, 2, 3, 0].iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.extend(body);
        assert!(sluice_fuse::Request::parse(&bytes).is_ok(), "opcode {opcode}");
        bytes
    };
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    vec![
        ("lookup", request(1, &[b"name\0"])),
        ("setattr", request(4, &[&words(&[8]), &[0; 84]])),
        ("symlink", request(6, &[b"name\0target\0"])),
        ("read", request(15, &[&[0; 40]])),
        ("write", request(16, &[&words(&[1, 0, 0, 0, 4, 0, 0, 0, 0, 0]), b"data"])),
        ("setxattr", request(21, &[&words(&[3, 0, 0, 0]), b"user.a\0abc"])),
        ("getxattr", request(22, &[&words(&[64, 0]), b"user.a\0"])),
        ("init", request(26, &[&words(&[7, 45]), &[0; 56]])),
        ("getlk", request(31, &[&[0; 48]])),
        ("create", request(35, &[&words(&[2, 0o100644, 0o22, 0]), b"name\0"])),
        ("interrupt", request(36, &[&[0; 8]])),
        ("batch_forget", request(42, &[&words(&[2, 0]), &[0; 32]])),
        ("fallocate", request(43, &[&[0; 32]])),
        ("rename2", request(45, &[&words(&[9, 0, 2, 0]), b"a\0b\0"])),
        ("copy_file_range", request(47, &[&[0; 56]])),
        ("statx", request(52, &[&[0; 24]])),
    ]
}

/// What each side says to open a connection, and then: every kind of frame.
fn frames() -> Vec<(&'static str, Vec<u8>)> {
    let body = |bytes: &'static [u8]| Payload::from(bytes);
    let (mut initiator, mut acceptor) = wire_pair(false);
    let (_, mut refuser) = wire_pair(false);
    let hello = wire_output(&mut initiator);
    acceptor.handle_input(Duration::ZERO, &hello).expect("a hello");
    refuser.handle_input(Duration::ZERO, &hello).expect("a hello");
    acceptor.accept(Welcome { volume: VOLUME, session: None, name: "b".into() });
    refuser.refuse(RefusalCode::Busy, "later");
    let (welcome, refused) = (wire_output(&mut acceptor), wire_output(&mut refuser));
    initiator.handle_input(Duration::ZERO, &welcome).expect("a welcome");

    let first = initiator.request(Duration::ZERO, 7, &body(b"arguments"), None).expect("room");
    let second = initiator.request(Duration::ZERO, 8, &body(b"data").unchecked(), Some(Duration::from_secs(3)));
    acceptor.handle_input(Duration::ZERO, &wire_output(&mut initiator)).expect("two requests");
    acceptor.push(&body(b"forget")).expect("room");
    acceptor.reply(first, &body(b"answer"));
    acceptor.fail(second.expect("room"), 5, "no");
    acceptor.request(Duration::ZERO, 9, &body(b""), None).expect("room");
    let answers = wire_output(&mut acceptor);
    initiator.handle_input(Duration::ZERO, &answers).expect("an answer of each kind");
    initiator.ack_push(PushNumber(1));
    initiator.reply(RequestId(1), &body(b"asked back"));
    let third = initiator.request(Duration::ZERO, 7, &body(b"x"), None).expect("room");
    initiator.cancel(third);
    initiator.handle_timeout(Duration::from_secs(5));
    initiator.close("the end");
    let end = wire_output(&mut initiator);
    acceptor.handle_input(Duration::ZERO, &end).expect_err("a farewell");
    vec![("hello", hello), ("welcome", welcome), ("refused", refused), ("answers", answers), ("end", end)]
}

fn member(name: &str, state: State) -> Member {
    let (name, address) = (NodeName::new(name).expect("a name"), "10.0.0.7:7700".parse().expect("an address"));
    Member { name, address, weight: 5, capacity_bytes: 1 << 40, state }
}

/// A request of each kind that nodes are asked or ask, and what is answered.
fn of_nodes() -> Vec<(&'static str, Vec<u8>)> {
    let framed = |method: u16, body: Vec<u8>| [method.to_le_bytes().to_vec(), body].concat();
    let Member { name, address, weight, capacity_bytes, .. } = member("one", State::Active);
    let numbers = Numbers { used_bytes: 1, hits: 2, served_bytes: 3, ..Numbers::default() };
    let join = Join { name: name.clone(), instance: 7, address, weight, capacity_bytes };
    let object = StoredObject::new(OBJECT, 3, 70_000).expect("a sound object");
    let status = MemberStatus { member: member("one", State::Draining), silent_ms: 9, numbers };
    let range = ReadRange { object, offset: 32_000, len: 5_000, cached_only: false };
    // Two segments: one of nine bytes, one that is absent. The method says how many.
    let crc = segment_crc(OBJECT, 0, b"nine byte");
    let answer = [&9u32.to_le_bytes()[..], &crc.to_le_bytes(), &[0; 8], b"nine byte"].concat();
    vec![
        ("join", framed(group::JOIN, join.encode())),
        ("heartbeat", framed(group::HEARTBEAT, Heartbeat { name: name.clone(), instance: 7, numbers }.encode())),
        ("leave", framed(group::LEAVE, group::encode_leave(&name, 7))),
        ("members", framed(group::MEMBERS, group::encode_epoch(3))),
        ("group", framed(group::GROUP, group::encode_group(&[status]))),
        ("drain", framed(group::DRAIN, group::encode_drain(&name, true))),
        ("read", framed(group::READ_SEGMENTS, ReadSegments { object, range: 1..3, cached_only: true }.encode())),
        ("read_answer", framed(1, answer)),
        ("read_range", framed(group::READ_RANGE, range.encode().to_vec())),
        ("fill", framed(group::FILL, group::encode_fill(object))),
        ("filled", framed(group::FILL, group::encode_filled(70_000))),
        ("held", framed(group::HELD, group::encode_objects(&[OBJECT, OBJECT]))),
        ("held_answer", framed(group::HELD, group::encode_sets(&[5, 0]))),
        ("check", framed(group::CHECK_SEGMENTS, CheckSegments { object: OBJECT, segments: 5 }.encode())),
    ]
}

/// The list as it is told, and as the server keeps it.
fn lists() -> Vec<(&'static str, Vec<u8>)> {
    let (one, two) = (member("one", State::Active), member("two", State::Draining));
    let mut registry = Registry::new(Duration::ZERO, 1);
    let Member { name, address, weight, capacity_bytes, .. } = one.clone();
    let join = Join { name: name.clone(), instance: 7, address, weight, capacity_bytes };
    registry.join(Duration::ZERO, address.ip(), join).expect("room");
    registry.drain(&name, true).expect("a member");
    let told = Members::new(3, vec![one, two]).expect("two names").encode();
    vec![("told", told), ("kept", registry.unsaved().expect("it has changed"))]
}

fn unstored() -> Vec<(&'static str, Vec<u8>)> {
    let session = SessionId(7);
    let piece =
        |index, bytes: &'static [u8]| Piece { index, bytes: bytes.into(), crc: segment_crc(OBJECT, index, bytes) };
    vec![
        ("ask", Unstored { session, object: OBJECT, range: 2..9 }.encode()),
        ("pieces", encode_pieces(&[piece(2, b"some bytes"), piece(3, b"")]).concat()),
        ("report", Report { session, objects: 4, bytes: 5, waits_for_store: true }.encode()),
    ]
}
