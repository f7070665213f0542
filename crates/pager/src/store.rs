//! The compressed store: slots as long as what they hold, in blocks of 32 KiB.
//!
//! A page goes to the fullest block that has a hole for it. Where holes come to more than a thirty-second of all, the blocks with the least
//! in them are emptied into the holes of the others. So little is wasted, with few pages as with many: size classes, tried before, cost a tenth
//! of what 40 000 pages took, and a third with 4000, since each has a block that is not full.
//!
//! What it is not: shared by writers. Only the background thread allocates, frees and compacts, through [`Store`], which
//! therefore needs no lock. Others only read a slot that a page entry names ([`Slot::read`]), and hand one
//! that they no longer need to the [`FreeQueue`].
//!
//! Invariants: memory of an empty block goes back to the kernel. What a slot held is overwritten when it is freed.
//!
//! What the program keeps from its children (`MADV_DONTFORK`) is stored apart ([`Stores`]), in segments that no child has. So nobody may
//! look at a slot of that store, nor at the description of its block, in a child. What it keeps from core dumps (`MADV_DONTDUMP`) is in segments that no dump has.

use crate::blocks::{Block, List, BLOCK, BLOCKS};
pub use crate::blocks::{GRAIN, SEGMENT};
use crate::codec::{CodecId, DICTIONARIES};
use crate::free_queue::FreeQueue;
use crate::sabotage::fault_point;
use crate::slot::{may_take, Apart, Header, Slot, HEADER};
use core::ptr::{self, NonNull};
use memfold_sys::{mem, racing, Result, PAGE_SIZE};

/// Grains of the largest slot.
const MOST_GRAINS: usize = (PAGE_SIZE + HEADER).div_ceil(GRAIN);
/// Empty blocks that keep their memory for the next pages.
const SPARE: usize = 1;
/// The part of the memory that may be holes, and how many blocks' worth besides.
const HOLES_ONE_IN: u64 = 32;
const HOLES_BESIDES: u64 = (2 * BLOCK) as u64;
/// Among so many blocks the one is chosen that is emptied.
const CHOICE: usize = 8;

/// Bytes in the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// The lengths of compressed pages.
    pub data: u64,
    /// Memory that holds them: headers, slots rounded up, holes, and what describes blocks.
    pub memory: u64,
}

/// The store itself.
pub struct Store {
    /// Blocks with holes, by the grains of the largest; the last also has those with more.
    open: [List; MOST_GRAINS + 1],
    /// Which of those lists have any, a bit each.
    filled: [u64; MOST_GRAINS / 64 + 1],
    /// Blocks without any slot.
    empty: List,
    spare: usize,
    usage: Usage,
    /// How many slots need each dictionary.
    needed: [u64; DICTIONARIES],
    /// How many slots hold pages as they were.
    whole: u64,
    /// Blocks with slots, and bytes of holes in them.
    blocks: usize,
    holes: u64,
    /// Bytes of holes at which it is tried again to empty a block, after that had brought nothing.
    patience: u64,
    /// Who has none of it.
    apart: Apart,
}

// SAFETY: the blocks belong to the store alone.
unsafe impl Send for Store {}

impl Default for Store {
    fn default() -> Self {
        Store::new()
    }
}

impl Store {
    /// An empty store; takes no memory.
    pub const fn new() -> Store {
        Store::new_apart(Apart { unforked: false, undumped: false })
    }

    const fn new_apart(apart: Apart) -> Store {
        Store {
            open: [List::EMPTY; MOST_GRAINS + 1],
            filled: [0; MOST_GRAINS / 64 + 1],
            empty: List::EMPTY,
            spare: 0,
            usage: Usage { data: 0, memory: 0 },
            needed: [0; DICTIONARIES],
            whole: 0,
            blocks: 0,
            holes: 0,
            patience: 0,
            apart,
        }
    }

    /// Bytes that a slot for `len` bytes of data takes.
    pub fn size_of(len: usize) -> usize {
        grains_of(len) * GRAIN
    }

    /// Bytes in use.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Stores the compressed bytes of a page, or all that it has; `page` is its address. `ENOMEM` when the kernel has no more.
    pub fn put(&mut self, page: usize, codec: CodecId, data: &[u8]) -> Result<Slot> {
        debug_assert!(may_take(codec, data.len()));
        let slot = self.alloc(grains_of(data.len()))?;
        // SAFETY: the slot is ours alone until an entry names it, and long enough.
        unsafe {
            *(slot.addr() as *mut u64) = Header::new(page, codec, data.len(), self.apart).word();
            ptr::copy_nonoverlapping(data.as_ptr(), (slot.addr() + HEADER) as *mut u8, data.len());
        }
        self.usage.data += data.len() as u64;
        if let Some(dictionary) = codec.dictionary() {
            self.needed[dictionary] += 1;
        }
        self.whole += u64::from(codec.is_whole());
        Ok(slot)
    }

    /// Frees a slot that no page entry names, at once.
    ///
    /// # Safety
    /// The slot came from [`Store::put`] and is not in the free queue.
    pub unsafe fn free(&mut self, slot: Slot) {
        // SAFETY: an allocated slot starts with its header.
        let header = unsafe { slot.header() };
        self.usage.data -= header.len() as u64;
        if let Some(dictionary) = header.codec().and_then(CodecId::dictionary) {
            self.needed[dictionary] -= 1;
        }
        self.whole -= u64::from(header.is_whole());
        // SAFETY: the slot is the caller's.
        unsafe { wipe(slot, header) };
        self.release(slot, grains_of(header.len()));
    }

    /// Empties a block with little in it into the holes of others, where there are many, so that its memory can go.
    /// `relocate(page, old, new)` points the page's entry to the copy and says whether it still named `old`. Returns whether there may
    /// be more to do.
    pub fn compact(&mut self, mut relocate: impl FnMut(usize, Slot, Slot) -> bool) -> bool {
        let most = self.usage.memory / HOLES_ONE_IN + HOLES_BESIDES;
        if self.holes <= most.max(self.patience) {
            return false;
        }
        let Some(victim) = self.sparse_block() else { return false };
        // SAFETY: blocks in lists are valid and ours.
        let victim = unsafe { &mut *victim.as_ptr() };
        self.close(victim);
        let (before, blocks) = (victim.live, self.blocks);
        let mut next = victim.slot_from(0);
        while let Some(at) = next {
            let old = Slot::at(victim.base + at * GRAIN);
            // SAFETY: an allocated slot starts with its header. It may lie in the free queue; then no entry
            // names it, `relocate` says so, and the copy is thrown away.
            let header = unsafe { old.header() };
            let grains = grains_of(header.len());
            next = victim.slot_from(at + grains);
            let Ok(copy) = self.alloc(grains) else { break };
            // SAFETY: both slots are as long, the copy is ours alone, and of the old one the link may be written
            // meanwhile, by an atomic.
            unsafe {
                let len = header.len() + HEADER;
                racing::copy(old.addr(), core::slice::from_raw_parts_mut(copy.addr() as *mut u8, len));
            }
            if relocate(header.page(), old, copy) {
                // SAFETY: no entry names it any more, and who has taken one did so before `relocate` swapped it.
                unsafe { wipe(old, header) };
                victim.give_back(old.addr(), grains);
                self.holes += (grains * GRAIN) as u64;
            } else {
                // SAFETY: no entry came to name it.
                unsafe { wipe(copy, header) };
                self.release(copy, grains);
            }
        }
        let moved = victim.live < before;
        if victim.live == 0 {
            self.retire(victim);
        } else {
            // Its last slots are in the free queue, or there was no memory for copies.
            self.open(victim);
        }
        if self.blocks < blocks {
            self.patience = 0;
            return true;
        }
        // What was in it took another block.
        self.patience = if moved { self.holes + BLOCK as u64 } else { 0 };
        false
    }

    /// The one with the least in it of some with large holes.
    fn sparse_block(&self) -> Option<NonNull<Block>> {
        let blocks = self.open.iter().rev().flat_map(List::iter).take(CHOICE);
        // SAFETY: blocks in lists are valid and ours.
        blocks.min_by_key(|block| unsafe { (*block.as_ptr()).live })
    }

    fn block_of(slot: Slot) -> &'static mut Block {
        // SAFETY: only the one owner of the store comes here, and has no reference to the block of a slot that it allocates
        // or frees.
        unsafe { &mut *Block::of(slot.addr()).as_ptr() }
    }

    /// Puts a block into the list for its largest hole; one without any is in none.
    fn open(&mut self, block: &mut Block) {
        let list = block.largest.min(MOST_GRAINS);
        if list != 0 {
            self.open[list].push_front(block);
            self.filled[list / 64] |= 1 << (list % 64);
        }
    }

    /// Takes a block out of the list that it is in.
    fn close(&mut self, block: &mut Block) {
        let list = block.largest.min(MOST_GRAINS);
        if list != 0 {
            self.open[list].remove(block);
            if self.open[list].first().is_none() {
                self.filled[list / 64] &= !(1 << (list % 64));
            }
        }
    }

    /// The fullest block, as far as lists tell, with a hole of so many grains.
    fn block_with(&self, grains: usize) -> Option<NonNull<Block>> {
        let mut word = grains / 64;
        let mut bits = self.filled[word] & u64::MAX << (grains % 64);
        while bits == 0 {
            word += 1;
            bits = *self.filled.get(word)?;
        }
        self.open[word * 64 + bits.trailing_zeros() as usize].first()
    }

    fn alloc(&mut self, grains: usize) -> Result<Slot> {
        let block = match self.block_with(grains) {
            // SAFETY: blocks in lists are valid and ours.
            Some(block) => unsafe { &mut *block.as_ptr() },
            None => self.open_block()?,
        };
        self.close(block);
        let addr = block.take(grains);
        self.open(block);
        self.holes -= (grains * GRAIN) as u64;
        Ok(Slot::at(addr))
    }

    fn release(&mut self, slot: Slot, grains: usize) {
        let block = Store::block_of(slot);
        self.close(block);
        block.give_back(slot.addr(), grains);
        self.holes += (grains * GRAIN) as u64;
        match block.live {
            0 => self.retire(block),
            _ => self.open(block),
        }
    }

    /// An empty block that has memory now, in the list for its one hole.
    fn open_block(&mut self) -> Result<&'static mut Block> {
        if self.empty.first().is_none() {
            self.add_segment()?;
        }
        let Some(block) = self.empty.first() else { return Err(memfold_sys::Errno::ENOMEM) };
        // SAFETY: blocks in lists are valid and ours.
        let block = unsafe { &mut *block.as_ptr() };
        self.empty.remove(block);
        if block.backed {
            self.spare -= 1;
        } else {
            self.usage.memory += BLOCK as u64;
        }
        block.clear();
        self.blocks += 1;
        self.holes += BLOCK as u64;
        self.open(block);
        Ok(block)
    }

    /// Puts an empty block, in no list, among the empty ones.
    fn retire(&mut self, block: &mut Block) {
        self.blocks -= 1;
        self.holes -= BLOCK as u64;
        if self.spare < SPARE {
            self.spare += 1;
            block.backed = true;
            self.empty.push_front(block);
            return;
        }
        block.backed = false;
        self.usage.memory -= BLOCK as u64;
        // SAFETY: nothing in the block is of use any more.
        let _ = unsafe { mem::madvise(block.base, BLOCK, libc::MADV_DONTNEED) };
        self.empty.push_back(block);
    }

    /// Address space for a segment, readable and writable.
    fn take_segment(&mut self) -> Result<usize> {
        let segment = mem::reserve_aligned(SEGMENT, SEGMENT)?;
        // SAFETY: our own, unused mapping.
        unsafe {
            if let Err(e) = mem::mprotect(segment, SEGMENT, libc::PROT_READ | libc::PROT_WRITE) {
                let _ = mem::munmap(segment, SEGMENT);
                return Err(e);
            }
            let _ = mem::madvise(segment, SEGMENT, libc::MADV_NOHUGEPAGE);
            let unforked = fault_point!(UnforkedInherited: self.apart.unforked, else false);
            let undumped = fault_point!(UndumpedDumped: self.apart.undumped, else false);
            for (wanted, advice) in [(unforked, libc::MADV_DONTFORK), (undumped, libc::MADV_DONTDUMP)] {
                if let Some(e) = wanted.then(|| mem::madvise(segment, SEGMENT, advice).err()).flatten() {
                    let _ = mem::munmap(segment, SEGMENT);
                    return Err(e);
                }
            }
        }
        mem::name_range(segment, SEGMENT, c"memfold store");
        Ok(segment)
    }

    fn add_segment(&mut self) -> Result<()> {
        let segment = self.take_segment()?;
        for index in 1..BLOCKS {
            // SAFETY: nobody else has the segment.
            self.empty.push_back(unsafe { Block::describe(segment, index) });
        }
        self.usage.memory += (BLOCKS * core::mem::size_of::<Block>()) as u64;
        Ok(())
    }
}

/// Grains of a slot for `len` bytes of data.
fn grains_of(len: usize) -> usize {
    (len + HEADER).div_ceil(GRAIN)
}

/// The store of a process: what everybody has, and apart from it what children or core dumps have not.
pub struct Stores {
    /// As [`Stores::APART`] has it.
    stores: [Store; 4],
}

impl Default for Stores {
    fn default() -> Self {
        Stores::new()
    }
}

impl Stores {
    /// All empty.
    pub const fn new() -> Stores {
        let [neither, unforked, undumped, both] = Stores::APART;
        Stores {
            stores: [
                Store::new_apart(neither),
                Store::new_apart(unforked),
                Store::new_apart(undumped),
                Store::new_apart(both),
            ],
        }
    }

    /// What is in each.
    const APART: [Apart; 4] = [
        Apart { unforked: false, undumped: false },
        Apart { unforked: true, undumped: false },
        Apart { unforked: false, undumped: true },
        Apart { unforked: true, undumped: true },
    ];

    fn of(&mut self, apart: Apart) -> &mut Store {
        &mut self.stores[usize::from(apart.unforked) + 2 * usize::from(apart.undumped)]
    }

    /// Whether a slot needs the dictionary of that number.
    pub fn needs(&self, dictionary: u8) -> bool {
        self.stores.iter().any(|store| store.needed[usize::from(dictionary)] != 0)
    }

    /// How many pages it holds that are not compressed.
    pub fn whole(&self) -> u64 {
        self.stores.iter().map(|store| store.whole).sum()
    }

    /// Bytes in use.
    pub fn usage(&self) -> Usage {
        self.stores.iter().fold(Usage::default(), |sum, store| Usage {
            data: sum.data + store.usage().data,
            memory: sum.memory + store.usage().memory,
        })
    }

    /// As [`Store::put`]; some have no part of what is kept `apart`.
    pub fn put(&mut self, page: usize, codec: CodecId, data: &[u8], apart: Apart) -> Result<Slot> {
        self.of(apart).put(page, codec, data)
    }

    /// As [`Store::free`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn free(&mut self, slot: Slot) {
        // SAFETY: the caller's contract.
        unsafe { self.of(slot.header().apart()).free(slot) }
    }

    /// Frees what others gave up; how many slots.
    pub fn drain(&mut self, queue: &FreeQueue) -> usize {
        // SAFETY: nobody else has a slot of the queue.
        queue.take(|slot| unsafe { self.free(slot) })
    }

    /// As [`Store::compact`].
    pub fn compact(&mut self, mut relocate: impl FnMut(usize, Slot, Slot) -> bool) -> bool {
        self.stores.iter_mut().any(|store| store.compact(&mut relocate))
    }

    /// Forgets what a forked child has not.
    pub(crate) fn reset_in_child(&mut self) {
        for (store, apart) in self.stores.iter_mut().zip(Stores::APART).filter(|(_, apart)| apart.unforked) {
            *store = Store::new_apart(apart);
        }
    }
}

/// Overwrites what a freed slot held, so that what the program erases does not live on here.
///
/// # Safety
/// The slot has that header, and is the caller's alone.
unsafe fn wipe(slot: Slot, header: Header) {
    if fault_point!(SlotNotWiped: true, else false) {
        // SAFETY: a slot is as long as its header says, and the caller's.
        unsafe { ptr::write_bytes((slot.addr() + HEADER) as *mut u8, 0, header.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::MAX_STORED;
    use proptest::prelude::*;
    use std::{collections::BTreeMap, vec::Vec};

    fn content(page: usize, len: usize) -> Vec<u8> {
        (0..len).map(|i| (page / PAGE_SIZE * 31 + i) as u8).collect()
    }

    #[derive(Clone, Debug)]
    enum Op {
        Put(usize),
        Free(usize),
        Queue(usize),
        Drain,
        Compact,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => (1..=MAX_STORED).prop_map(Op::Put),
            1 => Just(Op::Put(PAGE_SIZE)),
            3 => any::<usize>().prop_map(Op::Free),
            3 => any::<usize>().prop_map(Op::Queue),
            1 => Just(Op::Drain),
            2 => Just(Op::Compact),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_slot_keeps_its_bytes_through_frees_and_compaction(ops in prop::collection::vec(op(), 1..600)) {
            let mut store = Store::new();
            let queue = FreeQueue::default();
            let mut model: BTreeMap<usize, (Slot, usize)> = BTreeMap::new();
            let pick = |model: &BTreeMap<usize, (Slot, usize)>, n: usize| {
                model.keys().nth(n % model.len().max(1)).copied()
            };
            for (number, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Put(len) => {
                        let page = (number + 1) * PAGE_SIZE;
                        let codec = match len {
                            PAGE_SIZE => CodecId::Whole,
                            len if len % 2 == 0 => CodecId::Lz4,
                            _ => CodecId::Zstd,
                        };
                        model.insert(page, (store.put(page, codec, &content(page, len)).unwrap(), len));
                    }
                    Op::Free(n) => if let Some(page) = pick(&model, n) {
                        // SAFETY: the model forgets the slot.
                        unsafe { store.free(model.remove(&page).unwrap().0) };
                    },
                    Op::Queue(n) => if let Some(page) = pick(&model, n) {
                        // SAFETY: the model forgets the slot.
                        unsafe { queue.push(model.remove(&page).unwrap().0) };
                    },
                    // SAFETY: nobody else has a slot of the queue.
                    Op::Drain => { queue.take(|slot| unsafe { store.free(slot) }); }
                    Op::Compact => {
                        store.compact(|page, old, new| match model.get_mut(&page) {
                            Some(entry) if entry.0 == old => { entry.0 = new; true }
                            _ => false,
                        });
                    }
                }
                let mut places: Vec<(u64, u64)> = model
                    .iter()
                    .map(|(_, (slot, len))| (slot.payload(), slot.payload() + grains_of(*len) as u64))
                    .collect();
                places.sort_unstable();
                prop_assert!(places.windows(2).all(|w| w[0].1 <= w[1].0), "two pages in one place");
                prop_assert!(store.whole as usize >= model.values().filter(|(_, len)| *len == PAGE_SIZE).count());
            }
            for (page, (slot, len)) in &model {
                // SAFETY: the model says that the slot is in use.
                let (codec, data) = unsafe { slot.read() }.unwrap();
                prop_assert_eq!(codec.is_whole(), *len == PAGE_SIZE);
                prop_assert!(codec.is_whole() || codec.bits() as usize == len % 2);
                prop_assert_eq!(data, &content(*page, *len)[..]);
            }
        }
    }

    #[test]
    fn little_is_wasted_however_often_pages_come_and_go() {
        for (pages, most) in [(20_000, 5), (2_000, 10)] {
            let mut store = Store::new();
            let mut slots: BTreeMap<usize, Slot> = BTreeMap::new();
            let mut random = 1u64;
            let mut below = |most: usize| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) as usize % most
            };
            let (mut next, mut lengths) = (1, 0);
            for round in 0..30 {
                for n in 0..if round == 0 { pages } else { pages / 10 } {
                    if round != 0 {
                        let page = *slots.range(below(next) * PAGE_SIZE..).chain(&slots).next().unwrap().0;
                        // SAFETY: taken out of the map.
                        unsafe { store.free(slots.remove(&page).unwrap()) };
                        lengths -= 300 + page / PAGE_SIZE % 7 * 100 + page / PAGE_SIZE % 101;
                    }
                    let len = 300 + (next + n) % 7 * 100 + (next + n) % 101;
                    slots.insert(
                        (next + n) * PAGE_SIZE,
                        store.put((next + n) * PAGE_SIZE, CodecId::Lz4, &content(next + n, len)).unwrap(),
                    );
                    lengths += len;
                }
                next += pages;
                while store.compact(|page, _, new| slots.insert(page, new).is_some()) {}
                let memory = store.usage().memory as usize;
                let wasted = memory - lengths;
                assert!(wasted * 100 <= lengths * most, "round {round}: {memory} bytes for {lengths}");
            }
        }
    }

    #[test]
    fn memory_goes_back_when_most_slots_are_freed() {
        let mut store = Store::new();
        let mut slots: BTreeMap<usize, Slot> = (1..=4000)
            .map(|n| (n * PAGE_SIZE, store.put(n * PAGE_SIZE, CodecId::Lz4, &content(n, 1500)).unwrap()))
            .collect();
        let full = store.usage().memory;
        let gone: Vec<usize> =
            slots.keys().copied().filter(|page| !(page / PAGE_SIZE).is_multiple_of(10)).collect();
        for page in gone {
            // SAFETY: taken out of the map.
            unsafe { store.free(slots.remove(&page).unwrap()) };
        }
        while store.compact(|page, old, new| {
            let slot = slots.get_mut(&page).unwrap();
            assert_eq!(*slot, old);
            *slot = new;
            true
        }) {}
        assert!(store.usage().memory < full / 5, "{} of {full}", store.usage().memory);
        for (page, slot) in slots {
            // SAFETY: still in use.
            assert_eq!(unsafe { slot.read() }.unwrap().1, &content(page / PAGE_SIZE, 1500)[..]);
        }
    }
}
