//! Large buffers that are used again. A fresh one of a megabyte is fresh memory from the kernel, which zeroes it page by page as
//! it is touched: that costs as much as filling it.

use parking_lot::Mutex;
use std::{collections::VecDeque, fmt, sync::Arc};

/// Smaller buffers are not kept: the allocator has them at hand.
const KEPT_BYTES_MIN: usize = 64 << 10;
/// Capacities are multiples of this, so that buffers of almost the same length are one kind.
const STEP_BYTES: usize = 64 << 10;
/// Idle buffers that are looked through for one that fits.
const IDLE_MAX: usize = 64;

/// Keeps idle buffers, up to a number of bytes. Those in use are bounded by what their users ask for.
pub struct Pages {
    idle: Mutex<Idle>,
    idle_bytes_max: usize,
}

#[derive(Default)]
struct Idle {
    /// The last one was used last.
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// A buffer, which goes back where it came from.
pub struct Page {
    bytes: Vec<u8>,
    len: usize,
    pages: Arc<Pages>,
}

impl Pages {
    /// A pool that keeps at most `idle_bytes_max`.
    pub fn new(idle_bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { idle: Mutex::default(), idle_bytes_max })
    }

    /// A buffer of `len` bytes. What is in it are zeros or bytes of a former use: to be overwritten before anybody sees them.
    pub fn take(self: &Arc<Self>, len: usize) -> Page {
        let bytes = self.kept(len).unwrap_or_else(|| {
            let capacity = if len < KEPT_BYTES_MIN { len } else { len.next_multiple_of(STEP_BYTES) };
            vec![0; capacity]
        });
        Page { bytes, len, pages: self.clone() }
    }

    fn kept(&self, len: usize) -> Option<Vec<u8>> {
        if len < KEPT_BYTES_MIN {
            return None;
        }
        let mut idle = self.idle.lock();
        // The last one is the most likely to be in the processor's cache. Not one that is much larger: who has it counts `len` bytes.
        let wanted = len.next_multiple_of(STEP_BYTES);
        let fits = |buffer: &Vec<u8>| buffer.len() >= len && buffer.len() <= wanted + wanted / 4;
        let at = idle.buffers.iter().rposition(fits)?;
        let buffer = idle.buffers.remove(at)?;
        idle.bytes -= buffer.len();
        Some(buffer)
    }

    /// Bytes of idle buffers.
    pub fn idle_bytes(&self) -> usize {
        self.idle.lock().bytes
    }
}

impl fmt::Debug for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pages({} idle bytes)", self.idle_bytes())
    }
}

impl AsRef<[u8]> for Page {
    fn as_ref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsMut<[u8]> for Page {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Page({} bytes)", self.len)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let most = self.pages.idle_bytes_max;
        if bytes.len() < KEPT_BYTES_MIN || bytes.len() > most {
            return;
        }
        let mut idle = self.pages.idle.lock();
        idle.bytes += bytes.len();
        idle.buffers.push_back(bytes);
        // What was not used for the longest time may be of a size that nobody asks for any more. It is given back without the lock.
        let mut gone = Vec::new();
        while idle.bytes > most || idle.buffers.len() > IDLE_MAX {
            let Some(buffer) = idle.buffers.pop_front() else { break };
            idle.bytes -= buffer.len();
            gone.push(buffer);
        }
        drop(idle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again() {
        let pages = Pages::new(1 << 20);
        let first = pages.take(300_000);
        let place = first.as_ref().as_ptr();
        assert_eq!((first.as_ref().len(), pages.idle_bytes()), (300_000, 0));
        drop(first);
        assert_eq!(pages.idle_bytes(), 5 << 16);
        let mut second = pages.take(310_000);
        second.as_mut().fill(7);
        assert_eq!((second.as_ref().as_ptr(), second.as_ref().len(), pages.idle_bytes()), (place, 310_000, 0));
    }

    #[test]
    fn no_more_is_kept_than_allowed() {
        let pages = Pages::new(1 << 20);
        let taken: Vec<Page> = (0..40).map(|_| pages.take(100_000)).collect();
        drop(taken);
        assert_eq!(pages.idle_bytes(), 8 << 17);
        drop(pages.take(KEPT_BYTES_MIN - 1));
        drop(pages.take(2 << 20));
        assert_eq!(pages.idle_bytes(), 8 << 17);
        assert_eq!(pages.take(120 << 10).bytes.len(), 128 << 10);
        assert_eq!(pages.take(64 << 10).bytes.len(), 64 << 10, "not one of twice the size");
        assert_eq!(pages.take(2 << 20).bytes.len(), 2 << 20, "not a smaller one");
    }

    #[test]
    fn those_of_a_size_that_is_asked_for_take_the_place_of_others() {
        let pages = Pages::new(1 << 20);
        drop((0..8).map(|_| pages.take(128 << 10)).collect::<Vec<_>>());
        drop(pages.take(512 << 10));
        let place = pages.take(512 << 10);
        assert_eq!((place.bytes.len(), pages.idle_bytes()), (512 << 10, 512 << 10));
    }
}
