//! Attaching by rules to what is there and to what comes, for as long as `memfold daemon` runs.
//!
//! What it costs: every two seconds `/proc/PID/stat` of each process is read. More is looked at only where a program is new, or was last looked at long ago.
//!
//! Invariants: what holds up being attached to holds up no other: each is attached to by a thread of its own, and no more than a few begin at once. A process is
//! attached to once, and not again after somebody detached it; a program that is refused is said once for each reason.

use super::candidate::{self, Candidate};
use super::folding::Attaching;
use super::outcome::{Kind, Outcome};
use super::rules::Rules;
use crate::process;
use memfold_attach::Image;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::{self, sleep, JoinHandle};
use std::time::{Duration, Instant};

/// How soon it sees that the daemon has ended.
const POLL: Duration = Duration::from_millis(50);
/// How often it looks for programs.
const LOOK: Duration = Duration::from_secs(2);
/// A program has settled when it is so old: it has executed what it is to be, and has the rights that it keeps.
const SETTLED: Duration = Duration::from_secs(1);
/// When what was not attached to is looked at again: it may have grown, or no longer be in the way.
const AGAIN: Duration = Duration::from_secs(20);

/// So many are attached to at once, of those that do not take longer than they should.
const AT_ONCE: usize = 4;
const SLOW: Duration = Duration::from_secs(5);

/// What is attached to, and with what.
pub struct Watch {
    /// The rules.
    pub rules: Rules,
    /// The agent.
    pub image: Image,
    /// What it is told where a rule says nothing.
    pub usual: Vec<(String, String)>,
}

/// A program that is being attached to.
struct UnderWay {
    pid: u32,
    began: Instant,
    /// Whether nothing more is to be done with it, and what was said last of why not.
    thread: JoinHandle<(bool, Option<String>)>,
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
    /// Looks and attaches until it is over. What is being attached to then is left to end by itself.
    pub fn run(self: &Arc<Watch>, say: fn(&str), is_over: &dyn Fn() -> bool) {
        let (mut seen, mut under_way) = (HashMap::new(), Vec::new());
        let mut next = Instant::now();
        while !is_over() {
            settle(&mut seen, &mut under_way);
            if Instant::now() >= next {
                self.step(&mut seen, &mut under_way, say, is_over);
                next = Instant::now() + LOOK;
            }
            sleep(POLL);
        }
    }

    fn step(
        self: &Arc<Watch>,
        seen: &mut HashMap<u32, Seen>,
        under_way: &mut Vec<UnderWay>,
        say: fn(&str),
        is_over: &dyn Fn() -> bool,
    ) {
        let pids = candidate::pids();
        seen.retain(|pid, _| pids.contains(pid));
        let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
            .map(Duration::from)
            .unwrap_or_default();
        for pid in pids {
            let Some(stat) = process::stat(pid).filter(|stat| !stat.of_kernel && stat.runs()) else {
                continue;
            };
            if now.saturating_sub(stat.started) < SETTLED || under_way.iter().any(|one| one.pid == pid) {
                continue;
            }
            let what = (stat.started, process::name(pid));
            let before = seen.get(&pid).filter(|seen| seen.what == what);
            if before.is_some_and(|seen| seen.is_settled || seen.looked.elapsed() < AGAIN) {
                continue;
            }
            let said = before.and_then(|seen| seen.said.clone());
            seen.insert(pid, Seen { what, looked: Instant::now(), is_settled: false, said: said.clone() });
            let Some(candidate) = Candidate::look(pid) else { continue };
            if self.rules.decide(&candidate).is_none_or(|rule| rule.exclude) {
                continue;
            }
            while under_way.iter().filter(|one| one.began.elapsed() < SLOW).count() >= AT_ONCE {
                if is_over() {
                    return;
                }
                sleep(POLL);
                settle(seen, under_way);
            }
            let watch = self.clone();
            let thread = thread::spawn(move || watch.attach(&candidate, said, say));
            under_way.push(UnderWay { pid, began: Instant::now(), thread });
        }
    }

    /// Attaches to a program that a rule names. Whether nothing more is to be done with it, and what was said last of why not.
    fn attach(&self, candidate: &Candidate, said: Option<String>, say: fn(&str)) -> (bool, Option<String>) {
        let Some(rule) = self.rules.decide(candidate) else { return (false, said) };
        let attaching = Attaching { image: Some(&self.image), choices: &rule.choices(&self.usual) };
        let outcome = Outcome::of(&candidate.target(), &candidate.name, &attaching);
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

/// Takes note of those that were attached to.
fn settle(seen: &mut HashMap<u32, Seen>, under_way: &mut Vec<UnderWay>) {
    for done in under_way.extract_if(.., |one| one.thread.is_finished()) {
        let Ok((is_settled, said)) = done.thread.join() else { continue };
        if let Some(seen) = seen.get_mut(&done.pid) {
            (seen.is_settled, seen.said) = (is_settled, said);
        }
    }
}
