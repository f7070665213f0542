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
//! A long mapping stays young as long as nothing is there: who maps hundreds of gigabytes uses little of them at first, and maybe ever.
//!
//! A range that the tables know something of is never noted: the slow way clears that first ([`crate::changes::mappings`]).

mod telling;

use crate::sync::{AtomicU64, Ordering::*};
use crate::tables::bounds::Bounds;
use memfold_sys::thread::Backoff;
use memfold_sys::PAGE_SIZE;

/// How many mappings can be young at a time; more, and the oldest way to make room is taken: one of them is told of.
/// All are looked at for each change of a mapping, so few: four cache lines.
const NOTES: usize = 32;

/// Longer mappings are noted in pieces of so many bytes: 64 GiB.
const PIECE: usize = 64 << 30;

/// What has more pieces is not noted.
const MOST_PIECES: usize = 16;

/// Of a longer note the tables are told only while something of it is in memory: reserved address space is noted for as long as nobody uses it, for tables
/// of all of it could take more memory than is in it. 1 GiB.
const LONG: usize = 1 << 30;

/// In a note: somebody tells the tables of it.
const CLAIMED: u64 = 1 << 63;

/// In a note: the background thread has seen it before.
const SEEN: u64 = 1 << 62;

/// The low bits of a note are its length in pages, the next its first page.
const LEN_BITS: u32 = 27;

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

/// Whether the tables are told of the range whether there is anything or not.
fn is_short(range: Bounds) -> bool {
    range.end - range.start <= LONG
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

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: usize, pages: usize) -> Bounds {
        Bounds { start: first * PAGE_SIZE, end: (first + pages) * PAGE_SIZE }
    }

    #[test]
    fn a_note_holds_every_range_below_the_limit_that_is_not_too_long() {
        let last = crate::tables::space::LIMIT / PAGE_SIZE;
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
