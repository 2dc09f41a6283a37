//! The system's allocator, which counts: a thread that is meant to need no memory can show that it asks for none. And what it keeps of
//! memory that was given back.

#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Without a destructor and with a constant beginning, so that reading it asks for no memory itself.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// How often this thread asked for memory, where [`Counting`] is the allocator; else 0.
pub fn of_this_thread() -> u64 {
    COUNT.get()
}

/// For `#[global_allocator]`.
pub struct Counting;

fn count() {
    COUNT.set(COUNT.get().wrapping_add(1));
}

// SAFETY: every call is handed on to `System`, which keeps the contract; counting allocates nothing and cannot panic.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above; `pointer` came from `System`, as all do.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Allocations from this size on are mappings of their own, which go back to the system at once. Left alone glibc raises the number to
/// the largest one that was ever freed, and then has buffers of many megabytes between small things that stay. Not less: buffers of a
/// megabyte that are all mapped have the same place within a page, and copying into them took a quarter longer.
const MAPPED_BYTES_MIN: i32 = 4 << 20;
/// So much at the end of a heap stays for the next allocations.
const SPARE_BYTES: i32 = 512 << 10;
/// Heaps, one for each core within this range: each keeps what its busiest moment took. Glibc makes eight for each core.
const HEAPS: std::ops::RangeInclusive<usize> = 2..=16;

/// Bounds what the allocator keeps of memory that was given back: to be called before there are threads. Who needs large buffers again and
/// again keeps some himself ([`crate::Pages`]), as a new one costs as much as filling it.
pub fn bound_idle() {
    #[cfg(target_env = "gnu")]
    {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let heaps = cores.clamp(*HEAPS.start(), *HEAPS.end()) as i32;
        for (what, value) in [
            (libc::M_MMAP_THRESHOLD, MAPPED_BYTES_MIN),
            (libc::M_TRIM_THRESHOLD, SPARE_BYTES),
            (libc::M_ARENA_MAX, heaps),
        ] {
            // SAFETY: it takes two numbers and changes settings of the allocator, which guards them itself; a value that it does not take
            // it ignores.
            unsafe { libc::mallopt(what, value) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_asks_for_memory() {
        let layout = Layout::new::<u64>();
        let before = of_this_thread();
        // SAFETY: the layout has a size, and the memory is given back once with the same one.
        let pointer = unsafe { Counting.alloc(layout) };
        assert!(!pointer.is_null());
        // SAFETY: as above.
        unsafe { Counting.dealloc(pointer, layout) };
        assert_eq!(of_this_thread() - before, 1);
    }
}
