//! How folding is to go: the pager's settings, as `memfold run` has them.

use crate::environment::{variable, Environment};
use crate::Error;
use memfold_pager::config::{Config, Setting};
use memfold_pager::Engine;
use std::path::PathBuf;
use std::time::Duration;

/// What `start` takes. What is not set here is taken from the environment (`MEMFOLD_COLD_AGE` and its kin), and is the
/// pager's default otherwise.
#[derive(Clone, Debug, Default)]
pub struct Options {
    given: Vec<(Setting, u64)>,
    daemon: Option<PathBuf>,
}

impl Options {
    /// How long memory must go untouched before it is folded; 10 ms to a year, 10 s by default.
    pub fn cold_age(self, age: Duration) -> Options {
        self.set(Setting::ColdAge, age.as_nanos().min(u128::from(u64::MAX)) as u64)
    }

    /// The highest share of time that the program may wait for the pager, in millionths; 5 000 by default, which is half a
    /// per cent.
    pub fn max_stall(self, millionths: u64) -> Options {
        self.set(Setting::MaxStall, millionths)
    }

    /// The highest share of one CPU that folding may take while no limit presses, in millionths; 250 000 by default, which is
    /// a quarter, and then 30 000 while other programs want the CPUs.
    pub fn max_cpu(self, millionths: u64) -> Options {
        self.set(Setting::MaxCpu, millionths)
    }

    /// Bytes of anonymous memory that the process may have resident: a thread that would take more waits for room. By default it goes by the
    /// limit of the control group, once half of that is in use (`group` of `memfold run`).
    pub fn resident_limit(self, bytes: u64) -> Options {
        self.set(Setting::ResidentLimit, bytes)
    }

    /// Keeps the process within its share of the budget of the daemon at this socket, whenever one listens there; taken from
    /// `MEMFOLD_DAEMON` otherwise.
    pub fn daemon(self, socket: impl Into<PathBuf>) -> Options {
        Options { daemon: Some(socket.into()), ..self }
    }

    /// The daemon's socket, if the process is to be under a daemon's budget.
    pub(crate) fn daemon_path(&self) -> Option<PathBuf> {
        self.daemon.clone().or_else(|| variable("MEMFOLD_DAEMON").map(PathBuf::from))
    }

    fn set(mut self, setting: Setting, value: u64) -> Options {
        let (least, most) = setting.range();
        self.given.push((setting, value.clamp(least, most)));
        self
    }

    /// Tells the engine what the environment chooses, and returns the settings: defaults, then the environment, then what was given. A
    /// program that names its ranges wants them folded however little they are.
    ///
    /// # Errors
    /// The first variable that makes no sense.
    pub(crate) fn tell(&self, engine: &Engine, environment: &Environment) -> Result<Config, Error> {
        let mut nonsense = None;
        let mut config = engine.be_told(
            |name| environment.get(name),
            |one| {
                nonsense.get_or_insert(one);
            },
        );
        if let Some(one) = nonsense {
            return Err(one.into());
        }
        if environment.get(Setting::StartAt.variable()).is_none() {
            config.set(Setting::StartAt, 0);
        }
        self.given.iter().for_each(|&(setting, value)| config.set(setting, value));
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_pager::Host;

    fn engine() -> Engine {
        Engine::new(Host {
            notice: |_| {},
            open_control: |_| None,
            own_heap: || false,
            thread_cpu: |_, _| None,
            went_away: |_, _| {},
            sampler: None,
            decay: || (),
        })
    }

    #[test]
    fn what_is_given_is_kept_within_the_range_of_the_setting() {
        let options = Options::default().cold_age(Duration::ZERO).max_stall(7_000);
        let config = options.tell(&engine(), &Environment::default()).unwrap();
        assert_eq!(config.get(Setting::ColdAge), 10_000_000);
        assert_eq!(config.get(Setting::MaxStall), 7_000);
        assert_eq!(config.get(Setting::StartAt), 0);
    }

    #[test]
    fn a_variable_is_believed_unless_an_option_says_otherwise_and_nonsense_is_named() {
        let told = |variables: &[(&str, &str)]| {
            let options = Options::default().max_stall(7_000);
            options.tell(&engine(), &variables.iter().copied().collect())
        };
        let config =
            told(&[("MEMFOLD_MAX_STALL", "1"), ("MEMFOLD_COLD_AGE", "3s"), ("MEMFOLD_START_AT", "1M")])
                .unwrap();
        assert_eq!(config.get(Setting::MaxStall), 7_000);
        assert_eq!((config.get(Setting::ColdAge), config.get(Setting::StartAt)), (3_000_000_000, 1 << 20));
        assert!(told(&[("MEMFOLD_POLICY", "age"), ("MEMFOLD_WIPE", "on")]).is_ok());
        // There is no heap for the tables of any other.
        for (variable, text) in [
            ("MEMFOLD_POLICY", "clock"),
            ("MEMFOLD_POLICY", "x"),
            ("MEMFOLD_COLD_AGE", "soon"),
            ("MEMFOLD_TIER", "x"),
        ] {
            let said = told(&[(variable, text)]).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{variable}={text} makes no sense: it takes ")), "{said}");
        }
    }
}
