//! Sleep: an idle program's memory goes to the lowest tier that there is, whatever its age, and stays there.
//!
//! The program is put to sleep by `memfold ctl PID sleep`, or when nothing but housekeeping has run for `sleep_after`. It wakes by
//! `memfold ctl PID wake`, or when it wants many pages in a short time; what it wanted the last time it woke is then brought ahead
//! ([`crate::tier::order`]). Housekeeping's few pages come and go meanwhile.
//!
//! What it is not: a stop. The program runs all the while, and a page that it touches comes back as always.
//!
//! Here is when; [`going`] is how. Background thread only.

pub mod going;

use memfold_sys::time::Nanos;

/// The cold age of a program that sleeps, at most, and for how long what was stored anew stays in memory.
pub(crate) const AGE_ASLEEP: Nanos = Nanos::from_secs(2);
/// How often it is looked whether a program sleeps on.
const LOOK: Nanos = Nanos::from_secs(1);
/// Pages a second that a program which sleeps waits for at most: more, and it is awake.
pub(crate) const TOUCHES: u64 = 256;
/// The share of a CPU that is housekeeping, in millionths. An idle redis takes 2000 or 3000, java 5000.
const HOUSEKEEPING: u64 = 10_000;
/// Looks within `sleep_after`.
const LOOKS: u64 = 16;
/// The shortest time between two looks.
const SHORTEST: Nanos = Nanos::from_millis(20);

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

    /// It sleeps from now on. What it waited for so far was not its own doing.
    fn begin(&mut self, now: Nanos, touches: u64) {
        (self.asleep, self.looked, self.touches) = (true, now, touches);
    }

    /// It is awake from now on. Whether it slept.
    fn end(&mut self, now: Nanos) -> bool {
        (self.idle_since, self.looked) = (now, now);
        core::mem::take(&mut self.asleep)
    }

    /// What it does counts from the next look on.
    fn forget(&mut self) {
        self.looked = Nanos(0);
    }

    /// Notes what the program has done until `now`. Whether it is to sleep, or to wake; `None` where it goes on as it does.
    fn look(&mut self, now: Nanos, ran: Nanos, touches: u64, sleep_after: u64) -> Option<bool> {
        let every = if self.asleep { LOOK } else { Nanos(sleep_after / LOOKS).clamp(SHORTEST, LOOK + LOOK) };
        let passed = now.since(self.looked);
        let first = self.looked.0 == 0;
        if passed.0 < every.0 {
            // More than in a whole look, and it wants the rest soon.
            let wakes = self.asleep && !first && touches.saturating_sub(self.touches) > TOUCHES;
            if wakes {
                (self.looked, self.ran, self.touches) = (now, ran, touches);
            }
            return wakes.then_some(false);
        }
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
    fn a_program_that_wants_much_is_awake_at_once() {
        let mut rest = Rest { asleep: true, ..Rest::default() };
        let mut look = |millis: u64, touches| rest.look(Nanos(millis * 1_000_000), Nanos(0), touches, MINUTE);
        // What is there to begin with says nothing.
        assert_eq!(look(1000, 5000), None);
        assert_eq!(look(1050, 5000 + TOUCHES), None);
        assert_eq!(look(1060, 5001 + TOUCHES), Some(false));
    }

    #[test]
    fn a_program_that_is_to_stay_awake_does() {
        let mut rest = Rest::default();
        let said = (1..10_000).find_map(|n| rest.look(Nanos(n * 1_000_000_000), Nanos(0), 0, u64::MAX));
        assert_eq!(said, None);
    }
}
