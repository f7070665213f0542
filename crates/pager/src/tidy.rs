//! Keeping staging and the store tidy, between pages. Background thread only.

use crate::engine::Engine;
use crate::entry::{Entry, State};
use crate::restore::copies_kept;
use crate::sabotage::{planted, Bug};
use crate::store::Slot;
use crate::sync::Ordering::Relaxed;
use crate::worker::Worker;
use sys::PAGE_SIZE;

impl Worker {
    /// Drops what restores have left behind in staging, once it is worth the interrupts.
    pub(crate) fn drop_copies(&mut self) {
        if self.engine.copies.load(Relaxed) < copies_kept(self.engine) {
            return;
        }
        for extent in self.engine.space().all() {
            if extent.copies.load(Relaxed) != 0 {
                if let Some(entries) = extent.entries() {
                    self.drop_staged(extent, entries);
                }
                if self.interrupted() {
                    break;
                }
            }
        }
    }

    /// Takes back the slots that restores gave up, and packs the store where it has become sparse.
    pub(crate) fn tidy_store(&mut self) {
        self.store.drain(&self.engine.free_slots);
        let engine = self.engine;
        while self.store.compact(|page, old, new| relocate(engine, page, old, new)) {
            if self.interrupted() {
                break;
            }
        }
    }
}

/// Points the page's entry to its new place in the store, if it still names the old one.
fn relocate(engine: &Engine, page: usize, old: Slot, new: Slot) -> bool {
    let Some(extent) = engine.space().find(page) else { return false };
    let Some(entries) = extent.entries() else { return false };
    let index = (page - extent.base()) / PAGE_SIZE;
    if planted(Bug::RelocationUntold) {
        return true;
    }
    entries[index].transition(
        Entry::with_payload(State::Stored, old.payload()),
        Entry::with_payload(State::Stored, new.payload()),
    )
}
