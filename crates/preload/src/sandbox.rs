//! The C functions by which a program confines itself or becomes another user.
//!
//! Agent threads do not fit into that: they would stay outside namespaces and filters of the program, or be refused the system calls
//! that they need. So everything is brought back and they end, for good, before the confinement takes hold. After a change of credentials,
//! which they would not take part in, they begin anew.
//!
//! Some libraries change what all threads have past libc (libpsx): they send a signal to each thread that the kernel counts, and wait until all have done it.
//! Agent threads take no signals, and end before that, too.
//!
//! What it is not: a judgement of what a filter permits.

use crate::host::pager;
use crate::{or_errno, real, set_errno};
use core::ffi::{c_char, c_int, c_long};
use memfold_pager::sabotage::{planted, Bug};
use memfold_pager::Engine;
use memfold_sys::thread::{agents, confine, is_confined};
use memfold_sys::{syscall, Errno, Result};

/// Stops folding for good, unless `bug` is planted. A child of `vfork` only borrows the memory: the agent threads are not in its process, and what
/// it does to itself does not concern them. In a program that has confined its system calls it has stopped.
pub fn stop(reason: &'static &'static str, bug: Bug) {
    let goes_on = |engine: &&'static Engine| !is_confined() && engine.is_at_home();
    if let Some(engine) = pager().filter(|_| !planted(bug)).filter(goes_on) {
        engine.stop(reason);
        // Nobody can ask for what is sampled any more, and the calls that sampling makes may soon be forbidden.
        crate::host::sample(0);
    }
}

/// `unshare(2)`. Some namespaces only a process with a single thread may leave, and some of what threads share only a single thread
/// can give up. Descriptors, the current directory and semaphores it may give up beside the pager's threads.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let own = libc::CLONE_FILES | libc::CLONE_FS | libc::CLONE_SYSVSEM;
    if flags & !own != 0 {
        stop(&"the program left a namespace (unshare)", Bug::NamespaceNotSeen);
    }
    // SAFETY: the caller's contract.
    or_errno(unsafe { syscall!(unshare, flags) }) as c_int
}

/// `setns(2)`, as [`unshare`].
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn setns(fd: c_int, kind: c_int) -> c_int {
    stop(&"the program entered another namespace (setns)", Bug::NamespaceNotSeen);
    // SAFETY: the caller's contract.
    or_errno(unsafe { syscall!(setns, fd, kind) }) as c_int
}

/// `chroot(2)`. Behind it there may be neither `/proc` nor a device to serve forked children with.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn chroot(path: *const c_char) -> c_int {
    stop(&"the program changed its root directory (chroot)", Bug::ChrootNotSeen);
    // SAFETY: the caller's contract.
    or_errno(unsafe { syscall!(chroot, path) }) as c_int
}

/// `prctl(2)`; of interest is `PR_SET_SECCOMP`. libc's takes a variable number of arguments, which are passed like these.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    if option == libc::PR_SET_SECCOMP {
        match a as u32 {
            libc::SECCOMP_MODE_FILTER => before_filter(b),
            libc::SECCOMP_MODE_STRICT => before_confinement(),
            // There is no other mode.
            _ => {}
        }
    }
    // SAFETY: the caller's contract.
    or_errno(unsafe { syscall!(prctl, option, a, b, c, d) }) as c_int
}

/// Before the calling thread is under the filter at an address. None is at 0: that is how programs ask whether the kernel has filters (libseccomp, systemd, QEMU),
/// and what they are told by is that it fails (`EFAULT`).
fn before_filter(filter: usize) {
    if filter != 0 {
        before_confinement();
    }
}

/// Before calls are forbidden. The one that shows the counters may be among them, and end the program.
fn before_confinement() {
    static SECCOMP: &str = "the program confined its system calls (seccomp)";
    // What a child of `vfork` notes here its parent would find.
    let borrows = || pager().is_some_and(|engine| !engine.is_at_home());
    if is_confined() || borrows() {
        return;
    }
    stop(&SECCOMP, Bug::SeccompNotSeen);
    if !planted(Bug::CallsAfterFilter) {
        confine();
    }
    if let Some(engine) = pager() {
        engine.hide_control();
    }
}

/// `seccomp(2)`, which has a number only.
///
/// # Safety
/// As for the system call.
pub unsafe fn seccomp(operation: usize, flags: usize, args: usize) -> c_long {
    match operation as u32 {
        libc::SECCOMP_SET_MODE_FILTER => before_filter(args),
        // With any argument it fails, which programs ask for as well.
        libc::SECCOMP_SET_MODE_STRICT if flags == 0 && args == 0 => before_confinement(),
        // The others only ask.
        _ => {}
    }
    // SAFETY: the caller's contract.
    or_errno(unsafe { syscall!(seccomp, operation, flags, args) }) as c_long
}

/// `landlock_restrict_self(2)`, which has a number only. It confines one thread, and what that one starts.
///
/// # Safety
/// As for the system call.
pub unsafe fn landlock_restrict_self(ruleset: usize, flags: usize) -> c_long {
    stop(&"the program confined itself (landlock)", Bug::LandlockNotSeen);
    // SAFETY: the caller's contract.
    or_errno(unsafe { syscall!(landlock_restrict_self, ruleset, flags) }) as c_long
}

/// Before a signal is sent to a thread. Signal 0 only asks whether it is there.
pub fn before_signal(tid: u32, signal: c_int) {
    if signal != 0 && tid != 0 && agents().contains(&tid) {
        stop(&"the program sent a signal to each of its threads (tgkill)", Bug::SignalsUnanswered);
    }
}

/// `tgkill(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn tgkill(process: c_int, tid: c_int, signal: c_int) -> c_int {
    before_signal(tid as u32, signal);
    // SAFETY: the caller's contract.
    or_errno(unsafe { syscall!(tgkill, process, tid, signal) }) as c_int
}

/// A call of the program's own that changes the credentials of the calling thread.
pub fn change_thread(call: impl FnOnce() -> Result<usize>) -> c_long {
    changing(|| or_errno(call())) as c_long
}

/// Runs `call`, and has the pager see whether the credentials are others then: libc does not tell agent threads of it.
fn changing<R>(call: impl FnOnce() -> R) -> R {
    // A child of `vfork` only borrows the memory.
    let Some(engine) = pager().filter(|engine| engine.is_at_home()) else { return call() };
    let before = engine.before_change_of_user();
    let result = call();
    // SAFETY: a program thread has an `errno`, which the pager must not change.
    let errno = unsafe { *libc::__errno_location() };
    engine.after_change_of_user(before);
    set_errno(Errno(errno));
    result
}

/// Functions that change the credentials of all threads that libc knows of.
macro_rules! changes_credentials {
    ($($name:ident($($arg:ident: $kind:ty),*) = $real:ident;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        ///
        /// # Safety
        /// As for libc's.
        #[no_mangle]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> c_int {
            let Some(real) = real::$real.get() else {
                set_errno(Errno::ENOSYS);
                return -1;
            };
            // SAFETY: libc's function of this name has this type.
            let real: unsafe extern "C" fn($($kind),*) -> c_int = unsafe { core::mem::transmute(real) };
            // SAFETY: the caller's contract.
            changing(|| unsafe { real($($arg),*) })
        }
    )*};
}

changes_credentials! {
    setuid(id: u32) = SETUID;
    setgid(id: u32) = SETGID;
    seteuid(id: u32) = SETEUID;
    setegid(id: u32) = SETEGID;
    setreuid(real_id: u32, effective: u32) = SETREUID;
    setregid(real_id: u32, effective: u32) = SETREGID;
    setresuid(real_id: u32, effective: u32, saved: u32) = SETRESUID;
    setresgid(real_id: u32, effective: u32, saved: u32) = SETRESGID;
}
