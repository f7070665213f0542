//! A cluster that is being read while the tier's thread does something else: puts the one before in place.
//!
//! While nothing is being read, the fault thread may begin ([`super::early`]).
//!
//! From a file it is read by the kernel meanwhile; an engine on the network is asked, and its answer waits in the socket.
//!
//! What it is not: a promise. Where nothing can be read so (a file of a parent's, a kernel that forbids it, an engine that is away), or what came is not
//! what was written, nothing is taken over; whoever wants the cluster then reads it as ever ([`super::bring::fetch`]), and that one tries again and judges.
//!
//! Invariants: what is read to is left alone until the read is over.

use super::arrived::Arrived;
use super::below::Below;
use super::clusters::Place;
use super::early::{Asked, Lent};
use super::seal;
use crate::control::bump;
use crate::engine::Engine;
use memfold_sys::aio::Context;
use memfold_sys::inject::{self, Point};
use memfold_sys::thread;
use memfold_sys::time::{self, Nanos};

/// Longest wait for a read before it is looked again.
const WAIT: Nanos = Nanos::from_secs(1);
/// Longest wait for an engine's answer, and for one that nobody wants any more: as a rule it is on its way, and to connect anew takes longer.
const PATIENCE: Nanos = Nanos::from_secs(5);
const A_LITTLE: Nanos = Nanos::from_millis(1);
/// How long an engine's answer is looked for without sleeping, where a CPU is idle.
const SPIN: Nanos = Nanos(100_000);

/// The read. The tier's thread only.
pub struct Reading {
    below: &'static Below,
    // Dropped first, which waits for the read.
    context: Option<Context>,
    arrived: Arrived,
    begun: Option<Begun>,
}

struct Begun {
    asked: Asked,
    /// Whether all of it came, once it is over.
    came: Option<bool>,
}

impl Reading {
    /// None.
    pub fn new(below: &'static Below) -> Reading {
        Reading { below, context: Context::new(1).ok(), arrived: Arrived::new(), begun: None }
    }

    /// The cluster that is being read.
    pub fn cluster(&self) -> Option<u32> {
        self.begun.as_ref().map(|begun| begun.asked.cluster)
    }

    /// Lets the fault thread begin, unless something is being read. It need not for these clusters.
    pub fn lend(&mut self, at_hand: [u32; 2]) {
        if self.begun.is_some() {
            return;
        }
        self.below.early.has_at_hand(at_hand);
        if let Ok(to) = self.arrived.empty_room() {
            self.below.early.lend(Lent { context: self.context.as_ref().map(Context::handle), to });
        }
    }

    /// Lets it no more, before anything else here is called. What it has begun is being read.
    pub fn take_back(&mut self) {
        if let Some(asked) = self.below.early.take_back() {
            self.begun = Some(Begun { asked, came: None });
        }
    }

    /// Begins to read a cluster, if it can; one at a time.
    pub fn begin(&mut self, cluster: u32) {
        let (None, Some(place)) = (&self.begun, self.below.clusters.place(cluster)) else { return };
        // A failure that is planted meets who reads as ever.
        if inject::error(Point::TierRead).is_some() {
            return;
        }
        let (files, at) = (&self.below.files, time::now());
        let begins = if files.remote.is_on() {
            let file = files.get(place.file());
            file.is_there() && files.remote.ask(file.name(), place)
        } else {
            self.read_file(place)
        };
        self.begun = begins.then_some(Begun { asked: Asked { cluster, place, at }, came: None });
    }

    /// Has the kernel read what lies there. A child may not have the file open.
    fn read_file(&mut self, place: Place) -> bool {
        let (Some(context), Some(fd)) = (&self.context, self.below.files.get(place.file()).descriptor())
        else {
            return false;
        };
        let Ok(to) = self.arrived.room(place) else { return false };
        // SAFETY: `arrived` is left alone until it is over.
        unsafe { context.read(fd, to, place.offset()) }.is_ok()
    }

    /// Whether nothing is being read any more, or is over.
    pub fn is_over(&mut self) -> bool {
        self.look(Nanos(0))
    }

    fn look(&mut self, timeout: Nanos) -> bool {
        let Some(begun) = &mut self.begun else { return true };
        if begun.came.is_some() {
            return true;
        }
        let (remote, place) = (&self.below.files.remote, begun.asked.place);
        begun.came = if remote.is_on() {
            match self.arrived.room(place) {
                Ok(to) if time::now().since(begun.asked.at) < PATIENCE => {
                    remote.answer(to, timeout).map(|result| result.is_ok())
                }
                _ => {
                    remote.hang_up_asks();
                    Some(false)
                }
            }
        } else {
            let came = self.context.as_ref().map(|context| context.wait(timeout));
            came.map_or(Some(false), |came| came.map(|result| result == Ok(place.bytes())))
        };
        begun.came.is_some()
    }

    /// Waits for the read, and puts what came into `to` if it is what was written. The time is counted with those of other reads.
    pub fn take(&mut self, engine: &Engine, to: &mut Arrived) {
        if self.below.files.remote.is_on() && !engine.conditions.are_contended() {
            // To wake a thread that sleeps on an idle CPU takes longer than the rest of the way back.
            let until = time::now() + SPIN;
            while !self.look(Nanos(0)) && time::now().0 < until.0 {
                thread::give_way();
            }
        }
        while !self.look(WAIT) {}
        let Some(Begun { asked: Asked { cluster, place, at }, came }) = self.begun.take() else { return };
        if came != Some(true) {
            return;
        }
        // SAFETY: the read is over.
        let bytes = unsafe { self.arrived.filled(place) };
        let len = bytes.len() - seal::TAG;
        if self.below.open_seal(place, cluster, bytes).is_ok() && self.arrived.accept(cluster, place, len) {
            engine.control().tier_read_ns.record(time::now().since(at).0);
            bump(&engine.control().tier_read_bytes, self.arrived.bytes());
            core::mem::swap(&mut self.arrived, to);
        }
    }

    /// Has nothing read any more: waits for what is read from a file, and for an engine's answer a little.
    pub fn give_up(&mut self) {
        if self.below.files.remote.is_on() && !self.look(A_LITTLE) {
            self.below.files.remote.hang_up_asks();
        } else {
            while !self.look(WAIT) {}
        }
        self.begun = None;
    }

    /// Overwrites what was read last.
    pub fn wipe(&mut self) {
        if self.begun.is_none() {
            self.arrived.wipe();
        }
    }
}

impl Drop for Reading {
    /// The fault thread has none of it any more.
    fn drop(&mut self) {
        self.take_back();
        if self.begun.is_some() {
            self.give_up();
        }
    }
}
