//! Noting mappings, ending notes, and telling the tables of them.

use super::{is_short, pack, unpack, CLAIMED, MOST_PIECES, NOTES, PIECE, SEEN};
use crate::engine::{Engine, Phase};
use crate::evict::worker::Worker;
use crate::sabotage::fault_point;
use crate::sync::{AtomicU64, Ordering::*};
use crate::tables::bounds::Bounds;
use memfold_sys::pagemap::{Categories, Query, Run};
use memfold_sys::thread::Backoff;
use memfold_sys::{signal, EXTENT_SIZE};

/// Extents told of before the fault thread gets a turn.
const AT_ONCE: usize = 64;

impl Engine {
    /// Notes memory that the program has just mapped. False if it must be told to the tables at once.
    pub(crate) fn note_young(&'static self, addr: usize, len: usize) -> bool {
        let range = Bounds::of(addr, len);
        // A report of something past libc that is being acted on may be of this range. What is not read yet has left its
        // traces in the tables.
        self.traffic.turns.wait_for_reader();
        // What is noted of the range went past libc. Were the tables told of it once they know this mapping, they would forget
        // what was evicted of it.
        if fault_point!(NoteLeft: true, else self.notes_young()) {
            self.tables.young.settle(range, |slot, note| {
                self.tables.young.end(slot, note);
            });
        }
        let pieces = (range.end - range.start).div_ceil(PIECE);
        if !self.notes_young() || !(1..=MOST_PIECES).contains(&pieces) || self.is_anonymous(addr, len) {
            return false;
        }
        self.keep_pages_small(range.start, range.end - range.start);
        for start in (range.start..range.end).step_by(PIECE) {
            self.note_piece(Bounds { start, end: range.end.min(start + PIECE) });
        }
        true
    }

    fn note_piece(&'static self, range: Bounds) {
        // Every piece fits.
        let Some(note) = pack(range) else { return };
        self.tables.young.bytes.fetch_add((range.end - range.start) as u64, Relaxed);
        let first = range.start / EXTENT_SIZE;
        let slot = |n: usize| &self.tables.young.notes[(first + n) % NOTES];
        let mut backoff = Backoff::new();
        loop {
            for slot in (0..NOTES).map(slot) {
                if slot.load(Relaxed) == 0 && slot.compare_exchange(0, note, AcqRel, Relaxed).is_ok() {
                    return;
                }
            }
            // No room: the tables are told of one that is there, not of a long one if there are others.
            let is_short = |slot: &&AtomicU64| is_short(unpack(slot.load(Relaxed)));
            let slot = (0..NOTES).map(slot).find(is_short).unwrap_or(slot(0));
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
        self.tables.young.settle(range, |slot, note| {
            let noted = unpack(note);
            if range.start <= noted.start && noted.end <= range.end {
                let exact = noted.start == range.start && noted.end == range.end;
                whole |= self.tables.young.end(slot, note) && exact;
            } else {
                self.tell_note(slot, note);
            }
        });
        self.traffic.turns.wait_for_reader();
        whole && !self.is_anonymous(range.start, range.end - range.start)
    }

    /// How many bytes of a range are noted and in no table.
    pub(crate) fn young_bytes_of(&self, start: usize, end: usize) -> usize {
        self.tables.young.bytes_of(Bounds { start, end })
    }

    /// Tells the tables what is noted of a range.
    pub(crate) fn tell_young(&'static self, range: Bounds) {
        self.tables.young.settle(range, |slot, note| self.tell_note(slot, note));
    }

    /// Forgets what is noted of a range that is memfold's own now.
    pub(crate) fn disown_young(&self, range: Bounds) {
        self.tables.young.disown(range);
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
            self.tables.young.forget(range);
        });
    }
}

impl Worker {
    /// Tells the tables of the notes that were there the last time already, or of all. Only tries: what is in other hands, or
    /// may be what a report is about that was not read yet, stays noted.
    pub(crate) fn adopt_young(&mut self, all: bool) {
        let engine = self.engine;
        for slot in &engine.tables.young.notes {
            let note = slot.load(Acquire);
            if note == 0 || note & CLAIMED != 0 {
                continue;
            }
            if !all && note & SEEN == 0 {
                // Whoever was quicker has ended or claimed it.
                let _ = slot.compare_exchange(note, note | SEEN, AcqRel, Relaxed);
                continue;
            }
            if !self.is_worth_tables(note) {
                continue;
            }
            // Relaxed: a statistic that orders nothing.
            engine.control().ranges_added.fetch_add(1, Relaxed);
            let mut note = note;
            while let Some(rest) = self.adopt(slot, note).filter(|&rest| self.is_worth_tables(rest)) {
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
        let at = match engine.traffic.turns.try_move() {
            Some(_turn) if !self.kernel.uffd.is_changing() => engine.adopt_some(start, end),
            _ => start,
        };
        engine.tables.young.forget(Bounds { start, end: at });
        let rest = pack(Bounds { start: at, end }).map_or(0, |rest| rest | SEEN);
        slot.store(rest, Release);
        (rest != 0 && at > start).then_some(rest)
    }

    /// Whether something of what is noted is in memory, or it is too little for that to matter. Where the kernel does not say, something may be.
    fn is_worth_tables(&self, note: u64) -> bool {
        let range = unpack(note);
        if fault_point!(TablesOfNothing: is_short(range), else true) {
            return true;
        }
        let query = Query {
            all: Categories::PRESENT,
            none: Categories::empty(),
            report: Categories::PRESENT,
            protect: false,
        };
        // The kernel looks to the end of what it finds, so it is asked about little at first.
        let (mut at, mut len) = (range.start, EXTENT_SIZE);
        while at < range.end {
            let stop = range.end.min(at + len);
            if !matches!(self.kernel.pagemap.scan(at, stop, &query, &mut [Run::EMPTY]), Ok((0, _))) {
                return true;
            }
            (at, len) = (stop, 4 * len);
        }
        false
    }
}

impl Engine {
    /// Manages the extents from `at` on, a few of them, until one is in other hands. Returns where it stopped.
    fn adopt_some(&self, mut at: usize, end: usize) -> usize {
        for _ in 0..AT_ONCE {
            // Without tables the memory is simply not managed.
            let Ok(extent) = self.space().find_or_make(at, &self.tables.pool) else { return end };
            let Some(mut extent) = extent.try_lock() else { return at };
            let pages = extent.clip(at, end);
            self.begin_managing(&mut extent, pages, true);
            at = extent.base() + EXTENT_SIZE;
            if at >= end {
                return end;
            }
        }
        at
    }
}
