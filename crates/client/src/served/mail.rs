//! How a thread of the program asks the agent for something and waits for it.
//!
//! Invariants: one request at a time, by the mutex; the asking thread sleeps on a futex and touches nothing of the ranges.

use memfold_pager::lock::Mutex;
use memfold_sys::time::Nanos;
use memfold_sys::{futex, socket, Errno, Result};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::*};

/// What can be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Op {
    /// Manage a range.
    Register,
    /// Bring a range back and manage it no more.
    Unregister,
    /// `Hint::Normal`.
    Normal,
    /// `Hint::WillNeed`.
    WillNeed,
    /// `Hint::DontNeedSoon`.
    DontNeedSoon,
    /// `Hint::Keep`.
    Keep,
    /// Bring everything back and evict nothing until `Thaw`.
    Freeze,
    /// Evict again.
    Thaw,
    /// Bring everything back and end.
    Stop,
}

const OPS: [Op; 9] = [
    Op::Register,
    Op::Unregister,
    Op::Normal,
    Op::WillNeed,
    Op::DontNeedSoon,
    Op::Keep,
    Op::Freeze,
    Op::Thaw,
    Op::Stop,
];

/// No answer of the daemon's yet.
const UNKNOWN: u32 = u32::MAX;

/// The letter box.
pub struct Mail {
    lock: Mutex,
    op: AtomicU32,
    addr: AtomicUsize,
    len: AtomicUsize,
    asked: AtomicU32,
    answered: AtomicU32,
    error: AtomicU32,
    /// 0 when the daemon has served us, or why it did not.
    served: AtomicU32,
}

impl Mail {
    /// An empty one.
    pub const fn new() -> Mail {
        Mail {
            lock: Mutex::new(()),
            op: AtomicU32::new(0),
            addr: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            asked: AtomicU32::new(0),
            answered: AtomicU32::new(0),
            error: AtomicU32::new(0),
            served: AtomicU32::new(UNKNOWN),
        }
    }

    /// Has the agent, which is rung by `bell`, do something. Returns when it is done.
    pub fn ask(&self, bell: i32, op: Op, addr: usize, len: usize) -> Result<()> {
        let _guard = self.lock.lock();
        self.op.store(op as u32, Relaxed);
        self.addr.store(addr, Relaxed);
        self.len.store(len, Relaxed);
        let ticket = self.asked.load(Relaxed).wrapping_add(1);
        // Release: who sees the ticket sees the rest.
        self.asked.store(ticket, Release);
        socket::ring(bell);
        loop {
            let answered = self.answered.load(Acquire);
            if answered == ticket {
                break;
            }
            let _ = futex::wait(&self.answered, answered, Some(Nanos::from_secs(1)));
        }
        match self.error.load(Relaxed) {
            0 => Ok(()),
            error => Err(Errno(error as i32)),
        }
    }

    /// What is asked for, if anything is. Agent only.
    pub fn request(&self) -> Option<(Op, usize, usize)> {
        if self.asked.load(Acquire) == self.answered.load(Relaxed) {
            return None;
        }
        let op = OPS[self.op.load(Relaxed) as usize];
        Some((op, self.addr.load(Relaxed), self.len.load(Relaxed)))
    }

    /// The request is carried out. Agent only.
    pub fn answer(&self, error: u32) {
        self.error.store(error, Relaxed);
        self.answered.store(self.asked.load(Relaxed), Release);
        futex::wake(&self.answered, 1);
    }

    /// The daemon has answered the greeting. Agent only.
    pub fn set_served(&self, error: u32) {
        self.served.store(error, Release);
        futex::wake(&self.served, u32::MAX >> 1);
    }

    /// Waits for the daemon's first answer, at most `timeout`; `ETIMEDOUT` if there was none.
    pub fn wait_served(&self, timeout: Nanos) -> Result<()> {
        if self.served.load(Acquire) == UNKNOWN {
            let _ = futex::wait(&self.served, UNKNOWN, Some(timeout));
        }
        match self.served.load(Acquire) {
            0 => Ok(()),
            UNKNOWN => Err(Errno(libc::ETIMEDOUT)),
            error => Err(Errno(error as i32)),
        }
    }
}
