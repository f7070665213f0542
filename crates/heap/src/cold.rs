//! Blocks that the program says it will seldom touch, apart from all others.
//!
//! What it is: for such a block the calling thread takes a cold heap, of which there are as many as threads ever asked at the same moment, and puts it
//! back. Its spans have cold blocks alone, and so have their pages: the pager finds nothing else on them. What it is not: fast (each call takes the
//! registry's lock twice), or more than a hint: blocks that are longer than the size classes have pages of their own anyway, and where checks are on the
//! blocks are checked like all others.
//!
//! Invariants: no thread's own bin ever holds a block of a cold span, so that `malloc` never hands one out. Whoever frees one sends it home, as any block of
//! another heap's. An idle cold heap has blocks in its bins; nobody but who takes it from the list looks at them.

use crate::heap::Heap;
use crate::{api, checked, classes, misuse, registry, sampling, tls};
use memfold_arena::Domain;
use memfold_sys::PAGE_SIZE;

/// As [`api::aligned`], for a block that will seldom be touched.
pub fn aligned_cold(align: usize, size: usize) -> *mut u8 {
    debug_assert!(align == 0 || align.is_power_of_two());
    let own = tls::get();
    let is_small = align <= PAGE_SIZE && size <= classes::LARGEST;
    if !is_small || own.is(&tls::REFUSED) || own.domain.get() == Domain::Pinned {
        return api::aligned(align, size);
    }
    let Some(heap) = registry::acquire_cold() else { return core::ptr::null_mut() };
    let block = take(heap, align.max(classes::ALIGNMENT), size);
    registry::put_idle(heap);
    block
}

fn take(heap: &'static Heap, align: usize, size: usize) -> *mut u8 {
    if misuse::is_on() {
        return checked::alloc(heap, size, align).0;
    }
    // As for any aligned block, the classes are such that a multiple of the alignment gets blocks of a multiple.
    let class = classes::of(size.max(1).next_multiple_of(align));
    match heap.bin(class).pop() {
        block if block.is_null() => sampling::refill(heap, class).0,
        block => block.cast(),
    }
}
