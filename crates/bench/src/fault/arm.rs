//! The two sides: pages evicted by the pager, to memory or to a tier below it, and pages swapped by the kernel, to zram or to a file.

use super::other_threads;
use super::report::Held;
use super::steps::{self, Stepped};
use crate::control::Peer;
use crate::launch::{plain, Folding};
use crate::process::Thread;
use crate::swapfile::{cached_pages, SwapFile};
use crate::worker::{Job, Order, Presence, Program, Region, Round, Touch, TouchRequest, TouchResult, Worker};
use crate::zram::Zram;
use crate::zswap::Zswap;
use anyhow::{ensure, Context, Result};
use memfold_inspect::Counters;
use memfold_pager::control::Command;
use memfold_pager::stamps::{Stamps, PREFIX};
use memfold_pager::tier::BLOCK;
use memfold_pager::TIER_DIRECTORY;
use memfold_sys::PAGE_SIZE;
use serde::Serialize;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// The variable that names a tier.
const MEMFOLD_TIER: &str = "MEMFOLD_TIER";

/// How long the pager may take to evict a region before the run is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of a swap file beside what the worker's region takes: for what else of it is taken back.
const SPARE: u64 = 64 << 20;

/// One side of the comparison.
pub(super) trait Arm {
    /// Its name in results.
    fn name(&self) -> &'static str;
    /// Pages in its region.
    fn pages(&self) -> usize;
    /// What its worker subtracts from every sample, ns.
    fn clock_overhead_ns(&self) -> u64;
    /// Has the region evicted; how many pages went.
    fn evict(&mut self) -> Result<usize>;
    /// Touches the region.
    fn touch(&mut self, round: Round) -> Result<Touched>;
    /// What the evicted region takes where it is kept; evicts first.
    fn held(&mut self) -> Result<Held>;
    /// The threads that serve faults, where they are threads of the worker.
    fn threads(&self) -> Result<Vec<Thread>>;
}

/// What came of touching the region.
pub(super) struct Touched {
    /// What the worker found.
    pub result: TouchResult,
    /// How the pager served the touches, where it is the pager that did.
    pub served: Option<Served>,
    /// The steps of each that it served, where the round is traced.
    pub stepped: Vec<Stepped>,
}

/// What the pager says of the waits that it ended in a round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Served {
    /// Waits.
    pub waits: u64,
    /// All of them together, ns.
    pub ns: u64,
    /// Of those the ones that its fault thread ended as a real-time thread.
    pub real_time: u64,
}

/// A worker whose pages the pager evicts.
pub(super) struct Folded {
    worker: Worker,
    region: Region,
    peer: Peer,
    /// Whether the pages are to lie in a tier below memory.
    below: bool,
    // Holds the directory of the control page.
    folding: Folding,
}

impl Folded {
    /// With a tier below memory, what is evicted goes there at once; to engines by what serves beside, in that directory.
    pub(super) fn start(
        program: &Program,
        job: Touch,
        tier: Option<&str>,
        beside: Option<&str>,
    ) -> Result<Folded> {
        let folding = Folding::new(&program.library)?.on_request();
        let folding = match tier {
            Some(tier) => folding.variable(MEMFOLD_TIER, &format!("{tier},after=10ms")),
            None => folding,
        };
        let folding = match beside {
            Some(directory) => folding.variable(TIER_DIRECTORY, directory),
            None => folding,
        };
        let mut worker = Worker::start(program, &Job::Touch(job), |command| folding.apply(command))?;
        let region: Region = worker.receive()?;
        let peer = Peer::of(folding.control_dir(), worker.pid(), Duration::from_secs(5))?;
        peer.await_folded(Duration::from_secs(5))?;
        Ok(Folded { worker, region, peer, below: tier.is_some(), folding })
    }

    /// Bytes of a cluster of the region in its tier, as the mean of a pass that nobody times: whole blocks.
    pub(super) fn cluster_bytes(&mut self, seed: u64) -> Result<usize> {
        let before = self.peer.await_count(PATIENCE)?;
        self.evict()?;
        self.touch(Round { order: Order::Random, seed, traced: false })?;
        let after = self.peer.await_count(PATIENCE)?;
        let clusters = after.tier_read.count() - before.tier_read.count();
        let bytes = after.costs.tier_read_bytes - before.costs.tier_read_bytes;
        let mean = bytes.checked_div(clusters).context("nothing came back from the tier")? as usize;
        Ok((mean + BLOCK / 2) / BLOCK * BLOCK)
    }

    /// What the fault thread has stamped since that was asked for.
    fn stamps(&self) -> Result<Vec<Stamps>> {
        let number = memfold_sys::time::now().0;
        let name = format!("{PREFIX}{number}-{}", self.worker.pid());
        let path = self.folding.control_dir().join(name);
        fs::write(&path, "").with_context(|| format!("cannot write {}", path.display()))?;
        let bytes = self.peer.ask(Command::Steps, 0, number, PATIENCE).and_then(|()| Ok(fs::read(&path)?));
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        Ok(Stamps::all(&bytes?).collect())
    }

    fn settled(&self, counters: &Counters, presence: Presence) -> bool {
        let bytes = (self.region.pages * PAGE_SIZE) as u64;
        let sizes = counters.sizes;
        let below = !self.below || sizes.tier_bytes >= bytes;
        presence.away == self.region.pages && sizes.aside_bytes == 0 && sizes.evicted_bytes >= bytes && below
    }
}

impl Arm for Folded {
    fn name(&self) -> &'static str {
        "folded"
    }

    fn pages(&self) -> usize {
        self.region.pages
    }

    fn clock_overhead_ns(&self) -> u64 {
        self.region.clock_overhead_ns
    }

    fn evict(&mut self) -> Result<usize> {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            self.peer.ask(Command::Evict, 0, 0, PATIENCE)?;
            let presence: Presence = self.worker.ask(&TouchRequest::Look)?;
            let counters = self.peer.counters()?;
            if self.settled(&counters, presence) || Instant::now() >= end {
                let pages = |bytes: u64| (bytes / PAGE_SIZE as u64) as usize;
                if self.below {
                    return Ok(presence.away.min(pages(counters.sizes.tier_bytes)));
                }
                // What is set aside is not yet evicted, though it is away.
                return Ok(presence.away.saturating_sub(pages(counters.sizes.aside_bytes)));
            }
        }
    }

    fn touch(&mut self, round: Round) -> Result<Touched> {
        if round.traced {
            self.peer.ask(Command::Steps, self.region.pages as u64, 0, PATIENCE)?;
        }
        let before = self.peer.await_count(PATIENCE)?;
        let result: TouchResult = self.worker.ask(&TouchRequest::Touch(round))?;
        let stepped = if round.traced { steps::join(&result.traced, &self.stamps()?) } else { Vec::new() };
        let after = self.peer.await_count(PATIENCE)?;
        ensure!(after.pages.lost == 0, "folded: the pager reports {} lost pages", after.pages.lost);
        let restored = after.pages.restored - before.pages.restored;
        let went = result.before.away as u64;
        ensure!(
            restored * 100 >= went * super::LEAST_EVICTED_PERCENT as u64,
            "folded: {went} pages were away but the pager restored only {restored} from its store \
             ({} came back from staging)",
            after.pages.second_chance - before.pages.second_chance
        );
        let served = Served {
            waits: after.fault.count() - before.fault.count(),
            ns: after.fault.sum() - before.fault.sum(),
            real_time: after.costs.faults_real_time - before.costs.faults_real_time,
        };
        Ok(Touched { result, served: Some(served), stepped })
    }

    fn held(&mut self) -> Result<Held> {
        self.evict()?;
        let sizes = self.peer.counters()?.sizes;
        Ok(Held {
            arm: self.name(),
            original_bytes: sizes.evicted_bytes,
            compressed_bytes: sizes.stored_bytes,
            memory_bytes: sizes.overhead_bytes,
        })
    }

    fn threads(&self) -> Result<Vec<Thread>> {
        other_threads(self.worker.pid())
    }
}

/// Has a worker touch its region that the kernel serves.
fn untraced(worker: &mut Worker, round: Round) -> Result<Touched> {
    let result = worker.ask(&TouchRequest::Touch(Round { traced: false, ..round }))?;
    Ok(Touched { result, served: None, stepped: Vec::new() })
}

/// A plain worker whose pages the kernel swaps to zram.
pub(super) struct Swapped {
    // Dropped before the device: swapping off then has nothing to bring back.
    worker: Worker,
    region: Region,
    zram: Zram,
}

impl Swapped {
    pub(super) fn start(program: &Program, job: Touch, algorithm: &str) -> Result<Swapped> {
        let zram = Zram::start(2 * job.bytes as u64, algorithm)?;
        let mut worker = Worker::start(program, &Job::Touch(job), plain)?;
        let region = worker.receive()?;
        Ok(Swapped { worker, region, zram })
    }
}

impl Arm for Swapped {
    fn name(&self) -> &'static str {
        "zram"
    }

    fn pages(&self) -> usize {
        self.region.pages
    }

    fn clock_overhead_ns(&self) -> u64 {
        self.region.clock_overhead_ns
    }

    fn evict(&mut self) -> Result<usize> {
        let presence: Presence = self.worker.ask(&TouchRequest::PageOut)?;
        // The page map says that they are in swap; the device must say that it is the swap they are in.
        let held = (self.zram.usage()?.original / PAGE_SIZE as u64) as usize;
        Ok(presence.swapped.min(held))
    }

    fn touch(&mut self, round: Round) -> Result<Touched> {
        untraced(&mut self.worker, round)
    }

    fn held(&mut self) -> Result<Held> {
        self.evict()?;
        let usage = self.zram.usage()?;
        Ok(Held {
            arm: self.name(),
            original_bytes: usage.original,
            compressed_bytes: usage.compressed,
            memory_bytes: usage.memory,
        })
    }

    fn threads(&self) -> Result<Vec<Thread>> {
        Ok(Vec::new())
    }
}

/// A plain worker whose pages the kernel swaps to a file, or keeps in zswap before that.
pub(super) struct OnDisk {
    // Dropped before the file: swapping off then has nothing to bring back.
    worker: Worker,
    region: Region,
    file: SwapFile,
    bytes: u64,
    // Dropped last: what it holds comes back when the file is swapped off.
    zswap: Option<Zswap>,
}

impl OnDisk {
    pub(super) fn start(program: &Program, job: Touch, directory: &Path) -> Result<OnDisk> {
        OnDisk::of(program, job, directory, None)
    }

    /// The same with zswap before the file.
    pub(super) fn behind_zswap(program: &Program, job: Touch, directory: &Path) -> Result<OnDisk> {
        OnDisk::of(program, job, directory, Some(Zswap::start()?))
    }

    fn of(program: &Program, job: Touch, directory: &Path, zswap: Option<Zswap>) -> Result<OnDisk> {
        let bytes = 2 * job.bytes as u64 + SPARE;
        let file = match zswap {
            Some(_) => SwapFile::behind(directory, bytes)?,
            None => SwapFile::start(directory, bytes)?,
        };
        let mut adopted = Ok(());
        let mut worker = Worker::start(program, &Job::Touch(job), |command| {
            plain(command);
            adopted = file.adopt(command);
        })?;
        adopted?;
        let region = worker.receive()?;
        Ok(OnDisk { worker, region, file, bytes, zswap })
    }
}

impl Arm for OnDisk {
    fn name(&self) -> &'static str {
        match self.zswap {
            Some(_) => "zswap",
            None => "swap",
        }
    }

    fn pages(&self) -> usize {
        self.region.pages
    }

    fn clock_overhead_ns(&self) -> u64 {
        self.region.clock_overhead_ns
    }

    fn evict(&mut self) -> Result<usize> {
        let before = cached_pages()?;
        let presence: Presence = self.worker.ask(&TouchRequest::PageOut)?;
        let end = Instant::now() + PATIENCE;
        loop {
            // What was written lies in memory too, until it is taken back from there.
            self.file.reclaim();
            let cached = cached_pages()?.saturating_sub(before);
            if cached * 100 <= self.region.pages || Instant::now() >= end {
                let away = presence.swapped.saturating_sub(cached);
                // The page map says that they are in swap; zswap must say that it is what has them.
                return match &self.zswap {
                    Some(zswap) => Ok(away.min((zswap.usage()?.0 / PAGE_SIZE as u64) as usize)),
                    None => Ok(away),
                };
            }
        }
    }

    fn touch(&mut self, round: Round) -> Result<Touched> {
        untraced(&mut self.worker, round)
    }

    fn held(&mut self) -> Result<Held> {
        let original_bytes = (self.evict()? * PAGE_SIZE) as u64;
        // A page of swap is a page of the file, and a byte or two of the kernel's tables for each page that there could be.
        let tables = self.bytes / PAGE_SIZE as u64;
        let (compressed_bytes, memory_bytes) = match &self.zswap {
            Some(zswap) => {
                let pool = zswap.usage()?.1;
                (pool, pool + tables)
            }
            None => (original_bytes, tables),
        };
        Ok(Held { arm: self.name(), original_bytes, compressed_bytes, memory_bytes })
    }

    fn threads(&self) -> Result<Vec<Thread>> {
        Ok(Vec::new())
    }
}
