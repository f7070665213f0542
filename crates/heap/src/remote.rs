//! Frees from other threads, without a lock.
//!
//! What it is: each heap has a list onto which any thread pushes blocks by compare-and-swap and from which
//! its user takes all at once (a Treiber stack, IBM RJ 5118, 1986; taking all at once avoids the ABA
//! problem). A thread gathers what it frees for another heap and pushes several blocks at once. What it is not: urgent;
//! the user of the heap looks when a bin runs dry, and sends what it gathered by then.
//!
//! On the list are parcels: a block that names the next parcel, and as many further blocks as it has room to name. The one who
//! receives them so reads a few lines that another processor wrote, and not one in each block, each of which says where the
//! next one is.
//!
//! Invariants: a block in a parcel, or gathered for one, counts as used in its span, so the span stays. A span may
//! change hands while a block is under way to the old hands, which then send it on.

use crate::heap::{Block, Heap};
use crate::sync::Cell;
use crate::{links, spans};
use core::mem::size_of;
use core::sync::atomic::Ordering::*;
use memfold_arena::Span;

/// At least so many blocks are looked at in one go, if there are; then it is enough if the class that is
/// asked for has some.
const BATCH: usize = 64;

/// Blocks gathered for another heap: at most so many, and fewer of those above [`GATHERED_LEAST`] bytes.
const GATHERED: usize = 32;
const GATHERED_LEAST: u32 = 512;

/// How a parcel begins; the names of its other blocks follow.
#[repr(C)]
struct Parcel {
    /// The next parcel, by the rules of [`links`].
    link: Block,
    count: Cell<usize>,
}

impl Parcel {
    /// The name of its other block with this number.
    ///
    /// # Safety
    /// The block that the parcel lies in is free and has room for so many.
    unsafe fn name(parcel: *mut Block, number: usize) -> &'static Cell<*mut Block> {
        // SAFETY: the caller's contract; blocks are aligned to words.
        unsafe { &*parcel.cast::<Parcel>().add(1).cast::<Cell<*mut Block>>().add(number) }
    }

    /// How many other blocks a parcel in this block can name.
    fn room(block: *mut Block) -> usize {
        let bytes = memfold_arena::lookup(block as usize).map_or(0, |span| span.block_size() as usize);
        bytes.saturating_sub(size_of::<Parcel>()) / size_of::<Cell<*mut Block>>()
    }

    /// Makes a parcel of `block` that names no other.
    ///
    /// # Safety
    /// The block is free and in no list.
    unsafe fn of_one(block: *mut Block) {
        // SAFETY: the caller's contract; no block is smaller than this.
        unsafe { (*block.cast::<Parcel>()).count.set(0) };
    }
}

/// Takes a parcel apart: calls `each` for each of its blocks. Returns the next parcel.
///
/// # Safety
/// The parcel was just taken off a list.
pub(crate) unsafe fn unpack(parcel: *mut Block, mut each: impl FnMut(*mut Block)) -> *mut Block {
    // SAFETY: the blocks of a parcel are free, and `push` linked it.
    let (next, count) = unsafe { (links::get(parcel), (*parcel.cast::<Parcel>()).count.get()) };
    // Where links are encoded, nothing else that a program could overwrite is believed; parcels are of one block then.
    let count = if links::key() == 0 { count } else { 0 };
    for number in 0..count {
        // SAFETY: as above; the parcel's own block comes last, so its names are whole until then.
        each(unsafe { Parcel::name(parcel, number) }.get());
    }
    each(parcel);
    next
}

/// What the user of a heap freed for one other heap and did not send yet.
pub(crate) struct Outbox {
    to: Cell<*const Heap>,
    blocks: [Cell<*mut Block>; GATHERED],
    count: Cell<usize>,
    /// How much more it may take, in units of [`GATHERED_LEAST`] bytes.
    room: Cell<i32>,
}

impl Outbox {
    /// With nothing in it; all zero.
    pub(crate) const fn new() -> Outbox {
        Outbox {
            to: Cell::new(core::ptr::null()),
            blocks: [const { Cell::new(core::ptr::null_mut()) }; GATHERED],
            count: Cell::new(0),
            room: Cell::new(0),
        }
    }

    fn dispatch(&self) {
        let mut left = self.count.replace(0);
        if left == 0 {
            return;
        }
        let take = |left: &mut usize| {
            *left -= 1;
            self.blocks[*left].get()
        };
        let last = take(&mut left);
        let mut first: *mut Block = core::ptr::null_mut();
        let mut parcel = last;
        loop {
            let count = Parcel::room(parcel).min(left);
            // SAFETY: gathered blocks are free and in no list, and this one has the room.
            unsafe {
                (0..count).for_each(|number| Parcel::name(parcel, number).set(take(&mut left)));
                (*parcel.cast::<Parcel>()).count.set(count);
                if !first.is_null() {
                    links::set(parcel, first);
                }
            }
            first = parcel;
            if left == 0 {
                break;
            }
            parcel = take(&mut left);
        }
        // SAFETY: parcels, linked from the first to the last; owners are heaps, which live for ever.
        unsafe { push(self.to.get(), first, last) };
    }
}

/// Puts parcels, linked from `first` to `last`, onto a heap's list.
///
/// # Safety
/// Their blocks are free and in no other list; `owner` is a heap.
unsafe fn push(owner: *const Heap, first: *mut Block, last: *mut Block) {
    // SAFETY: heaps live for ever.
    let list = unsafe { &(*owner).remote.0 };
    let mut head = list.load(Relaxed);
    loop {
        // SAFETY: a free block is ours to write until it is on the list.
        unsafe { links::set(last, head) };
        match list.compare_exchange_weak(head, first, Release, Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Sends a free block to the heap that its span belongs to.
///
/// # Safety
/// The block is free, in no list, and of a span that belongs to a heap.
#[cold]
pub(crate) unsafe fn send(span: &Span, block: *mut Block) {
    // SAFETY: the caller's contract.
    unsafe {
        Parcel::of_one(block);
        push(Heap::owner_of(span), block, block);
    }
}

/// Gathers a free block for the heap that its span belongs to, and sends what is gathered for it when it is enough.
///
/// # Safety
/// As for [`send`]; the calling thread uses `heap`, which is no sentinel.
pub(crate) unsafe fn gather(heap: &'static Heap, span: &Span, block: *mut Block) {
    let owner = Heap::owner_of(span);
    let outbox = &heap.outboxes[owner as usize / size_of::<Heap>() % heap.outboxes.len()];
    if !core::ptr::eq(outbox.to.get(), owner) {
        outbox.dispatch();
        outbox.to.set(owner);
    }
    let count = outbox.count.get();
    if count == 0 {
        outbox.room.set(GATHERED as i32);
    }
    outbox.blocks[count].set(block);
    outbox.count.set(count + 1);
    outbox.room.set(outbox.room.get() - span.block_size().div_ceil(GATHERED_LEAST) as i32);
    if outbox.room.get() <= 0 {
        outbox.dispatch();
    }
}

/// Sends all that the user of the heap gathered for others.
pub(crate) fn dispatch(heap: &Heap) {
    heap.outboxes.iter().for_each(Outbox::dispatch);
}

/// Whether somebody sent something to the heap.
pub(crate) fn is_waiting(heap: &Heap) -> bool {
    !heap.pending.get().is_null() || !heap.remote.0.load(Relaxed).is_null()
}

/// Takes blocks that others sent: into the bins that have room, where they count as used as they did on the list, else back
/// to their spans. With a `wanted` class only until there is some of it, without all of them, and to their spans.
pub(crate) fn drain(heap: &'static Heap, wanted: Option<usize>) {
    let mut seen = 0;
    loop {
        let parcel = match heap.pending.get() {
            parcel if !parcel.is_null() => parcel,
            _ => heap.remote.0.swap(core::ptr::null_mut(), Acquire),
        };
        if parcel.is_null() {
            return;
        }
        // SAFETY: the parcel was just taken off the list.
        let next = unsafe {
            unpack(parcel, |block| {
                seen += 1;
                receive(heap, wanted.is_some(), block)
            })
        };
        heap.pending.set(next);
        let is_there = |class: usize| heap.bin(class).has_some() || heap.partial[class].first.get().is_some();
        if seen >= BATCH && wanted.is_some_and(is_there) {
            return;
        }
    }
}

/// Puts a block that was sent where it can be taken from, `into_bins` if one has room.
///
/// # Safety
/// The block is free and in no list.
#[inline]
unsafe fn receive(heap: &'static Heap, into_bins: bool, block: *mut Block) {
    let Some(span) = memfold_arena::lookup(block as usize) else { return };
    if into_bins && heap.owns(span) && heap.bin_of(span).has_room() {
        // SAFETY: the caller's contract; the block's span is this heap's and of this bin's class.
        unsafe { heap.bin_of(span).push(block) };
    } else if heap.has(span) {
        // SAFETY: the caller's contract; the span is this heap's.
        unsafe { spans::give(heap, span, block) };
    } else {
        // SAFETY: the caller's contract; the span went to another heap.
        unsafe { send(span, block) };
    }
}
