//! Mappings that are too young for anything of them to be cold: noted here, and told to the tables when they have lived
//! for a while.
//!
//! Most mappings that come and go quickly are gone before a page of them could be evicted. To enter them into the tables and
//! take them out again would cost a program more than it could ever gain: signals blocked, locks, a call for each extent.
//! A note costs one compare-and-swap, and another ends it.
//!
//! Invariants:
//! - what a note covers is in no table. So nothing of it is registered or away, and to unmap it concerns nobody else;
//! - a note is one word. No thread is ever in the middle of one, whatever interrupts it, a fork included;
//! - who tells the tables of a note *claims* it first, and ends it when they are told; who unmaps the range meanwhile waits
//!   for that. Program threads claim with signals blocked and end it inside the gate, the background thread holds no claim
//!   when it stands still: a forked child finds a claim only where no table was told.
//!
//! A range that the tables know something of is never noted: the slow way clears that first ([`crate::mappings`]).

use crate::bitmap::PageSet;
use crate::engine::{Engine, Phase};
use crate::mappings::Bounds;
use crate::sabotage::{planted, Bug};
use crate::sync::{AtomicU64, Ordering::*};
use crate::worker::Worker;
use memfold_sys::thread::Backoff;
use memfold_sys::{signal, EXTENT_SIZE, PAGE_SIZE};

/// How many mappings can be young at a time; more, and the oldest way to make room is taken: one of them is told of.
/// All are looked at for each change of a mapping, so few: four cache lines.
const NOTES: usize = 32;
/// In a note: somebody tells the tables of it.
const CLAIMED: u64 = 1 << 63;
/// In a note: the background thread has seen it before.
const SEEN: u64 = 1 << 62;
/// The low bits of a note are its length in pages, the next its first page.
const LEN_BITS: u32 = 27;
/// Extents told of before the fault thread gets a turn.
const AT_ONCE: usize = 64;

/// The notes. Zero is none.
#[derive(Debug)]
pub struct Young {
    notes: [AtomicU64; NOTES],
    bytes: AtomicU64,
}

fn pack(range: Bounds) -> Option<u64> {
    let pages = (range.end - range.start) / PAGE_SIZE;
    let fits = pages > 0 && pages < 1 << LEN_BITS;
    fits.then_some(((range.start / PAGE_SIZE) as u64) << LEN_BITS | pages as u64)
}

fn unpack(note: u64) -> Bounds {
    let note = note & !(CLAIMED | SEEN);
    let start = (note >> LEN_BITS) as usize * PAGE_SIZE;
    Bounds { start, end: start + (note & ((1 << LEN_BITS) - 1)) as usize * PAGE_SIZE }
}

/// Whether a note is of pages of the range.
fn meets(note: u64, range: Bounds) -> bool {
    let noted = unpack(note);
    note != 0 && noted.start.max(range.start) < noted.end.min(range.end)
}

impl Young {
    /// No notes.
    pub const fn new() -> Young {
        Young { notes: [const { AtomicU64::new(0) }; NOTES], bytes: AtomicU64::new(0) }
    }

    /// Bytes that are noted.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// How many bytes of a range are noted.
    fn bytes_of(&self, range: Bounds) -> usize {
        let noted = self.notes.iter().map(|slot| unpack(slot.load(Relaxed)));
        noted.map(|noted| noted.end.min(range.end).saturating_sub(noted.start.max(range.start))).sum()
    }

    /// Ends a note that is as the caller saw it.
    fn end(&self, slot: &AtomicU64, note: u64) -> bool {
        let ended = slot.compare_exchange(note, 0, AcqRel, Acquire).is_ok();
        if ended {
            self.forget(unpack(note));
        }
        ended
    }

    fn forget(&self, range: Bounds) {
        self.bytes.fetch_sub((range.end - range.start) as u64, Relaxed);
    }

    /// The notes that meet the range, where `act` is tried on each until it does not any more. What is claimed is waited for.
    fn settle(&self, range: Bounds, mut act: impl FnMut(&AtomicU64, u64)) -> bool {
        let mut any = false;
        for slot in &self.notes {
            let mut backoff = Backoff::new();
            loop {
                let note = slot.load(Acquire);
                if !meets(note, range) {
                    break;
                }
                any = true;
                if note & CLAIMED != 0 {
                    backoff.wait();
                } else {
                    act(slot, note);
                }
            }
        }
        any
    }

    /// Forgets what is noted of a range that is memfold's own now. Waits for nobody: the caller may hold locks.
    pub fn disown(&self, range: Bounds) {
        for slot in &self.notes {
            let note = slot.load(Acquire);
            if meets(note, range) && note & CLAIMED == 0 {
                // Whoever was quicker has ended or claimed it.
                let _ = self.end(slot, note);
            }
        }
    }

    /// Claims are of threads that do not exist, in a forked child; the tables were not told. Counts again.
    pub fn reset_in_child(&self) {
        let mut bytes = 0;
        for slot in &self.notes {
            let note = unpack(slot.fetch_and(!CLAIMED, Relaxed));
            bytes += (note.end - note.start) as u64;
        }
        self.bytes.store(bytes, Relaxed);
    }
}

impl Engine {
    /// Notes memory that the program has just mapped. False if it must be told to the tables at once.
    pub(crate) fn note_young(&'static self, addr: usize, len: usize) -> bool {
        let range = Bounds::of(addr, len);
        // A report of something past libc that is being acted on may be of this range. What is not read yet has left its
        // traces in the tables.
        self.turns.wait_for_reader();
        // What is noted of the range went past libc. Were the tables told of it once they know this mapping, they would forget
        // what was evicted of it.
        if !planted(Bug::NoteLeft) || self.notes_young() {
            self.young.settle(range, |slot, note| {
                self.young.end(slot, note);
            });
        }
        let Some(note) = pack(range).filter(|_| self.notes_young() && !self.is_anonymous(addr, len)) else {
            return false;
        };
        self.keep_pages_small(range.start, range.end - range.start);
        self.young.bytes.fetch_add((range.end - range.start) as u64, Relaxed);
        let first = range.start / EXTENT_SIZE;
        let mut backoff = Backoff::new();
        loop {
            for n in 0..NOTES {
                let slot = &self.young.notes[(first + n) % NOTES];
                if slot.load(Relaxed) == 0 && slot.compare_exchange(0, note, AcqRel, Relaxed).is_ok() {
                    return true;
                }
            }
            // No room: the tables are told of one that is there.
            let slot = &self.young.notes[first % NOTES];
            match slot.load(Acquire) {
                0 => {}
                other if other & CLAIMED != 0 => backoff.wait(),
                other => self.tell_note(slot, other),
            }
        }
    }

    /// Ends the notes of a range that is about to be unmapped, or mapped over; of those that reach beyond it, the tables are
    /// told. Whether the range was one of them, and nothing else is known of it: then it may be unmapped without more ado.
    pub(crate) fn take_young(&'static self, range: Bounds) -> bool {
        let mut whole = false;
        self.young.settle(range, |slot, note| {
            let noted = unpack(note);
            if range.start <= noted.start && noted.end <= range.end {
                let exact = noted.start == range.start && noted.end == range.end;
                whole |= self.young.end(slot, note) && exact;
            } else {
                self.tell_note(slot, note);
            }
        });
        self.turns.wait_for_reader();
        whole && !self.is_anonymous(range.start, range.end - range.start)
    }

    /// How many bytes of a range are noted and in no table.
    pub(crate) fn young_bytes_of(&self, start: usize, end: usize) -> usize {
        self.young.bytes_of(Bounds { start, end })
    }

    /// Tells the tables what is noted of a range.
    pub(crate) fn tell_young(&'static self, range: Bounds) {
        self.young.settle(range, |slot, note| self.tell_note(slot, note));
    }

    /// Forgets what is noted of a range that is memfold's own now.
    pub(crate) fn disown_young(&self, range: Bounds) {
        self.young.disown(range);
    }

    fn tell_note(&'static self, slot: &AtomicU64, note: u64) {
        // A handler that unmaps the range would wait for ever.
        let _blocked = signal::block_all();
        if slot.compare_exchange(note, note | CLAIMED, AcqRel, Relaxed).is_err() {
            return;
        }
        let range = unpack(note);
        self.add_mapping(range.start, range.end - range.start, true, || {
            slot.store(0, Release);
            self.young.forget(range);
        });
    }
}

impl Worker {
    /// Tells the tables of the notes that were there the last time already, or of all. Only tries: what is in other hands, or
    /// may be what a report is about that was not read yet, stays noted.
    pub(crate) fn adopt_young(&mut self, all: bool) {
        let engine = self.engine;
        for slot in &engine.young.notes {
            let note = slot.load(Acquire);
            if note == 0 || note & CLAIMED != 0 {
                continue;
            }
            if !all && note & SEEN == 0 {
                // Whoever was quicker has ended or claimed it.
                let _ = slot.compare_exchange(note, note | SEEN, AcqRel, Relaxed);
                continue;
            }
            // Relaxed: a statistic that orders nothing.
            engine.control().ranges_added.fetch_add(1, Relaxed);
            let mut note = note;
            while let Some(rest) = self.adopt(slot, note) {
                note = rest;
                self.stay_responsive();
            }
        }
    }

    /// Claims a note, tells the tables of some of its extents, and ends the claim. Returns what is noted of it still, if it
    /// can be gone on with.
    fn adopt(&self, slot: &AtomicU64, note: u64) -> Option<u64> {
        let engine = self.engine;
        let going = engine.phase() == Phase::Running;
        if !going || slot.compare_exchange(note, note | CLAIMED, AcqRel, Relaxed).is_err() {
            return None;
        }
        let Bounds { start, end } = unpack(note);
        let at = match engine.turns.try_move() {
            Some(_turn) if !self.kernel.uffd.is_changing() => engine.adopt_some(start, end),
            _ => start,
        };
        engine.young.forget(Bounds { start, end: at });
        let rest = pack(Bounds { start: at, end }).map_or(0, |rest| rest | SEEN);
        slot.store(rest, Release);
        (rest != 0 && at > start).then_some(rest)
    }
}

impl Engine {
    /// Manages the extents from `at` on, a few of them, until one is in other hands. Returns where it stopped.
    fn adopt_some(&self, mut at: usize, end: usize) -> usize {
        for _ in 0..AT_ONCE {
            // Without tables the memory is simply not managed.
            let Ok(extent) = self.space().find_or_make(at, &self.pool) else { return end };
            let Some(_guard) = extent.lock.try_lock() else { return at };
            let (lo, hi) = extent.clip(at, end);
            self.begin_managing(extent, &PageSet::range(lo, hi), lo, hi, true);
            at = extent.base() + EXTENT_SIZE;
            if at >= end {
                return end;
            }
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: usize, pages: usize) -> Bounds {
        Bounds { start: first * PAGE_SIZE, end: (first + pages) * PAGE_SIZE }
    }

    #[test]
    fn a_note_holds_every_range_below_the_limit_that_is_not_too_long() {
        let last = crate::space::LIMIT / PAGE_SIZE;
        for (first, pages) in [(1, 1), (0x7fff_1234, 256), (last - 5, 5), (77, (1 << LEN_BITS) - 1)] {
            let note = pack(range(first, pages)).unwrap();
            assert!(note & (CLAIMED | SEEN) == 0 && note != 0);
            for bits in [0, CLAIMED, SEEN, CLAIMED | SEEN] {
                let found = unpack(note | bits);
                assert_eq!((found.start, found.end), (first * PAGE_SIZE, (first + pages) * PAGE_SIZE));
            }
        }
        assert!(pack(range(5, 0)).is_none() && pack(range(5, 1 << LEN_BITS)).is_none());
    }

    #[test]
    fn a_note_meets_what_it_shares_a_page_with() {
        let note = pack(range(100, 10)).unwrap();
        for (first, pages, met) in
            [(0, 100, false), (0, 101, true), (109, 1, true), (110, 5, false), (105, 0, false)]
        {
            assert_eq!(meets(note | SEEN, range(first, pages)), met, "{first}");
        }
        assert!(!meets(0, range(0, 1000)));
    }
}
