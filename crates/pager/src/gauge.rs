//! Files under `/proc` that an agent thread reads again and again, through a descriptor that it opened once.
//!
//! Invariants: one writer a place, the thread whose gauge it is; a forked child opens its own, since the files tell of the
//! process or thread that opened them.

mod reading;

use core::sync::atomic::AtomicU32;

/// Which file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gauge {
    /// `/proc/thread-self/statm` (proc_pid_statm(5)); the background thread's.
    Memory,
    /// `/proc/thread-self/maps` (proc_pid_maps(5)); the background thread's.
    Maps,
    /// `/proc/thread-self/smaps` (proc_pid_smaps(5)); the background thread's.
    Advice,
    /// `/proc/self/task/TID/schedstat` (Documentation/scheduler/sched-stats.rst) of a thread that faults; the fault thread's.
    Toucher(usize),
}

/// How many threads that fault are looked at at the same time.
pub(crate) const TOUCHERS: usize = 4;

impl Gauge {
    /// How many there are.
    const COUNT: usize = 3 + TOUCHERS;

    fn all() -> impl Iterator<Item = Gauge> {
        (0..TOUCHERS).map(Gauge::Toucher).chain([Gauge::Memory, Gauge::Maps, Gauge::Advice])
    }

    fn place(self) -> usize {
        match self {
            Gauge::Memory => 0,
            Gauge::Maps => 1,
            Gauge::Advice => 2,
            Gauge::Toucher(place) => 3 + place,
        }
    }
}

/// No descriptor.
const NONE: u32 = u32::MAX;

/// Descriptors of the files, by [`Gauge`].
pub(crate) struct Gauges([AtomicU32; Gauge::COUNT]);

impl Gauges {
    /// None is open.
    pub(crate) const fn new() -> Gauges {
        Gauges([const { AtomicU32::new(NONE) }; Gauge::COUNT])
    }
}

/// The first numbers of a text in which there is nothing but numbers and blanks.
fn numbers<const N: usize>(text: &[u8]) -> Option<[u64; N]> {
    let mut found = [0; N];
    let mut words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    for number in &mut found {
        *number = core::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_far_as_they_go() {
        assert_eq!(numbers(b"12 7\t3\n"), Some([12, 7, 3]));
        assert_eq!(numbers(b"12 7 3\n"), Some([12, 7]));
        assert_eq!(numbers::<3>(b"12 7\n"), None);
        assert_eq!(numbers::<1>(b"many"), None);
    }
}
