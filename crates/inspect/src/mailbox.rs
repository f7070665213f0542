//! Asking a folded process for something, through the mailbox on its control page.
//!
//! One request at a time: who asks has the mailbox's part of the file locked (fcntl(2), `F_OFD_SETLK`), which ends with who asks, however
//! that ends.
//!
//! Invariants: the page is read and written as a file and never mapped, so one that is cut short or replaced meanwhile is an error and no
//! SIGBUS; nothing is written to a file that is not as long as a page.

use crate::snapshot::{check, Snapshot};
use anyhow::{bail, ensure, Context};
use memfold_pager::control::{Command, ControlPage, Mailbox as Layout, Mode, CONTROL_LEN, MAILBOX};
use memfold_pager::SharedText;
use memfold_sys::{file, Errno};
use std::fs::{self, File};
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The control page of a process, to ask it for something.
#[derive(Debug)]
pub struct Mailbox {
    file: File,
    pid: u32,
}

/// Where a field of the mailbox is in the file.
macro_rules! at {
    ($field:ident) => {
        MAILBOX.0 + offset_of!(Layout, $field) as u64
    };
}

impl Mailbox {
    /// On the page of process `pid` in a file, open to read and write.
    ///
    /// # Errors
    /// The file is incomplete, or of another version of memfold.
    pub fn open(file: File, pid: u32) -> anyhow::Result<Mailbox> {
        check(&file).with_context(|| format!("the control page of process {pid}"))?;
        Ok(Mailbox { file, pid })
    }

    /// Sends one command, with a text where it takes one, and waits for its answer.
    ///
    /// # Errors
    /// The process ends or does not answer in time (it may still carry the command out), another writer
    /// keeps the mailbox, the page is no longer whole, or the process says that it cannot.
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
        let result = self.write_text(text).and_then(|()| self.exchange(command, argument, value, deadline));
        let _ = file::unlock_range(self.file.as_raw_fd(), MAILBOX.0, MAILBOX.1);
        match result? {
            0 => Ok(()),
            error => bail!("process {} could not: {}", self.pid, nix::errno::Errno::from_raw(error as i32)),
        }
    }

    /// What the page says now.
    ///
    /// # Errors
    /// It is no longer whole.
    pub fn snapshot(&self) -> anyhow::Result<Snapshot> {
        Snapshot::of_file(&self.file).with_context(|| self.is_cut())
    }

    fn take(&self, deadline: Instant) -> anyhow::Result<()> {
        loop {
            match file::lock_range(self.file.as_raw_fd(), MAILBOX.0, MAILBOX.1) {
                Ok(()) => return Ok(()),
                Err(Errno(libc::EAGAIN)) if Instant::now() > deadline => {
                    bail!("another process is asking process {} for something else", self.pid)
                }
                Err(Errno(libc::EAGAIN)) => std::thread::sleep(Duration::from_millis(5)),
                // A file system without locks: two that ask at the same time may get one answer.
                Err(_) => return Ok(()),
            }
        }
    }

    fn write_text(&self, text: &str) -> anyhow::Result<()> {
        let mut bytes = [0; size_of::<SharedText<64>>()];
        let len = text.len().min(SharedText::<64>::MOST);
        bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
        self.write(offset_of!(ControlPage, request) as u64, &bytes)
    }

    fn exchange(
        &self,
        command: Command,
        argument: u64,
        value: u64,
        deadline: Instant,
    ) -> anyhow::Result<u32> {
        self.write(at!(command), &(command as u32).to_ne_bytes())?;
        self.write(at!(argument), &argument.to_ne_bytes())?;
        self.write(at!(value), &value.to_ne_bytes())?;
        let ticket = self.word(at!(asked))?.wrapping_add(1);
        // Last: who sees the ticket sees the rest, as each write is in place before the next begins.
        self.write(at!(asked), &ticket.to_ne_bytes())?;
        let mut pause = Duration::from_millis(1);
        while self.word(at!(answered))? != ticket {
            match state(self.pid) {
                None | Some('Z' | 'X') => bail!("process {} ended before it answered", self.pid),
                Some('T' | 't') if Instant::now() > deadline => {
                    bail!("process {} is stopped and cannot answer; `kill -CONT {0}` it first", self.pid)
                }
                _ if self.is_off()? => bail!("process {} is folded no more, and answers nothing", self.pid),
                _ if Instant::now() > deadline => {
                    bail!("no answer from process {} in time; it may still do it later", self.pid)
                }
                _ => std::thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        self.word(at!(error))
    }

    /// Waits until the process is folded no more, after it was asked to stop.
    ///
    /// # Errors
    /// It takes too long, or the page is no longer whole.
    pub fn await_off(&self, timeout: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + timeout;
        while !self.is_off()? && !matches!(state(self.pid), None | Some('Z' | 'X')) {
            ensure!(Instant::now() <= deadline, "process {} has not stopped yet; it still may", self.pid);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn is_off(&self) -> anyhow::Result<bool> {
        Ok(self.word(offset_of!(ControlPage, mode) as u64)? == Mode::Off as u32)
    }

    fn word(&self, at: u64) -> anyhow::Result<u32> {
        let mut bytes = [0; 4];
        self.file.read_exact_at(&mut bytes, at).with_context(|| self.is_cut())?;
        Ok(u32::from_ne_bytes(bytes))
    }

    fn write(&self, at: u64, bytes: &[u8]) -> anyhow::Result<()> {
        ensure!(self.file.metadata()?.len() >= CONTROL_LEN as u64, self.is_cut());
        self.file.write_all_at(bytes, at).context("cannot write to the control page")
    }

    fn is_cut(&self) -> String {
        format!("the control page of process {} was cut short; nothing can be asked of it any more", self.pid)
    }
}

/// The letter for what a process is doing (proc_pid_status(5)); `None` if there is none.
fn state(pid: u32) -> Option<char> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("State:"))?.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;
    use std::fs::OpenOptions;
    use std::path::Path;
    use std::sync::atomic::Ordering::Relaxed;
    use std::thread;

    /// A page that claims to be this process's.
    fn page() -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page");
        fixture::write(&path, |page| page.pid.store(std::process::id(), Relaxed));
        (dir, path)
    }

    fn open(path: &Path) -> Mailbox {
        Mailbox::open(OpenOptions::new().read(true).write(true).open(path).unwrap(), std::process::id())
            .unwrap()
    }

    /// Waits for a request.
    fn wait(process: &Mailbox) {
        while process.word(at!(asked)).unwrap() == 0 {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Answers one request with `error`, as the process would.
    fn answer(path: &Path, error: u32) -> thread::JoinHandle<(u32, u32, u32)> {
        let process = open(path);
        thread::spawn(move || {
            wait(&process);
            let word = |at| process.word(at).unwrap();
            let seen = (word(at!(command)), word(at!(argument)), word(at!(value)));
            process.write(at!(error), &error.to_ne_bytes()).unwrap();
            process.write(at!(answered), &word(at!(asked)).to_ne_bytes()).unwrap();
            seen
        })
    }

    #[test]
    fn a_request_arrives_and_its_answer_returns() {
        let (_dir, path) = page();
        let process = answer(&path, 0);
        open(&path).ask(Command::Set, 1, 42, "", Duration::from_secs(10)).unwrap();
        assert_eq!(process.join().unwrap(), (Command::Set as u32, 1, 42));
    }

    #[test]
    fn an_error_of_the_process_is_named() {
        let (_dir, path) = page();
        let process = answer(&path, libc::EINVAL as u32);
        let error = open(&path).ask(Command::Evict, 0, 0, "", Duration::from_secs(10)).unwrap_err();
        assert!(error.to_string().contains("EINVAL"), "{error}");
        process.join().unwrap();
    }

    #[test]
    fn silence_ends_with_an_error_and_frees_the_mailbox() {
        let (_dir, path) = page();
        let mailbox = open(&path);
        let error = mailbox.ask(Command::Pause, 0, 0, "", Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("no answer"), "{error}");
        open(&path).take(Instant::now()).unwrap();
    }

    #[test]
    fn two_do_not_ask_at_once_and_one_that_died_hinders_nobody() {
        let (_dir, path) = page();
        let first = open(&path);
        first.take(Instant::now()).unwrap();
        let second = open(&path);
        let error = second.ask(Command::Resume, 0, 0, "", Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("something else"), "{error}");
        drop(first);
        let process = answer(&path, 0);
        second.ask(Command::Resume, 0, 0, "", Duration::from_secs(10)).unwrap();
        process.join().unwrap();
    }

    #[test]
    fn a_page_that_is_cut_short_while_it_is_asked_is_an_error() {
        let (_dir, path) = page();
        let process = open(&path);
        let cutter = thread::spawn(move || {
            wait(&process);
            process.file.set_len(0).unwrap();
        });
        let error = open(&path).ask(Command::Evict, 0, 0, "", Duration::from_secs(60)).unwrap_err();
        assert!(error.to_string().contains("cut short"), "{error:#}");
        cutter.join().unwrap();
        // And nothing is written to it any more.
        assert!(Mailbox::open(OpenOptions::new().read(true).write(true).open(&path).unwrap(), 1).is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
    }
}
