//! Reading records again while the journal is in use, for who has lost what they hold.

use crate::{
    Journal, JournalError,
    format::{SEGMENT_HEADER_BYTES, parse_record},
};
use sluice_base::Seq;

impl Journal {
    /// Hands out the records from `first` to `last` once more, in order, as far as they are written and held. Ends at the first one that is not
    /// sound any more. Reads the segments that they lie in from their beginnings: no place of a record is kept, since this is for damage.
    pub fn read_again(&self, first: Seq, last: Seq, on_record: &mut dyn FnMut(Seq, &[u8])) -> Result<(), JournalError> {
        let mut bytes = Vec::new();
        for (segment, end) in self.segments_of(first, last) {
            let mut next = segment.first_seq;
            bytes.resize((end - SEGMENT_HEADER_BYTES) as usize, 0);
            let read = segment.file.read_exact_at(&mut bytes, SEGMENT_HEADER_BYTES);
            read.map_err(JournalError::io("read", &segment.path))?;
            let mut rest = &bytes[..];
            while next <= last {
                let Some(record) = parse_record(rest, segment.place).ok().filter(|record| record.seq == next) else {
                    break;
                };
                if next >= first {
                    on_record(next, record.payload);
                }
                (next, rest) = (Seq(next.0 + 1), &rest[record.stored_bytes..]);
            }
        }
        Ok(())
    }
}
