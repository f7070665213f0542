//! What program threads ask of the userfaultfd, done for them by a thread that has it.
//!
//! The pager's descriptors are open in a table of the agents' own ([`memfold_sys::table`]), so that nothing that the program does to its
//! descriptors meets them. A program thread that changes a mapping asks this thread for the calls that it needs, and sleeps until
//! they are made. That is rare: only what concerns evicted pages is asked.
//!
//! What it is not: a second fault thread. It waits for nobody but the kernel, the fault thread, and restores that have begun, as the
//! program thread would that asks.
//!
//! Invariants: one request at a time, under `asking`. Who asks has passed the gate or closed it, so a fork finds none under way.

pub(crate) mod server;

use crate::lock::Mutex;
use crate::tables::bitmap::PageRange;
use crate::tables::extent::Extent;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};
use memfold_sys::{futex, Errno, Result};

/// Nobody serves: nothing is registered either, so there is nothing to be done.
const ABSENT: u32 = 0;

const READY: u32 = 1;

const ASKED: u32 = 2;

const DONE: u32 = 3;

#[derive(Clone, Copy)]
enum Request {
    /// Wake who sleeps on the extent.
    Wake(&'static Extent),
    /// Unregister a range.
    LetGo { start: usize, len: usize },
    /// Have touches of absent pages of a range reported.
    Arm { start: usize, len: usize },
    /// Bring back what is away of the pages; the asking thread holds the extent's lock, or nobody else runs.
    BringBack { extent: &'static Extent, pages: PageRange },
    /// Wait until the kernel has reported every change past libc that it has made.
    Settle,
}

/// Where requests are left.
pub struct Proxy {
    asking: Mutex,
    state: AtomicU32,
    request: UnsafeCell<Request>,
    answer: UnsafeCell<Result<()>>,
}

// SAFETY: `request` is written by who holds `asking` while the state is not `ASKED`, and read by the proxy while it is; `answer`
// the other way round.
unsafe impl Sync for Proxy {}

impl Proxy {
    /// Nobody serves yet.
    pub const fn new() -> Proxy {
        Proxy {
            asking: Mutex::new(()),
            state: AtomicU32::new(ABSENT),
            request: UnsafeCell::new(Request::Settle),
            answer: UnsafeCell::new(Ok(())),
        }
    }

    /// Wakes who sleeps on the extent.
    pub fn wake(&self, extent: &'static Extent) {
        // It cannot fail.
        let _ = self.ask(Request::Wake(extent));
    }

    /// Unregisters the range, and wakes who sleeps on it.
    pub fn let_go(&self, start: usize, len: usize) -> Result<()> {
        self.ask(Request::LetGo { start, len })
    }

    /// Has touches of absent pages of the range reported. `ESRCH` where nobody serves, and what the kernel answers.
    pub fn arm(&self, start: usize, len: usize) -> Result<()> {
        match self.state.load(Acquire) {
            ABSENT => Err(Errno::ESRCH),
            _ => self.ask(Request::Arm { start, len }),
        }
    }

    /// Brings back what is away of these pages of the extent. `ENOMEM` where there is no memory to do it with.
    pub fn bring_back(&self, extent: &'static Extent, pages: PageRange) -> Result<()> {
        self.ask(Request::BringBack { extent, pages })
    }

    /// Waits until the kernel has reported every change past libc that it has made. The last of the reports may be acted on later.
    pub fn settle(&self) {
        // It cannot fail.
        let _ = self.ask(Request::Settle);
    }

    fn ask(&self, request: Request) -> Result<()> {
        let _asking = self.asking.lock();
        if self.state.load(Acquire) == ABSENT {
            return Ok(());
        }
        // SAFETY: under `asking`, and the state is `READY`.
        unsafe { *self.request.get() = request };
        if self.state.compare_exchange(READY, ASKED, AcqRel, Acquire).is_err() {
            // It has just been closed.
            return Ok(());
        }
        futex::wake(&self.state, 1);
        while self.state.load(Acquire) == ASKED {
            let _ = futex::wait(&self.state, ASKED, None);
        }
        // SAFETY: as above; the proxy has written it, or will not.
        let answer = unsafe { *self.answer.get() };
        match self.state.compare_exchange(DONE, READY, AcqRel, Acquire) {
            Ok(_) => answer,
            Err(_) => Ok(()),
        }
    }

    /// Requests are taken from now on. Before the thread is made.
    pub(crate) fn open(&self) {
        self.state.store(READY, Release);
    }

    /// No request is taken from now on; one that waits is answered: nothing is registered any more, or the process ends.
    pub(crate) fn close(&self) {
        self.state.store(ABSENT, Release);
        futex::wake(&self.state, u32::MAX >> 1);
    }

    /// Nobody asks and nobody serves, in a forked child.
    pub(crate) fn reset_in_child(&self) {
        self.asking.reset_in_child();
        self.state.store(ABSENT, Relaxed);
    }
}
