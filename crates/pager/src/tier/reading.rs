//! A cluster that is being read while the tier's thread does something else: puts the one before in place.
//!
//! What it is not: a promise. Where nothing can be read so (a file of a parent's, a kernel that forbids it), or what came is not what was
//! written, nothing is taken over; whoever wants the cluster then reads it as ever ([`super::bring::fetch`]), and that one tries again and judges.
//!
//! Invariants: what is read to is left alone until the read is over.

use super::arrived::Arrived;
use super::below::Below;
use super::clusters::Place;
use super::seal;
use crate::control::bump;
use crate::engine::Engine;
use memfold_sys::aio::Context;
use memfold_sys::inject::{self, Point};
use memfold_sys::time::{self, Nanos};

/// Longest wait for a read before it is looked again.
const WAIT: Nanos = Nanos::from_secs(1);

/// The read. The tier's thread only.
pub struct Reading {
    // Dropped first, which waits for the read.
    context: Option<Context>,
    arrived: Arrived,
    begun: Option<Begun>,
}

struct Begun {
    cluster: u32,
    place: Place,
    at: Nanos,
    /// Whether all of it came, once it is over.
    came: Option<bool>,
}

impl Default for Reading {
    /// None.
    fn default() -> Reading {
        Reading { context: Context::new(1).ok(), arrived: Arrived::new(), begun: None }
    }
}

impl Reading {
    /// The cluster that is being read.
    pub fn cluster(&self) -> Option<u32> {
        self.begun.as_ref().map(|begun| begun.cluster)
    }

    /// Begins to read a cluster, if it can; one at a time.
    pub fn begin(&mut self, below: &Below, cluster: u32) {
        let (None, Some(context), Some(place)) = (&self.begun, &self.context, below.clusters.place(cluster))
        else {
            return;
        };
        // A child may not have it open, an engine on the network is asked as ever, and a failure that is planted meets who reads so.
        if below.files.remote.is_on() {
            return;
        }
        let Some(fd) = below.files.get(place.file()).descriptor() else { return };
        let Ok(to) = self.arrived.room(place) else { return };
        if inject::error(Point::TierRead).is_some() {
            return;
        }
        // SAFETY: `arrived` is left alone until it is over.
        if unsafe { context.read(fd, to, place.offset()) }.is_ok() {
            self.begun = Some(Begun { cluster, place, at: time::now(), came: None });
        }
    }

    /// Whether nothing is being read any more, or is over.
    pub fn is_over(&mut self) -> bool {
        self.look(Nanos(0))
    }

    fn look(&mut self, timeout: Nanos) -> bool {
        let (Some(begun), Some(context)) = (&mut self.begun, &self.context) else { return true };
        if begun.came.is_none() {
            let len = begun.place.bytes();
            begun.came = context.wait(timeout).map(|result| result == Ok(len));
        }
        begun.came.is_some()
    }

    /// Waits for the read, and puts what came into `to` if it is what was written. The time is counted with those of other reads.
    pub fn take(&mut self, engine: &Engine, below: &Below, to: &mut Arrived) {
        while !self.look(WAIT) {}
        let Some(Begun { cluster, place, at, came }) = self.begun.take() else { return };
        if came != Some(true) {
            return;
        }
        // SAFETY: the read is over.
        let bytes = unsafe { self.arrived.filled(place) };
        let len = bytes.len() - seal::TAG;
        if below.open_seal(place, cluster, bytes).is_ok() && self.arrived.accept(cluster, place, len) {
            engine.control().tier_read_ns.record(time::now().since(at).0);
            bump(&engine.control().tier_read_bytes, self.arrived.bytes());
            core::mem::swap(&mut self.arrived, to);
        }
    }

    /// Waits for the read, and forgets what came.
    pub fn give_up(&mut self) {
        while !self.look(WAIT) {}
        self.begun = None;
    }

    /// Overwrites what was read last.
    pub fn wipe(&mut self) {
        if self.begun.is_none() {
            self.arrived.wipe();
        }
    }
}
