//! Cold is what the kernel's DAMON has not seen touched for the cold age, over the process's addresses or over physical
//! memory. Needs root, and a machine on which nobody else uses it.

use super::{Ground, Source};
use crate::Unsupported;
use anyhow::Result;
use memfold_daemon::damon::{Damon, Seen, Target, NOTE, SYSFS};
use memfold_sys::pagemap::{Entry, Pagemap};
use memfold_sys::PAGE_SIZE;
use procfs::{Current, Iomem};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Samples in each aggregation, and aggregations in each cold age.
const SAMPLES: u32 = 20;
const AGGREGATIONS: u32 = 10;

/// The source.
pub struct Monitor {
    damon: Damon,
    base: usize,
    /// The process's page map, where physical memory is watched.
    pagemap: Option<Pagemap>,
    entries: Vec<Entry>,
    began_ns: u64,
}

impl Monitor {
    /// Over the ground's addresses.
    pub fn over_addresses(ground: &Ground, cold: Duration) -> Result<Monitor> {
        let range = (ground.base as u64, (ground.base + ground.len()) as u64);
        Monitor::start(ground, cold, Target::Virtual(std::process::id(), vec![range]), None)
    }

    /// Over all of physical memory.
    pub fn over_memory(ground: &Ground, cold: Duration) -> Result<Monitor> {
        let ranges = ram(Iomem::current()?);
        if ranges.is_empty() {
            return Err(Unsupported("/proc/iomem names no memory; root is needed".into()).into());
        }
        Monitor::start(ground, cold, Target::Physical(ranges), Some(Pagemap::open()?))
    }

    fn start(ground: &Ground, cold: Duration, target: Target, pagemap: Option<Pagemap>) -> Result<Monitor> {
        let aggregate = (cold / AGGREGATIONS).as_micros() as u64;
        let damon = Damon::start(
            Path::new(SYSFS),
            Path::new(NOTE),
            &target,
            aggregate / u64::from(SAMPLES),
            aggregate,
        )
        .map_err(|refusal| Unsupported(refusal.to_string()))?;
        let entries = vec![Entry::default(); ground.touched.len()];
        let mut monitor = Monitor { damon, base: ground.base, pagemap, entries, began_ns: 0 };
        monitor.began_ns = monitor.thread_ns();
        Ok(monitor)
    }

    /// CPU time of the kernel's monitoring thread, ns.
    fn thread_ns(&self) -> u64 {
        let thread = self.damon.thread().unwrap_or(0);
        let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
        text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
    }
}

/// The ranges of `/proc/iomem` that are memory.
fn ram(iomem: Iomem) -> Vec<(u64, u64)> {
    let memory = iomem.0.into_iter().filter(|(_, range)| range.name == "System RAM");
    let ranges = memory.map(|(_, range)| (range.address.0, range.address.1 + 1));
    // Without root all addresses read as zero.
    ranges.filter(|(start, end)| end - start > 1).collect()
}

/// Whether the monitor has not seen the address touched for a cold age.
fn is_cold(seen: &[Seen], address: u64) -> bool {
    let at = seen.partition_point(|piece| piece.end <= address);
    seen.get(at).is_some_and(|piece| {
        piece.start <= address && piece.accesses == 0 && piece.age >= u64::from(AGGREGATIONS)
    })
}

impl Source for Monitor {
    fn cold(&mut self, cold: &mut [bool]) -> Result<()> {
        let seen = self.damon.look()?;
        if let Some(pagemap) = &self.pagemap {
            let mut done = 0;
            while done < self.entries.len() {
                done += pagemap.entries(self.base + done * PAGE_SIZE, &mut self.entries[done..])?.max(1);
            }
        }
        for (page, cold) in cold.iter_mut().enumerate() {
            let address = match self.pagemap {
                Some(_) => self.entries[page].frame() * PAGE_SIZE as u64,
                None => (self.base + page * PAGE_SIZE) as u64,
            };
            *cold = is_cold(&seen, address);
        }
        Ok(())
    }

    fn background_ns(&self) -> u64 {
        self.thread_ns().saturating_sub(self.began_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use procfs::FromBufRead;

    #[test]
    fn only_memory_is_watched() {
        let text =
            "00001000-0009fbff : System RAM\n000a0000-000bffff : PCI Bus\n00100000-7fffffff : System RAM\n";
        let ram = |text: &str| ram(Iomem::from_buf_read(text.as_bytes()).unwrap());
        assert_eq!(ram(text), [(0x1000, 0x9fc00), (0x10_0000, 0x8000_0000)]);
        assert_eq!(ram("00000000-00000000 : System RAM\n"), []);
    }

    #[test]
    fn what_was_seen_long_untouched_is_cold_and_nothing_else() {
        let piece = |start, end, accesses, age| Seen { start, end, accesses, age };
        let seen = [piece(0, 10, 0, 20), piece(10, 20, 0, 2), piece(30, 40, 1, 20)];
        assert_eq!(
            [0, 9, 10, 25, 30, 40].map(|at| is_cold(&seen, at)),
            [true, true, false, false, false, false]
        );
    }
}
