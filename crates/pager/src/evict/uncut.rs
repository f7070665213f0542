//! Mappings that stay one mapping while a part of them is folded, where nobody tells of changes: in a process that an agent was put into.
//!
//! To register a part of a mapping cuts it in pieces, and the kernel moves and enlarges (mremap(2)) one mapping alone: what the program may do without us it would be
//! refused. So what lies side by side is registered as a whole, or not at all. The price are first touches of memory that was never there, for which the fault
//! thread is asked then. Therefore it is done only where next to all of it is there, as in an array that somebody has filled, and nothing was ever dropped (`MADV_DONTNEED`): heaps that are used
//! in parts and given back in parts are not what anybody moves.
//!
//! What it is not: what a byte depends on. Where it is not done, `mremap` is refused.
//!
//! Invariants: background thread only.

use crate::evict::worker::Worker;
use crate::maps::{Kind, Mapping};
use crate::sabotage::fault_point;
use crate::tables::bitmap::PageSet;
use crate::tables::extent::{Extent, Locked, DROPPED};
use core::sync::atomic::Ordering::*;
use memfold_sys::{EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// So many eighths of it must be there for it to be registered as a whole, and that it stays so.
const LEAST: (usize, usize) = (7, 6);

/// What the kernel has two mappings differ in that it could join otherwise: registering, and not the program.
const OURS: [&[u8]; 3] = [b"um", b"uw", b"sd"];

/// Mappings that lie side by side and are alike, which a program takes for one.
#[derive(Default)]
pub(crate) struct Stretch {
    start: usize,
    end: usize,
    /// What the kernel says of each, in short.
    flags: u64,
    /// How many mappings they are to the kernel.
    pieces: usize,
    /// What of them is in memory or in swap, bytes.
    held: usize,
}

impl Worker {
    /// Takes in the next mapping that may be managed, with its flags, of which so many bytes are held. What came before is judged where this is not of it.
    pub(crate) fn stretch(&self, stretch: &mut Stretch, mapping: &Mapping, flags: &[u8], held: usize) {
        let flags = in_short(flags);
        if mapping.start != stretch.end || flags != stretch.flags {
            self.judge(stretch);
            (stretch.start, stretch.flags) = (mapping.start, flags);
        }
        // The heap of brk(2) is never moved.
        if mapping.kind != Kind::Heap {
            stretch.end = mapping.end;
            stretch.pieces += 1;
            stretch.held += held;
        }
    }

    /// Says of each page of a stretch whether it is to stay in one mapping, and makes it one where it is not. Begins another stretch.
    pub(crate) fn judge(&self, stretch: &mut Stretch) {
        let Stretch { start, end, pieces, held, .. } = core::mem::take(stretch);
        if pieces == 0 {
            return;
        }
        let space = self.engine.space();
        let (mut away, mut dropped, mut was) = (0, false, false);
        for extent in space.existing(start, end) {
            let pages = extent.clip(start, end);
            away += match extent.away.load(Relaxed) as usize {
                all if pages.len() == EXTENT_PAGES => all,
                _ => extent.away_pages().and(&pages.set()).len(),
            };
            dropped |= extent.flags.load(Relaxed) & DROPPED != 0;
            was |= !extent.uncut.load().and(&pages.set()).is_empty();
        }
        let least = if was { LEAST.1 } else { LEAST.0 };
        let full = (held + away * PAGE_SIZE) * 8 >= (end - start) * least;
        let uncut = fault_point!(MappingCut: full && !dropped, else false);
        for extent in space.existing(start, end) {
            let pages = extent.clip(start, end).set();
            if uncut {
                extent.uncut.insert(&pages);
            } else {
                extent.uncut.remove(&pages);
            }
        }
        if uncut && pieces > 1 {
            space.existing(start, end).for_each(|extent| self.register_uncut(extent));
        }
    }

    /// Before some pages of an extent are registered: if those lie in a mapping that is to stay one, all of that is.
    pub(crate) fn keep_uncut(&self, extent: &Locked, pages: &PageSet) {
        let uncut = to_register(extent);
        if extent.uncut.load().and(pages).is_empty() || uncut.is_empty() {
            return;
        }
        self.register(extent, &uncut);
        const LAST: usize = EXTENT_PAGES - 1;
        self.register_beside(extent, |base| base.checked_sub(EXTENT_SIZE), (0, LAST));
        self.register_beside(extent, |base| base.checked_add(EXTENT_SIZE), (LAST, 0));
    }

    /// Registers what lies beside an extent without a gap, one after the other in one direction: by which page it leaves each, and comes to the next. What is in
    /// other hands is left out, until the mappings are read the next time.
    fn register_beside(
        &self,
        from: &Extent,
        next: impl Fn(usize) -> Option<usize>,
        (leave, come): (usize, usize),
    ) {
        let mut at = from;
        while at.uncut.contains(leave) {
            let beside = next(at.base()).and_then(|base| self.engine.space().find(base));
            let Some(beside) = beside.filter(|beside| beside.uncut.contains(come)) else { break };
            self.register_uncut(beside);
            at = beside;
        }
    }

    fn register_uncut(&self, extent: &Extent) {
        if let Some(extent) = extent.try_lock() {
            self.register(&extent, &to_register(&extent));
        }
    }
}

/// The flags of a mapping, of two letters each, but for what registering makes of them.
fn in_short(flags: &[u8]) -> u64 {
    let program = flags.split(|byte| *byte == b' ').filter(|flag| !OURS.contains(flag));
    program.fold(0, |sum, flag| xxh3_64_with_seed(flag, sum))
}

/// What of an extent is to be registered whenever anything beside it is, and is not. What is not managed is of it too: nothing of that goes.
fn to_register(extent: &Extent) -> PageSet {
    extent.uncut.load().minus(&extent.armed.load())
}
