//! How freed blocks travel to another heap: lists onto which any thread pushes, and what is gathered for them.
//!
//! What it is: a list takes blocks by compare-and-swap and gives all of them at once (a Treiber stack, IBM RJ 5118, 1986; taking all at
//! once avoids the ABA problem). On it are parcels: a block that names the next parcel, and as many further blocks as it has room to
//! name. The one who receives them so reads a few lines that another processor wrote, and not one in each block, each of which says
//! where the next one is. An outbox gathers blocks for one list and pushes several at once.
//!
//! What it is not: a judgement of whose a block is; that is [`crate::remote`]'s.

use crate::bin::Block;
use crate::links;
use crate::sync::{AtomicPtr, Cell};
use core::mem::size_of;
use core::sync::atomic::Ordering::*;

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

/// What other threads freed for one heap: a list of parcels. On a cache line of its own, as others write it.
#[repr(C, align(64))]
pub(crate) struct List(AtomicPtr<Block>);

impl List {
    /// With nothing in it; all zero.
    pub(crate) const fn new() -> List {
        List(AtomicPtr::new(core::ptr::null_mut()))
    }

    /// Whether there is nothing in it, as far as can be seen without waiting.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Relaxed).is_null()
    }

    /// Takes all parcels: the first, for [`unpack`], or null.
    #[inline]
    pub(crate) fn take_all(&self) -> *mut Block {
        self.0.swap(core::ptr::null_mut(), Acquire)
    }

    /// Drops what is in it, unread.
    pub(crate) fn forget(&self) {
        self.0.store(core::ptr::null_mut(), Relaxed);
    }

    /// Puts parcels, linked from `first` to `last`, onto the list.
    ///
    /// # Safety
    /// Their blocks are free and in no other list.
    #[inline]
    unsafe fn push(&self, first: *mut Block, last: *mut Block) {
        let mut head = self.0.load(Relaxed);
        loop {
            // SAFETY: a free block is ours to write until it is on the list.
            unsafe { links::set(last, head) };
            match self.0.compare_exchange_weak(head, first, Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Puts one block onto the list.
    ///
    /// # Safety
    /// The block is free and in no list.
    #[inline]
    pub(crate) unsafe fn push_one(&self, block: *mut Block) {
        // SAFETY: the caller's contract.
        unsafe {
            Parcel::of_one(block);
            self.push(block, block);
        }
    }
}

/// What the user of a heap freed for one other heap and did not send yet.
pub(crate) struct Outbox {
    /// The other heap's list.
    to: Cell<*const List>,
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

    /// Gathers a free block of `size` bytes for the heap with this list, and sends what is gathered for it when it is enough.
    ///
    /// # Safety
    /// The block is free, in no list, and of a span that belongs to the heap with this list, which lives for ever.
    #[inline]
    pub(crate) unsafe fn gather(&self, to: *const List, block: *mut Block, size: u32) {
        if !core::ptr::eq(self.to.get(), to) {
            self.dispatch();
            self.to.set(to);
        }
        let count = self.count.get();
        if count == 0 {
            self.room.set(GATHERED as i32);
        }
        self.blocks[count].set(block);
        self.count.set(count + 1);
        self.room.set(self.room.get() - size.div_ceil(GATHERED_LEAST) as i32);
        if self.room.get() <= 0 {
            self.dispatch();
        }
    }

    /// Sends what is in it.
    pub(crate) fn dispatch(&self) {
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
        // SAFETY: parcels, linked from the first to the last; lists live for ever.
        unsafe { (*self.to.get()).push(first, last) };
    }
}
