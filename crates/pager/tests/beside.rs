//! Pages that are in use lie together: those between touched ones come back with them, and what lies apart does not.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_sys::{EXTENT_PAGES, PAGE_SIZE};
use std::sync::atomic::Ordering::*;

const COLD_AGE: u64 = 2_000;
const EXTENTS: usize = 16;
/// Pages of each extent that are in use, one behind the other.
const BLOCK: usize = 64;

#[test]
fn what_lies_among_touched_pages_comes_back_with_them_and_the_rest_is_evicted() {
    let engine = engine(COLD_AGE);
    let memory = Memory::new(engine, EXTENTS * EXTENT_PAGES * PAGE_SIZE).in_small_pages();
    memory.fill(50);
    // In an order without neighbours, so that nobody takes it for a sequential reader.
    let in_use = || {
        (0..EXTENTS * BLOCK).map(|n| {
            let (extent, page) = (n % EXTENTS, n / EXTENTS * 27 % BLOCK);
            extent * EXTENT_PAGES + 100 + page
        })
    };
    let control = engine.control();
    let unasked = || {
        let came = control.pages_second_chance.load(Relaxed) + control.pages_restored.load(Relaxed);
        came.saturating_sub(control.fault_ns.count.load(Relaxed))
    };
    // A page or two before and behind each block, at both ends of what was foretold, may stay.
    let rest = (EXTENTS * (EXTENT_PAGES - BLOCK - 8) * PAGE_SIZE) as u64;
    wait_until("a part of what is in use comes unasked, and the rest is evicted", || {
        in_use().for_each(|page| memory.check_page(50, page));
        unasked() >= (EXTENTS * BLOCK / 8) as u64 && evicted(engine) >= rest
    });
    memory.check(50);
}
