//! The C functions that close or replace file descriptors.
//!
//! Programs that close every descriptor they do not know would close the pager's, and with the userfaultfd all
//! evicted memory would be gone. To them, the pager's descriptors look as if they were not open.

use crate::start::pager;
use crate::{or_errno, set_errno};
use core::ffi::{c_int, c_uint};
use pager::sabotage::{planted, Bug};
use sys::{syscall, Errno};

fn is_ours(fd: c_int) -> bool {
    pager().is_some_and(|engine| engine.owns_fd(fd) && !planted(Bug::DescriptorsNotHidden))
}

/// `close(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if is_ours(fd) {
        set_errno(Errno(libc::EBADF));
        return -1;
    }
    // libc's is a cancellation point; so must ours be.
    // SAFETY: the program's own descriptor.
    unsafe { crate::fork::cancellation_point() };
    // SAFETY: as above.
    or_errno(unsafe { syscall!(close, fd) }) as c_int
}

/// `dup2(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if is_ours(new) || is_ours(old) {
        set_errno(Errno(libc::EBADF));
        return -1;
    }
    if old == new {
        // SAFETY: no memory involved.
        return match unsafe { syscall!(fcntl, old, libc::F_GETFD) } {
            Ok(_) => new,
            Err(e) => or_errno(Err(e)) as c_int,
        };
    }
    // SAFETY: the program's own descriptors.
    or_errno(unsafe { syscall!(dup3, old, new, 0) }) as c_int
}

/// `dup3(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if is_ours(new) || is_ours(old) {
        set_errno(Errno(libc::EBADF));
        return -1;
    }
    // SAFETY: the program's own descriptors.
    or_errno(unsafe { syscall!(dup3, old, new, flags) }) as c_int
}

/// `close_range(2)`: the ranges between the pager's descriptors.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if first > last {
        set_errno(Errno::EINVAL);
        return -1;
    }
    let ours = pager()
        .filter(|_| !planted(Bug::DescriptorsNotHidden))
        .map_or([u32::MAX; pager::DESCRIPTORS], |engine| engine.descriptors());
    let mut from = first;
    for fd in ours.into_iter().filter(|fd| (first..=last).contains(fd)) {
        if fd > from {
            // SAFETY: the program's own descriptors.
            if let Err(e) = unsafe { syscall!(close_range, from, fd - 1, flags) } {
                return or_errno(Err(e)) as c_int;
            }
        }
        from = fd.saturating_add(1);
    }
    if from > last {
        return 0;
    }
    // SAFETY: the program's own descriptors.
    or_errno(unsafe { syscall!(close_range, from, last, flags) }) as c_int
}

/// `closefrom(3)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: the caller's contract.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}
