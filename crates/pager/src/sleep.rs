//! Sleep: an idle program's memory goes to the lowest tier that there is, whatever its age, and stays there.
//!
//! The program is put to sleep by `memfold ctl PID sleep`, or when nothing but housekeeping has run for `sleep_after`. It wakes by
//! `memfold ctl PID wake`, or when it wants many pages in a short time; what it wanted the last time it woke is then brought ahead
//! ([`crate::tier::order`]). Housekeeping's few pages come and go meanwhile.
//!
//! What it is not: a stop. The program runs all the while, and a page that it touches comes back as always.
//!
//! Background thread only.

use crate::engine::Phase;
use crate::worker::Worker;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread;
use memfold_sys::time::{self, Nanos};

/// The cold age of a program that sleeps, at most, and for how long what was stored anew stays in memory.
pub(crate) const AGE_ASLEEP: Nanos = Nanos::from_secs(2);
/// How often it is looked whether a program sleeps on.
const LOOK: Nanos = Nanos::from_secs(1);
/// Pages a second that a program which sleeps waits for at most: more, and it is awake.
const TOUCHES: u64 = 256;
/// The share of a CPU that is housekeeping, in millionths. An idle redis takes 2000 or 3000, java 5000.
const HOUSEKEEPING: u64 = 10_000;
/// Looks within `sleep_after`.
const LOOKS: u64 = 16;
/// How long the tier's thread is waited for before it is looked whether somebody needs this one.
const PATIENCE: Nanos = Nanos::from_millis(20);

/// Whether the program sleeps, and what it did at the last look.
#[derive(Clone, Copy, Default)]
pub struct Rest {
    asleep: bool,
    looked: Nanos,
    /// The program's CPU time.
    ran: Nanos,
    /// Pages that it waited for.
    touches: u64,
    /// Since when there was nothing but housekeeping.
    idle_since: Nanos,
}

impl Rest {
    /// Whether it sleeps.
    pub fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Notes what the program has done until `now`. Whether it is to sleep, or to wake; `None` where it goes on as it does.
    fn look(&mut self, now: Nanos, ran: Nanos, touches: u64, sleep_after: u64) -> Option<bool> {
        let every = if self.asleep { LOOK } else { Nanos(sleep_after / LOOKS).clamp(PATIENCE, LOOK + LOOK) };
        let passed = now.since(self.looked);
        if passed.0 < every.0 {
            return None;
        }
        let first = self.looked.0 == 0;
        let busy = first || ran.since(self.ran).0 > passed.0 / 1_000_000 * HOUSEKEEPING;
        let wants = touches.saturating_sub(self.touches) > TOUCHES.saturating_mul(passed.0) / 1_000_000_000;
        (self.looked, self.ran, self.touches) = (now, ran, touches);
        if self.asleep {
            return (wants && !first).then_some(false);
        }
        if busy || sleep_after == u64::MAX {
            self.idle_since = now;
        }
        (now.since(self.idle_since).0 >= sleep_after).then_some(true)
    }
}

impl Worker {
    /// Looks whether the program may sleep, or wakes.
    pub(crate) fn look_at_rest(&mut self) {
        let sleep_after = self.engine.setting(crate::config::Setting::SleepAfter);
        if !self.rest.asleep && sleep_after == u64::MAX {
            self.rest.looked = Nanos(0);
            return;
        }
        let agents = thread::agents().iter().filter(|&&tid| tid != 0).map(|&tid| time::cpu_of(tid).0).sum();
        let ran = Nanos(time::process_cpu().0.saturating_sub(agents));
        match self.rest.look(self.now, ran, self.touches(), sleep_after) {
            Some(true) if self.engine.control().paused.load(Relaxed) == 0 => self.go_to_sleep(),
            Some(false) => self.wake_up(),
            _ => {}
        }
    }

    /// Times that the program waited for a page.
    fn touches(&self) -> u64 {
        let control = self.engine.control();
        control.restore_ns.count.load(Relaxed) + control.tier_read_ns.count.load(Relaxed)
    }

    /// Folds everything, and sends it as far down as it goes.
    pub(crate) fn go_to_sleep(&mut self) {
        self.rest.asleep = true;
        self.engine.control().asleep.store(1, Relaxed);
        if let Some(below) = self.engine.below() {
            below.sleep();
        }
        self.evict_all();
        self.drop_copies();
        self.sink_all();
        self.tidy_store();
        self.now = time::now();
        // What was done here were no touches of the program's.
        (self.rest.looked, self.rest.touches) = (self.now, self.touches());
    }

    /// The program is awake, and what it wanted when it last woke comes back.
    pub(crate) fn wake_up(&mut self) {
        if !core::mem::take(&mut self.rest.asleep) {
            return;
        }
        self.engine.control().asleep.store(0, Relaxed);
        (self.rest.idle_since, self.rest.looked) = (self.now, self.now);
        if let Some(below) = self.engine.below() {
            below.wake();
        }
    }

    /// Has everything that lies in memory go below it, and waits until it has.
    fn sink_all(&mut self) {
        let Some(below) = self.engine.below() else { return };
        self.demotion.at = 0;
        while self.engine.phase() == Phase::Running {
            let bell = self.engine.bell.load(Acquire);
            self.stay_responsive();
            self.settle_tier();
            let all = self.demote_now(below);
            if below.is_idle() {
                if all {
                    return;
                }
                continue;
            }
            self.engine.brake.park();
            thread::sleep_on(&self.engine.bell, bell, PATIENCE);
            self.engine.brake.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000_000;

    /// What the looks of so many seconds say, of a program that runs so many millionths of the time and touches so many pages a second.
    fn looks(rest: &mut Rest, from: u64, seconds: u64, ppm: u64, touches: u64) -> Option<(u64, bool)> {
        (from..from + seconds).find_map(|second| {
            let (now, ran) = (Nanos(second * 1_000_000_000), Nanos(rest.ran.0 + ppm * 1000));
            let said = rest.look(now, ran, rest.touches + touches, MINUTE)?;
            Some((second, said))
        })
    }

    #[test]
    fn a_program_sleeps_when_nothing_but_housekeeping_has_run_for_long_and_wakes_when_it_wants_much() {
        let mut rest = Rest::default();
        assert_eq!(looks(&mut rest, 1, 300, 50_000, 0), None, "it runs");
        let (slept, said) = looks(&mut rest, 301, 300, 1_000, 3).unwrap();
        assert!(said && (359..=366).contains(&slept), "{slept}");
        rest.asleep = true;
        assert_eq!(looks(&mut rest, slept + 1, 300, 50_000, 3), None, "a poller sleeps on");
        let (_, said) = looks(&mut rest, slept + 301, 10, 0, 1_000).unwrap();
        assert!(!said);
    }

    #[test]
    fn a_program_that_is_to_stay_awake_does() {
        let mut rest = Rest::default();
        let said = (1..10_000).find_map(|n| rest.look(Nanos(n * 1_000_000_000), Nanos(0), 0, u64::MAX));
        assert_eq!(said, None);
    }
}
