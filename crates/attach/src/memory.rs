//! The memory of another process, read and written from outside (`/proc/PID/mem`), and what lies where in it.
//!
//! Invariants: it is the memory that the process had when this was opened. Of a process that executes another program nothing can be read or written any more,
//! so nothing is ever written into the memory of that other program.

use crate::proc::{self, Map};
use crate::{threads, Error};
use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// The instruction.
const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// So much of a mapping is searched for it.
const SEARCHED: usize = 1 << 20;

/// See the module.
#[derive(Debug)]
pub struct Memory {
    pid: u32,
    /// By which thread it is known: the first one, or another if that has ended.
    thread: u32,
    file: File,
}

impl Memory {
    /// That of a process.
    ///
    /// # Errors
    /// It has ended, or may not be traced.
    pub fn open(pid: u32) -> Result<Memory, Error> {
        let thread = threads::living(pid).ok_or(Error::Ended(pid))?;
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{thread}/mem"));
        let file = file.map_err(|error| proc::why_not(pid, &error))?;
        Ok(Memory { pid, thread, file })
    }

    /// Whose it is.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The number of the open file, which is also what is locked.
    pub fn number(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Fills `to` with what lies at `from`.
    pub fn read(&self, from: usize, to: &mut [u8]) -> Result<(), Error> {
        self.file.read_exact_at(to, from as u64).map_err(|error| self.failed(&error))
    }

    /// Writes `from` to `to`.
    pub fn write(&self, to: usize, from: &[u8]) -> Result<(), Error> {
        self.file.write_all_at(from, to as u64).map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> Error {
        match error.kind() {
            // So it is for memory that nobody has any more.
            ErrorKind::UnexpectedEof | ErrorKind::WriteZero => Error::Ended(self.pid),
            _ => Error::Memory(self.pid, Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))),
        }
    }

    /// Its mappings.
    pub fn maps(&self) -> Result<Vec<Map>, Error> {
        proc::maps(self.pid, self.thread)
    }

    /// Where there is an instruction for system calls: in what the kernel maps for every process, else in any code.
    pub fn find_syscall(&self) -> Result<usize, Error> {
        let maps = self.maps()?;
        let (vdso, others): (Vec<_>, Vec<_>) = maps.iter().partition(|map| map.name == "[vdso]");
        for map in vdso.into_iter().chain(others).filter(|map| map.is_code()) {
            let mut bytes = vec![0; (map.end - map.start).min(SEARCHED)];
            if self.read(map.start, &mut bytes).is_err() {
                continue;
            }
            if let Some(at) = bytes.windows(2).position(|two| two == SYSCALL) {
                return Ok(map.start + at);
            }
        }
        Err(Error::NoSyscall(self.pid))
    }
}
