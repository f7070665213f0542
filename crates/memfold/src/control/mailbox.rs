//! Asking a folded process for something, through the mailbox on its control page.
//!
//! One request at a time: the mailbox is taken with a compare-and-swap of the writer's process id. A
//! mailbox whose writer died is taken over.

use super::snapshot::check;
use crate::process;
use anyhow::{bail, Context};
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};
use pager::control::{Command, ControlPage, CONTROL_LEN};
use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// The mapped control page of a process.
pub struct Mailbox {
    page: NonNull<ControlPage>,
    pid: u32,
}

impl Mailbox {
    /// Maps the page of process `pid` in a file.
    ///
    /// # Errors
    /// The file is incomplete, or of another version of memfold.
    pub fn open(file: &File, pid: u32) -> anyhow::Result<Mailbox> {
        if file.metadata()?.len() < CONTROL_LEN as u64 {
            bail!("the control page of process {pid} is not complete yet; ask again");
        }
        let len = NonZeroUsize::new(CONTROL_LEN).expect("a page is not empty");
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a mapping that the kernel places; the file is long enough, and a process that owns a
        // page does not shorten it.
        let page = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, file, 0) }?.cast();
        let mailbox = Mailbox { page, pid };
        check(mailbox.page()).with_context(|| format!("the control page of process {pid}"))?;
        Ok(mailbox)
    }

    fn page(&self) -> &ControlPage {
        // SAFETY: mapped until `self` is dropped; every field is an atomic.
        unsafe { self.page.as_ref() }
    }

    /// Sends one command, with a text where it takes one, and waits for its answer.
    ///
    /// # Errors
    /// The process ends or does not answer in time (it may still carry the command out), another writer
    /// keeps the mailbox, or the process says that it cannot.
    pub fn ask(
        &self,
        command: Command,
        argument: u64,
        value: u64,
        text: &str,
        timeout: Duration,
    ) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        self.take(deadline)?;
        self.page().request.set(text);
        let result = self.exchange(command, argument, value, deadline);
        self.page().mailbox.writer.store(0, Release);
        match result? {
            0 => Ok(()),
            error => bail!("process {} could not: {}", self.pid, nix::errno::Errno::from_raw(error as i32)),
        }
    }

    fn take(&self, deadline: Instant) -> anyhow::Result<()> {
        let writer = &self.page().mailbox.writer;
        let mine = std::process::id();
        let mut holder = 0;
        while let Err(other) = writer.compare_exchange(holder, mine, AcqRel, Relaxed) {
            holder = match other {
                0 => 0,
                dead if !process::is_running(dead) => dead,
                alive if Instant::now() > deadline => {
                    bail!("process {alive} is asking process {} for something else", self.pid)
                }
                _ => {
                    std::thread::sleep(Duration::from_millis(5));
                    0
                }
            };
        }
        Ok(())
    }

    fn exchange(
        &self,
        command: Command,
        argument: u64,
        value: u64,
        deadline: Instant,
    ) -> anyhow::Result<u32> {
        let mailbox = &self.page().mailbox;
        // Relaxed: ordered by the release of `asked` below.
        mailbox.command.store(command as u32, Relaxed);
        mailbox.argument.store(argument, Relaxed);
        mailbox.value.store(value, Relaxed);
        let ticket = mailbox.asked.load(Relaxed).wrapping_add(1);
        mailbox.asked.store(ticket, Release);
        let mut pause = Duration::from_millis(1);
        while mailbox.answered.load(Acquire) != ticket {
            let state = process::stat(self.pid).map(|s| s.state);
            match state {
                None | Some('Z' | 'X') => bail!("process {} ended before it answered", self.pid),
                Some('T' | 't') if Instant::now() > deadline => {
                    bail!("process {} is stopped and cannot answer; `kill -CONT {0}` it first", self.pid)
                }
                _ if Instant::now() > deadline => {
                    bail!("no answer from process {} in time; it may still do it later", self.pid)
                }
                _ => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(mailbox.error.load(Relaxed))
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // SAFETY: maps exactly this range, and nothing borrowed from it outlives `self`.
        let _ = unsafe { munmap(self.page.cast(), CONTROL_LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::snapshot::fixture;
    use std::fs::OpenOptions;
    use std::path::Path;
    use std::thread;

    /// A page that claims to be this process's.
    fn page() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        fixture::write(&path, |page| page.pid.store(std::process::id(), Relaxed));
        (dir, path)
    }

    fn open(path: &Path) -> Mailbox {
        Mailbox::open(&OpenOptions::new().read(true).write(true).open(path).unwrap(), std::process::id())
            .unwrap()
    }

    /// Answers one request with `error`, as the process would.
    fn answer(path: &Path, error: u32) -> thread::JoinHandle<(u32, u64, u64)> {
        let process = open(path);
        let page = process.page.as_ptr() as usize;
        thread::spawn(move || {
            let _keep = process;
            // SAFETY: mapped while `_keep` lives.
            let mailbox = unsafe { &(*(page as *const ControlPage)).mailbox };
            while mailbox.asked.load(Acquire) == 0 {
                thread::sleep(Duration::from_millis(1));
            }
            let seen =
                (mailbox.command.load(Relaxed), mailbox.argument.load(Relaxed), mailbox.value.load(Relaxed));
            mailbox.error.store(error, Relaxed);
            mailbox.answered.store(mailbox.asked.load(Relaxed), Release);
            seen
        })
    }

    // The mapping is only read and written through atomics.
    // SAFETY: `Mailbox` owns the mapping wherever it is.
    unsafe impl Send for Mailbox {}

    #[test]
    fn a_request_arrives_and_its_answer_returns() {
        let (_dir, path) = page();
        let process = answer(&path, 0);
        let mailbox = open(&path);
        mailbox.ask(Command::Set, 1, 42, "", Duration::from_secs(10)).unwrap();
        assert_eq!(process.join().unwrap(), (Command::Set as u32, 1, 42));
        assert_eq!(mailbox.page().mailbox.writer.load(Relaxed), 0);
    }

    #[test]
    fn an_error_of_the_process_is_named() {
        let (_dir, path) = page();
        let process = answer(&path, libc::EINVAL as u32);
        let mailbox = open(&path);
        let error = mailbox.ask(Command::Evict, 0, 0, "", Duration::from_secs(10)).unwrap_err();
        assert!(error.to_string().contains("EINVAL"), "{error}");
        process.join().unwrap();
    }

    #[test]
    fn silence_ends_with_an_error_and_frees_the_mailbox() {
        let (_dir, path) = page();
        let mailbox = open(&path);
        let error = mailbox.ask(Command::Pause, 0, 0, "", Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("no answer"), "{error}");
        assert_eq!(mailbox.page().mailbox.writer.load(Relaxed), 0);
    }

    #[test]
    fn a_mailbox_left_by_a_dead_writer_is_taken_over() {
        let (_dir, path) = page();
        let mailbox = open(&path);
        mailbox.page().mailbox.writer.store(4_194_303, Relaxed);
        let process = answer(&path, 0);
        mailbox.ask(Command::Resume, 0, 0, "", Duration::from_secs(10)).unwrap();
        process.join().unwrap();
    }
}
