//! Loops over slots: the mixed loop with its zeroed and aligned kin, and blocks that grow and shrink.
//!
//! Invariants: a slot is null or holds a block that nobody else frees; tables are mapped and go with the process.

use super::actor::Actor;
use super::{broken, Loop, Written};
use memfold_sys::mem;
use std::marker::PhantomData;

/// Draws of a thread: xorshift64 (Marsaglia, "Xorshift RNGs", 2003), three shifts, so that the loop times the allocator.
#[derive(Clone, Copy)]
pub(super) struct Draw(u64);

impl Draw {
    pub(super) fn new(job: &Loop, number: usize) -> Draw {
        // Xorshift must not start at 0.
        Draw(job.seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    /// Two numbers, the first below `first` and the second below `second`; both at most 2^32.
    #[inline]
    pub(super) fn two(&mut self, first: u64, second: u64) -> (u64, u64) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (((self.0 >> 32) * first) >> 32, ((self.0 & 0xffff_ffff) * second) >> 32)
    }
}

/// Block sizes, bytes.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) least: u64,
    pub(super) span: u64,
}

impl Sizes {
    pub(super) fn of(job: &Loop) -> Sizes {
        Sizes { least: job.least_bytes as u64, span: (job.most_bytes - job.least_bytes + 1) as u64 }
    }
}

/// A mapped table of `len` values, all zero.
pub(super) fn table<T>(len: usize) -> &'static mut [T] {
    let bytes = (len * size_of::<T>()).next_multiple_of(memfold_sys::PAGE_SIZE);
    match mem::map_anonymous(0, bytes, 0) {
        // SAFETY: a fresh mapping of that length that nobody unmaps; every `T` of this module may be all zeros.
        Ok(base) => unsafe { std::slice::from_raw_parts_mut(base as *mut T, len) },
        Err(error) => {
            eprintln!("cannot map a table of {bytes} bytes: {error}");
            std::process::exit(1)
        }
    }
}

/// A block of `size` bytes, its first and last byte written.
#[inline]
pub(super) fn take(size: usize) -> *mut u8 {
    // SAFETY: `malloc` may be called with any size.
    written(unsafe { libc::malloc(size) }.cast(), size)
}

#[inline]
pub(super) fn free(block: *mut u8) {
    // SAFETY: callers pass each block that they took once, or null.
    unsafe { libc::free(block.cast()) };
}

#[inline]
fn written(block: *mut u8, size: usize) -> *mut u8 {
    if block.is_null() {
        broken(&format!("there is no block of {size} bytes"));
    }
    // SAFETY: the block has `size` bytes, at least one.
    unsafe {
        block.write_volatile(1);
        block.add(size - 1).write_volatile(1);
    }
    block
}

/// Writes a byte in each page's length of a block.
fn write_pages(block: *mut u8, size: usize) {
    for offset in (0..size).step_by(memfold_sys::PAGE_SIZE) {
        // SAFETY: the block has `size` bytes and is the caller's.
        unsafe { block.add(offset).write_volatile(1) };
    }
}

/// A way to get a block.
pub(super) trait Taker {
    fn take(size: usize, draw: u64) -> *mut u8;
}

/// By `malloc`.
pub(super) struct Plain;
/// By `calloc`; both ends must be zero.
pub(super) struct Zeroed;
/// By `posix_memalign`, to 16 to 4096 bytes.
pub(super) struct Aligned;

impl Taker for Plain {
    #[inline]
    fn take(size: usize, _: u64) -> *mut u8 {
        take(size)
    }
}

impl Taker for Zeroed {
    #[inline]
    fn take(size: usize, _: u64) -> *mut u8 {
        // SAFETY: `calloc` may be called with any size; the block is read within its length.
        unsafe {
            let block = libc::calloc(1, size).cast::<u8>();
            if !block.is_null() && (block.read_volatile() | block.add(size - 1).read_volatile()) != 0 {
                broken("a block of calloc is not zero");
            }
            written(block, size)
        }
    }
}

impl Taker for Aligned {
    #[inline]
    fn take(size: usize, draw: u64) -> *mut u8 {
        let alignment = 16usize << (draw % 9);
        let mut block = std::ptr::null_mut();
        // SAFETY: the alignment is a power of two and a multiple of a pointer's size; the out-parameter is valid.
        if unsafe { libc::posix_memalign(&mut block, alignment, size) } != 0 {
            broken(&format!("there is no block of {size} bytes aligned to {alignment}"));
        }
        if !(block as usize).is_multiple_of(alignment) {
            broken(&format!("the block at {block:p} is not aligned to {alignment}"));
        }
        written(block.cast(), size)
    }
}

/// The mixed loop.
pub(super) struct Slots<T> {
    table: &'static mut [*mut u8],
    draw: Draw,
    sizes: Sizes,
    written: Written,
    how: PhantomData<T>,
}

impl<T: Taker> Slots<T> {
    pub(super) fn new(job: &Loop, number: usize) -> Self {
        Slots::over(table(job.slots), Draw::new(job, number), Sizes::of(job), job.written)
    }

    /// On a table that there is already.
    pub(super) fn over(table: &'static mut [*mut u8], draw: Draw, sizes: Sizes, written: Written) -> Self {
        Slots { table, draw, sizes, written, how: PhantomData }
    }

    /// The draws, to go on with elsewhere.
    pub(super) fn draw(&self) -> Draw {
        self.draw
    }
}

impl<T: Taker> Actor for Slots<T> {
    #[inline]
    fn step(&mut self) -> u64 {
        let (place, extra) = self.draw.two(self.table.len() as u64, self.sizes.span);
        let slot = &mut self.table[place as usize];
        if slot.is_null() {
            let size = (self.sizes.least + extra) as usize;
            *slot = T::take(size, extra);
            if self.written == Written::Pages {
                write_pages(*slot, size);
            }
        } else {
            free(std::mem::replace(slot, std::ptr::null_mut()));
        }
        1
    }
}

/// Blocks that grow by half up to the largest size and shrink by halves to the smallest, then are freed.
pub(super) struct Resizing {
    table: &'static mut [Growth],
    draw: Draw,
    least: usize,
    most: usize,
}

struct Growth {
    block: *mut u8,
    size: usize,
    shrinking: bool,
}

impl Resizing {
    pub(super) fn new(job: &Loop, number: usize) -> Resizing {
        let Loop { least_bytes: least, most_bytes: most, .. } = *job;
        Resizing { table: table(job.slots), draw: Draw::new(job, number), least, most }
    }
}

impl Actor for Resizing {
    #[inline]
    fn step(&mut self) -> u64 {
        let place = self.draw.two(self.table.len() as u64, 1).0;
        let slot = &mut self.table[place as usize];
        slot.shrinking |= slot.size >= self.most;
        if slot.shrinking && slot.size / 2 < self.least {
            free(slot.block);
            *slot = Growth { block: std::ptr::null_mut(), size: 0, shrinking: false };
            return 1;
        }
        let size = match slot.size {
            0 => self.least,
            size if slot.shrinking => size / 2,
            size => (size + size / 2).min(self.most),
        };
        // SAFETY: the block is null, which makes this a malloc, or of this slot alone; 8 bytes are within the least size.
        unsafe {
            let block = libc::realloc(slot.block.cast(), size).cast::<u8>();
            if block.is_null() {
                broken(&format!("a block cannot be made {size} bytes long"));
            }
            if slot.size != 0 && block.cast::<u64>().read_unaligned() != place {
                broken("realloc changed the contents of a block");
            }
            block.add(size - 1).write_volatile(1);
            block.cast::<u64>().write_unaligned(place);
            slot.block = block;
        }
        slot.size = size;
        1
    }
}
