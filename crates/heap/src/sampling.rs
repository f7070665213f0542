//! Which blocks are sampled: each byte that is allocated has the same chance, so what is sampled stands for what is not.
//!
//! What it is: a Poisson process over the bytes of each class (as in TCMalloc's sampling; the gaps between samples are exponential), counted in
//! blocks. While nothing is sampled nothing is counted, and no fast path looks at anything. While something is, a thread's bins hold no more
//! blocks than are left until the next one that is sampled, and take none back of those who do not count: `malloc` keeps its fast path, and the
//! call that finds its bin empty settles the account. A thread takes part from its next call on that leaves the fast path.
//!
//! What it is not: the tables ([`crate::samples`]), or the walk up the stack (the crate `unwind`).
//!
//! Invariants: of a heap that takes part, a bin never holds more blocks than were counted off [`Heap::unsampled`] for it; spans with sampled
//! blocks are marked, so that the free of one is always seen.

use crate::heap::Heap;
use crate::{classes, flush, refill, registry, samples};
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use memfold_arena::{Domain, Span};
use memfold_unwind::{capture, MOST_CALLS};

/// Whether blocks are sampled; brings the heap in line with it. By the thread that uses the heap, which is no sentinel.
#[inline]
pub(crate) fn is_on(heap: &'static Heap) -> bool {
    if heap.sampling.get() != samples::generation() {
        join(heap);
    }
    heap.sampling.get() != 0
}

#[cold]
#[inline(never)]
fn join(heap: &'static Heap) {
    let now = match heap.domain.get() {
        Domain::Managed => samples::generation(),
        // What is the pager's own is nobody's to look at.
        Domain::Pinned => 0,
    };
    let (was, mean) = (heap.sampling.replace(now), samples::mean());
    for class in 0..classes::COUNT {
        let bin = heap.bin(class);
        match (was, now) {
            (0, 0) => return,
            (0, _) => bin.close(),
            (_, 0) => bin.open(),
            _ => {}
        }
        let gap = if now == 0 { 0 } else { blocks_until_next(heap, class, mean) };
        let kept = (bin.count(heap.depths.limit(class)) as u32).min(gap);
        if now != 0 {
            flush::empty(heap, class, kept as i32);
        }
        heap.unsampled[class].set(gap - kept);
    }
}

/// A block of `class`, of which the bin may have no more, and whether it is known to be all zero; null if the kernel gives no more memory.
pub(crate) fn refill(heap: &'static Heap, class: usize) -> (*mut u8, bool) {
    if !is_on(heap) {
        return refill::refill(heap, class);
    }
    let is_due = is_due(heap, class);
    let (block, zero) = refill::refill(heap, class);
    // What came into the bin is counted off, and what is too much goes back.
    let unsampled = &heap.unsampled[class];
    let came = heap.bin(class).count(heap.depths.limit(class)) as u32;
    let kept = came.min(unsampled.get());
    unsampled.set(unsampled.get() - kept);
    if came > kept {
        flush::empty(heap, class, kept as i32);
        // Those had not been counted off.
        unsampled.set(unsampled.get() - (came - kept));
    }
    if let Some(span) = memfold_arena::lookup(block as usize).filter(|_| is_due && !block.is_null()) {
        take(heap, span, block as usize, span.block_size() as usize);
    }
    (block, zero)
}

/// Counts a block of the class that is about to be handed out, and says whether it is to be sampled.
pub(crate) fn is_due(heap: &'static Heap, class: usize) -> bool {
    if !is_on(heap) {
        return false;
    }
    let unsampled = &heap.unsampled[class];
    match unsampled.get() {
        0 => {
            unsampled.set(blocks_until_next(heap, class, samples::mean()));
            true
        }
        left => {
            unsampled.set(left - 1);
            false
        }
    }
}

/// Samples a block of whole pages that is about to be handed out, or not.
#[inline]
pub(crate) fn consider(block: *mut u8) {
    if samples::generation() != 0 && !block.is_null() {
        consider_one(block as usize);
    }
}

#[cold]
#[inline(never)]
fn consider_one(block: usize) {
    let Some(span) = memfold_arena::lookup(block).filter(|span| span.domain() == Domain::Managed) else {
        return;
    };
    // A thread that ends takes no part.
    let Some(heap) = registry::heap_to_free_with() else { return };
    if gap(heap, samples::mean()) < span.bytes() as u64 {
        take_with(samples::generation(), span, block, span.bytes());
    }
}

/// Enters a block that is about to be handed out, with the calls that ask for it.
pub(crate) fn take(heap: &'static Heap, span: &Span, block: usize, size: usize) {
    take_with(heap.sampling.get(), span, block, size);
}

#[cold]
#[inline(never)]
fn take_with(generation: u32, span: &Span, block: usize, size: usize) {
    let Some(rules) = samples::rules() else { return };
    let mut calls = [0; MOST_CALLS];
    let count = capture(rules, &samples::left_out(), &mut calls);
    samples::enter(generation, span, block, size, &calls[..count]);
}

/// Whether the calls that free a block are kept.
static TRACE: AtomicBool = AtomicBool::new(false);

/// From now on every block is sampled, and it is kept which calls freed it, for [`crate::trace_of`]. Calls at the top of a stack that lie in
/// `left_out` are not told. False if there is no memory for the tables. For programs whose blocks are checked: it costs microseconds a call.
pub fn trace(left_out: Range<usize>) -> bool {
    TRACE.store(true, Relaxed);
    samples::sample(1, left_out)
}

/// Forgets a block that is in the tables and that the program has freed.
#[cold]
#[inline(never)]
pub(crate) fn forget(span: &Span, block: usize) {
    let rules = samples::rules().filter(|_| TRACE.load(Relaxed));
    let Some(rules) = rules else { return samples::forget(span, block, &[]) };
    let mut calls = [0; MOST_CALLS];
    let count = capture(rules, &samples::left_out(), &mut calls);
    samples::forget(span, block, &calls[..count]);
}

/// How many blocks of the class go by unsampled until the next one, by a gap of that many bytes in the mean.
fn blocks_until_next(heap: &Heap, class: usize, mean: usize) -> u32 {
    let blocks = gap(heap, mean) / classes::block_size(class) as u64;
    u32::try_from(blocks).unwrap_or(u32::MAX)
}

/// A gap between two samples, bytes: exponential, of that mean.
fn gap(heap: &Heap, mean: usize) -> u64 {
    // SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    heap.luck.set(heap.luck.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
    let x = heap.luck.get() ^ (core::ptr::from_ref(heap) as u64).rotate_left(32);
    let x = (x ^ x >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    exponential(x ^ x >> 31, mean as u64)
}

/// −ln(u) × `mean` for the number u in 0..1 that `random` is the digits of.
fn exponential(random: u64, mean: u64) -> u64 {
    const LN_2: u128 = 0xB172_17F7_D1CF_79AC;
    let random = random.max(1);
    // −log2(u) has as many whole units as there are zeros in front, and a fraction, found digit by digit by squaring.
    let zeros = random.leading_zeros();
    let mut power = u128::from(random << zeros);
    let (mut log, mut digit) = (u128::from(zeros + 1) << 32, 1u128 << 31);
    while digit > 0 {
        // In units of 2^-63, from 1 up to below 2.
        power = (power * power) >> 63;
        if power >> 64 != 0 {
            power >>= 1;
            log -= digit;
        }
        digit >>= 1;
    }
    let nats = (log * LN_2) >> 64;
    u64::try_from((nats * u128::from(mean)) >> 32).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_exponential() {
        const MEAN: u64 = 512 << 10;
        let draws: std::vec::Vec<u64> =
            (1..100_000u64).map(|i| exponential(i.wrapping_mul(0x9E37_79B9_7F4A_7C15), MEAN)).collect();
        let mean = draws.iter().sum::<u64>() as f64 / draws.len() as f64;
        assert!((mean / MEAN as f64 - 1.0).abs() < 0.01, "{mean}");
        for part in [0.1f64, 1.0, 3.0] {
            let beyond = draws.iter().filter(|draw| **draw as f64 > part * MEAN as f64).count();
            let share = beyond as f64 / draws.len() as f64;
            assert!((share - (-part).exp()).abs() < 0.01, "{part}: {share}");
        }
        assert_eq!(exponential(u64::MAX, MEAN), 0);
        assert!(exponential(0, MEAN) > 40 * MEAN);
        assert!(exponential(1 << 63, 1000).abs_diff(693) <= 1);
    }
}
