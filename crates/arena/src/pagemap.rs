//! From an address to the record of its span, without a lock.
//!
//! What it is: a radix tree of two levels. The root, in `.bss`, has a slot for each GiB of address space; a
//! leaf, mapped when the first chunk in its GiB is, has a slot for each page. Only what is written becomes
//! resident: 4 KiB of leaf for each 2 MiB of chunks.
//!
//! Invariants: leaves are never unmapped. Slots at both ends of every run, and all slots of a span of
//! blocks, are exact; others may hold a record that moved on, so whoever looks up an address that it did
//! not get from the allocator compares it with the record's range.

use crate::counters::COUNTERS;
use crate::span::Span;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use memfold_sys::PAGE_SIZE;

/// User addresses have this many bits: without a hint beyond, Linux maps below 2^47 on x86-64 and 2^48 on
/// aarch64 (Documentation/arch/x86/x86_64/5level-paging.rst, Documentation/arch/arm64/memory.rst).
const ADDRESS_BITS: u32 = if cfg!(target_arch = "x86_64") { 47 } else { 48 };
const LEAF_SHIFT: u32 = 30;
const PAGE_SHIFT: u32 = PAGE_SIZE.trailing_zeros();
const LEAF_SLOTS: usize = 1 << (LEAF_SHIFT - PAGE_SHIFT);
const ROOT_SLOTS: usize = 1 << (ADDRESS_BITS - LEAF_SHIFT);

type Leaf = [AtomicPtr<Span>; LEAF_SLOTS];

static ROOT: [AtomicPtr<Leaf>; ROOT_SLOTS] = [const { AtomicPtr::new(core::ptr::null_mut()) }; ROOT_SLOTS];

#[inline(always)]
fn leaf_of(addr: usize) -> Option<&'static Leaf> {
    let leaf = ROOT.get(addr >> LEAF_SHIFT)?.load(Acquire);
    // SAFETY: a leaf, once in the root, is mapped for ever and holds atomics only.
    unsafe { leaf.as_ref() }
}

#[inline(always)]
fn slot_of(leaf: &'static Leaf, addr: usize) -> &'static AtomicPtr<Span> {
    &leaf[(addr >> PAGE_SHIFT) & (LEAF_SLOTS - 1)]
}

/// The record that the slot of `addr` holds. It describes `addr` if `addr` is a block that was handed out.
#[inline(always)]
pub fn lookup(addr: usize) -> Option<&'static Span> {
    let span = slot_of(leaf_of(addr)?, addr).load(Relaxed);
    // SAFETY: slots hold null or a record, and records are never unmapped. The slot of a block was written
    // before the block was handed out, so the hand-over that gave the caller the address orders this load.
    unsafe { span.as_ref() }
}

/// Makes sure that `(base, len)` has slots. False if there is no memory for a leaf.
#[must_use]
pub(crate) fn cover(base: usize, len: usize) -> bool {
    let Some(last) = base.checked_add(len - 1) else { return false };
    if last >> LEAF_SHIFT >= ROOT_SLOTS {
        return false;
    }
    (base >> LEAF_SHIFT..=last >> LEAF_SHIFT).all(|index| {
        if !ROOT[index].load(Acquire).is_null() {
            return true;
        }
        let size = core::mem::size_of::<Leaf>();
        let Ok(addr) = memfold_sys::mem::map_own(size, libc::MAP_NORESERVE) else { return false };
        COUNTERS.mmap_calls.add(1);
        let leaf = addr as *mut Leaf;
        if ROOT[index].compare_exchange(core::ptr::null_mut(), leaf, AcqRel, Acquire).is_err() {
            // SAFETY: another thread was first, so nobody ever saw this leaf.
            let _ = unsafe { memfold_sys::mem::munmap(addr, size) };
        } else {
            memfold_sys::mem::note_own(addr, size);
        }
        true
    })
}

/// Writes the slot of `addr`, which must be covered.
pub(crate) fn set(addr: usize, span: &'static Span) {
    if let Some(leaf) = leaf_of(addr) {
        slot_of(leaf, addr).store(span as *const Span as *mut Span, Relaxed);
    }
}

/// Writes the slots of the first and the last page of a run.
pub(crate) fn set_ends(span: &'static Span) {
    set(span.start(), span);
    set(span.end() - PAGE_SIZE, span);
}

/// Writes the slot of every page of a run.
pub(crate) fn set_all(span: &'static Span) {
    for page in 0..span.pages() {
        set(span.start() + page * PAGE_SIZE, span);
    }
}

/// Empties the slots of whole extents that are about to be unmapped, and gives the frames that hold those
/// slots back.
pub(crate) fn clear(base: usize, len: usize) {
    let mut addr = base;
    while addr < base + len {
        let Some(leaf) = leaf_of(addr) else {
            addr += memfold_sys::EXTENT_SIZE;
            continue;
        };
        // An extent's slots fill one page of the leaf exactly, and those of the next extent in the leaf the next page.
        let page_of = |addr: usize| slot_of(leaf, addr) as *const AtomicPtr<Span> as usize;
        let page = page_of(addr);
        let mut end = addr + memfold_sys::EXTENT_SIZE;
        let in_leaf = |end: usize| leaf_of(end).is_some_and(|other| core::ptr::eq(other, leaf));
        while end < base + len && in_leaf(end) {
            end += memfold_sys::EXTENT_SIZE;
        }
        let pages = (end - addr) / memfold_sys::EXTENT_SIZE;
        // SAFETY: drops slots of pages that the caller owns; they read as null afterwards.
        if unsafe { memfold_sys::mem::madvise(page, pages * PAGE_SIZE, libc::MADV_DONTNEED) }.is_err() {
            for at in (addr..end).step_by(PAGE_SIZE) {
                slot_of(leaf, at).store(core::ptr::null_mut(), Relaxed);
            }
        }
        addr = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_outside_every_leaf_or_outside_user_space_has_no_record() {
        assert!(lookup(0x1234).is_none());
        assert!(lookup(usize::MAX).is_none());
        assert!(lookup(1 << ADDRESS_BITS).is_none());
    }

    #[test]
    fn the_slots_of_one_extent_fill_one_page_of_a_leaf() {
        assert_eq!(memfold_sys::EXTENT_PAGES * core::mem::size_of::<AtomicPtr<Span>>(), PAGE_SIZE);
    }
}
