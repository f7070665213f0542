//! Opening the files that agents read again and again, and reading them.

use super::{numbers, Gauge, Gauges, NONE};
use crate::text::Line;
use core::ffi::CStr;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_sys::{file, Errno, Result};

impl Gauges {
    /// Opens the files on the memory of the process. Where one cannot be had, it is done without.
    pub(crate) fn open_memory(&self) {
        self.open(Gauge::Memory, c"/proc/thread-self/statm");
        self.open(Gauge::Maps, c"/proc/thread-self/maps");
    }

    /// Opens the file on what the program has asked for its memory.
    pub(crate) fn open_advice(&self) {
        self.open(Gauge::Advice, c"/proc/thread-self/smaps");
    }

    /// Opens the file on a thread.
    pub(crate) fn open_toucher(&self, place: usize, tid: u32) {
        let mut text = Line::new();
        let _ = write!(text, "/proc/self/task/{tid}/schedstat\0");
        if let Ok(path) = CStr::from_bytes_until_nul(text.as_str().as_bytes()) {
            self.open(Gauge::Toucher(place), path);
        }
    }

    /// Closes all of them.
    pub(crate) fn close(&self) {
        Gauge::all().for_each(|gauge| self.close_one(gauge));
    }

    fn open(&self, gauge: Gauge, path: &CStr) {
        self.close_one(gauge);
        if let Ok(fd) = file::open(path, libc::O_RDONLY, 0) {
            self.0[gauge.place()].store(fd.into_raw() as u32, Release);
        }
    }

    fn close_one(&self, gauge: Gauge) {
        let fd = self.0[gauge.place()].swap(NONE, AcqRel);
        if fd != NONE {
            // SAFETY: opened by `open`, and nobody else has the number.
            drop(unsafe { file::Fd::from_raw(fd as i32) });
        }
    }

    /// Forgets those of the parent, in a forked child, where they are not open.
    pub(crate) fn forget_in_child(&self) {
        self.0.iter().for_each(|gauge| gauge.store(NONE, Relaxed));
    }

    /// Reads the list of mappings from this byte of it on. Returns how many bytes; none at its end.
    pub(crate) fn read_maps(&self, piece: &mut [u8], at: u64) -> Result<usize> {
        self.read_piece(Gauge::Maps, piece, at)
    }

    /// The same of what the program has asked for each.
    pub(crate) fn read_advice(&self, piece: &mut [u8], at: u64) -> Result<usize> {
        self.read_piece(Gauge::Advice, piece, at)
    }

    fn read_piece(&self, gauge: Gauge, piece: &mut [u8], at: u64) -> Result<usize> {
        match self.0[gauge.place()].load(Relaxed) {
            NONE => Err(Errno::ENOENT),
            fd => file::pread(fd as i32, piece, at),
        }
    }

    /// Its first numbers, as many as are asked for; `None` if it cannot be read.
    pub(crate) fn read<const N: usize>(&self, gauge: Gauge) -> Option<[u64; N]> {
        let fd = self.0[gauge.place()].load(Relaxed);
        let mut text = [0; 128];
        let len = if fd == NONE { return None } else { file::pread(fd as i32, &mut text, 0).ok()? };
        numbers(&text[..len])
    }
}
