//! How long a thread waits for its page outside of the fault thread's sight: from its touch until the message is read, and from
//! the wake-up until it runs.
//!
//! The kernel says for every thread for how long it has run and how often it was put on a CPU (`/proc/PID/task/TID/schedstat`,
//! Documentation/scheduler/sched-stats.rst). A thread that faults twice, and was put on a CPU once between, has done nothing
//! from one wake-up to the next message but wait for its CPU, run, and wait for the message to be read. What is left of that
//! time without the running is what nobody else can tell: run queues, interrupts to idle processors, and messages that
//! lie while the fault thread is busy or not running itself. The same holds where it lost its CPU for a moment, as a rule to an
//! agent that was serving it. Where it was asleep for longer than a message takes, or was not seen before, the mean of what was
//! found lately stands for it.
//!
//! Who is woken where its page only ended its way out asks for it again at once, without having run: that is one wait, from the
//! first message on. A wait that another agent ended, or that was over before its message was read, is found in the same way, when its thread
//! faults the next time: whatever it did not run was waiting ([`Waits::left`], [`Waits::unseen`]).
//!
//! What entering the kernel by a fault and leaving it takes counts as running, and is measured once, when the engine starts
//! (`wakecost.rs`).
//!
//! What it is not: exact for one fault. Waking from one and the message of the next are found together, and count for the next.
//!
//! Fault thread only. One read of a file in each fault; a file is opened for a thread that is new, and only where no other needs
//! the place.

use crate::engine::Engine;
use crate::gauge::{Gauge, TOUCHERS};
use crate::kernel::Kernel;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::Nanos;

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
    /// The page of its last fault.
    page: usize,
    /// Since when it has only run and waited; 0 where that is not known.
    since: Nanos,
    /// Another agent is to wake it, and what it had waited by then is not charged yet, ns.
    left: bool,
    owed: u64,
    /// For how long it had run by its last fault, and waited for a CPU, ns, and how often it was put on one.
    ran: u64,
    queued: u64,
    turns: u64,
}

/// What a message tells of its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Found {
    /// What it waits beside the time from the reading of this message to its wake-up, ns.
    pub outside: u64,
    /// Earlier waits that were not charged, and what they took together, ns.
    pub late: u64,
    pub late_ns: u64,
}

impl From<Found> for Judged {
    fn from(found: Found) -> Judged {
        Judged { found, exact: None }
    }
}

/// What was found, and if it stands for itself alone, what was measured, ns.
struct Judged {
    found: Found,
    exact: Option<u64>,
}

/// Waits that may have ended without their messages being read, and the most that they can have taken together, ns.
#[derive(Clone, Copy, Default)]
struct Unseen {
    waits: u64,
    most: u64,
}

/// What was measured when the engine started, ns: `wake_cost` and `entry_cost`.
#[derive(Clone, Copy)]
struct Costs {
    wake: u64,
    entry: u64,
}

/// What was found out so far.
pub(crate) struct Waits {
    touchers: [Toucher; TOUCHERS],
    /// Those that the fault thread ended since it read the last message.
    unseen: Unseen,
    /// How many of those that other agents ended unseen were looked at.
    ahead: u64,
    /// What was found of waits lately, ns, of that what was not waiting for a CPU, what the threads ran before each, and of how many.
    sum: u64,
    asleep: u64,
    ran: u64,
    count: u64,
}

impl Waits {
    /// Nothing found.
    pub(crate) const fn new() -> Waits {
        let nobody =
            Toucher { tid: 0, page: 0, since: Nanos(0), left: false, owed: 0, ran: 0, queued: 0, turns: 0 };
        Waits {
            touchers: [nobody; TOUCHERS],
            unseen: Unseen { waits: 0, most: 0 },
            ahead: 0,
            sum: 0,
            asleep: 0,
            ran: 0,
            count: 0,
        }
    }

    /// The message of a fault of thread `tid` at `page`, for which it is asleep, was read at `read`.
    pub(crate) fn found(&mut self, engine: &Engine, tid: u32, page: usize, read: Nanos) -> Found {
        let unseen = self.take_unseen(engine);
        let costs = Costs {
            wake: engine.latency.wake_cost.load(Relaxed),
            entry: engine.latency.entry_cost.load(Relaxed),
        };
        let Some(place) = self.place(engine, tid, read) else { return self.unknown(costs) };
        let Some([ran, queued, turns]) = engine.link.gauges.read(Gauge::Toucher(place)) else {
            self.touchers[place].tid = 0;
            return self.unknown(costs);
        };
        let now = Toucher { tid, page, ran, queued, turns, ..Toucher::default() };
        let before = core::mem::replace(&mut self.touchers[place], now);
        let judged = self.judge(before, now, read, unseen, costs);
        if let Some(waited) = judged.exact {
            engine.latency.last_outside.store(waited, Relaxed);
        }
        judged.found
    }

    /// What the numbers of a thread at two faults tell, the second of which was read at `read`, when so many waits may have
    /// ended unseen between.
    fn judge(&mut self, before: Toucher, now: Toucher, read: Nanos, unseen: Unseen, costs: Costs) -> Judged {
        let (usual, entry) = (self.mean(costs), self.entry(costs));
        let ran = now.ran.saturating_sub(before.ran);
        let waited = read.since(before.since).0.saturating_sub(ran);
        let asleep = waited.saturating_sub(now.queued.saturating_sub(before.queued));
        let more_turns = now.turns.saturating_sub(before.turns + 1);
        let unseen_waits = more_turns.min(unseen.waits);
        let late = unseen_waits + u64::from(before.left);
        let known = before.since != Nanos(0);
        let only_waited = known && more_turns == unseen_waits;
        // It lost its CPU for a moment, but had nothing to sleep for except its messages.
        let lost_cpu =
            known && !before.left && waited <= RARE && self.is_usual(asleep.saturating_sub(unseen.most));
        let found = |outside, late_ns| Found { outside, late, late_ns };
        // It was woken where the page was not there yet, and the kernel asks again: one touch, and one wait.
        if before.left && before.page == now.page && more_turns == 0 && ran <= costs.entry {
            return Found { outside: before.owed + waited + ran, late: 0, late_ns: 0 }.into();
        }
        if !only_waited && !lost_cpu {
            return found(usual, before.owed + late * usual).into();
        }
        if late != 0 {
            let outside = usual.min(waited);
            // Who slept for a reason of its own did not wait for longer than it can have.
            let most = if before.left { u64::MAX } else { unseen.most + late * usual };
            return found(outside, before.owed + (waited - outside).min(most) + late * entry).into();
        }
        if !only_waited {
            return found(waited + entry, 0).into();
        }
        if self.count >= FINDINGS {
            (self.sum, self.asleep, self.ran, self.count) =
                (self.sum / 2, self.asleep / 2, self.ran / 2, self.count / 2);
        }
        if waited <= RARE {
            self.sum += waited;
            self.asleep += asleep;
            self.ran += ran;
            self.count += 1;
        }
        Judged { found: found(waited + entry, 0), exact: Some(waited) }
    }

    /// The thread was woken at `now`.
    pub(crate) fn woken(&mut self, tid: u32, now: Nanos) {
        if let Some(toucher) = self.toucher(tid) {
            (toucher.since, toucher.left) = (now, false);
        }
    }

    /// The thread, whose message was read at `read`, is left for another agent to wake; `outside` is what it has waited before.
    pub(crate) fn left(&mut self, tid: u32, read: Nanos, outside: u64) {
        if let Some(toucher) = self.toucher(tid) {
            (toucher.since, toucher.left, toucher.owed) = (read, true, outside);
        }
    }

    /// The fault thread is about to wake a thread whose message it has not read, and which has waited for no longer than `most`. Which
    /// it was is told by how often it has slept when it faults the next time.
    pub(crate) fn unseen(&mut self, most: Nanos) {
        self.unseen.waits += 1;
        self.unseen.most += most.0;
    }

    fn take_unseen(&mut self, engine: &Engine) -> Unseen {
        let own = core::mem::take(&mut self.unseen);
        let ahead = engine.latency.ahead();
        let others = ahead.waits - core::mem::replace(&mut self.ahead, ahead.waits);
        Unseen { waits: own.waits + others, most: own.most + others * ahead.longest }
    }

    fn toucher(&mut self, tid: u32) -> Option<&mut Toucher> {
        self.touchers.iter_mut().find(|toucher| toucher.tid == tid)
    }

    /// Nothing is known of the thread.
    fn unknown(&self, costs: Costs) -> Found {
        Found { outside: self.mean(costs), ..Found::default() }
    }

    /// What stands for a wait that was not measured, ns.
    fn mean(&self, costs: Costs) -> u64 {
        self.sum.checked_div(self.count).map_or(costs.wake, |mean| mean + self.entry(costs))
    }

    /// What entering the kernel by a fault and leaving it takes, ns: what was measured, but no more than what the threads ran from one
    /// fault to the next, of which it was a part.
    fn entry(&self, costs: Costs) -> u64 {
        self.ran.checked_div(self.count).map_or(costs.entry, |ran| costs.entry.min(ran))
    }

    /// Whether a thread that was asleep for so long, ns, had nothing to sleep for but its message.
    fn is_usual(&self, asleep: u64) -> bool {
        self.asleep.checked_div(self.count).is_some_and(|usual| asleep <= 2 * usual)
    }

    /// The place of a thread, with its file open.
    fn place(&mut self, engine: &Engine, tid: u32, now: Nanos) -> Option<usize> {
        if let Some(place) = self.touchers.iter().position(|toucher| toucher.tid == tid) {
            return Some(place);
        }
        let free = |toucher: &Toucher| toucher.tid == 0 || now.since(toucher.since) > FORGOTTEN;
        let place = self.touchers.iter().position(free)?;
        self.touchers[place] = Toucher { tid, ..Toucher::default() };
        engine.link.gauges.open_toucher(place, tid);
        Some(place)
    }
}

impl Engine {
    /// Wakes whoever waits for pages that an agent other than the fault thread had in hand since `began`, and notes whether there may be
    /// somebody whose message was not read.
    pub(crate) fn wake_ahead(&self, kernel: &Kernel, start: usize, len: usize, began: Nanos) {
        // Before the wake-up, after which the thread may run in our place and touch the next page.
        if kernel.uffd.has_message() {
            self.latency.note_ahead(began);
        }
        kernel.uffd.wake(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { wake: 9_000, entry: 3_000 };

    /// A thread that was woken at 1 ms, having run for 50 us in 10 turns.
    fn woken() -> Toucher {
        Toucher { tid: 1, since: Nanos(1_000_000), ran: 50_000, queued: 0, turns: 10, ..Toucher::default() }
    }

    /// The same after it has run for 10 us more, and was put on a CPU so often.
    fn again(turns: u64) -> Toucher {
        Toucher { since: Nanos(0), left: false, ran: 60_000, turns: 10 + turns, ..woken() }
    }

    fn judge(waits: &mut Waits, before: Toucher, now: Toucher, after: u64, unseen: Unseen) -> Found {
        waits.judge(before, now, Nanos(1_000_000 + after), unseen, COSTS).found
    }

    fn experienced() -> Waits {
        let mut waits = Waits::new();
        for _ in 0..8 {
            judge(&mut waits, woken(), again(1), 15_000, Unseen::default());
        }
        waits
    }

    #[test]
    fn what_a_thread_did_not_run_between_two_faults_it_waited() {
        let found = judge(&mut Waits::new(), woken(), again(1), 17_000, Unseen::default());
        assert_eq!(found, Found { outside: 7_000 + 3_000, late: 0, late_ns: 0 });
        // A hundred times as long on a busy machine.
        let found = judge(&mut Waits::new(), woken(), again(1), 710_000, Unseen::default());
        assert_eq!(found, Found { outside: 700_000 + 3_000, late: 0, late_ns: 0 });
    }

    #[test]
    fn who_slept_for_reasons_of_its_own_is_charged_what_is_usual() {
        let usual = Found { outside: 5_000 + 3_000, late: 0, late_ns: 0 };
        assert_eq!(judge(&mut experienced(), woken(), again(2), 800_000, Unseen::default()), usual);
        assert_eq!(judge(&mut experienced(), woken(), again(2), 100_000, Unseen::default()), usual);
        // Nothing known of it, and nothing at all.
        assert_eq!(
            judge(&mut experienced(), Toucher::default(), again(1), 800_000, Unseen::default()),
            usual
        );
        assert_eq!(
            judge(&mut Waits::new(), Toucher::default(), again(1), 800_000, Unseen::default()).outside,
            COSTS.wake
        );
    }

    #[test]
    fn who_lost_its_cpu_to_the_agent_that_served_it_waited() {
        let now = Toucher { queued: 40_000, ..again(2) };
        let found = judge(&mut experienced(), woken(), now, 55_000, Unseen::default());
        assert_eq!(found, Found { outside: 45_000 + 3_000, late: 0, late_ns: 0 });
    }

    #[test]
    fn a_wait_that_another_agent_ended_is_charged_with_the_next() {
        let left = Toucher { left: true, owed: 4_000, ..woken() };
        let found = judge(&mut experienced(), left, again(1), 318_000, Unseen::default());
        assert_eq!(found, Found { outside: 8_000, late: 1, late_ns: 4_000 + 300_000 + 3_000 });
    }

    #[test]
    fn who_asks_again_for_the_page_that_was_on_its_way_waits_once() {
        let left = Toucher { page: 4096, left: true, owed: 4_000, ..woken() };
        let same = Toucher { page: 4096, ran: 51_000, ..again(1) };
        let found = judge(&mut experienced(), left, same, 318_000, Unseen::default());
        assert_eq!(found, Found { outside: 4_000 + 318_000, late: 0, late_ns: 0 });
        // It had it, worked, lost it and touched it once more.
        let found =
            judge(&mut experienced(), left, Toucher { ran: 60_000, ..same }, 318_000, Unseen::default());
        assert_eq!(found.late, 1);
    }

    #[test]
    fn a_wait_that_nobody_saw_is_charged_to_who_slept_once_more_and_no_more_than_it_can_have_taken() {
        let unseen = Unseen { waits: 1, most: 30_000 };
        let found = judge(&mut experienced(), woken(), again(2), 43_000, unseen);
        assert_eq!(found, Found { outside: 8_000, late: 1, late_ns: 25_000 + 3_000 });
        let found = judge(&mut experienced(), woken(), again(2), 9_000_000, unseen);
        assert_eq!(found, Found { outside: 8_000, late: 1, late_ns: 30_000 + 8_000 + 3_000 });
        // Another thread's, then.
        let found = judge(&mut experienced(), woken(), again(1), 15_000, unseen);
        assert_eq!(found, Found { outside: 8_000, late: 0, late_ns: 0 });
    }
}
