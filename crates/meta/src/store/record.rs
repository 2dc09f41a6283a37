//! The log record of a transaction; docs/disk-format.md, "Metadata record", has the layout.

use super::{Batch, LogError, RecordError, Tables, Value};
use sluice_base::Seq;

const VERSION: u8 = 1;
/// version u8, zero u8, attachments u16, entries u32.
const HEADER_BYTES: usize = 8;
/// Stands for "delete" where a value's length stands.
const DELETED: u32 = u32::MAX;

/// An opaque section of a record.
pub(super) struct Attachment<'a> {
    pub(super) header: Vec<u8>,
    pub(super) data: &'a [u8],
}

/// Encodes into `buffer`, whose old contents go, and hands the record's parts to `append`. Data is not copied.
pub(super) fn append(
    buffer: &mut Vec<u8>,
    batch: &Batch,
    attachments: &[Attachment<'_>],
    append: impl FnOnce(&[&[u8]]) -> Result<Seq, LogError>,
) -> Result<Seq, LogError> {
    let count = u16::try_from(attachments.len()).expect("a transaction has few attachments");
    put_entries(buffer, batch, count);
    if attachments.is_empty() {
        return append(&[buffer]);
    }
    let mut ends = Vec::with_capacity(attachments.len());
    for Attachment { header, data } in attachments {
        buffer.extend((header.len() as u32).to_le_bytes());
        buffer.extend((data.len() as u32).to_le_bytes());
        buffer.extend_from_slice(header);
        ends.push(buffer.len());
    }
    let mut parts = Vec::with_capacity(2 * attachments.len());
    let mut start = 0;
    for (end, attachment) in ends.into_iter().zip(attachments) {
        parts.extend([&buffer[start..end], attachment.data]);
        start = end;
    }
    append(&parts)
}

fn put_entries(buffer: &mut Vec<u8>, batch: &Batch, attachments: u16) {
    buffer.clear();
    buffer.extend([VERSION, 0]);
    buffer.extend(attachments.to_le_bytes());
    buffer.extend((batch.entries().len() as u32).to_le_bytes());
    for (key, value) in batch.entries() {
        buffer.extend((key.len() as u16).to_le_bytes());
        buffer.extend(value.as_ref().map_or(DELETED, |value| value.len() as u32).to_le_bytes());
        buffer.extend_from_slice(key);
        buffer.extend_from_slice(value.as_deref().unwrap_or_default());
    }
}

/// A record of these entries alone.
pub fn encode_batch(batch: &Batch) -> Vec<u8> {
    let mut buffer = Vec::new();
    put_entries(&mut buffer, batch, 0);
    buffer
}

/// A record of the entries alone of the one that begins with `record`, which may end behind them.
pub fn without_attachments(record: &[u8]) -> Result<Vec<u8>, RecordError> {
    let mut rest = Reader(record);
    let [version, zero, _, _, count @ ..] = rest.array::<HEADER_BYTES>()?;
    if version != VERSION || zero != 0 {
        return Err(RecordError::Version(version));
    }
    for _ in 0..u32::from_le_bytes(count) {
        rest.entry()?;
    }
    let mut entries = record[..record.len() - rest.0.len()].to_vec();
    entries[2..4].fill(0);
    Ok(entries)
}

/// A parsed record, borrowing from the log's bytes.
#[derive(Debug)]
pub struct Record<'r> {
    entries: Vec<(&'r [u8], Option<&'r [u8]>)>,
    attachments: Vec<(&'r [u8], &'r [u8])>,
}

impl<'r> Record<'r> {
    /// Parses any bytes; never panics, and takes memory in proportion to `bytes` only.
    pub fn parse(bytes: &'r [u8]) -> Result<Self, RecordError> {
        let mut rest = Reader(bytes);
        let [version, zero, a0, a1, e0, e1, e2, e3] = rest.array::<HEADER_BYTES>()?;
        if version != VERSION || zero != 0 {
            return Err(RecordError::Version(version));
        }
        let mut record = Self { entries: Vec::new(), attachments: Vec::new() };
        for _ in 0..u32::from_le_bytes([e0, e1, e2, e3]) {
            let entry = rest.entry()?;
            if entry.0.first().is_none_or(|byte| *byte == 0)
                || record.entries.last().is_some_and(|last| last.0 >= entry.0)
            {
                return Err(RecordError::Keys);
            }
            record.entries.push(entry);
        }
        for _ in 0..u16::from_le_bytes([a0, a1]) {
            record.attachments.push(rest.attachment()?);
        }
        if rest.0.is_empty() { Ok(record) } else { Err(RecordError::Length) }
    }

    /// Keys with their new values, `None` for a delete, ascending by key.
    pub fn entries(&self) -> &[(&'r [u8], Option<&'r [u8]>)] {
        &self.entries
    }

    /// Header and data of each attachment.
    pub fn attachments(&self) -> &[(&'r [u8], &'r [u8])] {
        &self.attachments
    }

    /// The after-images.
    pub fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        self.entries.iter().for_each(|(key, value)| batch.set((*key).into(), value.map(Value::from)));
        batch
    }
}

struct Reader<'r>(&'r [u8]);

impl<'r> Reader<'r> {
    fn take(&mut self, bytes: usize) -> Result<&'r [u8], RecordError> {
        let (head, tail) = self.0.split_at_checked(bytes).ok_or(RecordError::Length)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        self.take(N)?.try_into().map_err(|_| RecordError::Length)
    }

    fn length(&mut self) -> Result<u32, RecordError> {
        self.array().map(u32::from_le_bytes)
    }

    fn entry(&mut self) -> Result<(&'r [u8], Option<&'r [u8]>), RecordError> {
        let key_bytes = u16::from_le_bytes(self.array()?);
        let value_bytes = self.length()?;
        let key = self.take(key_bytes.into())?;
        let value = if value_bytes == DELETED { None } else { Some(self.take(value_bytes as usize)?) };
        Ok((key, value))
    }

    fn attachment(&mut self) -> Result<(&'r [u8], &'r [u8]), RecordError> {
        let (header_bytes, data_bytes) = (self.length()?, self.length()?);
        Ok((self.take(header_bytes as usize)?, self.take(data_bytes as usize)?))
    }
}

/// Called with record number, header and data of an attachment.
pub type OnAttachment<'f> = dyn FnMut(Seq, &[u8], &[u8]) + 'f;

/// Replays one log record at start, before there is a [`super::MetaStore`]. Attachments are always handed out; after-images are
/// applied where the tables do not have them yet. Records come in log order; replaying one twice changes nothing.
pub fn replay(
    tables: &dyn Tables,
    seq: Seq,
    record: &[u8],
    on_attachment: &mut OnAttachment<'_>,
) -> Result<(), RecordError> {
    let record = Record::parse(record)?;
    if seq > tables.persisted() {
        tables.apply(seq, &record.batch());
    }
    record.attachments.iter().for_each(|(header, data)| on_attachment(seq, header, data));
    Ok(())
}
