//! The handshake of a userfaultfd with reports of forks, for a process that has not the right to it (CAP_SYS_PTRACE): by who attaches to it, if that one
//! has, else by a program that has it for this alone (`memfold-handshake`).
//!
//! The agent waits at a socket. It is handed the device, makes the userfaultfd, which is of its process's memory alone whoever has it, and hands that over.
//!
//! Invariants: nothing is asked of a descriptor that came from the process before it is known to be a userfaultfd; nothing waits for the process for ever.

use crate::memory::Memory;
use crate::proc;
use crate::region::Region;
use crate::rights::{device, helper, may_ask_for_forks};
use crate::{wait_until, Error, Target};
use memfold_pager::features_with_forks;
use memfold_pager::plan::{NO_TRACKING, TRACKING};
use memfold_sys::file::Fd;
use memfold_sys::handing::{hand_over, pair, take_over};
use memfold_sys::time::Nanos;
use memfold_sys::uffd::{Features, Userfaultfd};
use memfold_sys::Errno;
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

/// How long the process may take for a step.
const PATIENCE: Duration = Duration::from_secs(20);
/// `pidfd_open` of a thread (linux/pidfd.h, Linux 6.9).
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// Helps the agent's thread, which was just started; an agent that ends instead says itself why.
pub fn help(target: &Target, memory: &Memory, region: &Region) -> Result<(), Error> {
    let failed =
        |call| move |errno: Errno| Error::Helping(target.pid(), call, nix::errno::Errno::from_raw(errno.0));
    let (wanted, tracks) = features().map_err(failed("userfaultfd"))?.ok_or(Error::Helping(
        target.pid(),
        "UFFDIO_API",
        nix::errno::Errno::EINVAL,
    ))?;
    let mut waits = None;
    let over = wait_until(PATIENCE, || {
        let plan = region.plan(memory)?;
        waits = plan.waits_at();
        Ok(waits.is_some() || plan.alive.load(Acquire) == 0)
    })?;
    let Some((tid, number)) = waits.filter(|_| over) else { return Ok(()) };
    let tid = thread_known_as(target.pid(), tid).ok_or(Error::Ended(target.pid()))?;
    let socket = take(tid, number).map_err(failed("pidfd_getfd"))?;
    // The agent goes on by itself where there is no device here.
    hand_over(socket.raw(), 0, device().as_ref().map(Fd::raw)).map_err(failed("sendmsg"))?;
    // The agent says why.
    let Ok((_, Some(came))) = take_over(socket.raw(), patience()) else { return Ok(()) };
    if may_ask_for_forks(std::process::id()) {
        Userfaultfd::taken_over(came)
            .and_then(|uffd| uffd.handshake(wanted))
            .map_err(failed("UFFDIO_API"))?;
    } else {
        have_it_made(came, wanted).map_err(failed("memfold-handshake"))?;
    }
    hand_over(socket.raw(), if tracks { TRACKING } else { NO_TRACKING }, None).map_err(failed("sendmsg"))
}

/// What to ask for.
fn features() -> memfold_sys::Result<Option<(Features, bool)>> {
    let made = device().map_or_else(Userfaultfd::open, |device| Userfaultfd::from_device(device.raw()));
    Ok(features_with_forks(made?.handshake(Features::empty())?))
}

/// Has the program that has the right to it ask for these features with what came from the process.
fn have_it_made(came: Fd, wanted: Features) -> memfold_sys::Result<()> {
    let helper = helper().ok_or(Errno::ENOENT)?;
    let (own, theirs) = pair()?;
    hand_over(own.raw(), 0, Some(came.raw()))?;
    // SAFETY: nobody else has it.
    let theirs = unsafe { OwnedFd::from_raw_fd(theirs.into_raw()) };
    let mut command = Command::new(helper);
    command.arg(wanted.bits().to_string()).stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))?;
    // Its end of the socket is its own alone from here on: if it ends without a word, that is heard.
    drop(command);
    let answer = take_over(own.raw(), patience());
    // It answers once and ends, or is told nothing and ends.
    drop(own);
    let _ = child.wait();
    match answer? {
        (0, _) => Ok(()),
        (error, _) => Err(Errno(i32::from(error))),
    }
}

fn patience() -> Nanos {
    Nanos(PATIENCE.as_nanos() as u64)
}

/// The thread that its process knows by that number: it may be in a PID namespace of its own.
fn thread_known_as(pid: u32, known: u32) -> Option<u32> {
    proc::numbers(&format!("/proc/{pid}/task")).into_iter().find(|tid| {
        let status = proc::text(&format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        numbers.and_then(|line| line.split_whitespace().last()?.parse().ok()) == Some(known)
    })
}

/// A copy of what a thread has open.
fn take(tid: u32, number: i32) -> memfold_sys::Result<Fd> {
    // SAFETY: no memory involved, and the kernel just made the descriptors for us.
    unsafe {
        let pidfd = Fd::from_raw(memfold_sys::syscall!(pidfd_open, tid, PIDFD_THREAD)? as i32);
        memfold_sys::syscall!(pidfd_getfd, pidfd.raw(), number, 0).map(|fd| Fd::from_raw(fd as i32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_sys::file;

    #[test]
    fn a_thread_is_found_by_the_number_that_it_has_for_its_process() {
        let own = memfold_sys::thread::current_tid();
        assert_eq!(thread_known_as(std::process::id(), own), Some(own));
        assert_eq!(thread_known_as(std::process::id(), u32::MAX), None);
    }

    #[test]
    fn what_a_thread_has_open_can_be_taken_from_its_own_table() {
        let (sender, told) = std::sync::mpsc::channel();
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            memfold_sys::table::leave([]).unwrap();
            let null = file::open(c"/dev/null", libc::O_RDONLY, 0).unwrap();
            sender.send((memfold_sys::thread::current_tid(), null.raw())).unwrap();
            let _ = wait.recv();
        });
        let (tid, number) = told.recv().unwrap();
        let taken = take(tid, number);
        drop(done);
        thread.join().unwrap();
        assert!(file::device_number(taken.unwrap().raw()).is_some());
    }
}
