//! What a verification finds, and what it counts on the way.

use crate::content::Content;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Mismatches that are kept; more are counted.
const KEPT: usize = 20;

/// The ways on which pages are handed to the kernel and come back, as reports name them.
pub(super) const WAYS: [&str; 8] =
    ["pipe", "vectors", "messages", "direct", "remote", "futex", "io_uring", "registered_buffers"];

/// A word that did not hold what it should.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// What kind of memory it lies in.
    pub what: String,
    /// Its address.
    pub address: usize,
    /// What it should hold.
    pub expected: u64,
    /// What it held.
    pub found: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { what, address, expected, found } = self;
        write!(f, "{what} at {address:#x}: expected {expected:#018x}, found {found:#018x}")
    }
}

/// What the threads found, and by which content they judge.
pub(super) struct Findings {
    pub content: Content,
    pub bytes_verified: AtomicU64,
    pub children: AtomicU64,
    /// Memory handed to the kernel, by way.
    pub called: [AtomicU64; WAYS.len()],
    /// Areas moved or resized by `mremap`.
    pub moved: AtomicU64,
    /// Times that the kernel refused, as it may.
    pub refused: AtomicU64,
    pub mismatch_count: AtomicU64,
    pub mismatches: Mutex<Vec<Mismatch>>,
    pub failures: Mutex<Vec<String>>,
}

impl Findings {
    /// Nothing yet.
    pub fn new(content: Content) -> Findings {
        Findings {
            content,
            bytes_verified: AtomicU64::new(0),
            children: AtomicU64::new(0),
            called: Default::default(),
            moved: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            mismatch_count: AtomicU64::new(0),
            mismatches: Mutex::default(),
            failures: Mutex::default(),
        }
    }

    /// Counts bytes that were compared, and keeps what was wrong.
    pub fn saw(&self, bytes: usize, wrong: Option<Mismatch>) {
        self.bytes_verified.fetch_add(bytes as u64, Relaxed);
        if let Some(mismatch) = wrong {
            self.mismatch_count.fetch_add(1, Relaxed);
            self.keep([mismatch]);
        }
    }

    /// Keeps mismatches that have been counted, as far as there is room. In a forked child another thread of the
    /// parent may have left the list locked: then they are counted only.
    pub fn keep(&self, mismatches: impl IntoIterator<Item = Mismatch>) {
        for _ in 0..1000 {
            match self.mismatches.try_lock() {
                Ok(mut kept) => {
                    let room = KEPT.saturating_sub(kept.len());
                    kept.extend(mismatches.into_iter().take(room));
                    return;
                }
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    /// Keeps something that went wrong other than by a byte.
    pub fn fail(&self, what: String) {
        let mut failures = lock(&self.failures);
        if failures.len() < KEPT {
            failures.push(what);
        }
    }
}

/// Locks, also after another thread has panicked: the models are changed together with the memory or not at all.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Hands out tags that nobody else gets.
#[derive(Debug)]
pub(super) struct Tags(u64);

impl Tags {
    /// Those of owner number `owner`, which must be below 2^16.
    pub fn new(owner: u64) -> Tags {
        Tags((owner + 1) << 44)
    }

    /// The next.
    pub fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
}
