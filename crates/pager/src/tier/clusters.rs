//! The table of clusters: where each lies in its tier, and which of its pages are still wanted.
//!
//! Any thread drops pages, without a lock and without a call. Which clusters no page is wanted of any more, the background thread finds in
//! a queue, and only then are their places used again.
//!
//! Invariants: a cluster is the background thread's until its pages are marked as wanted, and again once it has taken the cluster from the
//! queue. Its place is one word, so that a forked child, which gets a copy of it at any moment, finds it as it was before or after a move.

use super::{BLOCK, CLUSTER};
use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use crate::tables::pool::Pool;
use memfold_sys::{Errno, Result};

/// The cluster is none, or lies elsewhere.
pub const STALE: Errno = Errno(libc::ESTALE);

const BLOCK_BITS: u32 = 27;
const BLOCKS_BITS: u32 = 5;
const FILE_BITS: u32 = 5;
const SEQUENCE_BITS: u32 = 27;

/// Blocks of a segment, 1 MiB, of which a file is a row.
pub const SEGMENT_BLOCKS: usize = (1 << 20) / BLOCK;
/// Most blocks of a place.
pub const MOST_BLOCKS: usize = 1 << BLOCKS_BITS;
/// Blocks that a file can have: 512 GiB.
pub const FILE_BLOCKS: usize = 1 << BLOCK_BITS;
/// Files that there can be at once.
pub const FILES: usize = 1 << FILE_BITS;
/// Clusters that are written to a file, with numbers below this.
pub const SEQUENCES: u32 = 1 << SEQUENCE_BITS;

/// Where a cluster lies: the file, its first block there, how many there are, and the how-manieth cluster that was written to the file it is,
/// which no two have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(u64);

impl Place {
    /// From its parts.
    pub fn new(file: usize, block: usize, blocks: usize, sequence: u32) -> Place {
        debug_assert!(file < FILES && block < FILE_BLOCKS && sequence < SEQUENCES);
        debug_assert!((1..=MOST_BLOCKS).contains(&blocks));
        let place = (block as u64) << BLOCKS_BITS | (blocks - 1) as u64;
        Place((place << FILE_BITS | file as u64) << SEQUENCE_BITS | u64::from(sequence))
    }

    /// The number of the file.
    pub fn file(self) -> usize {
        (self.0 >> SEQUENCE_BITS) as usize & (FILES - 1)
    }

    /// The first block.
    pub fn block(self) -> usize {
        (self.0 >> (SEQUENCE_BITS + FILE_BITS + BLOCKS_BITS)) as usize
    }

    /// How many blocks there are.
    pub fn blocks(self) -> usize {
        ((self.0 >> (SEQUENCE_BITS + FILE_BITS)) as usize & (MOST_BLOCKS - 1)) + 1
    }

    /// Where it begins in the file, bytes.
    pub fn offset(self) -> u64 {
        (self.block() * BLOCK) as u64
    }

    /// The segment of the file that it is in.
    pub fn segment(self) -> usize {
        self.block() / SEGMENT_BLOCKS
    }

    /// How many bytes it has.
    pub fn bytes(self) -> usize {
        self.blocks() * BLOCK
    }

    /// The number of the cluster among those of the file.
    pub fn sequence(self) -> u32 {
        self.0 as u32 & (SEQUENCES - 1)
    }
}

/// What is known of a cluster. Zeros are one that nobody has.
#[repr(C)]
struct Cluster {
    place: AtomicU64,
    /// The next one in a queue or list, and 0 at its end.
    next: AtomicU32,
    /// Pages that are wanted, a bit each; above [`DICTIONARIES`] the dictionaries that its pages need, a bit each.
    needs: AtomicU32,
}

/// Where the bits of dictionaries begin.
const DICTIONARIES: u32 = 16;
const PAGES: u32 = (1 << DICTIONARIES) - 1;
const _: () = assert!(CLUSTER <= DICTIONARIES as usize);

const CHUNK: usize = 1024;
const CHUNKS: usize = 4096;

#[repr(C)]
struct Chunk([Cluster; CHUNK]);

/// The table. Number 0 is no cluster.
pub struct Clusters {
    chunks: [AtomicPtr<Chunk>; CHUNKS],
    /// Those of which no page is wanted any more, the last one first.
    done: AtomicU32,
    /// Those that can be used again, and the first number that was never used. The background thread's own.
    free: AtomicU32,
    fresh: AtomicU32,
}

impl Clusters {
    fn get(&self, number: u32) -> Option<&Cluster> {
        let chunk = self.chunks.get(number as usize / CHUNK)?.load(Acquire);
        // SAFETY: made once, for ever.
        Some(unsafe { &chunk.as_ref()?.0[number as usize % CHUNK] })
    }

    /// Where it lies, as far as it is one.
    pub fn place(&self, number: u32) -> Option<Place> {
        Some(Place(self.get(number)?.place.load(Acquire)))
    }

    /// Has what lies there read, and read again where it moved meanwhile: then what lay there may be gone. Where it lay, and what came of the reading. `ESTALE`
    /// where it is none any more.
    pub fn read<T>(&self, number: u32, mut read: impl FnMut(Place) -> Result<T>) -> Result<(Place, T)> {
        loop {
            let place = self.place(number).ok_or(STALE)?;
            let result = read(place);
            if self.place(number) == Some(place) {
                return Ok((place, result?));
            }
        }
    }

    /// A number for a new cluster. Background thread only. `ENOMEM` when there are no more.
    pub fn take(&self, pool: &Pool) -> Result<u32> {
        let free = self.free.load(Relaxed);
        if let Some(cluster) = self.get(free).filter(|_| free != 0) {
            self.free.store(cluster.next.load(Relaxed), Relaxed);
            return Ok(free);
        }
        let number = self.fresh.load(Relaxed).max(1);
        let place = self.chunks.get(number as usize / CHUNK).ok_or(Errno::ENOMEM)?;
        if place.load(Relaxed).is_null() {
            // SAFETY: zeros are clusters that nobody has.
            let chunk = unsafe { pool.make::<Chunk>() }?;
            // Release: who finds it finds zeros.
            place.store(chunk as *const Chunk as *mut Chunk, Release);
        }
        self.fresh.store(number + 1, Relaxed);
        Ok(number)
    }

    /// Gives a number back of which no page is wanted. Background thread only.
    pub fn give_back(&self, number: u32) {
        if let Some(cluster) = self.get(number) {
            debug_assert_eq!(cluster.needs.load(Relaxed) & PAGES, 0);
            cluster.next.store(self.free.load(Relaxed), Relaxed);
            self.free.store(number, Relaxed);
        }
    }

    /// A cluster lies there from now on. Its first `pages` are wanted, and need these dictionaries. Before any entry names it.
    pub fn fill(&self, number: u32, place: Place, pages: usize, dictionaries: u16) {
        debug_assert!((1..=CLUSTER).contains(&pages));
        if let Some(cluster) = self.get(number) {
            cluster.place.store(place.0, Release);
            let wanted = PAGES >> (CLUSTER - pages);
            cluster.needs.store(u32::from(dictionaries) << DICTIONARIES | wanted, Release);
        }
    }

    /// The number behind the last that was ever used. Background thread only.
    pub fn end(&self) -> u32 {
        self.fresh.load(Relaxed)
    }

    /// Where it lies, if a page of it is wanted. Background thread only.
    pub fn wanted(&self, number: u32) -> Option<Place> {
        let cluster = self.get(number)?;
        (cluster.needs.load(Acquire) & PAGES != 0).then(|| Place(cluster.place.load(Relaxed)))
    }

    /// It lies elsewhere from now on. Background thread only, and not after it was done.
    pub fn relocate(&self, number: u32, place: Place) {
        if let Some(cluster) = self.get(number) {
            cluster.place.store(place.0, Release);
        }
    }

    /// A page of it is wanted no more. From any thread; each page once.
    pub fn drop_page(&self, number: u32, page: usize) {
        let Some(cluster) = self.get(number) else { return };
        let before = cluster.needs.fetch_and(!(1 << page), AcqRel) & PAGES;
        debug_assert!(before & 1 << page != 0, "page {page} of cluster {number} was dropped twice");
        if before != 1 << page {
            return;
        }
        let mut head = self.done.load(Relaxed);
        loop {
            cluster.next.store(head, Relaxed);
            // Release: the link is seen by who takes the queue.
            match self.done.compare_exchange_weak(head, number, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes those of which no page is wanted any more; each is told with its place and the dictionaries that it needed. Background thread
    /// only, whose they are from then on.
    pub fn take_done(&self, mut each: impl FnMut(u32, Place, u16)) {
        let mut number = self.done.swap(0, Acquire);
        while let Some(cluster) = self.get(number).filter(|_| number != 0) {
            let next = cluster.next.load(Relaxed);
            let dictionaries = cluster.needs.load(Relaxed) >> DICTIONARIES;
            each(number, Place(cluster.place.load(Relaxed)), dictionaries as u16);
            number = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::{collections::BTreeSet, thread, vec::Vec};

    fn table(pool: &Pool) -> &'static Clusters {
        // SAFETY: zeros are an empty table.
        unsafe { pool.make_sparse::<Clusters>() }.unwrap()
    }

    proptest! {
        #[test]
        fn a_place_tells_what_it_was_made_of(
            file in 0..FILES, block in 0..FILE_BLOCKS, blocks in 1..=MOST_BLOCKS, sequence in 0..SEQUENCES
        ) {
            let place = Place::new(file, block, blocks, sequence);
            prop_assert_eq!(
                (place.file(), place.block(), place.blocks(), place.sequence()),
                (file, block, blocks, sequence)
            );
        }
    }

    #[test]
    fn a_cluster_is_done_when_its_last_page_is_dropped_by_whichever_thread() {
        let pool = Pool::new();
        let table = table(&pool);
        let numbers: Vec<u32> = (0..3000).map(|_| table.take(&pool).unwrap()).collect();
        for &number in &numbers {
            table.fill(number, Place::new(1, number as usize, 2, number), 5, 0b10);
        }
        let threads: Vec<_> = (0..5)
            .map(|page| {
                let numbers = numbers.clone();
                thread::spawn(move || numbers.iter().for_each(|&number| table.drop_page(number, page)))
            })
            .collect();
        let mut done = BTreeSet::new();
        while done.len() < numbers.len() {
            table.take_done(|number, place, dictionaries| {
                assert_eq!((place.block(), place.sequence(), dictionaries), (number as usize, number, 0b10));
                assert!(done.insert(number), "{number} was done twice");
            });
            thread::yield_now();
        }
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        numbers.iter().for_each(|&number| table.give_back(number));
        let again: BTreeSet<u32> = (0..3000).map(|_| table.take(&pool).unwrap()).collect();
        assert_eq!(again, done);
    }
}
