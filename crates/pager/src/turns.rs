//! Whose turn it is: the fault thread's, to read a message and act on it, or a mover's, to move pages.
//!
//! A thread that changes a mapping past libc sleeps until the report of that is read, and goes on at once then: it drops
//! the contents, and may write new ones. Whoever moved a page of the mapping between the reading and the moment at which
//! the report was acted on could not know whether it moved old contents or new ones. So reports are read only while
//! nobody moves, and nobody moves from the reading of a report until it was acted on. A fork waits for that moment too.
//!
//! A touch is read at any time, as touches are served beside movers, and movers move while one is served: what is served then is no report. The
//! kernel tells which the next message is.

use crate::sabotage::fault_point;
use crate::sync::{AtomicU32, AtomicU64, Ordering::*};
use memfold_sys::thread::Backoff;

/// See the module. All operations are `SeqCst`: either the fault thread sees the mover, or the mover the fault thread.
#[derive(Debug, Default)]
pub struct Turns {
    /// Odd while the fault thread reads and acts.
    reader: AtomicU64,
    /// 1 while that is for a touch.
    serving: AtomicU32,
    movers: AtomicU32,
    /// See [`Turns::stretch`]. Beside the steps that models look at.
    stretch: core::sync::atomic::AtomicU32,
}

/// A mover's turn; over when dropped.
#[must_use]
pub struct Move<'a>(&'a Turns);

impl Turns {
    /// Nobody's turn.
    pub const fn new() -> Turns {
        Turns {
            reader: AtomicU64::new(0),
            serving: AtomicU32::new(0),
            movers: AtomicU32::new(0),
            stretch: core::sync::atomic::AtomicU32::new(0),
        }
    }

    /// Begins a mover's turn; `None` while the fault thread is at work on anything but a touch, and may be waiting for the caller.
    pub fn try_move(&self) -> Option<Move<'_>> {
        self.movers.fetch_add(1, SeqCst);
        let turn = Move(self);
        let free = self.reader.load(SeqCst).is_multiple_of(2) || self.serving.load(SeqCst) != 0;
        fault_point!(TurnNotTaken: free, else true).then_some(turn)
    }

    /// As [`Turns::try_move`], trying again until `wanted_elsewhere`.
    pub fn move_unless(&self, mut wanted_elsewhere: impl FnMut() -> bool) -> Option<Move<'_>> {
        let mut backoff = Backoff::new();
        loop {
            let turn = self.try_move();
            if turn.is_some() || wanted_elsewhere() {
                return turn;
            }
            backoff.wait();
        }
    }

    /// Begins the fault thread's turn.
    pub fn begin_read(&self) {
        self.stretch.fetch_add(1, SeqCst);
        self.reader.fetch_add(1, SeqCst);
    }

    /// In the fault thread's turn: waits until a message can be read: nobody moves, or the message is a touch. A touch may be over before it is
    /// read, by a signal or by somebody's wake-up, and what is read then is what waits behind it; so nobody is passed by where reports may be
    /// waiting.
    pub fn wait_for_movers(&self, touch_waits: impl Fn() -> bool, reports_may: impl Fn() -> bool) {
        let mut backoff = Backoff::new();
        let passes = || touch_waits() && fault_point!(ReportBehindTouch: !reports_may(), else true);
        while self.movers.load(SeqCst) != 0 && !passes() {
            backoff.wait();
        }
    }

    /// In the fault thread's turn: what was read is a touch.
    pub fn serve_touch(&self) {
        self.serving.store(1, SeqCst);
    }

    /// In the fault thread's turn: something else may be read now. Whether a touch was being served.
    pub fn leave_touch(&self) -> bool {
        self.stretch.fetch_add(1, SeqCst);
        fault_point!(ServiceNotLeft: self.serving.swap(0, SeqCst), else self.serving.load(SeqCst)) != 0
    }

    /// Ends the fault thread's turn.
    pub fn end_read(&self) {
        self.serving.store(0, SeqCst);
        self.reader.fetch_add(1, SeqCst);
    }

    /// The number of the stretch of time in which nobody begins to move, if it is one: the fault thread reads or acts, and serves no touch.
    pub fn stretch(&self) -> Option<u32> {
        let is_one = self.reader.load(SeqCst) % 2 == 1 && self.serving.load(SeqCst) == 0;
        is_one.then(|| self.stretch.load(SeqCst))
    }

    /// Waits until whatever the fault thread had read when this was called has been acted on.
    pub fn wait_for_reader(&self) {
        let turn = self.reader.load(SeqCst);
        let mut backoff = Backoff::new();
        while turn % 2 == 1 && self.reader.load(SeqCst) == turn {
            backoff.wait();
        }
    }

    /// Nobody's turn, in a forked child.
    pub fn reset_in_child(&self) {
        self.reader.store(0, Relaxed);
        self.serving.store(0, Relaxed);
        self.movers.store(0, Relaxed);
    }
}

impl Drop for Move<'_> {
    fn drop(&mut self) {
        self.0.movers.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use std::{sync::Arc, thread, vec::Vec};

    #[test]
    fn reports_are_read_while_nobody_moves_and_nobody_moves_until_they_were_acted_on() {
        struct World {
            turns: Turns,
            moving: AtomicU32,
            acting: AtomicBool,
            over: AtomicBool,
        }
        let world = Arc::new(World {
            turns: Turns::new(),
            moving: AtomicU32::new(0),
            acting: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let movers: Vec<_> = (0..2)
            .map(|_| {
                let world = world.clone();
                thread::spawn(move || {
                    let mut moves = 0u64;
                    while !world.over.load(SeqCst) {
                        let Some(turn) = world.turns.try_move() else { continue };
                        world.moving.fetch_add(1, SeqCst);
                        assert!(!world.acting.load(SeqCst), "moved in the middle of a report");
                        world.moving.fetch_sub(1, SeqCst);
                        drop(turn);
                        moves += 1;
                    }
                    moves
                })
            })
            .collect();
        for round in 0..20_000 {
            world.turns.begin_read();
            // Half of the reports come in the middle of a touch.
            if round % 2 == 0 {
                world.turns.serve_touch();
                assert!(world.turns.leave_touch());
            }
            world.turns.wait_for_movers(|| false, || false);
            world.acting.store(true, SeqCst);
            assert_eq!(world.moving.load(SeqCst), 0, "read a report while somebody moved");
            world.acting.store(false, SeqCst);
            world.turns.end_read();
        }
        world.over.store(true, SeqCst);
        assert!(movers.into_iter().all(|mover| mover.join().is_ok()));
    }

    #[test]
    fn a_touch_is_read_while_somebody_moves() {
        let turns = Turns::new();
        let turn = turns.try_move();
        turns.begin_read();
        turns.wait_for_movers(|| true, || false);
        assert!(turns.try_move().is_none() && turns.move_unless(|| true).is_none());
        turns.serve_touch();
        assert!(turns.try_move().is_some(), "nobody moves while a touch is served");
        assert!(turns.leave_touch() && turns.try_move().is_none());
        turns.end_read();
        drop(turn);
        assert!(turns.try_move().is_some());
    }
}
