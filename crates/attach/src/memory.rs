//! The memory of another process, read and written from outside (process_vm_readv(2)), and what lies where in it.

use crate::Error;
use nix::errno::Errno;
use nix::sys::uio::{process_vm_readv, process_vm_writev, RemoteIoVec};
use nix::unistd::Pid;
use procfs::process::{MMPermissions, MMapPath, MemoryMap, Process};
use std::io::{IoSlice, IoSliceMut};

/// The instruction.
const SYSCALL: [u8; 2] = [0x0F, 0x05];
/// So much of a mapping is searched for it.
const SEARCHED: usize = 1 << 20;

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid as i32)
}

/// Fills `to` with what lies at `from`.
pub fn read(pid: u32, from: usize, to: &mut [u8]) -> Result<(), Error> {
    let len = to.len();
    let read = process_vm_readv(pid_of(pid), &mut [IoSliceMut::new(to)], &[RemoteIoVec { base: from, len }]);
    whole(pid, read, len)
}

/// Writes `from` to `to`.
pub fn write(pid: u32, to: usize, from: &[u8]) -> Result<(), Error> {
    let len = from.len();
    let written = process_vm_writev(pid_of(pid), &[IoSlice::new(from)], &[RemoteIoVec { base: to, len }]);
    whole(pid, written, len)
}

fn whole(pid: u32, done: nix::Result<usize>, len: usize) -> Result<(), Error> {
    match done {
        Ok(done) if done == len => Ok(()),
        Ok(_) => Err(Error::Memory(pid, Errno::EFAULT)),
        Err(Errno::ESRCH) => Err(Error::Ended(pid)),
        Err(errno) => Err(Error::Memory(pid, errno)),
    }
}

/// Its mappings.
pub fn maps(pid: u32) -> Result<Vec<MemoryMap>, Error> {
    let maps = Process::new(pid as i32).and_then(|process| process.maps());
    maps.map(|maps| maps.0).map_err(|_| Error::Ended(pid))
}

/// Where there is an instruction for system calls: in what the kernel maps for every process, else in any code.
pub fn find_syscall(pid: u32) -> Result<usize, Error> {
    let maps = maps(pid)?;
    let (vdso, others): (Vec<_>, Vec<_>) = maps.iter().partition(|map| map.pathname == MMapPath::Vdso);
    let executable = |map: &&&MemoryMap| map.perms.contains(MMPermissions::EXECUTE | MMPermissions::READ);
    for map in vdso.iter().chain(&others).filter(executable) {
        let (start, end) = (map.address.0 as usize, map.address.1 as usize);
        let mut bytes = vec![0; (end - start).min(SEARCHED)];
        if read(pid, start, &mut bytes).is_err() {
            continue;
        }
        if let Some(at) = bytes.windows(2).position(|two| two == SYSCALL) {
            return Ok(start + at);
        }
    }
    Err(Error::NoSyscall(pid))
}
