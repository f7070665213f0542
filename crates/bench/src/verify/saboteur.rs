//! Asks the pager, again and again, for the worst: evict everything, bring everything back, stop, go on.

use super::report;
use super::shared::Shared;
use crate::control::Peer;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_stats::Rng;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::Duration;

/// How long the pager may take to answer.
const PATIENCE: Duration = Duration::from_secs(300);

/// See the module.
pub(super) struct Saboteur<'a> {
    shared: &'a Shared,
    peer: &'a Peer,
    rng: Rng,
    answered: u64,
    /// Calls of the pager's are made to fail.
    injected: bool,
}

impl<'a> Saboteur<'a> {
    pub fn new(shared: &'a Shared, peer: &'a Peer) -> Self {
        let rng = Rng::new(shared.options.seed).fork(u64::MAX - 2);
        Saboteur { shared, peer, rng, answered: 0, injected: report::injected().is_some() }
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
                3..=4 if self.shared.options.torture => self.change_a_setting(),
                5 if self.shared.options.torture => self.change_the_policy(),
                6 if self.shared.options.torture => {
                    let command = [Command::Sleep, Command::Wake][self.rng.below(2) as usize];
                    self.ask(command, 0, 0);
                }
                _ => self.ask(Command::Evict, 0, 0),
            }
            sleep(Duration::from_millis(self.rng.below(10)));
        }
        self.answered
    }

    /// Any setting to any value that it may have, mostly such that work goes on: a limit far below what is used, a budget
    /// that is spent at once, ages from the shortest to a week.
    fn change_a_setting(&mut self) {
        let (setting, value) = match self.rng.below(7) {
            0 => (Setting::ResidentLimit, 1 << (20 + self.rng.below(16))),
            1 => (Setting::ResidentLimit, u64::MAX),
            2 => (Setting::MaxStall, [10, 5_000, 100_000, 1_000_000][self.rng.below(4) as usize]),
            3 => (Setting::MaxCpu, [10, 30_000, 1_000_000, 1_000_000][self.rng.below(4) as usize]),
            4 => (
                Setting::SleepAfter,
                [Duration::from_secs(1).as_nanos() as u64, u64::MAX][self.rng.below(2) as usize],
            ),
            5 => (Setting::RecompressAge, Duration::from_millis(10 + self.rng.below(400)).as_nanos() as u64),
            _ => {
                let ages =
                    [Duration::from_millis(10), Duration::from_secs(1), Duration::from_secs(7 * 86_400)];
                (Setting::ColdAge, ages[self.rng.below(3) as usize].as_nanos() as u64)
            }
        };
        self.ask(Command::Set, setting as u64, value);
    }

    /// To a page daemon, which goes by the limit, or back to the age of pages, which torture is mostly about.
    fn change_the_policy(&mut self) {
        const POLICIES: [&str; 8] = ["age", "freebsd", "age", "bonchance", "age", "s3fifo", "age", "lru"];
        let policy = POLICIES[self.rng.below(POLICIES.len() as u64) as usize];
        let result = self.peer.tell(Command::Policy, policy, PATIENCE);
        self.count(result);
    }

    fn ask(&mut self, command: Command, argument: u64, value: u64) {
        let result = self.peer.ask(command, argument, value, PATIENCE);
        self.count(result);
    }

    fn count(&mut self, result: anyhow::Result<()>) {
        match result {
            Ok(()) => self.answered += 1,
            // Where memory is refused to the pager by a plan, this is the answer to expect.
            Err(error) if self.injected && format!("{error:#}").contains("ENOMEM") => {}
            Err(error) => self.shared.findings.fail(format!("saboteur: {error:#}")),
        }
    }
}
