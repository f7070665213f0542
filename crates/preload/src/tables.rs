//! The memory of replacement policies: the global allocator of this library.
//!
//! What it is not: the program's allocator, which is `heap`. Nothing here is managed or evicted, and only the pager's
//! background thread comes here, for a few large tables when a policy is made: each gets a mapping by itself.

use core::alloc::{GlobalAlloc, Layout};
use memfold_sys::mem;
use memfold_sys::time::{sleep, Nanos};

/// How often a mapping is asked for, a millisecond apart. The pager asks beforehand whether there is room.
const TRIES: u32 = 1000;

struct Tables;

#[global_allocator]
static TABLES: Tables = Tables;

// SAFETY: every block is a mapping by itself, aligned to a page, zeroed, and unmapped with the length that it was made with.
unsafe impl GlobalAlloc for Tables {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > memfold_sys::PAGE_SIZE {
            return core::ptr::null_mut();
        }
        for _ in 0..TRIES {
            match mem::map_anonymous(0, layout.size(), libc::MAP_NORESERVE) {
                Ok(base) => return base as *mut u8,
                Err(_) => sleep(Nanos::from_millis(1)),
            }
        }
        core::ptr::null_mut()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract; fresh mappings are zero.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: a mapping of this length that the caller no longer uses.
        let _ = unsafe { mem::munmap(block as usize, layout.size()) };
    }
}
