//! The system's allocator, which counts: a thread that is meant to need no memory can show that it asks for none.

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
