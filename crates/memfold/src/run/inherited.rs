//! What this process was started with and Rust's runtime changes before `main`: the program is to have it as it was.
//!
//! The runtime ignores SIGPIPE, and opens `/dev/null` in place of standard descriptors that are closed. The launcher itself cannot learn how
//! the program ended while SIGCHLD is ignored.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bits: standard descriptors that were closed, by their numbers, and signals that were ignored.
static FOUND: AtomicU32 = AtomicU32::new(0);
const SIGPIPE: u32 = 1 << 3;
const SIGCHLD: u32 = 1 << 4;

#[used]
#[link_section = ".init_array"]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    let mut found = 0;
    for fd in 0..3 {
        // SAFETY: only asks.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            found |= 1 << fd;
        }
    }
    for (signal, bit) in [(libc::SIGPIPE, SIGPIPE), (libc::SIGCHLD, SIGCHLD)] {
        // SAFETY: only asks; the structure is valid.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
            {
                found |= bit;
            }
        }
    }
    FOUND.store(found, Relaxed);
}

/// Puts it back, between fork and exec.
pub fn restore() {
    let found = FOUND.load(Relaxed);
    // SAFETY: system calls that are safe after a fork.
    unsafe {
        for fd in (0..3).filter(|fd| found & 1 << fd != 0) {
            libc::close(fd);
        }
        for (signal, bit) in [(libc::SIGPIPE, SIGPIPE), (libc::SIGCHLD, SIGCHLD)] {
            if found & bit != 0 {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}
