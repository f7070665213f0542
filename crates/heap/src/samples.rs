//! The sampled blocks that are live, and the stacks that they were allocated from.
//!
//! What it is: two tables in one piece of pinned memory, which is mapped when sampling first begins, and bounded: what does not fit is counted
//! as missed. What it is not: which blocks are sampled, which is [`crate::sampling`]'s affair; nor names, which are found from outside.
//!
//! Invariants: everything here happens under one lock, in which nothing but that memory is touched; a block is in the table from before it is
//! handed out until it is freed, and for as long its span counts it. A look without the lock ([`may_have`]) errs on one side only: it says yes
//! of every block that is in the table.

use crate::heap::Heap;
use crate::spans;
use core::ops::Range;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, Ordering::*};
use memfold_arena::{Kind, Mutex, Span};
use memfold_sys::{mem, time};
use memfold_unwind::{Rules, MOST_CALLS};

/// Live samples that there is room for in the table, a power of two; three quarters of it are used.
const SLOTS: usize = 1 << 16;
/// Stacks that there is room for, a power of two; three quarters of it are used.
const STACKS: usize = 1 << 15;
/// Words for their calls: 4 MiB, of which as much becomes resident as is used.
const WORDS: usize = 1 << 19;

/// A block that was sampled and not freed yet.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its address; 0 where there is none.
    pub block: usize,
    /// Bytes that it takes.
    pub size: usize,
    /// The stack from which it was allocated; 0 for one that is not known, as the table of stacks was full.
    pub stack: u32,
    /// When, in seconds of `CLOCK_MONOTONIC`.
    pub born: u32,
}

impl Sample {
    /// None.
    pub const NONE: Sample = Sample { block: 0, size: 0, stack: 0, born: 0 };
}

/// A block that was freed, where that is kept.
#[repr(C)]
#[derive(Clone, Copy)]
struct Freed {
    block: usize,
    allocated: u32,
    freed: u32,
}

/// Freed blocks that are kept, by the hash of their address: the last of each.
const FREED: usize = 1 << 14;

/// What is known of all samples together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Bytes between two samples in the mean; 0 where nothing is sampled.
    pub mean: usize,
    /// When sampling began, ns of `CLOCK_MONOTONIC`.
    pub since: u64,
    /// Samples that are live.
    pub live: usize,
    /// Blocks that should have been sampled, and were not for want of room.
    pub missed: u64,
}

/// The memory. All-zero bytes are empty tables.
#[repr(C)]
struct Memory {
    rules: Rules,
    /// How many samples have an address of that hash, modulo 65536.
    filter: [AtomicU16; SLOTS],
    samples: [Sample; SLOTS],
    /// Where in `words` the stacks begin, by hash; 0 for none.
    stacks: [u32; STACKS],
    freed: [Freed; FREED],
    /// Stacks one behind the other: how many calls, then those.
    words: [usize; WORDS],
}

struct Tables {
    memory: *mut Memory,
    summary: Summary,
    stacks: usize,
    /// The first unused word; the word 0 is none.
    end: usize,
    left_out: Range<usize>,
}

// SAFETY: the memory is mapped for ever, and who has the lock has it alone, but for the atomics.
unsafe impl Send for Tables {}

static TABLES: Mutex<Tables> = Mutex::new(Tables {
    memory: core::ptr::null_mut(),
    summary: Summary { mean: 0, since: 0, live: 0, missed: 0 },
    stacks: 0,
    end: 1,
    left_out: 0..0,
});

/// The same memory, for the look without the lock and for walks up a stack.
static MEMORY: AtomicPtr<Memory> = AtomicPtr::new(core::ptr::null_mut());

/// 0 while nothing is sampled, else another number each time that sampling begins.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// The last one.
static LAST: AtomicU32 = AtomicU32::new(0);

/// 0 while nothing is sampled, else another number each time that sampling begins.
#[inline(always)]
pub(crate) fn generation() -> u32 {
    GENERATION.load(Relaxed)
}

/// Bytes between two samples in the mean.
pub(crate) fn mean() -> usize {
    TABLES.lock().summary.mean
}

fn hash(block: usize) -> usize {
    // Blocks are multiples of 16.
    ((block >> 4) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 32
}

/// From now on blocks are sampled, each byte with the same chance, one in `mean` bytes; with 0, none. What was sampled before is forgotten. Calls
/// at the top of a stack that lie in `left_out` are not told. False if there is no memory for the tables.
pub fn sample(mean: usize, left_out: Range<usize>) -> bool {
    let mut tables = TABLES.lock();
    if tables.memory.is_null() {
        if mean == 0 {
            return true;
        }
        let len = core::mem::size_of::<Memory>();
        let Ok(base) = mem::map_own(len, libc::MAP_NORESERVE) else { return false };
        mem::note_own(base, len);
        tables.memory = base as *mut Memory;
        MEMORY.store(tables.memory, Release);
    }
    GENERATION.store(0, Relaxed);
    tables.forget_all();
    tables.left_out = left_out;
    tables.summary = Summary { mean, since: time::now().0, live: 0, missed: 0 };
    if mean > 0 {
        let next = LAST.load(Relaxed).checked_add(1).unwrap_or(1);
        LAST.store(next, Relaxed);
        GENERATION.store(next, Release);
    }
    true
}

/// The rules of walks up a stack, and what is left out of these; `None` before sampling began for the first time.
pub(crate) fn rules() -> Option<&'static Rules> {
    // SAFETY: mapped for ever once it is there; rules are atomics.
    unsafe { MEMORY.load(Acquire).as_ref() }.map(|memory| &memory.rules)
}

/// Calls that are not told.
pub(crate) fn left_out() -> Range<usize> {
    TABLES.lock().left_out.clone()
}

/// Whether the block may be in the table.
#[inline]
pub(crate) fn may_have(span: &Span, block: usize) -> bool {
    // Acquire: see `forget_all`.
    if span.samples.load(Acquire) == 0 {
        return false;
    }
    // SAFETY: as in `rules`.
    let memory = unsafe { MEMORY.load(Relaxed).as_ref() };
    // Relaxed: whoever frees a block was given it after it was counted.
    memory.is_some_and(|memory| memory.filter[hash(block) % SLOTS].load(Relaxed) != 0)
}

/// Enters a block of the span that is not handed out yet, where sampling is of that generation still.
pub(crate) fn enter(generation: u32, span: &Span, block: usize, size: usize, calls: &[usize]) {
    let mut tables = TABLES.lock();
    if GENERATION.load(Relaxed) != generation {
        return;
    }
    if tables.summary.live >= SLOTS / 4 * 3 || span.samples.load(Relaxed) == u16::MAX {
        tables.summary.missed += 1;
        return;
    }
    let stack = tables.stack(calls);
    let born = (time::coarse().0 / 1_000_000_000) as u32;
    tables.insert(Sample { block, size, stack, born });
    if span.samples.fetch_add(1, Relaxed) == 0 {
        mark(span);
    }
}

/// Forgets a block that the program has freed, if it is in the table; but keeps, where there are any, the calls that freed it.
#[cold]
pub(crate) fn forget(span: &Span, block: usize, calls: &[usize]) {
    let mut tables = TABLES.lock();
    let Some(sample) = tables.remove(block) else { return };
    if span.samples.fetch_sub(1, Relaxed) == 1 {
        unmark(span);
    }
    if !calls.is_empty() {
        let freed = Freed { block, allocated: sample.stack, freed: tables.stack(calls) };
        tables.memory().freed[hash(block) % FREED] = freed;
    }
}

/// The calls that allocated the block at an address, or `freed` it, innermost first, and how many; 0 where that is not known. Of a block that is
/// live nobody freed it.
pub fn trace_of(block: usize, freed: bool, out: &mut [usize; MOST_CALLS]) -> usize {
    let mut tables = TABLES.lock();
    if tables.memory.is_null() || block == 0 {
        return 0;
    }
    let live = tables.find(block).map(|at| tables.memory().samples[at].stack);
    let gone = tables.memory().freed[hash(block) % FREED];
    let stack = match live {
        Some(stack) => (!freed).then_some(stack),
        None => (gone.block == block).then_some(if freed { gone.freed } else { gone.allocated }),
    };
    let Some(place) = stack.filter(|stack| *stack != 0) else { return 0 };
    let (memory, place) = (tables.memory(), place as usize);
    let len = memory.words[place].min(MOST_CALLS);
    out[..len].copy_from_slice(&memory.words[place + 1..place + 1 + len]);
    len
}

/// A block of whole pages that was at `before` is now where its span says, and as long.
#[cold]
pub(crate) fn follow(span: &Span, before: usize) {
    let mut tables = TABLES.lock();
    if let Some(sample) = tables.remove(before) {
        tables.insert(Sample { block: span.start(), size: span.bytes(), ..sample });
    }
}

/// What is known of all samples together.
pub fn summary() -> Summary {
    TABLES.lock().summary
}

/// Copies live samples from the place `at` of the table on, and moves it behind them. Returns how many; 0 at the end. A block that is freed or
/// sampled between two calls is among them or not, and others may be told twice or not at all then, seldom.
pub fn samples_from(at: &mut usize, out: &mut [Sample]) -> usize {
    let tables = TABLES.lock();
    // SAFETY: under the lock.
    let Some(memory) = (unsafe { tables.memory.as_ref() }) else { return 0 };
    let mut count = 0;
    while *at < SLOTS && count < out.len() {
        let sample = memory.samples[*at];
        *at += 1;
        if sample.block != 0 {
            out[count] = sample;
            count += 1;
        }
    }
    count
}

/// The number and the calls of the stack at `at`, innermost first, which is then moved to the next; from 0 on. `None` at the end.
pub fn stack_from(at: &mut u32, out: &mut [usize; MOST_CALLS]) -> Option<(u32, usize)> {
    let tables = TABLES.lock();
    // SAFETY: under the lock.
    let memory = unsafe { tables.memory.as_ref() }?;
    let place = (*at).max(1) as usize;
    if place >= tables.end {
        return None;
    }
    let len = memory.words[place].min(MOST_CALLS);
    out[..len].copy_from_slice(&memory.words[place + 1..place + 1 + len]);
    *at = (place + 1 + len) as u32;
    Some((place as u32, len))
}

/// Keeps the tables at rest for the time around `fork`.
pub(crate) fn hold() {
    TABLES.hold();
}

/// # Safety
/// As [`Mutex::release`].
pub(crate) unsafe fn let_go(in_child: bool) {
    // SAFETY: the caller's contract.
    unsafe { TABLES.release(in_child) };
}

impl Tables {
    fn memory(&mut self) -> &mut Memory {
        // SAFETY: mapped, as something was sampled; under the lock; what others look at are atomics.
        unsafe { &mut *self.memory }
    }

    /// Forgets every sample and stack, and gives the frames back.
    fn forget_all(&mut self) {
        let slots = if self.summary.live > 0 { SLOTS } else { 0 };
        for at in 0..slots {
            let sample = self.memory().samples[at];
            // A block in the table is live, so its span is its own.
            let span = memfold_arena::lookup(sample.block).filter(|_| sample.block != 0);
            // One that is not counted any more was dealt with, and may serve another purpose by now.
            if let Some(span) = span.filter(|span| span.samples.load(Relaxed) != 0) {
                unmark(span);
                // Release: who sees that nothing is left to forget sees a span that is as any other.
                span.samples.store(0, Release);
            }
        }
        let (base, len) = (self.memory as usize, core::mem::size_of::<Memory>());
        // SAFETY: memory of these tables alone, which are empty when they are zero.
        if unsafe { mem::madvise(base, len, libc::MADV_DONTNEED) }.is_err() {
            let memory = self.memory();
            memory.rules.forget();
            memory.filter.iter().for_each(|count| count.store(0, Relaxed));
            memory.samples.fill(Sample::NONE);
            memory.stacks.fill(0);
            memory.freed.fill(Freed { block: 0, allocated: 0, freed: 0 });
        }
        (self.stacks, self.end) = (0, 1);
    }

    fn insert(&mut self, sample: Sample) {
        let memory = self.memory();
        let mut at = hash(sample.block) % SLOTS;
        memory.filter[at].fetch_add(1, Relaxed);
        while memory.samples[at].block != 0 {
            at = (at + 1) % SLOTS;
        }
        memory.samples[at] = sample;
        self.summary.live += 1;
    }

    /// The place of a block.
    fn find(&mut self, block: usize) -> Option<usize> {
        if self.memory.is_null() {
            return None;
        }
        let memory = self.memory();
        let mut at = hash(block) % SLOTS;
        while memory.samples[at].block != block {
            if memory.samples[at].block == 0 {
                return None;
            }
            at = (at + 1) % SLOTS;
        }
        Some(at)
    }

    fn remove(&mut self, block: usize) -> Option<Sample> {
        let mut at = self.find(block)?;
        let memory = self.memory();
        let found = memory.samples[at];
        memory.filter[hash(block) % SLOTS].fetch_sub(1, Relaxed);
        // Those behind it that would not be found across the gap move up (Knuth, The Art of Computer Programming, 6.4, algorithm R).
        let mut next = at;
        loop {
            next = (next + 1) % SLOTS;
            let other = memory.samples[next];
            if other.block == 0 {
                break;
            }
            let home = hash(other.block) % SLOTS;
            if (next.wrapping_sub(home)) % SLOTS >= (next.wrapping_sub(at)) % SLOTS {
                memory.samples[at] = other;
                at = next;
            }
        }
        memory.samples[at] = Sample::NONE;
        self.summary.live -= 1;
        Some(found)
    }

    /// The number of a stack; 0 if there is no room for another.
    fn stack(&mut self, calls: &[usize]) -> u32 {
        let (stacks, end) = (self.stacks, self.end);
        let memory = self.memory();
        let mixed = calls.iter().fold(calls.len() as u64, |hash, call| {
            (hash ^ *call as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
        });
        let mut at = (mixed >> 32) as usize % STACKS;
        loop {
            match memory.stacks[at] as usize {
                0 => break,
                place
                    if memory.words[place] == calls.len()
                        && memory.words[place + 1..place + 1 + calls.len()] == *calls =>
                {
                    return place as u32;
                }
                _ => at = (at + 1) % STACKS,
            }
        }
        if stacks >= STACKS / 4 * 3 || end + 1 + calls.len() > WORDS {
            return 0;
        }
        memory.words[end] = calls.len();
        memory.words[end + 1..end + 1 + calls.len()].copy_from_slice(calls);
        memory.stacks[at] = end as u32;
        (self.stacks, self.end) = (stacks + 1, end + 1 + calls.len());
        end as u32
    }
}

/// Has every free of a block of the span take the slow path. Of blocks of whole pages every one does.
fn mark(span: &Span) {
    if span.kind() == Kind::Blocks {
        // In this order: who takes another tag off at this moment looks at the owner's word last.
        spans::change_owner(span, |owner| owner | Heap::SAMPLED);
        span.shelf.store(0, SeqCst);
    }
}

/// Ends that. The owner's word is last: from the first of the two on the span may be freed and serve again.
fn unmark(span: &Span) {
    if span.kind() == Kind::Blocks {
        span.shelf.store(spans::shelf_of(span), Relaxed);
        spans::change_owner(span, |owner| owner & !Heap::SAMPLED);
    }
}
