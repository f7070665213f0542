//! Asks the pager, again and again, for the worst: evict everything, bring everything back, stop, go on.

use super::shared::Shared;
use crate::control::Peer;
use pager::config::Setting;
use pager::control::Command;
use stats::Rng;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

/// How long the pager may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// See the module.
pub(super) struct Saboteur<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
    rng: Rng,
    answered: u64,
}

impl<'a> Saboteur<'a> {
    pub fn new(shared: &'a Shared, peer: &'a Peer) -> Self {
        Saboteur { shared, peer, rng: Rng::new(shared.options.seed).fork(u64::MAX - 2), answered: 0 }
    }

    /// Goes on until the threads are done. Returns how many requests were answered.
    pub fn run(mut self) -> u64 {
        while !self.shared.stop.load(Relaxed) {
            match self.rng.below(10) {
                0 => self.ask(Command::Restore, 0, 0),
                1 => {
                    self.ask(Command::Pause, 0, 0);
                    sleep(Duration::from_millis(self.rng.below(20)));
                    self.ask(Command::Resume, 0, 0);
                }
                2 => {
                    let age = Duration::from_millis(10 + self.rng.below(500));
                    self.ask(Command::Set, Setting::ColdAge as u64, age.as_nanos() as u64);
                }
                _ => self.ask(Command::Evict, 0, 0),
            }
            sleep(Duration::from_millis(self.rng.below(10)));
        }
        self.answered
    }

    fn ask(&mut self, command: Command, argument: u64, value: u64) {
        match self.peer.ask(command, argument, value, PATIENCE) {
            Ok(()) => self.answered += 1,
            Err(error) => self.shared.fail(format!("saboteur: {error:#}")),
        }
    }
}
