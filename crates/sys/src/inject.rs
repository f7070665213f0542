//! Failures of the kernel, by a plan: what is met once in a year is met a thousand times a minute.
//!
//! What it is not: in any build that people run. Without the cargo feature `inject` every function here is empty and the
//! calls are what they always are. With it, `MEMFOLD_INJECT=SEED` or `SEED:N` has one call in `N` (16) of each kind fail
//! from [`begin`] on, with an error that the kernel's manual names for it, or stop halfway where it may. Which calls fail
//! is a function of the seed and of how many of that kind came before, so a seed repeats a plan.
//!
//! Failing are the calls that the pager makes. A call that it makes for the program, as the program asked, does not: what
//! the program does about that is the program's affair. `mmap` and `madvise` fail on the pager's own threads only.
//!
//! Invariants: no lock, no allocation; counters are relaxed and only grow.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A kind of call to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Point {
    /// `UFFDIO_MOVE`.
    Move = 0,
    /// `UFFDIO_COPY`.
    Copy = 1,
    /// `UFFDIO_ZEROPAGE`.
    Zero = 2,
    /// `UFFDIO_REGISTER`.
    Register = 3,
    /// `UFFDIO_UNREGISTER`.
    Unregister = 4,
    /// `UFFDIO_WAKE`. The kernel has no reason to refuse it, so here it wakes twice.
    Wake = 5,
    /// `read` of a message.
    Read = 6,
    /// `PAGEMAP_SCAN`.
    Scan = 7,
    /// `mmap` of memory for the pager.
    Map = 8,
    /// `madvise` that drops staged pages.
    Drop = 9,
    /// `clone` of an agent thread.
    Clone = 10,
    /// `futex` wait.
    Futex = 11,
    /// Reading from the tier below memory.
    TierRead = 12,
    /// Writing to it.
    TierWrite = 13,
    /// `io_uring_setup`, and `io_setup` in its place.
    Pin = 14,
}

impl Point {
    /// All, in order.
    pub const ALL: [Point; 15] = [
        Point::Move,
        Point::Copy,
        Point::Zero,
        Point::Register,
        Point::Unregister,
        Point::Wake,
        Point::Read,
        Point::Scan,
        Point::Map,
        Point::Drop,
        Point::Clone,
        Point::Futex,
        Point::TierRead,
        Point::TierWrite,
        Point::Pin,
    ];

    /// As it stands in reports.
    pub fn name(self) -> &'static str {
        match self {
            Point::Move => "move",
            Point::Copy => "copy",
            Point::Zero => "zeropage",
            Point::Register => "register",
            Point::Unregister => "unregister",
            Point::Wake => "wake",
            Point::Read => "read",
            Point::Scan => "pagemap_scan",
            Point::Map => "mmap",
            Point::Drop => "madvise",
            Point::Clone => "clone",
            Point::Futex => "futex",
            Point::TierRead => "tier read",
            Point::TierWrite => "tier write",
            Point::Pin => "io_uring_setup",
        }
    }
}

/// How often a point was passed while the plan was on, and how often it failed.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Counter {
    /// Calls.
    pub calls: AtomicU64,
    /// Of those the ones that failed by the plan.
    pub failed: AtomicU64,
}

/// One for each point, indexed by it.
pub type Counters = [Counter; Point::ALL.len()];

static COUNTERS: Counters =
    [const { Counter { calls: AtomicU64::new(0), failed: AtomicU64::new(0) } }; Point::ALL.len()];

/// The counters of this process.
pub fn counters() -> &'static Counters {
    &COUNTERS
}

/// What a call is to come to, instead of what it would.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// This error, and nothing done.
    Error(crate::Errno),
    /// A part done, then `EAGAIN`; an error at once where there are no parts.
    Short,
    /// All of it done, and then `EEXIST`: Linux 6.18 does so when a move succeeds at the second try.
    Unseen,
    /// All of it done, but for one bit that comes back as another.
    Flipped,
    /// All of it done, and late.
    Slow,
}

/// How many calls of `all` to make so that about half is done, in whole pages; `None` if it has no parts.
pub fn part_of(all: usize) -> Option<usize> {
    let half = all / crate::PAGE_SIZE / 2 * crate::PAGE_SIZE;
    (half != 0).then_some(half)
}

#[cfg(not(feature = "inject"))]
mod plan {
    use super::{Failure, Point};

    /// Starts the plan: nothing, in this build.
    pub const fn begin() {}

    /// Remembers a thread of the pager's own: nothing, in this build.
    pub const fn note_agent(_: u32) {}

    /// Whether this call is to fail: never, in this build.
    #[inline(always)]
    pub const fn failure(_: Point) -> Option<Failure> {
        None
    }

    /// Whether a mapping of so many bytes is refused: never, in this build.
    #[inline(always)]
    pub const fn is_refused(_: usize) -> bool {
        false
    }
}

#[cfg(feature = "inject")]
mod plan {
    use super::{Failure, Point, COUNTERS};
    use crate::Errno;
    use core::ffi::CStr;
    use core::ops::Range;
    use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};

    /// One call in so many fails, unless the plan says otherwise.
    const ONE_IN: u64 = 16;

    static SEED: AtomicU64 = AtomicU64::new(0);
    /// 0 while there is no plan.
    static RATE: AtomicU64 = AtomicU64::new(0);
    /// The last few agent threads, by the kernel's number.
    static AGENTS: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];
    static AGENTS_NOTED: AtomicU32 = AtomicU32::new(0);

    /// Lengths of mappings that are refused, from the first to below the second, and how many were.
    static REFUSED: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
    static REFUSALS: AtomicU64 = AtomicU64::new(0);

    /// Has every mapping of such a length, in bytes, refused on the pager's own threads, beside the plan. Returns how many were until now.
    pub fn refuse_maps(lengths: Range<usize>) -> u64 {
        // Relaxed: who is asked for a mapping meanwhile may be refused by the one, the other, or none.
        REFUSED[0].store(lengths.start, Relaxed);
        REFUSED[1].store(lengths.end, Relaxed);
        REFUSALS.swap(0, Relaxed)
    }

    /// Whether a mapping of so many bytes is refused.
    pub fn is_refused(len: usize) -> bool {
        let refused = (REFUSED[0].load(Relaxed)..REFUSED[1].load(Relaxed)).contains(&len) && on_agent();
        REFUSALS.fetch_add(u64::from(refused), Relaxed);
        refused
    }

    /// How the next calls of each kind are to fail, whatever the plan: a byte each, the first lowest, which is a number in [`choices`] plus one.
    static NEXT: [AtomicU64; COUNTERS.len()] = [const { AtomicU64::new(0) }; COUNTERS.len()];

    /// Has the next calls of a kind fail like this, one after the other, beside the plan; up to eight, each a failure that the plan knows for the kind. Returns
    /// how many of those that were asked for before have not come to pass, and do so no more.
    pub fn fail_next(point: Point, failures: &[Failure]) -> usize {
        let number = |wanted: &Failure| choices(point).iter().position(|choice| choice == wanted);
        let bytes = failures.iter().rev().fold(0, |bytes, failure| {
            bytes << 8 | 1 + number(failure).expect("a failure of this kind of call") as u64
        });
        NEXT[point as usize].swap(bytes, Relaxed).to_le_bytes().iter().filter(|&&byte| byte != 0).count()
    }

    fn next(point: Point) -> Option<Failure> {
        let next = &NEXT[point as usize];
        if next.load(Relaxed) == 0 {
            return None;
        }
        let bytes = next.fetch_update(Relaxed, Relaxed, |bytes| Some(bytes >> 8)).unwrap_or(0);
        choices(point).get((bytes & 0xFF).checked_sub(1)? as usize).copied()
    }

    /// Starts the plan that the environment asks for.
    pub fn begin() {
        // SAFETY: nobody changes this variable.
        let text = unsafe { libc::getenv(c"MEMFOLD_INJECT".as_ptr()) };
        if text.is_null() {
            return;
        }
        // SAFETY: a string of the environment.
        let text = unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("");
        let (seed, rate) = text.split_once(':').unwrap_or((text, ""));
        SEED.store(seed.parse().unwrap_or(1), Relaxed);
        RATE.store(rate.parse().unwrap_or(ONE_IN).max(2), Relaxed);
    }

    /// Remembers a thread of the pager's own.
    pub fn note_agent(tid: u32) {
        let at = AGENTS_NOTED.fetch_add(1, Relaxed) as usize % AGENTS.len();
        AGENTS[at].store(tid, Relaxed);
    }

    fn on_agent() -> bool {
        let me = crate::identity::current_tid();
        AGENTS.iter().any(|tid| tid.load(Relaxed) == me)
    }

    /// Whether this call is to fail, and how.
    pub fn failure(point: Point) -> Option<Failure> {
        if let Some(failure) = next(point) {
            return Some(failure);
        }
        let rate = RATE.load(Relaxed);
        if rate == 0 || matches!(point, Point::Map | Point::Drop) && !on_agent() {
            return None;
        }
        let counter = &COUNTERS[point as usize];
        let call = counter.calls.fetch_add(1, Relaxed);
        let draw = mix(SEED.load(Relaxed) ^ mix(call << 8 | point as u64));
        if draw % rate != 0 {
            return None;
        }
        counter.failed.fetch_add(1, Relaxed);
        let choices = choices(point);
        Some(choices[(draw >> 32) as usize % choices.len()])
    }

    /// What the manual pages name for the call and the kernel's code can come to.
    fn choices(point: Point) -> &'static [Failure] {
        const NO_MEMORY: Failure = Failure::Error(Errno::ENOMEM);
        const AGAIN: Failure = Failure::Error(Errno::EAGAIN);
        const INTERRUPTED: Failure = Failure::Error(Errno::EINTR);
        match point {
            Point::Move => &[AGAIN, NO_MEMORY, Failure::Error(Errno::EBUSY), Failure::Short, Failure::Unseen],
            Point::Copy => &[AGAIN, NO_MEMORY, Failure::Short],
            Point::Zero => &[AGAIN, NO_MEMORY],
            Point::Register | Point::Unregister | Point::Map => &[NO_MEMORY],
            Point::Wake => &[Failure::Short],
            Point::Read => &[AGAIN, INTERRUPTED],
            Point::Scan => &[NO_MEMORY, INTERRUPTED],
            Point::Drop => &[AGAIN, NO_MEMORY],
            Point::Clone | Point::Pin => &[AGAIN],
            Point::Futex => &[AGAIN, INTERRUPTED],
            Point::TierRead => {
                &[Failure::Error(Errno(libc::EIO)), Failure::Short, Failure::Flipped, Failure::Slow]
            }
            Point::TierWrite => {
                &[Failure::Error(Errno(libc::EIO)), Failure::Error(Errno(libc::ENOSPC)), Failure::Slow]
            }
        }
    }

    /// A number that looks random, from a number (splitmix64's output function: Steele, Lea and Flood, 2014).
    fn mix(number: u64) -> u64 {
        let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }
}

pub use plan::{begin, failure, is_refused, note_agent};

#[cfg(feature = "inject")]
pub use plan::{fail_next, refuse_maps};

/// The error of this call, where it is to fail.
#[inline(always)]
pub fn error(point: Point) -> Option<crate::Errno> {
    match failure(point) {
        Some(Failure::Error(error)) => Some(error),
        Some(Failure::Short) => Some(crate::Errno::EAGAIN),
        Some(Failure::Unseen) => Some(crate::Errno::EEXIST),
        Some(Failure::Slow) => {
            crate::time::sleep(LATE);
            None
        }
        Some(Failure::Flipped) | None => None,
    }
}

/// How long what is late takes.
const LATE: crate::time::Nanos = crate::time::Nanos::from_millis(20);

/// Reads from a tier, or writes to it, as the plan has it: not at all, late, and what was read in half or with a bit that is another.
pub fn spoiled(
    point: Point,
    bytes: &mut [u8],
    call: impl FnOnce(&mut [u8]) -> crate::Result<()>,
) -> crate::Result<()> {
    let failure = failure(point);
    match failure {
        Some(Failure::Error(error)) => return Err(error),
        Some(Failure::Slow) => crate::time::sleep(LATE),
        _ => {}
    }
    call(bytes)?;
    let middle = bytes.len() / 2;
    match failure {
        Some(Failure::Short) => bytes[middle..].fill(0),
        Some(Failure::Flipped) => bytes[middle] ^= 4,
        _ => {}
    }
    Ok(())
}

/// Calls and failures of a point so far.
pub fn counted(point: Point) -> (u64, u64) {
    let counter = &COUNTERS[point as usize];
    (counter.calls.load(Relaxed), counter.failed.load(Relaxed))
}
