//! A folded process seen from outside: its counters, and requests through its mailbox.
//!
//! What it is not: how control pages are read, which is [`memfold_inspect`]'s; nor a way to start a process.

use crate::Unsupported;
use anyhow::{ensure, Context, Result};
use memfold_inspect::{Counters, Latency, Mailbox, Snapshot};
use memfold_pager::control::{Command, Mode};
use memfold_stats::Histogram;
use std::fs::OpenOptions;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(1);
/// A process has settled when nothing went for so long, and in so many counts: one that gets no CPU has not.
const QUIET: Duration = Duration::from_secs(3);
const LOOKS: u32 = 8;

/// The control page of one process, alive or dead.
#[derive(Debug)]
pub struct Peer {
    mailbox: Mailbox,
    /// What it said when it was opened.
    pid: u32,
}

impl Peer {
    /// The control page in `file`.
    ///
    /// # Errors
    /// When the file cannot be opened or is not a control page of this version.
    pub fn open(file: &Path) -> Result<Peer> {
        let name = file.display();
        let handle = OpenOptions::new().read(true).write(true).open(file);
        let handle = handle.with_context(|| format!("cannot open the control page {name}"))?;
        let pid = Snapshot::of_file(&handle).with_context(|| name.to_string())?.pid;
        Ok(Peer { mailbox: Mailbox::open(handle, pid)?, pid })
    }

    /// The control page that process `pid` keeps in `directory`, waiting for it up to `patience`.
    ///
    /// # Errors
    /// When there is none by then.
    pub fn of(directory: &Path, pid: u32, patience: Duration) -> Result<Peer> {
        let path = directory.join(pid.to_string());
        let end = Instant::now() + patience;
        loop {
            match Peer::open(&path) {
                Ok(peer) => return Ok(peer),
                Err(error) if Instant::now() >= end => {
                    return Err(error.context(format!(
                        "process {pid} has no control page after {patience:?}; is the library preloaded and the pager on?"
                    )))
                }
                Err(_) => sleep(POLL),
            }
        }
    }

    /// Waits until the process is folded, up to `patience`; one that stays too small for that stays idle. Returns its mode.
    ///
    /// # Errors
    /// [`Unsupported`] with its reason when it is not folded.
    pub fn await_folded(&self, patience: Duration) -> Result<Mode> {
        let end = Instant::now() + patience;
        loop {
            let Snapshot { mode, reason, .. } = self.now()?;
            match mode {
                Mode::Off => {
                    return Err(Unsupported(format!(
                        "process {} is not folded: {}",
                        self.pid,
                        if reason.is_empty() { "no reason given; see memfold doctor" } else { &reason }
                    ))
                    .into())
                }
                Mode::Idle if Instant::now() < end => sleep(POLL),
                mode => return Ok(mode),
            }
        }
    }

    /// What the page says now: as it was when the process last brought it up to date ([`Peer::await_count`]), or a moment later.
    ///
    /// # Errors
    /// When the page is no longer whole.
    pub fn now(&self) -> Result<Snapshot> {
        self.mailbox.snapshot()
    }

    /// Its counters.
    ///
    /// # Errors
    /// When the page is no longer whole.
    pub fn counters(&self) -> Result<Counters> {
        self.now().map(|now| now.counters())
    }

    /// Waits until the counters have been brought up to date, up to `patience`, and returns what the page says then.
    ///
    /// # Errors
    /// When they are not by then.
    pub fn await_count(&self, patience: Duration) -> Result<Snapshot> {
        let (asked, end) = (memfold_sys::time::now().0, Instant::now() + patience);
        loop {
            let now = self.now()?;
            if now.updated_ns > asked {
                return Ok(now);
            }
            ensure!(
                Instant::now() < end,
                "process {} has not brought its counters up to date for {patience:?}",
                self.pid
            );
            sleep(POLL);
        }
    }

    /// Waits until pages were evicted and nothing more goes, up to `patience`. Returns what the page said when the last page went.
    ///
    /// # Errors
    /// When pages still go by then, or none did.
    pub fn await_settled(&self, patience: Duration) -> Result<Snapshot> {
        let end = Instant::now() + patience;
        let (mut last, mut since, mut looks) = (self.now()?, Instant::now(), 0);
        loop {
            let now = self.await_count(patience)?;
            looks += 1;
            let work = |of: &Snapshot| {
                (of.pages.evicted, of.pages.incompressible, of.pages.recompressed, of.sizes.aside_bytes)
            };
            if work(&now) != work(&last) {
                (last, since, looks) = (now, Instant::now(), 0);
            } else if last.pages.evicted > 0
                && last.sizes.aside_bytes == 0
                && since.elapsed() >= QUIET
                && looks >= LOOKS
            {
                return Ok(last);
            }
            ensure!(
                Instant::now() < end,
                "process {} has not settled after {patience:?}: {} pages were evicted, {} recompressed, {} MiB are aside",
                self.pid,
                last.pages.evicted,
                last.pages.recompressed,
                last.sizes.aside_bytes >> 20
            );
        }
    }

    /// Asks the process to carry out `command` and waits for its answer, up to `patience`.
    ///
    /// # Errors
    /// When another writer holds the mailbox for that long, no answer comes, or the answer is an error.
    pub fn ask(&self, command: Command, argument: u64, value: u64, patience: Duration) -> Result<()> {
        self.mailbox.ask(command, argument, value, "", patience).with_context(|| format!("{command:?}"))
    }

    /// The same with a text for its argument.
    ///
    /// # Errors
    /// As for [`Peer::ask`].
    pub fn tell(&self, command: Command, text: &str, patience: Duration) -> Result<()> {
        self.mailbox.ask(command, 0, 0, text, patience).with_context(|| format!("{command:?}"))
    }
}

/// The values of a page's histogram, each within 1/16.
pub(crate) fn histogram(of: &Latency) -> Histogram {
    Histogram::from(of.values().collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_inspect::fixture;
    use memfold_pager::control::VERSION;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_file_that_is_no_control_page_of_this_version_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (directory, file) = (directory.path(), directory.path().join("1"));
        fixture::write(&file, |_| {});
        assert!(Peer::open(&file).is_ok());
        fixture::write(&file, |page| page.version.store(VERSION + 1, Relaxed));
        assert!(Peer::open(&file).is_err());
        std::fs::write(&file, [0u8; 100]).unwrap();
        assert!(Peer::open(&file).is_err());
        assert!(Peer::of(directory, 2, Duration::from_millis(5)).is_err());
    }

    #[test]
    fn a_process_that_is_not_folded_says_why() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("1");
        fixture::write(&file, |page| {
            page.mode.store(Mode::Off as u32, Relaxed);
            page.reason.set("no userfaultfd");
        });
        let error = Peer::open(&file).unwrap().await_folded(Duration::from_secs(5)).unwrap_err();
        assert!(error.is::<Unsupported>() && error.to_string().contains("no userfaultfd"), "{error}");
    }
}
