//! A row of values that grows, in memory of its own: the fault thread has no allocator.
//!
//! Invariants: nothing is mapped while it is empty and was never filled; it never shrinks.

use crate::retry::patiently;
use core::ops::Deref;
use memfold_sys::{mem, Result, PAGE_SIZE};

/// The row. Values are plain bytes: nothing of them is dropped.
pub struct Row<T: Copy> {
    base: *mut T,
    room: usize,
    len: usize,
}

impl<T: Copy> Row<T> {
    /// Empty.
    pub const fn new() -> Row<T> {
        Row { base: core::ptr::null_mut(), room: 0, len: 0 }
    }

    /// Adds a value. `ENOMEM` when the kernel has no memory for more, after some patience.
    pub fn push(&mut self, value: T) -> Result<()> {
        if self.len == self.room {
            self.grow()?;
        }
        // SAFETY: our own memory, with room for more.
        unsafe { self.base.add(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// Has the first `len` of its values alone, if it has so many.
    pub fn cut(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Has what another has.
    ///
    /// # Errors
    /// As [`Row::push`].
    pub fn copy_from(&mut self, other: &Row<T>) -> Result<()> {
        self.len = 0;
        other.iter().try_for_each(|&value| self.push(value))
    }

    fn grow(&mut self) -> Result<()> {
        let bytes = (self.room * size_of::<T>() * 2).max(PAGE_SIZE).next_multiple_of(PAGE_SIZE);
        let base = patiently(|| mem::map_own(bytes, 0))? as *mut T;
        // SAFETY: memory of its own, as long as what there was and more.
        unsafe { core::ptr::copy_nonoverlapping(self.base, base, self.len) };
        self.unmap();
        (self.base, self.room) = (base, bytes / size_of::<T>());
        Ok(())
    }

    fn unmap(&mut self) {
        if self.room != 0 {
            let bytes = (self.room * size_of::<T>()).next_multiple_of(PAGE_SIZE);
            // SAFETY: our own mapping, of which nobody has a reference: `self` is borrowed for us alone.
            let _ = unsafe { mem::munmap(self.base as usize, bytes) };
        }
    }
}

impl<T: Copy> Deref for Row<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: our own memory, in which so many are.
        unsafe { core::slice::from_raw_parts(self.base, self.len) }
    }
}

impl<T: Copy> Drop for Row<T> {
    fn drop(&mut self) {
        self.unmap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_what_was_put_into_it_however_much_and_gives_its_memory_back() {
        let mut row = Row::new();
        assert!(row.is_empty());
        for value in 0..3000usize {
            row.push([value; 3]).unwrap();
        }
        let right = |(at, value): (usize, &[usize; 3])| *value == [at; 3];
        assert!(row.len() == 3000 && row.iter().enumerate().all(right));
        let mut other = Row::new();
        other.push([9; 3]).unwrap();
        other.copy_from(&row).unwrap();
        assert_eq!(other[..], row[..]);
        row.cut(2);
        assert_eq!(row[..], [[0; 3], [1; 3]]);
    }
}
