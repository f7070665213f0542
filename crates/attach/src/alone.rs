//! One at a time attaches to a process, or detaches from it.
//!
//! Invariants: who holds the lock is who may trace the process, as nobody else can open its memory. A child of ours that works on the process
//! ([`crate::hand`]) holds it too, until it ends.

use crate::memory::Memory;
use crate::Error;
use memfold_pager::sabotage::{planted, Bug};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;

/// The lock on a process, held until it is dropped.
#[derive(Debug)]
pub struct Alone {
    _lock: Option<Flock<File>>,
}

impl Alone {
    /// Takes it.
    ///
    /// # Errors
    /// Somebody has it.
    pub fn with(memory: &Memory) -> Result<Alone, Error> {
        if planted(Bug::LockNotHeld) {
            return Ok(Alone { _lock: None });
        }
        match Flock::lock(memory.file()?, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => Ok(Alone { _lock: Some(lock) }),
            Err((_, Errno::EWOULDBLOCK)) => Err(Error::Taken(memory.pid())),
            Err((_, errno)) => Err(Error::Memory(memory.pid(), errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_for_one_at_a_time() {
        let own = std::process::id();
        let (memory, other) = (Memory::open(own).unwrap(), Memory::open(own).unwrap());
        let first = Alone::with(&memory).unwrap();
        assert!(matches!(Alone::with(&other), Err(Error::Taken(pid)) if pid == own));
        drop(first);
        assert!(Alone::with(&other).is_ok());
        assert!(matches!(Memory::open(u32::MAX), Err(Error::Ended(_))));
    }
}
