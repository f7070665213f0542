//! How folding is to go: the pager's settings, as `memfold run` has them.

use crate::environment::variable;
use crate::Error;
use memfold_pager::config::{Config, Setting};
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

    /// The highest share of one CPU that folding may take while no limit presses, in millionths; 30 000 by default, which is
    /// three per cent.
    pub fn max_cpu(self, millionths: u64) -> Options {
        self.set(Setting::MaxCpu, millionths)
    }

    /// Registered bytes above which memory is folded more eagerly; no limit by default.
    pub fn resident_limit(self, bytes: u64) -> Options {
        self.set(Setting::ResidentLimit, bytes)
    }

    /// Has the daemon at this socket fold the process, instead of an engine in it; taken from `MEMFOLD_DAEMON` otherwise.
    pub fn daemon(self, socket: impl Into<PathBuf>) -> Options {
        Options { daemon: Some(socket.into()), ..self }
    }

    /// The daemon's socket, if a daemon is to fold the process.
    pub(crate) fn daemon_path(&self) -> Option<PathBuf> {
        self.daemon.clone().or_else(|| variable("MEMFOLD_DAEMON").map(PathBuf::from))
    }

    fn set(mut self, setting: Setting, value: u64) -> Options {
        let (least, most) = setting.range();
        self.given.push((setting, value.clamp(least, most)));
        self
    }

    /// The settings: defaults, then the environment, then what was given. A program that names its ranges wants them
    /// folded however little they are.
    pub(crate) fn config(&self) -> Result<Config, Error> {
        let mut config = Config::default();
        config.set(Setting::StartAt, 0);
        for setting in Setting::ALL {
            let name = setting.variable();
            let Some(value) = variable(name).map(|value| value.to_string_lossy().into_owned()) else {
                continue;
            };
            match setting.parse(&value) {
                Ok(number) => config.set(setting, number),
                Err(_) => return Err(Error::BadVariable { variable: name, value }),
            }
        }
        self.given.iter().for_each(|&(setting, value)| config.set(setting, value));
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_kept_within_the_range_of_the_setting() {
        let options = Options::default().cold_age(Duration::ZERO).max_stall(7_000);
        let config = options.config().unwrap();
        assert_eq!(config.get(Setting::ColdAge), 10_000_000);
        assert_eq!(config.get(Setting::MaxStall), 7_000);
        assert_eq!(config.get(Setting::StartAt), 0);
    }
}
