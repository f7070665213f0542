//! Files under `/proc` that an agent thread reads again and again, through a descriptor that it opened once.
//!
//! Invariants: one writer a place, the thread whose gauge it is; a forked child opens its own, since the files tell of the
//! process or thread that opened them.

use crate::engine::Engine;
use core::ffi::CStr;
use core::sync::atomic::Ordering::*;
use sys::file;

/// Which file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Gauge {
    /// `/proc/thread-self/statm` (proc_pid_statm(5)); the background thread's.
    Memory = 0,
    /// `/proc/thread-self/schedstat` (Documentation/scheduler/sched-stats.rst); the fault thread's.
    Delay = 1,
}

impl Gauge {
    /// How many there are.
    pub(crate) const COUNT: usize = 2;

    fn path(self) -> &'static CStr {
        match self {
            Gauge::Memory => c"/proc/thread-self/statm",
            Gauge::Delay => c"/proc/thread-self/schedstat",
        }
    }
}

/// No descriptor.
pub(crate) const NONE: u32 = u32::MAX;

impl Engine {
    /// Opens the file for the calling thread. Where it cannot be had, it is done without.
    pub(crate) fn open_gauge(&self, gauge: Gauge) {
        self.close_gauge(gauge);
        if let Ok(fd) = file::open(gauge.path(), libc::O_RDONLY, 0) {
            self.gauges[gauge as usize].store(fd.into_raw() as u32, Release);
        }
    }

    /// Closes it, once its thread reads it no more.
    pub(crate) fn close_gauge(&self, gauge: Gauge) {
        let fd = self.gauges[gauge as usize].swap(NONE, AcqRel);
        if fd != NONE {
            // SAFETY: opened by `open_gauge`, and nobody else has the number.
            drop(unsafe { file::Fd::from_raw(fd as i32) });
        }
    }

    /// Forgets those of the parent, in a forked child, where they are not open.
    pub(crate) fn forget_gauges_in_child(&self) {
        self.gauges.iter().for_each(|gauge| gauge.store(NONE, Relaxed));
    }

    /// Its first numbers, as many as are asked for; `None` if it cannot be read.
    pub(crate) fn read_gauge<const N: usize>(&self, gauge: Gauge) -> Option<[u64; N]> {
        let fd = self.gauges[gauge as usize].load(Relaxed);
        let mut text = [0; 128];
        let len = if fd == NONE { return None } else { file::pread(fd as i32, &mut text, 0).ok()? };
        numbers(&text[..len])
    }
}

/// The first numbers of a text in which there is nothing but numbers and blanks.
fn numbers<const N: usize>(text: &[u8]) -> Option<[u64; N]> {
    let mut found = [0; N];
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    for number in &mut found {
        *number = core::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        assert_eq!(numbers(b"12 7\t3\n"), Some([12, 7, 3]));
        assert_eq!(numbers(b"12 7 3\n"), Some([12, 7]));
        assert_eq!(numbers::<3>(b"12 7\n"), None);
        assert_eq!(numbers::<1>(b"many"), None);
    }
}
