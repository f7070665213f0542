//! Going to sleep, and waking.

use crate::config::Setting;
use crate::engine::Phase;
use crate::evict::worker::Worker;
use crate::tier::below::Below;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread;
use memfold_sys::time::{self, Nanos};

/// How long the tier's thread is waited for before it is looked whether somebody needs this one.
const PATIENCE: Nanos = Nanos::from_millis(20);

impl Worker {
    /// Looks whether the program may sleep, or wakes.
    pub(crate) fn look_at_rest(&mut self) {
        let sleep_after = self.engine.setting(Setting::SleepAfter);
        if !self.rest.is_asleep() && sleep_after == u64::MAX {
            return self.rest.forget();
        }
        match self.rest.look(self.now, thread::program_cpu(), self.touches(), sleep_after) {
            Some(true) if self.engine.control().paused.load(Relaxed) == 0 => self.go_to_sleep(),
            Some(false) => self.wake_up(),
            _ => {}
        }
    }

    /// Times that the program waited for a page.
    fn touches(&self) -> u64 {
        let control = self.engine.control();
        control.restore_ns.count.load(Relaxed) + control.tier_read_ns.count.load(Relaxed)
    }

    /// Folds everything, and sends it as far down as it goes.
    pub(crate) fn go_to_sleep(&mut self) {
        self.rest.begin(self.now, self.touches());
        self.engine.control().asleep.store(1, Relaxed);
        if let Some(below) = self.engine.below() {
            below.sleep();
        }
        self.evict_all();
        self.drop_copies();
        self.sink_all();
        self.compact_store();
        self.now = time::now();
        self.rest.begin(self.now, self.touches());
    }

    /// The program is awake, and what it wanted when it last woke comes back.
    pub(crate) fn wake_up(&mut self) {
        if !self.rest.end(self.now) {
            return;
        }
        self.engine.control().asleep.store(0, Relaxed);
        if let Some(below) = self.engine.below() {
            below.wake();
        }
    }

    /// Has everything that lies in memory go below it, and waits until it has.
    fn sink_all(&mut self) {
        let Some(below) = self.engine.below() else { return };
        self.sink(below, Nanos(0), |_| false);
    }

    /// Has go below memory what has been stored for `after`, and what does not shrink, and waits until all of it has, or that is enough.
    pub(crate) fn sink(
        &mut self,
        below: &'static Below,
        after: Nanos,
        is_enough: impl Fn(&mut Worker) -> bool,
    ) {
        self.demotion.at = 0;
        while self.engine.phase() == Phase::Running {
            let bell = self.engine.agents.bell.load(Acquire);
            self.stay_responsive();
            self.settle_tier();
            if is_enough(self) {
                return;
            }
            let all = self.demote_now(below, after);
            if below.is_idle() {
                if all {
                    return;
                }
                continue;
            }
            self.park();
            thread::sleep_on(&self.engine.agents.bell, bell, PATIENCE);
            self.engine.traffic.brake.unpark();
        }
    }
}
