//! One at a time attaches to a process, or detaches from it.
//!
//! Invariants: who holds the lock is who may trace the process, as nobody else can open its memory. It is never given back by itself, but goes with the last
//! copy of the open file: a child of ours that works on the process ([`crate::hand`]) has one, until it ends.

use crate::memory::Memory;
use crate::Error;
use memfold_pager::sabotage::{planted, Bug};
use nix::errno::Errno;

/// Takes the lock on a process, for as long as its memory is open here or in a child.
///
/// # Errors
/// Somebody has it.
pub fn take(memory: &Memory) -> Result<(), Error> {
    if planted(Bug::LockNotHeld) {
        return Ok(());
    }
    // SAFETY: numbers alone.
    match Errno::result(unsafe { libc::flock(memory.number(), libc::LOCK_EX | libc::LOCK_NB) }) {
        Ok(_) => Ok(()),
        Err(Errno::EWOULDBLOCK) => Err(Error::Taken(memory.pid())),
        Err(errno) => Err(Error::Memory(memory.pid(), errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hand::{do_apart, Late};
    use crate::wait_until;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    #[test]
    fn a_process_is_for_one_at_a_time_and_who_is_left_behind_is_one() {
        let own = std::process::id();
        let (memory, other) = (Memory::open(own).unwrap(), Memory::open(own).unwrap());
        take(&memory).unwrap();
        let is_taken = || matches!(take(&other), Err(Error::Taken(pid)) if pid == own);
        assert!(is_taken());
        let (mut told, mut tells) = std::io::pipe().unwrap();
        let keep = [memory.number(), told.as_raw_fd()];
        let left =
            do_apart(keep, Duration::from_millis(20), Late::GoesOn, || told.read_exact(&mut [0]).is_ok());
        assert_eq!(left.unwrap(), None);
        drop(memory);
        assert!(is_taken());
        tells.write_all(&[0]).unwrap();
        assert!(wait_until(Duration::from_secs(60), || Ok(!is_taken())).unwrap());
        assert!(matches!(Memory::open(u32::MAX), Err(Error::Ended(_))));
    }
}
