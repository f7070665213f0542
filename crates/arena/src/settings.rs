//! The allocator's profiles and settings.
//!
//! What it is: one number for each [`Knob`], read by slow paths, and what the number is in each [`Profile`]. What it is
//! not: a reader of the environment; whoever starts the allocator calls [`set_profile`] and [`set`].
//!
//! Invariants: before anybody sets anything, the values are those of [`Profile::Balanced`]. Values steer what is kept
//! and how it is asked for, never where a block is, so they may change at any time, but for [`Knob::Check`]: that one is
//! put in force by the crate `heap`.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// What the allocator is to do first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Profile {
    /// Keep memory, in huge pages, and have some at hand from the start.
    Speed,
    /// Keep what is used again soon.
    #[default]
    Balanced,
    /// Give memory back early.
    Lean,
    /// As balanced, and end the program where it misuses its blocks.
    Secure,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 4] = [Profile::Speed, Profile::Balanced, Profile::Lean, Profile::Secure];

    /// Its name, as `MEMFOLD_PROFILE` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Speed => "speed",
            Profile::Balanced => "balanced",
            Profile::Lean => "lean",
            Profile::Secure => "secure",
        }
    }

    /// The profile of this name.
    pub fn from_name(name: &str) -> Option<Profile> {
        Profile::ALL.into_iter().find(|profile| profile.name() == name)
    }
}

/// How frames of free runs go back to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decommit {
    /// Not at all, but for [`crate::trim`].
    Off = 0,
    /// By `MADV_FREE`: the kernel takes them when it needs them. Where a pager looks on, as `DontNeed`.
    Free = 1,
    /// By `MADV_DONTNEED`: at once.
    DontNeed = 2,
}

/// Where huge pages are asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Huge {
    /// Nowhere.
    Off = 0,
    /// In further shared chunks once the program is seen to touch most of what it was given ([`crate::density`]),
    /// unless a pager looks on: it evicts single pages only from small ones.
    Auto = 1,
    /// In all chunks but the first, also where a pager looks on, and in those of a single large block.
    On = 2,
}

/// What kind of value a knob takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// One of these words; the value is its place.
    Word(&'static [&'static str]),
    /// Bytes.
    Size,
    /// Nanoseconds.
    Duration,
    /// A number.
    Count,
}

/// A setting of the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Knob {
    /// Whether spans are cached by threads and huge pages are asked for: 0 or 1.
    Arena = 0,
    /// A [`Decommit`].
    Decommit = 1,
    /// Bytes of free runs that stay resident for good; where it was set by itself, at any time ([`target_is_given`]).
    DecommitTarget = 2,
    /// How long free runs beyond the target stay resident, ns.
    Decay = 3,
    /// Bytes that are made resident when the program starts.
    Prewarm = 4,
    /// A [`Huge`].
    Huge = 5,
    /// Empty spans up to 64 KiB that a thread keeps.
    Keep64K = 6,
    /// Empty spans of more and up to 128 KiB that a thread keeps.
    Keep128K = 7,
    /// Empty spans of more and up to 2 MiB that a thread keeps.
    Keep2M = 8,
    /// Bytes of the smallest chunk.
    ChunkLeast = 9,
    /// Bytes of the largest chunk that is shared.
    ChunkMost = 10,
    /// Whether blocks are checked when they are freed and lie in random order: 0 or 1.
    Check = 11,
    /// Whether blocks of whole pages lie between pages that cannot be touched: 0 or 1.
    Guard = 12,
    /// Bytes of blocks in size classes that each thread freed last and that do not serve again yet, with checks.
    Quarantine = 13,
}

const SWITCH: Unit = Unit::Word(&["off", "on"]);
const MIB: u64 = 1 << 20;

impl Knob {
    /// How many there are.
    pub const COUNT: usize = 14;

    /// All of them, in order.
    pub const ALL: [Knob; Knob::COUNT] = [
        Knob::Arena,
        Knob::Decommit,
        Knob::DecommitTarget,
        Knob::Decay,
        Knob::Prewarm,
        Knob::Huge,
        Knob::Keep64K,
        Knob::Keep128K,
        Knob::Keep2M,
        Knob::ChunkLeast,
        Knob::ChunkMost,
        Knob::Check,
        Knob::Guard,
        Knob::Quarantine,
    ];

    /// Its environment variable.
    pub const fn variable(self) -> &'static str {
        match self {
            Knob::Arena => "MEMFOLD_ARENA",
            Knob::Decommit => "MEMFOLD_DECOMMIT",
            Knob::DecommitTarget => "MEMFOLD_DECOMMIT_TARGET",
            Knob::Decay => "MEMFOLD_DECAY",
            Knob::Prewarm => "MEMFOLD_PREWARM",
            Knob::Huge => "MEMFOLD_HUGE",
            Knob::Keep64K => "MEMFOLD_ARENA_64K",
            Knob::Keep128K => "MEMFOLD_ARENA_128K",
            Knob::Keep2M => "MEMFOLD_ARENA_2M",
            Knob::ChunkLeast => "MEMFOLD_ARENA_CHUNK",
            Knob::ChunkMost => "MEMFOLD_ARENA_CHUNK_MAX",
            Knob::Check => "MEMFOLD_CHECK",
            Knob::Guard => "MEMFOLD_GUARD",
            Knob::Quarantine => "MEMFOLD_QUARANTINE",
        }
    }

    /// What kind of value it takes.
    pub const fn unit(self) -> Unit {
        match self {
            Knob::Arena | Knob::Check | Knob::Guard => SWITCH,
            Knob::Decommit => Unit::Word(&["off", "free", "dontneed"]),
            Knob::Huge => Unit::Word(&["off", "auto", "on"]),
            Knob::DecommitTarget | Knob::Prewarm | Knob::ChunkLeast | Knob::ChunkMost | Knob::Quarantine => {
                Unit::Size
            }
            Knob::Decay => Unit::Duration,
            Knob::Keep64K | Knob::Keep128K | Knob::Keep2M => Unit::Count,
        }
    }

    /// The smallest and the largest value, in its own unit.
    pub const fn range(self) -> (u64, u64) {
        match self {
            Knob::Decay => (0, 3600 * 1_000_000_000),
            Knob::Keep64K | Knob::Keep128K | Knob::Keep2M => (0, 4096),
            Knob::DecommitTarget => (0, 1 << 46),
            Knob::Prewarm => (0, 32 * MIB),
            Knob::Quarantine => (0, 64 * MIB),
            Knob::ChunkLeast | Knob::ChunkMost => (2 * MIB, 32 * MIB),
            _ => (0, u64::MAX),
        }
    }

    /// What it is in a profile, in its own unit.
    pub const fn default_value(self, profile: Profile) -> u64 {
        let (speed, lean) = (matches!(profile, Profile::Speed), matches!(profile, Profile::Lean));
        let secure = matches!(profile, Profile::Secure) as u64;
        match self {
            Knob::Arena => 1,
            Knob::Decommit if speed => Decommit::Off as u64,
            Knob::Decommit => Decommit::DontNeed as u64,
            Knob::DecommitTarget if lean => MIB,
            Knob::DecommitTarget => 4 * MIB,
            Knob::Decay if lean => 100_000_000,
            Knob::Decay => 1_000_000_000,
            Knob::Prewarm if speed => 2 * MIB,
            Knob::Prewarm => 0,
            Knob::Huge if speed => Huge::On as u64,
            Knob::Huge if lean => Huge::Off as u64,
            Knob::Huge => Huge::Auto as u64,
            Knob::Keep64K if lean => 0,
            Knob::Keep64K => 4,
            Knob::Keep128K if lean => 0,
            Knob::Keep128K => 2,
            Knob::Keep2M if lean => 0,
            Knob::Keep2M => 1,
            Knob::ChunkLeast => 2 * MIB,
            Knob::ChunkMost => 32 * MIB,
            Knob::Check | Knob::Guard => secure,
            Knob::Quarantine => MIB / 4,
        }
    }
}

static VALUES: [AtomicU64; Knob::COUNT] = {
    let mut values = [const { AtomicU64::new(0) }; Knob::COUNT];
    let mut index = 0;
    while index < Knob::COUNT {
        values[index] = AtomicU64::new(Knob::ALL[index].default_value(Profile::Balanced));
        index += 1;
    }
    values
};

/// See [`target_is_given`].
static TARGET_GIVEN: AtomicBool = AtomicBool::new(false);

/// See [`set_ceiling`].
static CEILING: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Has free runs keep at most `bytes` resident at any time, whatever the profile allows; `usize::MAX` for no such bound. For
/// who keeps the process below a limit: what lies free must not have used memory evicted.
pub fn set_ceiling(bytes: usize) {
    CEILING.store(bytes, Relaxed);
}

/// The most bytes of free runs that may be resident; see [`set_ceiling`].
pub(crate) fn ceiling() -> usize {
    CEILING.load(Relaxed)
}

/// The value of a knob now, in its own unit.
#[inline]
pub fn get(knob: Knob) -> u64 {
    // Relaxed: a setting that orders nothing.
    VALUES[knob as usize].load(Relaxed)
}

/// Changes one.
pub fn set(knob: Knob, value: u64) {
    VALUES[knob as usize].store(value, Relaxed);
    if knob == Knob::DecommitTarget {
        TARGET_GIVEN.store(true, Relaxed);
    }
}

/// Changes all to what they are in `profile`.
pub fn set_profile(profile: Profile) {
    for knob in Knob::ALL {
        VALUES[knob as usize].store(knob.default_value(profile), Relaxed);
    }
    TARGET_GIVEN.store(false, Relaxed);
}

/// Whether [`Knob::DecommitTarget`] was set by itself: then it is kept to at any time, and no share of what is handed out
/// stays besides.
pub(crate) fn target_is_given() -> bool {
    TARGET_GIVEN.load(Relaxed)
}

/// Whether a knob that takes `off` and `on` is on.
#[inline]
pub fn is_on(knob: Knob) -> bool {
    get(knob) != 0
}

/// How frames go back.
pub(crate) fn decommit() -> Decommit {
    match get(Knob::Decommit) {
        0 => Decommit::Off,
        1 => Decommit::Free,
        _ => Decommit::DontNeed,
    }
}

/// Whether to ask for huge pages in a chunk; `dedicated` is one of a single block, `watched` one that a pager looks on,
/// and `dense` says whether the program touches what it is given.
pub(crate) fn wants_huge(dedicated: bool, watched: bool, dense: impl Fn() -> bool) -> bool {
    match get(Knob::Huge) {
        0 => false,
        1 => is_on(Knob::Arena) && !dedicated && !watched && dense(),
        _ => is_on(Knob::Arena),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_stands_at_its_own_place_and_its_defaults_are_in_range() {
        for (place, knob) in Knob::ALL.into_iter().enumerate() {
            assert_eq!(knob as usize, place);
            let (least, most) = knob.range();
            for value in Profile::ALL.map(|profile| knob.default_value(profile)) {
                assert!((least..=most).contains(&value), "{knob:?}");
                if let Unit::Word(words) = knob.unit() {
                    assert!((value as usize) < words.len(), "{knob:?}");
                }
            }
        }
    }

    #[test]
    fn profiles_are_found_by_their_names() {
        for profile in Profile::ALL {
            assert_eq!(Profile::from_name(profile.name()), Some(profile));
        }
        assert_eq!(Profile::from_name("fast"), None);
    }
}
