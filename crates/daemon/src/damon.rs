//! DAMON, the kernel's own monitor of accesses, through sysfs (Documentation/admin-guide/mm/damon/usage.rst).
//!
//! What it is not: for sharing. The kernel lets nobody add a monitor while another one runs, and changing the number of
//! monitors discards those that are set up, so whenever there is one already, ours is not started.
//!
//! Invariants: nothing is written while somebody else has a monitor. What we made is taken away when [`Damon`] goes, and,
//! if we were killed, by the next one that starts: a note outside of sysfs says which monitor was ours.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Where the kernel has it.
pub const SYSFS: &str = "/sys/kernel/mm/damon/admin/kdamonds";
/// Where the note is kept: gone after a restart of the machine, like the monitor.
pub const NOTE: &str = "/run/memfold-damon";

/// Why there is no monitor of ours, or none of the kernel's other ways to see touches ([`crate::observe`]).
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The kernel has none, or not for us.
    #[error("the kernel offers no DAMON through sysfs here ({}); root and CONFIG_DAMON_SYSFS are needed", words(.0))]
    Missing(io::Error),
    /// Somebody else has one.
    #[error("DAMON is in use by somebody else ({0} monitors are set up); theirs is left alone")]
    InUse(u64),
    /// The kernel cannot watch what is wanted.
    #[error("this kernel's DAMON has no operations {wanted}; it has {there}")]
    NoOperations {
        /// What is wanted.
        wanted: &'static str,
        /// What there is.
        there: String,
    },
    /// `/proc/iomem` names no physical memory, as it does to who is not root.
    #[error("/proc/iomem names no memory; root is needed")]
    NoMemory,
    /// A monitor of addresses is one process's.
    #[error("DAMON watches the addresses of one process at a time, which is process {0} now; damon-paddr is for all")]
    OneProcess(u32),
    /// The monitor is there no more.
    #[error("DAMON tells nothing any more: {0}")]
    Ended(String),
    /// The kernel has no idle page tracking, or not for us.
    #[error(
        "the kernel offers no idle page tracking here ({}); root and CONFIG_IDLE_PAGE_TRACKING are needed",
        words(.0)
    )]
    NoIdleTracking(io::Error),
    /// It is no source that sees a process from outside.
    #[error("{0} is no source that sees from outside")]
    NotOutside(&'static str),
    /// What the kernel says of a process cannot be read.
    #[error("the page map of process {pid} cannot be read: {}", words(.error))]
    Process {
        /// Which.
        pid: u32,
        /// Why.
        error: io::Error,
    },
    /// A file could not be written or read.
    #[error("{path}: {}", words(.error))]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// What an error says, without its number: people read it, also on pages.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error ").map_or(text.clone(), |(words, _)| words.to_owned())
}

/// What is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Ranges of a process's addresses.
    Virtual(u32, Vec<(u64, u64)>),
    /// Ranges of physical memory, joined with a process's page map by who asks.
    Physical(Vec<(u64, u64)>),
}

/// A piece of what is watched, as the monitor saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// First byte.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
    /// Samples of the last aggregation that found it touched.
    pub accesses: u64,
    /// Aggregations for which that has been so.
    pub age: u64,
}

/// A running monitor.
#[derive(Debug)]
pub struct Damon {
    sysfs: PathBuf,
    note: PathBuf,
    /// The kernel thread that was ours when it began.
    began_as: Option<u32>,
    /// It is taken away.
    stopped: bool,
}

/// How many monitors are set up, by whomever.
///
/// # Errors
/// The kernel has no DAMON, or not for us.
pub fn monitors(sysfs: &Path) -> Result<u64, Refusal> {
    let text = fs::read_to_string(sysfs.join("nr_kdamonds")).map_err(Refusal::Missing)?;
    text.trim().parse().map_err(|_| Refusal::Missing(io::ErrorKind::InvalidData.into()))
}

/// The operations of the monitor that is set up, such as `vaddr`, `fvaddr` and `paddr`; `None` where none is. Reads only.
pub fn operations(sysfs: &Path) -> Option<Vec<String>> {
    let text = fs::read_to_string(sysfs.join("0/contexts/0/avail_operations")).ok()?;
    Some(text.split_whitespace().map(str::to_owned).collect())
}

/// Takes away what a predecessor left that was killed. Others' monitors are told from ours by their thread.
pub fn recover(sysfs: &Path, note: &Path) {
    let Ok(text) = fs::read_to_string(note) else { return };
    let mut words = text.split_whitespace();
    let (process, thread) = (words.next().unwrap_or(""), words.next());
    if Path::new("/proc").join(process).exists() && !process.is_empty() {
        return;
    }
    let runs = fs::read_to_string(sysfs.join("0/pid")).unwrap_or_default();
    // Without the number of its thread it was never switched on.
    if thread.is_none_or(|thread| thread == runs.trim() || runs.trim() == "-1") {
        let _ = fs::write(sysfs.join("0/state"), "off");
        let _ = fs::write(sysfs.join("nr_kdamonds"), "0");
    }
    let _ = fs::remove_file(note);
}

impl Damon {
    /// Starts a monitor that samples every `sample_us` and sums up every `aggregate_us` microseconds.
    ///
    /// # Errors
    /// There is no DAMON, it is in use, or it cannot watch what is wanted.
    pub fn start(
        sysfs: &Path,
        note: &Path,
        target: &Target,
        sample_us: u64,
        aggregate_us: u64,
    ) -> Result<Damon, Refusal> {
        recover(sysfs, note);
        match monitors(sysfs)? {
            0 => {}
            others => return Err(Refusal::InUse(others)),
        }
        let process = std::process::id();
        fs::write(note, format!("{process}\n"))
            .map_err(|error| Refusal::File { path: note.into(), error })?;
        // From here on what was made is taken away, whatever goes wrong.
        let mut damon = Damon { sysfs: sysfs.into(), note: note.into(), began_as: None, stopped: false };
        damon.write("nr_kdamonds", 1)?;
        damon.write("0/contexts/nr_contexts", 1)?;
        let there = operations(sysfs).unwrap_or_default();
        let (wanted, ranges, pid) = match target {
            // Of what it watches by `vaddr` the kernel decides itself in time.
            Target::Virtual(pid, ranges) if there.iter().any(|name| name == "fvaddr") => {
                ("fvaddr", ranges, Some(*pid))
            }
            Target::Virtual(pid, ranges) => ("vaddr", ranges, Some(*pid)),
            Target::Physical(ranges) => ("paddr", ranges, None),
        };
        if !there.iter().any(|name| name == wanted) {
            return Err(Refusal::NoOperations { wanted, there: there.join(", ") });
        }
        const CONTEXT: &str = "0/contexts/0";
        damon.write(&format!("{CONTEXT}/operations"), wanted)?;
        let attributes = format!("{CONTEXT}/monitoring_attrs");
        damon.write(&format!("{attributes}/intervals/sample_us"), sample_us)?;
        damon.write(&format!("{attributes}/intervals/aggr_us"), aggregate_us)?;
        damon.write(&format!("{attributes}/nr_regions/max"), 1000)?;
        damon.write(&format!("{CONTEXT}/targets/nr_targets"), 1)?;
        let target = format!("{CONTEXT}/targets/0");
        if let Some(pid) = pid {
            damon.write(&format!("{target}/pid_target"), pid)?;
        }
        damon.write(&format!("{target}/regions/nr_regions"), ranges.len())?;
        for (n, (start, end)) in ranges.iter().enumerate() {
            damon.write(&format!("{target}/regions/{n}/start"), start)?;
            damon.write(&format!("{target}/regions/{n}/end"), end)?;
        }
        // A scheme that does nothing but remember what it saw.
        damon.write(&format!("{CONTEXT}/schemes/nr_schemes"), 1)?;
        let scheme = format!("{CONTEXT}/schemes/0");
        damon.write(&format!("{scheme}/action"), "stat")?;
        for what in ["sz", "nr_accesses", "age"] {
            damon.write(&format!("{scheme}/access_pattern/{what}/max"), u32::MAX)?;
        }
        damon.write("0/state", "on")?;
        damon.began_as = damon.thread();
        if let Some(thread) = damon.began_as {
            let _ = fs::write(note, format!("{process} {thread}\n"));
        }
        Ok(damon)
    }

    /// The kernel thread that monitors.
    pub fn thread(&self) -> Option<u32> {
        fs::read_to_string(self.sysfs.join("0/pid")).ok()?.trim().parse().ok()
    }

    /// Whether the monitor that is set up is still ours: somebody who did not ask may have put another one in its place.
    fn is_ours(&self) -> bool {
        let runs = fs::read_to_string(self.sysfs.join("0/pid")).unwrap_or_default();
        let ours =
            self.began_as.is_none_or(|thread| runs.trim() == thread.to_string() || runs.trim() == "-1");
        !self.stopped && ours
    }

    /// What it has seen until now.
    ///
    /// # Errors
    /// A file cannot be read or written, or the monitor is not ours any more.
    pub fn look(&self) -> Result<Vec<Seen>, Refusal> {
        if !self.is_ours() {
            return Err(Refusal::Ended("the monitor was taken away".into()));
        }
        self.write("0/state", "update_schemes_tried_regions")?;
        let path = self.sysfs.join("0/contexts/0/schemes/0/tried_regions");
        let entries = fs::read_dir(&path).map_err(|error| Refusal::File { path, error })?;
        let number = |dir: &Path, name| fs::read_to_string(dir.join(name)).ok()?.trim().parse::<u64>().ok();
        let seen = entries.flatten().map(|entry| entry.path()).filter_map(|dir| {
            Some(Seen {
                start: number(&dir, "start")?,
                end: number(&dir, "end")?,
                accesses: number(&dir, "nr_accesses")?,
                age: number(&dir, "age")?,
            })
        });
        let mut seen: Vec<Seen> = seen.collect();
        seen.sort_by_key(|seen| seen.start);
        Ok(seen)
    }

    /// Takes the monitor away, if it is still there. What is looked at afterwards is an error.
    pub fn stop(&mut self) {
        if self.is_ours() {
            let _ = self.write("0/state", "off");
            let _ = self.write("nr_kdamonds", 0);
        }
        if !std::mem::replace(&mut self.stopped, true) {
            let _ = fs::remove_file(&self.note);
        }
    }

    fn write(&self, name: &str, value: impl ToString) -> Result<(), Refusal> {
        let path = self.sysfs.join(name);
        fs::write(&path, value.to_string()).map_err(|error| Refusal::File { path, error })
    }
}

impl Drop for Damon {
    fn drop(&mut self) {
        self.stop();
    }
}

/// DAMON's files for tests.
#[cfg(test)]
pub(crate) mod fixture {
    use super::*;

    /// Files as the kernel has them when one monitor is set up, without the kernel behind them.
    pub struct Sysfs(tempfile::TempDir);

    impl Sysfs {
        pub fn new(monitors: u64, operations: &str) -> Sysfs {
            let sysfs = Sysfs(tempfile::tempdir().unwrap());
            for dir in ["monitoring_attrs/intervals", "monitoring_attrs/nr_regions", "targets/0/regions"] {
                fs::create_dir_all(sysfs.path().join("0/contexts/0").join(dir)).unwrap();
            }
            for dir in
                ["access_pattern/sz", "access_pattern/nr_accesses", "access_pattern/age", "tried_regions/0"]
            {
                fs::create_dir_all(sysfs.path().join("0/contexts/0/schemes/0").join(dir)).unwrap();
            }
            for range in 0..256 {
                fs::create_dir_all(sysfs.path().join(format!("0/contexts/0/targets/0/regions/{range}")))
                    .unwrap();
            }
            sysfs.set("nr_kdamonds", &monitors.to_string());
            sysfs.set("0/pid", "4242\n");
            sysfs.set("0/contexts/0/avail_operations", operations);
            sysfs.saw(4096, 12288, 3, 7);
            sysfs
        }

        /// What the monitor has seen.
        pub fn saw(&self, start: u64, end: u64, accesses: u64, age: u64) {
            for (name, value) in [("start", start), ("end", end), ("nr_accesses", accesses), ("age", age)] {
                self.set(&format!("0/contexts/0/schemes/0/tried_regions/0/{name}"), &value.to_string());
            }
        }

        pub fn path(&self) -> PathBuf {
            self.0.path().to_owned()
        }

        pub fn note(&self) -> PathBuf {
            self.0.path().join("note")
        }

        pub fn set(&self, name: &str, value: &str) {
            fs::write(self.path().join(name), value).unwrap();
        }

        pub fn get(&self, name: &str) -> String {
            fs::read_to_string(self.path().join(name)).unwrap()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixture::Sysfs;
    use super::*;

    impl Sysfs {
        fn start(&self, target: &Target) -> Result<Damon, Refusal> {
            Damon::start(&self.path(), &self.note(), target, 5_000, 100_000)
        }
    }

    #[test]
    fn a_monitor_is_set_up_looked_at_and_taken_away() {
        let sysfs = Sysfs::new(0, "vaddr\nfvaddr\npaddr\n");
        let damon = sysfs.start(&Target::Virtual(77, vec![(4096, 8192)])).unwrap();
        assert_eq!(sysfs.get("0/state"), "on");
        // The ranges that were given, for as long as it runs.
        assert_eq!(sysfs.get("0/contexts/0/operations"), "fvaddr");
        assert_eq!(sysfs.get("0/contexts/0/targets/0/pid_target"), "77");
        assert_eq!(sysfs.get("0/contexts/0/targets/0/regions/0/end"), "8192");
        assert_eq!(sysfs.get("0/contexts/0/schemes/0/action"), "stat");
        assert_eq!(damon.look().unwrap(), [Seen { start: 4096, end: 12288, accesses: 3, age: 7 }]);
        drop(damon);
        assert_eq!((sysfs.get("0/state"), sysfs.get("nr_kdamonds")), ("off".into(), "0".into()));
        assert!(!sysfs.note().exists());
    }

    #[test]
    fn a_monitor_of_somebody_else_is_left_as_it_is() {
        let sysfs = Sysfs::new(1, "paddr\n");
        sysfs.set("0/state", "theirs");
        let refusal = sysfs.start(&Target::Physical(vec![(0, 4096)])).unwrap_err();
        assert!(matches!(refusal, Refusal::InUse(1)), "{refusal}");
        // Nor after somebody of ours was killed, when the monitor that runs now is another one.
        fs::write(sysfs.note(), "4194303 1111\n").unwrap();
        assert!(sysfs.start(&Target::Physical(vec![(0, 4096)])).is_err());
        assert_eq!((sysfs.get("0/state"), sysfs.get("nr_kdamonds")), ("theirs".into(), "1".into()));
    }

    #[test]
    fn a_monitor_that_somebody_put_in_place_of_ours_is_left_as_it_is() {
        let sysfs = Sysfs::new(0, "paddr\n");
        let damon = sysfs.start(&Target::Physical(vec![(0, 4096)])).unwrap();
        sysfs.set("0/pid", "5000\n");
        sysfs.set("0/state", "theirs");
        assert!(matches!(damon.look(), Err(Refusal::Ended(_))));
        drop(damon);
        assert_eq!((sysfs.get("0/state"), sysfs.get("nr_kdamonds")), ("theirs".into(), "1".into()));
        assert!(!sysfs.note().exists());
    }

    #[test]
    fn what_a_killed_predecessor_left_is_taken_away() {
        let sysfs = Sysfs::new(1, "paddr\n");
        sysfs.set("0/state", "on");
        fs::write(sysfs.note(), "4194303 4242\n").unwrap();
        let damon = sysfs.start(&Target::Physical(vec![(0, 4096)])).unwrap();
        assert_eq!(sysfs.get("0/contexts/0/operations"), "paddr");
        drop(damon);
        assert_eq!(sysfs.get("nr_kdamonds"), "0");
    }

    #[test]
    fn a_kernel_that_cannot_watch_addresses_says_what_it_can() {
        let sysfs = Sysfs::new(0, "paddr\n");
        let refusal = sysfs.start(&Target::Virtual(1, vec![(0, 1)])).unwrap_err().to_string();
        assert!(refusal.contains("no operations vaddr; it has paddr"), "{refusal}");
        assert_eq!(sysfs.get("nr_kdamonds"), "0");
        assert!(!sysfs.note().exists());
    }
}
