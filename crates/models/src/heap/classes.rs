//! Size classes, in a model: one class, of which two blocks fill a span, so that spans fill up and empty at once.

/// As in the heap.
pub const ALIGNMENT: usize = 16;
/// As in the heap.
pub const LARGEST: usize = 64;
/// One class.
pub const COUNT: usize = 1;
/// As in the heap.
pub const SMALL: usize = 64;
/// As in the heap.
pub const SMALL_STEPS: usize = SMALL / ALIGNMENT + 1;
/// Fresh blocks are cut one at a time.
pub const LINKED: usize = 1;
/// Bytes of a block: half a span of one page.
const BLOCK: usize = memfold_sys::PAGE_SIZE / 2;

pub const fn of(_: usize) -> usize {
    0
}

pub const fn block_size(_: usize) -> usize {
    BLOCK
}

pub fn blocks_before(_: usize, offset: usize) -> usize {
    offset / BLOCK
}

pub const fn span_pages(_: usize) -> usize {
    1
}

/// Of more than two blocks in a bin all but one go back; the heap's limits are not below that.
pub const fn limit(_: usize) -> i32 {
    2
}

/// A bin gets no more room than it has at first: what grows is the thread's own.
pub const fn most(class: usize) -> i32 {
    limit(class)
}
