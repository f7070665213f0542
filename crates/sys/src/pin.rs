//! Keeping an open file for as long as anybody uses this process's memory.
//!
//! A userfaultfd that is closed lets its ranges go, and what was evicted of them reads as zeros from then on. A process that is
//! ended by a signal, or by `exit` while other threads run, loses its threads one by one: were the agents' table the only holder, a
//! thread that is in the middle of a `send` when they are gone could send zeros in its last microseconds. So the memory itself
//! holds the file: an io_uring in which it is registered, and which is mapped. Nobody ever submits anything to it.
//!
//! Where io_uring is refused (`kernel.io_uring_disabled`, many containers), an asynchronous poll for an event that never comes
//! does the same, because asynchronous I/O contexts belong to the memory too. It costs the process some 30 ms at its end, when the
//! kernel waits for a grace period of RCU, which is why it comes second.
//!
//! A forked child has neither: its memory holds nothing of its parent's.

use crate::call::{Errno, Result};
use crate::file::Fd;
use crate::inject::{self, Point};
use crate::mem;
use crate::{syscall, PAGE_SIZE};

/// `struct io_uring_params` (linux/io_uring.h): 120 bytes of which nothing is asked for.
type RingParameters = [u64; 15];

/// Offset at which the submission entries are mapped.
const OFF_SQES: usize = 0x1000_0000;
/// The kernel permits no wish for a place here ([`mem::place`]), but for the lowest 2 GiB, on x86-64.
#[cfg(target_arch = "x86_64")]
const FAR_FROM_PROGRAMS: i32 = libc::MAP_32BIT;
#[cfg(not(target_arch = "x86_64"))]
const FAR_FROM_PROGRAMS: i32 = 0;
const REGISTER_FILES: usize = 2;
const UNREGISTER_FILES: usize = 3;
/// `IOCB_CMD_POLL` (linux/aio_abi.h).
const CMD_POLL: u16 = 5;

/// What holds the file.
#[derive(Debug)]
pub enum Pin {
    /// An io_uring, and where it is mapped.
    Ring(Fd, usize),
    /// An asynchronous I/O context.
    Poll(usize),
}

impl Pin {
    /// Has this process's memory hold the file.
    ///
    /// # Errors
    /// That of the second way, if the kernel permits neither.
    pub fn new(fd: i32) -> Result<Pin> {
        if let Some(error) = inject::error(Point::Pin) {
            return Err(error);
        }
        Pin::by_ring(fd).or_else(|_| Pin::by_poll(fd))
    }

    fn by_ring(fd: i32) -> Result<Pin> {
        let mut parameters: RingParameters = [0; 15];
        // SAFETY: the structure is as long as the kernel expects.
        let ring = unsafe { syscall!(io_uring_setup, 1, parameters.as_mut_ptr() as usize) }?;
        // SAFETY: the kernel just made the descriptor for us.
        let ring = unsafe { Fd::from_raw(ring as i32) };
        // SAFETY: one number.
        unsafe { syscall!(io_uring_register, ring.raw(), REGISTER_FILES, &fd as *const i32 as usize, 1) }?;
        let map = |flags| mem::map_file(ring.raw(), PAGE_SIZE, OFF_SQES, flags);
        let at = map(FAR_FROM_PROGRAMS).or_else(|_| map(0))?;
        let pin = Pin::Ring(ring, at);
        // A child would hold its parent's file otherwise.
        // SAFETY: our own mapping, which nobody touches.
        unsafe { mem::madvise(at, PAGE_SIZE, libc::MADV_DONTFORK) }.map(|()| pin)
    }

    fn by_poll(fd: i32) -> Result<Pin> {
        let mut context = 0usize;
        // SAFETY: the kernel writes one word.
        unsafe { syscall!(io_setup, 1, &mut context as *mut usize as usize) }?;
        let pin = Pin::Poll(context);
        // `struct iocb`: the opcode stands in the third word, the descriptor above it; no event is polled for.
        let mut block = [0u64; 8];
        block[2] = u64::from(CMD_POLL) | (fd as u64) << 32;
        let list = [block.as_ptr()];
        // SAFETY: one whole block, which the kernel copies.
        match unsafe { syscall!(io_submit, context, 1, list.as_ptr() as usize) } {
            Ok(1) => Ok(pin),
            Ok(_) => Err(Errno::EAGAIN),
            Err(error) => Err(error),
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        match *self {
            // The kernel takes its time with an io_uring that nobody has any more, but lets go of the file at once.
            // SAFETY: our own mapping; no memory involved.
            Pin::Ring(ref ring, at) => unsafe {
                let _ = syscall!(io_uring_register, ring.raw(), UNREGISTER_FILES, 0, 0);
                let _ = mem::munmap(at, PAGE_SIZE);
            },
            // SAFETY: our own context.
            Pin::Poll(context) => drop(unsafe { syscall!(io_destroy, context) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket of which the other end tells whether anybody has it open.
    fn pair() -> (Fd, Fd) {
        let mut fds = [0i32; 2];
        // SAFETY: two numbers.
        let made = unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr()) };
        assert_eq!(made, 0);
        // SAFETY: just made.
        unsafe { (Fd::from_raw(fds[0]), Fd::from_raw(fds[1])) }
    }

    /// Whether somebody has the first socket open still, if that does not end within the time.
    fn is_held(other_end: &Fd, patience_ms: i32) -> bool {
        let mut wanted = libc::pollfd { fd: other_end.raw(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure.
        unsafe { libc::poll(&mut wanted, 1, patience_ms) == 0 }
    }

    fn holds(pin: fn(i32) -> Result<Pin>) {
        let (held, other_end) = pair();
        let pin = pin(held.raw()).unwrap();
        drop(held);
        assert!(is_held(&other_end, 0));
        drop(pin);
        // A worker of the kernel's lets go of it, so not at once on a busy machine.
        assert!(!is_held(&other_end, 60_000));
    }

    #[test]
    fn memory_holds_a_file_until_it_lets_go_of_it_by_either_way() {
        holds(Pin::by_ring);
        holds(Pin::by_poll);
    }
}
