//! Memory of the pager's own, in a model: plain memory of the process that runs it.

use crate::explore::keep;
use linux::mem as real;
use memfold_sys::Result;
use std::cell::Cell;

/// Bytes that the store may reserve.
const RESERVE: usize = 4 << 20;

thread_local! {
    /// The store's segment: the same for every execution, which writes its headers before it reads them.
    static SEGMENT: usize = real::reserve_aligned(RESERVE, RESERVE)
        .and_then(|base| {
            // SAFETY: our own mapping.
            unsafe { real::mprotect(base, RESERVE, libc::PROT_READ | libc::PROT_WRITE) }.map(|()| base)
        })
        .unwrap_or_else(|error| panic!("memory for the store: {error:?}"));
    static TAKEN: Cell<bool> = const { Cell::new(false) };
}

/// The segment is free again, at the start of an execution.
pub fn reset() {
    TAKEN.set(false);
}

/// The segment of the store; there is one.
pub fn reserve_aligned(len: usize, _align: usize) -> Result<usize> {
    assert!(len <= RESERVE && !TAKEN.replace(true), "a model's store has one segment");
    Ok(SEGMENT.with(|base| *base))
}

/// Zeros, until the execution is over.
pub fn map_own(len: usize, _flags: i32) -> Result<usize> {
    Ok(keep(vec![0u64; len / 8]).as_ptr() as usize)
}

/// As [`map_own`]: a model makes no core.
pub fn map_scratch(len: usize, flags: i32) -> Result<usize> {
    map_own(len, flags)
}

/// There is none: no change of a model fails when it is half done.
pub fn has_hole(_addr: usize, _pages: usize) -> bool {
    false
}

/// Does nothing: the execution's end gives the memory back.
///
/// # Safety
/// None is needed.
pub unsafe fn munmap(_addr: usize, _len: usize) -> Result<()> {
    Ok(())
}

/// Does nothing.
///
/// # Safety
/// None is needed.
pub unsafe fn mprotect(_addr: usize, _len: usize, _protection: i32) -> Result<()> {
    Ok(())
}

/// Does nothing: what a dropped block holds is not read.
///
/// # Safety
/// None is needed.
pub unsafe fn madvise(_addr: usize, _len: usize, _advice: i32) -> Result<()> {
    Ok(())
}

/// Does nothing.
pub fn name_range(_addr: usize, _len: usize, _name: &core::ffi::CStr) {}
