//! One at a time attaches to a process, or detaches from it.
//!
//! Invariants: who holds the lock is who may trace the process, as nobody else can open its memory.

use crate::{threads, Error};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io::ErrorKind;

/// The lock on a process, held until it is dropped.
#[derive(Debug)]
pub struct Alone {
    _lock: Flock<File>,
}

impl Alone {
    /// Takes it.
    ///
    /// # Errors
    /// Somebody has it, or the process may not be traced.
    pub fn with(pid: u32) -> Result<Alone, Error> {
        let memory = File::open(format!("/proc/{pid}/mem")).map_err(|error| match error.kind() {
            ErrorKind::PermissionDenied => threads::forbidden(pid, Errno::EACCES),
            _ => Error::Ended(pid),
        })?;
        match Flock::lock(memory, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Alone { _lock: lock }),
            Err((_, Errno::EWOULDBLOCK)) => Err(Error::Taken(pid)),
            Err((_, errno)) => Err(Error::Memory(pid, errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_for_one_at_a_time() {
        let own = std::process::id();
        let first = Alone::with(own).unwrap();
        assert!(matches!(Alone::with(own), Err(Error::Taken(pid)) if pid == own));
        drop(first);
        assert!(Alone::with(own).is_ok());
        assert!(matches!(Alone::with(u32::MAX), Err(Error::Ended(_))));
    }
}
