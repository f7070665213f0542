//! Reads of files that go on while the thread does something else (io_submit(2)).
//!
//! Why not io_uring: containers forbid it by default, and not these calls; and a read at a time needs no more.
//!
//! What it is not: a queue. A context holds a few reads, and one thread has it.
//!
//! Source: include/uapi/linux/aio_abi.h; the ring that the kernel maps is `struct aio_ring` of fs/aio.c, which may be moved.

use crate::call::{Errno, Result};
use crate::syscall;
use crate::time::Nanos;
use crate::{mem, PAGE_SIZE};

/// A context. Dropping it waits for the reads that were begun.
#[derive(Debug)]
pub struct Context {
    id: usize,
}

/// `struct iocb`, of little-endian machines.
#[repr(C)]
#[derive(Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Default)]
struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

const READ: u16 = 0;

/// The first words of the ring: its id and how many events it holds.
const HEADER: usize = 32;

impl Context {
    /// A context for `reads` at once. A forked child has no part of it. What io_setup(2) answers.
    pub fn new(reads: usize) -> Result<Context> {
        let mut id = 0usize;
        // SAFETY: the kernel writes one word.
        unsafe { syscall!(io_setup, reads, &raw mut id as usize) }?;
        let context = Context { id };
        // SAFETY: the kernel has mapped its ring there, which begins with these words.
        let events = unsafe { (id as *const u32).add(1).read_volatile() } as usize;
        let len = (HEADER + events * size_of::<Event>()).next_multiple_of(PAGE_SIZE);
        context.put_in_place(len)
    }

    /// Has the ring lie where an agent's memory belongs.
    fn put_in_place(mut self, len: usize) -> Result<Context> {
        let place = mem::map_own(len, 0)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the kernel's own ring, which follows it, goes to a mapping of ours that nobody has seen.
        self.id = unsafe { mem::mremap(self.id, len, len, flags, place) }?;
        // SAFETY: advice on that.
        unsafe { mem::madvise(self.id, len, libc::MADV_DONTFORK) }?;
        Ok(self)
    }

    /// Begins to read as many bytes as `to` has.
    ///
    /// # Safety
    /// `to` stays, and nobody looks at it, until [`Context::wait`] has said that the read is over.
    pub unsafe fn read(&self, fd: i32, to: &mut [u8], offset: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { submit(self.id, fd, to, offset, 0) }
    }

    /// For another thread, which may begin reads while this one has the context and waits for none that it has not heard of.
    pub fn handle(&self) -> Handle {
        Handle(self.id)
    }

    /// What a read that is over came to: so many bytes, or an error; `None` where none is over by then.
    pub fn wait(&self, timeout: Nanos) -> Option<Result<usize>> {
        let (mut event, timeout) = (Event::default(), timeout.to_timespec());
        let (to, time) = (&raw mut event as usize, &raw const timeout as usize);
        // SAFETY: room for one event.
        match unsafe { syscall!(io_getevents, self.id, 1, 1, to, time) } {
            Ok(1) => Some(usize::try_from(event.result).map_err(|_| Errno(-event.result as i32))),
            _ => None,
        }
    }
}

/// A context, for a thread that does not have it.
#[derive(Clone, Copy, Debug)]
pub struct Handle(usize);

impl Handle {
    /// Begins to read as many bytes as `to` has, where the kernel need not wait for anything to begin (RWF_NOWAIT of io_submit(2)); `EAGAIN` where it
    /// would, now or as what the read comes to, and `EOPNOTSUPP` where the file system does not know that.
    ///
    /// # Safety
    /// The context is there still, and what [`Context::read`] asks for.
    pub unsafe fn read_at_once(self, fd: i32, to: &mut [u8], offset: u64) -> Result<()> {
        // SAFETY: the caller's contract.
        unsafe { submit(self.0, fd, to, offset, libc::RWF_NOWAIT as u32) }
    }
}

/// Begins a read.
///
/// # Safety
/// As for those who call it.
unsafe fn submit(context: usize, fd: i32, to: &mut [u8], offset: u64, rw_flags: u32) -> Result<()> {
    let request = Request {
        opcode: READ,
        rw_flags,
        fd: fd as u32,
        buffer: to.as_mut_ptr() as u64,
        bytes: to.len() as u64,
        offset: offset as i64,
        ..Request::default()
    };
    let list = [&raw const request as usize];
    // SAFETY: one whole request; the caller's contract.
    match unsafe { syscall!(io_submit, context, 1, list.as_ptr() as usize) } {
        Ok(1) => Ok(()),
        Ok(_) => Err(Errno::EAGAIN),
        Err(error) => Err(error),
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it was made, and is nobody else's.
        let _ = unsafe { syscall!(io_destroy, self.id) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_read_is_there_when_the_read_is_over_and_errors_are_told() {
        let path = std::env::current_exe().unwrap();
        let (whole, file) = (std::fs::read(&path).unwrap(), std::fs::File::open(&path).unwrap());
        let context = Context::new(4).unwrap();
        assert!(context.wait(Nanos(0)).is_none());
        let mut bytes = std::vec![0; 2 * PAGE_SIZE];
        // SAFETY: they are looked at when it is over.
        unsafe { context.read(file.as_raw_fd(), &mut bytes, PAGE_SIZE as u64) }.unwrap();
        assert_eq!(context.wait(Nanos::from_secs(60)), Some(Ok(bytes.len())));
        assert_eq!(bytes, whole[PAGE_SIZE..][..2 * PAGE_SIZE]);
        // SAFETY: as above.
        assert_eq!(unsafe { context.read(-1, &mut bytes, 0) }, Err(Errno(libc::EBADF)));
        // What lies in memory need not be waited for, where the file system knows that.
        // SAFETY: as above, and the context is there.
        let begun = unsafe { context.handle().read_at_once(file.as_raw_fd(), &mut bytes, 0) };
        match begun.and_then(|()| context.wait(Nanos::from_secs(60)).unwrap()) {
            Ok(len) => assert_eq!(bytes[..len], whole[..len]),
            Err(error) => assert!([libc::EOPNOTSUPP, libc::EAGAIN].contains(&error.0), "{error:?}"),
        }
    }
}
