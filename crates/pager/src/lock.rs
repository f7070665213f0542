//! A mutex on a futex word, usable from program threads and agent threads alike.
//!
//! What it is not: `std`'s or libc's mutex, which agent threads must not use.
//!
//! Invariants: program threads take it with signals blocked (a handler that runs while the lock is held
//! could need it too); the fault thread never takes one.

use crate::sync::{AtomicU32, Ordering::*};
use memfold_sys::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_AND_WANTED: u32 = 2;

/// Turns of the spin loop before sleeping: a few hundred nanoseconds, longer than most holders need.
const SPINS: u32 = crate::sync::spins(64);

/// The mutex.
#[derive(Debug, Default)]
pub struct Mutex {
    word: AtomicU32,
}

/// Unlocks when dropped.
#[must_use]
pub struct Guard<'a> {
    mutex: &'a Mutex,
}

impl Mutex {
    /// An unlocked mutex.
    pub const fn new() -> Mutex {
        Mutex { word: AtomicU32::new(FREE) }
    }

    /// Locks, waiting as long as it takes.
    pub fn lock(&self) -> Guard<'_> {
        self.acquire();
        Guard { mutex: self }
    }

    /// Locks if nobody holds it.
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        self.word.compare_exchange(FREE, HELD, Acquire, Relaxed).ok()?;
        Some(Guard { mutex: self })
    }

    /// Locks without a guard; [`Mutex::release`] must follow.
    pub fn acquire(&self) {
        for _ in 0..SPINS {
            if self.word.compare_exchange_weak(FREE, HELD, Acquire, Relaxed).is_ok() {
                return;
            }
            core::hint::spin_loop();
        }
        while self.word.swap(HELD_AND_WANTED, Acquire) != FREE {
            let _ = futex::wait(&self.word, HELD_AND_WANTED, None);
        }
    }

    /// Unlocks what [`Mutex::acquire`] locked.
    pub fn release(&self) {
        if self.word.swap(FREE, Release) == HELD_AND_WANTED {
            futex::wake(&self.word, 1);
        }
    }

    /// Forgets who held it. Only for a forked child, in which the holder does not exist.
    pub fn reset_in_child(&self) {
        self.word.store(FREE, Relaxed);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.mutex.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::UnsafeCell;
    use std::{sync::Arc, thread, vec::Vec};

    struct Counter(Mutex, UnsafeCell<u64>);
    // SAFETY: the cell is touched only under the mutex; that this suffices is what the test is about.
    unsafe impl Sync for Counter {}
    // SAFETY: as above.
    unsafe impl Send for Counter {}

    #[test]
    fn no_increment_under_the_lock_is_lost() {
        let counter = Arc::new(Counter(Mutex::new(), UnsafeCell::new(0)));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counter = counter.clone();
                thread::spawn(move || {
                    for _ in 0..20_000 {
                        let _guard = counter.0.lock();
                        // SAFETY: under the lock.
                        unsafe { *counter.1.get() += 1 };
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        // SAFETY: all threads are gone.
        assert_eq!(unsafe { *counter.1.get() }, 80_000);
        assert!(counter.0.try_lock().is_some());
    }
}
