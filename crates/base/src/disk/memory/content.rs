//! The bytes of one file: sparse pages, shared between copies until one of them changes.

use std::{collections::BTreeMap, io, ops::Range, sync::Arc};

pub(super) const PAGE_BYTES: u64 = 4096;
const SECTOR_BYTES: usize = 512;

type Page = [u8; PAGE_BYTES as usize];

/// What may be done to a file's bytes.
pub(super) enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    SetSize(u64),
    Allocate { offset: u64, bytes: u64 },
    Punch { offset: u64, bytes: u64 },
}

impl Change {
    /// A write cut at sector boundaries of the file; nothing for the other changes, which happen whole or not at all.
    pub(super) fn sectors(&self) -> impl Iterator<Item = Change> + '_ {
        let (mut at, mut rest) = match self {
            Change::Write { offset, bytes } => (*offset, bytes.as_slice()),
            _ => (0, &[][..]),
        };
        std::iter::from_fn(move || {
            let length = rest.len().min(SECTOR_BYTES - (at % SECTOR_BYTES as u64) as usize);
            let (sector, behind) = rest.split_at(length);
            let offset = at;
            (at, rest) = (at + length as u64, behind);
            (length > 0).then(|| Change::Write { offset, bytes: sector.to_vec() })
        })
    }

    /// Indexes of the pages that must exist afterwards.
    pub(super) fn pages(&self) -> Range<u64> {
        let (offset, bytes) = match self {
            Change::Write { offset, bytes } => (*offset, bytes.len() as u64),
            Change::Allocate { offset, bytes } => (*offset, *bytes),
            Change::SetSize(_) | Change::Punch { .. } => (0, 0),
        };
        offset / PAGE_BYTES..(offset + bytes).div_ceil(PAGE_BYTES).max(offset / PAGE_BYTES)
    }
}

/// Bytes of a file. A page that is reserved but was never written is `None`; a page without an entry is a hole.
#[derive(Clone, Default)]
pub(super) struct Content {
    size: u64,
    pages: BTreeMap<u64, Option<Arc<Page>>>,
}

impl Content {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Indexes of the pages that are not holes.
    pub(super) fn pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.keys().copied()
    }

    /// Pages that `change` would add.
    pub(super) fn missing_pages(&self, change: &Change) -> u64 {
        let range = change.pages();
        (range.end - range.start) - self.pages.range(range).count() as u64
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for (page, within, part) in pieces(offset, buf.len()) {
            match self.pages.get(&page) {
                Some(Some(bytes)) => buf[part].copy_from_slice(&bytes[within]),
                _ => buf[part].fill(0),
            }
        }
        Ok(())
    }

    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { offset, bytes } => {
                for (page, within, part) in pieces(*offset, bytes.len()) {
                    self.page(page)[within].copy_from_slice(&bytes[part]);
                }
                self.size = self.size.max(offset + bytes.len() as u64);
            }
            Change::SetSize(size) => {
                self.pages.split_off(&size.div_ceil(PAGE_BYTES));
                if *size < self.size && !size.is_multiple_of(PAGE_BYTES) {
                    self.zero(*size, PAGE_BYTES - size % PAGE_BYTES);
                }
                self.size = *size;
            }
            Change::Allocate { offset, bytes } => {
                for page in change.pages() {
                    self.pages.entry(page).or_insert(None);
                }
                self.size = self.size.max(offset + bytes);
            }
            Change::Punch { offset, bytes } => {
                let whole = offset.div_ceil(PAGE_BYTES)..(offset + bytes) / PAGE_BYTES;
                if whole.start < whole.end {
                    let behind = self.pages.split_off(&whole.end);
                    self.pages.split_off(&whole.start);
                    self.pages.extend(behind);
                }
                self.zero(*offset, *bytes);
            }
        }
    }

    /// Zeros what exists of [offset, offset + bytes).
    fn zero(&mut self, offset: u64, bytes: u64) {
        let (first, last) = (offset / PAGE_BYTES, (offset + bytes) / PAGE_BYTES);
        for (page, content) in self.pages.range_mut(first..=last) {
            let start = page * PAGE_BYTES;
            let within = offset.max(start) - start..(offset + bytes).min(start + PAGE_BYTES) - start;
            if let Some(content) = content.as_mut().filter(|_| !within.is_empty()) {
                Arc::make_mut(content)[within.start as usize..within.end as usize].fill(0);
            }
        }
    }

    fn page(&mut self, index: u64) -> &mut Page {
        let page = self.pages.entry(index).or_insert(None);
        Arc::make_mut(page.get_or_insert_with(|| Arc::new([0; PAGE_BYTES as usize])))
    }
}

/// Cuts [offset, offset + length) at page boundaries: page index, range within the page, range within the buffer.
fn pieces(offset: u64, length: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES) as usize;
        let count = (length - done).min(PAGE_BYTES as usize - within);
        let part = done..done + count;
        done += count;
        (count > 0).then(|| (at / PAGE_BYTES, within..within + count, part))
    })
}
