//! Links between free blocks that lie in the blocks themselves.
//!
//! What it is: reading and writing of the links in lists of spans and on remote lists. With a key, a link is stored as
//! its target XOR its own address XOR the key, so that a program that overruns a block cannot aim it (the idea is that of
//! glibc 2.32's safe-linking), and one that does not lead to a block ends the program. Without, it is stored as it is.
//!
//! What it is not: used by bins, whose links are read on the fast path.
//!
//! Invariants: the key changes once, before any list exists whose links are read later.

use crate::bin::Block;
use crate::misuse;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

static KEY: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_key(key: usize) {
    KEY.store(key, Relaxed);
}

pub(crate) fn key() -> usize {
    KEY.load(Relaxed)
}

/// Writes the link of a free block.
///
/// # Safety
/// The block is free and in no list.
#[inline]
pub(crate) unsafe fn set(block: *mut Block, next: *mut Block) {
    let stored = match key() {
        0 => next,
        key => (next as usize ^ block as usize ^ key) as *mut Block,
    };
    // SAFETY: a free block is ours to write.
    unsafe { (*block).next.set(stored) };
}

/// Reads the link of a free block.
///
/// # Safety
/// The block is free and in a list whose links [`set`] wrote.
#[inline]
pub(crate) unsafe fn get(block: *mut Block) -> *mut Block {
    // SAFETY: blocks in lists are free, mapped, and hold a link.
    let stored = unsafe { (*block).next.get() };
    match key() {
        0 => stored,
        key => checked_link(block, (stored as usize ^ block as usize ^ key) as *mut Block),
    }
}

#[inline(never)]
fn checked_link(block: *mut Block, next: *mut Block) -> *mut Block {
    let leads_to_a_block = |span: &memfold_arena::Span| {
        span.kind() == memfold_arena::Kind::Blocks
            && (span.start()..span.end()).contains(&(next as usize))
            && (next as usize - span.start()).is_multiple_of(span.block_size() as usize)
    };
    if !next.is_null() && !memfold_arena::lookup(next as usize).is_some_and(leads_to_a_block) {
        misuse::defect(
            "the list of free blocks is corrupted: a freed block was written to",
            block as usize,
            0,
        );
    }
    next
}
