//! A mutex that needs neither libc nor thread-local storage.
//!
//! What it is: a word (free, or whose it is, and whether others sleep) on a futex, after Drepper, "Futexes
//! Are Tricky" (2011), mutex 2. What it is not: fair, recursive or usable from a signal handler that
//! interrupts its holder, but for [`Mutex::hold`]: such a handler may fork, as it may without us.
//!
//! Invariants: whoever holds a lock of the allocator touches pinned memory only, so it never waits for the
//! pager while it makes others wait.

use crate::sync::{AtomicU32, Ordering::*, UnsafeCell};
use core::ops::{Deref, DerefMut};
use memfold_sys::thread::{self, Backoff};

const FREE: u32 = 0;
/// In a word that is not [`FREE`]: somebody sleeps until it is.
const CONTENDED: u32 = 1;

/// How often a thread looks again before it sleeps; critical sections are tens of nanoseconds.
const SPINS: u32 = crate::sync::spins(100);

/// The word of a lock that the calling thread has: of so many bits of a number that tells threads apart that no two are ever taken for one.
#[inline]
fn own() -> u32 {
    // Fibonacci hashing (Knuth, The Art of Computer Programming 6.4): thread pointers lie at like distances.
    ((thread::pointer() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32 & !CONTENDED | 2
}

/// A value of type `T` that one thread at a time may touch.
pub struct Mutex<T> {
    state: AtomicU32,
    /// How often by [`Mutex::hold`]. Between a fork's handlers there is one thread: not what a model looks at.
    held: core::sync::atomic::AtomicU32,
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
        let held = core::sync::atomic::AtomicU32::new(0);
        Mutex { state: AtomicU32::new(FREE), held, value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    #[inline]
    pub fn lock(&self) -> Guard<'_, T> {
        let own = own();
        if self.state.compare_exchange(FREE, own, Acquire, Relaxed).is_err() {
            self.wait(own);
        }
        Guard { mutex: self }
    }

    #[cold]
    fn wait(&self, own: u32) {
        for _ in 0..SPINS {
            if self.state.load(Relaxed) == FREE
                && self.state.compare_exchange(FREE, own, Acquire, Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        loop {
            let seen = self.state.load(Relaxed);
            // Others may sleep, too.
            let wanted = if seen == FREE { own } else { seen } | CONTENDED;
            let is_said =
                seen == wanted || self.state.compare_exchange(seen, wanted, Acquire, Relaxed).is_ok();
            match seen {
                FREE if is_said => return,
                // Every outcome, a wake-up included, means: look again.
                _ if is_said => drop(memfold_sys::futex::wait(&self.state, wanted, None)),
                _ => {}
            }
        }
    }

    /// Takes the lock and keeps it beyond the scope, for the time around `fork`. Where the calling thread has it already, in a function that a signal
    /// interrupted, it stays as it is: nobody else looks at the value, and that function goes on with it in the parent and in the child. That may be a fork,
    /// which has to find it held.
    pub fn hold(&self) {
        let (own, mut backoff) = (own(), Backoff::new());
        while let Err(seen) = self.state.compare_exchange(FREE, own, Acquire, Relaxed) {
            if seen & !CONTENDED == own {
                match self.held.load(Relaxed) {
                    0 => return,
                    _ => break,
                }
            }
            backoff.wait();
        }
        self.held.fetch_add(1, Relaxed);
    }

    /// Ends [`Mutex::hold`], in the parent; or in the forked child, which has it free though it was held more than once, since it need not go on with what
    /// was interrupted.
    ///
    /// # Safety
    /// The calling thread, or in a child the thread that forked it, must have called [`Mutex::hold`].
    pub unsafe fn release(&self, in_child: bool) {
        let held = self.held.load(Relaxed);
        let left = if in_child { 0 } else { held.saturating_sub(1) };
        self.held.store(left, Relaxed);
        if held > 0 && left == 0 {
            drop(Guard { mutex: self });
        }
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
        if self.mutex.state.swap(FREE, Release) & CONTENDED != 0 {
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
    fn who_has_the_lock_already_may_hold_it_over_a_fork_and_others_wait() {
        static LOCK: Mutex<u32> = Mutex::new(0);
        let mut guard = LOCK.lock();
        LOCK.hold();
        // SAFETY: held above by this thread.
        unsafe { LOCK.release(false) };
        let waiter = thread::spawn(|| {
            LOCK.hold();
            // SAFETY: this thread holds the lock.
            let seen = unsafe { *LOCK.value.get() };
            // SAFETY: held above by this thread.
            unsafe { LOCK.release(false) };
            seen
        });
        thread::sleep(std::time::Duration::from_millis(20));
        *guard = 7;
        drop(guard);
        assert_eq!(waiter.join().unwrap(), 7, "the waiter had the lock while another thread did");
        assert_eq!(*LOCK.lock(), 7);
    }

    #[test]
    fn a_held_lock_keeps_others_out_until_released() {
        static LOCK: Mutex<bool> = Mutex::new(false);
        LOCK.hold();
        // A fork within the fork.
        LOCK.hold();
        // SAFETY: held above by this thread.
        unsafe { LOCK.release(false) };
        let waiter = thread::spawn(|| *LOCK.lock());
        thread::sleep(std::time::Duration::from_millis(20));
        // SAFETY: this thread holds the lock, so nobody else looks at the value.
        unsafe { *LOCK.value.get() = true };
        // SAFETY: held above by this thread.
        unsafe { LOCK.release(false) };
        assert!(waiter.join().unwrap(), "the waiter saw the value before the lock was released");
    }
}
