//! Patterns in which one thread frees what another allocated.
//!
//! Larson's server loop follows the idea of Larson and Krishnan ("Memory Allocation for Long-Running Server Applications",
//! ISMM 1998); the exchange of batches that of Lever and Boreham's malloc-test ("malloc() Performance in a Multithreaded
//! Linux Environment", USENIX 2000). The code is ours, so figures do not compare with theirs.
//!
//! Invariants: a table of blocks has one owner, and changes it by an atomic exchange; no thread waits for another.

use super::actor::Actor;
use super::slots::{free, table, take, Draw, Sizes};
use super::Loop;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// Places in which tables wait for the next owner; null where there is none yet.
pub(super) struct Exchange(Vec<AtomicPtr<*mut u8>>);

impl Exchange {
    pub(super) fn new(places: usize) -> Exchange {
        Exchange((0..places).map(|_| AtomicPtr::default()).collect())
    }

    /// Leaves `mine` at a random place and takes what was there; a new table of `len` where there was none.
    fn swap(&self, mine: &'static mut [*mut u8], draw: &mut Draw) -> &'static mut [*mut u8] {
        let (place, _) = draw.two(self.0.len() as u64, 1);
        let len = mine.len();
        // Release and acquire: the next owner sees the blocks that this one left.
        let found = self.0[place as usize].swap(mine.as_mut_ptr(), AcqRel);
        if found.is_null() {
            return table(len);
        }
        // SAFETY: all tables of a loop have the same length, and whoever takes one out of its place owns it alone.
        unsafe { std::slice::from_raw_parts_mut(found, len) }
    }
}

/// Calls that a thread makes on a table before it takes another.
const SHIFT: u32 = 4096;

/// A server's threads, which come and go and leave their requests to the next.
pub(super) struct Larson<'a> {
    exchange: &'a Exchange,
    table: Option<&'static mut [*mut u8]>,
    draw: Draw,
    sizes: Sizes,
    calls: u32,
}

impl<'a> Larson<'a> {
    pub(super) fn new(job: &Loop, number: usize, exchange: &'a Exchange) -> Self {
        let (draw, sizes) = (Draw::new(job, number), Sizes::of(job));
        Larson { exchange, table: Some(table(job.slots)), draw, sizes, calls: 0 }
    }
}

impl Actor for Larson<'_> {
    const MOST_CALLS: u64 = 2;

    #[inline]
    fn step(&mut self) -> u64 {
        self.calls += 1;
        if self.calls.is_multiple_of(SHIFT) {
            self.table = self.table.take().map(|mine| self.exchange.swap(mine, &mut self.draw));
        }
        let Some(table) = &mut self.table else { return 0 };
        let (place, extra) = self.draw.two(table.len() as u64, self.sizes.span);
        let slot = &mut table[place as usize];
        let operations = if slot.is_null() { 1 } else { 2 };
        free(*slot);
        *slot = take((self.sizes.least + extra) as usize);
        operations
    }

    /// Which blocks a thread finds in a table that it took over depends on who was faster.
    fn last(&mut self) -> u64 {
        let Some(table) = &mut self.table else { return 0 };
        let (place, extra) = self.draw.two(table.len() as u64, self.sizes.span);
        let slot = &mut table[place as usize];
        if slot.is_null() {
            *slot = take((self.sizes.least + extra) as usize);
        } else {
            free(std::mem::replace(slot, std::ptr::null_mut()));
        }
        1
    }
}

/// Fills a batch, exchanges it, and frees the one that it got.
pub(super) struct Xmalloc<'a> {
    exchange: &'a Exchange,
    batch: Option<&'static mut [*mut u8]>,
    /// Where in the batch the next block goes, or is freed.
    place: usize,
    filling: bool,
    draw: Draw,
    sizes: Sizes,
}

impl<'a> Xmalloc<'a> {
    pub(super) fn new(job: &Loop, number: usize, exchange: &'a Exchange) -> Self {
        let (draw, sizes) = (Draw::new(job, number), Sizes::of(job));
        Xmalloc { exchange, batch: Some(table(job.slots)), place: 0, filling: true, draw, sizes }
    }

    fn turn(&mut self) {
        if self.filling {
            self.batch = self.batch.take().map(|full| self.exchange.swap(full, &mut self.draw));
        }
        (self.filling, self.place) = (!self.filling, 0);
    }
}

impl Actor for Xmalloc<'_> {
    #[inline]
    fn step(&mut self) -> u64 {
        if self.batch.as_ref().is_some_and(|batch| self.place == batch.len()) {
            self.turn();
        }
        let Some(batch) = &mut self.batch else { return 0 };
        let slot = &mut batch[self.place];
        self.place += 1;
        if self.filling {
            let (_, extra) = self.draw.two(1, self.sizes.span);
            *slot = take((self.sizes.least + extra) as usize);
            return 1;
        }
        let block = std::mem::replace(slot, std::ptr::null_mut());
        free(block);
        u64::from(!block.is_null())
    }
}

/// Blocks on their way from a producer to its consumer; null where there is room.
type Ring = &'static [AtomicPtr<u8>];

/// Blocks that are on their way at most, of each pair.
const RING: usize = 4096;

/// A ring for each pair of threads.
pub(super) struct Rings(Vec<Ring>);

impl Rings {
    pub(super) fn new(pairs: usize) -> Rings {
        Rings((0..pairs).map(|_| &*table(RING)).collect())
    }
}

/// Allocates until the ring is full.
pub(super) struct Producer {
    ring: Ring,
    place: usize,
    draw: Draw,
    sizes: Sizes,
}

impl Producer {
    pub(super) fn new(job: &Loop, number: usize, rings: &Rings) -> Producer {
        let (draw, sizes) = (Draw::new(job, number), Sizes::of(job));
        Producer { ring: rings.0[number / 2], place: 0, draw, sizes }
    }
}

impl Actor for Producer {
    #[inline]
    fn step(&mut self) -> u64 {
        let slot = &self.ring[self.place];
        // Acquire: the consumer is done with the place.
        if !slot.load(Acquire).is_null() {
            std::thread::yield_now();
            return 0;
        }
        let (_, extra) = self.draw.two(1, self.sizes.span);
        // Release: the consumer sees what was written into the block.
        slot.store(take((self.sizes.least + extra) as usize), Release);
        self.place = (self.place + 1) % RING;
        1
    }
}

/// Frees until the ring is empty.
pub(super) struct Consumer {
    ring: Ring,
    place: usize,
}

impl Consumer {
    pub(super) fn new(number: usize, rings: &Rings) -> Consumer {
        Consumer { ring: rings.0[number / 2], place: 0 }
    }
}

impl Actor for Consumer {
    #[inline]
    fn step(&mut self) -> u64 {
        let slot = &self.ring[self.place];
        // Acquire: pairs with the producer's release.
        let block = slot.load(Acquire);
        if block.is_null() {
            std::thread::yield_now();
            return 0;
        }
        // Release: the place is empty only after it was read.
        slot.store(std::ptr::null_mut(), Release);
        free(block);
        self.place = (self.place + 1) % RING;
        1
    }
}
