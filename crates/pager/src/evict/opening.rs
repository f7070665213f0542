//! Opening the tier below memory: when the engine starts, or while the program runs, by a request or a daemon's offer; and what can be changed of
//! one that is open.
//!
//! Background thread only.
//!
//! What it is not: what goes there ([`super::demote`]).
//!
//! Invariants: a tier that was opened stays where it is for as long as the process lives: what lies there is found nowhere else. The text of it comes from
//! another process and may be any.

use crate::evict::worker::Worker;
use crate::sabotage::{fault_point, planted, Bug};
use crate::tables::extent::Extent;
use crate::tier::below::Below;
use crate::tier::choice::Choice;
use crate::tier::location::Location;
use crate::tier::round::Told;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::Nanos;
use memfold_sys::{Errno, Result, EXTENT_PAGES, EXTENT_SIZE};

/// How long it is before what a daemon offers is tried again.
const TRY_AGAIN: Nanos = Nanos::from_secs(10);
/// Most extents that are brought back at once because the share has become smaller.
const MOST_AT_ONCE: usize = 16;

impl Worker {
    /// Opens the tier, where one is wanted. What hinders that is said once. A forked child, of which many end soon, has a file of its own when
    /// it needs one.
    pub(crate) fn open_tier(&mut self, in_child: bool) {
        let Some(below) = self.engine.below() else { return };
        if !in_child {
            // SAFETY: we are the background thread.
            let begun = unsafe { below.keeper() }.begin(&below.files, &self.engine.tables.pool);
            if let Err(error) = begun {
                return self.tell_of_tier(below, error);
            }
        }
        below.set_open(true);
        self.show_tier();
    }

    /// Nothing more goes down, and nothing is there any more.
    pub(crate) fn close_tier(&mut self) {
        self.settle_tier();
        if let Some(below) = self.engine.below() {
            below.set_open(false);
            // SAFETY: we are the background thread.
            unsafe { below.keeper() }.end(&below.files);
        }
    }

    /// Uses the tier that the request names, or changes the size and the age of the one that there is. `EEXIST` where that is another, `ENOTSUP` where the
    /// program has none and this one needs a process beside it, `EPERM` where this one is not sealed and nothing that was erased may stay.
    pub(crate) fn change_tier(&mut self) -> Result<()> {
        let mut buffer = [0; 512];
        let text = self.engine.control().request.read(&mut buffer);
        self.take_tier(text)?;
        if let Some(below) = self.engine.below() {
            // SAFETY: we are the background thread.
            unsafe { below.keeper() }.have_it_all();
        }
        self.engine.control().tier_share.store(0, Relaxed);
        Ok(())
    }

    /// Looks at the tier that a daemon shares out: takes it where the process has none, and as much of it as the daemon grants. One that the user chose goes
    /// before it.
    pub(crate) fn look_at_offer(&mut self) {
        let control = self.engine.control();
        let bytes = control.share.tier_bytes.load(Relaxed);
        let (mut buffer, mut other) = ([0; 512], [0; 512]);
        let text = control.share.tier.read(&mut buffer);
        if text.is_empty() || bytes == 0 {
            return;
        }
        // That others may read its memory no other process decides.
        if Choice::parse(text).is_ok_and(|offered| !offered.sealed) {
            return;
        }
        let is_shared = |worker: &Worker| {
            // SAFETY: we are the background thread.
            worker.engine.below().is_some_and(|below| unsafe { below.keeper() }.is_shared())
        };
        if self.engine.options.tier.is_empty() || is_shared(self) {
            let is_new = control.tier.read(&mut other) != text;
            if is_new && self.now.0 >= self.demotion.full_until.0 {
                if let (Err(error), Some(below)) = (self.take_tier(text), self.engine.below()) {
                    self.demotion.full_until = self.now + TRY_AGAIN;
                    self.tell_of_tier(below, error);
                }
            }
        } else {
            return;
        }
        let Some(below) = self.engine.below() else { return };
        if below.is_open() {
            // The daemon gives to others what is free beside both: what there is is said before it may be less, and what may be before there is more.
            self.say_file_bytes(below);
            control.tier_share.store(bytes, Release);
            if control.share.tier_bytes.load(Acquire) != bytes {
                // It has another word by now, and counts with that. We are told again.
                return;
            }
        }
        // SAFETY: we are the background thread.
        if unsafe { below.keeper() }.take_share(bytes) {
            self.demotion.full_until = Nanos(0);
        }
        if below.is_open() {
            self.bring_excess(below);
        }
    }

    /// Brings back into memory what the process has there beyond its share, some at a time, since others need the room: the daemon took it away because they
    /// have more that is cold. Not while memory is scarce, or the program sleeps.
    fn bring_excess(&mut self, below: &'static Below) {
        // SAFETY: we are the background thread.
        let excess = unsafe { below.keeper() }.excess();
        if excess == 0 || self.watch.is_pressed() || self.engine.room.is_kept() || self.rest.is_asleep() {
            return;
        }
        let most = (excess as usize / EXTENT_SIZE).clamp(1, MOST_AT_ONCE);
        let is_below = |extent: &&'static Extent| {
            let is = |index: usize| Location::below(extent.entry(index)).is_some();
            extent.away.load(Relaxed) != 0 && (0..EXTENT_PAGES).any(is)
        };
        for extent in self.engine.space().all().filter(is_below).take(most) {
            self.bring_all(extent, true);
        }
    }

    fn take_tier(&mut self, text: &str) -> Result<()> {
        let choice = Choice::parse(text).map_err(|_| Errno::EINVAL)?;
        if self.engine.would_leave_erased(&choice) {
            return Err(Errno::EPERM);
        }
        let mut buffer = [0; 512];
        let now = self.engine.options.tier.read(&mut buffer);
        match self.engine.below() {
            Some(below) if below.is_open() || below.files.remote.is_on() => {
                if !Choice::parse(now).is_ok_and(|now| now.is_at_same_place(&choice)) {
                    return Err(Errno::EEXIST);
                }
                // SAFETY: we are the background thread.
                fault_point!(SizeUnheard: unsafe { below.keeper() }.change(&choice));
                self.engine.options.tier.set(text);
            }
            before => {
                if choice.engines().is_some() {
                    return Err(Errno(libc::ENOTSUP));
                }
                let below = match before {
                    // It could not be opened, and nothing is there.
                    Some(below) => {
                        // SAFETY: as above.
                        unsafe { below.keeper() }.replace(&choice);
                        below
                    }
                    None => self.engine.have_tier(&choice, "")?,
                };
                if self.engine.tid(crate::engine::Agent::Tier).is_none() && !planted(Bug::LateTierUnserved) {
                    self.engine.spawn_tier()?;
                }
                // SAFETY: as above.
                unsafe { below.keeper() }.begin(&below.files, &self.engine.tables.pool)?;
                below.set_open(true);
                self.engine.options.tier.set(text);
            }
        }
        (self.demotion.next, self.demotion.full_until, self.demotion.told) =
            (Nanos(0), Nanos(0), Told::default());
        self.show_tier();
        Ok(())
    }

    /// Has others see which tier there is.
    fn show_tier(&self) {
        self.engine.control().tier.set(self.engine.options.tier.read(&mut [0; 512]));
    }
}
