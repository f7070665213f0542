//! Memory for the pager's own tables: mapped by the pager, never managed, never evicted.
//!
//! What it is not: a general allocator. Tables are made and stay; only the arrays of page entries, one page
//! each, come and go with the extents that need them.
//!
//! Invariants: memory is zero when handed out; the lock is never held across a call that can block on
//! another thread of the program.

use crate::lock::Mutex;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering::*};
use sys::{mem, Result, PAGE_SIZE};

/// Bytes taken from the kernel at a time.
const CHUNK: usize = 1 << 20;

struct Inner {
    next: usize,
    end: usize,
    /// Free pages, each holding the address of the next in its first word.
    free_pages: usize,
}

/// The pool.
pub struct Pool {
    lock: Mutex,
    inner: UnsafeCell<Inner>,
    /// Bytes handed out and not given back.
    used: AtomicU64,
}

// SAFETY: `inner` is reached only under `lock`.
unsafe impl Sync for Pool {}
// SAFETY: as above.
unsafe impl Send for Pool {}

impl Pool {
    /// An empty pool.
    pub const fn new() -> Pool {
        Pool {
            lock: Mutex::new(),
            inner: UnsafeCell::new(Inner { next: 0, end: 0, free_pages: 0 }),
            used: AtomicU64::new(0),
        }
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// The lock, for the fork handlers.
    pub(crate) fn lock(&self) -> &Mutex {
        &self.lock
    }

    fn bump(&self, inner: &mut Inner, size: usize, align: usize) -> Result<usize> {
        let start = inner.next.next_multiple_of(align);
        if start + size <= inner.end {
            inner.next = start + size;
            return Ok(start);
        }
        let len = CHUNK.max(size.next_multiple_of(PAGE_SIZE));
        let chunk = mem::map_anonymous(0, len, libc::MAP_NORESERVE)?;
        mem::name_range(chunk, len, c"memfold tables");
        // SAFETY: our own mapping. Small pages only: a huge one would cost more than the tables save.
        let _ = unsafe { mem::madvise(chunk, len, libc::MADV_NOHUGEPAGE) };
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
        let _guard = self.lock.lock();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        let addr = self.bump(inner, core::mem::size_of::<T>(), core::mem::align_of::<T>())?;
        self.used.fetch_add(core::mem::size_of::<T>() as u64, Relaxed);
        // SAFETY: fresh, zeroed, aligned memory of this size that nobody else gets; zeros are a valid `T`.
        Ok(unsafe { &*(addr as *const T) })
    }

    /// A zeroed page.
    pub fn take_page(&self) -> Result<usize> {
        let _guard = self.lock.lock();
        // SAFETY: under the lock.
        let inner = unsafe { &mut *self.inner.get() };
        let page = if inner.free_pages != 0 {
            let page = inner.free_pages;
            // SAFETY: a free page of ours; its first word is the link, and all the rest was zeroed when it
            // was given back.
            unsafe {
                inner.free_pages = *(page as *const usize);
                *(page as *mut usize) = 0;
            }
            page
        } else {
            self.bump(inner, PAGE_SIZE, PAGE_SIZE)?
        };
        self.used.fetch_add(PAGE_SIZE as u64, Relaxed);
        Ok(page)
    }

    /// Gives back a page.
    ///
    /// # Safety
    /// `page` came from [`Pool::take_page`] and nobody uses it any more.
    pub unsafe fn give_page(&self, page: usize) {
        // SAFETY: the caller gave it up.
        unsafe { core::ptr::write_bytes(page as *mut u8, 0, PAGE_SIZE) };
        let _guard = self.lock.lock();
        // SAFETY: under the lock; the page is free and ours.
        unsafe {
            let inner = &mut *self.inner.get();
            *(page as *mut usize) = inner.free_pages;
            inner.free_pages = page;
        }
        self.used.fetch_sub(PAGE_SIZE as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_given_back_is_zero_when_taken_again() {
        let pool = Pool::new();
        let page = pool.take_page().unwrap();
        // SAFETY: ours until given back.
        unsafe {
            core::ptr::write_bytes(page as *mut u8, 0xAB, PAGE_SIZE);
            pool.give_page(page);
        }
        assert_eq!(pool.used_bytes(), 0);
        let again = pool.take_page().unwrap();
        assert_eq!(again, page);
        // SAFETY: ours.
        let bytes = unsafe { core::slice::from_raw_parts(again as *const u8, PAGE_SIZE) };
        assert!(bytes.iter().all(|&b| b == 0));
    }
}
