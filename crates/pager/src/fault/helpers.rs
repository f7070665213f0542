//! Helpers: threads that bring pages back ahead of a touch, beside the fault thread, where memory is gone through and CPUs are idle.
//!
//! The fault thread asks through a queue ([`crate::fault::prefetch`]), of which every helper takes what is oldest. The first is there from the
//! start, the others when there is something for them to do.
//!
//! What it is not: what they do ([`crate::fault::helping`]).
//!
//! Invariants: a helper has entries in hand only between [`Helpers::begin`] and the end of its [`Work`]; a fork has none begin, and waits for
//! those that have.

use crate::sabotage::fault_point;
use crate::sync::{AtomicU32, AtomicU64, Ordering::*};
use memfold_sys::futex;
use memfold_sys::thread::Backoff;

/// Most helpers.
pub const MOST: usize = 8;
/// The place of the one that is always there.
pub const FIRST: usize = 0;

/// See the module. All operations on `at_work` are `SeqCst`: either a helper sees that it must not begin, or who says so sees the helper.
#[derive(Debug, Default)]
pub struct Helpers {
    /// Incremented to wake them.
    pub bell: AtomicU32,
    /// 1 for each that is there.
    here: [AtomicU32; MOST],
    at_work: AtomicU32,
    ending: AtomicU32,
    /// CPUs that the process may use.
    cpus: AtomicU32,
    /// CPU time that they have taken, ns.
    spent: AtomicU64,
}

/// Entries may be taken; over when dropped.
#[must_use]
pub struct Work<'a>(&'a Helpers);

impl Helpers {
    /// None.
    pub const fn new() -> Helpers {
        Helpers {
            bell: AtomicU32::new(0),
            here: [const { AtomicU32::new(0) }; MOST],
            at_work: AtomicU32::new(0),
            ending: AtomicU32::new(0),
            cpus: AtomicU32::new(1),
            spent: AtomicU64::new(0),
        }
    }

    /// Begins a piece of work, unless it `must_wait`.
    pub fn begin(&self, must_wait: impl Fn() -> bool) -> Option<Work<'_>> {
        fault_point!(HelperNotAwaited: self.at_work.fetch_add(1, SeqCst));
        let work = Work(self);
        (!must_wait()).then_some(work)
    }

    /// Waits until no helper has anything in hand that it took before the caller said what they must wait for.
    pub fn wait_for_work(&self) {
        let mut backoff = Backoff::new();
        while self.at_work.load(SeqCst) != 0 {
            backoff.wait();
        }
    }

    /// How many have something in hand.
    pub fn at_work(&self) -> u32 {
        self.at_work.load(Relaxed)
    }

    /// Has up to so many of them look what there is to do.
    pub fn ring(&self, many: u32) {
        self.bell.fetch_add(1, Release);
        futex::wake(&self.bell, many);
    }

    /// The process may use so many CPUs.
    pub fn set_cpus(&self, cpus: u32) {
        self.cpus.store(cpus, Relaxed);
    }

    /// How many CPUs the process may use.
    pub fn cpus(&self) -> usize {
        self.cpus.load(Relaxed) as usize
    }

    /// The first of so many places at which there is none. For the first helper.
    pub fn free_place(&self, most: usize) -> Option<usize> {
        self.here[..most.min(MOST)].iter().position(|here| here.load(Acquire) == 0)
    }

    /// A helper is made at the place.
    pub fn arrive(&self, place: usize) {
        self.here[place].store(1, Release);
    }

    /// The helper at the place leaves, or was not made.
    pub fn leave(&self, place: usize) {
        self.here[place].store(0, Release);
    }

    /// One has taken so much CPU time, ns.
    pub fn spend(&self, time: u64) {
        self.spent.fetch_add(time, Relaxed);
    }

    /// The CPU time that all have taken, ns.
    pub fn spent(&self) -> u64 {
        self.spent.load(Relaxed)
    }

    /// They are to leave.
    pub fn end(&self) {
        self.ending.store(1, Release);
    }

    /// Whether they are to leave.
    pub fn are_ending(&self) -> bool {
        self.ending.load(Acquire) != 0
    }

    /// There are none: in a forked child, or when all have left.
    pub fn reset(&self) {
        self.here.iter().for_each(|here| here.store(0, Relaxed));
        self.at_work.store(0, Relaxed);
        self.ending.store(0, Relaxed);
        self.spent.store(0, Relaxed);
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        fault_point!(HelperNotAwaited: self.0.at_work.fetch_sub(1, SeqCst));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::{sync::Arc, thread, vec::Vec};

    #[test]
    fn nothing_is_in_hand_once_it_was_waited_for() {
        crate::sabotage::choose(None);
        let shared =
            Arc::new((Helpers::new(), AtomicBool::new(false), AtomicU32::new(0), AtomicBool::new(false)));
        let helpers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (helpers, stop, in_hand, over) = &*shared;
                    while !over.load(SeqCst) {
                        if let Some(_work) = helpers.begin(|| stop.load(SeqCst)) {
                            in_hand.fetch_add(1, SeqCst);
                            in_hand.fetch_sub(1, SeqCst);
                        }
                    }
                })
            })
            .collect();
        let (of, stop, in_hand, over) = &*shared;
        for _ in 0..2_000 {
            stop.store(true, SeqCst);
            of.wait_for_work();
            for _ in 0..20 {
                assert_eq!(in_hand.load(SeqCst), 0);
            }
            stop.store(false, SeqCst);
        }
        over.store(true, SeqCst);
        helpers.into_iter().for_each(|helper| helper.join().unwrap());
        assert_eq!(of.at_work(), 0);
    }

    #[test]
    fn places_are_filled_in_order_and_free_again_when_a_helper_leaves() {
        let helpers = Helpers::new();
        assert_eq!(helpers.free_place(2), Some(0));
        helpers.arrive(0);
        assert_eq!(helpers.free_place(2), Some(1));
        helpers.arrive(1);
        assert_eq!((helpers.free_place(2), helpers.free_place(99)), (None, Some(2)));
        helpers.leave(0);
        assert_eq!(helpers.free_place(2), Some(0));
        assert_eq!(helpers.free_place(0), None);
    }
}
