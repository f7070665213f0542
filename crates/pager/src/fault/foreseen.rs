//! Asking for what came back together before ([`memfold_policy::foresight`]), at its first touch or shortly before its time.
//!
//! What it is not: a judgement. What was asked for is restored ahead of its touch like anything else, and is not taken for used.
//!
//! Fault thread only, after the thread that touched the page was woken, or between two messages.

use crate::config::Setting;
use crate::control::bump;
use crate::engine::Engine;
use crate::sabotage::fault_point;
use core::mem::size_of;
use memfold_policy::budget::NO_LIMIT;
use memfold_policy::foresight::{Foresight, Outcome};
use memfold_sys::time::{self, Nanos};
use memfold_sys::{mem, Result, PAGE_SIZE};

/// What the thread remembers, in memory of its own.
pub(crate) struct Memory(&'static mut Foresight);

impl Memory {
    /// Maps it. What is never remembered takes no memory.
    pub(crate) fn new() -> Result<Memory> {
        let at = mem::map_own(size(), 0)?;
        // SAFETY: fresh, zeroed, aligned memory of this size that nobody else has; zeros know nothing.
        Ok(Memory(unsafe { &mut *(at as *mut Foresight) }))
    }

    /// A page that was compressed was touched at `now`: asks for those that are likely to be touched next.
    pub(crate) fn touched(&mut self, engine: &Engine, page: usize, now: Nanos) {
        ask(engine, |put| self.0.touch((page / PAGE_SIZE) as u64, now.0, engine.may_guess(), put));
    }

    /// How long to wait for a message before [`Memory::look`].
    pub(crate) fn pause(&self) -> Option<Nanos> {
        self.0.due().map(|due| Nanos(due).since(time::now()))
    }

    /// Asks for what recurs soon, if its time has come.
    pub(crate) fn look(&mut self, engine: &Engine) {
        let now = time::now();
        if self.0.due().is_some_and(|due| due <= now.0) {
            let may = engine.may_guess() && engine.conditions.may_fold();
            ask(engine, |put| self.0.look(now.0, may, put));
        }
    }
}

/// Has helpers bring the pages that `foresee` puts forward, rows of them at once, and counts what came of others.
fn ask(engine: &Engine, foresee: impl FnOnce(&mut dyn FnMut(u64)) -> Outcome) {
    let (mut start, mut pages, mut any) = (0, 0, false);
    let mut put = |start: usize, pages: usize| {
        any |= pages > 0 && engine.prefetch.put(start, pages);
    };
    let outcome = foresee(&mut |next| {
        let next = next as usize * PAGE_SIZE;
        if pages > 0 && next == start + pages * PAGE_SIZE {
            pages += 1;
        } else {
            put(start, pages);
            (start, pages) = (next, 1);
        }
    });
    put(start, pages);
    if any {
        engine.helpers.ring(1);
    }
    let (control, Outcome { bursts, periods }) = (engine.control(), outcome);
    bump(&control.pages_predicted, bursts.predicted);
    bump(&control.predicted_hit, bursts.hit);
    bump(&control.predicted_wasted, bursts.wasted);
    bump(&control.periods_predicted, periods.predicted);
    bump(&control.periods_hit, periods.hit);
    bump(&control.periods_wasted, periods.wasted);
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody has its address after us.
        let _ = unsafe { mem::munmap(self.0 as *mut Foresight as usize, size()) };
    }
}

fn size() -> usize {
    size_of::<Foresight>().next_multiple_of(PAGE_SIZE)
}

impl Engine {
    /// Whether helpers may be asked: there are CPUs for them. Where there are none, one that loses the CPU with pages in hand keeps the program
    /// waiting for tens of milliseconds; they are asked then if neither that nor their time has a limit.
    pub(crate) fn is_helped(&self) -> bool {
        let unlimited = |setting| self.setting(setting) >= NO_LIMIT;
        !self.conditions.are_contended() || unlimited(Setting::MaxCpu) && unlimited(Setting::MaxStall)
    }

    /// Whether pages may be brought that nobody may want: what is recorded, or what a page daemon counts, was touched itself; and a limit leaves
    /// no room for a guess.
    pub(crate) fn takes_guesses(&self) -> bool {
        let is_roomy = fault_point!(GuessUnderLimit: !self.room.is_kept(), else true);
        !self.errand.is_on() && self.options.policy.is_empty() && is_roomy
    }

    fn may_guess(&self) -> bool {
        self.setting(Setting::Foresight) != 0 && self.is_helped() && self.takes_guesses()
    }
}
