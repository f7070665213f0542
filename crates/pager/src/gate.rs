//! Holding others back: program threads during a fork, the background thread whenever its tables must stand still.

use crate::sabotage::fault_point;
use crate::sync::{AtomicU32, Ordering::*};
use memfold_sys::futex;

/// Program threads pass it for each change of a mapping; a fork closes it.
#[derive(Debug, Default)]
pub struct Gate {
    /// How many hold it closed.
    closed: AtomicU32,
    inside: AtomicU32,
}

/// Leaves the gate when dropped.
#[must_use]
pub struct Pass<'a>(&'a Gate);

impl Gate {
    /// An open gate.
    pub const fn new() -> Gate {
        Gate { closed: AtomicU32::new(0), inside: AtomicU32::new(0) }
    }

    /// Goes in, waiting while it is closed.
    pub fn pass(&self) -> Pass<'_> {
        loop {
            self.inside.fetch_add(1, SeqCst);
            if self.closed.load(SeqCst) == 0 {
                return Pass(self);
            }
            self.leave();
            match self.closed.load(SeqCst) {
                0 => {}
                closed => drop(futex::wait(&self.closed, closed, None)),
            }
        }
    }

    fn leave(&self) {
        if self.inside.fetch_sub(1, SeqCst) == 1 && self.closed.load(SeqCst) != 0 {
            // Several may be closing it: who forks, and the pager where it ends.
            futex::wake(&self.inside, fault_point!(CloserLeftAsleep: u32::MAX >> 1, else 1));
        }
    }

    /// Closes it and waits until nobody is inside. Counts; [`Gate::open`] ends it.
    pub fn close(&self) {
        self.closed.fetch_add(1, SeqCst);
        loop {
            let inside = self.inside.load(SeqCst);
            if inside == 0 {
                return;
            }
            let _ = futex::wait(&self.inside, inside, None);
        }
    }

    /// Ends one [`Gate::close`].
    pub fn open(&self) {
        self.closed.fetch_sub(1, SeqCst);
        futex::wake(&self.closed, u32::MAX >> 1);
    }

    /// Opens it in a forked child, where whoever was inside does not exist.
    pub fn reset_in_child(&self) {
        self.inside.store(0, Relaxed);
        self.closed.store(0, Relaxed);
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Stops the background thread at a point where it holds nothing and its tables are whole.
#[derive(Debug, Default)]
pub struct Brake {
    holders: AtomicU32,
    /// 1 while the background thread sleeps, waits here, or does not exist.
    parked: AtomicU32,
}

impl Brake {
    /// Nobody holds; the thread does not exist yet.
    pub const fn new() -> Brake {
        Brake { holders: AtomicU32::new(0), parked: AtomicU32::new(1) }
    }

    /// Returns once the background thread stands still. Counts; [`Brake::let_go`] ends it.
    pub fn hold(&self) {
        self.holders.fetch_add(1, SeqCst);
        while self.parked.load(SeqCst) == 0 {
            let _ = futex::wait(&self.parked, 0, None);
        }
    }

    /// Ends one [`Brake::hold`].
    pub fn let_go(&self) {
        if self.holders.fetch_sub(1, SeqCst) == 1 {
            futex::wake(&self.holders, 1);
        }
    }

    /// The background thread is about to sleep, or to end.
    pub fn park(&self) {
        self.parked.store(1, SeqCst);
        futex::wake(&self.parked, u32::MAX >> 1);
    }

    /// The background thread is about to work; waits while it is held.
    pub fn unpark(&self) {
        loop {
            self.parked.store(0, SeqCst);
            let holders = self.holders.load(SeqCst);
            if holders == 0 {
                return;
            }
            self.park();
            let _ = futex::wait(&self.holders, holders, None);
        }
    }

    /// Whether somebody holds, or waits to.
    pub fn wanted(&self) -> bool {
        self.holders.load(Relaxed) != 0
    }

    /// Forgets all holders, in a forked child.
    pub fn reset_in_child(&self) {
        self.holders.store(0, Relaxed);
        self.parked.store(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicU64};
    use std::{sync::Arc, thread, vec::Vec};

    #[test]
    fn nobody_is_inside_while_the_gate_is_closed() {
        let gate = Arc::new((Gate::new(), AtomicU64::new(0), AtomicBool::new(false)));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let gate = gate.clone();
                thread::spawn(move || {
                    while !gate.2.load(SeqCst) {
                        let _pass = gate.0.pass();
                        gate.1.fetch_add(1, SeqCst);
                        gate.1.fetch_sub(1, SeqCst);
                    }
                })
            })
            .collect();
        for _ in 0..2_000 {
            gate.0.close();
            for _ in 0..20 {
                assert_eq!(gate.1.load(SeqCst), 0);
            }
            gate.0.open();
        }
        gate.2.store(true, SeqCst);
        threads.into_iter().for_each(|t| t.join().unwrap());
    }

    #[test]
    fn a_held_thread_does_not_work() {
        let shared = Arc::new((Brake::new(), AtomicU64::new(0), AtomicBool::new(false)));
        let worker = {
            let shared = shared.clone();
            thread::spawn(move || {
                while !shared.2.load(SeqCst) {
                    shared.0.unpark();
                    shared.1.fetch_add(1, SeqCst);
                    shared.0.park();
                }
            })
        };
        for _ in 0..2_000 {
            shared.0.hold();
            let before = shared.1.load(SeqCst);
            for _ in 0..20 {
                assert_eq!(shared.1.load(SeqCst), before);
            }
            shared.0.let_go();
        }
        shared.2.store(true, SeqCst);
        worker.join().unwrap();
    }
}
