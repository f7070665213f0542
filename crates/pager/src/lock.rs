//! A mutex on a futex word, usable from program threads and agent threads alike.
//!
//! What it is not: `std`'s or libc's mutex, which agent threads must not use.
//!
//! Invariants: program threads take it with signals blocked (a handler that runs while the lock is held
//! could need it too); the fault thread never takes one.

use crate::sync::{AtomicU32, Ordering::*};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use memfold_sys::futex;

const FREE: u32 = 0;
const HELD: u32 = 1;
const HELD_AND_WANTED: u32 = 2;

/// Turns of the spin loop before sleeping: a few hundred nanoseconds, longer than most holders need.
const SPINS: u32 = crate::sync::spins(64);

/// The mutex, and what only its holder reaches. All-zero bytes are an unlocked one, where they are a `T`.
#[derive(Debug, Default)]
pub struct Mutex<T = ()> {
    word: AtomicU32,
    inner: UnsafeCell<T>,
}

// SAFETY: `inner` is reached by who holds the lock.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// Unlocks when dropped.
#[must_use]
pub struct Guard<'a, T = ()> {
    mutex: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(inner: T) -> Mutex<T> {
        Mutex { word: AtomicU32::new(FREE), inner: UnsafeCell::new(inner) }
    }

    /// Locks, waiting as long as it takes.
    pub fn lock(&self) -> Guard<'_, T> {
        self.acquire();
        Guard { mutex: self }
    }

    /// Locks if nobody holds it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
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

    /// What is in it.
    ///
    /// # Safety
    /// The caller has locked it by [`Mutex::acquire`], and keeps no other reference.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn held(&self) -> &mut T {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.inner.get() }
    }

    /// Forgets who held it. Only for a forked child, in which the holder does not exist.
    pub fn reset_in_child(&self) {
        self.word.store(FREE, Relaxed);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: under the lock.
        unsafe { &*self.mutex.inner.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: under the lock, and by the guard's only reference.
        unsafe { &mut *self.mutex.inner.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.mutex.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::Arc, thread, vec::Vec};

    #[test]
    fn no_increment_under_the_lock_is_lost() {
        let counter = Arc::new(Mutex::new(0u64));
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counter = counter.clone();
                thread::spawn(move || {
                    for _ in 0..20_000 {
                        *counter.lock() += 1;
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(*counter.try_lock().unwrap(), 80_000);
    }
}
