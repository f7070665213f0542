//! The allocator's functions, with C's meaning but without `errno`.
//!
//! What it is: what the preload library exports, and what tests call. A null result means `ENOMEM` unless
//! a function says otherwise. The rules are those of POSIX.1-2017 and, where that leaves a choice, of
//! glibc 2.36 (`malloc(3)`, `posix_memalign(3)`).
//!
//! Invariants: every block starts where its span's cutting says, so an address is all that a free needs.

use crate::bin::Block;
use crate::heap::Heap;
use crate::{away, checked, classes, flush, large, misuse, registry, remote, samples, sampling, slots, tls};
use memfold_arena::{Kind, Span};
use memfold_sys::PAGE_SIZE;

/// The largest request in bytes: pointers into a block must have a distance that fits `ptrdiff_t`.
pub const MAX_REQUEST: usize = isize::MAX as usize;

/// A block of at least `size` bytes, aligned to 16. A size of 0 gives a block like any other.
#[inline(always)]
pub fn malloc(size: usize) -> *mut u8 {
    let block = malloc_at_hand(size);
    if !block.is_null() {
        return block;
    }
    malloc_slow(size)
}

/// The part of [`malloc`] that calls nothing: a small block from the thread's bin, or null if that is empty
/// or the size is not small. Whoever exports `malloc` calls this, and [`malloc_slow`] last, so that the
/// compiler needs no stack frame.
#[inline(always)]
pub fn malloc_at_hand(size: usize) -> *mut u8 {
    if size > classes::SMALL {
        return core::ptr::null_mut();
    }
    tls::get().bin_for_small(size).pop().cast()
}

/// The rest of [`malloc`].
#[inline(always)]
pub fn malloc_slow(size: usize) -> *mut u8 {
    alloc(tls::get(), size).0
}

/// A block of at least `size` bytes, and whether it is known to be all zero.
#[inline(always)]
fn alloc(heap: &'static Heap, size: usize) -> (*mut u8, bool) {
    if size <= classes::LARGEST {
        return alloc_class(heap, classes::of(size), size);
    }
    alloc_large(heap, size, PAGE_SIZE)
}

#[inline(always)]
fn alloc_class(heap: &'static Heap, class: usize, size: usize) -> (*mut u8, bool) {
    // A sentinel's bins are empty.
    let block = heap.bin(class).pop();
    if !block.is_null() {
        return (block.cast(), false);
    }
    refill(heap, class, size)
}

#[inline(never)]
fn refill(heap: &'static Heap, class: usize, size: usize) -> (*mut u8, bool) {
    if misuse::is_on() {
        return alloc_checked(heap, size, classes::ALIGNMENT);
    }
    if registry::is_sentinel(heap) {
        let block = registry::with_heap(heap, |heap| sampling::refill(heap, class));
        return block.unwrap_or((core::ptr::null_mut(), false));
    }
    sampling::refill(heap, class)
}

fn alloc_checked(heap: &'static Heap, size: usize, align: usize) -> (*mut u8, bool) {
    if registry::is_sentinel(heap) {
        let block = registry::with_heap(heap, |heap| checked::alloc(heap, size, align));
        return block.unwrap_or((core::ptr::null_mut(), false));
    }
    checked::alloc(heap, size, align)
}

#[cold]
fn alloc_large(heap: &'static Heap, size: usize, align: usize) -> (*mut u8, bool) {
    if size > MAX_REQUEST || heap.is(&tls::REFUSED) {
        return (core::ptr::null_mut(), false);
    }
    let (block, zero) = large::alloc(heap.domain.get(), size, align);
    sampling::consider(block);
    (block, zero)
}

/// A block of `size` bytes for what a shorter one holds.
fn alloc_longer(heap: &'static Heap, size: usize) -> *mut u8 {
    if size <= classes::LARGEST || heap.is(&tls::REFUSED) {
        return malloc(size);
    }
    let block = large::alloc_grown(heap.domain.get(), size);
    sampling::consider(block);
    block
}

/// Frees a block. Null is allowed. Addresses that this allocator did not hand out are left alone; where blocks are checked, the
/// program ends.
///
/// # Safety
/// The block is the program's, and it will not use it again.
#[inline(always)]
pub unsafe fn free(ptr: *mut u8) {
    let Some(span) = memfold_arena::lookup(ptr as usize) else {
        return misuse::foreign(FREED_NO_BLOCK, ptr as usize);
    };
    let heap = tls::get();
    if !heap.keeps(span) {
        // SAFETY: the caller's contract.
        return unsafe { free_foreign(span, ptr) };
    }
    let bin = heap.bin_of(span);
    if !bin.has_room() {
        // SAFETY: as above.
        return unsafe { free_full(heap, span, ptr) };
    }
    // SAFETY: the block is free by the caller's word, and it may be kept in the bin of its class.
    unsafe { bin.push(ptr.cast::<Block>()) };
}

/// Frees a block of which the heap has enough.
#[inline(never)]
unsafe fn free_full(heap: &'static Heap, span: &'static Span, ptr: *mut u8) {
    let (is_sampled, is_own) = (sampling::is_on(heap), heap.owns(span));
    let class = span.class() as usize;
    let may_grow = is_own || heap.depths.ran_out(class);
    if is_sampled && is_own {
        // SAFETY: the caller's contract; the span is this heap's.
        unsafe { flush::put(heap, span, ptr.cast()) };
    } else if !is_sampled && may_grow && flush::make_room(heap, class, is_own) {
        // SAFETY: as in `free`; there is room now.
        unsafe { heap.bin_of(span).push(ptr.cast::<Block>()) };
    } else {
        // SAFETY: the caller's contract; the span's owner is a heap.
        unsafe { remote::gather(heap, span, ptr.cast()) };
        registry::tidy_if_much_is_left();
    }
}

const FREED_NO_BLOCK: &str = "an address that is no block was freed";
const FREED_TWICE: &str = "a block was freed twice";

/// Frees a block that is large, or that belongs to another heap and is not kept.
#[inline(never)]
unsafe fn free_foreign(span: &'static Span, ptr: *mut u8) {
    if samples::may_have(span, ptr as usize) {
        sampling::forget(span, ptr as usize);
    }
    match kind_of(span, ptr) {
        // SAFETY: the span's owner is a heap, or none has it.
        Some(Kind::Blocks) if misuse::is_on() => unsafe { checked::free(span, ptr.cast()) },
        Some(Kind::Blocks) => {
            // SAFETY: the caller's contract; the span's owner is a heap.
            unsafe {
                match registry::heap_to_free_with() {
                    Some(heap) if heap.has(span) => {
                        sampling::is_on(heap);
                        if !away::keep(heap, span, ptr as usize) {
                            flush::put(heap, span, ptr.cast());
                        }
                    }
                    Some(heap) => {
                        away::look_back(span, ptr as usize);
                        remote::gather(heap, span, ptr.cast());
                        registry::tidy_if_much_is_left();
                    }
                    None => {
                        remote::send(span, ptr.cast());
                        registry::tidy_if_much_is_left();
                    }
                }
            }
        }
        Some(Kind::Large) => {
            let look = || {
                large::usable_size(span);
            };
            if !memfold_arena::free_large(span, look) {
                misuse::foreign(FREED_TWICE, ptr as usize);
            }
        }
        _ if matches!(span.kind(), Kind::Free | Kind::Busy) && span.start() == ptr as usize => {
            misuse::foreign(FREED_TWICE, ptr as usize);
        }
        _ => misuse::foreign(FREED_NO_BLOCK, ptr as usize),
    }
}

/// What `ptr` is the start of, if the record that was found for it really describes it.
fn kind_of(span: &Span, ptr: *mut u8) -> Option<Kind> {
    let addr = ptr as usize;
    match span.kind() {
        Kind::Blocks if (span.start()..span.end()).contains(&addr) => Some(Kind::Blocks),
        Kind::Large if span.start() == addr => Some(Kind::Large),
        _ => None,
    }
}

/// How many bytes of the block the program may use; 0 for null and for what is not ours.
///
/// # Safety
/// The block is the program's.
pub unsafe fn usable_size(ptr: *mut u8) -> usize {
    let Some(span) = memfold_arena::lookup(ptr as usize) else { return 0 };
    size_of_block(span, ptr).unwrap_or(0)
}

/// How many bytes of the block at `ptr` the program may use; `None` if there is none.
fn size_of_block(span: &'static Span, ptr: *mut u8) -> Option<usize> {
    match kind_of(span, ptr)? {
        Kind::Blocks if slots::is_checked(span) => Some(checked::usable_size(span, ptr as usize)),
        Kind::Blocks => Some(span.block_size() as usize),
        _ => Some(large::usable_size(span)),
    }
}

/// Whether `ptr` is a block of this allocator.
pub fn is_ours(ptr: *mut u8) -> bool {
    memfold_arena::lookup(ptr as usize).is_some_and(|span| kind_of(span, ptr).is_some())
}

/// A zeroed block for `count` times `size` bytes; null also if that overflows. Fresh memory of the kernel
/// is not written to.
#[inline]
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    let Some(total) = count.checked_mul(size) else { return core::ptr::null_mut() };
    if total <= classes::LINKED {
        let block = malloc(total);
        if !block.is_null() {
            // SAFETY: the block has at least `total` bytes.
            unsafe { block.write_bytes(0, total) };
        }
        return block;
    }
    let (block, zero) = alloc(tls::get(), total);
    if !zero && !block.is_null() {
        // SAFETY: as above; nobody has the block yet.
        unsafe { clear(block, total) };
    }
    block
}

/// Writes zeros to the first `size` bytes of a block, as far as they may be anything else.
///
/// # Safety
/// The block has as many, was just handed out, and nobody has written to it since.
unsafe fn clear(block: *mut u8, size: usize) {
    match memfold_arena::lookup(block as usize).filter(|span| span.kind() == Kind::Large) {
        Some(span) => memfold_arena::clear(span, size),
        // SAFETY: the caller's contract.
        None => unsafe { block.write_bytes(0, size) },
    }
}

/// Gives a block another size, in place or elsewhere; its bytes up to the lesser size are kept. Null for
/// `ptr` is `malloc`; 0 for `size` frees and returns null, which is not an error. On failure the block is
/// as it was. A block that is not ours cannot be resized, as its length is unknown: that is a failure too.
///
/// # Safety
/// The block is the program's; if the result is not null, it will use only that.
pub unsafe fn realloc(ptr: *mut u8, size: usize) -> *mut u8 {
    if ptr.is_null() {
        return malloc(size);
    }
    if size == 0 {
        // SAFETY: the caller's contract.
        unsafe { free(ptr) };
        return core::ptr::null_mut();
    }
    let block = memfold_arena::lookup(ptr as usize);
    let Some((span, old)) = block.and_then(|span| Some((span, size_of_block(span, ptr)?))) else {
        misuse::foreign("an address that is no block was resized", ptr as usize);
        return core::ptr::null_mut();
    };
    if size > MAX_REQUEST {
        return core::ptr::null_mut();
    }
    if span.kind() == Kind::Large {
        let is_sampled = samples::may_have(span, ptr as usize);
        let resized = large::resize(span, size);
        if !resized.is_null() {
            if is_sampled {
                samples::follow(span, ptr as usize);
            }
            return resized;
        }
    } else if slots::is_checked(span) {
        if checked::resize(span, ptr as usize, size) {
            return ptr;
        }
    } else if size <= old && size * 2 >= old {
        return ptr;
    }
    let moved = if size > old { alloc_longer(tls::get(), size) } else { malloc(size) };
    if moved.is_null() {
        // A shorter block may stay where it is.
        return if size <= old { ptr } else { moved };
    }
    // SAFETY: both blocks have that many bytes, and are different blocks.
    unsafe {
        core::ptr::copy_nonoverlapping(ptr, moved, old.min(size));
        free(ptr);
    }
    moved
}

/// A block of at least `size` bytes at a multiple of `align`, a power of two (0 counts as 1).
#[inline(always)]
pub fn aligned(align: usize, size: usize) -> *mut u8 {
    debug_assert!(align == 0 || align.is_power_of_two());
    if align <= PAGE_SIZE && size <= classes::LARGEST {
        if misuse::is_on() {
            return alloc_checked(tls::get(), size, align.max(classes::ALIGNMENT)).0;
        }
        // Spans start at a page, and the classes are such that a multiple of the alignment gets blocks of a multiple.
        let align = align.max(classes::ALIGNMENT);
        return malloc((size.max(1) + align - 1) & !(align - 1));
    }
    if align <= classes::ALIGNMENT {
        return malloc(size);
    }
    alloc_large(tls::get(), size, align).0
}

/// Gives free memory back to the kernel, all but about `keep` bytes of it. Returns the bytes given.
///
/// Only the calling thread's heap and those of threads that are gone are searched; the others' belong to them.
pub fn trim(keep: usize) -> usize {
    let heap = tls::get();
    if !registry::is_sentinel(heap) {
        remote::drain(heap, None);
        flush::flush_all(heap);
    }
    registry::tidy_idle();
    memfold_arena::trim(keep)
}
