//! How threads of the program end the engine: for good, or because the program becomes another user.
//!
//! Agent threads keep the credentials of the thread that made them: libc does not know of them, and they have given up the right to change
//! their own. What the program gives up they must not keep. So everything is brought back, they end, and the thread that is the other user
//! now begins anew as if the program had just come so far.
//!
//! Invariants: from [`Phase::Pausing`] to [`Phase::Idle`] program threads tell of their changes as ever, so that the tables stay true; nothing
//! begins before the agent threads have left.

use crate::engine::{Engine, Phase};
use crate::sabotage::fault_point;
use core::sync::atomic::Ordering::*;
use memfold_sys::file;
use memfold_sys::pagemap::Pagemap;
use memfold_sys::signal;
use memfold_sys::thread::Credentials;

/// Who changes its user more often goes back and forth, and bringing everything back each time would cost more than folding saves.
const MOST_CHANGES: u32 = 16;

/// Why the engine ends where it cannot begin anew.
static ANOTHER_USER: &str = "the program became another user or group";

/// What was looked up before a change of credentials.
pub struct BeforeChange {
    credentials: Credentials,
    /// A process that has been another user may not open its own, as it may hold what that one kept from it.
    pagemap: Option<Pagemap>,
}

impl Engine {
    /// Stops folding for good: brings everything back and waits until the agent threads are gone.
    pub fn stop(&'static self, reason: &'static &'static str) {
        loop {
            match self.phase() {
                Phase::Idle => {
                    if self.change_phase(Phase::Idle, Phase::Stopping) {
                        self.turn_off(reason);
                    }
                }
                Phase::Running => {
                    let _blocked = signal::block_all();
                    self.set_stop_reason(reason);
                    self.leave_running(Phase::Stopping);
                }
                Phase::Off => break,
                between => self.pass(between),
            }
        }
        self.join_threads();
    }

    /// To be called before the calling thread, or all of the program's, may take on other credentials.
    pub fn before_change_of_user(&self) -> BeforeChange {
        let pagemap = match self.phase() {
            Phase::Off => None,
            _ => Pagemap::open().ok().map(|own| Pagemap::handed_over(file::out_of_the_way(own.into_fd()))),
        };
        BeforeChange { credentials: Credentials::own(), pagemap }
    }

    /// To be called after that by the same thread.
    pub fn after_change_of_user(&'static self, before: BeforeChange) {
        let own = Credentials::own();
        if own == before.credentials {
            return;
        }
        if let (Some(pagemap), Err(_)) = (before.pagemap, Pagemap::open()) {
            self.link.keep_pagemap(pagemap);
        }
        // Before they are made they have nothing, and later what the thread has that makes them.
        while !matches!(self.phase(), Phase::Idle | Phase::Off) {
            if fault_point!(UserNotSeen: own.reach(&self.agents.maker()), else true) {
                return;
            }
            if self.may_begin_anew() {
                self.pause();
            } else {
                return self.stop(&ANOTHER_USER);
            }
        }
        self.start_if_due();
    }

    /// Whether everything that was chosen can be taken up by another user. What it named by paths may be closed to that one.
    fn may_begin_anew(&self) -> bool {
        let is_plain = self.below().is_none() && self.options.policy.is_empty() && !self.errand.is_on();
        is_plain && self.lifecycle.count_change() <= MOST_CHANGES
    }

    /// Brings everything back and has the agent threads leave; the engine is idle then, unless somebody else ended it.
    fn pause(&'static self) {
        // A handler that ended the engine would wait for the thread that it interrupted.
        let _blocked = signal::block_all();
        while !matches!(self.phase(), Phase::Idle | Phase::Off) {
            match self.phase() {
                Phase::Running => self.leave_running(Phase::Pausing),
                between => self.pass(between),
            }
        }
    }

    /// From running to `next`, unless somebody was before. With signals blocked.
    fn leave_running(&self, next: Phase) {
        let _pass = self.traffic.gate.pass();
        if self.change_phase(Phase::Running, next) {
            self.ring();
        }
    }

    /// Waits until a phase is over that does not last.
    fn pass(&self, phase: Phase) {
        if phase == Phase::Paused {
            self.join_threads();
            self.helpers.reset();
            self.change_phase(Phase::Paused, Phase::Idle);
        } else {
            self.wait_for_phase_after(phase);
        }
    }

    /// The agents' part: everything is back, and nothing is open at the kernel any more. By the background thread, as its last.
    pub(crate) fn be_paused(&self) {
        for extent in self.space().all() {
            extent.staging.store(0, Relaxed);
        }
        self.control().mode.store(crate::control::Mode::Idle as u32, Release);
        self.show_control();
        self.set_phase(Phase::Paused);
    }
}
