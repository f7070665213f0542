//! A heap that is safe on agent threads: every block is a mapping by itself. The global allocator of the libraries that have the pager in them.
//!
//! What it is not: a program's allocator. It is for a few large tables, those of replacement policies, and takes a page and a system call for
//! every block.
//!
//! Invariants: no lock, nothing of a thread's, no memory that is managed or evicted.

use core::alloc::{GlobalAlloc, Layout};
use memfold_sys::time::{sleep, Nanos};
use memfold_sys::{mem, PAGE_SIZE};

/// How often a mapping is asked for, a millisecond apart. The pager asks beforehand whether there is room.
const TRIES: u32 = 1000;

/// The heap; `#[global_allocator]` of a host with [`crate::Host::own_heap`].
#[derive(Clone, Copy, Debug)]
pub struct OwnHeap;

// SAFETY: every block is a mapping by itself, aligned to a page, zeroed, and unmapped with the length that it was made with.
unsafe impl GlobalAlloc for OwnHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > PAGE_SIZE {
            return core::ptr::null_mut();
        }
        for _ in 0..TRIES {
            match mem::map_own(layout.size(), libc::MAP_NORESERVE) {
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
