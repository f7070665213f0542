//! A tier on the network: what `memfold run` has beside a program for it, and what the engine alone takes for a value.

use super::arm::{Arm, Touched};
use super::report::Held;
use crate::process::Thread;
use crate::worker::{Order, Presence, Round, Touch, TouchResult};
use anyhow::{Context, Result};
use memfold_depot::Config;
use memfold_pager::tier::choice::Engines;
use memfold_pager::tier::wire::SOCKET;
use memfold_pager::tier::CLUSTER;
use memfold_stats::{Histogram, Rng};
use memfold_sys::PAGE_SIZE;
use redis::Commands;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a value stays that nobody removes, seconds.
const LIFETIME_S: u64 = 3600;
/// How long what serves may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// What knows the network, on threads of ours.
pub(super) struct Beside {
    directory: TempDir,
    config: Config,
    /// Closed when nobody wants it any more.
    _over: UnixStream,
}

impl Beside {
    /// Serves who asks for what lies on these engines.
    ///
    /// # Errors
    /// An engine is not there or will not do, or nothing can be served.
    pub(super) fn start(engines: &Engines<'_>) -> Result<Beside> {
        let mut config = Config::new(engines, false)?;
        config.check()?;
        let directory = tempfile::Builder::new().prefix("memfold-tier-").tempdir()?;
        let (launcher, over) = UnixStream::pair()?;
        let (path, of_thread) = (directory.path().to_owned(), config.clone());
        std::thread::spawn(move || memfold_depot::serve(&path, of_thread, launcher, || false));
        let began = Instant::now();
        while !directory.path().join(SOCKET).exists() {
            anyhow::ensure!(began.elapsed() < PATIENCE, "what serves the tier does not begin");
            sleep(Duration::from_millis(5));
        }
        Ok(Beside { directory, config, _over: over })
    }

    /// The directory of its socket.
    pub(super) fn directory(&self) -> &str {
        self.directory.path().to_str().unwrap_or_default()
    }
}

/// Values of the engine's own, got one after another.
pub(super) struct Got {
    connection: redis::Connection,
    keys: Vec<String>,
    /// Bytes of each.
    value: usize,
    clock_overhead_ns: u64,
}

impl Got {
    /// As many as the region has clusters, each of so many bytes.
    ///
    /// # Errors
    /// The engine takes none.
    pub(super) fn start(job: &Touch, beside: &Beside, value: usize) -> Result<Got> {
        let mut connection = beside.config.connect_to_first().context("cannot use the engine")?;
        let mut rng = Rng::new(job.seed);
        let mark = rng.next_u64() ^ u64::from(std::process::id());
        let count = (job.bytes / PAGE_SIZE).div_ceil(CLUSTER);
        let keys: Vec<String> =
            (0..count).map(|number| format!("memfold:bench:{mark:016x}:{number}")).collect();
        for key in &keys {
            let bytes: Vec<u8> = (0..value / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
            let () = connection.set_ex(key, bytes, LIFETIME_S).context("the engine takes no value")?;
        }
        let clock_overhead_ns = (0..1000).map(|_| elapsed(Instant::now())).min().unwrap_or(0);
        Ok(Got { connection, keys, value, clock_overhead_ns })
    }
}

fn elapsed(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}

impl Arm for Got {
    fn name(&self) -> &'static str {
        "get"
    }

    fn pages(&self) -> usize {
        self.keys.len()
    }

    fn clock_overhead_ns(&self) -> u64 {
        self.clock_overhead_ns
    }

    fn evict(&mut self) -> Result<usize> {
        Ok(self.keys.len())
    }

    fn touch(&mut self, round: Round) -> Result<Touched> {
        let mut order: Vec<usize> = (0..self.keys.len()).collect();
        if round.order == Order::Random {
            Rng::new(round.seed).shuffle(&mut order);
        }
        let mut touch_ns = Histogram::default();
        let mut wrong_words = 0;
        for number in order {
            let began = Instant::now();
            let value: Vec<u8> = self.connection.get(&self.keys[number])?;
            touch_ns.record(elapsed(began).saturating_sub(self.clock_overhead_ns));
            wrong_words += u64::from(value.len() != self.value);
        }
        let before = Presence { away: self.keys.len(), ..Presence::default() };
        let result = TouchResult { before, touch_ns, skipped: 0, wrong_words, traced: Vec::new() };
        Ok(Touched { result, served: None, stepped: Vec::new() })
    }

    fn held(&mut self) -> Result<Held> {
        let bytes = (self.keys.len() * self.value) as u64;
        Ok(Held { arm: self.name(), original_bytes: bytes, compressed_bytes: bytes, memory_bytes: 0 })
    }

    fn threads(&self) -> Result<Vec<Thread>> {
        Ok(Vec::new())
    }
}

impl Drop for Got {
    fn drop(&mut self) {
        for keys in self.keys.chunks(500) {
            // What is left goes within the hour.
            let _: redis::RedisResult<()> = self.connection.unlink(keys);
        }
    }
}
