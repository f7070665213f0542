//! Giving back what staging and the store hold to no purpose, between pages. Background thread only.

use crate::engine::Engine;
use crate::evict::worker::{Worker, LEFTOVERS};
use crate::fault::restore::copies_kept;
use crate::sabotage::fault_point;
use crate::slot::Slot;
use crate::sync::Ordering::Relaxed;
use crate::tables::entry::{Entry, State};
use memfold_sys::PAGE_SIZE;

impl Worker {
    /// Drops what restores have left behind in staging, and what was discarded there, once it is worth the interrupts or has lain for
    /// [`LEFTOVERS`].
    pub(crate) fn drop_copies(&mut self) {
        let copies = self.engine.counts.copies.load(Relaxed);
        if fault_point!(StagingNotWiped: copies == 0, else true) {
            self.upkeep.copies_since = self.now;
            return;
        }
        let old = self.engine.options.wipes.load(Relaxed) != 0
            || self.now.since(self.upkeep.copies_since) >= LEFTOVERS;
        if copies < copies_kept(self.engine) && !old {
            return;
        }
        for extent in self.engine.space().all() {
            if extent.copies.load(Relaxed) != 0 {
                if let Some(entries) = extent.entries() {
                    self.drop_staged(extent, entries, old);
                }
                if self.interrupted() {
                    return;
                }
            }
        }
        // Those in huge pages are left until they are old.
        if old {
            self.upkeep.copies_since = self.now;
        }
    }

    /// Takes back the slots that restores gave up, and packs the store where it has become sparse.
    pub(crate) fn compact_store(&mut self) {
        self.store.drain(&self.engine.storage.free_slots);
        self.drop_dictionaries();
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
    let (old, new) = (old.payload(), new.payload());
    let stored = |payload| Entry::with_payload(State::Stored, payload);
    fault_point!(RelocationUntold: entries[index].transition(stored(old), stored(new)), else true)
}
