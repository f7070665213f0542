//! DAMON as an observer: over the addresses of one process, or over physical memory, joined with the page map of each.
//!
//! It samples regions, so that what it says of a page is said of its neighbours too.

use super::{frames, Observer, Places, Untouched};
use crate::damon::{Damon, Refusal, Seen, Target};
use memfold_sys::PAGE_SIZE;
use std::fs;
use std::time::{Duration, Instant};

/// Samples in each aggregation, and aggregations in each cold age.
const SAMPLES: u32 = 20;
const AGGREGATIONS: u32 = 10;
/// The longest aggregation: who waits for days can still be told of hours.
const LONGEST: Duration = Duration::from_secs(10);
/// The shortest that DAMON is asked for: 20 samples of 100 us.
const SHORTEST: Duration = Duration::from_millis(2);

/// A monitor, and what an aggregation of it takes.
struct Monitor {
    damon: Damon,
    aggregation: Duration,
}

impl Monitor {
    fn start(places: &Places, target: &Target, cold_age: Duration) -> Result<Monitor, Refusal> {
        let aggregation = (cold_age / AGGREGATIONS).clamp(SHORTEST, LONGEST);
        let micros = aggregation.as_micros() as u64;
        let damon = Damon::start(&places.damon, &places.note, target, micros / u64::from(SAMPLES), micros)?;
        Ok(Monitor { damon, aggregation })
    }

    /// For how long a piece was not touched, ns.
    fn age(&self, seen: &Seen) -> u64 {
        match seen.accesses {
            0 => seen.age.saturating_mul(self.aggregation.as_nanos() as u64),
            _ => 0,
        }
    }

    /// CPU time of the kernel's monitoring thread, ns.
    fn kernel_ns(&self) -> u64 {
        let thread = self.damon.thread().unwrap_or(0);
        let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }
}

/// DAMON over the addresses of one process: it says of no region whose it is.
pub struct Addresses {
    monitor: Monitor,
    places: Places,
    pid: u32,
    cold_age: Duration,
    /// What is watched, and since when it is this.
    blocks: Vec<(usize, usize)>,
    since: Instant,
}

/// Blocks that are watched at most, the longest: the monitor has a thousand regions for them.
const BLOCKS: usize = 256;
/// The part, one in so many, of what a process has in memory that may lie elsewhere before the monitor begins anew; and the cold ages that it has before,
/// in which what it watches can become cold.
const ELSEWHERE: usize = 8;
const UNDISTURBED: u32 = 2;

impl Addresses {
    /// Over those of the first process.
    pub fn start(places: &Places, pids: &[u32], cold_age: Duration) -> Result<Addresses, Refusal> {
        let pid = pids.first().copied().unwrap_or(0);
        let blocks = blocks(pid)?;
        let monitor = monitor(places, pid, &blocks, cold_age)?;
        Ok(Addresses { monitor, places: places.clone(), pid, cold_age, blocks, since: Instant::now() })
    }

    /// Begins anew where the process has much of its memory in places that are not watched. To follow would be the kernel's affair, but it takes
    /// all that lies between two mappings for one region, and a reservation for memory.
    fn follow(&mut self) -> Result<(), Refusal> {
        if self.since.elapsed() < self.cold_age * UNDISTURBED {
            return Ok(());
        }
        self.since = Instant::now();
        let now = blocks(self.pid)?;
        let elsewhere: usize = now.iter().map(|&block| outside(block, &self.blocks)).sum();
        let all: usize = now.iter().map(|(start, end)| end - start).sum();
        if elsewhere > all / ELSEWHERE {
            // One at a time.
            self.monitor.damon.stop();
            self.monitor = monitor(&self.places, self.pid, &now, self.cold_age)?;
            self.blocks = now;
        }
        Ok(())
    }
}

fn monitor(
    places: &Places,
    pid: u32,
    blocks: &[(usize, usize)],
    cold_age: Duration,
) -> Result<Monitor, Refusal> {
    let ranges = blocks.iter().map(|&(start, end)| (start as u64, end as u64)).collect();
    Monitor::start(places, &Target::Virtual(pid, ranges), cold_age)
}

/// Where the process has memory, by address.
fn blocks(pid: u32) -> Result<Vec<(usize, usize)>, Refusal> {
    let mut blocks = frames::blocks(pid).map_err(|error| Refusal::Process { pid, error })?;
    blocks.sort_by_key(|(start, end)| std::cmp::Reverse(end - start));
    blocks.truncate(BLOCKS);
    blocks.sort_unstable();
    Ok(blocks)
}

/// How many bytes of a block lie in none of the others.
fn outside((start, end): (usize, usize), others: &[(usize, usize)]) -> usize {
    let inside = |&(from, to): &(usize, usize)| end.min(to).saturating_sub(start.max(from));
    (end - start) - others.iter().map(inside).sum::<usize>()
}

impl Observer for Addresses {
    fn look(&mut self, pids: &[u32]) -> Vec<Result<Vec<Untouched>, Refusal>> {
        let followed = self.follow().map_err(|refusal| refusal.to_string());
        let see = |pid: &u32| {
            if *pid != self.pid {
                return Err(Refusal::OneProcess(self.pid));
            }
            if let Err(why) = &followed {
                return Err(Refusal::Ended(why.clone()));
            }
            let seen = self.monitor.damon.look()?;
            let pieces = seen.iter().map(|piece| Untouched {
                start: piece.start as usize & !(PAGE_SIZE - 1),
                end: piece.end as usize,
                for_ns: self.monitor.age(piece),
            });
            Ok(pieces.filter(|piece| piece.for_ns != 0).collect())
        };
        pids.iter().map(see).collect()
    }

    fn kernel_ns(&self) -> u64 {
        self.monitor.kernel_ns()
    }
}

/// DAMON over all physical memory.
pub struct Memory {
    monitor: Monitor,
}

impl Memory {
    /// Over what `/proc/iomem` names.
    pub fn start(places: &Places, cold_age: Duration) -> Result<Memory, Refusal> {
        let iomem = fs::read_to_string(&places.iomem)
            .map_err(|error| Refusal::File { path: places.iomem.clone(), error })?;
        let ranges = ram(&iomem);
        if ranges.is_empty() {
            return Err(Refusal::NoMemory);
        }
        Ok(Memory { monitor: Monitor::start(places, &Target::Physical(ranges), cold_age)? })
    }
}

impl Observer for Memory {
    fn look(&mut self, pids: &[u32]) -> Vec<Result<Vec<Untouched>, Refusal>> {
        let seen = match self.monitor.damon.look() {
            Ok(seen) => seen,
            Err(refusal) => {
                let text = refusal.to_string();
                return pids.iter().map(|_| Err(Refusal::Ended(text.clone()))).collect();
            }
        };
        let see = |pid: &u32| {
            let mut pieces = Pieces::default();
            let each = |address, frame| {
                let age = at(&seen, frame * PAGE_SIZE as u64).map_or(0, |piece| self.monitor.age(piece));
                pieces.add(address, age);
            };
            frames::for_each(*pid, each).map_err(|error| Refusal::Process { pid: *pid, error })?;
            Ok(pieces.0)
        };
        pids.iter().map(see).collect()
    }

    fn kernel_ns(&self) -> u64 {
        self.monitor.kernel_ns()
    }
}

/// Pages one after the other, joined where they are neighbours of one age.
#[derive(Default)]
pub(super) struct Pieces(pub Vec<Untouched>);

impl Pieces {
    /// The page at `address`, which was not touched for so long; 0 where that is not known.
    pub fn add(&mut self, address: usize, for_ns: u64) {
        match self.0.last_mut() {
            _ if for_ns == 0 => {}
            Some(last) if last.end == address && last.for_ns == for_ns => last.end += PAGE_SIZE,
            _ => self.0.push(Untouched { start: address, end: address + PAGE_SIZE, for_ns }),
        }
    }
}

/// The ranges of `/proc/iomem` that are memory.
fn ram(iomem: &str) -> Vec<(u64, u64)> {
    let lines = iomem.lines().filter_map(|line| line.strip_suffix(" : System RAM"));
    let number = |text: &str| u64::from_str_radix(text.trim(), 16).ok();
    let ranges = lines.filter_map(|range| {
        let (start, last) = range.split_once('-')?;
        Some((number(start)?, number(last)? + 1))
    });
    // Without root all addresses read as zero.
    ranges.filter(|(start, end)| end - start > 1).collect()
}

/// The piece in which an address lies.
fn at(seen: &[Seen], address: u64) -> Option<&Seen> {
    let index = seen.partition_point(|piece| piece.end <= address);
    seen.get(index).filter(|piece| piece.start <= address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::damon::fixture::Sysfs;

    fn places(sysfs: &Sysfs) -> Places {
        let iomem = sysfs.path().join("iomem");
        fs::write(&iomem, "00000000-000fffff : Reserved\n00100000-ffffffffff : System RAM\n").unwrap();
        Places { damon: sysfs.path(), note: sysfs.note(), iomem, idle: sysfs.path().join("none") }
    }

    #[test]
    fn only_memory_is_watched() {
        let text =
            "00001000-0009fbff : System RAM\n000a0000-000bffff : PCI Bus\n00100000-7fffffff : System RAM\n";
        assert_eq!(ram(text), [(0x1000, 0x9fc00), (0x10_0000, 0x8000_0000)]);
        assert_eq!(ram("00000000-00000000 : System RAM\n"), []);
    }

    #[test]
    fn an_address_lies_in_one_piece_or_in_none() {
        let piece = |start, end| Seen { start, end, accesses: 0, age: start };
        let seen = [piece(0, 10), piece(10, 20), piece(30, 40)];
        assert_eq!(
            [0, 9, 10, 25, 30, 40].map(|address| at(&seen, address).map(|piece| piece.age)),
            [Some(0), Some(0), Some(10), None, Some(30), None]
        );
    }

    #[test]
    fn neighbours_of_one_age_are_one_piece() {
        let mut pieces = Pieces::default();
        for (page, age) in [(1, 5), (2, 5), (3, 0), (4, 5), (5, 6)] {
            pieces.add(page * PAGE_SIZE, age);
        }
        let piece = |start: usize, end: usize, for_ns| Untouched {
            start: start * PAGE_SIZE,
            end: end * PAGE_SIZE,
            for_ns,
        };
        assert_eq!(pieces.0, [piece(1, 3, 5), piece(4, 5, 5), piece(5, 6, 6)]);
    }

    #[test]
    fn the_addresses_of_one_process_are_watched_and_no_others() {
        let sysfs = Sysfs::new(0, "vaddr\npaddr\n");
        sysfs.saw(4096, 12288, 0, 7);
        let (own, other) = (std::process::id(), std::process::id() + 1);
        let mut observer = Addresses::start(&places(&sysfs), &[own, other], Duration::from_secs(10)).unwrap();
        assert_eq!(sysfs.get("0/contexts/0/targets/0/pid_target"), own.to_string());
        assert_eq!(sysfs.get("0/contexts/0/monitoring_attrs/intervals/aggr_us"), "1000000");
        let mut seen = observer.look(&[own, other]);
        assert!(seen.pop().unwrap().unwrap_err().to_string().contains(&format!("process {own} ")));
        assert_eq!(
            seen[0].as_ref().unwrap(),
            &[Untouched { start: 4096, end: 12288, for_ns: 7_000_000_000 }]
        );
        // What was touched in the last aggregation is of no age.
        sysfs.saw(4096, 12288, 3, 7);
        assert_eq!(observer.look(&[own])[0].as_ref().unwrap(), &[]);
    }

    #[test]
    fn the_monitor_begins_anew_where_a_process_has_much_of_its_memory_elsewhere() {
        assert_eq!(outside((10, 20), &[(0, 12), (15, 18), (30, 40)]), 5);
        let sysfs = Sysfs::new(0, "vaddr\n");
        let own = std::process::id();
        let mut observer = Addresses::start(&places(&sysfs), &[own], Duration::from_secs(10)).unwrap();
        // As if it had watched a place where nothing is any more.
        observer.blocks = vec![(0, 4096)];
        sysfs.set("0/state", "as it was");
        assert!(observer.look(&[own])[0].is_ok());
        assert_eq!(sysfs.get("0/state"), "update_schemes_tried_regions", "its time has not come");
        observer.cold_age = Duration::ZERO;
        sysfs.set("0/contexts/0/operations", "");
        assert!(observer.look(&[own])[0].is_ok());
        assert_eq!(
            (sysfs.get("0/contexts/0/operations"), sysfs.get("nr_kdamonds")),
            ("vaddr".into(), "1".into())
        );
        assert!(!observer.blocks.is_empty() && observer.blocks[0] != (0, 4096));
    }

    #[test]
    fn all_of_physical_memory_is_watched_for_any_process() {
        let sysfs = Sysfs::new(0, "paddr\n");
        sysfs.saw(0, u64::MAX / 2, 0, 9);
        let mut observer = Memory::start(&places(&sysfs), Duration::from_secs(1)).unwrap();
        assert_eq!(sysfs.get("0/contexts/0/targets/0/regions/0/end"), (1u64 << 40).to_string());
        let seen = observer.look(&[std::process::id(), 4_194_303]);
        // Without root the page map names no physical pages, and nothing is cold.
        let own = seen[0].as_ref().unwrap();
        assert!(own.iter().all(|piece| piece.for_ns == 900_000_000));
        // SAFETY: no memory involved.
        assert_eq!(own.is_empty(), unsafe { libc::geteuid() } != 0);
        assert!(seen[1].is_err());
        drop(observer);
        assert_eq!(sysfs.get("nr_kdamonds"), "0");
    }

    #[test]
    fn without_root_there_is_no_memory_to_watch() {
        let sysfs = Sysfs::new(0, "paddr\n");
        let places = places(&sysfs);
        fs::write(&places.iomem, "00000000-00000000 : System RAM\n").unwrap();
        assert!(matches!(Memory::start(&places, Duration::from_secs(1)), Err(Refusal::NoMemory)));
        assert_eq!(sysfs.get("nr_kdamonds"), "0");
    }
}
