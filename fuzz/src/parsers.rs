//! Everything that reads bytes from a disk, a store, the kernel or a person, each as a function of any bytes whatever.
//!
//! A parser may refuse; it may not panic, hang, or return what its own checks forbid. Where a checksum would keep every changed
//! input out, the function runs twice: with the bytes as they are, and with their checksums made right.

use sluice_base::{
    ManualClock, ObjectId, VolumeId,
    crc::{Crc32c, crc32c},
    disk::{Disk, MemoryDisk},
    limits::{SEGMENT_BYTES, SPAN_BYTES},
};
use sluice_fuse::{HandOver, Request};
use sluice_journal::{
    Journal, JournalError, JournalOptions, Place, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, Seq, parse_record,
};
use sluice_meta::{
    dump::Dump,
    extent::{FileExtents, decode_runs},
    records::{DirStat, Dirent, Inode, ObjectRecord, SessionRecord, Usage},
    rpc::message::{Ack, Method, Push, is_reply, parse},
    store::{MemoryLog, MemoryTables, MetaStore, Options as MetaOptions, Record},
};
use sluice_object::{
    StoreUrl,
    format::{FOOTER_BYTES, TABLE_ENTRY_BYTES, decode_tail, encode_tail, tail_len},
};
use sluice_store::{Cache, CacheOptions, ScrubOptions};
use sluice_vfs::DataNote;
use sluice_wire::{Clear, Connection, Event, HEADER_BYTES, Hello, LaneClass, Options, PeerKind, Welcome};
use std::{fmt::Debug, path::Path, sync::Arc, time::Duration};

#[allow(dead_code, reason = "the binary uses more of it than its parser")]
#[path = "../../crates/cli/src/config.rs"]
mod config;
#[path = "../../crates/object/src/credentials/ini.rs"]
mod ini;
#[path = "peers.rs"]
mod peers;

pub use peers::{member_list, node_messages, unstored_bytes};

/// A parser by the name of its fuzz target and of the directory of its inputs.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 21] = [
    ("credentials_ini", credentials_ini),
    ("data_note", data_note),
    ("dump", dump),
    ("extent_records", extent_records),
    ("fuse_request", fuse_request),
    ("hand_over", hand_over),
    ("journal_record", journal_record),
    ("journal_segment", journal_segment),
    ("member_list", member_list),
    ("metadata_record", metadata_record),
    ("metadata_rpc", metadata_rpc),
    ("node_messages", node_messages),
    ("object_tail", object_tail),
    ("scrub_record", scrub_record),
    ("shipped_metadata", shipped_metadata),
    ("slot_table", slot_table),
    ("store_url", store_url),
    ("unstored_bytes", unstored_bytes),
    ("value_records", value_records),
    ("volume_json", volume_json),
    ("wire_frames", wire_frames),
];

/// The volume, object and segment that the inputs are taken to belong to.
pub const VOLUME: VolumeId = VolumeId([0x5a; 16]);
/// See [`VOLUME`].
pub const OBJECT: ObjectId = ObjectId([0xa5; 16]);
const SEGMENT: u64 = 1;
/// docs/disk-format.md, "Scrub".
const SCRUB_RECORD_BYTES: usize = 128;
/// The checksum of a line, and its newline.
const DUMP_TAIL_BYTES: usize = 19;

/// One record of a journal segment.
pub fn journal_record(bytes: &[u8]) {
    let place = Place::new(VOLUME, SEGMENT);
    let mut mended = bytes.to_vec();
    mend_records(&mut mended);
    for bytes in [bytes, &mended] {
        if let Ok(record) = parse_record(bytes, place) {
            assert!(record.synced < record.seq && record.stored_bytes <= bytes.len());
            assert!(RECORD_HEADER_BYTES + record.payload.len() <= record.stored_bytes);
        }
    }
}

/// Makes the checksums of records that follow each other right.
fn mend_records(mut bytes: &mut [u8]) {
    let mut place = Crc32c::default();
    place.update(&VOLUME.0);
    place.update(&SEGMENT.to_le_bytes());
    while bytes.starts_with(b"JREC") && bytes.len() >= RECORD_HEADER_BYTES {
        let payload = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes")) as usize;
        let end = (RECORD_HEADER_BYTES + payload).next_multiple_of(8);
        let Some(record) = bytes.get_mut(..end) else { return };
        let crc = crc32c(&record[8..]) ^ place.value();
        record[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes = &mut bytes[end..];
    }
}

/// What follows the header page of the only segment of a journal, from opening to opening again.
pub fn journal_segment(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    mend_records(&mut mended);
    for bytes in [bytes, &mended] {
        let disk = MemoryDisk::default();
        let first = recover(&disk, &journal_options()).expect("an empty journal");
        assert!(first.is_empty());
        let room = journal_options().segment_bytes - SEGMENT_HEADER_BYTES;
        let segment = disk.open(Path::new("/journal/0000000000000001.log")).expect("the first segment");
        let bytes = &bytes[..bytes.len().min(room as usize)];
        segment.write_all_at(bytes, SEGMENT_HEADER_BYTES).expect("a disk in memory");
        match recover(&disk, &journal_options()) {
            Ok(found) => assert_eq!(recover(&disk, &journal_options()).expect("it was opened before"), found),
            Err(error) => assert!(matches!(error, JournalError::Corrupt { .. }), "{error}"),
        }
    }
}

/// Settings of the smallest journal.
pub fn journal_options() -> JournalOptions {
    JournalOptions { segment_bytes: 16 << 10, capacity_bytes: 32 << 10, ..JournalOptions::new("/journal", VOLUME) }
}

fn recover(disk: &MemoryDisk, options: &JournalOptions) -> Result<Vec<(Seq, Vec<u8>)>, JournalError> {
    let mut records = Vec::new();
    let mut keep = |seq, payload: &[u8]| {
        records.push((seq, payload.to_vec()));
        Ok(())
    };
    Journal::open(Arc::new(disk.clone()), options.clone(), &mut keep)?;
    Ok(records)
}

/// The after-images and attachments of one transaction.
pub fn metadata_record(bytes: &[u8]) {
    let Ok(record) = Record::parse(bytes) else { return };
    assert!(record.entries().is_sorted_by(|a, b| a.0 < b.0));
    assert_eq!(record.batch().entries().len(), record.entries().len());
    record.attachments().iter().for_each(|(header, _)| drop(DataNote::decode(header)));
}

/// A volume's metadata as text: as it is, and with the checksums of its lines made right.
pub fn dump(bytes: &[u8]) {
    let (mut sealed, mut crc) = (Vec::new(), 0_u32);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let (text, _) = line.split_at(line.len().saturating_sub(DUMP_TAIL_BYTES));
        let mut sum = Crc32c::default();
        [&crc.to_le_bytes(), text].into_iter().for_each(|part| sum.update(part));
        crc = sum.value();
        sealed.extend([text, format!(",\"crc\":\"{crc:08x}\"}}\n").as_bytes()].concat());
    }
    for text in [bytes, &sealed] {
        let Ok(dump) = Dump::open(text) else { continue };
        let (header, tables) = (dump.header().clone(), Arc::new(MemoryTables::default()));
        let Ok((seq, _)) = dump.load(&*tables, Seq(header.seq), |_| {}) else { continue };
        let store = MetaStore::new(tables, Arc::new(MemoryLog::default()), seq, MetaOptions::default());
        let mut again = Vec::new();
        // Values that are kept as they are may be any, and a name may be there twice.
        if sluice_meta::dump::dump(&store, header, &mut again, |_| {}).is_ok() {
            let tables = MemoryTables::default();
            Dump::open(&again[..]).and_then(|dump| dump.load(&tables, seq, |_| {})).expect("what was dumped is loaded");
        }
    }
}

/// A blob of the metadata in the store, and a checkpoint's head.
pub fn shipped_metadata(bytes: &[u8]) {
    const CRC_AT: usize = 12;
    let mut mended = bytes.to_vec();
    if let Some((header, rest)) = mended.split_at_mut_checked(CRC_AT + 4) {
        header[CRC_AT..].copy_from_slice(&crc32c(rest).to_le_bytes());
    }
    for bytes in [bytes, &mended] {
        let _ = sluice_ship::parse(bytes);
    }
    let _ = sluice_ship::parse_head(bytes);
}

/// What the metadata tables hold besides extents.
pub fn value_records(bytes: &[u8]) {
    same_again(Inode::decode(bytes).ok(), Inode::encode, |bytes| Inode::decode(bytes).ok());
    let encode = |entry: &Dirent| Dirent::encode(entry.ino, entry.kind, entry.cookie, &entry.name);
    same_again(Dirent::decode(bytes).ok(), encode, |bytes| Dirent::decode(bytes).ok());
    same_again(DirStat::decode(bytes).ok(), DirStat::encode, |bytes| DirStat::decode(bytes).ok());
    same_again(ObjectRecord::decode(bytes).ok(), ObjectRecord::encode, |bytes| ObjectRecord::decode(bytes).ok());
    same_again(Usage::decode(bytes).ok(), Usage::encode, |bytes| Usage::decode(bytes).ok());
    same_again(SessionRecord::decode(bytes).ok(), SessionRecord::encode, |bytes| SessionRecord::decode(bytes).ok());
}

/// A message of the metadata RPC: two bytes of method, then a body, which is taken for a request, an answer and a push.
pub fn metadata_rpc(bytes: &[u8]) {
    let Some((method, body)) = bytes.split_first_chunk() else { return };
    let number = u16::from_le_bytes(*method);
    if let Ok(parsed) = parse(number, body) {
        assert_eq!(parsed.request.encode(parsed.number), body);
    }
    if let Some(method) = Method::from_number(number) {
        is_reply(method, body);
    }
    if let Ok(push) = Push::decode(body) {
        assert_eq!(push.encode(), body);
    }
    if let Ok(ack) = Ack::decode(body) {
        assert_eq!(ack.encode(), body);
    }
}

/// What parses is written and parses to the same.
fn same_again<T: PartialEq + Debug>(
    parsed: Option<T>,
    encode: impl Fn(&T) -> Vec<u8>,
    decode: impl Fn(&[u8]) -> Option<T>,
) {
    if let Some(value) = parsed {
        assert_eq!(decode(&encode(&value)).as_ref(), Some(&value));
    }
}

/// Two extent records of one span; the first byte says where the second begins.
pub fn extent_records(bytes: &[u8]) {
    let Some((at, bytes)) = bytes.split_first() else { return };
    let (first, second) = bytes.split_at(usize::from(*at).min(bytes.len()));
    for record in [first, second] {
        for run in decode_runs(record).unwrap_or_default() {
            assert!(run.len > 0 && run.offset + run.len <= SPAN_BYTES);
        }
    }
    let mut extents = FileExtents::default();
    if extents.load(0, &[(1, first.to_vec()), (2, second.to_vec())]).is_ok() {
        let runs = extents.map(0..SPAN_BYTES);
        let end = runs.iter().fold(0, |end, run| {
            assert_eq!(run.offset, end);
            end + run.len
        });
        assert_eq!(end, SPAN_BYTES);
    }
}

/// The header of an attachment.
pub fn data_note(bytes: &[u8]) {
    same_again(DataNote::decode(bytes), DataNote::encode, DataNote::decode);
}

/// Table and footer of an object.
pub fn object_tail(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    mend_tail(&mut mended);
    for bytes in [bytes, &mended] {
        let Ok(table) = decode_tail(OBJECT, bytes) else { continue };
        let tail = encode_tail(OBJECT, &table);
        assert_eq!(&bytes[bytes.len() - tail.len()..], tail);
        let stored = table.stored_object(OBJECT);
        assert_eq!(stored.data_bytes(), table.data_bytes());
        assert!(table.data_bytes() <= u64::from(table.segment_count()) * SEGMENT_BYTES as u64);
    }
}

/// Puts the object's id and right checksums into a tail.
fn mend_tail(tail: &mut [u8]) {
    let Some(entries) = tail.len().checked_sub(FOOTER_BYTES) else { return };
    let (entries, footer) = tail.split_at_mut(entries);
    let count = u32::from_le_bytes(footer[12..16].try_into().expect("four bytes"));
    if count > 128 || tail_len(count) - FOOTER_BYTES > entries.len() {
        return;
    }
    let table = &entries[entries.len() - count as usize * TABLE_ENTRY_BYTES..];
    footer[16..32].copy_from_slice(&OBJECT.0);
    footer[56..60].copy_from_slice(&crc32c(table).to_le_bytes());
    let crc = crc32c(&footer[..60]);
    footer[60..].copy_from_slice(&crc.to_le_bytes());
}

/// Where the slot table's records begin, and the size of one.
const SLOT_RECORDS_AT: u64 = 8192;
const SLOT_RECORD_BYTES: usize = 1024;

/// Where a scrub stands, from opening to the end of the pass that goes on from there.
pub fn scrub_record(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    if let Some(record) = mended.get_mut(..SCRUB_RECORD_BYTES) {
        let (said, sum) = record.split_at_mut(SCRUB_RECORD_BYTES - 4);
        sum.copy_from_slice(&crc32c(said).to_le_bytes());
    }
    for bytes in [bytes, &mended] {
        let disk = MemoryDisk::default();
        let cache = open_cache(&disk);
        let file = disk.open(Path::new("/cache/scrub")).expect("the scrub's record");
        file.write_all_at(bytes, 0).expect("a disk in memory");
        cache.start_scrub(ScrubOptions { rate: 0, ..ScrubOptions::default() }).expect("a disk in memory");
        let status = cache.scrub_status().expect("a scrubber");
        assert!(status.is_rotting() || status.rotten() < 1 << 61);
        cache.end_scrub(true);
        // What it keeps it reads again.
        let again = open_cache(&disk);
        again.start_scrub(ScrubOptions { rate: 0, ..ScrubOptions::default() }).expect("a disk in memory");
        let kept = again.scrub_status().expect("a scrubber");
        assert_eq!((kept.passes, kept.counts, kept.last), (status.passes, status.counts, status.last));
        again.end_scrub(true);
    }
}

/// The records of a slot table, from opening to reading what they name.
pub fn slot_table(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    for (index, record) in mended.chunks_exact_mut(SLOT_RECORD_BYTES).enumerate() {
        record[32..36].copy_from_slice(&(index as u32).to_le_bytes());
        let crc = crc32c(&record[4..]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
    }
    for bytes in [bytes, &mended] {
        let disk = MemoryDisk::default();
        drop(open_cache(&disk));
        let table = disk.open(Path::new("/cache/slots")).expect("the slot table");
        table.write_all_at(bytes, SLOT_RECORDS_AT).expect("a disk in memory");
        let cache = open_cache(&disk);
        for record in bytes.chunks_exact(SLOT_RECORD_BYTES) {
            let object = ObjectId(record[16..32].try_into().expect("sixteen bytes"));
            if let Some(pin) = cache.pin(object) {
                let _ = pin.read_at(0, &mut [0; 64]);
            }
        }
        cache.persist_table().expect("a disk in memory");
    }
}

/// A cache of four slots.
pub fn open_cache(disk: &MemoryDisk) -> Cache {
    disk.create_dir_all(Path::new("/cache")).expect("a disk in memory");
    let options = CacheOptions { dir: "/cache".into(), capacity_bytes: 16 << 20, volume: VOLUME };
    Cache::open(Arc::new(disk.clone()), options, Arc::new(ManualClock::default())).expect("a sound header")
}

/// A request of the kernel.
pub fn fuse_request(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    if let Some(len) = mended.get_mut(..4) {
        len.copy_from_slice(&(bytes.len() as u32).to_le_bytes());
    }
    for bytes in [bytes, &mended] {
        if let Ok(request) = Request::parse(bytes) {
            // Looks at every name and payload.
            assert!(!format!("{request:?}").is_empty());
        }
    }
}

/// The state of a mount that passes to another process.
pub fn hand_over(bytes: &[u8]) {
    if let Ok(state) = HandOver::decode(bytes) {
        assert_eq!(state.encode(), bytes);
    }
}

/// A store URL.
pub fn store_url(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(url) = text.parse::<StoreUrl>() {
        assert_eq!(url.to_string().parse(), Ok(url));
    }
}

/// A volume's configuration.
pub fn volume_json(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(config) = config::VolumeConfig::parse(text) {
        let again = config::VolumeConfig::parse(&config.to_json()).expect("what was parsed");
        assert_eq!((again.id, again.store), (config.id.clone(), config.store.clone()));
        let _ = config.store_url(Path::new("/volume"));
    }
}

/// A credentials file.
pub fn credentials_ini(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let file = ini::Ini::parse(text);
    if let Some(section) = file.section("default") {
        assert!(section.get("aws_access_key_id").is_none_or(|value| !value.is_empty()));
    }
}

/// What a peer sends, to either side, as the first bytes of a connection and to an open one.
pub fn wire_frames(bytes: &[u8]) {
    let mut mended = bytes.to_vec();
    mend_frames(&mut mended);
    for bytes in [bytes, &mended] {
        for open in [false, true] {
            let (whole, split) = (wire_pair(open), wire_pair(open));
            for (whole, split) in [(whole.0, split.0), (whole.1, split.1)] {
                // However the stream is cut, the same happens.
                assert_eq!(wire_events(whole, bytes, bytes.len().max(1)), wire_events(split, bytes, 7));
            }
        }
    }
}

/// Initiator and acceptor, before the first byte or ready for requests, of which the initiator has one under way.
pub fn wire_pair(open: bool) -> (Connection, Connection) {
    let hello = Hello { peer: PeerKind::Mount, lane: LaneClass::Small, volume: None, session: None, name: "a".into() };
    let mut initiator = Connection::initiator(Duration::ZERO, hello, Options::default(), Box::new(Clear));
    let mut acceptor = Connection::acceptor(Duration::ZERO, Options::default(), Box::new(Clear));
    if open {
        acceptor.handle_input(Duration::ZERO, &wire_output(&mut initiator)).expect("a hello");
        acceptor.accept(Welcome { volume: VOLUME, session: None, name: "b".into() });
        initiator.handle_input(Duration::ZERO, &wire_output(&mut acceptor)).expect("a welcome");
        initiator.request(Duration::ZERO, 1, &vec![1; 10].into(), None).expect("room");
        for connection in [&mut initiator, &mut acceptor] {
            wire_output(connection);
            while connection.poll_event().is_some() {}
        }
    }
    (initiator, acceptor)
}

/// What `connection` sends.
pub fn wire_output(connection: &mut Connection) -> Vec<u8> {
    let mut pieces = Vec::new();
    connection.poll_transmit(Duration::ZERO, &mut pieces, usize::MAX);
    pieces.concat()
}

fn wire_events(mut connection: Connection, bytes: &[u8], piece: usize) -> Vec<Event> {
    for piece in bytes.chunks(piece) {
        let failed = connection.handle_input(Duration::ZERO, piece).is_err();
        assert!(!failed || connection.is_closed());
    }
    let events: Vec<Event> = std::iter::from_fn(|| connection.poll_event()).collect();
    let ends = events.iter().filter(|event| matches!(event, Event::Closed { .. })).count();
    assert_eq!(ends, usize::from(connection.is_closed()));
    events
}

/// Makes the checksums of frames that follow each other right.
fn mend_frames(mut bytes: &mut [u8]) {
    while bytes.len() >= HEADER_BYTES {
        let body = u32::from_le_bytes(bytes[4..8].try_into().expect("four bytes")) as usize;
        let (header, rest) = bytes.split_at_mut(HEADER_BYTES);
        let body = body.min(rest.len());
        header[0] = sluice_wire::FORMAT;
        let crc = if body == 0 { 0 } else { crc32c(&rest[..body]) };
        header[24..28].copy_from_slice(&crc.to_le_bytes());
        let crc = crc32c(&header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
        bytes = &mut rest[body..];
    }
}
