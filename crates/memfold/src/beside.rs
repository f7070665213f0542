//! Processes beside `memfold daemon`. They do what the daemon cannot do any more when it has given up its rights ([`memfold_daemon::sandbox`]): it
//! does so before it looks at anything that a program wrote.
//!
//! Invariants: one is started while the daemon has no other thread and no socket, and ends with the daemon, however that ends.

use std::io;
use std::os::unix::process::parent_id;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Has another process do `work`, which is told by what it gets whether it is over. `stop` is set by signals, in both processes.
///
/// # Errors
/// There can be no other process.
pub fn start(stop: &'static AtomicBool, work: impl FnOnce(&dyn Fn() -> bool)) -> io::Result<()> {
    let daemon = std::process::id();
    // SAFETY: there is no other thread, so the child has everything that this process has.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            work(&|| stop.load(Relaxed) || parent_id() != daemon);
            // Nothing of the daemon's is to be ended here.
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        _ => Ok(()),
    }
}
