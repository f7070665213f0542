//! A mutex that needs neither libc nor thread-local storage.
//!
//! What it is: three states in a word (free, held, held with sleepers) on a futex, after Drepper, "Futexes
//! Are Tricky" (2011), mutex 2. What it is not: fair, recursive or usable from a signal handler that
//! interrupts its holder.
//!
//! Invariants: whoever holds a lock of the allocator touches pinned memory only, so it never waits for the
//! pager while it makes others wait.

use crate::sync::{AtomicU32, Ordering::*, UnsafeCell};
use core::ops::{Deref, DerefMut};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// How often a thread looks again before it sleeps; critical sections are tens of nanoseconds.
const SPINS: u32 = crate::sync::spins(100);

/// A value of type `T` that one thread at a time may touch.
pub struct Mutex<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

/// Access to the value; the lock is released when this is dropped.
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
}

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Mutex<T> {
        Mutex { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        if self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_err() {
            self.wait();
        }
        Guard { mutex: self }
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            if self.state.load(Relaxed) == FREE
                && self.state.compare_exchange(FREE, HELD, Acquire, Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        while self.state.swap(CONTENDED, Acquire) != FREE {
            // Every outcome, a wake-up included, means: look again.
            let _ = memfold_sys::futex::wait(&self.state, CONTENDED, None);
        }
    }

    /// Takes the lock and keeps it beyond the scope, for the time around `fork`.
    pub fn hold(&self) {
        core::mem::forget(self.lock());
    }

    /// Ends [`Mutex::hold`], in the parent or in the forked child.
    ///
    /// # Safety
    /// The calling thread, or in a child the thread that forked it, must have called [`Mutex::hold`].
    pub unsafe fn release(&self) {
        drop(Guard { mutex: self });
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.mutex.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock, and is borrowed mutably.
        unsafe { &mut *self.mutex.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.mutex.state.swap(FREE, Release) == CONTENDED {
            memfold_sys::futex::wake(&self.mutex.state, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn increments_under_the_lock_are_never_lost() {
        static COUNT: Mutex<u64> = Mutex::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        *COUNT.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), 80_000);
    }

    #[test]
    fn a_held_lock_keeps_others_out_until_released() {
        static LOCK: Mutex<bool> = Mutex::new(false);
        LOCK.hold();
        let waiter = thread::spawn(|| *LOCK.lock());
        thread::sleep(std::time::Duration::from_millis(20));
        // SAFETY: this thread holds the lock, so nobody else looks at the value.
        unsafe { *LOCK.value.get() = true };
        // SAFETY: held above by this thread.
        unsafe { LOCK.release() };
        assert!(waiter.join().unwrap(), "the waiter saw the value before the lock was released");
    }
}
