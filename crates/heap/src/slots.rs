//! The slots of a checked span: what each is, out of line, and the bytes that say whether it was written to when it should not.
//!
//! What it is: a state for each slot and a bit for those that may be handed out, in the span's table, out of reach of a program that
//! misses its block; a canary behind what was asked for, up to the slot's end; and zeros in slots that are free. A program that writes
//! beyond the end of its block changes its canary; one that writes before its start changes that of the slot before, or zeros of
//! it. What it is not: a list of anything; who has which slot is [`crate::spans`]' and [`crate::checked`]'s affair.
//!
//! Invariants: who changes a state from [`LIVE`] or [`CLEAN`] to [`BUSY`] has the slot alone, and is the only one to write to it; so has a
//! span's owner those that may be handed out, and [`NEW`] ones. A slot is
//! `CLEAN` only while its zeros are zeros. Of long slots only the ends are held to that ([`WHOLE`]). The first slots of a span are never
//! handed out: they are what lies before the first block.

use crate::ahead;
use crate::bin::Block;
use crate::heap::Heap;
use crate::{classes, links, misuse};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use memfold_arena::Span;
use memfold_sys::PAGE_SIZE;

/// Free, of a span that was zero, and not handed out yet, so that its pages may not be there. Who read one of those before it is written to would have the
/// kernel map its page of zeros there, and another one in its place at the write, for which it interrupts each CPU that the process runs on.
const NEW: u8 = 4;
/// Handed to the program; its canary is whole.
const LIVE: u8 = 1;
/// Free, and zero where [`wipe`] makes it so.
const CLEAN: u8 = 2;
/// Between the two, or on its way to another heap.
const BUSY: u8 = 3;

/// Bytes of the canary's last word, which holds how long the canary is; no block has less behind it.
pub(crate) const TAIL: usize = 8;

/// Slots up to so many bytes are zero as a whole when they are free; a program's page and its canary fit.
pub(crate) const WHOLE: usize = 5120;

/// Of longer slots, so many bytes at each end are.
const END: usize = 128;

/// Bytes behind what was asked for that a canary has before its last word, at most; what lies between is only room.
const CANARY: usize = 32;

/// A write that misses its block by no more than this hits a canary, or a free slot that is looked at when the block is freed.
const REACH: usize = 32;

/// So many slots at a time may be handed out, so that a program with few blocks of a class has few pages of them; and that many are
/// left to choose from where there are so many.
const BATCH: usize = 16;
const CHOICE: u32 = 8;

/// Bytes at the beginning of a slot that are fetched before it is handed out; the processor itself finds out that others follow.
const AHEAD: usize = 512;

/// How often a slot is waited for.
const WAITS: u32 = 100_000;

/// How many times the process and those that it came from were forked. What other threads of the parent had in hand when it was copied
/// is as nobody left it, so in spans from before nobody looks beside his own block.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// For a forked child: see [`EPOCH`].
pub(crate) fn begin_anew() {
    EPOCH.store(EPOCH.load(Relaxed).wrapping_add(1), Relaxed);
}

/// Whether an owner's word says that the span is checked.
#[inline]
pub(crate) fn is_checked(span: &Span) -> bool {
    span.owner.load(Relaxed) as usize & Heap::TAG != 0
}

/// How many of a span's first slots are never handed out.
#[inline]
fn reserved(room: usize) -> usize {
    1 + usize::from(room < REACH)
}

/// Makes every slot of a span free, and none of them one that may be handed out. `zero` says that the span is known to be so. False if
/// there is no memory for the table.
pub(crate) fn prepare(span: &Span, zero: bool) -> bool {
    let room = span.block_size() as usize;
    let all = span.bytes() / room;
    if !span.clear_slots(all) {
        return false;
    }
    span.set_epoch(EPOCH.load(Relaxed));
    for (slot, state) in span.states()[..all].iter().enumerate() {
        if !zero {
            wipe(span.start() + slot * room, room);
        }
        // Those that are never handed out are only read.
        let is_new = zero && slot >= reserved(room);
        // Relaxed: nobody knows of the span yet.
        state.store(if is_new { NEW } else { CLEAN }, Relaxed);
    }
    span.capacity.set((all - reserved(room)) as u32);
    true
}

/// Has the pages of some bytes of a new slot be there, without reading them first.
#[cold]
fn touch(start: usize, len: usize) {
    let pages = (start.next_multiple_of(PAGE_SIZE)..start + len).step_by(PAGE_SIZE);
    for word in core::iter::once(start).chain(pages) {
        // SAFETY: the slot is free, aligned to words, and the caller's.
        let word = unsafe { AtomicU64::from_ptr(word as *mut u64) };
        // Nothing is found here, only by who looks next.
        match word.swap(0, Relaxed) {
            0 => {}
            written => word.store(written, Relaxed),
        }
    }
}

/// The slot that a block of a checked span lies in; `None` if there is no start of a block at that address.
#[inline]
pub(crate) fn slot_of(span: &Span, block: usize) -> Option<usize> {
    let (offset, room) = (block - span.start(), span.block_size() as usize);
    let slot = classes::blocks_before(span.class() as usize, offset);
    let last = reserved(room) + span.capacity.get() as usize;
    (offset == slot * room && (reserved(room)..last).contains(&slot)).then_some(slot)
}

#[inline]
fn set_open(span: &Span, slot: usize) {
    let word = &span.open()[slot / 64];
    word.store(word.load(Relaxed) | 1 << (slot % 64), Relaxed);
    set_words(span, words(span) | 1 << (slot / 64));
}

/// A bit for each word of [`Span::open`] that has one. No list of free blocks begins in a checked span, so it stands where others have that.
#[inline]
fn words(span: &Span) -> u64 {
    span.free.get().addr() as u64
}

#[inline]
fn set_words(span: &Span, words: u64) {
    span.free.set(core::ptr::without_provenance_mut(words as usize));
}

/// The block that a slot is.
#[inline]
pub(crate) fn block_at(span: &Span, slot: usize) -> *mut Block {
    (span.start() + slot * span.block_size() as usize) as *mut Block
}

/// For the owner: says that a slot may be handed out again.
#[inline]
pub(crate) fn open(span: &Span, block: *mut Block) {
    if let Some(slot) = slot_of(span, block as usize) {
        set_open(span, slot);
    }
}

/// For a new owner: says that none may be, as it is not known which are free.
pub(crate) fn open_none(span: &Span) {
    span.open().iter().for_each(|word| word.store(0, Relaxed));
    set_words(span, 0);
}

/// For the owner of a span of the most slots without states: says that all may be.
pub(crate) fn open_all(span: &Span) {
    span.open().iter().for_each(|word| word.store(u64::MAX, Relaxed));
    set_words(span, u64::MAX);
}

/// For the same: says that one may be again. False if it might be already.
pub(crate) fn reopen(span: &Span, slot: usize) -> bool {
    let was_open = is_open(span, slot);
    set_open(span, slot);
    !was_open
}

/// Whether a slot may be handed out.
pub(crate) fn is_open(span: &Span, slot: usize) -> bool {
    span.open()[slot / 64].load(Relaxed) & 1 << (slot % 64) != 0
}

/// For the owner: takes one of the slots that may be handed out, which one `chance` decides. The span must have one, or one that may come
/// to be.
#[inline]
pub(crate) fn choose(span: &Span, chance: u64) -> usize {
    if span.free_count.get() < CHOICE && span.carved.load(Relaxed) < span.capacity.get() {
        open_more(span);
    }
    span.free_count.set(span.free_count.get() - 1);
    span.set_used(span.used() + 1);
    take_open(span, chance)
}

fn open_more(span: &Span) {
    let room = span.block_size() as usize;
    let carved = span.carved.load(Relaxed);
    let more = (span.capacity.get() - carved).min(BATCH as u32);
    let first = reserved(room) + carved as usize;
    (first..first + more as usize).for_each(|slot| set_open(span, slot));
    span.carved.store(carved + more, Relaxed);
    span.free_count.set(span.free_count.get() + more);
}

/// One of the bits of `bits`, which are not 0, that `chance` decides: the first at a place or behind it, which lies anywhere between the first
/// and the last there is.
#[inline]
fn pick(bits: u64, chance: u64) -> u32 {
    let (first, last) = (bits.trailing_zeros(), 63 - bits.leading_zeros());
    let place = first + (((chance & 0xffff_ffff) * u64::from(last - first + 1)) >> 32) as u32;
    place + (bits >> place).trailing_zeros()
}

/// Takes one of the slots that may be handed out.
#[inline]
pub(crate) fn take_open(span: &Span, chance: u64) -> usize {
    let words = words(span);
    if words == 0 {
        misuse::defect("the allocator's own records were written over", span.start(), 0);
    }
    let place = pick(words, chance >> 32);
    let word = &span.open()[place as usize];
    let bits = word.load(Relaxed);
    if bits == 0 {
        misuse::defect("the allocator's own records were written over", span.start(), 0);
    }
    let bit = pick(bits, chance);
    let left = bits & !(1 << bit);
    word.store(left, Relaxed);
    set_words(span, words & !(u64::from(left == 0) << place));
    place as usize * 64 + bit as usize
}

/// Has the processor fetch the beginning of a slot that is handed out soon, and its end.
#[inline]
pub(crate) fn fetch_ahead(span: &Span, slot: usize) {
    let room = span.block_size() as usize;
    let at = span.start() + slot * room;
    for line in (0..room.min(AHEAD)).step_by(64) {
        ahead::fetch(at + line);
    }
    ahead::fetch(at + room - TAIL);
}

/// For the owner: makes a slot that it chose a block of `size` bytes for the program. The program ends if the slot was written to while
/// it was free.
#[inline]
pub(crate) fn hand_out(span: &Span, slot: usize, size: usize) -> *mut u8 {
    let room = span.block_size() as usize;
    let at = span.start() + slot * room;
    // Acquire: what the one who freed it wrote comes before. Nobody else changes the state of a slot that may be handed out.
    match span.states()[slot].load(Acquire) {
        CLEAN => {}
        NEW if room <= WHOLE => touch(at, room),
        NEW => {
            touch(at, END);
            touch(at + room - END, END);
        }
        _ => misuse::defect("the allocator's own records were written over", at, room),
    }
    if let Some(place) = first_not_zero(at, room) {
        misuse::defect("a freed block was written to", place, room);
    }
    seal(at, room, size);
    span.states()[slot].store(LIVE, Release);
    at as *mut u8
}

/// Takes a block back from the program, which ends if it is none or was missed. What it held is gone then, and its slot free. `is_own`
/// says that the calling thread owns the span.
#[inline]
pub(crate) fn take_back(span: &Span, block: usize, is_own: bool) {
    let room = span.block_size() as usize;
    let Some(slot) = slot_of(span, block) else {
        misuse::defect("an address that is not the start of a block was freed", block, room)
    };
    let state = &span.states()[slot];
    if state.compare_exchange(LIVE, BUSY, Acquire, Relaxed).is_err() {
        misuse::defect("a block was freed twice", block, room);
    }
    must_be_sealed(block, room);
    if is_own {
        look_around(span, slot);
    }
    wipe(block, room);
    state.store(CLEAN, Release);
}

/// How many bytes the program asked for in a block of its own; the program ends if it is not.
pub(crate) fn size(span: &Span, block: usize) -> usize {
    let room = span.block_size() as usize;
    let Some(slot) = slot_of(span, block) else {
        misuse::defect("an address that is not the start of a block was resized", block, room)
    };
    if span.states()[slot].load(Relaxed) != LIVE {
        misuse::defect("a block was resized that was freed before", block, room);
    }
    must_be_sealed(block, room)
}

/// Gives a block of the program's own another size, which must fit its slot.
pub(crate) fn resize(span: &Span, block: usize, size: usize) {
    seal(block, span.block_size() as usize, size);
}

/// Takes a free slot out of its owner's sight, as it is about to carry a link to another heap.
pub(crate) fn depart(span: &Span, block: usize) -> bool {
    let Some(state) = slot_of(span, block).map(|slot| &span.states()[slot]) else { return false };
    for _ in 0..WAITS {
        if state.compare_exchange(CLEAN, BUSY, Acquire, Relaxed).is_ok() {
            return true;
        }
        // The owner looks at it.
        memfold_sys::thread::give_way();
    }
    // In a forked child, whose parent's owner looked at it when it was copied: it is lost.
    false
}

/// Says that a slot is free again that arrived at its heap.
pub(crate) fn arrive(span: &Span, block: usize) {
    let Some(slot) = slot_of(span, block) else { return };
    // SAFETY: the slot is free and in no list any more; a link has two words at most, and no slot is shorter.
    unsafe { (block as *mut [usize; 2]).write([0; 2]) };
    span.states()[slot].store(CLEAN, Release);
}

/// Ends the program if a freed block that waits to serve again was written to.
pub(crate) fn must_be_clean(span: &Span, block: usize) {
    let room = span.block_size() as usize;
    if let Some(place) = first_not_zero(block, room) {
        misuse::defect("a freed block was written to", place, room);
    }
}

/// Writes a canary of `len` bytes that ends a block of whole pages.
pub(crate) fn seal_end(start: usize, len: usize) {
    // SAFETY: the caller's block has so many bytes beyond what was asked for.
    unsafe { (start as *mut u8).write_bytes(filling(secret(start)) as u8, len) };
}

/// Ends the program if the canary that ends the block at `block` is not as it was written.
pub(crate) fn must_be_sealed_end(start: usize, len: usize, block: usize) {
    // SAFETY: as above.
    let canary = unsafe { core::slice::from_raw_parts(start as *const u8, len) };
    if canary.iter().any(|byte| *byte != filling(secret(start)) as u8) {
        misuse::defect("a block was written to behind its end", block, 0);
    }
}

/// A number that nobody can foretell who has not seen one of them, different for each address.
#[inline]
fn secret(at: usize) -> u64 {
    let mixed = ((at ^ links::key()) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Eight times the byte that a canary consists of, but for its last word; never 0, which is what strings end with.
#[inline]
fn filling(secret: u64) -> u64 {
    ((secret >> 24) & 0xff | 1) * 0x0101_0101_0101_0101
}

/// The words that make up the canary of a block whose slot goes on for `behind` bytes after it, from the block's end, but for the last
/// one; and which of their bits belong to it: where it is shorter than a word, the others are the last word's. Without a branch, as no
/// processor could guess it.
#[inline]
fn words_of_canary(behind: usize) -> ([usize; CANARY / 8], u64) {
    let last = behind.saturating_sub(2 * TAIL);
    let mask = u64::MAX >> (64 - 8 * (behind - TAIL).min(8)).min(63);
    ([0, 8, 16, 24].map(|word: usize| word.min(last)), if behind == TAIL { 0 } else { mask })
}

/// Writes the canary behind the first `size` bytes of a slot of `room` bytes.
#[inline]
fn seal(at: usize, room: usize, size: usize) {
    let secret = secret(at);
    let behind = room - size;
    for word in words_of_canary(behind).0 {
        // SAFETY: the slot is the caller's, and has eight bytes more.
        unsafe { ((at + size + word) as *mut u64).write_unaligned(filling(secret)) };
    }
    // SAFETY: as above.
    unsafe { ((at + room - TAIL) as *mut u64).write(secret ^ (behind as u64) << 48) };
}

/// Ends the program if the canary of a block is not as it was written. Returns the block's size.
#[inline]
fn must_be_sealed(at: usize, room: usize) -> usize {
    let secret = secret(at);
    // SAFETY: the block is the program's, and nobody else writes to its slot.
    let word = unsafe { ((at + room - TAIL) as *const u64).read() } ^ secret;
    let behind = (word >> 48) as usize;
    if word << 16 != 0 || !(TAIL..=room).contains(&behind) {
        misuse::defect("a block was written to behind its end, or the next one before its start", at, room);
    }
    let size = room - behind;
    let (words, mask) = words_of_canary(behind);
    let changed = words.into_iter().fold(0, |changed, word| {
        // SAFETY: as above; the words lie within the slot.
        changed | unsafe { ((at + size + word) as *const u64).read_unaligned() } ^ filling(secret)
    });
    if changed & mask != 0 {
        misuse::defect("a block was written to behind its end", at, room);
    }
    size
}

/// Up to so many bytes, a slot is wiped and looked at by vectors that overlap, as many as the longest of them needs: no processor could guess
/// how many a shorter one does.
const FEW: usize = 128;

/// Where those vectors begin in a slot of `room` bytes.
#[inline]
fn vectors(room: usize) -> [usize; FEW / 16] {
    core::array::from_fn(|vector| (16 * vector).min(room - 16))
}

#[inline]
fn wipe(at: usize, room: usize) {
    if room <= FEW {
        for offset in vectors(room) {
            // SAFETY: the slot is the caller's, and aligned to vectors.
            unsafe { ((at + offset) as *mut u128).write(0) };
        }
        return;
    }
    let whole = |start: usize, len| {
        // SAFETY: as above.
        unsafe { (start as *mut u8).write_bytes(0, len) }
    };
    if room <= WHOLE {
        return whole(at, room);
    }
    whole(at, END);
    whole(at + room - END, END);
}

/// The address of a byte that is not zero though it should be.
#[inline]
fn first_not_zero(at: usize, room: usize) -> Option<usize> {
    if room <= FEW {
        // SAFETY: a slot that is free, and so nobody's to write to, aligned to vectors.
        let bits = vectors(room)
            .into_iter()
            .fold(0, |bits, offset| bits | unsafe { ((at + offset) as *const u128).read() });
        return if bits == 0 { None } else { place_of_first(at, room) };
    }
    if room <= WHOLE {
        return first_not_zero_of(at, room);
    }
    first_not_zero_of(at, END).or_else(|| first_not_zero_of(at + room - END, END))
}

/// The same of at least 64 bytes that are aligned to vectors.
#[inline]
fn first_not_zero_of(start: usize, len: usize) -> Option<usize> {
    // Four vectors at a time; the last four may overlap those before.
    let bits_at = |at: usize| {
        [0, 16, 32, 48].into_iter().fold(0u128, |bits, offset| {
            // SAFETY: a slot that is free, and so nobody's to write to, aligned to vectors.
            bits | unsafe { ((at + offset) as *const u128).read() }
        })
    };
    let last = start + len - 64;
    let mut bits = bits_at(last);
    let mut at = start;
    while at < last {
        bits |= bits_at(at);
        at += 64;
    }
    if bits == 0 {
        return None;
    }
    place_of_first(start, len)
}

#[cold]
fn place_of_first(start: usize, len: usize) -> Option<usize> {
    // SAFETY: as above.
    let bytes = unsafe { core::slice::from_raw_parts(start as *const u8, len) };
    bytes.iter().position(|byte| *byte != 0).map(|place| start + place)
}

/// For the owner: ends the program if bytes of free slots close to this one are not zero: a block was missed by a little.
///
/// Blocks of the program close by have canaries, which are looked at when they are freed.
#[inline]
fn look_around(span: &Span, slot: usize) {
    if span.epoch() != EPOCH.load(Relaxed) {
        return;
    }
    let room = span.block_size() as usize;
    let all = reserved(room) + span.capacity.get() as usize;
    if room >= REACH {
        // Without a branch for each, as no processor could guess which are free.
        let seen = |other: usize, start: usize| {
            let state = span.states()[other].load(Acquire);
            if state == NEW {
                touch(start, REACH);
            }
            let free = u64::from((state == CLEAN) | (state == NEW)).wrapping_neg();
            bits_of(start) & free
        };
        let at = span.start() + slot * room;
        let next = (slot + 1).min(all - 1);
        if seen(slot - 1, at - REACH) | seen(next, span.start() + next * room) == 0 {
            return;
        }
    }
    look_closely_around(span, slot, all);
}

/// What [`look_around`] does, one slot after the other. `all` is the number of the span's slots.
#[cold]
fn look_closely_around(span: &Span, slot: usize, all: usize) {
    let room = span.block_size() as usize;
    let steps = reserved(room);
    for other in (slot - steps..slot).chain(slot + 1..(slot + 1 + steps).min(all)) {
        let at = span.start() + other * room;
        let len = room.min(REACH);
        let start = if other < slot { at + room - len } else { at };
        let (state, free) = (&span.states()[other], span.states()[other].load(Acquire));
        match free {
            CLEAN => {}
            NEW => touch(start, len),
            _ => continue,
        }
        if is_zero(start, len) {
            continue;
        }
        // Its state and its bytes were not read at one moment, and another thread may have sent it on. Who has it alone can be sure.
        if state.compare_exchange(free, BUSY, Acquire, Relaxed).is_err() {
            continue;
        }
        if !is_zero(start, len) {
            let what = if other < slot {
                "a block was written to before its start, or a freed one"
            } else {
                "a block was written to behind its end, or a freed one"
            };
            misuse::defect(what, span.start() + slot * room, room);
        }
        state.store(free, Release);
    }
}

/// All bits of [`REACH`] bytes, of a slot that another thread may be given meanwhile.
#[inline]
fn bits_of(start: usize) -> u64 {
    // SAFETY: as in `is_zero`.
    let word = |offset: usize| unsafe { ((start + offset) as *const u64).read_volatile() };
    word(0) | word(8) | word(16) | word(24)
}

/// Whether bytes are zero, of a slot that another thread may be given meanwhile.
#[inline]
fn is_zero(start: usize, len: usize) -> bool {
    // SAFETY: the words lie in a span that is handed out; they are read as what others may write to.
    (start..start + len).step_by(8).all(|at| unsafe { (at as *const u64).read_volatile() } == 0)
}

const _: () = assert!(WHOLE > PAGE_SIZE + TAIL && 2 * END <= WHOLE && REACH <= END);
