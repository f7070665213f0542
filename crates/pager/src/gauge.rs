//! Files under `/proc` that an agent thread reads again and again, through a descriptor that it opened once.
//!
//! Invariants: one writer a place, the thread whose gauge it is; a forked child opens its own, since the files tell of the
//! process or thread that opened them.

use crate::engine::Engine;
use crate::text::Line;
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_sys::{file, Errno, Result};

/// Which file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gauge {
    /// `/proc/thread-self/statm` (proc_pid_statm(5)); the background thread's.
    Memory,
    /// `/proc/thread-self/maps` (proc_pid_maps(5)); the background thread's.
    Maps,
    /// `/proc/self/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst) of a thread that faults; the fault thread's.
    Toucher(usize),
}

/// How many threads that fault are looked at at the same time.
pub(crate) const TOUCHERS: usize = 4;

impl Gauge {
    /// How many there are.
    pub(crate) const COUNT: usize = 2 + TOUCHERS;

    fn all() -> impl Iterator<Item = Gauge> {
        (0..TOUCHERS).map(Gauge::Toucher).chain([Gauge::Memory, Gauge::Maps])
    }

    fn place(self) -> usize {
        match self {
            Gauge::Memory => 0,
            Gauge::Maps => 1,
            Gauge::Toucher(place) => 2 + place,
        }
    }
}

/// No descriptor.
pub(crate) const NONE: u32 = u32::MAX;

impl Engine {
    /// Opens the files on the memory of the process. Where one cannot be had, it is done without.
    pub(crate) fn open_memory_gauges(&self) {
        self.open_gauge(Gauge::Memory, c"/proc/thread-self/statm");
        self.open_gauge(Gauge::Maps, c"/proc/thread-self/maps");
    }

    /// Opens the file on a thread.
    pub(crate) fn open_toucher(&self, place: usize, tid: u32) {
        let mut text = Line::new();
        let _ = write!(text, "/proc/self/task/{tid}/schedstat\0");
        if let Ok(path) = CStr::from_bytes_until_nul(text.as_str().as_bytes()) {
            self.open_gauge(Gauge::Toucher(place), path);
        }
    }

    /// Closes all of them.
    pub(crate) fn close_gauges(&self) {
        Gauge::all().for_each(|gauge| self.close_gauge(gauge));
    }

    fn open_gauge(&self, gauge: Gauge, path: &CStr) {
        self.close_gauge(gauge);
        if let Ok(fd) = file::open(path, libc::O_RDONLY, 0) {
            self.gauges[gauge.place()].store(fd.into_raw() as u32, Release);
        }
    }

    fn close_gauge(&self, gauge: Gauge) {
        let fd = self.gauges[gauge.place()].swap(NONE, AcqRel);
        if fd != NONE {
            // SAFETY: opened by `open_gauge`, and nobody else has the number.
            drop(unsafe { file::Fd::from_raw(fd as i32) });
        }
    }

    /// Forgets those of the parent, in a forked child, where they are not open.
    pub(crate) fn forget_gauges_in_child(&self) {
        self.gauges.iter().for_each(|gauge| gauge.store(NONE, Relaxed));
    }

    /// Reads the list of mappings from this byte of it on. Returns how many bytes; none at its end.
    pub(crate) fn read_maps(&self, piece: &mut [u8], at: u64) -> Result<usize> {
        match self.gauges[Gauge::Maps.place()].load(Relaxed) {
            NONE => Err(Errno::ENOENT),
            fd => file::pread(fd as i32, piece, at),
        }
    }

    /// Its first numbers, as many as are asked for; `None` if it cannot be read.
    pub(crate) fn read_gauge<const N: usize>(&self, gauge: Gauge) -> Option<[u64; N]> {
        let fd = self.gauges[gauge.place()].load(Relaxed);
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
