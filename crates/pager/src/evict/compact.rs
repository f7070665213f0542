//! Compaction of the tier: clusters leave segments of which little is wanted, so that these go back to the file system.
//!
//! Background thread only. A cluster is read and written anew by the tier's thread, and is at its old place until it was. Whoever read it there
//! meanwhile has the same bytes, and whoever comes later finds the new place.
//!
//! What it is not: a reason to read much. It begins where half of what the files take is wanted by nobody, and moves what is left of segments
//! of which no more than a quarter is; or where there are many files, and moves what is in the smallest.

use crate::control::bump;
use crate::evict::worker::Worker;
use crate::sabotage::fault_point;
use crate::tier::below::{Below, Job};
use crate::tier::clusters::Place;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::Nanos;
use memfold_sys::Result;

/// Clusters that are looked at before something else is.
const LOOKS: u32 = 16384;
/// How long nothing moves after something could not.
const PAUSE: Nanos = Nanos::from_secs(10);

impl Worker {
    /// Has clusters move out of sparse segments, and out of a file that is to go, as far as jobs are free.
    pub(crate) fn compact_tier(&mut self, below: &'static Below) {
        // SAFETY: we are the background thread.
        let keeper = unsafe { below.keeper() };
        let (is_wasteful, emptied) = (keeper.is_wasteful(), keeper.to_empty(&below.files));
        if !is_wasteful && emptied.is_none() || self.now.0 < self.demotion.compact_after.0 {
            return;
        }
        if !keeper.may_move(&below.files) {
            return;
        }
        if self.demotion.gives_way(self.now, self.engine.control().tier_asked_bytes.load(Relaxed)) {
            return;
        }
        for _ in 0..LOOKS {
            let number = self.demotion.cluster;
            if number >= below.clusters.end() {
                self.demotion.cluster = 0;
                return;
            }
            let leaves = |place: &Place| {
                emptied == Some(place.file()) || is_wasteful && keeper.is_sparse(&below.files, *place)
            };
            let leaving = below.clusters.wanted(number).filter(leaves);
            if let Some(from) = leaving.filter(|_| !below.is_moving(number)) {
                let Some(job) = below.jobs.iter().find(|job| job.is_free()) else { return };
                match keeper.reserve_other(&below.files, &self.engine.tables.pool, from.blocks(), emptied) {
                    Ok(to) => below.move_over(job, number, from, to),
                    Err(_) => {
                        self.demotion.compact_after = self.now + PAUSE;
                        return;
                    }
                }
            }
            self.demotion.cluster = number + 1;
        }
    }

    /// Ends the move of a cluster: it lies at its new place now, or still at its old one.
    pub(crate) fn settle_move(&mut self, below: &'static Below, job: &Job, outcome: Result<()>) {
        if outcome.is_err() || job.gone().is_some() {
            if outcome.is_err() {
                self.demotion.compact_after = self.now + PAUSE;
            }
            // SAFETY: we are the background thread, and the job is done.
            return unsafe { below.undo(job) };
        }
        // SAFETY: as above.
        let (inner, keeper) = unsafe { (job.inner(), below.keeper()) };
        if let (Some(to), Some(from)) = (inner.place.take(), inner.from.take()) {
            fault_point!(MoveUntold: below.clusters.relocate(inner.cluster, to));
            keeper.give_up(&below.files, from);
            bump(&self.engine.control().tier_moves, 1);
        }
    }
}
