//! The process that is to be attached to: whether it can be.

use crate::proc::{self, Map};
use crate::rights::{helper, may_ask_for_forks};
use crate::{error, threads, Error};
use std::fs;
use std::time::Duration;

/// How long a process may share its memory with another one.
const SHARED: Duration = Duration::from_secs(2);

/// The process above all threads of the kernel's.
const KTHREADD: u32 = 2;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pid: u32,
    /// When it began, since the machine booted, if that is known: a later process of this number is another one.
    began: Option<Duration>,
}

impl Target {
    /// The process of this number.
    pub fn new(pid: u32) -> Target {
        Target { pid, began: None }
    }

    /// The process of this number that began then, since the machine booted (field 22 of proc_pid_stat(5)).
    pub fn of(pid: u32, began: Duration) -> Target {
        Target { pid, began: Some(began) }
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it is still the process that was meant.
    ///
    /// # Errors
    /// That one has ended.
    pub fn check_same(&self) -> Result<(), Error> {
        match self.began.is_none_or(|began| threads::began(self.pid) == Some(began)) {
            true => Ok(()),
            false => Err(Error::Ended(self.pid)),
        }
    }

    /// Whether it can be attached to, as far as that can be seen from outside.
    ///
    /// # Errors
    /// What is in the way.
    pub fn check(&self) -> Result<(), Error> {
        let pid = self.pid;
        self.check_runs()?;
        if threads::are_filtered(pid) {
            return Err(Error::Filtered(pid));
        }
        // Some files tell even who may not look; an own process that has changed its rights is another's to the kernel.
        let maps = proc::maps(pid, pid)?;
        if maps.is_empty() {
            // Its memory may not be looked at: a process that may be has some.
            return Err(error::forbidden(pid, nix::errno::Errno::EPERM));
        }
        if maps.iter().any(Map::is_memfolds) || threads::are_memfolds(pid) {
            return Err(Error::Folded(pid));
        }
        self.check_machine()?;
        // Before its memory is read: who serves that userfaultfd would be waited for.
        self.check_descriptors()?;
        if crate::is_attached(self) {
            return Err(Error::Folded(pid));
        }
        if ![pid, std::process::id()].into_iter().any(may_ask_for_forks) && helper().is_none() {
            return Err(Error::NoForks(pid, nix::unistd::geteuid().as_raw()));
        }
        self.check_sharing()
    }

    /// Whether it is a program that runs, and that nobody traces.
    ///
    /// # Errors
    /// What it is instead.
    pub fn check_runs(&self) -> Result<(), Error> {
        self.check_same()?;
        let status = proc::text(&format!("/proc/{}/status", self.pid));
        self.check_status(&status.map_err(|_| Error::NoProcess(self.pid))?)
    }

    fn check_status(&self, status: &str) -> Result<(), Error> {
        let pid = self.pid;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            line.map(str::trim).unwrap_or_default()
        };
        match field("State").chars().next() {
            Some('Z' | 'X') if threads::living(pid).is_some() => return Err(Error::Headless(pid)),
            Some('Z' | 'X') => return Err(Error::Zombie(pid)),
            Some('T') => return Err(Error::Suspended(pid)),
            _ => {}
        }
        if field("VmSize").is_empty() {
            // Who is ending has no memory any more either. The kernel's threads are all children of its thread 2.
            let of_kernel = pid == KTHREADD || field("PPid").parse() == Ok(KTHREADD);
            return Err(if of_kernel { Error::KernelThread(pid) } else { Error::Ended(pid) });
        }
        match field("TracerPid").parse() {
            Ok(0) | Err(_) => {}
            Ok(tracer) => return Err(Error::Traced(pid, tracer)),
        }
        Ok(())
    }

    /// Whether what it executes is for this machine, and of 64 bits.
    fn check_machine(&self) -> Result<(), Error> {
        use std::io::Read;
        let mut header = [0; 20];
        let file = fs::File::open(format!("/proc/{}/exe", self.pid));
        let read = file.and_then(|mut file| file.read_exact(&mut header));
        read.map_err(|error| proc::why_not(self.pid, &error))?;
        let (class, machine) = (header[4], u16::from_le_bytes([header[18], header[19]]));
        match (class, machine) {
            (2, object::elf::EM_X86_64) => Ok(()),
            (1, _) => Err(Error::OtherMachine(self.pid, "32 bit".into())),
            (_, other) => Err(Error::OtherMachine(self.pid, format!("ELF machine {other}"))),
        }
    }

    fn check_descriptors(&self) -> Result<(), Error> {
        let list = fs::read_dir(format!("/proc/{}/fd", self.pid));
        let list = list.map_err(|error| proc::why_not(self.pid, &error))?;
        let links = list.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        match links.into_iter().any(|link| link.as_os_str() == memfold_sys::uffd::LINK) {
            true => Err(Error::OwnUserfaultfd(self.pid)),
            false => Ok(()),
        }
    }

    /// Whether another process has the same memory (`CLONE_VM`). Between `vfork` and `execve` one has for a moment, in which it is served as a thread would be:
    /// that is waited for.
    fn check_sharing(&self) -> Result<(), Error> {
        let mut sharer = None;
        let alone = crate::wait_until(SHARED, || {
            sharer = self.sharer()?;
            Ok(sharer.is_none())
        })?;
        match sharer {
            Some(other) if !alone => Err(Error::Shared(self.pid, other)),
            _ => Ok(()),
        }
    }

    fn sharer(&self) -> Result<Option<u32>, Error> {
        let own = threads::memory_size(self.pid).ok_or(Error::Ended(self.pid))?;
        let others = proc::numbers("/proc").into_iter().filter(|&other| other != self.pid);
        // What has the same memory has the same size of it, and only then is the kernel asked.
        let mut same_size = others.filter(|&other| own != 0 && threads::memory_size(other) == Some(own));
        Ok(same_size.find(|&other| shares_memory(self.pid, other)))
    }
}

/// Whether two processes have the same memory (kcmp(2)); false where the kernel does not say.
fn shares_memory(one: u32, other: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: no memory involved.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: &str) -> String {
        Target::new(4194305).check_status(status).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_process_that_began_at_another_time_is_not_the_one_that_was_meant() {
        let pid = std::process::id();
        let began = threads::began(pid).unwrap();
        assert!(Target::of(pid, began).check_same().is_ok() && Target::new(pid).check_same().is_ok());
        let earlier = Target::of(pid, began - Duration::from_millis(10));
        assert!(matches!(earlier.check_runs(), Err(Error::Ended(_))));
        assert!(matches!(crate::memory_of(&earlier), Err(Error::Ended(_))));
    }

    #[test]
    fn what_is_in_the_way_is_named_with_what_to_do() {
        let fine = "State:\tS (sleeping)\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nVmSize:\t 1 kB\nCapEff:\t000001ffffffffff\n";
        assert_eq!(said(fine), "");
        for (is, becomes, says) in [
            ("S (sleeping)", "Z (zombie)", "its parent has not taken notice"),
            ("S (sleeping)", "T (stopped)", "`kill -CONT 4194305`"),
            ("VmSize:\t 1 kB\n", "PPid:\t2\n", "a thread of the kernel"),
            ("VmSize:\t 1 kB\n", "PPid:\t7\n", "process 4194305 has ended"),
            ("TracerPid:\t0", "TracerPid:\t9", "traced by process 9"),
        ] {
            let line = said(&fine.replace(is, becomes));
            assert!(line.contains(says), "{line}");
        }
    }
}
