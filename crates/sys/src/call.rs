//! The one gate to the kernel.

use core::fmt;
pub use syscalls::Sysno;

/// An error number of the kernel, such as `libc::EAGAIN`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// What a kernel call returns.
pub type Result<T> = core::result::Result<T, Errno>;

impl Errno {
    /// Invalid argument.
    pub const EINVAL: Errno = Errno(libc::EINVAL);
    /// Try again.
    pub const EAGAIN: Errno = Errno(libc::EAGAIN);
    /// The page is already there.
    pub const EEXIST: Errno = Errno(libc::EEXIST);
    /// Interrupted.
    pub const EINTR: Errno = Errno(libc::EINTR);
    /// Bad address.
    pub const EFAULT: Errno = Errno(libc::EFAULT);
    /// The page is pinned or shared.
    pub const EBUSY: Errno = Errno(libc::EBUSY);
    /// No such mapping, file or page.
    pub const ENOENT: Errno = Errno(libc::ENOENT);
    /// There is no such thing.
    pub const ENODATA: Errno = Errno(libc::ENODATA);
    /// No memory, or a hole in the range.
    pub const ENOMEM: Errno = Errno(libc::ENOMEM);
    /// Not permitted.
    pub const EPERM: Errno = Errno(libc::EPERM);
    /// The process's memory is going away.
    pub const ESRCH: Errno = Errno(libc::ESRCH);
    /// The process has no number left for a descriptor.
    pub const EMFILE: Errno = Errno(libc::EMFILE);
    /// The system has none left.
    pub const ENFILE: Errno = Errno(libc::ENFILE);
    /// Beyond what one user may have.
    pub const EDQUOT: Errno = Errno(libc::EDQUOT);
    /// It has taken too long.
    pub const ETIMEDOUT: Errno = Errno(libc::ETIMEDOUT);
    /// The kernel or the file does not have this call, or not with these flags.
    pub const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);
    /// The kernel does not have this call.
    pub const ENOSYS: Errno = Errno(libc::ENOSYS);

    /// The symbolic name of the number, or `"errno"` for one that memfold never meets.
    pub fn name(self) -> &'static str {
        match self.0 {
            libc::EPERM => "EPERM",
            libc::ENOENT => "ENOENT",
            libc::ESRCH => "ESRCH",
            libc::EINTR => "EINTR",
            libc::EIO => "EIO",
            libc::EBADF => "EBADF",
            libc::EBADMSG => "EBADMSG",
            libc::EAGAIN => "EAGAIN",
            libc::EHOSTDOWN => "EHOSTDOWN",
            libc::ENOMEM => "ENOMEM",
            libc::EACCES => "EACCES",
            libc::EFAULT => "EFAULT",
            libc::EBUSY => "EBUSY",
            libc::EEXIST => "EEXIST",
            libc::ENODEV => "ENODEV",
            libc::EINVAL => "EINVAL",
            libc::EMFILE => "EMFILE",
            libc::ENFILE => "ENFILE",
            libc::ENOSPC => "ENOSPC",
            libc::EFBIG => "EFBIG",
            libc::EPIPE => "EPIPE",
            libc::ENOSYS => "ENOSYS",
            libc::ENOTTY => "ENOTTY",
            libc::EDQUOT => "EDQUOT",
            libc::ETIMEDOUT => "ETIMEDOUT",
            libc::EOPNOTSUPP => "EOPNOTSUPP",
            _ => "errno",
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl core::error::Error for Errno {}

/// Makes a system call with up to six arguments.
///
/// # Safety
/// As for the system call named by `number` with these arguments.
#[inline]
pub unsafe fn call(number: Sysno, args: [usize; 6]) -> Result<usize> {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller upholds the contract of the system call.
    let raw = unsafe { syscalls::raw::syscall6(number.id() as usize, a, b, c, d, e, f) } as isize;
    if (-4095..0).contains(&raw) {
        Err(Errno(-raw as i32))
    } else {
        Ok(raw as usize)
    }
}

/// Six arguments, the missing ones zero.
#[inline]
pub fn pad(given: &[usize]) -> [usize; 6] {
    let mut args = [0; 6];
    args[..given.len()].copy_from_slice(given);
    args
}

/// [`call`] with the unused arguments left out.
#[macro_export]
macro_rules! syscall {
    ($number:ident $(, $arg:expr)* $(,)?) => {{
        let args: &[usize] = &[$($arg as usize),*];
        $crate::call::call($crate::call::Sysno::$number, $crate::call::pad(args))
    }};
}
