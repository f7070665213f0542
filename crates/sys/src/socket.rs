//! Unix sockets, descriptors passed through them, event counters and shared memory files: what two processes need to meet.
//!
//! What it is not: a protocol.

use crate::call::{Errno, Result};
use crate::file::Fd;
use crate::syscall;
use crate::time::Nanos;
use core::mem::{size_of, zeroed};

/// Most descriptors in one message.
pub const MOST_FDS: usize = 8;
const CONTROL: usize = 64;

/// Connects to the Unix stream socket at `path`; `EINVAL` when the path is too long (107 bytes).
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
    // SAFETY: no memory involved, and the kernel just made the descriptor for us.
    let fd = unsafe {
        Fd::from_raw(syscall!(socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0)? as i32)
    };
    // SAFETY: a whole address.
    unsafe { syscall!(connect, fd.raw(), &address as *const _ as usize, size_of::<libc::sockaddr_un>()) }?;
    Ok(fd)
}

/// Who is at the other end of a connected socket: a process that connected, or the one that listens, as it was when it began to
/// (`SO_PEERCRED`, unix(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// Its id, 0 where it is in another PID namespace.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
}

/// Tells who is at the other end.
pub fn peer(socket: i32) -> Result<Credentials> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (to, len) = (&raw mut found as usize, &raw mut len as usize);
    // SAFETY: the structure and its length are valid for the call.
    unsafe { syscall!(getsockopt, socket, libc::SOL_SOCKET, libc::SO_PEERCRED, to, len) }?;
    Ok(Credentials { pid: found.pid as u32, uid: found.uid })
}

#[repr(C, align(8))]
struct Control([u8; CONTROL]);

/// Sends `bytes` with copies of the descriptors; at most [`MOST_FDS`]. Returns how many bytes went; `EAGAIN`, without waiting and
/// whatever the other users of the socket have set, where there is no room.
pub fn send(socket: i32, bytes: &[u8], fds: &[i32]) -> Result<usize> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec { iov_base: bytes.as_ptr() as *mut _, iov_len: bytes.len() };
    // SAFETY: zeros are an empty message.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
    if !fds.is_empty() {
        if fds.len() > MOST_FDS {
            return Err(Errno::EINVAL);
        }
        let len = size_of::<libc::cmsghdr>() + 4 * fds.len();
        let header = control.0.as_mut_ptr().cast::<libc::cmsghdr>();
        // SAFETY: the buffer is aligned and long enough for a header and so many numbers.
        unsafe {
            (*header).cmsg_len = len as _;
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            core::ptr::copy_nonoverlapping(fds.as_ptr(), header.add(1).cast::<i32>(), fds.len());
        }
        (message.msg_control, message.msg_controllen) = (header.cast(), len.next_multiple_of(8) as _);
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: a whole message.
    unsafe { syscall!(sendmsg, socket, &message as *const _ as usize, flags) }
}

/// Receives into `bytes` and takes over the descriptors that come along, closed again beyond [`MOST_FDS`]. Returns the
/// number of bytes, 0 at the end; `EAGAIN`, without waiting, where there are none yet.
pub fn receive(socket: i32, bytes: &mut [u8], fds: &mut [Option<Fd>; MOST_FDS]) -> Result<usize> {
    let mut control = Control([0; CONTROL]);
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are an empty message.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.0.as_mut_ptr().cast(), CONTROL as _);
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: a whole message; what it points to is writable.
    let len = unsafe { syscall!(recvmsg, socket, &mut message as *mut _ as usize, flags) }?;
    let header = control.0.as_ptr().cast::<libc::cmsghdr>();
    // SAFETY: the buffer is aligned and longer than a header.
    let (kind, got) = unsafe { ((*header).cmsg_type, (*header).cmsg_len) };
    if message.msg_controllen as usize >= size_of::<libc::cmsghdr>() && kind == libc::SCM_RIGHTS {
        let count = (got.min(CONTROL) - size_of::<libc::cmsghdr>()) / 4;
        for n in 0..count {
            // SAFETY: the kernel wrote so many numbers behind the header, and they are ours now.
            let fd = unsafe { Fd::from_raw(*header.add(1).cast::<i32>().add(n)) };
            if let Some(place) = fds.get_mut(n) {
                *place = Some(fd);
            }
        }
    }
    Ok(len)
}

/// Reads bytes, and leaves aside the descriptors that come with them. Returns their number, 0 at the end; `EAGAIN`, without waiting,
/// where there are none yet.
pub fn hear(socket: i32, bytes: &mut [u8]) -> Result<usize> {
    let (to, len) = (bytes.as_mut_ptr() as usize, bytes.len());
    // SAFETY: the buffer is valid for its length.
    unsafe { syscall!(recvfrom, socket, to, len, libc::MSG_DONTWAIT, 0usize, 0usize) }
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

/// Makes an event counter (`eventfd(2)`): reading never blocks.
pub fn event_counter() -> Result<Fd> {
    // SAFETY: no memory involved, and the kernel just made the descriptor for us.
    unsafe { Ok(Fd::from_raw(syscall!(eventfd2, 0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)? as i32)) }
}

/// Rings an event counter.
pub fn ring(counter: i32) {
    // A full counter has been rung.
    let _ = crate::file::write_all(counter, &1u64.to_ne_bytes());
}

/// Sets an event counter back.
pub fn silence(counter: i32) {
    // An empty counter is what is wanted.
    let _ = crate::file::read(counter, &mut [0; 8]);
}

/// Makes a file of `len` zeros in memory that can be neither shortened nor lengthened.
pub fn sealed_memory(name: &'static core::ffi::CStr, len: u64) -> Result<Fd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: a valid name, and the kernel just made the descriptor for us.
    let fd = unsafe { Fd::from_raw(syscall!(memfd_create, name.as_ptr() as usize, flags)? as i32) };
    crate::file::set_len(fd.raw(), len)?;
    // SAFETY: no memory involved.
    unsafe { syscall!(fcntl, fd.raw(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) }?;
    Ok(fd)
}

/// Waits until one of the descriptors can be read or was closed at the other end, at most `timeout`. Negative numbers are
/// left out. Bit `n` of the result is set for descriptor `n`; it is 0 after a signal or when the time is over.
pub fn wait_for<const N: usize>(fds: [i32; N], timeout: Nanos) -> u32 {
    let news = poll(fds, timeout);
    news.iter().enumerate().fold(0, |bits, (n, &events)| bits | u32::from(events != 0) << n)
}

/// The same, with what there is to say of each descriptor: `POLLIN` and its kin (poll(2)).
pub fn poll<const N: usize>(fds: [i32; N], timeout: Nanos) -> [i16; N] {
    let mut polls = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    poll_all(&mut polls, timeout);
    polls.map(|poll| poll.revents)
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
    fn bytes_and_descriptors_arrive_together() {
        let (here, there) = UnixStream::pair().unwrap();
        let counter = event_counter().unwrap();
        // SAFETY: always succeeds.
        let me = Credentials { pid: std::process::id(), uid: unsafe { libc::geteuid() } };
        assert_eq!(peer(here.as_raw_fd()), Ok(me));
        assert_eq!(peer(counter.raw()), Err(Errno(libc::ENOTSOCK)));
        assert_eq!(send(here.as_raw_fd(), b"hello", &[counter.raw(), 1]), Ok(5));
        let (mut bytes, mut fds) = ([0; 16], [const { None }; MOST_FDS]);
        assert_eq!(receive(there.as_raw_fd(), &mut bytes, &mut fds), Ok(5));
        assert_eq!((&bytes[..5], fds.iter().flatten().count()), (&b"hello"[..], 2));
        // What arrived is the same counter under another number.
        let copy = fds[0].as_ref().unwrap().raw();
        assert_eq!(wait_for([copy], Nanos(0)), 0);
        ring(counter.raw());
        assert_eq!(wait_for([-1, copy], Nanos(0)), 2);
        silence(copy);
        assert_eq!(wait_for([counter.raw()], Nanos(0)), 0);
        assert_eq!(send(here.as_raw_fd(), b"x", &[]), Ok(1));
        assert_eq!(receive(there.as_raw_fd(), &mut bytes, &mut [const { None }; MOST_FDS]), Ok(1));
        assert_eq!(receive(there.as_raw_fd(), &mut bytes, &mut fds), Err(Errno::EAGAIN));
        assert_eq!(
            (hear(there.as_raw_fd(), &mut bytes), has_bytes(there.as_raw_fd())),
            (Err(Errno::EAGAIN), Some(false))
        );
        assert_eq!(send(here.as_raw_fd(), b"bell", &[1]), Ok(4));
        assert_eq!((has_bytes(there.as_raw_fd()), hear(there.as_raw_fd(), &mut bytes)), (Some(true), Ok(4)));
        // Nobody reads: there is an end to what fits.
        while send(here.as_raw_fd(), &[0; 4096], &[]) != Err(Errno::EAGAIN) {}
        while hear(there.as_raw_fd(), &mut bytes).is_ok() {}
        drop(here);
        assert_eq!(wait_for([there.as_raw_fd()], Nanos::from_secs(10)), 1);
        assert_eq!(has_bytes(there.as_raw_fd()), None);
        assert_eq!(receive(there.as_raw_fd(), &mut bytes, &mut [const { None }; MOST_FDS]), Ok(0));
    }

    #[test]
    fn sealed_memory_keeps_its_length() {
        let memory = sealed_memory(c"test", 8192).unwrap();
        assert_eq!(crate::file::set_len(memory.raw(), 4096), Err(Errno::EPERM));
        assert_eq!(crate::file::set_len(memory.raw(), 16384), Err(Errno::EPERM));
    }

    #[test]
    fn nobody_listens_at_a_path_that_does_not_exist() {
        assert_eq!(connect(b"/nonexistent/socket").err(), Some(Errno::ENOENT));
        assert_eq!(connect(&[b'x'; 200]).err(), Some(Errno::EINVAL));
    }
}
