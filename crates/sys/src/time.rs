//! The monotonic clock.

use core::ops::{Add, Sub};
use core::sync::atomic::{AtomicPtr, Ordering::*};

/// A span of time, or a moment of the monotonic clock, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// So many whole seconds.
    pub const fn from_secs(secs: u64) -> Nanos {
        Nanos(secs * 1_000_000_000)
    }

    /// So many whole milliseconds.
    pub const fn from_millis(millis: u64) -> Nanos {
        Nanos(millis * 1_000_000)
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }

    /// As the kernel takes it.
    pub const fn to_timespec(self) -> libc::timespec {
        libc::timespec { tv_sec: (self.0 / 1_000_000_000) as i64, tv_nsec: (self.0 % 1_000_000_000) as i64 }
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        self.since(other)
    }
}

/// A function that reads a clock as clock_gettime(2) does.
type Reader = unsafe extern "C" fn(libc::clockid_t, *mut libc::timespec) -> core::ffi::c_int;

/// The kernel's own, once it is known.
static READER: AtomicPtr<core::ffi::c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Has all clocks be read by the function that the kernel maps into every process (vdso(7)), and no longer by that of libc, which may be another library's: one
/// that shows the program another time than it is.
///
/// # Safety
/// `function` is that function.
pub unsafe fn read_by(function: *mut core::ffi::c_void) {
    READER.store(function, Relaxed);
}

fn read(clock: libc::clockid_t) -> Nanos {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let reader = READER.load(Relaxed);
    // SAFETY: `ts` is a valid timespec. libc's function reads the clock through the kernel's, which needs no
    // thread control block; it could touch `errno` only on failure, and these clocks always exist. What else is
    // there is the kernel's, of the same type, by the contract of `read_by`.
    unsafe {
        if reader.is_null() {
            libc::clock_gettime(clock, &mut ts);
        } else {
            core::mem::transmute::<*mut core::ffi::c_void, Reader>(reader)(clock, &mut ts);
        }
    }
    Nanos(ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64)
}

/// Now, by `CLOCK_MONOTONIC` (not advanced while the machine sleeps, never set back).
pub fn now() -> Nanos {
    read(libc::CLOCK_MONOTONIC)
}

/// The same by `CLOCK_MONOTONIC_COARSE`, which is up to 10 ms behind: the vDSO reads it from memory whatever the machine's
/// clock is, so this never becomes a system call, which a sandboxed program may not be allowed.
pub fn coarse() -> Nanos {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// The CPU time that the calling thread has used.
pub fn thread_cpu() -> Nanos {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The CPU time that all threads of the process have used, those that ended too.
pub fn process_cpu() -> Nanos {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// The CPU time that another thread of this process has used; 0 if there is no such thread.
pub fn cpu_of(tid: u32) -> Nanos {
    // The kernel's own encoding of a thread's scheduler clock (posix-timers_types.h).
    read(!(tid as libc::clockid_t) << 3 | 4 | 2)
}

/// Sleeps for at least `time`, less when a signal comes.
pub fn sleep(time: Nanos) {
    let ts = time.to_timespec();
    // SAFETY: the timespec lives across the call.
    let _ = unsafe { crate::syscall!(nanosleep, &ts as *const libc::timespec as usize, 0) };
}
