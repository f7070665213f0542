//! Observers: access sources outside of the processes that they watch, which need root. What they see is reported to each process
//! ([`memfold_pager::report`]), whose pager asks it like any other source.
//!
//! What it is not: who is observed, and when, which is the launcher's and the daemon's to say; nor what is done with cold memory.
//!
//! Invariants: an observer changes nothing of a process and nothing of its memory. What it made in the kernel goes with it.

mod damon;
mod frames;
mod idle;

use crate::damon::{Refusal, NOTE, SYSFS};
use memfold_pager::report::Report;
use memfold_pager::source::Kind;
use std::path::PathBuf;
use std::time::Duration;

/// How often an observer looks in each cold age, and what ages are counted in.
const LOOKS: u32 = 8;
/// The shortest and the longest pause between two looks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(10));

/// Pages of a process that were not touched for some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untouched {
    /// First byte.
    pub start: usize,
    /// Byte after the last.
    pub end: usize,
    /// For how long they were not, ns.
    pub for_ns: u64,
}

/// What sees touches from outside.
pub trait Observer {
    /// What has been seen of each of these processes until now; of those that it cannot watch, why.
    fn look(&mut self, pids: &[u32]) -> Vec<Result<Vec<Untouched>, Refusal>>;

    /// CPU time that the kernel's own threads have taken for it, ns.
    fn kernel_ns(&self) -> u64 {
        0
    }
}

/// Where the kernel has what observers use.
#[derive(Clone, Debug)]
pub struct Places {
    /// DAMON's monitors.
    pub damon: PathBuf,
    /// The note on our own ([`crate::damon::recover`]).
    pub note: PathBuf,
    /// What physical memory there is.
    pub iomem: PathBuf,
    /// The bitmap of idle page tracking.
    pub idle: PathBuf,
}

impl Default for Places {
    fn default() -> Places {
        Places {
            damon: SYSFS.into(),
            note: NOTE.into(),
            iomem: "/proc/iomem".into(),
            idle: "/sys/kernel/mm/page_idle/bitmap".into(),
        }
    }
}

/// Starts an observer for memory that is cold after this time. Of `pids` are those that it is to watch, the one that matters most first.
///
/// # Errors
/// It needs root, the kernel does not have it, or somebody else uses it.
pub fn start(
    kind: Kind,
    places: &Places,
    pids: &[u32],
    cold_age: Duration,
) -> Result<Box<dyn Observer>, Refusal> {
    match kind {
        Kind::DamonVaddr => {
            damon::Addresses::start(places, pids, cold_age).map(|observer| Box::new(observer) as _)
        }
        Kind::DamonPaddr => damon::Memory::start(places, cold_age).map(|observer| Box::new(observer) as _),
        Kind::Idle => idle::Idle::start(places).map(|observer| Box::new(observer) as _),
        _ => Err(Refusal::NotOutside(kind.name())),
    }
}

/// How often to look where memory is cold after this time.
pub fn pause(cold_age: Duration) -> Duration {
    (cold_age / LOOKS).clamp(PAUSE.0, PAUSE.1)
}

/// What is to be reported to a process of which this was seen.
pub fn report(
    kind: Kind,
    sequence: u64,
    cold_age: Duration,
    seen: &Result<Vec<Untouched>, Refusal>,
) -> Report {
    let every = pause(cold_age).as_nanos() as u64;
    match seen {
        Ok(seen) => {
            let mut report = Report::new(kind, sequence, every, (cold_age / LOOKS).as_nanos() as u64);
            seen.iter().for_each(|piece| report.note(piece.start, piece.end, piece.for_ns));
            report
        }
        Err(refusal) => Report::refusal(kind, sequence, every, &refusal.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_pager::report::{Ages, Header};
    use memfold_sys::PAGE_SIZE;

    #[test]
    fn what_was_seen_is_reported_in_eighths_of_the_cold_age() {
        let cold_age = Duration::from_secs(8);
        let piece = |page: usize, secs: u64| Untouched {
            start: page * PAGE_SIZE,
            end: (page + 1) * PAGE_SIZE,
            for_ns: secs * 1_000_000_000,
        };
        let bytes =
            report(Kind::Idle, 5, cold_age, &Ok(vec![piece(1, 8), piece(2, 3), piece(4, 9_999)])).bytes();
        let header = Header::read(bytes[..Header::LEN].try_into().unwrap()).unwrap();
        assert_eq!((header.unit_ns, header.every_ns, header.extents), (1_000_000_000, 1_000_000_000, 1));
        let ages = Ages::read(bytes[Header::LEN..].try_into().unwrap());
        assert_eq!(ages.ages[..6], [0, 8, 3, 0, 255, 0]);
        let refused = report(Kind::Idle, 5, cold_age, &Err(Refusal::NotOutside("probe"))).bytes();
        let header = Header::read(refused[..].try_into().unwrap()).unwrap();
        assert!(header.refusal.as_str().contains("probe"));
    }

    #[test]
    fn looks_are_neither_too_rare_nor_too_frequent() {
        assert_eq!(pause(Duration::from_millis(10)), PAUSE.0);
        assert_eq!(pause(Duration::from_secs(10)), Duration::from_millis(1250));
        assert_eq!(pause(Duration::from_secs(1 << 20)), PAUSE.1);
    }
}
