//! When the process may end, once its launcher is gone: how often other processes of the launcher's are looked for, and what comes of it.
//!
//! What it is not: the look itself, at all processes of the machine, nor what keeps it busy meanwhile. It is told of both.

use std::time::{Duration, Instant};

/// How often it is looked what nobody wants any more.
pub const LOOK: Duration = Duration::from_millis(500);
/// How often that is where it may be over in a moment: somebody waits then.
const HASTE: Duration = Duration::from_millis(100);
/// How often others are looked for where it may not.
const SELDOM: Duration = Duration::from_secs(5);
/// So often none must be found: one that executes another program is for a moment nobody's (execve(2)).
const LOOKS: u32 = 2;
/// How long it is tried to delete what is left when the launcher is gone.
pub const PARTING: Duration = Duration::from_secs(10);

/// What has been found since the launcher went.
pub struct Ending {
    gone: Instant,
    looked: Option<Instant>,
    /// Whether others were found when they were looked for last.
    found: bool,
    /// How often in a row they were not, with nothing left to do.
    alone: u32,
    hasty: bool,
}

/// What is to be done.
#[derive(PartialEq, Eq, Debug)]
pub enum Next {
    /// More may come of the others, and the launcher waits for what is deleted soon.
    Stay,
    /// The same, and the launcher need not wait: neither for others nor for nothing.
    Release,
    End,
}

impl Ending {
    /// The launcher is gone.
    pub fn begin(now: Instant) -> Ending {
        Ending { gone: now, looked: None, found: true, alone: 0, hasty: false }
    }

    /// After how long it is to be looked again.
    pub fn pause(&self) -> Duration {
        if self.hasty {
            HASTE
        } else {
            LOOK
        }
    }

    /// Looks for others, if it is time for that. `is_idle` says then whether nobody is served and nothing is left to be deleted.
    pub fn look(
        &mut self,
        now: Instant,
        others: impl FnOnce() -> bool,
        is_idle: impl FnOnce() -> bool,
    ) -> Next {
        let looks = self.hasty || self.looked.is_none_or(|looked| now.duration_since(looked) >= SELDOM);
        if looks {
            (self.found, self.looked) = (others(), Some(now));
        }
        let idle = is_idle();
        self.alone = if idle && !self.found { self.alone + u32::from(looks) } else { 0 };
        // What has not ended by then may go on for as long as the program does: a process that we may not look at, or a child that has its files still.
        self.hasty = !self.found && (idle || now.duration_since(self.gone) < PARTING);
        match (idle, self.found) {
            (true, false) if self.alone >= LOOKS => Next::End,
            (false, false) => Next::Stay,
            _ => Next::Release,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_looked_for_in_haste_only_while_it_may_soon_be_over() {
        let (began, mut looks) = (Instant::now(), 0);
        let (mut ending, mut now) = (Ending::begin(began), began);
        let hour = Duration::from_secs(3600);
        while now - began < hour {
            let others = || {
                looks += 1;
                false
            };
            assert_eq!(ending.look(now, others, || false), Next::Stay, "it serves somebody");
            now += ending.pause();
        }
        let [seldom, hasty] =
            [(hour, SELDOM), (PARTING, HASTE)].map(|(all, each)| all.div_duration_f64(each));
        assert!(f64::from(looks) <= seldom + hasty + 1.0, "{looks}");
    }

    #[test]
    fn it_ends_when_none_was_found_in_two_looks_with_nothing_left() {
        let mut now = Instant::now();
        let mut ending = Ending::begin(now);
        let mut look = |others: bool, idle: bool| {
            now += SELDOM;
            ending.look(now, || others, || idle)
        };
        assert_eq!(look(true, true), Next::Release);
        assert_eq!(look(true, false), Next::Release);
        assert_eq!(look(false, false), Next::Stay);
        assert_eq!(look(false, true), Next::Release);
        assert_eq!(look(true, true), Next::Release, "it had executed another program");
        assert_eq!(look(false, true), Next::Release);
        assert_eq!(look(false, false), Next::Stay, "it came, and goes");
        assert_eq!(look(false, true), Next::Release);
        assert_eq!(look(false, true), Next::End);
    }
}
