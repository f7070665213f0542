//! The operations of the model test: what they are, how often each comes, and what is written into pages.

use memfold_sys::PAGE_SIZE;
use proptest::prelude::*;

/// Words of a page.
pub const WORDS: usize = PAGE_SIZE / 8;
/// Pages of the mappings: the first reaches into three extents, the second lies inside one, the third ends one.
pub const SIZES: [usize; 3] = [256 + 512 + 100, 200, 77];

/// What is written into pages.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    Zero,
    Repeated,
    Text,
    Random,
}

/// Pages of one of the mappings.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub region: usize,
    pub lo: usize,
    pub hi: usize,
}

#[derive(Clone, Copy, Debug)]
pub enum Op {
    Write {
        at: Span,
        word: usize,
        value: u64,
    },
    Fill {
        span: Span,
        kind: Kind,
        seed: u64,
    },
    Read(Span),
    ReadAll,
    /// Drops contents, told to the engine or past it.
    Drop {
        span: Span,
        told: bool,
    },
    /// The same, told, while other threads read the range.
    DropUnderReaders {
        span: Span,
        delay_us: u64,
    },
    /// Maps something new in the place of a part of the mapping.
    MapAnew(Span),
    /// Sets another protection, reads if it allows that, and sets the old one.
    Protect {
        span: Span,
        prot: i32,
    },
    /// Moves a whole mapping.
    Move {
        region: usize,
        start: usize,
    },
    Fork,
    /// Forks while the background thread is evicting.
    ForkUnderEviction {
        delay_us: u64,
    },
    /// Forks while other threads touch what is evicted.
    ForkUnderReaders {
        delay_us: u64,
    },
    Ask(Ask),
    /// Two threads read everything until the answer comes.
    ReadUnder(Ask),
    Rest {
        ms: u64,
    },
}

/// What the operator asks for.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    Evict,
    Restore,
    Pause,
    Resume,
    ColdAge { ms: u64 },
}

fn span() -> impl Strategy<Value = Span> {
    (0..SIZES.len(), any::<prop::sample::Index>(), prop_oneof![Just(1), 1..40usize, 1..SIZES[0]]).prop_map(
        |(region, at, len)| {
            let lo = at.index(SIZES[region]);
            Span { region, lo, hi: (lo + len).min(SIZES[region]) }
        },
    )
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Zero),
        Just(Kind::Repeated),
        Just(Kind::Text),
        Just(Kind::Text),
        Just(Kind::Random)
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        8 => Just(Ask::Evict),
        2 => Just(Ask::Restore),
        1 => Just(Ask::Pause),
        2 => Just(Ask::Resume),
        1 => (10..80u64).prop_map(|ms| Ask::ColdAge { ms }),
    ]
}

pub fn op() -> impl Strategy<Value = Op> {
    let prots = prop_oneof![2 => Just(libc::PROT_READ), 1 => Just(libc::PROT_NONE)];
    prop_oneof![
        8 => (span(), 0..WORDS, any::<u64>()).prop_map(|(at, word, value)| Op::Write { at, word, value }),
        6 => (span(), kind(), any::<u64>()).prop_map(|(span, kind, seed)| Op::Fill { span, kind, seed }),
        6 => span().prop_map(Op::Read),
        3 => Just(Op::ReadAll),
        4 => (span(), prop::bool::weighted(0.8)).prop_map(|(span, told)| Op::Drop { span, told }),
        3 => (span(), 0..300u64).prop_map(|(span, delay_us)| Op::DropUnderReaders { span, delay_us }),
        3 => span().prop_map(Op::MapAnew),
        4 => (span(), prots).prop_map(|(span, prot)| Op::Protect { span, prot }),
        3 => (0..SIZES.len(), 0..512usize).prop_map(|(region, start)| Op::Move { region, start }),
        1 => Just(Op::Fork),
        2 => (0..9000u64).prop_map(|delay_us| Op::ForkUnderEviction { delay_us }),
        2 => (0..2000u64).prop_map(|delay_us| Op::ForkUnderReaders { delay_us }),
        12 => ask().prop_map(Op::Ask),
        5 => ask().prop_map(Op::ReadUnder),
        3 => (1..60u64).prop_map(|ms| Op::Rest { ms }),
    ]
}

pub fn page_of(kind: Kind, seed: u64) -> [u64; WORDS] {
    let mut state = seed | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    match kind {
        Kind::Zero => [0; WORDS],
        Kind::Repeated => [seed >> (seed % 40); WORDS],
        Kind::Text => std::array::from_fn(|_| {
            u64::from_le_bytes(*[b"evicted ", b"pages we", b"re found", b" again. "][random() as usize % 4])
                ^ (random() % 3) << 40
        }),
        Kind::Random => std::array::from_fn(|_| random()),
    }
}
