//! The process beside `memfold daemon --source` that has the programs under the daemon's budget go by that source, and observes them where it is
//! told from outside.
//!
//! It is a process of its own ([`beside`]), as this takes every right that the daemon gives up.
//!
//! Invariants: a program that has chosen a source keeps it.

use crate::beside;
use crate::governed::Programs;
use crate::observing::{Observing, Subject};
use crate::pages::Found;
use memfold_daemon::observe::Places;
use memfold_inspect::Mailbox;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::source::Kind;
use std::collections::HashSet;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How soon it sees that the daemon has ended.
const POLL: Duration = Duration::from_millis(50);
/// How often it looks for programs.
const LOOK: Duration = Duration::from_millis(200);
/// How long a program may take to answer; one that does not is asked again later.
const PATIENCE: Duration = Duration::from_secs(2);
/// The cold age that is usual, for which it is tried whether the source can be had.
const USUAL: Duration = Duration::from_secs(10);

/// Starts it for the daemon at `socket`; `stop` is set by signals, in both processes.
///
/// # Errors
/// There can be no other process.
pub fn start(socket: &Path, kind: Kind, stop: &'static AtomicBool, say: fn(&str)) -> io::Result<()> {
    beside::start(stop, |is_over| run(socket, kind, say, is_over))
}

fn run(socket: &Path, kind: Kind, say: fn(&str), is_over: &dyn Fn() -> bool) {
    let programs = Programs::of(socket);
    let mut observing = Observing::new(Places::default(), say);
    observing.expect(kind, USUAL);
    let mut asked = HashSet::new();
    let mut next = Instant::now();
    while !is_over() {
        if Instant::now() >= next {
            let found = programs.found();
            asked.retain(|&known| found.iter().any(|found| known == identity(found)));
            for found in &found {
                if found.page.source.asked == Kind::Auto
                    && !asked.contains(&identity(found))
                    && choose(found, kind)
                {
                    asked.insert(identity(found));
                }
            }
            let subjects: Vec<Subject<'_>> = found.iter().map(Subject::from).collect();
            observing.step(&subjects);
            next = Instant::now() + LOOK;
        }
        sleep(POLL);
    }
}

/// A program: its process, and when it began its page.
fn identity(found: &Found) -> (u32, u64) {
    (found.pid, found.page.started_ns)
}

/// Has a program go by a source; whether it does.
fn choose(found: &Found, kind: Kind) -> bool {
    let ask = |mailbox: Mailbox| mailbox.ask(Command::Set, Setting::Source as u64, kind as u64, "", PATIENCE);
    found
        .file
        .open()
        .map_err(Into::into)
        .and_then(|file| Mailbox::open(file, found.page.pid))
        .and_then(ask)
        .is_ok()
}
