//! The mutexes that the kernel marks when a thread ends (robust futexes, set_robust_list(2)).
//!
//! A thread that ends, is killed or executes another program goes through the list of those that it has, in the kernel, and cannot wait for the pager any
//! more: where one is away the kernel gives the rest of the list up, and whoever waits for these mutexes waits for ever; before it executes a program,
//! it would itself. So mutexes that a thread has are left alone while it has them, and ever after. One that was locked since the last look was
//! written to just now, and is in use.
//!
//! Background thread only, which must not touch what is away; what goes missing in that moment it must touch standing still.

use crate::evict::worker::Worker;
use crate::fault::reason::{Outcome, Reason};
use crate::sabotage::fault_point;
use crate::tables::bitmap::PageRange;
use crate::tables::entry::Entry;
use crate::tables::extent::Extent;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{life, mem, thread, PAGE_SIZE};

/// The kernel follows a list no further (`ROBUST_LIST_LIMIT`).
const MOST: usize = 2048;
/// The shortest and the longest pause between two looks.
const PAUSE: (Nanos, Nanos) = (Nanos::from_millis(5), Nanos::from_millis(2000));
/// A look may take that part of the time where memory goes before it is cold, for a limit or because somebody asked for it.
const SHARE: u64 = 20;
/// How often a page is tried to be brought back.
const TRIES: usize = 100;

impl Worker {
    /// Leaves alone the mutexes that threads have, if it is time to look.
    pub(crate) fn spare_locks_if_due(&mut self) {
        if self.engine.room.is_kept() || self.eviction.daemon.is_some() {
            self.spare_locks_in_time();
        } else if self.now >= self.upkeep.locks_looked_at + Nanos(self.cold_age() / 4).clamp(PAUSE.0, PAUSE.1)
        {
            // What was locked since the last look is not cold yet, however long that took.
            self.spare_locks();
        }
    }

    /// The same where memory goes whatever its age: before each piece of it.
    pub(crate) fn spare_locks_in_time(&mut self) {
        self.now = time::now();
        let soon = self.upkeep.locks_looked_at + PAUSE.0.max(Nanos(self.upkeep.locks_took.0 * SHARE));
        if self.now >= soon {
            self.spare_locks();
        }
    }

    /// Leaves alone the mutexes that threads have now.
    pub(crate) fn spare_locks(&mut self) {
        let began = time::now();
        let agents = thread::agents();
        let _ = life::for_each_thread(|tid| {
            if let Some(head) = (!agents.contains(&tid)).then(|| thread::robust_list(tid)).flatten() {
                fault_point!(LocksNotSpared: self.spare_list(head));
            }
            self.stand_still_if_wanted();
        });
        (self.upkeep.locks_looked_at, self.upkeep.locks_took) = (began, time::now().since(began));
    }

    /// The list has the address of its first entry, how far behind an entry its futex lies, and one that is just being locked or unlocked.
    fn spare_list(&mut self, head: usize) {
        let (Some(first), Some(offset), Some(pending)) =
            (self.word(head), self.word(head + 8), self.word(head + 16))
        else {
            return;
        };
        // The lowest bit says what kind of mutex it is.
        let mutex = |entry: usize| entry & !1;
        if mutex(pending) != 0 {
            self.spare(mutex(pending).wrapping_add(offset));
        }
        let mut entry = mutex(first);
        for _ in 0..MOST {
            if entry == head || entry == 0 {
                return;
            }
            self.spare(entry.wrapping_add(offset));
            let Some(next) = self.word(entry) else { return };
            entry = mutex(next);
        }
    }

    /// The word at this address, of which the page is left alone.
    fn word(&mut self, addr: usize) -> Option<usize> {
        let mut word = [0];
        if !self.spare(addr) {
            return None;
        }
        // The page may be dropped past libc in this moment, and then the fault thread serves this look; it may be waiting for us to stand still.
        self.park();
        let read = mem::peek(addr, &mut word);
        self.engine.traffic.brake.unpark();
        (read == Ok(8)).then_some(word[0])
    }

    /// Leaves the page alone that has this address. Whether it is there: to look at it then touches nothing that would have to be served.
    fn spare(&mut self, addr: usize) -> bool {
        let Some(extent) = self.engine.space().find(addr) else { return true };
        let page = PageRange::one((addr - extent.base()) / PAGE_SIZE);
        if extent.managed.contains(page.lo) {
            let Some(locked) = extent.try_lock() else { return false };
            self.engine.leave_alone(&locked, &page.set());
        }
        self.bring_page(extent, page) && (!extent.armed.contains(page.lo) || is_there(addr))
    }

    fn bring_page(&mut self, extent: &Extent, page: PageRange) -> bool {
        for _ in 0..TRIES {
            if extent.entry(page.lo) == Entry::RESIDENT {
                return true;
            }
            match self.restorer.restore(extent, page, Reason::Ahead) {
                Outcome::Pending => self.fetch(extent.page_addr(page.lo)),
                _ => self.stand_still_if_wanted(),
            }
        }
        false
    }
}

fn is_there(addr: usize) -> bool {
    let mut here = [0];
    mem::mincore(addr & !(PAGE_SIZE - 1), &mut here).is_ok() && here[0] & 1 == 1
}
