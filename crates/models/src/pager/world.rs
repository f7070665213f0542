//! The program's memory as the kernel has it: one extent, and the pages that lie in staging.
//!
//! Invariants: every access is one step behind [`enter`], as the kernel's are behind the lock of a page table.

use memfold_sys::sync::{AtomicU64, Ordering::AcqRel};
use memfold_sys::{EXTENT_PAGES, PAGE_SIZE};
use std::cell::RefCell;

/// Address of the extent.
pub const BASE: usize = 1 << 30;

/// What a page holds: its first two words, which differ, so that a torn page shows.
pub type Content = [u64; 2];

/// What a page holds that nobody has written.
pub const ZERO: Content = [0, 0];

/// The content that goes with a tag.
pub const fn content(tag: u64) -> Content {
    [tag, !tag]
}

/// What the kernel knows.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The program's pages that are there.
    pub pages: [Option<Content>; EXTENT_PAGES],
    /// Whether a touch of an absent page is reported.
    pub armed: [bool; EXTENT_PAGES],
    /// Whether there is a page in staging.
    pub staged: [bool; EXTENT_PAGES],
    /// A change past libc was made, and its report was not read yet.
    pub changing: bool,
}

/// The lock of the page table. Its value means nothing.
static LOCK: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
    static STAGING: RefCell<Box<[[u64; PAGE_SIZE / 8]; EXTENT_PAGES]>> =
        RefCell::new(Box::new([[0; PAGE_SIZE / 8]; EXTENT_PAGES]));
}

/// Nothing is mapped, at the start of an execution.
pub fn reset() {
    WORLD.take();
    for index in 0..EXTENT_PAGES {
        set_staged(index, ZERO);
    }
}

/// One step of the kernel: others may come in before it, and it sees what they did.
pub fn enter<R>(step: impl FnOnce(&mut World) -> R) -> R {
    LOCK.fetch_add(1, AcqRel);
    WORLD.with_borrow_mut(step)
}

/// Address of the staged extent.
pub fn staging() -> usize {
    STAGING.with_borrow(|pages| pages.as_ptr() as usize)
}

/// Writes a page of staging.
pub fn set_staged(index: usize, content: Content) {
    STAGING.with_borrow_mut(|pages| pages[index][..2].copy_from_slice(&content));
}

/// The program's page at an address.
pub fn page_index(addr: usize) -> usize {
    (addr - BASE) / PAGE_SIZE
}

/// The first words of real memory.
pub fn content_at(addr: usize) -> Content {
    // SAFETY: the modelled files pass pages of buffers or of staging.
    unsafe { *(addr as *const Content) }
}
