//! Dropping what follows a damaged record, on an operator's word.

use crate::{
    Journal, JournalError, JournalOptions,
    format::{MARK_OFFSET, SEGMENT_HEADER_BYTES, SegmentHeader},
    recovery::{self, read_up_to},
    segments::{Directory, Segment},
};
use sluice_base::{Disk, Seq};
use std::{io, sync::Arc};

/// What a repair did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The first record that was dropped; `None` when the journal was sound.
    pub dropped_from: Option<Seq>,
    /// Segment files that were removed whole.
    pub removed_segments: usize,
    /// Bytes of the damaged segment that were zeroed.
    pub zeroed_bytes: u64,
}

impl Journal {
    /// Makes a journal that `open` calls corrupt usable again by dropping the damaged record and everything behind it, durable or
    /// not. A sound journal is left alone. If not even the first segment's header can be read, nothing remains, and the next
    /// `open` starts anew at `options.first_seq`.
    pub fn truncate_at_corruption(disk: Arc<dyn Disk>, options: JournalOptions) -> Result<Report, JournalError> {
        let directory = Directory::new(disk, options)?;
        let (number, offset, seq) = match recovery::scan(&directory, &mut |_, _| Ok(())) {
            Ok(_) => return Ok(Report::default()),
            Err(JournalError::Corrupt { segment, offset, seq, .. }) => (segment, offset, seq),
            Err(error) => return Err(error),
        };
        let mut report = Report { dropped_from: Some(seq), ..Report::default() };
        let listing = directory.listing()?;
        // The dropped numbers will be used again, so no spare may hold their records.
        directory.remove_spares(&listing.spares)?;
        // From the end, so that a repair cut short leaves a journal without a hole.
        for &(later, _) in
            listing.live.iter().rev().filter(|(later, _)| *later > number || *later == number && offset == 0)
        {
            directory.retire(later, false)?;
            report.removed_segments += 1;
        }
        if offset > 0 {
            report.zeroed_bytes = cut(&directory, number, offset)?;
        }
        Ok(report)
    }
}

fn cut(directory: &Directory, number: u64, offset: u64) -> Result<u64, JournalError> {
    let path = directory.path(number);
    let file = directory.disk.open(&path).map_err(JournalError::io("open", &path))?;
    let mut page = Vec::new();
    read_up_to(&*file, SEGMENT_HEADER_BYTES, &mut page).map_err(JournalError::io("read", &path))?;
    let Ok(SegmentHeader { bytes, .. }) = SegmentHeader::parse(&page) else {
        return Err(JournalError::io("read the header of", &path)(io::ErrorKind::InvalidData.into()));
    };
    // All of it again, where the end was cut off.
    file.allocate(0, bytes).map_err(JournalError::io("allocate room for", &path))?;
    let place = crate::Place::new(directory.options.volume, number);
    let segment = Segment { number, path, file, first_seq: Seq(0), bytes, place };
    // The mark may vouch for records that are dropped now.
    segment.file.write_all_at(&[0; 16], MARK_OFFSET).map_err(JournalError::io("write to", &segment.path))?;
    segment.zero_from(offset)?;
    segment.sync()?;
    Ok(bytes - offset)
}
