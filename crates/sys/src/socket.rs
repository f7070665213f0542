//! Unix sockets, and waiting for many descriptors at once.
//!
//! What it is not: a protocol. Nothing here waits for the other end.

use crate::call::{Errno, Result};
use crate::file::Fd;
use crate::syscall;
use crate::time::Nanos;
use core::mem::{size_of, zeroed};

/// Connects to the Unix stream socket at `path`; `EINVAL` when the path is too long (107 bytes), `EAGAIN` where somebody listens and has no room
/// for one more.
pub fn connect(path: &[u8]) -> Result<Fd> {
    // SAFETY: zeros are an address.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    if path.is_empty() || path.len() >= address.sun_path.len() {
        return Err(Errno::EINVAL);
    }
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory involved, and the kernel just made the descriptor for us.
    let fd = unsafe { Fd::from_raw(syscall!(socket, libc::AF_UNIX, kind, 0)? as i32) };
    // SAFETY: a whole address.
    unsafe { syscall!(connect, fd.raw(), &address as *const _ as usize, size_of::<libc::sockaddr_un>()) }?;
    Ok(fd)
}

/// Sends `bytes`. Returns how many went; `EAGAIN`, without waiting and whatever the other users of the socket have set, where there is no room.
pub fn send(socket: i32, bytes: &[u8]) -> Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the buffer is valid for its length.
    unsafe { syscall!(sendto, socket, bytes.as_ptr() as usize, bytes.len(), flags, 0usize, 0usize) }
}

/// Reads bytes, and leaves aside the descriptors that come with them. Returns their number, 0 at the end; `EAGAIN`, without waiting, where there
/// are none yet.
pub fn hear(socket: i32, bytes: &mut [u8]) -> Result<usize> {
    let (to, len) = (bytes.as_mut_ptr() as usize, bytes.len());
    // SAFETY: the buffer is valid for its length.
    unsafe { syscall!(recvfrom, socket, to, len, libc::MSG_DONTWAIT, 0usize, 0usize) }
}

/// The same into two places, the second of which is filled once the first is full.
pub fn hear_both(socket: i32, first: &mut [u8], second: &mut [u8]) -> Result<usize> {
    let part = |to: &mut [u8]| libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let mut parts = [part(first), part(second)];
    // SAFETY: zeros are a message of nothing.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
    // SAFETY: the buffers are valid for their lengths.
    unsafe { syscall!(recvmsg, socket, &raw mut message as usize, libc::MSG_DONTWAIT) }
}

/// Whether there is something to read, which it leaves there. `None` at the end, or where the connection is broken.
pub fn has_bytes(socket: i32) -> Option<bool> {
    let mut byte = 0u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: room for one byte.
    match unsafe { syscall!(recvfrom, socket, &raw mut byte as usize, 1, flags, 0usize, 0usize) } {
        Ok(0) => None,
        Ok(_) => Some(true),
        Err(Errno::EAGAIN | Errno::EINTR) => Some(false),
        Err(_) => None,
    }
}

/// Waits until there is something to say of one of the descriptors, and writes it down. Nothing is said after a signal or when the time
/// is over.
pub fn poll_all(polls: &mut [libc::pollfd], timeout: Nanos) {
    let timeout = timeout.to_timespec();
    let (to, time) = (polls.as_mut_ptr() as usize, &raw const timeout as usize);
    // SAFETY: valid structures; no signal mask.
    let ready = unsafe { syscall!(ppoll, to, polls.len(), time, 0usize, 0usize) };
    if ready.is_err() {
        polls.iter_mut().for_each(|poll| poll.revents = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_arrive_and_nobody_waits_for_them() {
        let (here, there) = UnixStream::pair().unwrap();
        let (from, to) = (here.as_raw_fd(), there.as_raw_fd());
        let mut bytes = [0; 16];
        let ready = |timeout| {
            let mut poll = [libc::pollfd { fd: to, events: libc::POLLIN, revents: 0 }];
            poll_all(&mut poll, timeout);
            poll[0].revents != 0
        };
        assert_eq!((hear(to, &mut bytes), has_bytes(to)), (Err(Errno::EAGAIN), Some(false)));
        assert!(!ready(Nanos(0)));
        assert_eq!(send(from, b"bell"), Ok(4));
        assert!(ready(Nanos::from_secs(10)));
        assert_eq!((has_bytes(to), hear(to, &mut bytes)), (Some(true), Ok(4)));
        assert_eq!(&bytes[..4], b"bell");
        let (mut first, mut second) = ([0; 3], [0; 9]);
        assert_eq!(hear_both(to, &mut first, &mut second), Err(Errno::EAGAIN));
        assert_eq!(send(from, b"two bells"), Ok(9));
        assert_eq!(hear_both(to, &mut first, &mut second), Ok(9));
        assert_eq!((&first[..], &second[..6]), (&b"two"[..], &b" bells"[..]));
        // Nobody reads: there is an end to what fits.
        while send(from, &[0; 4096]) != Err(Errno::EAGAIN) {}
        while hear(to, &mut bytes).is_ok() {}
        drop(here);
        assert_eq!((has_bytes(to), hear(to, &mut bytes)), (None, Ok(0)));
        assert!(send(to, b"x").is_err());
    }

    #[test]
    fn nobody_listens_at_a_path_that_does_not_exist() {
        assert_eq!(connect(b"/nonexistent/socket").err(), Some(Errno::ENOENT));
        assert_eq!(connect(&[b'x'; 200]).err(), Some(Errno::EINVAL));
    }
}
