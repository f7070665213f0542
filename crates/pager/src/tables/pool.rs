//! Memory for the pager's own tables: mapped by the pager, never managed, never evicted.
//!
//! What it is not: an allocator. Tables are made and stay; an address range that comes back finds its own again.
//!
//! Invariants: memory is zero when handed out; the lock is never held across a call that can block on
//! another thread of the program.

use crate::lock::Mutex;
use core::sync::atomic::{AtomicU64, Ordering::*};
use memfold_sys::{mem, Result, PAGE_SIZE};

/// Bytes taken from the kernel at a time.
const CHUNK: usize = 1 << 20;

struct Inner {
    next: usize,
    end: usize,
}

/// The pool.
pub struct Pool {
    inner: Mutex<Inner>,
    /// Bytes in use.
    used: AtomicU64,
}

impl Pool {
    /// An empty pool.
    pub const fn new() -> Pool {
        Pool { inner: Mutex::new(Inner { next: 0, end: 0 }), used: AtomicU64::new(0) }
    }

    /// Bytes in use, about: tables that were made, and those parts of sparse ones that are used.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Forgets who was making a table, in a forked child.
    pub(crate) fn reset_in_child(&self) {
        self.inner.reset_in_child();
    }

    fn bump(&self, inner: &mut Inner, size: usize, align: usize) -> Result<usize> {
        let start = inner.next.next_multiple_of(align);
        if start + size <= inner.end {
            inner.next = start + size;
            return Ok(start);
        }
        let len = CHUNK.max(size.next_multiple_of(PAGE_SIZE));
        let chunk = mem::map_own(len, libc::MAP_NORESERVE)?;
        mem::name_range(chunk, len, c"memfold tables");
        mem::note_own(chunk, len);
        if chunk == inner.end {
            inner.end += len;
        } else {
            inner.next = chunk;
            inner.end = chunk + len;
        }
        self.bump(inner, size, align)
    }

    /// Makes a table of type `T` from zeros, for ever. `ENOMEM` when the kernel has no more.
    ///
    /// # Safety
    /// All-zero bytes must be a valid `T`.
    pub unsafe fn make<T>(&self) -> Result<&'static T> {
        self.use_more(core::mem::size_of::<T>() as u64);
        // SAFETY: the caller's contract.
        unsafe { self.make_sparse() }
    }

    /// Notes that so many bytes of a sparse table have come to be used.
    pub fn use_more(&self, bytes: u64) {
        self.used.fetch_add(bytes, Relaxed);
    }

    /// As [`Pool::make`], a table of which only parts will be used, and which has no memory before they are. They are counted when they come to be
    /// used, by [`Pool::use_more`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn make_sparse<T>(&self) -> Result<&'static T> {
        let addr =
            self.bump(&mut self.inner.lock(), core::mem::size_of::<T>(), core::mem::align_of::<T>())?;
        // SAFETY: fresh, zeroed, aligned memory of this size that nobody else gets; zeros are a valid `T`.
        Ok(unsafe { &*(addr as *const T) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn tables_are_zero_aligned_and_apart() {
        let pool = Pool::new();
        #[repr(align(64))]
        struct Table([u8; 300]);
        // SAFETY: zeros are a table.
        let tables: Vec<&Table> = (0..5_000).map(|_| unsafe { pool.make::<Table>() }.unwrap()).collect();
        assert!(tables.iter().all(|t| t.0 == [0; 300]));
        let mut addresses: Vec<usize> = tables.iter().map(|t| *t as *const Table as usize).collect();
        addresses.sort_unstable();
        assert!(addresses.iter().all(|a| a % 64 == 0));
        assert!(addresses.windows(2).all(|w| w[1] - w[0] >= core::mem::size_of::<Table>()));
        assert_eq!(pool.used_bytes(), 5_000 * core::mem::size_of::<Table>() as u64);
    }
}
