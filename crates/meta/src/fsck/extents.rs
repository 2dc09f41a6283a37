//! Objects and the extents that refer to them.

use super::{LostWhy, Problem, node::*, scan::Scan};
use crate::{
    Result,
    extent::{Extent, FileExtents, decode_runs},
    keys,
    records::{ObjectRecord, ObjectState},
};
use sluice_base::{
    Ino, ObjectId,
    limits::{OBJECT_BYTES, SEGMENT_BYTES, SEGMENTS_PER_OBJECT, SPAN_BYTES},
};
use std::{collections::BTreeMap, ops::Range};

/// What is checked of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub state: ObjectState,
    pub live_bytes: u64,
    pub counted: u64,
    bytes_max: u64,
}

/// The part of a run of a file's bytes that lies past the end of its object.
pub(super) fn past_end(extent: &Extent, bytes_max: u64) -> Option<Range<u64>> {
    let offset = u64::from(extent.place?.offset);
    let inside = bytes_max.saturating_sub(offset).min(extent.len);
    (inside < extent.len).then(|| extent.offset + inside..extent.offset + extent.len)
}

/// Places of one file that lead nowhere.
type Lost = BTreeMap<(ObjectId, bool), Vec<Range<u64>>>;

/// What is gathered on the way through one file.
#[derive(Default)]
struct File {
    ino: u64,
    span: u64,
    records: Vec<(u64, Vec<u8>)>,
    lost: Lost,
}

impl Scan<'_> {
    pub fn objects(&mut self) -> Result<()> {
        self.walk(b'o', "objects", &mut |scan, key, value| {
            scan.checked().objects += 1;
            let id = ObjectId(key[1..17].try_into().expect("the key's length was checked"));
            let object = match ObjectRecord::decode(value) {
                Ok(record) if fits(&record) => {
                    scan.highest_session = scan.highest_session.max(record.session.0);
                    Stored::Found(object(&record))
                }
                _ => {
                    scan.report.add(Problem::BadObject { object: id });
                    Stored::Damaged
                }
            };
            scan.objects.insert(id, object);
            Ok(())
        })
    }

    pub fn extents(&mut self) -> Result<()> {
        let mut file = File::default();
        self.walk(b'e', "extents", &mut |scan, key, value| {
            let (ino, span, sequence) = (keys::number_at(key, 1), keys::number_at(key, 9), keys::number_at(key, 17));
            if (ino, span) != (file.ino, file.span) {
                scan.end_span(&mut file)?;
                if ino != file.ino {
                    scan.end_file(&mut file);
                }
                (file.ino, file.span) = (ino, span);
            }
            if decode_runs(value).is_ok() {
                file.records.push((sequence, value.to_vec()));
            } else {
                scan.report.add(Problem::BadExtents { ino: Ino(ino), span, sequence });
            }
            scan.node(key).extent_records += 1;
            Ok(())
        })?;
        self.end_span(&mut file)?;
        self.end_file(&mut file);
        Ok(())
    }

    /// Counts the extents of a span: later records cover earlier ones, so they are laid over each other first.
    fn end_span(&mut self, file: &mut File) -> Result<()> {
        let records = std::mem::take(&mut file.records);
        if records.is_empty() {
            return Ok(());
        }
        let mut extents = FileExtents::default();
        extents.load(file.span, &records)?;
        let start = file.span * SPAN_BYTES;
        for extent in extents.map(start..start + SPAN_BYTES) {
            let Some(place) = extent.place else { continue };
            let range = extent.offset..extent.offset + extent.len;
            self.checked().extents += 1;
            let node = self.nodes.entry(Ino(file.ino)).or_default();
            node.extent_bytes += extent.len;
            node.extent_end = node.extent_end.max(range.end);
            match self.objects.get_mut(&place.object) {
                Some(Stored::Found(object)) => {
                    object.counted += extent.len;
                    if let Some(range) = past_end(&extent, object.bytes_max) {
                        add(&mut file.lost, (place.object, true), range);
                    }
                }
                // Its record is a finding of its own.
                Some(_) => {}
                None => add(&mut file.lost, (place.object, false), range),
            }
        }
        Ok(())
    }

    fn end_file(&mut self, file: &mut File) {
        for ((object, past_end), ranges) in std::mem::take(&mut file.lost) {
            let why = if past_end { LostWhy::PastEnd } else { LostWhy::NoRecord };
            self.report.add(Problem::LostData { ino: Ino(file.ino), object, ranges, why });
        }
    }
}

/// Whether a record may be an object's: 1 to 128 segments when it is stored; a tombstone may be of one that never was.
fn fits(record: &ObjectRecord) -> bool {
    let segments_min = match record.state {
        ObjectState::Open | ObjectState::Sealed => return true,
        ObjectState::Tombstone => 0,
        ObjectState::Stored => 1,
    };
    (segments_min..=SEGMENTS_PER_OBJECT as u32).contains(&record.segments)
}

fn object(record: &ObjectRecord) -> Object {
    Object { state: record.state, live_bytes: record.live_bytes, counted: 0, bytes_max: bytes_max(record) }
}

/// Most payload that an object may have.
pub(super) fn bytes_max(record: &ObjectRecord) -> u64 {
    match record.state {
        ObjectState::Open | ObjectState::Sealed => OBJECT_BYTES as u64,
        ObjectState::Tombstone if record.segments == 0 => OBJECT_BYTES as u64,
        // The last segment may be shorter: the object's own table knows.
        ObjectState::Stored | ObjectState::Tombstone => u64::from(record.segments) * SEGMENT_BYTES as u64,
    }
}

fn add(lost: &mut Lost, key: (ObjectId, bool), range: Range<u64>) {
    let ranges = lost.entry(key).or_default();
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}
