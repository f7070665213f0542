//! The link to the kernel: what is open there for the agents, and the device by which it was opened.
//!
//! Invariants: `kernel` is written once before the agent threads start, and again only in a forked child in which no other thread exists, or
//! when all of them have ended.

use crate::gauge::Gauges;
use crate::kernel::{Kernel, Made};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use memfold_sys::file;
use memfold_sys::pagemap::Pagemap;

/// No descriptor.
const NONE: u32 = u32::MAX;

/// The link.
pub(crate) struct Link {
    kernel: UnsafeCell<Option<Kernel>>,
    /// What agent threads read again and again.
    pub gauges: Gauges,
    /// The page whose first touch tells the fault thread to end; 0 for none.
    pub doorbell: AtomicUsize,
    /// The program's open `/dev/userfaultfd`; [`NONE`] for none.
    device: AtomicU32,
    /// The number of that device.
    device_number: AtomicU64,
    /// A userfaultfd that is [`Made`] already: its number, one more than that of the descriptor, and whether it tracks writes, in the lowest bit; 0 for none.
    made: AtomicU32,
    /// The page map that the program's table has open for agents to come, by its number; [`NONE`] for none. And which file it is.
    pagemap: AtomicU32,
    pagemap_file: AtomicU64,
}

// SAFETY: `kernel` is written before others look, see the module.
unsafe impl Sync for Link {}

impl Link {
    /// Nothing is open.
    pub const fn new() -> Link {
        Link {
            kernel: UnsafeCell::new(None),
            gauges: Gauges::new(),
            doorbell: AtomicUsize::new(0),
            device: AtomicU32::new(NONE),
            device_number: AtomicU64::new(0),
            made: AtomicU32::new(0),
            pagemap: AtomicU32::new(NONE),
            pagemap_file: AtomicU64::new(0),
        }
    }

    /// What was opened; `None` before the engine runs.
    pub fn kernel(&self) -> Option<&Kernel> {
        // SAFETY: see the module's invariants.
        unsafe { (*self.kernel.get()).as_ref() }
    }

    /// # Safety
    /// No other thread may look at it: before the agent threads start, when they have ended, or in a forked child.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn kernel_mut(&self) -> &mut Option<Kernel> {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.kernel.get() }
    }

    /// Remembers an open descriptor of `/dev/userfaultfd`. What is no device is not remembered.
    pub fn use_device(&self, fd: i32) {
        if let Some(number) = file::device_number(fd) {
            self.device_number.store(number, Relaxed);
            self.device.store(fd as u32, Release);
        }
    }

    /// Remembers a userfaultfd that is made already.
    pub fn use_made(&self, (number, tracks_writes): Made) {
        self.made.store((number as u32 + 1) << 1 | u32::from(tracks_writes), Release);
    }

    /// The userfaultfd that is made already, if there is one.
    pub fn made(&self) -> Option<Made> {
        let word = self.made.load(Acquire);
        let number = (word >> 1).checked_sub(1)?;
        Some((number as i32, word & 1 != 0))
    }

    /// What the agents take with them out of the program's descriptor table.
    pub fn kept(&self) -> [Option<i32>; 2] {
        [self.made().map(|(number, _)| number).or_else(|| self.device()), self.pagemap()]
    }

    /// Leaves a page map open in the table of the calling thread, for agents to come that could not open it. One is enough.
    pub fn keep_pagemap(&self, pagemap: Pagemap) {
        let fd = pagemap.into_fd();
        if let (None, Some(file)) = (self.pagemap(), which_file(fd.raw())) {
            self.pagemap_file.store(file, Relaxed);
            self.pagemap.store(fd.into_raw() as u32, Release);
        }
    }

    /// The page map that was left open, if the program has not closed it.
    pub fn pagemap(&self) -> Option<i32> {
        let fd = self.pagemap.load(Acquire);
        let is_still = || which_file(fd as i32) == Some(self.pagemap_file.load(Relaxed));
        (fd != NONE && is_still()).then_some(fd as i32)
    }

    /// It shows the memory of the parent.
    pub fn forget_pagemap_in_child(&self) {
        self.pagemap.store(NONE, Relaxed);
    }

    /// The program's open `/dev/userfaultfd`, if it was given one and has not closed it.
    pub fn device(&self) -> Option<i32> {
        let fd = self.device.load(Acquire);
        // The program may have closed it, and opened something else there.
        let is_still = || file::device_number(fd as i32) == Some(self.device_number.load(Relaxed));
        (fd != NONE && is_still()).then_some(fd as i32)
    }
}

/// A number for the file that is open there, by which it is known again.
fn which_file(fd: i32) -> Option<u64> {
    let status = file::status(fd).ok()?;
    Some(status.st_ino ^ status.st_dev.rotate_left(32))
}
