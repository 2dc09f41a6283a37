//! What a mount elsewhere asks for in one piece, and the sessions that it does so in.

use super::{Attr, LOST_SESSIONS, Namespace, Read, objects::next_session};
use crate::{
    Error, Result, keys,
    records::{Claimed, Inode, SessionRecord, flags},
    rpc::message::{Claim, ExtentPage, Opened, Published, SpanRecord, SpanRecords},
    store::{Committed, MetaError, Snapshot, Txn, Visit},
};
use sluice_base::{Ino, SessionId, limits::SPAN_BYTES};
use std::ops::{ControlFlow, Range};

impl Namespace {
    /// Attributes and stored record of an inode, of one moment.
    pub(crate) fn shape(&self, ino: Ino) -> Result<(Attr, Inode)> {
        let mut snapshot = self.store.snapshot();
        let inode = snapshot.inode(ino)?;
        Ok((snapshot.attr(ino)?, inode))
    }

    /// All that a mount needs to open a file.
    pub(crate) fn opened(&self, ino: Ino) -> Result<Opened> {
        let mut snapshot = self.store.snapshot();
        let inode = snapshot.inode(ino)?;
        let attr = snapshot.attr(ino)?;
        let has_body = inode.has(flags::INLINE);
        let body = if has_body { snapshot.get(&keys::body(ino))?.map(|body| body.to_vec()) } else { None };
        let span = if inode.has(flags::EXTENTS) {
            span_records(&snapshot, ino, 0)?
        } else {
            SpanRecords { span: 0, records: Vec::new() }
        };
        let first_span = (span.bytes() <= Opened::SPAN_BYTES_MAX).then_some(span);
        Ok(Opened { attr, inode, body, first_span })
    }

    /// What a publish answers, of an inode as the transaction leaves it.
    pub(crate) fn published(txn: &mut Txn<'_>, ino: Ino, inode: &Inode) -> Result<Published> {
        let first_span = if inode.has(flags::EXTENTS) {
            records_of(ino, 0, Published::SPAN_BYTES_MAX, |from, to, visit| txn.scan(from, to, visit))?
        } else {
            Some(SpanRecords { span: 0, records: Vec::new() })
        };
        Ok(Published { attr: Attr::of(ino, inode), inode: inode.clone(), first_span })
    }

    /// The extent records of `spans`, as many as a page holds.
    pub(crate) fn extent_page(&self, ino: Ino, spans: Range<u64>) -> Result<ExtentPage> {
        let snapshot = self.store.snapshot();
        let end = keys::extent(ino, spans.end, 0);
        let mut page = ExtentPage { spans: Vec::new(), next: None };
        let (mut bytes, mut at) = (0, spans.start);
        while at < spans.end {
            let mut found = None;
            snapshot.scan(&keys::extent(ino, at, 0), &end, &mut |key, _| {
                found = Some(keys::number_at(key, 9));
                ControlFlow::Break(())
            })?;
            let Some(span) = found else { break };
            let records = span_records(&snapshot, ino, span)?;
            bytes += records.bytes();
            if bytes > ExtentPage::BYTES_MAX && !page.spans.is_empty() {
                page.next = Some(span);
                break;
            }
            page.spans.push(records);
            at = span + 1;
        }
        Ok(page)
    }

    /// The number of spans that a file can have.
    pub(crate) const SPANS: u64 = sluice_base::limits::FILE_BYTES_MAX / SPAN_BYTES + 1;

    /// Begins a run of the server: its number, greater than that of every one before, also when the power is lost. From now on
    /// no number of an inode that was told to a session is given to another one.
    pub(crate) fn begin_life(&self) -> Result<u32> {
        let key = keys::volume("life");
        let begun = self.store.transact(|txn| -> Result<u32> {
            let last = txn.get(&key)?.and_then(|v| Some(u32::from_le_bytes(v.get(..4)?.try_into().ok()?))).unwrap_or(0);
            let life = last.checked_add(1).ok_or_else(|| Error::Corrupt("the server was started too often".into()))?;
            txn.put(&key, life.to_le_bytes());
            Ok(life)
        })?;
        self.store.ensure_synced(begun.seq)?;
        *self.ids.lock() = super::Ids { block: 0..0, durable: true, life: begun.value };
        Ok(begun.value)
    }

    /// A new session with a name, which is there until [`Namespace::end_session`].
    pub(crate) fn begin_named_session(&self, name: &[u8]) -> Result<Committed<SessionId>> {
        let begun = self.now();
        self.store.transact(|txn| {
            let session = next_session(txn)?;
            txn.put(
                &keys::session(session),
                SessionRecord { epoch: 1, begun, name: name.to_vec(), claimed: None, left: false }.encode(),
            );
            Ok(session)
        })
    }

    /// Raises a session's epoch to that of `claim`, after which nothing commits in an older one; tells the one before. `from` is the
    /// newest epoch, or that from which this claim raised it before: then its answer was lost. `None` when it is neither, and for
    /// a claim that arrives behind a later one.
    pub(crate) fn take_over_session(
        &self,
        session: SessionId,
        from: u32,
        claim: Claim,
    ) -> Result<Committed<Option<u32>>> {
        let key = keys::session(session);
        let claimed = Some(Claimed { from, secret: claim.secret });
        self.store.transact(|txn| {
            let Some(bytes) = txn.get(&key)? else { return Ok(None) };
            let record = SessionRecord::decode(&bytes)?;
            let before = record.epoch;
            if claim.epoch <= before || (from != before && record.claimed != claimed) {
                return Ok(None);
            }
            txn.put(&key, SessionRecord { epoch: claim.epoch, claimed, left: false, ..record }.encode());
            Ok(Some(before))
        })
    }

    /// Makes a session known that a mount has from the line before: one that began, or was taken over, behind the state that this line began
    /// with. `None` when it is known as it is, or none of that line.
    pub(crate) fn adopt_session(&self, session: SessionId, epoch: u32) -> Result<Option<Committed<SessionRecord>>> {
        let is_lost = match (&self.session(session)?, self.lost_sessions()?) {
            (_, None) => false,
            (Some(known), Some(_)) => known.epoch < epoch,
            (None, Some(lost)) => lost.contains(&session.0),
        };
        if !is_lost {
            return Ok(None);
        }
        let begun = self.now();
        let adopted = self.store.transact(|txn| -> Result<SessionRecord> {
            let key = keys::session(session);
            let known = txn.get(&key)?.map(|bytes| SessionRecord::decode(&bytes)).transpose()?;
            let record = known.unwrap_or_else(|| {
                let name = b"a mount of before the recovery".to_vec();
                SessionRecord { epoch, begun, name, claimed: None, left: false }
            });
            let record = SessionRecord { epoch: record.epoch.max(epoch), left: false, ..record };
            txn.put(&key, record.encode());
            Ok(record)
        })?;
        Ok(Some(adopted))
    }

    fn lost_sessions(&self) -> Result<Option<Range<u64>>> {
        let Some(stored) = self.store.snapshot().get(&keys::volume(LOST_SESSIONS))? else { return Ok(None) };
        match stored.as_chunks::<8>() {
            ([known, last], []) => Ok(Some(u64::from_le_bytes(*known) + 1..u64::from_le_bytes(*last) + 1)),
            _ => Err(Error::Corrupt("which sessions were lost is damaged".into())),
        }
    }

    /// Removes a session with the results that are kept for it. Of one that was taken on from the line before it stays that it was: it is not
    /// to be taken on again.
    pub(crate) fn end_session(&self, session: SessionId) -> Result<()> {
        let (from, to) = keys::results(session);
        let was_lost = self.lost_sessions()?.is_some_and(|lost| lost.contains(&session.0));
        self.store.transact(|txn| -> Result<()> {
            let mut results = Vec::new();
            txn.scan(&from, &to, &mut |key, _| {
                results.push(key.to_vec());
                ControlFlow::Continue(())
            })?;
            results.iter().for_each(|key| txn.delete(key));
            let key = keys::session(session);
            match txn.get(&key)? {
                Some(bytes) if was_lost => {
                    let record = SessionRecord::decode(&bytes)?;
                    txn.put(&key, SessionRecord { left: true, ..record }.encode());
                }
                _ => txn.delete(&key),
            }
            Ok(())
        })?;
        Ok(())
    }

    /// A session as it is stored; a left one too.
    pub(crate) fn session(&self, session: SessionId) -> Result<Option<SessionRecord>> {
        let stored = self.store.snapshot().get(&keys::session(session))?;
        stored.map(|bytes| SessionRecord::decode(&bytes)).transpose()
    }

    /// Whether a session has begun with a name and has not ended; also one that was left.
    pub fn is_session(&self, session: SessionId) -> Result<bool> {
        self.session(session).map(|found| found.is_some())
    }

    /// A session ended in this epoch because nobody came for it. Its results stay, as whoever has its journal may ask whether what
    /// it sent was done; but of no more than `left_max` such sessions: beyond, those that began first go.
    pub(crate) fn leave_session(&self, session: SessionId, epoch: u32, left_max: usize) -> Result<()> {
        if self.kept_numbers(session)?.is_none() {
            return self.end_session(session);
        }
        let key = keys::session(session);
        self.store.transact(|txn| -> Result<()> {
            if let Some(bytes) = txn.get(&key)? {
                let record = SessionRecord::decode(&bytes)?;
                // Else it was taken over meanwhile.
                if record.epoch == epoch {
                    txn.put(&key, SessionRecord { left: true, ..record }.encode());
                }
            }
            Ok(())
        })?;
        let left: Vec<SessionId> = self.sessions()?.iter().filter(|(_, of)| of.left).map(|(id, _)| *id).collect();
        left[..left.len().saturating_sub(left_max)].iter().try_for_each(|oldest| self.end_session(*oldest))
    }

    /// Keeps the group of the volume's nodes, in a form that is the group's own.
    pub fn keep_nodes(&self, saved: &[u8]) -> Result<Committed<()>> {
        self.store.transact(|txn| {
            txn.put(&keys::volume("nodes"), saved);
            Ok(())
        })
    }

    /// What [`Namespace::keep_nodes`] was given last.
    pub fn kept_nodes(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.store.snapshot().get(&keys::volume("nodes"))?.map(|saved| saved.to_vec()))
    }

    /// Every session that has begun with a name and has not ended, and those that were left, in the order in which they began.
    pub(crate) fn sessions(&self) -> Result<Vec<(SessionId, SessionRecord)>> {
        let (from, to) = keys::whole_table(b'm');
        let (mut found, mut failed) = (Vec::new(), None);
        self.store.snapshot().scan(&from, &to, &mut |key, value| match SessionRecord::decode(value) {
            Ok(record) => {
                found.push((SessionId(keys::number_at(key, 1)), record));
                ControlFlow::Continue(())
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(found), Err)
    }

    /// The lowest and the highest number whose result is kept.
    pub(crate) fn kept_numbers(&self, session: SessionId) -> Result<Option<(u64, u64)>> {
        let (from, to) = keys::results(session);
        let mut found: Option<(u64, u64)> = None;
        self.store.snapshot().scan(&from, &to, &mut |key, _| {
            let number = keys::number_at(key, 9);
            found = Some((found.map_or(number, |(low, _)| low), number));
            ControlFlow::Continue(())
        })?;
        Ok(found)
    }
}

fn span_records(snapshot: &Snapshot<'_>, ino: Ino, span: u64) -> Result<SpanRecords> {
    let records = records_of(ino, span, usize::MAX, |from, to, visit| snapshot.scan(from, to, visit))?;
    Ok(records.expect("they are within every number of bytes"))
}

/// The records of a span, unless they have more than `bytes_max` bytes.
fn records_of(
    ino: Ino,
    span: u64,
    bytes_max: usize,
    scan: impl FnOnce(&[u8], &[u8], &mut Visit<'_>) -> std::result::Result<(), MetaError>,
) -> Result<Option<SpanRecords>> {
    let (mut found, mut bytes) = (SpanRecords { span, records: Vec::new() }, 0);
    scan(&keys::extent(ino, span, 0), &keys::extent(ino, span + 1, 0), &mut |key, value| {
        let record = SpanRecord { sequence: keys::number_at(key, 17), bytes: value.to_vec() };
        bytes += record.bytes.len() + SpanRecords::RECORD_BYTES;
        if bytes > bytes_max {
            return ControlFlow::Break(());
        }
        found.records.push(record);
        ControlFlow::Continue(())
    })?;
    Ok((bytes <= bytes_max).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Caller,
        store::{MemoryLog, MemoryTables, MetaStore, Options},
    };
    use sluice_base::{ManualClock, Seq};
    use std::sync::Arc;

    fn names() -> Namespace {
        let (tables, log) = (Arc::new(MemoryTables::default()), Arc::new(MemoryLog::default()));
        let store = MetaStore::new(tables, log, Seq(0), Options::default());
        let names = Namespace::new(Arc::new(store), Arc::new(ManualClock::default()));
        names.format(Caller { uid: 0, gid: 0 }).expect("a root");
        names
    }

    /// A host is lost with what it has given away and the store has not heard of; what is recovered gives away something else, each time.
    #[test]
    fn what_a_line_gives_away_is_nothing_of_the_line_before() {
        let given_by = |lines: &[u64]| {
            let names = names();
            let known = names.begin_named_session(b"known").unwrap().value;
            assert_eq!(known, SessionId(1), "a new volume counts from one");
            let known = names.next_id().unwrap();
            lines.iter().for_each(|line| names.begin_line(*line).unwrap());
            let sessions: Vec<_> = (0..100).map(|_| names.begin_named_session(b"").unwrap().value.0).collect();
            let ids: Vec<_> = (0..100_000).map(|_| names.next_id().unwrap()).collect();
            assert!(known < ids[0]);
            [sessions, ids]
        };
        let (lost, first, second) = (given_by(&[]), given_by(&[7 << 40]), given_by(&[7 << 40, 3 << 50]));
        for (lost, (first, second)) in lost.iter().zip(first.iter().zip(&second)) {
            assert!(lost.last() < first.first(), "{:?} {:?}", lost.last(), first.first());
            assert!(first.last() < second.first(), "{:?} {:?}", first.last(), second.first());
        }
    }

    /// One that has ended here stays so: what it had locked and open is others' since.
    #[test]
    fn a_session_of_the_line_before_is_taken_on_once() {
        let names = names();
        let known = names.begin_named_session(b"known").unwrap().value;
        let lost = SessionId(known.0 + 1);
        let adopt = |session, epoch| names.adopt_session(session, epoch).unwrap().map(|done| done.value.epoch);
        assert_eq!((adopt(lost, 3), adopt(known, 2)), (None, None), "this line has lost nothing");
        names.begin_line(7 << 40).unwrap();
        assert_eq!((adopt(lost, 3), adopt(lost, 3), adopt(known, 1), adopt(known, 2)), (Some(3), None, None, Some(2)));
        names.end_session(lost).unwrap();
        assert_eq!(adopt(lost, 3), None);
        let next = names.begin_named_session(b"next").unwrap().value;
        names.end_session(next).unwrap();
        assert_eq!((adopt(next, 1), names.session(next).unwrap()), (None, None));
    }

    #[test]
    fn a_first_line_counts_sessions_from_one() {
        let names = names();
        names.line(u64::MAX).unwrap();
        assert_eq!(names.begin_session().unwrap(), SessionId(1));
    }
}
