//! Whether the program touches what it is given, learnt from a sample.
//!
//! What it is: the addresses of a few extents that have small pages, and the share of the pages given to the program in
//! them that are resident. Huge pages save a fault for each page that would be touched anyway, and waste memory for each that
//! would not; so they pay only where blocks are used from end to end. What it is not: exact; it is asked when another
//! chunk is mapped, and the sample is then full of blocks of all ages.
//!
//! Invariants: extents of the sample lie in chunks of the managed pool and are given up before those are unmapped.

use crate::span::{Domain, Kind};
use crate::{pagemap, pool};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use memfold_sys::{EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// Addresses of extents, 0 for none.
type Sample = [AtomicUsize; 4];

/// Of chunks for all kinds of blocks, and those with which chunks for long ones begin.
static SAMPLE: Sample = [const { AtomicUsize::new(0) }; 4];
static LONG: Sample = [const { AtomicUsize::new(0) }; 4];

/// What was told of long ones last: 0 for nothing, 1 for no, 2 for yes.
static LONG_KNOWN: AtomicUsize = AtomicUsize::new(0);

/// Of so many parts of what was given one may be untouched.
const PARTS: usize = 8;

/// Fewer pages than this say nothing.
const ENOUGH: usize = EXTENT_PAGES;

/// Takes the extents of a chunk whose pages are small into the sample, as far as there is room.
pub(crate) fn sample(base: usize, len: usize) {
    for extent in (base..base + len).step_by(EXTENT_SIZE) {
        if !enter(&SAMPLE, extent) {
            return;
        }
    }
}

/// Takes the first extent of such a chunk for long blocks into theirs, if there is room.
pub(crate) fn sample_long(base: usize) {
    enter(&LONG, base);
}

fn enter(sample: &Sample, extent: usize) -> bool {
    // Relaxed, here and below: who looks at an extent's spans holds the pool's lock.
    sample.iter().any(|place| place.compare_exchange(0, extent, Relaxed, Relaxed).is_ok())
}

/// Takes the extents of a chunk that is about to be unmapped out of the samples.
pub(crate) fn forget(base: usize, len: usize) {
    for place in SAMPLE.iter().chain(&LONG) {
        let extent = place.load(Relaxed);
        if (base..base + len).contains(&extent) {
            let _ = place.compare_exchange(extent, 0, Relaxed, Relaxed);
        }
    }
}

/// Whether all but an eighth of what was given to the program in the sample is resident.
pub(crate) fn is_high() -> bool {
    is_high_in(&SAMPLE) == Some(true)
}

/// The same of long blocks, as it is or, where those that were looked at are gone, as it was; `None` before that could be told.
pub(crate) fn is_high_of_long() -> Option<bool> {
    if let Some(high) = is_high_in(&LONG) {
        LONG_KNOWN.store(1 + usize::from(high), Relaxed);
    }
    match LONG_KNOWN.load(Relaxed) {
        0 => None,
        known => Some(known == 2),
    }
}

fn is_high_in(sample: &Sample) -> Option<bool> {
    let (mut given, mut resident) = (0, 0);
    for place in sample {
        let (more, touched) = count(place.load(Relaxed));
        given += more;
        resident += touched;
    }
    (given >= ENOUGH).then_some(resident >= given - given / PARTS)
}

/// How many pages of an extent were given to the program, and how many of those are resident.
fn count(base: usize) -> (usize, usize) {
    let (mut given, mut resident) = (0, 0);
    let mut pages = [0u8; EXTENT_PAGES];
    if base == 0 || memfold_sys::mem::mincore(base, &mut pages).is_err() {
        return (0, 0);
    }
    let pool = pool::pool(Domain::Managed).lock();
    let mut at = base;
    while at < base + EXTENT_SIZE {
        let Some(span) = pagemap::lookup(at).filter(|span| span.start() == at) else { break };
        let touchable = match span.kind() {
            Kind::Large => span.bytes(),
            Kind::Blocks => span.carved.load(Relaxed) as usize * span.block_size() as usize,
            _ => 0,
        };
        let first = (at - base) / PAGE_SIZE;
        let last = (first + touchable.div_ceil(PAGE_SIZE)).min(EXTENT_PAGES);
        given += last - first;
        resident += pages[first..last].iter().filter(|page| **page & 1 != 0).count();
        at = span.end();
    }
    drop(pool);
    (given, resident)
}
