//! When each step of a restore was reached, touch by touch, for who measures where the time of a touch goes.
//!
//! Who asks has room made for so many touches ([`Command::Steps`](crate::control::Command::Steps)); the fault thread then stamps each that it
//! serves, by `CLOCK_MONOTONIC`, until that room is used up or who asked wants to see it. Then the rows go to a file that who asks has made beside
//! the control page, as those of [`crate::heat`] do, and the room is given back. A program that nobody measures pays a look at one word for a touch.
//!
//! Invariants: the fault thread writes to the room in its turn only; the background thread takes it away, and then waits for that turn to end.

use core::mem::size_of;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::*};
use memfold_sys::{mem, Result, PAGE_SIZE};

/// What the name of the file begins with.
pub const PREFIX: &str = "steps-";
/// Most touches that there is room for.
pub const MOST: u64 = 1 << 20;

/// One touch. In the file it is [`Stamps::LEN`] bytes, little end first, in the order of the fields. Times are ns; 0 for what was not reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Stamps {
    /// The address of the page.
    pub page: u64,
    /// The thread that touched it.
    pub tid: u64,
    /// The CPU on which the fault thread served it; all ones where it was left to another.
    pub cpu: u64,
    /// The fault thread had nothing to do any more, and went to sleep.
    pub idle: u64,
    /// It ran again.
    pub woke: u64,
    /// The message was read.
    pub read: u64,
    /// The extent was found, and what the thread had waited before.
    pub found: u64,
    /// The entry was taken.
    pub taken: u64,
    /// The page's bytes were in a buffer.
    pub unpacked: u64,
    /// The page was in place.
    pub placed: u64,
    /// The kernel had been told to wake the thread.
    pub woken: u64,
    /// Nothing was left to be done for it.
    pub done: u64,
}

/// Words of a row.
const WORDS: usize = size_of::<Stamps>() / 8;

impl Stamps {
    /// Bytes of a row in the file.
    pub const LEN: usize = 8 * WORDS;

    /// The rows in a file's bytes; what is left over at the end is none.
    pub fn all(bytes: &[u8]) -> impl Iterator<Item = Stamps> + '_ {
        bytes.chunks_exact(Stamps::LEN).map(|row| {
            let word =
                |n: usize| row[8 * n..8 * n + 8].iter().rev().fold(0, |w, byte| w << 8 | u64::from(*byte));
            Stamps {
                page: word(0),
                tid: word(1),
                cpu: word(2),
                idle: word(3),
                woke: word(4),
                read: word(5),
                found: word(6),
                taken: word(7),
                unpacked: word(8),
                placed: word(9),
                woken: word(10),
                done: word(11),
            }
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; Stamps::LEN] {
        let words = [
            self.page,
            self.tid,
            self.cpu,
            self.idle,
            self.woke,
            self.read,
            self.found,
            self.taken,
            self.unpacked,
            self.placed,
            self.woken,
            self.done,
        ];
        let mut bytes = [0; Stamps::LEN];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}

/// Room for stamps, while somebody has asked for them.
pub(crate) struct Room {
    rows: AtomicPtr<Stamps>,
    most: AtomicUsize,
    used: AtomicUsize,
}

impl Room {
    /// None.
    pub(crate) const fn new() -> Room {
        Room {
            rows: AtomicPtr::new(core::ptr::null_mut()),
            most: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
        }
    }

    /// Whether there is any left. Fault thread.
    pub(crate) fn is_wanted(&self) -> bool {
        // Acquire: pairs with the release in `make`, for the numbers.
        !self.rows.load(Acquire).is_null() && self.used.load(Relaxed) < self.most.load(Relaxed)
    }

    /// Adds a row, if there is room. Fault thread, in its turn.
    pub(crate) fn add(&self, row: Stamps) {
        let (rows, used) = (self.rows.load(Acquire), self.used.load(Relaxed));
        if rows.is_null() || used >= self.most.load(Relaxed) {
            return;
        }
        // SAFETY: within the mapping, which stays until our turn is over, and of which nobody else writes.
        unsafe { rows.add(used).write(row) };
        // Release: who takes the rows sees this one.
        self.used.store(used + 1, Release);
    }

    /// Makes room for so many rows. Background thread, with none there.
    pub(crate) fn make(&self, most: usize) -> Result<()> {
        let rows = mem::map_own(size(most), libc::MAP_POPULATE)?;
        self.most.store(most, Relaxed);
        self.used.store(0, Relaxed);
        self.rows.store(rows as *mut Stamps, Release);
        Ok(())
    }

    /// Takes the rows away: no more are added once the turn of the fault thread's that is under way is over. Background thread.
    pub(crate) fn take(&self) -> *mut Stamps {
        self.rows.swap(core::ptr::null_mut(), AcqRel)
    }

    /// The rows that were added.
    ///
    /// # Safety
    /// They were [taken](Room::take), that turn is over, and they are not [given back](Room::give_back) meanwhile.
    pub(crate) unsafe fn written(&self, rows: *const Stamps) -> &[Stamps] {
        // SAFETY: the mapping has so many rows that were written.
        unsafe { core::slice::from_raw_parts(rows, self.used.load(Acquire)) }
    }

    /// Forgets it in a forked child, which has a copy of it that nobody will ask for. Its only thread.
    pub(crate) fn forget_in_child(&self) {
        self.give_back(self.take());
    }

    /// Unmaps rows that were taken, if there are any.
    pub(crate) fn give_back(&self, rows: *mut Stamps) {
        if !rows.is_null() {
            // SAFETY: our own mapping, of which nobody has the address any more.
            let _ = unsafe { mem::munmap(rows as usize, size(self.most.load(Relaxed))) };
        }
    }
}

/// Bytes of a mapping for so many rows.
fn size(rows: usize) -> usize {
    (rows * size_of::<Stamps>()).next_multiple_of(PAGE_SIZE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn row(page: u64) -> Stamps {
        Stamps {
            page,
            tid: 1,
            cpu: 2,
            idle: 3,
            woke: 4,
            read: 5,
            found: 6,
            taken: 7,
            unpacked: 8,
            placed: 9,
            woken: u64::MAX,
            done: 11 << 40,
        }
    }

    #[test]
    fn rows_read_back_as_they_were_written_and_half_a_row_is_none() {
        let rows = [row(1 << 46), row(4096)];
        let mut bytes: Vec<u8> = rows.iter().flat_map(Stamps::bytes).collect();
        bytes.extend([1; Stamps::LEN - 1]);
        assert_eq!(Stamps::all(&bytes).collect::<Vec<_>>(), rows);
    }

    #[test]
    fn what_there_is_no_room_for_is_left_out() {
        let room = Room::new();
        assert!(!room.is_wanted());
        room.add(row(1));
        room.make(2).unwrap();
        for page in 1..4 {
            assert_eq!(room.is_wanted(), page < 3);
            room.add(row(page));
        }
        let rows = room.take();
        assert!(!room.is_wanted());
        // SAFETY: by this thread, which gives them back below.
        assert_eq!(unsafe { room.written(rows) }, [row(1), row(2)]);
        room.give_back(rows);
    }
}
