//! The ways in which a program's call reaches the kernel. A pager inside the process can see some and not others.

use memfold_sys::call::{call, Sysno};
use std::io::{Error, Result};

/// One of the ways.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// libc's function of that name.
    Named,
    /// libc's `syscall(2)`.
    Numbered,
    /// The instruction itself, past libc, as Go programs and some runtimes do.
    Bare,
}

impl Way {
    /// The nearest way that a pager inside the process sees.
    pub fn seen(self) -> Way {
        match self {
            Way::Bare => Way::Numbered,
            way => way,
        }
    }
}

/// A call that changes mappings of this process, with its arguments as words.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Mmap,
    Munmap,
    Mremap,
    Madvise,
}

impl Call {
    fn number(self) -> Sysno {
        match self {
            Call::Mmap => Sysno::mmap,
            Call::Munmap => Sysno::munmap,
            Call::Mremap => Sysno::mremap,
            Call::Madvise => Sysno::madvise,
        }
    }

    /// Makes the call.
    ///
    /// # Safety
    /// As for the function of that name with these arguments.
    pub unsafe fn by(self, way: Way, args: [usize; 6]) -> Result<usize> {
        let [a, b, c, d, e, f] = args;
        let start = a as *mut libc::c_void;
        let (int_c, int_d) = (c as i32, d as i32);
        // SAFETY: the caller's contract.
        let result = unsafe {
            match (way, self) {
                (Way::Bare, _) => {
                    return call(self.number(), args).map_err(|e| Error::from_raw_os_error(e.0))
                }
                (Way::Numbered, _) => libc::syscall(self.number().id().into(), a, b, c, d, e, f) as isize,
                (Way::Named, Call::Mmap) => libc::mmap(start, b, int_c, int_d, e as i32, f as i64) as isize,
                (Way::Named, Call::Munmap) => libc::munmap(start, b) as isize,
                (Way::Named, Call::Mremap) => libc::mremap(start, b, c, int_d, e) as isize,
                (Way::Named, Call::Madvise) => libc::madvise(start, b, int_c) as isize,
            }
        };
        // `mmap` and `mremap` return addresses of user space, which are positive.
        usize::try_from(result).map_err(|_| Error::last_os_error())
    }
}
