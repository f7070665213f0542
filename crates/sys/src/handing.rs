//! Descriptors handed from one process to another, over a pair of sockets (unix(7)).
//!
//! What it is not: who may have what. A message is one byte, with a descriptor or without.

use crate::call::{Errno, Result};
use crate::file::Fd;
use crate::socket::poll_all;
use crate::syscall;
use crate::time::Nanos;
use core::mem::{size_of, zeroed};

/// Room for a header and one descriptor, aligned as headers are (cmsg(3)).
#[repr(C)]
struct Rights {
    header: libc::cmsghdr,
    fd: i32,
    padding: i32,
}

/// What the header says of its length.
const LEN: usize = size_of::<libc::cmsghdr>() + size_of::<i32>();

/// Two ends; what goes in at one comes out at the other, a message at a time.
pub fn pair() -> Result<(Fd, Fd)> {
    let mut ends = [0i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: room for two numbers, and the kernel just made the descriptors for us.
    unsafe {
        syscall!(socketpair, libc::AF_UNIX, kind, 0, ends.as_mut_ptr() as usize)?;
        Ok((Fd::from_raw(ends[0]), Fd::from_raw(ends[1])))
    }
}

/// Sends a byte, with a copy of a descriptor or without. Waits for nobody.
pub fn hand_over(socket: i32, byte: u8, fd: Option<i32>) -> Result<()> {
    let header = libc::cmsghdr { cmsg_len: LEN, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
    let mut rights = Rights { header, fd: fd.unwrap_or(-1), padding: 0 };
    let mut part = libc::iovec { iov_base: (&raw const byte).cast_mut().cast(), iov_len: 1 };
    let mut message = message(&mut part, fd.is_some().then_some(&mut rights));
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: a whole message, whose parts live until the call is over.
    unsafe { syscall!(sendmsg, socket, &raw mut message as usize, flags) }.map(drop)
}

/// Waits for a message, so long: its byte, and the descriptor that came with it. `ETIMEDOUT` where none comes, `ENODATA` at the end.
pub fn take_over(socket: i32, patience: Nanos) -> Result<(u8, Option<Fd>)> {
    let mut poll = [libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 }];
    poll_all(&mut poll, patience);
    if poll[0].revents == 0 {
        return Err(Errno::ETIMEDOUT);
    }
    let mut byte = 0u8;
    // SAFETY: plain words.
    let mut rights: Rights = unsafe { zeroed() };
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut message = message(&mut part, Some(&mut rights));
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: a whole message, whose parts live until the call is over.
    let got = unsafe { syscall!(recvmsg, socket, &raw mut message as usize, flags) }?;
    let came = message.msg_controllen >= LEN && rights.header.cmsg_type == libc::SCM_RIGHTS;
    // SAFETY: the kernel just made the descriptor for us. There is room for one, and more than that it closes.
    let fd = came.then(|| unsafe { Fd::from_raw(rights.fd) });
    match got {
        0 => Err(Errno::ENODATA),
        _ => Ok((byte, fd)),
    }
}

fn message(part: &mut libc::iovec, rights: Option<&mut Rights>) -> libc::msghdr {
    // SAFETY: zeros are a message of nothing.
    let mut message: libc::msghdr = unsafe { zeroed() };
    (message.msg_iov, message.msg_iovlen) = (part, 1);
    if let Some(rights) = rights {
        (message.msg_control, message.msg_controllen) = ((&raw mut *rights).cast(), LEN);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_byte_and_a_byte_alone_without() {
        let (here, there) = pair().unwrap();
        let file = crate::file::open(c"/dev/null", libc::O_RDONLY, 0).unwrap();
        hand_over(here.raw(), b'd', Some(file.raw())).unwrap();
        hand_over(here.raw(), b'a', None).unwrap();
        let (byte, came) = take_over(there.raw(), Nanos::from_secs(10)).unwrap();
        let came = came.expect("it was handed over");
        assert_eq!((byte, came.raw() != file.raw()), (b'd', true));
        assert_eq!(crate::file::device_number(came.raw()), crate::file::device_number(file.raw()));
        let (byte, came) = take_over(there.raw(), Nanos::from_secs(10)).unwrap();
        assert_eq!((byte, came.is_none()), (b'a', true));
        assert_eq!(take_over(there.raw(), Nanos(0)).err(), Some(Errno::ETIMEDOUT));
        drop(here);
        assert_eq!(take_over(there.raw(), Nanos::from_secs(10)).err(), Some(Errno::ENODATA));
    }
}
