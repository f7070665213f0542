//! The sum over the processes of one run: what a tree of processes did, read from its control pages.
//!
//! Pages are sampled while the program runs, in the run's directory, and by root also where those processes have theirs that have become other
//! users. Counters are exact, since a page outlives its process;
//! totals of bytes over several processes are those of the sampled moments.
//!
//! Invariants: a page may say anything, and ends nothing; a process is counted once for each program that it executed; the page of a process that
//! is gone is removed after it was counted, so a run of many short processes leaves no heap of files.

use crate::directory::Directory;
use crate::pages::{self, Inherited, Name};
use crate::process::{self, Nested};
use crate::runtime;
use memfold_inspect::{Costs, Inventory, Latency, Pages, Sizes, Snapshot, Source};
use memfold_pager::control::{Counters, Mode};
use nix::unistd::geteuid;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// So many processes are listed one by one, the largest first.
const LISTED: usize = 64;

/// So many pages are looked at again at the end, each of which costs a descriptor.
const INHERITED: usize = 64;

/// How often directories elsewhere are looked for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// One process in the list of a summary.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Process {
    pub pid: u32,
    pub parent_pid: u32,
    pub name: String,
    pub mode: &'static str,
    pub reason: Option<String>,
    pub source: Source,
    pub managed_bytes_peak: u64,
    pub evicted_bytes_peak: u64,
    pub saved_bytes_peak: u64,
    #[serde(serialize_with = "memfold_inspect::fields")]
    pub pages: Pages,
    pub stall_ns: u64,
    pub why: Option<Inventory>,
}

/// The processes of a run.
#[derive(Debug)]
pub struct Tally {
    dir: PathBuf,
    /// That of the run, if it is there, and those elsewhere; and when they were last looked for.
    dirs: Vec<Arc<Directory>>,
    looked: Option<Instant>,
    live: BTreeMap<(u32, Name), (String, Snapshot)>,
    /// Some of the pages that forked children have from processes that are gone.
    inherited: Vec<Inherited>,
    total: Total,
}

/// What the processes of a run did together.
#[derive(Clone, Debug, Default)]
pub struct Total {
    /// How many programs had a control page.
    pub processes: u64,
    /// The mode of the process that was folded most: embedded if any was.
    pub mode: Option<Mode>,
    /// What told which memory is cold, of the process that had most to fold, and how much that was at its peak, bytes.
    pub source: Option<(u64, Source)>,
    /// Why the first process that was not folded was not.
    pub reason: Option<String>,
    /// Highest sums of bytes over the processes of one moment.
    pub peaks: Sizes,
    /// Integral of the saved bytes, byte-milliseconds.
    pub saved_byte_millis: u64,
    /// Sums of pages.
    pub pages: Pages,
    /// Sums of costs; the highest of `stall_ppm_peak`.
    pub costs: Costs,
    /// All waits on faults.
    pub fault: Latency,
    /// All work on restores.
    pub restore: Latency,
    /// All reading from tiers below memory.
    pub tier_read: Latency,
    /// Of the process of which most was resident when it was last counted, why that was not folded.
    pub why: Option<(u32, Inventory)>,
    /// Whether some process goes on.
    pub some_left: bool,
    /// The largest processes.
    pub list: Vec<Process>,
}

impl Tally {
    /// For the pages that appear in `dir`.
    pub fn new(dir: PathBuf) -> Tally {
        let (dirs, live, inherited) = (Vec::new(), BTreeMap::new(), Vec::new());
        Tally { dir, dirs, looked: None, live, inherited, total: Total::default() }
    }

    /// Looks at the pages once.
    pub fn sample(&mut self) {
        if self.looked.is_none_or(|looked| looked.elapsed() > LOOK_EVERY) {
            self.look_for_dirs();
        }
        let mut nested = Nested::default();
        for dir in self.dirs.clone() {
            self.sample_in(&dir, &mut nested);
        }
        self.total.peak(self.live.values().map(|(_, page)| &page.sizes));
    }

    fn look_for_dirs(&mut self) {
        self.dirs = Directory::hold(&self.dir).map(Arc::new).into_iter().collect();
        self.dirs.extend(runtime::elsewhere(&self.dir));
        self.looked = Some(Instant::now());
    }

    fn sample_in(&mut self, dir: &Directory, nested: &mut Nested) {
        for (file, content) in pages::files(dir) {
            let running = file.resolve(nested).filter(|&pid| process::is_running(pid));
            let Ok(page) = Snapshot::of_file(&content) else { continue };
            let name_now = || running.map(process::name).unwrap_or_default();
            let key = (dir.owner(), file);
            let name = match self.live.remove(&key) {
                // The process executed another program, which began a page of its own.
                Some((name, before)) if before.started_ns != page.started_ns => {
                    self.total.add(name, &before);
                    name_now()
                }
                Some((name, _)) if running.is_none() => name,
                _ => name_now(),
            };
            if running.is_some() {
                self.live.insert(key, (name, page));
            } else {
                self.total.add(name, &page);
                if self.inherited.len() < INHERITED {
                    self.inherited.extend(Inherited::of(content));
                }
                dir.remove(&file.to_string());
            }
        }
    }

    /// The pages of those that ran when it was last looked.
    pub fn live(&self) -> impl Iterator<Item = &Snapshot> {
        self.live.values().map(|(_, page)| page)
    }

    /// Those in the run's own directory, with their ids in our PID namespace.
    pub fn live_here(&self) -> impl Iterator<Item = (Name, u32, &Snapshot)> {
        let mut nested = Nested::default();
        let own = self.live.iter().filter(|((owner, _), _)| *owner == geteuid().as_raw());
        own.filter_map(move |((_, name), (_, page))| Some((*name, name.resolve(&mut nested)?, page)))
    }

    /// The sum over all processes, those that still run included.
    pub fn finish(mut self) -> Total {
        self.look_for_dirs();
        self.sample();
        let inherited = self.inherited.drain(..).find_map(Inherited::still);
        self.total.some_left = inherited.is_some() || !self.live.is_empty();
        for (name, page) in self.live.values() {
            self.total.add(name.clone(), page);
        }
        self.total
    }
}

impl Total {
    /// Counts a process.
    fn add(&mut self, name: String, page: &Snapshot) {
        self.processes += 1;
        if page.mode == Mode::Embedded {
            self.mode = Some(page.mode);
            let managed = page.sizes.managed_bytes_peak;
            if self.source.as_ref().is_none_or(|(most, _)| managed > *most) {
                self.source = Some((managed, page.source.clone()));
            }
        }
        if page.mode == Mode::Off && self.reason.is_none() {
            self.reason = Some(page.reason.clone());
        }
        // A process's own peak may lie between two samples.
        self.peaks.combine(&page.sizes, |_, peak, own| peak.max(own));
        add(&mut self.saved_byte_millis, page.saved_byte_millis);
        self.pages.combine(&page.pages, |_, sum, more| sum.saturating_add(more));
        self.costs.combine(&page.costs, |name, sum, more| match name {
            "stall_ppm_peak" => sum.max(more),
            _ => sum.saturating_add(more),
        });
        self.fault.add(&page.fault);
        self.restore.add(&page.restore);
        self.tier_read.add(&page.tier_read);
        let resident = |why: &Inventory| why.resident_bytes;
        if page.inventory.as_ref().map(resident) > self.why.as_ref().map(|(_, why)| resident(why)) {
            self.why = page.inventory.clone().map(|why| (page.pid, why));
        }
        self.list.push(Process {
            pid: page.pid,
            parent_pid: page.parent_pid,
            name,
            mode: page.mode.name(),
            reason: (page.mode == Mode::Off).then(|| page.reason.clone()),
            source: page.source.clone(),
            managed_bytes_peak: page.sizes.managed_bytes_peak,
            evicted_bytes_peak: page.sizes.evicted_bytes_peak,
            saved_bytes_peak: page.sizes.saved_bytes_peak,
            pages: page.pages,
            stall_ns: page.costs.stall_ns,
            why: page.inventory.clone(),
        });
        if self.list.len() > 2 * LISTED {
            self.shorten();
        }
    }

    /// The largest processes of the list, at most [`LISTED`].
    pub fn largest(mut self) -> Vec<Process> {
        self.shorten();
        self.list
    }

    fn shorten(&mut self) {
        self.list.sort_by_key(|p| std::cmp::Reverse((p.managed_bytes_peak, p.pages.evicted)));
        self.list.truncate(LISTED);
    }

    fn peak<'a>(&mut self, live: impl Iterator<Item = &'a Sizes>) {
        let mut now = Sizes::default();
        for sizes in live {
            add(&mut now.managed_bytes_peak, sizes.managed_bytes);
            add(&mut now.evicted_bytes_peak, sizes.evicted_bytes);
            add(&mut now.stored_bytes_peak, sizes.stored_bytes);
            add(&mut now.overhead_bytes, sizes.overhead_bytes);
            add(&mut now.store_bytes, sizes.store_bytes);
            add(&mut now.table_bytes, sizes.table_bytes);
            add(&mut now.saved_bytes_peak, sizes.saved_bytes);
            add(&mut now.tier_bytes_peak, sizes.tier_bytes);
            add(&mut now.tier_file_bytes, sizes.tier_file_bytes);
        }
        self.peaks.combine(&now, |_, peak, now| peak.max(now));
    }
}

/// Adds what a page says, which may be any number.
fn add(to: &mut u64, number: u64) {
    *to = to.saturating_add(number);
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_inspect::fixture;
    use std::sync::atomic::Ordering::Relaxed;

    fn page(dir: &std::path::Path, pid: u32, started: u64, evicted: u64, managed: u64) {
        fixture::write(&dir.join(pid.to_string()), |page| {
            page.pid.store(pid, Relaxed);
            page.mode.store(Mode::Embedded as u32, Relaxed);
            page.started_ns.store(started, Relaxed);
            page.pages_evicted.store(evicted, Relaxed);
            page.managed_bytes.store(managed, Relaxed);
            page.managed_bytes_peak.store(managed, Relaxed);
        });
    }

    #[test]
    fn a_process_that_is_gone_is_counted_once_and_its_page_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut tally = Tally::new(dir.path().to_owned());
        page(dir.path(), 4_194_303, 1, 10, 100);
        tally.sample();
        tally.sample();
        let total = tally.finish();
        assert_eq!((total.processes, total.pages.evicted, total.peaks.managed_bytes_peak), (1, 10, 100));
        assert!(runtime::entries(dir.path()).is_empty());
    }

    #[test]
    fn a_program_executed_in_the_same_process_is_counted_beside_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let mut tally = Tally::new(dir.path().to_owned());
        let pid = std::process::id();
        page(dir.path(), pid, 1, 10, 100);
        tally.sample();
        page(dir.path(), pid, 2, 5, 100);
        let total = tally.finish();
        assert_eq!((total.processes, total.pages.evicted), (2, 15));
    }

    #[test]
    fn the_source_of_a_run_is_that_of_its_largest_process() {
        let dir = tempfile::tempdir().unwrap();
        for (pid, managed, source) in [(4_194_301, 10, 0), (4_194_302, 900, 1), (4_194_303, 20, 2)] {
            fixture::write(&dir.path().join(pid.to_string()), |page| {
                page.mode.store(Mode::Embedded as u32, Relaxed);
                page.managed_bytes_peak.store(managed, Relaxed);
                page.source.store(source, Relaxed);
            });
        }
        let mut tally = Tally::new(dir.path().to_owned());
        tally.sample();
        assert_eq!(tally.finish().source.unwrap().1.in_use.name(), "writes");
    }

    #[test]
    fn pages_that_say_anything_and_files_that_are_none_are_added_up_too() {
        let dir = tempfile::tempdir().unwrap();
        for pid in [4_194_301, 4_194_302] {
            fixture::write(&dir.path().join(pid.to_string()), |page| {
                page.mode.store(Mode::Embedded as u32, Relaxed);
                for word in
                    [&page.pages_evicted, &page.saved_byte_millis, &page.stall_ns, &page.managed_bytes]
                {
                    word.store(u64::MAX, Relaxed);
                }
                page.fault_ns.sum.store(u64::MAX, Relaxed);
                page.fault_ns.buckets.iter().for_each(|bucket| bucket.store(u32::MAX, Relaxed));
            });
        }
        nix::unistd::mkfifo(&dir.path().join("4194303"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(dir.path().join("4194300"), b"short").unwrap();
        let mut tally = Tally::new(dir.path().to_owned());
        tally.sample();
        let total = tally.finish();
        assert_eq!((total.processes, total.pages.evicted, total.costs.stall_ns), (2, u64::MAX, u64::MAX));
        assert_eq!(total.fault.percentiles().max, 0);
    }

    #[test]
    fn peaks_of_processes_that_run_together_add_up() {
        let dir = tempfile::tempdir().unwrap();
        let mut tally = Tally::new(dir.path().to_owned());
        page(dir.path(), std::process::id(), 1, 0, 100);
        page(dir.path(), std::os::unix::process::parent_id(), 1, 0, 50);
        tally.sample();
        assert_eq!(tally.finish().peaks.managed_bytes_peak, 150);
    }
}
