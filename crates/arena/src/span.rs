//! The record of a run of pages: handed out as a span, or free.
//!
//! What it is: 128 bytes, out of line and pinned, so that neither a free nor a search ever touches the pages
//! themselves. The first cache line belongs to the layer above (what a free needs is all in it), the second
//! to the arena.
//!
//! Invariants: records are never unmapped, so a stale pointer to one can be read safely and be recognised
//! by its range. The fields of the first line are touched by the owner of a span only (the atomics by
//! anybody), those of the second by whoever holds the domain's lock, or by the owner of a handed-out span
//! for `start`, `pages`, `next` and `prev`.

use crate::chunk::Chunk;
pub use crate::kind::{Domain, Kind};
use crate::sync::{AtomicPtr, Cell, Ordering::*};
// The numbers order nothing, so the models need not know of them.
use core::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, AtomicU8};

/// A run of pages. See the module's text for who may touch what.
#[repr(C, align(64))]
pub struct Span {
    /// The heap that the span belongs to, null for none. Opaque to the arena, which clears it on hand-out.
    pub owner: AtomicPtr<u8>,
    /// First of the free blocks that lie in the span itself.
    pub free: Cell<*mut u8>,
    /// Size of a block in bytes.
    block_size: AtomicU32,
    /// Size class of the blocks.
    class: AtomicU8,
    kind: AtomicU8,
    domain: Cell<Domain>,
    /// Whether a list of the layer above holds the span.
    pub linked: Cell<bool>,
    /// Blocks that are not in the span: with the program, or in a cache of its heap.
    used: AtomicU32,
    /// Length of the list `free`.
    pub free_count: Cell<u32>,
    /// Blocks that were ever cut; the rest of the span is untouched.
    /// Written by the owner only.
    pub carved: AtomicU32,
    /// Blocks that fit.
    pub capacity: Cell<u32>,
    /// Which heaps may keep blocks of the span though it is not theirs, 0 for none. As opaque, and cleared, as the owner.
    pub shelf: AtomicU8,
    /// Blocks of the span that are sampled. As opaque, and cleared, as the owner.
    pub samples: AtomicU16,
    /// Blocks that were freed while their pages were away from memory. As opaque, and cleared, as the owner.
    pub dormant: AtomicU32,

    start: Cell<usize>,
    pages: Cell<usize>,
    pub(crate) chunk: Cell<Option<&'static Chunk>>,
    /// The next in whichever list holds the span.
    pub next: Cell<Option<&'static Span>>,
    /// The previous one in that list.
    pub prev: Cell<Option<&'static Span>>,
    pub(crate) older: Cell<Option<&'static Span>>,
    pub(crate) newer: Cell<Option<&'static Span>>,
    /// Pages of a free run that may be resident; of one that was just handed out, those that were so.
    pub(crate) dirty: Cell<u32>,
    /// When a free run was put in the lists, in ticks of [`crate::supply`].
    pub(crate) freed: Cell<u16>,
    zero: Cell<bool>,
    reused: Cell<bool>,
    /// How many slots the table has room for.
    room_for_slots: Cell<u32>,
    /// Opaque to the arena.
    epoch: AtomicU32,
    /// A byte and a bit for each slot, out of line; null until the first use, then the record's for ever. The layer above says
    /// what they mean.
    slots: AtomicPtr<u8>,
}

/// The most slots that a table can have room for.
pub const MOST_SLOTS: usize = 4096;

/// Up to so many get a short table.
const FEW_SLOTS: usize = 512;

const _: () = assert!(core::mem::size_of::<Span>() == 128);

// SAFETY: the module's text says which thread may touch which field, and when.
unsafe impl Sync for Span {}

impl Span {
    pub(crate) fn blank() -> Span {
        Span {
            owner: AtomicPtr::new(core::ptr::null_mut()),
            free: Cell::new(core::ptr::null_mut()),
            block_size: AtomicU32::new(0),
            class: AtomicU8::new(0),
            kind: AtomicU8::new(Kind::Unused as u8),
            domain: Cell::new(Domain::Managed),
            linked: Cell::new(false),
            used: AtomicU32::new(0),
            free_count: Cell::new(0),
            carved: AtomicU32::new(0),
            capacity: Cell::new(0),
            shelf: AtomicU8::new(0),
            samples: AtomicU16::new(0),
            dormant: AtomicU32::new(0),
            start: Cell::new(0),
            pages: Cell::new(0),
            chunk: Cell::new(None),
            next: Cell::new(None),
            prev: Cell::new(None),
            older: Cell::new(None),
            newer: Cell::new(None),
            dirty: Cell::new(0),
            freed: Cell::new(0),
            zero: Cell::new(false),
            reused: Cell::new(false),
            room_for_slots: Cell::new(0),
            epoch: AtomicU32::new(0),
            slots: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// Describes the run `(start, pages)` of `chunk`.
    pub(crate) fn describe(
        &self,
        domain: Domain,
        chunk: Option<&'static Chunk>,
        start: usize,
        pages: usize,
        kind: Kind,
    ) {
        self.owner.store(core::ptr::null_mut(), Relaxed);
        self.shelf.store(0, Relaxed);
        self.samples.store(0, Relaxed);
        self.dormant.store(0, Relaxed);
        self.free.set(core::ptr::null_mut());
        self.domain.set(domain);
        self.linked.set(false);
        self.chunk.set(chunk);
        self.start.set(start);
        self.pages.set(pages);
        self.reused.set(false);
        self.next.set(None);
        self.prev.set(None);
        self.set_kind(kind);
    }

    pub(crate) fn resize(&self, start: usize, pages: usize) {
        self.start.set(start);
        self.pages.set(pages);
    }

    /// Address of the first byte.
    #[inline]
    pub fn start(&self) -> usize {
        self.start.get()
    }

    /// Length in pages.
    #[inline]
    pub fn pages(&self) -> usize {
        self.pages.get()
    }

    /// Length in bytes.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.pages.get() * memfold_sys::PAGE_SIZE
    }

    /// Address of the first byte after it.
    #[inline]
    pub fn end(&self) -> usize {
        self.start() + self.bytes()
    }

    /// Its state.
    #[inline]
    pub fn kind(&self) -> Kind {
        match self.kind.load(Relaxed) {
            1 => Kind::Free,
            2 => Kind::Blocks,
            3 => Kind::Large,
            4 => Kind::Busy,
            _ => Kind::Unused,
        }
    }

    /// Makes a run of kind `from` one of kind `to`. False if it is none, or another thread was faster.
    pub(crate) fn change_kind(&self, from: Kind, to: Kind) -> bool {
        // Relaxed: what is in it its user hands over with the address.
        self.kind.compare_exchange(from as u8, to as u8, Relaxed, Relaxed).is_ok()
    }

    pub(crate) fn set_kind(&self, kind: Kind) {
        self.kind.store(kind as u8, Relaxed);
    }

    /// Says what a handed-out span is cut into: blocks of `block_size` bytes, of size class `class`, none of them used.
    pub fn set_blocks(&self, block_size: u32, class: u8) {
        // Relaxed, here and below: one thread writes, and those that only count may see it late.
        self.block_size.store(block_size, Relaxed);
        self.class.store(class, Relaxed);
        self.used.store(0, Relaxed);
    }

    /// For a block of whole pages: how many of its bytes nobody asked for.
    pub fn slack(&self) -> usize {
        self.block_size.load(Relaxed) as usize
    }

    /// Says how many those are.
    pub fn set_slack(&self, bytes: usize) {
        self.block_size.store(bytes as u32, Relaxed);
    }

    /// Size of a block in bytes.
    #[inline(always)]
    pub fn block_size(&self) -> u32 {
        self.block_size.load(Relaxed)
    }

    /// Size class of the blocks.
    #[inline(always)]
    pub fn class(&self) -> u8 {
        self.class.load(Relaxed)
    }

    /// Blocks that are not in the span: with the program, or in a cache of its heap.
    #[inline(always)]
    pub fn used(&self) -> u32 {
        self.used.load(Relaxed)
    }

    /// For the owner: changes that number.
    #[inline(always)]
    pub fn set_used(&self, used: u32) {
        self.used.store(used, Relaxed);
    }

    /// Which kind of memory it lies in.
    #[inline]
    pub fn domain(&self) -> Domain {
        self.domain.get()
    }

    /// Whether every byte was zero when the span was handed out.
    #[inline]
    pub fn zero(&self) -> bool {
        self.zero.get()
    }

    pub(crate) fn set_zero(&self, zero: bool) {
        self.zero.set(zero);
    }

    /// In which of the process's lives the layer above began to use the span.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.epoch.load(Relaxed)
    }

    /// Says which.
    pub fn set_epoch(&self, epoch: u32) {
        self.epoch.store(epoch, Relaxed);
    }

    /// Gives the span a table for `slots` slots, at most [`MOST_SLOTS`], all zero. False if there is no memory for it.
    pub fn clear_slots(&self, slots: usize) -> bool {
        debug_assert!(slots <= MOST_SLOTS);
        if self.room_for_slots.get() < slots as u32 {
            let room = if slots <= FEW_SLOTS { FEW_SLOTS } else { MOST_SLOTS };
            let Some(bytes) = crate::pinned_bytes(room + room / 8, 64) else { return false };
            self.slots.store(bytes, Release);
            self.room_for_slots.set(room as u32);
            return true;
        }
        let room = self.room_for_slots.get() as usize;
        let words = slots.div_ceil(64);
        self.states()[..slots].iter().for_each(|state| state.store(0, Relaxed));
        self.open_words(room)[..words].iter().for_each(|word| word.store(0, Relaxed));
        true
    }

    /// A byte for each slot that the table has room for; none if there is no table.
    #[inline]
    pub fn states(&self) -> &'static [AtomicU8] {
        let table = self.slots.load(Acquire);
        if table.is_null() {
            return &[];
        }
        // SAFETY: pinned bytes that nobody gives back, at least so many; any byte is valid.
        unsafe { core::slice::from_raw_parts(table.cast(), self.room_for_slots.get() as usize) }
    }

    /// For the owner: a bit for each slot that the table has room for; none if there is no table.
    #[inline]
    pub fn open(&self) -> &'static [AtomicU64] {
        if self.slots.load(Relaxed).is_null() {
            return &[];
        }
        self.open_words(self.room_for_slots.get() as usize)
    }

    fn open_words(&self, room: usize) -> &'static [AtomicU64] {
        // SAFETY: behind the bytes of the states lie an eighth as many, pinned, aligned to words, and nobody gives them back.
        unsafe { core::slice::from_raw_parts(self.slots.load(Relaxed).add(room).cast(), room / 64) }
    }

    /// For the owner of a span without slots: a bit for each of `count` blocks, all zero at first; who sets any clears it before the span
    /// goes back. `None` if there is no memory for them.
    pub fn marks(&self, count: usize) -> Option<&'static [AtomicU64]> {
        debug_assert!(self.room_for_slots.get() == 0);
        let words = count.div_ceil(64);
        let mut table: *mut AtomicU64 = self.slots.load(Relaxed).cast();
        // SAFETY: the first word of the table, if there is one, says how many follow.
        if table.is_null() || unsafe { (*table).load(Relaxed) } < words as u64 {
            let room = (words + 1).next_power_of_two();
            table = crate::pinned_bytes(room * size_of::<u64>(), align_of::<u64>())?.cast();
            // SAFETY: as long, zero, and nobody else has it yet.
            unsafe { (*table).store(room as u64 - 1, Relaxed) };
            self.slots.store(table.cast(), Release);
        }
        // SAFETY: pinned, and nobody gives them back; so many words follow the first.
        Some(unsafe { core::slice::from_raw_parts(table.add(1), words) })
    }

    /// Whether [`Span::marks`] has a table.
    pub fn has_marks(&self) -> bool {
        !self.slots.load(Relaxed).is_null()
    }

    /// For the owner: the span is to serve again without having gone back. Its bytes may be anything.
    pub fn set_reused(&self) {
        self.zero.set(false);
        self.reused.set(true);
    }

    /// Whether it served before, since it was handed out.
    pub fn reused(&self) -> bool {
        self.reused.get()
    }

    /// Whether this is the very same record.
    #[inline]
    pub fn is(&self, other: &Span) -> bool {
        core::ptr::eq(self, other)
    }
}
