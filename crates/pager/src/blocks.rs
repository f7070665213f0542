//! Blocks of the compressed store, their descriptions, and lists of them.
//!
//! A segment starts with the descriptions of its blocks, in the place of the first; so an address tells where the block that
//! holds it is described. Lists are linked through these.
//!
//! A block is full of slots and holes, from its beginning to its end. Each starts with a word that tells how long it is: a slot with the
//! header of the page that it holds, a hole with its length and where the next one of the block is. No two holes touch.

use core::ptr::NonNull;
use memfold_sys::PAGE_SIZE;

/// Slot sizes are multiples of this, and slots are aligned to it.
pub const GRAIN: usize = 16;
/// Bytes of a block.
pub const BLOCK: usize = 8 * PAGE_SIZE;
/// Bytes of a segment, the unit of address space; aligned to its size. Its first block holds the descriptions.
pub const SEGMENT: usize = 4 << 20;
/// Blocks of a segment, the first among them.
pub const BLOCKS: usize = SEGMENT / BLOCK;
/// Grains of a block.
const GRAINS: usize = BLOCK / GRAIN;

/// What describes a block.
pub struct Block {
    /// Where it lies.
    pub base: usize,
    /// Grains in use.
    pub live: usize,
    /// Grains of its largest hole.
    pub largest: usize,
    /// The place of its first hole, in grains; [`GRAINS`] for none.
    first: usize,
    /// Whether it still has its memory, if it is empty.
    pub backed: bool,
    prev: Option<NonNull<Block>>,
    next: Option<NonNull<Block>>,
}

/// The word that a hole starts with: its length in grains (12 bits), a number that no codec has (4 bits), and the place of the next
/// hole of the block in grains (16 bits).
#[derive(Clone, Copy)]
struct Hole(u64);

impl Hole {
    const MARK: u64 = 0xF;

    fn new(len: usize, next: usize) -> Hole {
        const { assert!(GRAINS < 1 << 12) };
        Hole((next as u64) << 16 | Hole::MARK << 12 | len as u64)
    }

    /// From the word that a slot or a hole starts with.
    fn from_word(word: u64) -> Option<Hole> {
        (word >> 12 & 0xF == Hole::MARK).then_some(Hole(word))
    }

    fn len(self) -> usize {
        (self.0 & 0xFFF) as usize
    }

    fn next(self) -> usize {
        (self.0 >> 16 & 0xFFFF) as usize
    }
}

impl Block {
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
        // SAFETY: all descriptions fit into the first block, which is the caller's.
        unsafe {
            let place = Block::of(base).as_ptr();
            place.write(Block {
                base,
                live: 0,
                largest: 0,
                first: GRAINS,
                backed: false,
                prev: None,
                next: None,
            });
            &mut *place
        }
    }

    fn word(&self, at: usize) -> *mut u64 {
        debug_assert!(at < GRAINS);
        (self.base + at * GRAIN) as *mut u64
    }

    /// The hole at a place where a slot or a hole starts, or the block ends.
    fn hole(&self, at: usize) -> Option<Hole> {
        // SAFETY: a word of this block, which has memory.
        (at < GRAINS).then(|| Hole::from_word(unsafe { *self.word(at) }))?
    }

    /// Makes `len` grains at `at` a hole, which `before`, a hole or none, leads to.
    fn put_hole(&mut self, before: Option<usize>, at: usize, len: usize, next: usize) {
        // SAFETY: nobody's memory within this block.
        unsafe { *self.word(at) = Hole::new(len, next).0 };
        self.link(before, at);
    }

    fn link(&mut self, before: Option<usize>, to: usize) {
        match before.and_then(|at| Some((at, self.hole(at)?))) {
            // SAFETY: a hole of this block.
            Some((at, hole)) => unsafe { *self.word(at) = Hole::new(hole.len(), to).0 },
            None => self.first = to,
        }
    }

    /// The holes by address, with their lengths.
    fn holes(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let mut at = self.first;
        core::iter::from_fn(move || {
            let hole = self.hole(at)?;
            let this = (at, hole.len());
            // By address, so that this ends whatever stands there.
            at = if hole.next() > at { hole.next() } else { GRAINS };
            Some(this)
        })
    }

    /// Makes an empty block, which has memory, one hole.
    pub fn clear(&mut self) {
        self.live = 0;
        self.largest = GRAINS;
        self.put_hole(None, 0, GRAINS, GRAINS);
    }

    /// Takes a slot of so many grains out of the smallest hole that has them, and returns its address. There is such a hole.
    pub fn take(&mut self, grains: usize) -> usize {
        debug_assert!(grains <= self.largest);
        let (mut best, mut before, mut last) = ((GRAINS, usize::MAX), None, None);
        for (at, len) in self.holes() {
            if len >= grains && len < best.1 {
                (best, before) = ((at, len), last);
            }
            last = Some(at);
        }
        let (at, len) = best;
        let next = self.hole(at).map_or(GRAINS, Hole::next);
        if len > grains {
            self.put_hole(before, at + grains, len - grains, next);
        } else {
            self.link(before, next);
        }
        self.live += grains;
        if len == self.largest {
            self.largest = self.holes().map(|hole| hole.1).max().unwrap_or(0);
        }
        self.base + at * GRAIN
    }

    /// Makes the slot of so many grains at the address a part of a hole.
    pub fn give_back(&mut self, addr: usize, grains: usize) {
        let at = (addr - self.base) / GRAIN;
        let before = self.holes().take_while(|hole| hole.0 < at).last();
        debug_assert!(before.is_none_or(|(start, len)| start + len <= at), "slot freed twice");
        let next =
            before.map_or(Some(self.first), |(start, _)| Some(self.hole(start)?.next())).unwrap_or(GRAINS);
        debug_assert!(at + grains <= next, "slot freed twice");
        // A hole that begins where this one ends becomes a part of it...
        let (end, next) = match self.hole(next) {
            Some(hole) if next == at + grains => (next + hole.len(), hole.next()),
            _ => (at + grains, next),
        };
        // ...and it of one that ends where it begins.
        let len = match before {
            Some((start, len)) if start + len == at => {
                // SAFETY: a hole of this block.
                unsafe { *self.word(start) = Hole::new(end - start, next).0 };
                end - start
            }
            _ => {
                self.put_hole(before.map(|hole| hole.0), at, end - at, next);
                end - at
            }
        };
        self.live -= grains;
        self.largest = self.largest.max(len);
    }

    /// Where the first slot at or behind place `at` lies, in grains.
    pub fn slot_from(&self, at: usize) -> Option<usize> {
        let at = at + self.hole(at).map_or(0, Hole::len);
        (at < GRAINS).then_some(at)
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

    /// The blocks in their order.
    pub fn iter(&self) -> impl Iterator<Item = NonNull<Block>> + '_ {
        // SAFETY: blocks in lists are valid and their owner's own.
        core::iter::successors(self.head, |block| unsafe { (*block.as_ptr()).next })
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
