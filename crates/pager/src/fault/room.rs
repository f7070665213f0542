//! Room below a limit on resident memory: how many pages may yet come, and who waits until more may.
//!
//! A thread that touches a page for which there is no room is turned away: the fault thread drops the message and goes on
//! to the next, and the thread sleeps until the background thread has made room ([`crate::evict::limit`]) and wakes everybody.
//! Then it touches its page again. So nobody but the toucher waits, nothing needs to be remembered of it, and it may be
//! killed, or interrupted by a signal, as in any fault.
//!
//! Who is never turned away: a touch of memory that is not managed; the background thread; anybody while a fork is under
//! way, or while the background thread is held for another reason, or the engine ends.
//!
//! Invariants: `taken` only grows, by whoever puts a page in place; `until` and `wake_from` are written by the background
//! thread; `turned_away`, `since` and `sleepers` by the fault thread. A thread that is turned away is counted before the
//! background thread is rung, and that thread looks at the count after it was.

mod waiting;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use memfold_sys::time::Nanos;

/// Threads that are told apart among those that wait at the same time; one that a signal has touch its page again is
/// counted twice beyond so many.
const SLEEPERS: usize = 64;

/// What both threads know of the limit.
pub(crate) struct Room {
    /// 1 while a limit is kept.
    kept: AtomicU32,
    /// Pages put in place since the engine was made, while a limit was kept.
    taken: AtomicU64,
    /// What `taken` may come to.
    until: AtomicU64,
    /// When `taken` comes to this, the background thread is woken: the room is nearly used up.
    low: AtomicU64,
    /// Threads turned away since the engine was made, and the times at which that was, added up.
    turned_away: AtomicU64,
    since: AtomicU64,
    /// Odd while these two are being written.
    version: AtomicU64,
    /// Incremented when everybody is woken.
    wakes: AtomicU32,
    /// Those turned away since the last of these wakes. The fault thread's own.
    sleepers: UnsafeCell<Sleepers>,
}

struct Sleepers {
    wakes: u32,
    count: usize,
    tids: [u32; SLEEPERS],
}

// SAFETY: `sleepers` is the fault thread's own.
unsafe impl Sync for Room {}

/// How many threads had been turned away at a moment, and the sum of the times at which.
#[derive(Clone, Copy)]
pub(crate) struct TurnedAway {
    pub threads: u64,
    pub since: u64,
}

impl Room {
    pub(crate) const fn new() -> Room {
        Room {
            kept: AtomicU32::new(0),
            taken: AtomicU64::new(0),
            until: AtomicU64::new(u64::MAX),
            low: AtomicU64::new(u64::MAX),
            turned_away: AtomicU64::new(0),
            since: AtomicU64::new(0),
            version: AtomicU64::new(0),
            wakes: AtomicU32::new(0),
            sleepers: UnsafeCell::new(Sleepers { wakes: 0, count: 0, tids: [0; SLEEPERS] }),
        }
    }

    /// Whether a limit is kept.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.load(Relaxed) != 0
    }

    /// Says whether one is. Background thread, or before there is any other.
    pub(crate) fn keep(&self, kept: bool) {
        if !kept {
            self.until.store(u64::MAX, SeqCst);
            self.low.store(u64::MAX, Relaxed);
        }
        self.kept.store(u32::from(kept), SeqCst);
    }

    /// So many pages came into the program's view.
    pub(crate) fn take(&self, pages: usize) {
        if self.is_kept() {
            self.taken.fetch_add(pages as u64, Relaxed);
        }
    }

    /// Pages put in place so far.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// From when on `taken` was what it was, so many more may come; `low` is when to be told.
    pub(crate) fn grant(&self, taken: u64, pages: u64, low: u64) {
        self.low.store(taken + pages.saturating_sub(low), Relaxed);
        // SeqCst: whoever is turned away after this looks again and sees it.
        self.until.store(taken + pages, SeqCst);
    }

    /// How many pages may yet come.
    pub(crate) fn left(&self) -> u64 {
        self.until.load(SeqCst).saturating_sub(self.taken())
    }

    fn is_low(&self) -> bool {
        self.taken() >= self.low.load(Relaxed)
    }

    /// Who was turned away so far. Background thread.
    pub(crate) fn turned_away(&self) -> TurnedAway {
        loop {
            let version = self.version.load(SeqCst);
            let away = TurnedAway { threads: self.turned_away.load(SeqCst), since: self.since.load(SeqCst) };
            if version.is_multiple_of(2) && self.version.load(SeqCst) == version {
                return away;
            }
            core::hint::spin_loop();
        }
    }

    /// Counts a thread that is turned away at `now`. Fault thread.
    fn turn_away(&self, tid: u32, now: Nanos) {
        // SAFETY: the fault thread's own.
        let sleepers = unsafe { &mut *self.sleepers.get() };
        let wakes = self.wakes.load(SeqCst);
        if sleepers.wakes != wakes {
            (sleepers.wakes, sleepers.count) = (wakes, 0);
        }
        if sleepers.tids[..sleepers.count].contains(&tid) {
            return;
        }
        if sleepers.count < SLEEPERS {
            sleepers.tids[sleepers.count] = tid;
            sleepers.count += 1;
        }
        // Who reads one of the two without the other looks again.
        self.version.fetch_add(1, SeqCst);
        self.since.fetch_add(now.0, SeqCst);
        self.turned_away.fetch_add(1, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    /// Forgets who waited, in a forked child, where they do not exist.
    pub(crate) fn reset_in_child(&self) {
        self.wakes.fetch_add(1, Relaxed);
        self.turned_away.store(0, Relaxed);
        self.since.store(0, Relaxed);
        self.version.store(0, Relaxed);
    }
}
