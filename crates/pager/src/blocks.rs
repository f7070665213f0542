//! Blocks of the compressed store, their descriptions, and lists of them.
//!
//! A segment starts with the descriptions of its blocks, in the place of the first; so an address tells where the block that
//! holds it is described. Lists are linked through these.

use core::ptr::NonNull;
use sys::PAGE_SIZE;

/// Slot sizes are multiples of this, and slots are aligned to it.
pub const GRAIN: usize = 64;
/// Bytes of a block.
pub const BLOCK: usize = 8 * PAGE_SIZE;
/// Bytes of a segment, the unit of address space; aligned to its size. Its first block holds the descriptions.
pub const SEGMENT: usize = 4 << 20;
/// Blocks of a segment, the first among them.
pub const BLOCKS: usize = SEGMENT / BLOCK;

/// What describes a block.
pub struct Block {
    /// Where it lies.
    pub base: usize,
    /// The size of its slots, in [`GRAIN`].
    pub class: usize,
    /// How many slots are in use.
    pub live: usize,
    /// Which slots are, or never can be.
    pub used: [u64; BLOCK / GRAIN / 64],
    /// Whether it still has its memory, if it is empty.
    pub backed: bool,
    prev: Option<NonNull<Block>>,
    next: Option<NonNull<Block>>,
}

impl Block {
    /// Bytes of each of its slots.
    pub fn slot_size(&self) -> usize {
        self.class * GRAIN
    }

    /// How many slots it has.
    pub fn capacity(&self) -> usize {
        BLOCK / self.slot_size()
    }

    /// Where the block that holds an address is described. Lists keep this, and not the address of a reference, which would
    /// be of no more use once the reference that it came from is used again.
    pub fn of(addr: usize) -> NonNull<Block> {
        let segment = addr & !(SEGMENT - 1);
        let index = (addr - segment) / BLOCK;
        // SAFETY: each segment starts with its blocks' descriptions, and is not at address 0.
        unsafe { NonNull::new_unchecked((segment as *mut Block).add(index)) }
    }

    /// Describes block `index` of a new segment, as empty and without memory.
    ///
    /// # Safety
    /// The segment is mapped, readable and writable, the caller's alone, and stays. The index is 1 to [`BLOCKS`] - 1.
    pub unsafe fn describe<'a>(segment: usize, index: usize) -> &'a mut Block {
        const { assert!(BLOCKS * core::mem::size_of::<Block>() <= BLOCK) };
        let base = segment + index * BLOCK;
        let used = [0; BLOCK / GRAIN / 64];
        // SAFETY: all descriptions fit into the first block, which is the caller's.
        unsafe {
            let place = Block::of(base).as_ptr();
            place.write(Block { base, class: 1, live: 0, used, backed: false, prev: None, next: None });
            &mut *place
        }
    }
}

/// A doubly linked list of blocks, which belong to the owner of the list.
pub struct List {
    head: Option<NonNull<Block>>,
    tail: Option<NonNull<Block>>,
}

impl List {
    /// No block.
    pub const EMPTY: List = List { head: None, tail: None };

    /// The first block.
    pub fn first(&self) -> Option<NonNull<Block>> {
        self.head
    }

    /// The last block.
    pub fn last(&self) -> Option<NonNull<Block>> {
        self.tail
    }

    /// Puts a block that is in no list before all others.
    pub fn push_front(&mut self, block: &mut Block) {
        block.prev = None;
        block.next = self.head;
        let this = Block::of(block.base);
        match self.head {
            // SAFETY: blocks in lists are valid and their owner's own.
            Some(head) => unsafe { (*head.as_ptr()).prev = Some(this) },
            None => self.tail = Some(this),
        }
        self.head = Some(this);
    }

    /// Puts a block that is in no list behind all others.
    pub fn push_back(&mut self, block: &mut Block) {
        block.next = None;
        block.prev = self.tail;
        let this = Block::of(block.base);
        match self.tail {
            // SAFETY: blocks in lists are valid and their owner's own.
            Some(tail) => unsafe { (*tail.as_ptr()).next = Some(this) },
            None => self.head = Some(this),
        }
        self.tail = Some(this);
    }

    /// Takes a block out of this list.
    pub fn remove(&mut self, block: &mut Block) {
        match block.prev {
            // SAFETY: neighbours in a list are valid and their owner's own.
            Some(prev) => unsafe { (*prev.as_ptr()).next = block.next },
            None => self.head = block.next,
        }
        match block.next {
            // SAFETY: as above.
            Some(next) => unsafe { (*next.as_ptr()).prev = block.prev },
            None => self.tail = block.prev,
        }
        block.prev = None;
        block.next = None;
    }
}
