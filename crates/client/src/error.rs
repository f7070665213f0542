//! What can go wrong, in words for people and as a number for C.

use memfold_pager::Nonsense;
use std::path::PathBuf;

/// Why a call was refused. Nothing was changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A call before `start`.
    #[error("memfold was not started: call start first")]
    NotStarted,
    /// `start` for the second time, or after `stop`.
    #[error("memfold was started before in this process; it can be started once")]
    StartedBefore,
    /// `libmemfold.so` is preloaded and folds the process already.
    #[error(
        "this process is folded by libmemfold.so already; run it without `memfold run` to name ranges itself"
    )]
    Preloaded,
    /// This machine or this user cannot fold.
    #[error("{0} (`memfold doctor` tells more)")]
    NotSupported(String),
    /// There is no whole page in the range.
    #[error("there is no whole page in {len} bytes at {addr:#x}")]
    NoWholePage {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// The range holds something that cannot be folded.
    #[error("{addr:#x} {why}; only private anonymous memory that can be read and written may be registered")]
    NotFoldable {
        /// The first such address.
        addr: usize,
        /// What is there instead.
        why: String,
    },
    /// Nothing of the range is registered.
    #[error("nothing of {len} bytes at {addr:#x} is registered")]
    NotRegistered {
        /// First byte.
        addr: usize,
        /// Bytes.
        len: usize,
    },
    /// An environment variable holds something else than it takes.
    #[error("{variable}={value} makes no sense: it takes {allowed}")]
    BadVariable {
        /// Its name.
        variable: &'static str,
        /// Its value.
        value: String,
        /// What it takes.
        allowed: &'static str,
    },
    /// A daemon's socket cannot have this path.
    #[error("{}: the path of the daemon's socket {why}", path.display())]
    BadSocket {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The kernel refused a call.
    #[error("the kernel refused: {0}")]
    Kernel(memfold_sys::Errno),
}

impl Error {
    /// The error number that C programs get, negated.
    pub fn number(&self) -> i32 {
        match self {
            Error::NotStarted => libc::EPERM,
            Error::StartedBefore => libc::EALREADY,
            Error::Preloaded => libc::EBUSY,
            Error::NotSupported(_) => libc::ENOTSUP,
            Error::NoWholePage { .. }
            | Error::NotFoldable { .. }
            | Error::BadVariable { .. }
            | Error::BadSocket { .. } => libc::EINVAL,
            Error::NotRegistered { .. } => libc::ENOENT,
            Error::Kernel(errno) => errno.0,
        }
    }
}

impl From<Nonsense<'_>> for Error {
    fn from(one: Nonsense<'_>) -> Error {
        Error::BadVariable { variable: one.variable, value: one.text.into(), allowed: one.allowed }
    }
}

impl From<memfold_sys::Errno> for Error {
    fn from(errno: memfold_sys::Errno) -> Error {
        Error::Kernel(errno)
    }
}
