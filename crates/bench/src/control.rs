//! A folded process seen from outside: its control page, mapped, and requests through its mailbox.
//!
//! What it is not: the page's layout, which is [`pager::control`]'s, nor a way to start a process.
//!
//! Invariants: only a file of the right length, magic number and version is read; a mailbox that was taken
//! is given back, whether an answer came or not.

use crate::Unsupported;
use anyhow::{bail, ensure, Context, Result};
use pager::activity::Activity;
use pager::codec::CODEC_NUMBERS;
use pager::control::{Command, ControlPage, Mode, CONTROL_LEN, MAGIC, MAILBOX, VERSION};
use serde::Serialize;
use stats::Histogram;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::thread::sleep;
use std::time::{Duration, Instant};
use sys::{file, Errno};

const POLL: Duration = Duration::from_millis(1);

/// The control page of one process, alive or dead.
#[derive(Debug)]
pub struct Peer {
    page: NonNull<ControlPage>,
    file: File,
}

// SAFETY: the page consists of atomics and stays mapped until the value is dropped.
unsafe impl Send for Peer {}
// SAFETY: as above.
unsafe impl Sync for Peer {}

/// The counters of a control page at one moment; the names are those of [`ControlPage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs)] // Each field is the one of ControlPage with the same name, which is documented there.
pub struct Counters {
    pub managed_bytes: u64,
    pub managed_bytes_peak: u64,
    pub resident_bytes: u64,
    pub evicted_bytes: u64,
    pub aside_bytes: u64,
    pub stored_bytes: u64,
    pub overhead_bytes: u64,
    pub saved_bytes: u64,
    pub saved_bytes_peak: u64,
    pub pages_evicted: u64,
    pub pages_by_codec: [u64; CODEC_NUMBERS],
    pub pages_restored: u64,
    pub pages_prefetched: u64,
    pub pages_second_chance: u64,
    pub pages_same_value: u64,
    pub pages_incompressible: u64,
    pub pages_recompressed: u64,
    pub pages_discarded: u64,
    pub pages_lost: u64,
    pub faults_spurious: u64,
    pub faults_real_time: u64,
    pub budget_holds: u64,
    pub ranges_added: u64,
    pub ranges_removed: u64,
    pub stall_ns: u64,
    pub cpu_background_ns: u64,
    pub cpu_fault_ns: u64,
    pub activity_ns: [u64; Activity::COUNT],
}

impl Peer {
    /// Maps the control page in `file`.
    ///
    /// # Errors
    /// When the file cannot be opened or is not a control page of this version.
    pub fn open(file: &Path) -> Result<Peer> {
        let name = file.display();
        let handle = OpenOptions::new()
            .read(true)
            .write(true)
            .open(file)
            .with_context(|| format!("cannot open the control page {name}"))?;
        let len = handle.metadata()?.len();
        ensure!(len == CONTROL_LEN as u64, "{name} has {len} bytes, a control page has {CONTROL_LEN}");
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh shared mapping of a file of that length, placed by the kernel.
        let raw = unsafe {
            libc::mmap(std::ptr::null_mut(), CONTROL_LEN, prot, libc::MAP_SHARED, handle.as_raw_fd(), 0)
        };
        ensure!(raw != libc::MAP_FAILED, "cannot map {name}: {}", std::io::Error::last_os_error());
        let page = NonNull::new(raw.cast()).context("the kernel mapped the control page at address 0")?;
        let peer = Peer { page, file: handle };
        let (magic, version) = (peer.page().magic.load(Acquire), peer.page().version.load(Relaxed));
        ensure!(magic == MAGIC, "{name} is not a control page: it starts with {magic:#x}, not {MAGIC:#x}");
        ensure!(
            version == VERSION,
            "{name} is a control page of version {version}, this program reads {VERSION}"
        );
        Ok(peer)
    }

    /// Maps the control page that process `pid` keeps in `directory`, waiting for it up to `patience`.
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

    /// Waits until the process is folded, up to `patience`.
    ///
    /// # Errors
    /// [`Unsupported`] with its reason when it is not by then.
    pub fn await_folded(&self, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        while self.mode() == Mode::Idle && Instant::now() < end {
            sleep(POLL);
        }
        if self.mode() == Mode::Embedded {
            return Ok(());
        }
        let reason = self.reason();
        Err(Unsupported(format!(
            "the worker is not folded (mode {}): {}",
            self.mode().name(),
            if reason.is_empty() { "no reason given; see memfold doctor" } else { &reason }
        ))
        .into())
    }

    /// The page itself.
    pub fn page(&self) -> &ControlPage {
        // SAFETY: mapped for as long as `self` lives, and made of atomics alone.
        unsafe { self.page.as_ref() }
    }

    /// Whether the process is folded.
    pub fn mode(&self) -> Mode {
        Mode::from_u32(self.page().mode.load(Relaxed))
    }

    /// Why it is not, in the process's own words; empty if it is.
    pub fn reason(&self) -> String {
        self.page().reason.read(&mut [0; 512]).to_owned()
    }

    /// All counters, each read once: as they were when the process last brought them up to date ([`Peer::await_count`]), or a moment later.
    pub fn counters(&self) -> Counters {
        let page = self.page();
        macro_rules! read {
            ($($name:ident),* $(,)?) => { Counters {
                $($name: page.$name.load(Relaxed),)*
                pages_by_codec: page.pages_by_codec.each_ref().map(|pages| pages.load(Relaxed)),
                activity_ns: page.activity_ns.each_ref().map(|ns| ns.load(Relaxed)),
            } };
        }
        read!(
            managed_bytes,
            managed_bytes_peak,
            resident_bytes,
            evicted_bytes,
            aside_bytes,
            stored_bytes,
            overhead_bytes,
            saved_bytes,
            saved_bytes_peak,
            pages_evicted,
            pages_restored,
            pages_prefetched,
            pages_second_chance,
            pages_same_value,
            pages_incompressible,
            pages_recompressed,
            pages_discarded,
            pages_lost,
            faults_spurious,
            faults_real_time,
            budget_holds,
            ranges_added,
            ranges_removed,
            stall_ns,
            cpu_background_ns,
            cpu_fault_ns,
        )
    }

    /// Waits until the counters have been brought up to date, up to `patience`. Returns when they were, ns.
    ///
    /// # Errors
    /// When they are not by then.
    pub fn await_count(&self, patience: Duration) -> Result<u64> {
        let (now, end) = (sys::time::now().0, Instant::now() + patience);
        loop {
            let updated = self.page().updated_ns.load(Acquire);
            if updated > now {
                return Ok(updated);
            }
            ensure!(
                Instant::now() < end,
                "process {} has not brought its counters up to date for {patience:?}",
                self.page().pid.load(Relaxed)
            );
            sleep(POLL);
        }
    }

    /// How long the program's threads waited on faults so far, ns; each value within 1/16.
    pub fn fault_waits(&self) -> Histogram {
        histogram(&self.page().fault_ns)
    }

    /// How long the work on restores took so far, ns; each value within 1/16.
    pub fn restore_times(&self) -> Histogram {
        histogram(&self.page().restore_ns)
    }

    /// Asks the process to carry out `command` and waits for its answer, up to `patience`.
    ///
    /// # Errors
    /// When another writer holds the mailbox for that long, no answer comes, or the answer is an error.
    pub fn ask(&self, command: Command, argument: u64, value: u64, patience: Duration) -> Result<()> {
        self.request(command, argument, value, None, patience)
    }

    /// The same with a text for its argument.
    ///
    /// # Errors
    /// As for [`Peer::ask`].
    pub fn tell(&self, command: Command, text: &str, patience: Duration) -> Result<()> {
        self.request(command, 0, 0, Some(text), patience)
    }

    fn request(
        &self,
        command: Command,
        argument: u64,
        value: u64,
        text: Option<&str>,
        patience: Duration,
    ) -> Result<()> {
        let mailbox = &self.page().mailbox;
        let end = Instant::now() + patience;
        let fd = self.file.as_raw_fd();
        while file::lock_range(fd, MAILBOX.0, MAILBOX.1) == Err(Errno(libc::EAGAIN)) {
            ensure!(
                Instant::now() < end,
                "{command:?}: another process has held the mailbox for {patience:?}"
            );
            sleep(POLL);
        }
        mailbox.command.store(command as u32, Relaxed);
        mailbox.argument.store(argument, Relaxed);
        mailbox.value.store(value, Relaxed);
        if let Some(text) = text {
            self.page().request.set(text);
        }
        // Release: whoever sees the ticket sees the request.
        let ticket = mailbox.asked.fetch_add(1, Release).wrapping_add(1);
        let answer = loop {
            if mailbox.answered.load(Acquire) == ticket {
                break Some(mailbox.error.load(Relaxed));
            }
            if Instant::now() >= end {
                break None;
            }
            sleep(POLL);
        };
        let _ = file::unlock_range(fd, MAILBOX.0, MAILBOX.1);
        match answer {
            Some(0) => Ok(()),
            Some(error) => {
                bail!("{command:?}: the process answered {}", std::io::Error::from_raw_os_error(error as i32))
            }
            None => bail!(
                "{command:?}: no answer from process {} within {patience:?}",
                self.page().pid.load(Relaxed)
            ),
        }
    }
}

fn histogram(of: &pager::control::Histogram) -> Histogram {
    let counts =
        of.buckets.iter().enumerate().map(|(bucket, count)| {
            (pager::control::Histogram::value_of(bucket), u64::from(count.load(Relaxed)))
        });
    Histogram::from(counts.filter(|(_, count)| *count > 0).collect::<Vec<_>>())
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: mapped in `open` with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.page.as_ptr().cast(), CONTROL_LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn control_file(directory: &Path, magic: u64, version: u32) -> std::path::PathBuf {
        let file = directory.join("1");
        let mut bytes = vec![0u8; CONTROL_LEN];
        bytes[..8].copy_from_slice(&magic.to_le_bytes());
        bytes[8..12].copy_from_slice(&version.to_le_bytes());
        fs::write(&file, bytes).unwrap();
        file
    }

    #[test]
    fn a_file_that_is_no_control_page_of_this_version_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        assert!(Peer::open(&control_file(directory, MAGIC, VERSION)).is_ok());
        assert!(Peer::open(&control_file(directory, MAGIC ^ 1, VERSION)).is_err());
        assert!(Peer::open(&control_file(directory, MAGIC, VERSION + 1)).is_err());
        fs::write(directory.join("1"), [0u8; 100]).unwrap();
        assert!(Peer::open(&directory.join("1")).is_err());
        assert!(Peer::of(directory, 2, Duration::from_millis(5)).is_err());
    }

    #[test]
    fn a_request_is_answered_by_its_own_ticket_and_the_mailbox_is_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let peer = Peer::open(&control_file(directory.path(), MAGIC, VERSION)).unwrap();
        let patience = Duration::from_secs(20);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mailbox = &peer.page().mailbox;
                for ticket in 1..=2 {
                    while mailbox.asked.load(Acquire) != ticket {
                        sleep(POLL);
                    }
                    assert_eq!(mailbox.command.load(Relaxed), Command::Evict as u32);
                    mailbox.error.store(if ticket == 1 { 0 } else { libc::EINVAL as u32 }, Relaxed);
                    mailbox.answered.store(ticket, Release);
                }
            });
            peer.ask(Command::Evict, 0, 0, patience).unwrap();
            let error = peer.ask(Command::Evict, 0, 0, patience).unwrap_err();
            assert!(error.to_string().contains("Invalid argument"), "{error}");
        });
        assert!(peer.ask(Command::Evict, 0, 0, Duration::from_millis(5)).is_err());
    }
}
