//! libc's own functions behind ours, looked up before the program runs.
//!
//! To look one up when it is first called could wait for ever: `dlsym(3)` takes the loader's lock, which a thread that loads a library has while that
//! library's constructors run, and these may wait for the very thread that calls.

use crate::lookup::next;
use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A function of libc's.
pub struct Real {
    name: &'static CStr,
    /// Its address; [`UNKNOWN`] or [`ABSENT`].
    at: AtomicUsize,
}

const UNKNOWN: usize = 0;
const ABSENT: usize = 1;

impl Real {
    const fn new(name: &'static CStr) -> Real {
        Real { name, at: AtomicUsize::new(UNKNOWN) }
    }

    /// Its address; `None` where libc has none of that name.
    pub fn get(&self) -> Option<usize> {
        match self.at.load(Relaxed) {
            // Before the constructor, when there is one thread.
            UNKNOWN => self.find(),
            ABSENT => None,
            at => Some(at),
        }
    }

    #[cold]
    fn find(&self) -> Option<usize> {
        let at = next(self.name) as usize;
        self.at.store(if at == 0 { ABSENT } else { at }, Relaxed);
        (at != 0).then_some(at)
    }
}

/// Declares functions by their names.
macro_rules! functions {
    ($($place:ident = $name:literal,)+) => {
        $(#[doc = concat!("`", $name, "`.")]
        pub static $place: Real = Real::new(match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
            Ok(name) => name,
            Err(_) => c"",
        });)+

        /// Looks all of them up.
        pub fn find() {
            for function in [$(&$place),+] {
                let _ = function.find();
            }
        }
    };
}

functions! {
    REGISTER_ATFORK = "__register_atfork",
    FORK_ALONE = "_Fork",
    CLONE = "clone",
    SETSPECIFIC = "pthread_setspecific",
    GETSPECIFIC = "pthread_getspecific",
    SBRK = "sbrk",
    BRK = "brk",
    SETUID = "setuid",
    SETGID = "setgid",
    SETEUID = "seteuid",
    SETEGID = "setegid",
    SETREUID = "setreuid",
    SETREGID = "setregid",
    SETRESUID = "setresuid",
    SETRESGID = "setresgid",
}
