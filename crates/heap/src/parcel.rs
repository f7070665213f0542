//! How freed blocks travel to another heap: lists onto which any thread pushes, and what is gathered for them.
//!
//! What it is: a list takes blocks by compare-and-swap and gives all of them at once (a Treiber stack, IBM RJ 5118, 1986; taking all at
//! once avoids the ABA problem). On it are parcels: a block that names the next parcel, and as many others as it has room to name, each by
//! its distance. Blocks of one span that were freed one after another are linked by who frees them and named as one, so that who receives
//! them puts all where they belong at once (the idea is that of Filardo and Parkinson, "BatchIt", ISMM 2024). It so reads a few lines
//! that another processor wrote, and not one in each block, each of which says where the next one is.
//!
//! What it is not: a judgement of whose a block is; that is [`crate::remote`]'s.

use crate::ahead;
use crate::bin::{Block, Run};
use crate::classes::ALIGNMENT;
use crate::links;
use crate::sync::{AtomicPtr, Cell, Hint};
use core::mem::size_of;
use core::sync::atomic::Ordering::*;
use memfold_arena::Span;

/// Blocks of one span gathered: so many bytes of them, where each counts as [`OF_SPAN_LEAST`] at least.
const OF_SPAN: i32 = 4096;
const OF_SPAN_LEAST: i32 = 64;

/// Blocks gathered for one list: at most so many, and fewer of those above [`GATHERED_LEAST`] bytes.
const GATHERED: u32 = 128;
const GATHERED_LEAST: u32 = 128;

/// Runs of blocks gathered for one list, at most.
const RUNS: usize = 32;

/// How a parcel begins; its words follow.
#[repr(C)]
struct Header {
    /// The next parcel, by the rules of [`links`], and the number of words in the bits that an address does not use; if it is [`LONG`], the
    /// first word has the number of the others.
    link: Block,
    words: [Cell<u32>; 0],
}

/// The number of words that are too many for those bits.
const LONG: usize = ALIGNMENT - 1;

/// A run takes a word or two: the lowest bit of the first says whether there are more blocks than one, the others how far the first of them
/// lies behind the parcel; the second, how many there are, and above [`COUNT_BITS`] how far the last lies behind the first. In units of
/// [`ALIGNMENT`].
const COUNT_BITS: u32 = 8;

const _: () = assert!(OF_SPAN / OF_SPAN_LEAST < 1 << COUNT_BITS);

/// How far a block lies behind another, in those units.
#[inline(always)]
fn far(from: *mut Block, to: *mut Block) -> isize {
    (to as isize).wrapping_sub(from as isize) >> ALIGNMENT.ilog2()
}

/// The block that lies so far behind another.
#[inline(always)]
fn behind(block: *mut Block, units: i32) -> *mut Block {
    block.wrapping_byte_offset(units as isize * ALIGNMENT as isize)
}

/// A parcel that is being made.
struct Parcel {
    block: *mut Block,
    /// The number of the first word for a run, which is not 0 in a long one.
    begin: usize,
    words: usize,
    room: usize,
}

impl Parcel {
    /// The word with this number.
    ///
    /// # Safety
    /// The block that the parcel lies in is free and has room for so many.
    #[inline(always)]
    unsafe fn word(block: *mut Block, number: usize) -> &'static Cell<u32> {
        // SAFETY: the caller's contract; blocks are aligned to words.
        unsafe { &*(&raw const (*block.cast::<Header>()).words).cast::<Cell<u32>>().add(number) }
    }

    /// How many words for runs a block of `size` bytes has room for.
    #[inline(always)]
    fn room(size: u32) -> usize {
        match links::key() {
            0 => match (size as usize - size_of::<Header>()) / size_of::<u32>() {
                few @ ..LONG => few,
                many => (many - 1).min(2 * RUNS),
            },
            // Where links are encoded, nothing else that a program could overwrite is believed.
            _ => 0,
        }
    }

    /// A parcel in the first block of a run, which has room for so many words and names the others.
    ///
    /// # Safety
    /// The blocks are free, in no list, and of one span; one block where links are encoded.
    unsafe fn of(run: Run, room: usize) -> Parcel {
        let mut parcel = Parcel { block: run.first, begin: usize::from(room >= LONG), words: 0, room };
        if run.count > 1 {
            // SAFETY: the blocks of a run are linked.
            let second = unsafe { (*run.first).next.get() };
            let is_named = parcel.name(Run { first: second, last: run.last, count: run.count - 1 });
            debug_assert!(is_named, "each block has room for one run");
        }
        parcel
    }

    /// Names the blocks of a run, if there is room.
    fn name(&mut self, run: Run) -> bool {
        let first = far(self.block, run.first);
        let words = if run.count > 1 { 2 } else { 1 };
        if self.words + words > self.room || i32::try_from(first << 1).is_err() {
            return false;
        }
        // SAFETY: there is room.
        unsafe {
            let at = self.begin + self.words;
            Parcel::word(self.block, at).set((first << 1) as u32 | (words as u32 - 1));
            if words > 1 {
                let last = far(run.first, run.last) as u32;
                Parcel::word(self.block, at + 1).set(last << COUNT_BITS | run.count);
            }
        }
        self.words += words;
        true
    }

    /// Links it to the next one.
    ///
    /// # Safety
    /// It is in no list.
    #[inline(always)]
    unsafe fn link(&self, next: *mut Block) {
        let words = if self.begin == 0 { self.words } else { LONG };
        // SAFETY: the caller's contract; a free block is ours to write.
        unsafe {
            if words == LONG {
                Parcel::word(self.block, 0).set(self.words as u32);
            }
            links::set(self.block, next.map_addr(|addr| addr | words));
        }
    }
}

/// Opens a parcel: calls `each` for all that is in it. Returns the next parcel.
///
/// # Safety
/// The parcel was just taken off a list.
#[inline(always)]
pub(crate) unsafe fn open(parcel: *mut Block, mut each: impl FnMut(Run)) -> *mut Block {
    // SAFETY: the blocks of a parcel are free, and `push` linked it.
    let link = unsafe { links::get(parcel) };
    let next = link.map_addr(|addr| addr & !LONG);
    ahead::fetch(next as usize);
    let words = if links::key() == 0 { link.addr() & LONG } else { 0 };
    let (mut at, end) = match words {
        // SAFETY: as above.
        LONG => (1, 1 + unsafe { Parcel::word(parcel, 0) }.get() as usize),
        words => (0, words),
    };
    while at < end {
        // SAFETY: as above; the parcel's own block comes last, so its words are whole until then.
        let word = unsafe { Parcel::word(parcel, at) }.get();
        let first = behind(parcel, word as i32 >> 1);
        if word & 1 == 0 {
            each(Run::of_one(first));
            at += 1;
        } else {
            // SAFETY: as above.
            let more = unsafe { Parcel::word(parcel, at + 1) }.get();
            let (last, count) = (more as i32 >> COUNT_BITS, more & ((1 << COUNT_BITS) - 1));
            each(Run { first, last: behind(first, last), count });
            at += 2;
        }
    }
    each(Run::of_one(parcel));
    next
}

/// What other threads freed for one heap: a list of parcels. On a cache line of its own, as others write it.
#[repr(C, align(64))]
pub(crate) struct List {
    first: AtomicPtr<Block>,
    /// 1 while nobody takes anything off it.
    left: Hint,
}

/// How much was sent to lists that nobody takes anything off, in units of [`GATHERED_LEAST`] bytes, since somebody last looked at them.
static LEFT: Hint = Hint::new(0);
/// From so much on somebody should.
const MOST_LEFT: u32 = (1 << 20) / GATHERED_LEAST;

/// Whether it is time to look at what was sent to heaps that nobody uses; if so, the caller does.
#[inline]
pub(crate) fn is_much_left() -> bool {
    LEFT.load(Relaxed) >= MOST_LEFT && LEFT.swap(0, Relaxed) >= MOST_LEFT
}

/// How much so many blocks of `size` bytes are, in those units.
#[inline(always)]
fn amount(count: u32, size: u32) -> u32 {
    count * size.div_ceil(GATHERED_LEAST)
}

impl List {
    /// With nothing in it; all zero.
    pub(crate) const fn new() -> List {
        List { first: AtomicPtr::new(core::ptr::null_mut()), left: Hint::new(0) }
    }

    /// Whether nobody takes anything off it from now on.
    pub(crate) fn leave(&self, left: bool) {
        self.left.store(u32::from(left), Relaxed);
    }

    /// Whether there is nothing in it, as far as can be seen without waiting.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.load(Relaxed).is_null()
    }

    /// Takes all parcels: the first, for [`open`], or null.
    #[inline]
    pub(crate) fn take_all(&self) -> *mut Block {
        self.first.swap(core::ptr::null_mut(), Acquire)
    }

    /// Drops what is in it, unread.
    pub(crate) fn forget(&self) {
        self.first.store(core::ptr::null_mut(), Relaxed);
    }

    /// Puts parcels, linked from `first` to `last`, onto the list, and counts what is in them, in units of [`GATHERED_LEAST`] bytes.
    ///
    /// # Safety
    /// Their blocks are free and in no other list.
    #[inline]
    unsafe fn push(&self, first: *mut Block, last: Parcel, amount: u32) {
        let mut head = self.first.load(Relaxed);
        loop {
            // SAFETY: the caller's contract.
            unsafe { last.link(head) };
            match self.first.compare_exchange_weak(head, first, Release, Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        if self.left.load(Relaxed) != 0 {
            LEFT.fetch_add(amount, Relaxed);
        }
    }

    /// Puts a run of blocks of `size` bytes onto the list.
    ///
    /// # Safety
    /// They are free, in no list, and of one span; one block where links are encoded.
    #[inline]
    pub(crate) unsafe fn push_run(&self, run: Run, size: u32) {
        // SAFETY: the caller's contract.
        unsafe { self.push(run.first, Parcel::of(run, Parcel::room(size)), amount(run.count, size)) };
    }
}

/// What the user of a heap freed of one span of another heap and did not put into an outbox yet.
pub(crate) struct Loose {
    /// `None` if there is nothing.
    span: Cell<Option<&'static Span>>,
    /// The list of the heap that the span belonged to when the first was freed, and the size of a block. The record itself may be in
    /// another processor's cache by the time that these are wanted.
    to: Cell<*const List>,
    size: Cell<u32>,
    first: Cell<*mut Block>,
    last: Cell<*mut Block>,
    count: Cell<u32>,
    /// How many bytes more they may be.
    room: Cell<i32>,
}

impl Loose {
    /// With nothing in it; all zero.
    pub(crate) const fn new() -> Loose {
        Loose {
            span: Cell::new(None),
            to: Cell::new(core::ptr::null()),
            size: Cell::new(0),
            first: Cell::new(core::ptr::null_mut()),
            last: Cell::new(core::ptr::null_mut()),
            count: Cell::new(0),
            room: Cell::new(0),
        }
    }

    /// Adds a block, if the others are of the same span.
    ///
    /// # Safety
    /// The block is free, in no list, and of the span.
    #[inline(always)]
    pub(crate) unsafe fn add(&self, span: &'static Span, block: *mut Block) -> bool {
        let is_same = self.span.get().is_some_and(|other| other.is(span));
        if is_same {
            // SAFETY: what was gathered is free and in no list.
            unsafe { (*self.last.get()).next.set(block) };
            self.last.set(block);
            self.count.set(self.count.get() + 1);
            self.room.set(self.room.get() - Loose::weight(span));
        }
        is_same
    }

    /// Begins with a block of a span that belongs to the heap with this list; there is nothing in it.
    #[inline(always)]
    pub(crate) fn begin(&self, to: *const List, span: &'static Span, block: *mut Block) {
        debug_assert!(self.span.get().is_none());
        self.span.set(Some(span));
        self.to.set(to);
        self.size.set(span.block_size());
        self.first.set(block);
        self.last.set(block);
        self.count.set(1);
        // Where links are encoded, a run is of one block.
        self.room.set(if links::key() == 0 { OF_SPAN - Loose::weight(span) } else { 0 });
    }

    /// How many blocks are in it.
    #[inline(always)]
    pub(crate) fn count(&self) -> u32 {
        self.span.get().map_or(0, |_| self.count.get())
    }

    fn weight(span: &Span) -> i32 {
        (span.block_size() as i32).max(OF_SPAN_LEAST)
    }

    /// Whether it takes no more.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.room.get() <= 0
    }

    /// The list that goes with what is in it; null at first.
    pub(crate) fn to(&self) -> *const List {
        self.to.get()
    }

    /// Puts what is in it into an outbox.
    ///
    /// # Safety
    /// The list lives for ever.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, outbox: &Outbox) {
        if self.span.take().is_some() {
            let run = Run { first: self.first.get(), last: self.last.get(), count: self.count.get() };
            // SAFETY: the caller's contract; what was gathered is free, in no list, and of one span.
            unsafe { outbox.put(self.to.get(), run, self.size.get()) };
        }
    }
}

/// A run in an outbox.
#[derive(Clone, Copy)]
struct Gathered {
    first: *mut Block,
    /// How far the last block lies behind the first.
    last: i32,
    count: u8,
    /// How many words a parcel in the first block has room for.
    room: u8,
}

impl Gathered {
    /// All zero.
    const NONE: Gathered = Gathered { first: core::ptr::null_mut(), last: 0, count: 0, room: 0 };

    fn run(self) -> Run {
        Run { first: self.first, last: behind(self.first, self.last), count: u32::from(self.count) }
    }
}

/// What the user of a heap freed for one other heap and did not send yet.
pub(crate) struct Outbox {
    /// The other heap's list.
    to: Cell<*const List>,
    runs: [Cell<Gathered>; RUNS],
    count: Cell<usize>,
    /// How much is in it, in units of [`GATHERED_LEAST`] bytes.
    gathered: Cell<u32>,
}

impl Outbox {
    /// With nothing in it; all zero.
    pub(crate) const fn new() -> Outbox {
        Outbox {
            to: Cell::new(core::ptr::null()),
            runs: [const { Cell::new(Gathered::NONE) }; RUNS],
            count: Cell::new(0),
            gathered: Cell::new(0),
        }
    }

    /// Puts in free blocks of `size` bytes for the heap with this list, and sends what is gathered for it when it is enough.
    ///
    /// # Safety
    /// The blocks are free, in no list, and of one span that belongs to the heap with this list, which lives for ever; one block where
    /// links are encoded.
    #[inline(always)]
    pub(crate) unsafe fn put(&self, to: *const List, run: Run, size: u32) {
        if !core::ptr::eq(self.to.get(), to) {
            self.dispatch();
            self.to.set(to);
        }
        let count = self.count.get();
        self.runs[count].set(Gathered {
            first: run.first,
            last: far(run.first, run.last) as i32,
            count: run.count as u8,
            room: Parcel::room(size) as u8,
        });
        self.count.set(count + 1);
        self.gathered.set(self.gathered.get() + amount(run.count, size));
        if count + 1 == RUNS || self.gathered.get() >= GATHERED {
            self.dispatch();
        }
    }

    /// Sends what is in it.
    #[inline(never)]
    pub(crate) fn dispatch(&self) {
        let mut left = self.count.replace(0);
        let gathered = self.gathered.replace(0);
        let take = |left: &mut usize| {
            *left -= 1;
            let gathered = self.runs[*left].get();
            // SAFETY: what was put in is free and in no list.
            let mut parcel = unsafe { Parcel::of(gathered.run(), usize::from(gathered.room)) };
            while *left > 0 && parcel.name(self.runs[*left - 1].get().run()) {
                *left -= 1;
            }
            parcel
        };
        if left == 0 {
            return;
        }
        let last = take(&mut left);
        let mut first = last.block;
        while left > 0 {
            let parcel = take(&mut left);
            // SAFETY: it is in no list.
            unsafe { parcel.link(first) };
            first = parcel.block;
        }
        // SAFETY: parcels, linked from the first to the last, and in no other list; lists live for ever.
        let list = unsafe { &*self.to.get() };
        // SAFETY: as above.
        unsafe { list.push(first, last, gathered) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_arena::{Domain, Kind};
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A span cut into blocks of this many bytes.
    fn span(size: u32) -> &'static Span {
        let page = memfold_sys::PAGE_SIZE;
        let pages = (64 * size as usize).div_ceil(page);
        let span = memfold_arena::alloc(Domain::Pinned, pages, page, Kind::Blocks).unwrap();
        span.set_blocks(size, 0);
        span
    }

    /// The addresses of a run's blocks, by their links.
    fn blocks_of(run: Run) -> Vec<usize> {
        let mut blocks = std::vec![run.first as usize];
        while blocks.len() < run.count as usize {
            let last = *blocks.last().unwrap() as *mut Block;
            // SAFETY: blocks of a run are linked.
            blocks.push(unsafe { (*last).next.get() } as usize);
        }
        assert_eq!(blocks.last(), Some(&(run.last as usize)));
        blocks
    }

    proptest! {
        #[test]
        fn what_is_gathered_of_any_spans_in_any_order_arrives_once_in_runs_of_one_span(
            sizes in prop::collection::vec(prop::sample::select(std::vec![16u32, 32, 48, 64, 80, 1024, 8192]), 1..5),
            order in prop::collection::vec((0..4usize, 1..12usize), 1..60),
        ) {
            let spans: Vec<&Span> = sizes.iter().map(|size| span(*size)).collect();
            let (list, loose, outbox) = (List::new(), [Loose::new(), Loose::new()], Outbox::new());
            let list: *const List = &list;
            // SAFETY: the blocks are nobody's, and the list outlives the outbox.
            let put = |loose: &Loose| unsafe { loose.put(&outbox) };
            let (mut cut, mut sent) = (std::vec![0; spans.len()], Vec::new());
            for (number, count) in order {
                let number = number % spans.len();
                let (span, loose) = (spans[number], &loose[number % 2]);
                for _ in 0..count.min(64 - cut[number]) {
                    let block = (span.start() + cut[number] * span.block_size() as usize) as *mut Block;
                    cut[number] += 1;
                    sent.push(block as usize);
                    // SAFETY: the block is nobody's.
                    if !unsafe { loose.add(span, block) } {
                        put(loose);
                        loose.begin(list, span, block);
                    }
                    if loose.is_full() {
                        put(loose);
                    }
                }
            }
            loose.iter().for_each(put);
            outbox.dispatch();
            let mut came = Vec::new();
            // SAFETY: the list outlives this.
            let mut parcel = unsafe { &*list }.take_all();
            while !parcel.is_null() {
                let mut runs = Vec::new();
                // SAFETY: the parcel was just taken off the list.
                parcel = unsafe { open(parcel, |run| runs.push(run)) };
                for run in runs {
                    let blocks = blocks_of(run);
                    let of = |span: &&&Span| (span.start()..span.end()).contains(&blocks[0]);
                    let span = spans.iter().find(of).unwrap();
                    prop_assert!(blocks.iter().all(|block| (span.start()..span.end()).contains(block)));
                    came.extend(blocks);
                }
            }
            sent.sort_unstable();
            came.sort_unstable();
            prop_assert_eq!(sent, came);
            spans.iter().for_each(|span| memfold_arena::free(span, span.pages()));
        }
    }

    #[test]
    fn a_parcel_names_what_it_has_room_for_and_what_is_not_too_far_away() {
        let span = span(64);
        let at = |offset: usize| (span.start() + offset) as *mut Block;
        let block = Run::of_one(at(0));
        // SAFETY: the block is nobody's.
        let mut parcel = unsafe { Parcel::of(block, Parcel::room(64)) };
        let far = |distance: isize| Run::of_one(at(0).wrapping_byte_offset(distance));
        assert!(!parcel.name(far(16 << 30)) && !parcel.name(far(-(16 << 30) - 16)));
        assert!(parcel.name(far((16 << 30) - 16)) && parcel.name(far(-(16 << 30))));
        assert!(parcel.name(Run { first: at(64), last: at(192), count: 3 }));
        assert!((0..10).all(|number| parcel.name(Run::of_one(at(256 + 64 * number)))));
        assert!(!parcel.name(Run::of_one(at(64 * 20))), "14 words fill a block of 64 bytes");
        // SAFETY: as above.
        unsafe { parcel.link(core::ptr::null_mut()) };
        let mut runs = Vec::new();
        // SAFETY: as if it had been on a list.
        assert!(unsafe { open(at(0), |run| runs.push((run.first, run.last, run.count))) }.is_null());
        let far = |distance: isize| at(0).wrapping_byte_offset(distance);
        assert_eq!(
            runs[..2],
            [(16 << 30) - 16, -(16 << 30)].map(|distance| (far(distance), far(distance), 1))
        );
        assert_eq!(runs[2], (at(64), at(192), 3));
        assert_eq!(runs.len(), 14);
        memfold_arena::free(span, span.pages());
    }

    #[test]
    fn a_long_parcel_names_as_much_as_an_outbox_holds() {
        let span = span(1024);
        let at = |number: usize| (span.start() + number * 1024) as *mut Block;
        // SAFETY: the blocks are nobody's.
        let mut parcel = unsafe { Parcel::of(Run::of_one(at(0)), Parcel::room(1024)) };
        let run = |number: usize| Run { first: at(1 + number), last: at(31 + number), count: 31 };
        assert!((0..RUNS).all(|number| parcel.name(run(number))));
        // SAFETY: as above.
        unsafe { parcel.link(at(40)) };
        let mut runs = Vec::new();
        // SAFETY: as if it had been on a list.
        let next = unsafe { open(at(0), |run| runs.push((run.first, run.last, run.count))) };
        assert_eq!(next, at(40));
        assert!((0..RUNS).all(|number| runs[number] == (run(number).first, run(number).last, 31)));
        assert_eq!((runs.len(), runs[RUNS]), (RUNS + 1, (at(0), at(0), 1)));
        memfold_arena::free(span, span.pages());
    }
}
