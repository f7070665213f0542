//! Blocks that are freed while their pages are away from memory.
//!
//! What it is: the pager's background thread tags spans of which pages went away ([`went_away`]), so that no free of theirs takes the fast path;
//! the slow one asks whether the block's page is away still, and then has the block be [`crate::dormant`]. Both are hints: a page may come or go a moment
//! later, and then a touch waits, or a block is dormant that need not be. A span with nothing but dormant and free blocks goes back to the arena, which
//! drops what is away before it hands it out again. What it is not: for blocks that a thread frees of another's heap, whose lists run through the blocks.

use crate::heap::Heap;
use crate::{classes, dormant, spans};
use core::sync::atomic::Ordering::*;
use memfold_arena::{Kind, Span};
use memfold_sys::PAGE_SIZE;

/// Tags the spans that have a page in the range, which went away from memory. It takes no lock, and what it tags may have changed hands meanwhile.
pub fn went_away(addr: usize, len: usize) {
    let mut last: Option<&Span> = None;
    for page in (addr..addr + len).step_by(PAGE_SIZE) {
        let Some(span) = memfold_arena::lookup(page) else { continue };
        if span.kind() == Kind::Blocks && !last.is_some_and(|last| last.is(span)) {
            tag(span);
        }
        last = Some(span);
    }
}

fn tag(span: &Span) {
    let tagged = span.owner.fetch_update(AcqRel, Relaxed, |owner| {
        let fit = !owner.is_null() && owner.addr() & (Heap::TAG | Heap::AWAY) == 0;
        fit.then(|| owner.map_addr(|addr| addr | Heap::AWAY))
    });
    if tagged.is_ok() {
        // No other heap keeps its blocks meanwhile.
        span.shelf.store(0, Relaxed);
    }
}

/// For a block of the span that is about to be freed, in memory: takes the tag off if no page of the span is away any more. One block in sixteen
/// looks. The span stays until the block is free.
pub(crate) fn look_back(span: &Span, block: usize) {
    let is_tagged = span.owner.load(Relaxed).addr() & Heap::AWAY != 0;
    if is_tagged && classes::blocks_before(span.class() as usize, block - span.start()).is_multiple_of(16) {
        untag(span);
    }
}

#[cold]
#[inline(never)]
fn untag(span: &Span) {
    if memfold_arena::is_away(span.start(), span.bytes()) {
        return;
    }
    spans::change_owner(span, |owner| owner & !Heap::AWAY);
    // Other heaps may keep its blocks again, unless a block of it is sampled, now or from this moment on.
    span.shelf.store(spans::shelf_of(span), SeqCst);
    if span.owner.load(SeqCst).addr() & Heap::SAMPLED != 0 {
        span.shelf.store(0, Relaxed);
    }
}

/// Takes a freed block if its page is away. False, and nothing is done, if it is not.
///
/// The block is free, in no list, and of the span, which is the heap's and not checked.
pub(crate) fn keep(heap: &'static Heap, span: &'static Span, block: usize) -> bool {
    if span.owner.load(Relaxed).addr() & Heap::AWAY == 0 {
        return false;
    }
    if !memfold_arena::is_away(block, 1) {
        look_back(span, block);
        return false;
    }
    if !dormant::note(span, block) {
        return false;
    }
    if !span.linked.get() {
        heap.partial[span.class() as usize].push(span);
    }
    if spans::is_empty(span) {
        spans::retire(heap, span);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{fill, holds, in_child, release};
    use crate::{flush, malloc, stats, tls};
    use core::sync::atomic::{AtomicBool, AtomicUsize};
    use memfold_arena::{Domain, Hooks, PLAIN};
    use memfold_sys::mem;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// What is away: from the first address to the second.
    static AWAY: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];

    /// What is away as well: every other page, by chance.
    static MANY: AtomicBool = AtomicBool::new(false);

    static DISCARDED: AtomicUsize = AtomicUsize::new(0);

    fn is_away(addr: usize, len: usize) -> bool {
        let by_chance = |page: usize| (page as u32).wrapping_mul(0x9E37_79B9) >> 31 == 1;
        let is_said = addr < AWAY[1].load(SeqCst) && AWAY[0].load(SeqCst) < addr + len;
        is_said || MANY.load(SeqCst) && (addr / PAGE_SIZE..(addr + len).div_ceil(PAGE_SIZE)).any(by_chance)
    }

    static HOOKS: Hooks = Hooks {
        discard: |addr, len| {
            DISCARDED.fetch_add(len, SeqCst);
            (PLAIN.discard)(addr, len)
        },
        is_away,
        ..PLAIN
    };

    fn protect(start: usize, len: usize, access: i32) {
        // SAFETY: a test's own span.
        unsafe { mem::mprotect(start, len, access) }.unwrap();
    }

    /// Blocks of a size that fill a span, with others around them.
    fn a_full_span(size: usize) -> (&'static Span, Vec<*mut u8>, Vec<*mut u8>) {
        let all: Vec<*mut u8> = (0..4 * 65536 / size).map(|_| malloc(size)).collect();
        let of = |block: &*mut u8| memfold_arena::lookup(*block as usize).unwrap();
        let span = all.iter().map(of).find(|span| {
            all.iter().filter(|block| of(block).is(span)).count() == span.capacity.get() as usize
        });
        let span = span.expect("one is full");
        let (within, others) = all.into_iter().partition(|block| of(block).is(span));
        (span, within, others)
    }

    fn send_away(span: &Span) {
        AWAY[0].store(span.start(), SeqCst);
        AWAY[1].store(span.end(), SeqCst);
        went_away(span.start(), span.bytes());
        protect(span.start(), span.bytes(), libc::PROT_NONE);
    }

    fn bring_back(span: &Span) {
        protect(span.start(), span.bytes(), libc::PROT_READ | libc::PROT_WRITE);
        AWAY[1].store(0, SeqCst);
    }

    /// Many blocks to a page, some, one across the end of a page, and several pages long.
    const SIZES: [usize; 4] = [16, 200, 1000, 9000];

    #[test]
    fn what_is_freed_while_it_is_away_is_not_touched_and_goes_back_with_its_span() {
        assert!(in_child(|| {
            memfold_arena::set_hooks(&HOOKS);
            // Again and again: what a record was used for before means nothing.
            SIZES.iter().chain(&SIZES).chain(&SIZES).all(|&size| {
                let (span, within, others) = a_full_span(size);
                send_away(span);
                let (before, start) = (DISCARDED.load(SeqCst), span.start());
                let (last, rest) = within.split_last().unwrap();
                // Touching one would be the end.
                rest.iter().for_each(|block| release(*block));
                let kept = span.dormant.load(Relaxed) as usize == rest.len() && span.kind() == Kind::Blocks;
                let used = stats::classes()[span.class() as usize].used_blocks;
                // Who gets these pages next may touch them.
                protect(span.start(), span.bytes(), libc::PROT_READ | libc::PROT_WRITE);
                release(*last);
                let gone = span.kind() != Kind::Blocks && DISCARDED.load(SeqCst) == before;
                let uses_less = stats::classes()[classes::of(size)].used_blocks < used;
                // Whoever gets it has no page brought back.
                let mut taken = Vec::new();
                while !taken.iter().any(|other: &&Span| (other.start()..other.end()).contains(&start)) {
                    taken.push(memfold_arena::alloc(Domain::Managed, 16, PAGE_SIZE, Kind::Large).unwrap());
                }
                let dropped = DISCARDED.load(SeqCst) > before && taken.last().unwrap().zero();
                AWAY[1].store(0, SeqCst);
                others.into_iter().for_each(release);
                taken.into_iter().for_each(|span| memfold_arena::free(span, 0));
                kept && gone && uses_less && dropped
            })
        }));
    }

    #[test]
    fn free_blocks_of_a_span_that_is_away_are_not_touched_while_others_have_some() {
        assert!(in_child(|| {
            memfold_arena::set_hooks(&HOOKS);
            SIZES.iter().all(|&size| {
                let (span, within, others) = a_full_span(size);
                for blocks in [&within, &others] {
                    blocks.iter().step_by(2).for_each(|block| release(*block));
                    flush::flush_all(tls::get());
                }
                send_away(span);
                // Touching one would be the end.
                let again: Vec<_> = (0..others.len() / 2).map(|_| malloc(size)).collect();
                let right =
                    again.iter().all(|block| !(span.start()..span.end()).contains(&(*block as usize)));
                bring_back(span);
                let kept = [&within, &others].into_iter().flat_map(|blocks| blocks.iter().skip(1).step_by(2));
                kept.chain(&again).for_each(|block| release(*block));
                right
            })
        }));
    }

    #[test]
    fn dormant_blocks_serve_again_and_those_beside_them_keep_their_bytes() {
        assert!(in_child(|| {
            memfold_arena::set_hooks(&HOOKS);
            SIZES.iter().all(|&size| {
                let (span, within, others) = a_full_span(size);
                within.iter().enumerate().for_each(|(n, block)| fill(*block, size, n as u8));
                send_away(span);
                within.iter().skip(1).step_by(2).for_each(|block| release(*block));
                // Twice, which is left alone.
                release(within[1]);
                bring_back(span);
                let count = within.len() / 2;
                let dormant: BTreeSet<usize> =
                    within.iter().skip(1).step_by(2).map(|b| *b as usize).collect();
                let mut again = Vec::new();
                // What other spans have at hand comes first.
                while again.iter().filter(|block: &&*mut u8| dormant.contains(&(**block as usize))).count()
                    < count
                {
                    let block = malloc(size);
                    fill(block, size, 0xee);
                    again.push(block);
                    assert!(again.len() < 100 * count + 10_000, "they are lost");
                }
                let distinct: BTreeSet<_> = again.iter().chain(within.iter().step_by(2)).collect();
                let whole =
                    within.iter().step_by(2).zip((0..).step_by(2)).all(|(b, n)| holds(*b, size, n as u8));
                let sound = distinct.len() == again.len() + within.len().div_ceil(2)
                    && span.dormant.load(Relaxed) == 0;
                again.into_iter().chain(within.into_iter().step_by(2)).chain(others).for_each(release);
                whole && sound
            })
        }));
    }

    #[test]
    fn what_a_thread_was_about_to_note_at_a_fork_is_forgotten_with_the_rest() {
        assert!(in_child(|| {
            let (span, within, others) = a_full_span(200);
            let marks = || span.marks(span.capacity.get() as usize).unwrap();
            // A bit that nobody came to count.
            marks()[0].store(5, Relaxed);
            dormant::forget(span);
            let forgotten =
                marks().iter().all(|word| word.load(Relaxed) == 0) && span.dormant.load(Relaxed) == 0;
            within.into_iter().chain(others).for_each(release);
            forgotten
        }));
    }

    #[test]
    fn while_pages_come_and_go_no_two_blocks_overlap_and_all_keep_their_bytes() {
        assert!(in_child(|| {
            memfold_arena::set_hooks(&HOOKS);
            let (mut live, mut state) = (Vec::<(*mut u8, usize, u8)>::new(), 1u64);
            let mut draw = |below: usize| {
                state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
                (state >> 33) as usize % below
            };
            for round in 0..200_000 {
                MANY.store(round / 1000 % 3 != 0, SeqCst);
                if let Some((block, size, _)) = live.last().filter(|_| round % 7 == 0) {
                    went_away(*block as usize & !(PAGE_SIZE - 1), size.next_multiple_of(PAGE_SIZE));
                }
                if live.len() < 3000 && draw(5) != 0 {
                    let size = [16, 40, 200, 700, 3000, 20_000, 100_000][draw(7)];
                    let block = malloc(size);
                    fill(block, size, round as u8);
                    live.push((block, size, round as u8));
                } else if !live.is_empty() {
                    for _ in 0..draw(8).min(live.len()) {
                        let (block, size, tag) = live.swap_remove(draw(live.len()));
                        assert!(holds(block, size, tag), "round {round}: a block of {size} bytes");
                        release(block);
                    }
                }
            }
            let (mut dormant, mut sound) = (0, true);
            memfold_arena::for_each_span(Domain::Managed, |span| {
                let count = span.dormant.load(Relaxed);
                if span.kind() == Kind::Blocks && count > 0 {
                    let marks = span.marks(span.capacity.get() as usize).unwrap();
                    sound &= span.linked.get();
                    sound &= marks.iter().map(|word| word.load(Relaxed).count_ones()).sum::<u32>() == count;
                    dormant += count;
                }
            });
            live.into_iter().all(|(block, size, tag)| {
                let whole = holds(block, size, tag);
                release(block);
                whole
            }) && sound
                && dormant > 0
        }));
    }
}
