//! How long a thread waits for its page outside of the fault thread's sight: from its touch until the message is read, and from
//! the wake-up until it runs.
//!
//! The kernel says for every thread for how long it has run and how often it was put on a CPU (`/proc/PID/task/TID/schedstat`,
//! Documentation/scheduler/sched-stats.rst). A thread that faults twice, and was put on a CPU once between, has done nothing
//! from one wake-up to the next message but wait for its CPU, run, and wait for the message to be read. What is left of that
//! time without the running is what nobody else can tell: run queues, interrupts to idle processors, and messages that
//! lie while the fault thread is busy or not running itself. Where a thread has slept or lost its CPU meanwhile, or was not
//! seen before, the mean of what was found lately stands for it.
//!
//! What it is not: exact for one fault. Waking from one and the message of the next are found together, and count for the next.
//!
//! Fault thread only. One read of a file in each fault; a file is opened for a thread that is new, and only where no other needs
//! the place.

use crate::engine::Engine;
use crate::gauge::{Gauge, TOUCHERS};
use core::sync::atomic::Ordering::*;
use sys::time::Nanos;

/// A place is given to another thread when its own has not faulted for so long.
const FORGOTTEN: Nanos = Nanos::from_millis(100);
/// A finding above this, ns, was somebody else's time slice: it counts for itself, and does not stand for others.
const RARE: u64 = 500_000;
/// So many findings make up the mean; then all count half.
const FINDINGS: u64 = 64;

/// A thread that faulted.
#[derive(Clone, Copy, Default)]
struct Toucher {
    tid: u32,
    /// When it was last woken; 0 while that is to come.
    woken: Nanos,
    /// For how long it had run by its last fault, ns, and how often it was put on a CPU.
    ran: u64,
    turns: u64,
}

/// What was found out so far.
pub(crate) struct Waits {
    touchers: [Toucher; TOUCHERS],
    sum: u64,
    count: u64,
}

impl Waits {
    /// Nothing found.
    pub(crate) const fn new() -> Waits {
        let nobody = Toucher { tid: 0, woken: Nanos(0), ran: 0, turns: 0 };
        Waits { touchers: [nobody; TOUCHERS], sum: 0, count: 0 }
    }

    /// The message of a fault of thread `tid`, which is asleep, was read at `read`: for how long it waited beside what it will yet
    /// wait until it is woken, ns.
    pub(crate) fn outside(&mut self, engine: &Engine, tid: u32, read: Nanos) -> u64 {
        let Some(place) = self.place(engine, tid, read) else { return self.mean(engine) };
        let Some([ran, _, turns]) = engine.read_gauge(Gauge::Toucher(place)) else {
            self.touchers[place].tid = 0;
            return self.mean(engine);
        };
        let toucher = &mut self.touchers[place];
        let before = core::mem::replace(toucher, Toucher { tid, woken: Nanos(0), ran, turns });
        if before.woken == Nanos(0) || turns != before.turns + 1 {
            return self.mean(engine);
        }
        let waited = read.since(before.woken).0.saturating_sub(ran.saturating_sub(before.ran));
        if self.count >= FINDINGS {
            (self.sum, self.count) = (self.sum / 2, self.count / 2);
        }
        if waited <= RARE {
            (self.sum, self.count) = (self.sum + waited, self.count + 1);
        }
        waited + engine.wake_cost.load(Relaxed).min(ENTRY)
    }

    /// The thread was woken at `now`.
    pub(crate) fn woken(&mut self, tid: u32, now: Nanos) {
        if let Some(toucher) = self.touchers.iter_mut().find(|toucher| toucher.tid == tid) {
            toucher.woken = now;
        }
    }

    /// What stands for a wait that was not measured, ns.
    pub(crate) fn mean(&self, engine: &Engine) -> u64 {
        let cost = engine.wake_cost.load(Relaxed);
        self.sum.checked_div(self.count).map_or(cost, |mean| mean + cost.min(ENTRY))
    }

    /// The place of a thread, with its file open.
    fn place(&mut self, engine: &Engine, tid: u32, now: Nanos) -> Option<usize> {
        if let Some(place) = self.touchers.iter().position(|toucher| toucher.tid == tid) {
            return Some(place);
        }
        let free = |toucher: &Toucher| toucher.tid == 0 || now.since(toucher.woken) > FORGOTTEN;
        let place = self.touchers.iter().position(free)?;
        self.touchers[place] = Toucher { tid, ..Toucher::default() };
        engine.open_toucher(place, tid);
        Some(place)
    }
}

/// What entering the kernel by a fault and leaving it takes, which counts as running, ns; less where everything takes less.
const ENTRY: u64 = 1_000;
