//! The memory of another process, read and written from outside (`/proc/PID/mem`), and what lies where in it.
//!
//! Invariants: it is the memory that the process had when this was opened. Of a process that executes another program nothing can be read or written any more,
//! so nothing is ever written into the memory of that other program.

use crate::{threads, Error};
use nix::errno::Errno;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
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
        let file = file.map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => threads::forbidden(pid, Errno::EACCES),
            _ => Error::Ended(pid),
        })?;
        Ok(Memory { pid, thread, file })
    }

    /// Whose it is.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The file, which is also what is locked.
    pub fn file(&self) -> Result<File, Error> {
        self.file.try_clone().map_err(|error| self.failed(&error))
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
    pub fn maps(&self) -> Result<Vec<MemoryMap>, Error> {
        Memory::maps_of(self.thread)
    }

    /// The mappings of a process.
    pub fn maps_of(pid: u32) -> Result<Vec<MemoryMap>, Error> {
        let maps = Process::new(pid as i32).and_then(|process| process.maps());
        maps.map(|maps| maps.0).map_err(|_| Error::Ended(pid))
    }

    /// Where there is an instruction for system calls: in what the kernel maps for every process, else in any code.
    pub fn find_syscall(&self) -> Result<usize, Error> {
        let maps = self.maps()?;
        let (vdso, others): (Vec<_>, Vec<_>) = maps.iter().partition(|map| map.pathname == MMapPath::Vdso);
        let executable = |map: &&&MemoryMap| map.perms.contains(MMPermissions::EXECUTE | MMPermissions::READ);
        for map in vdso.iter().chain(&others).filter(executable) {
            let (start, end) = (map.address.0 as usize, map.address.1 as usize);
            let mut bytes = vec![0; (end - start).min(SEARCHED)];
            if self.read(start, &mut bytes).is_err() {
                continue;
            }
            if let Some(at) = bytes.windows(2).position(|two| two == SYSCALL) {
                return Ok(start + at);
            }
        }
        Err(Error::NoSyscall(self.pid))
    }
}
