//! Attaching by rules to what is there and to what comes, for as long as `memfold daemon` runs.
//!
//! What it costs: every two seconds `/proc/PID/stat` of each process is read. More is looked at only where a program is new, or was last looked at long ago.
//!
//! Invariants: a process is attached to once, and not again after somebody detached it; a program that is refused is said once for each reason.

use super::candidate::{self, Candidate};
use super::folding::Attaching;
use super::outcome::{Kind, Outcome};
use super::rules::Rules;
use crate::process;
use memfold_attach::Image;
use std::collections::HashMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How soon it sees that the daemon has ended.
const POLL: Duration = Duration::from_millis(50);
/// How often it looks for programs.
const LOOK: Duration = Duration::from_secs(2);
/// A program has settled when it is so old: it has executed what it is to be, and has the rights that it keeps.
const SETTLED: Duration = Duration::from_secs(1);
/// When what was not attached to is looked at again: it may have grown, or no longer be in the way.
const AGAIN: Duration = Duration::from_secs(20);

/// What is attached to, and with what.
pub struct Watch {
    /// The rules.
    pub rules: Rules,
    /// The agent.
    pub image: Image,
    /// What it is told where a rule says nothing.
    pub usual: Vec<(String, String)>,
}

/// A program that was looked at.
struct Seen {
    /// When the process began, since the machine booted, and its name: another of either is another program.
    what: (Duration, String),
    looked: Instant,
    /// Nothing more is to be done.
    is_settled: bool,
    /// Why it was refused.
    said: Option<String>,
}

impl Watch {
    /// Looks and attaches until it is over.
    pub fn run(&self, say: fn(&str), is_over: &dyn Fn() -> bool) {
        let mut seen = HashMap::new();
        let mut next = Instant::now();
        while !is_over() {
            if Instant::now() >= next {
                self.step(&mut seen, say, is_over);
                next = Instant::now() + LOOK;
            }
            sleep(POLL);
        }
    }

    fn step(&self, seen: &mut HashMap<u32, Seen>, say: fn(&str), is_over: &dyn Fn() -> bool) {
        let pids = candidate::pids();
        seen.retain(|pid, _| pids.contains(pid));
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
            .map(Duration::from)
            .unwrap_or_default();
        for pid in pids {
            if is_over() {
                return;
            }
            let Some(stat) = process::stat(pid).filter(|stat| !stat.of_kernel && stat.runs()) else {
                continue;
            };
            if now.saturating_sub(stat.started) < SETTLED {
                continue;
            }
            let what = (stat.started, process::name(pid));
            let before = seen.get(&pid).filter(|seen| seen.what == what);
            if before.is_some_and(|seen| seen.is_settled || seen.looked.elapsed() < AGAIN) {
                continue;
            }
            let said = before.and_then(|seen| seen.said.clone());
            let (is_settled, said) = self.look(pid, said, say);
            seen.insert(pid, Seen { what, looked: Instant::now(), is_settled, said });
        }
    }

    /// Looks at a program, and attaches to it if it is to be. Whether nothing more is to be done with it, and what was said last of why not.
    fn look(&self, pid: u32, said: Option<String>, say: fn(&str)) -> (bool, Option<String>) {
        let Some(candidate) = Candidate::look(pid) else { return (false, said) };
        let Some(rule) = self.rules.decide(&candidate).filter(|rule| !rule.exclude) else {
            return (false, said);
        };
        let attaching = Attaching { image: Some(&self.image), choices: &rule.choices(&self.usual) };
        let outcome = Outcome::of(pid, &candidate.name, &attaching);
        let is_settled = matches!(outcome.result, Kind::Attached | Kind::Folded | Kind::Failed);
        let is_new = outcome.reason != said;
        if matches!(outcome.result, Kind::Attached | Kind::Failed)
            || outcome.result == Kind::Refused && is_new
        {
            say(&format!("{outcome} ({})", self.rules.place(rule)));
        }
        (is_settled, outcome.reason)
    }
}
