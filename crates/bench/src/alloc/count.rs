//! The kernel calls of an allocator, counted: `mmap`, `munmap`, `mremap`, `madvise`, `mprotect` and `brk`.
//!
//! A seccomp filter has the kernel report each of these calls to the experiment before it goes on (seccomp_unotify(2)). A
//! reported call takes some ten microseconds longer, all others run as ever; so calls are counted in runs of their own,
//! from which nothing else is taken.
//!
//! Invariants: the filter refuses and changes no call; a call is counted before it is made, so whoever has a worker's answer
//! has counted all calls before it.

use crate::Unsupported;
use anyhow::{Context, Result};
use memfold_sys::file::Fd;
use memfold_sys::handing::{hand_over, pair, take_over};
use memfold_sys::time::Nanos;
use memfold_sys::Errno;
use serde::{Deserialize, Serialize};
use std::io::{self, Error};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;

/// What is counted, in the order of the counters.
const CALLS: [libc::c_long; 6] = [
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
    libc::SYS_brk,
];

/// How often each call was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelCalls {
    /// `mmap(2)`.
    pub mmap: u64,
    /// `munmap(2)`.
    pub munmap: u64,
    /// `mremap(2)`.
    pub mremap: u64,
    /// `madvise(2)`.
    pub madvise: u64,
    /// `mprotect(2)`.
    pub mprotect: u64,
    /// `brk(2)`.
    pub brk: u64,
}

impl KernelCalls {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.mmap + self.munmap + self.mremap + self.madvise + self.mprotect + self.brk
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &KernelCalls) -> KernelCalls {
        KernelCalls {
            mmap: self.mmap - earlier.mmap,
            munmap: self.munmap - earlier.munmap,
            mremap: self.mremap - earlier.mremap,
            madvise: self.madvise - earlier.madvise,
            mprotect: self.mprotect - earlier.mprotect,
            brk: self.brk - earlier.brk,
        }
    }
}

/// A command whose program will be counted once it has started.
pub(super) struct Armed {
    socket: Fd,
}

/// Counts the calls of a program until the program has ended.
pub(super) struct Counter {
    counts: Arc<[AtomicU64; CALLS.len()]>,
    listener: Option<JoinHandle<()>>,
}

/// Puts the filter on the program that `command` starts.
pub(super) fn arm(command: &mut Command) -> Result<Armed> {
    let (ours, theirs) = pair().map_err(io_error).context("cannot make a pair of sockets")?;
    // SAFETY: the closure makes system calls only and allocates nothing.
    unsafe { command.pre_exec(move || hand_over(theirs.raw(), 0, Some(filter()?)).map_err(io_error)) };
    Ok(Armed { socket: ours })
}

impl Armed {
    /// Begins to count; to be called once the program was started.
    ///
    /// # Errors
    /// When the kernel gave no descriptor.
    pub(super) fn listen(self) -> Result<Counter> {
        // It was sent before the program was executed.
        let sent = take_over(self.socket.raw(), Nanos(0)).map_err(io_error);
        let (_, notifications) = sent.context("the counted program sent no descriptor")?;
        let notifications = notifications.context("the counted program's message has no descriptor")?;
        let counts = Arc::new([const { AtomicU64::new(0) }; CALLS.len()]);
        let shared = Arc::clone(&counts);
        let listener = std::thread::spawn(move || while serve(&notifications, &shared) {});
        Ok(Counter { counts, listener: Some(listener) })
    }
}

impl Counter {
    /// What was counted so far.
    pub(super) fn calls(&self) -> KernelCalls {
        // Relaxed: a worker's answer comes through a pipe after its calls were let go on.
        let [mmap, munmap, mremap, madvise, mprotect, brk] =
            [0, 1, 2, 3, 4, 5].map(|i| self.counts[i].load(Relaxed));
        KernelCalls { mmap, munmap, mremap, madvise, mprotect, brk }
    }
}

impl Drop for Counter {
    /// Waits for the program's end, which the caller has brought about or will: without its listener it would not go on.
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

/// Whether this kernel lets a program be counted.
///
/// # Errors
/// [`Unsupported`] when it does not.
pub(super) fn probe() -> Result<()> {
    let counted = || -> Result<()> {
        let mut command = Command::new("/proc/self/exe");
        command.arg("--version").stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let armed = arm(&mut command)?;
        let mut child = command.spawn()?;
        let counter = armed.listen()?;
        child.wait()?;
        anyhow::ensure!(counter.calls().mmap > 0, "no call was reported");
        Ok(())
    };
    counted().map_err(|error| {
        Unsupported(format!("kernel calls cannot be counted here (seccomp user notification): {error:#}"))
            .into()
    })
}

/// Installs the filter in the calling thread; the descriptor that reports come from.
fn filter() -> io::Result<i32> {
    const SIZE: usize = CALLS.len() + 3;
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let (equal, give) =
        ((libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16, (libc::BPF_RET | libc::BPF_K) as u16);
    // SAFETY: both only put values into a struct. The number of the call is the first word of what is examined.
    let (statement, jump) =
        unsafe { (libc::BPF_STMT(load, 0), libc::BPF_STMT(give, libc::SECCOMP_RET_ALLOW)) };
    let mut program = [statement; SIZE];
    for (place, &call) in CALLS.iter().enumerate() {
        let to_report = (CALLS.len() - place) as u8;
        // SAFETY: as above.
        program[1 + place] = unsafe { libc::BPF_JUMP(equal, call as u32, to_report, 0) };
    }
    program[SIZE - 2] = jump;
    // SAFETY: as above.
    program[SIZE - 1] = unsafe { libc::BPF_STMT(give, libc::SECCOMP_RET_USER_NOTIF) };
    let program = libc::sock_fprog { len: SIZE as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid for the call, which copies it; without new privileges anybody may install one.
    let result = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
            return Err(Error::last_os_error());
        }
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
            &program,
        )
    };
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result as i32)
    }
}

fn io_error(errno: Errno) -> Error {
    Error::from_raw_os_error(errno.0)
}

/// Counts one call and lets it go on; false when the program has ended.
fn serve(notifications: &Fd, counts: &[AtomicU64; CALLS.len()]) -> bool {
    let descriptor = notifications.raw();
    let mut ready = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    // SAFETY: all-zero values are valid, and the kernel demands them; all pointers are to locals.
    unsafe {
        if libc::poll(&mut ready, 1, -1) < 0 {
            return Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        }
        if ready.revents & libc::POLLIN == 0 {
            return false;
        }
        let mut call: libc::seccomp_notif = std::mem::zeroed();
        if libc::ioctl(descriptor, libc::SECCOMP_IOCTL_NOTIF_RECV, &mut call) != 0 {
            // The caller was interrupted by a signal, or died.
            return true;
        }
        if let Some(place) = CALLS.iter().position(|&number| number == libc::c_long::from(call.data.nr)) {
            counts[place].fetch_add(1, Relaxed);
        }
        let mut reply: libc::seccomp_notif_resp = std::mem::zeroed();
        reply.id = call.id;
        reply.flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        // A caller that is gone by now needs no answer.
        libc::ioctl(descriptor, libc::SECCOMP_IOCTL_NOTIF_SEND, &mut reply);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_of_a_program_is_counted_and_goes_on() {
        let mut command = Command::new("/bin/true");
        let armed = arm(&mut command).unwrap();
        let mut child = command.spawn().unwrap();
        let counter = armed.listen().unwrap();
        assert!(child.wait().unwrap().success());
        let calls = counter.calls();
        assert!(calls.mmap >= 3 && calls.mprotect >= 1 && calls.brk >= 1, "{calls:?}");
        assert_eq!(calls.since(&calls).total(), 0);
    }
}
