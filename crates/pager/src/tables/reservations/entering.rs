//! What the program reserves, and what of it becomes accessible and comes into the tables.

use crate::engine::{Engine, Phase};
use crate::tables::bounds::Bounds;
use crate::tables::reservations::Reserved;
use core::sync::atomic::Ordering::*;
use memfold_sys::{signal, EXTENT_SIZE};

impl Engine {
    /// The program reserved private anonymous memory without access to it, too much to be entered into the tables.
    pub fn reserved_long(&'static self, addr: usize, len: usize) {
        if self.phase() == Phase::Off {
            return;
        }
        let _blocked = signal::block_all();
        let _pass = self.traffic.gate.pass();
        self.tables.reservations.with(|list| {
            list.remove(Bounds::of(addr, len));
            list.add(Reserved { range: Bounds::of(addr, len), undumped: false });
        });
    }

    /// Of the range, core dumps are about to have what is reserved, or not to.
    pub fn set_reserved_dumped(&'static self, addr: usize, len: usize, dumped: bool) {
        if self.tables.reservations.count.load(Relaxed) == 0 {
            return;
        }
        let _blocked = signal::block_all();
        let _pass = self.traffic.gate.pass();
        self.tables.reservations.with(|list| list.set_dumped(Bounds::of(addr, len), dumped));
    }

    /// The range is about to be something else than the program reserved.
    pub fn no_longer_reserved(&'static self, addr: usize, len: usize) {
        // Relaxed: who unmaps what another thread has just reserved has been told of it.
        if self.tables.reservations.count.load(Relaxed) == 0 {
            return;
        }
        let _blocked = signal::block_all();
        let _pass = self.traffic.gate.pass();
        self.tables.reservations.with(|list| list.remove(Bounds::of(addr, len)));
    }

    /// The range is about to become accessible: what is reserved of it is entered into the tables, not managed yet.
    pub fn enter_reserved(&'static self, addr: usize, len: usize) {
        if self.tables.reservations.count.load(Relaxed) == 0 || self.phase() == Phase::Off {
            return;
        }
        let _blocked = signal::block_all();
        let _pass = self.traffic.gate.pass();
        let range = Bounds::of(addr, len);
        self.traffic.turns.wait_for_reader();
        let list = self.tables.reservations.with(|list| *list);
        for Reserved { range: part, undumped } in list.parts(range) {
            let mut at = part.start;
            while at < part.end {
                // Without tables the memory is simply not managed.
                let Ok(extent) = self.space().find_or_make(at, &self.tables.pool) else { return };
                let mut extent = extent.lock();
                let pages = extent.clip(part.start, part.end).set();
                for run in pages.minus(&extent.anonymous.load()).runs() {
                    self.begin_managing(&mut extent, run, false);
                    if undumped {
                        self.keep_from_dumps(&extent, &run.set(), true);
                    }
                }
                at = extent.base() + EXTENT_SIZE;
            }
        }
    }
}
