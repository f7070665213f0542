//! Attaching to a program that was started plainly, and to whatever it starts, by `memfold attach` with its default options.
//!
//! Invariants: that the first process is attached to is certain, or the run fails; of the others those that live long enough to be seen.

use super::measured::Attached;
use crate::process::tree;
use crate::worker::Program;
use anyhow::{anyhow, ensure, Context, Result};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::{sleep, JoinHandle};
use std::time::Duration;

/// How often new processes are looked for.
const PAUSE: Duration = Duration::from_millis(200);

/// Attaches until it is told to finish.
pub(super) struct Attacher {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Attached>,
}

/// What `memfold attach --json` says of a process.
#[derive(Deserialize)]
struct Outcome {
    result: String,
    reason: Option<String>,
    stopped_ns: Option<u64>,
}

impl Attacher {
    /// Over a process and its descendants.
    ///
    /// # Errors
    /// It cannot be attached to.
    pub(super) fn over(memfold: &Program, root: u32) -> Result<Attacher> {
        let path = memfold.path.clone();
        let executes = executed(root);
        let first = attach(&path, root)?;
        let stopped = first.stopped_ns.with_context(|| {
            format!("it could not be attached to: {}", first.reason.as_deref().unwrap_or(&first.result))
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let (told, mut found) = (stop.clone(), Attached { processes: 1, stopped_ns_longest: stopped });
        let thread = std::thread::spawn(move || {
            let mut seen = HashMap::from([(root, executes)]);
            while !told.load(Relaxed) {
                for pid in tree(root) {
                    // Who executes another program has no agent any more: `python3` may be a script that does.
                    let executes = executed(pid);
                    let before = seen.insert(pid, executes.clone());
                    if before.as_ref() == Some(&executes) {
                        continue;
                    }
                    // It may have ended.
                    if let Some(stopped) = attach(&path, pid).ok().and_then(|outcome| outcome.stopped_ns) {
                        found.processes += usize::from(before.is_none());
                        found.stopped_ns_longest = found.stopped_ns_longest.max(stopped);
                    }
                }
                sleep(PAUSE);
            }
            found
        });
        Ok(Attacher { stop, thread })
    }

    /// What became of it.
    ///
    /// # Errors
    /// The thread that attaches panicked.
    pub(super) fn finish(self) -> Result<Attached> {
        self.stop.store(true, Relaxed);
        self.thread.join().map_err(|_| anyhow!("the thread that attaches panicked"))
    }
}

/// The file that a process executes.
fn executed(pid: u32) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/exe")).ok()
}

fn attach(memfold: &PathBuf, pid: u32) -> Result<Outcome> {
    let output = Command::new(memfold).args(["attach", "--json", &pid.to_string()]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let mut all: Vec<Outcome> =
        serde_json::from_slice(&output.stdout).with_context(|| format!("memfold attach: {}", said.trim()))?;
    ensure!(all.len() == 1, "memfold attach says nothing of process {pid}");
    Ok(all.remove(0))
}
