//! Whether the program still has a thread of its own.
//!
//! Agent threads count as threads of the process, so a program whose last thread ends by the bare `exit` system call (as glibc's
//! `clone` does when its function returns) would go on for ever with them alone. When they are the last, they end too. The status
//! of a process is that of the thread that ends last (Linux 5.17), so the very last of them ends with the status that the program's
//! last thread had.
//!
//! What it is not: a way to be told. Whoever wants to know looks now and then, at the cost of one short read.

use crate::call::{Errno, Result};
use crate::dir::for_each_name;
use crate::file::{self, Fd};
use crate::syscall;
use crate::thread::{current_pid, current_tid};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// What tells of the main thread.
#[derive(Debug)]
pub struct Life {
    statm: Fd,
    /// 1 once the main thread has been seen to have ended before others.
    survived: AtomicU32,
}

impl Life {
    /// Opens `/proc/self/statm`: sizes of the memory that the main thread uses, zeros from when it has none any more.
    ///
    /// # Errors
    /// There is no `/proc`.
    pub fn watch() -> Result<Life> {
        file::open(c"/proc/self/statm", libc::O_RDONLY, 0)
            .map(|statm| Life { statm, survived: AtomicU32::new(0) })
    }

    /// Whether no thread is left but `agents`. False where that cannot be told.
    pub fn is_over(&self, agents: &[u32]) -> bool {
        if !self.main_thread_has_ended() {
            return false;
        }
        let over = others(agents) == Ok(false);
        if !over {
            self.survived.store(1, Relaxed);
        }
        over
    }

    /// The calling thread of the program is about to end.
    pub fn thread_leaves(&self) {
        if current_tid() != current_pid() && main_thread_is_gone() {
            self.survived.store(1, Relaxed);
        }
    }

    /// The status of the program's last thread, from 0 to 255, once it is over: the main thread's, or, if others were seen after
    /// it had ended, `of_others`. 0 where it cannot be told.
    pub fn status(&self, of_others: u32) -> u32 {
        if self.survived.load(Relaxed) != 0 {
            of_others & 0xFF
        } else {
            main_thread_status().unwrap_or(0)
        }
    }

    fn main_thread_has_ended(&self) -> bool {
        let mut digit = [0u8; 1];
        file::pread(self.statm.raw(), &mut digit, 0) == Ok(1) && digit == *b"0"
    }
}

/// Whether the main thread has given up the process's memory, as it does when it ends. Asked without a descriptor, for threads of the
/// program: its memory cannot be read by its number then. False where that cannot be told.
fn main_thread_is_gone() -> bool {
    let (mut to, from) = (0u8, 0u8);
    let piece = |at: usize| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: 1 };
    let (local, remote) = (piece(&raw mut to as usize), piece(&raw const from as usize));
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    // SAFETY: a byte of this stack is copied to another.
    let read = unsafe { syscall!(process_vm_readv, current_pid(), local, 1, remote, 1, 0) };
    read == Err(Errno::ESRCH)
}

/// What the main thread ended with.
fn main_thread_status() -> Result<u32> {
    let stat = file::open(c"/proc/self/stat", libc::O_RDONLY, 0)?;
    let mut text = [0u8; 1024];
    let len = file::read(stat.raw(), &mut text)?;
    // The last field, `exit_code` (proc_pid_stat(5)): the status in its second byte.
    let last = text[..len].trim_ascii().rsplit(|&byte| byte == b' ').next();
    Ok(last.and_then(number).unwrap_or(0) >> 8 & 0xFF)
}

/// Whether the process has a thread other than its main one and `agents`.
fn others(agents: &[u32]) -> Result<bool> {
    let tasks = file::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let main = current_pid();
    let mut found = false;
    for_each_name(&tasks, |name| {
        found = number(name.to_bytes()).is_some_and(|tid| tid != main && !agents.contains(&tid));
        found
    })?;
    Ok(found)
}

/// Shows `each` the kernel's number of every thread of this process.
///
/// # Errors
/// There is no `/proc`.
pub fn for_each_thread(mut each: impl FnMut(u32)) -> Result<()> {
    let tasks = file::open(c"/proc/self/task", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    for_each_name(&tasks, |name| {
        if let Some(tid) = number(name.to_bytes()) {
            each(tid);
        }
        false
    })
}

/// The number that a text begins with; `None` where it begins with none (`.` and `..`).
fn number(text: &[u8]) -> Option<u32> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(None, |number, digit| Some(number.unwrap_or(0) * 10 + u32::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn a_process_whose_main_thread_runs_is_not_over() {
        let life = Life::watch().unwrap();
        assert!(!life.main_thread_has_ended() && !main_thread_is_gone());
        assert!(!life.is_over(&[current_tid()]));
    }

    #[test]
    fn threads_that_are_not_agents_are_counted() {
        let (tell, told) = channel();
        let (stop, stopped) = channel::<()>();
        let other = thread::spawn(move || {
            tell.send(current_tid()).unwrap();
            let _ = stopped.recv();
        });
        assert_ne!(told.recv().unwrap(), 0);
        assert_eq!(others(&[]), Ok(true));
        drop(stop);
        other.join().unwrap();
        assert_eq!(number(b"4711\0"), Some(4711));
        assert_eq!(number(b".\0"), None);
    }
}
