//! Whether managed memory may have huge pages, and what becomes of a program's wish for them.

use crate::engine::{Engine, Phase};
use crate::sync::AtomicU32;
use core::sync::atomic::Ordering::*;
use memfold_sys::{mem, version};

/// Before this kernel a move of a page of a huge one that is mapped in part, and pinned in part, may never end: seen on
/// 6.12, and not on this one.
const MOVES_END: (u32, u32) = (6, 18);

/// Whether memory for which a program asks huge pages is folded by this kernel, where no limit is kept.
pub fn huge_pages_are_folded() -> bool {
    version::kernel() >= MOVES_END
}

/// Why not: a limit is kept page by page; the kernel has the fault of [`MOVES_END`].
const LIMIT: u32 = 1;
const KERNEL: u32 = 2;

/// The reasons why managed memory must have none.
pub(crate) struct HugePages(AtomicU32);

/// What is done where a program asks huge pages for its memory (`MADV_HUGEPAGE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HugeWish {
    /// It has them, and the memory is managed all the same.
    Granted,
    /// It gets small ones: what they save counts for more.
    Declined,
    /// It has them, and the memory is left alone.
    LeftAlone,
}

impl HugePages {
    /// They may be had.
    pub(crate) const fn new() -> HugePages {
        HugePages(AtomicU32::new(0))
    }

    /// Looks at the kernel; whether there is a limit from the start.
    pub(crate) fn prepare(&self, is_limited: bool) {
        let kernel = if huge_pages_are_folded() { 0 } else { KERNEL };
        self.0.store(kernel | if is_limited { LIMIT } else { 0 }, Relaxed);
    }

    /// A limit is kept, from now on.
    pub(crate) fn keep_limit(&self) {
        self.0.fetch_or(LIMIT, Relaxed);
    }

    /// Whether there may be any.
    pub(crate) fn may_be(&self) -> bool {
        self.0.load(Relaxed) == 0
    }

    /// What to do about the wish for them.
    fn wish(&self) -> HugeWish {
        match self.0.load(Relaxed) {
            0 => HugeWish::Granted,
            KERNEL => HugeWish::LeftAlone,
            _ => HugeWish::Declined,
        }
    }
}

impl Engine {
    /// Keeps huge pages out of memory that was just mapped, where there may be none.
    pub(crate) fn keep_pages_small(&self, addr: usize, len: usize) {
        if !self.has_huge_pages() {
            // A kernel without huge pages refuses, which is as good.
            // SAFETY: advice, which changes no contents.
            let _ = unsafe { mem::madvise(addr, len, libc::MADV_NOHUGEPAGE) };
        }
    }

    /// Whether managed memory may have huge pages, and they may be split.
    pub(crate) fn has_huge_pages(&self) -> bool {
        self.options.huge_pages.may_be()
    }

    /// What is done where the program asks for huge pages now.
    pub fn huge_wish(&self) -> HugeWish {
        if self.phase() == Phase::Off {
            return HugeWish::Granted;
        }
        self.options.huge_pages.wish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_huge_pages_has_them_unless_a_limit_or_the_kernel_is_against_it() {
        let of = |reasons| HugePages(AtomicU32::new(reasons));
        assert_eq!((of(0).wish(), of(0).may_be()), (HugeWish::Granted, true));
        assert_eq!((of(KERNEL).wish(), of(KERNEL).may_be()), (HugeWish::LeftAlone, false));
        for reasons in [LIMIT, LIMIT | KERNEL] {
            assert_eq!((of(reasons).wish(), of(reasons).may_be()), (HugeWish::Declined, false));
        }
        let pages = of(KERNEL);
        pages.keep_limit();
        assert_eq!(pages.wish(), HugeWish::Declined);
    }
}
