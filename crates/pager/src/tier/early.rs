//! Asking for a cluster before the tier's thread is awake: the fault thread does, where it can do so without waiting, and the disk or the engine has
//! begun by the time at which that thread knows of it.
//!
//! The tier's thread lends what it reads with while it has no use for it, and takes it back with what was asked for.
//!
//! What it is not: a promise. Where nothing is lent, or it would take a wait, nothing is asked for, and the tier's thread does as ever.
//!
//! Invariants: what is lent is used by one thread at a time, by `state`. What comes is judged as whatever the tier's thread has read itself.

use super::clusters::Place;
use crate::sabotage::{planted, Bug};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::*};
use memfold_sys::aio;
use memfold_sys::thread::Backoff;
use memfold_sys::time::{self, Nanos};

/// The tier's thread has it.
const OWN: u32 = 0;
const LENT: u32 = 1;
/// The fault thread is about to ask.
const IN_USE: u32 = 2;
/// It has asked.
const USED: u32 = 3;

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// The cluster.
    pub cluster: u32,
    /// Where it lay then.
    pub place: Place,
    /// When that was.
    pub at: Nanos,
}

/// With what a file is read meanwhile.
#[derive(Clone, Copy, Default)]
pub struct Lent {
    /// By this context, if there is one.
    pub context: Option<aio::Handle>,
    /// The room for a cluster.
    pub to: usize,
}

/// What is lent. Made from zeros: nothing is.
pub struct Early {
    state: AtomicU32,
    /// The clusters that the tier's thread has at hand, which need not be asked for; 0 for none.
    at_hand: [AtomicU32; 2],
    inner: UnsafeCell<(Lent, Option<Asked>)>,
}

// SAFETY: `inner` is reached by one thread at a time, by `state`.
unsafe impl Sync for Early {}

impl Early {
    /// Lends this. The tier's thread only, which has it.
    pub fn lend(&self, lent: Lent) {
        debug_assert_eq!(self.state.load(Relaxed), OWN);
        // SAFETY: it is ours.
        unsafe { *self.inner.get() = (lent, None) };
        self.state.store(LENT, Release);
    }

    /// Takes it back, with what was asked for meanwhile. The tier's thread only. It waits for who is about to ask, which takes one call.
    pub fn take_back(&self) -> Option<Asked> {
        let mut backoff = Backoff::new();
        loop {
            match self.state.load(Acquire) {
                OWN => return None,
                IN_USE if !planted(Bug::EarlyNotAwaited) => backoff.wait(),
                now => {
                    if self.state.compare_exchange(now, OWN, Acquire, Relaxed).is_ok() {
                        // SAFETY: it is ours.
                        return unsafe { &mut *self.inner.get() }.1.take();
                    }
                }
            }
        }
    }

    /// The tier's thread has these clusters at hand, 0 for none.
    pub fn has_at_hand(&self, clusters: [u32; 2]) {
        self.at_hand.iter().zip(clusters).for_each(|(at_hand, cluster)| at_hand.store(cluster, Relaxed));
    }

    /// Has `ask` ask for a cluster with what is lent, if anything is, and the cluster is not at hand; whether it did is what it returns. Fault thread only.
    pub fn ask(&self, cluster: u32, place: Place, ask: impl FnOnce(Lent) -> bool) {
        if self.at_hand.iter().any(|at_hand| at_hand.load(Relaxed) == cluster)
            || self.state.compare_exchange(LENT, IN_USE, Acquire, Relaxed).is_err()
        {
            return;
        }
        // SAFETY: nobody else has it while it is in use.
        let (lent, asked) = unsafe { &mut *self.inner.get() };
        let at = time::now();
        *asked = ask(*lent).then_some(Asked { cluster, place, at });
        self.state.store(if asked.is_some() { USED } else { LENT }, Release);
    }

    /// In a forked child, where none of these threads exists.
    pub fn reset_in_child(&self) {
        self.state.store(OWN, Relaxed);
        self.has_at_hand([0; 2]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    fn early() -> Early {
        let inner = UnsafeCell::new((Lent::default(), None));
        Early { state: AtomicU32::new(OWN), at_hand: Default::default(), inner }
    }

    #[test]
    fn what_was_asked_for_comes_back_with_what_was_lent() {
        let (early, place) = (early(), Place::new(1, 7, 5, 3));
        early.ask(9, place, |_| panic!("nothing is lent"));
        assert_eq!(early.take_back(), None);
        early.lend(Lent { context: None, to: 6 });
        early.has_at_hand([7, 8]);
        early.ask(8, place, |_| panic!("it is at hand"));
        early.ask(9, place, |_| false);
        early.ask(9, place, |lent| lent.to == 6);
        early.ask(10, place, |_| panic!("it has been used"));
        let asked = early.take_back().unwrap();
        assert_eq!((asked.cluster, asked.place), (9, place));
        assert_eq!(early.take_back(), None);
        early.lend(Lent::default());
        assert_eq!(early.take_back(), None, "nobody asked");
    }

    #[test]
    fn who_takes_it_back_waits_for_who_is_about_to_ask() {
        crate::sabotage::choose(None);
        static EARLY: Early = Early {
            state: AtomicU32::new(OWN),
            at_hand: [AtomicU32::new(0), AtomicU32::new(0)],
            inner: UnsafeCell::new((Lent { context: None, to: 0 }, None)),
        };
        static ASKING: AtomicBool = AtomicBool::new(false);
        static ENDED: AtomicBool = AtomicBool::new(false);
        EARLY.lend(Lent::default());
        let fault = thread::spawn(|| {
            EARLY.ask(1, Place::new(0, 0, 1, 0), |_| {
                ASKING.store(true, SeqCst);
                time::sleep(Nanos::from_millis(50));
                ENDED.store(true, SeqCst);
                true
            });
        });
        while !ASKING.load(SeqCst) {
            thread::yield_now();
        }
        assert_eq!(EARLY.take_back().map(|asked| asked.cluster), Some(1));
        assert!(ENDED.load(SeqCst), "it was not waited for");
        fault.join().unwrap();
    }
}
