//! A log of the disk during a run, as `iostat -x` would have written it.

use crate::diskstats::{line, Counters, HEAD};
use crate::ticker::Ticker;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// How often a line is written.
const INTERVAL: Duration = Duration::from_secs(1);

/// The log; it ends when this is dropped.
#[derive(Debug)]
pub struct Iostat {
    _ticker: Ticker<Log>,
}

#[derive(Debug)]
struct Log {
    out: BufWriter<File>,
    device: String,
    begun: Instant,
    last: Instant,
    counters: Counters,
}

impl Iostat {
    /// Begins the log of `device` in the file `path`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn start(device: &str, path: &Path) -> Result<Iostat> {
        let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let now = Instant::now();
        let log = Log {
            out: BufWriter::new(file),
            device: device.to_owned(),
            begun: now,
            last: now,
            counters: counters(device),
        };
        Ok(Iostat { _ticker: Ticker::start(INTERVAL, log, Log::tick) })
    }
}

impl Log {
    fn tick(&mut self) {
        let (now, counters) = (Instant::now(), counters(&self.device));
        let line = line(&self.device, &self.counters, &counters, (now - self.last).as_secs_f64());
        let at = (now - self.begun).as_secs_f64();
        // A full disk ends the run by itself; the log is then the least of it.
        let _ = writeln!(self.out, "{at:.1} s\n{HEAD}\n{line}\n").and_then(|()| self.out.flush());
        (self.last, self.counters) = (now, counters);
    }
}

fn counters(device: &str) -> Counters {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    Counters::parse(&text, device).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_a_short_run_has_a_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        drop(Iostat::start("none", file.path()).unwrap());
        let text = fs::read_to_string(file.path()).unwrap();
        assert_eq!(text.matches("%util").count(), 1);
        assert!(text.lines().any(|line| line.starts_with("none ")), "{text}");
    }
}
