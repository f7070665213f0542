//! The C allocation functions, exported under their own names.
//!
//! What it is: argument checks, `errno`, and nothing else; the work is done in the crate `heap`. The C++
//! operators `new` and `delete` of libstdc++ and libc++ come here through `malloc`, `aligned_alloc` and
//! `free`. The rules are those of POSIX.1-2017 and of glibc 2.36 where they differ or say nothing.
//!
//! Invariants: `errno` is written on failure only, so that no successful call and no `free` changes it, and
//! only threads of the program, which have one, ever get here.

use core::ffi::{c_char, c_int, c_void};

extern "C" {
    fn dprintf(fd: c_int, format: *const c_char, ...) -> c_int;
}

fn fail(error: c_int) -> *mut c_void {
    // SAFETY: the calling thread is one of libc's, so it has an `errno`.
    unsafe { *libc::__errno_location() = error };
    core::ptr::null_mut()
}

#[inline(always)]
fn result(block: *mut u8) -> *mut c_void {
    if block.is_null() {
        return no_memory();
    }
    block.cast()
}

#[cold]
#[inline(never)]
fn no_memory() -> *mut c_void {
    fail(libc::ENOMEM)
}

/// `malloc(3)`.
#[no_mangle]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    let block = memfold_heap::malloc_at_hand(size);
    if block.is_null() {
        return malloc_slow(size);
    }
    block.cast()
}

#[inline(never)]
extern "C" fn malloc_slow(size: usize) -> *mut c_void {
    result(memfold_heap::malloc_slow(size))
}

/// `free(3)`. Addresses that this allocator did not hand out are left alone.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn free(ptr: *mut c_void) {
    // SAFETY: the program's promise.
    unsafe { memfold_heap::free(ptr.cast()) }
}

/// `cfree`, the old name of `free`; glibc keeps it for old binaries.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn cfree(ptr: *mut c_void) {
    // SAFETY: the program's promise.
    unsafe { memfold_heap::free(ptr.cast()) }
}

/// `calloc(3)`.
#[no_mangle]
pub extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    result(memfold_heap::calloc(count, size))
}

/// `realloc(3)`. With a size of 0 it frees and returns null with `errno` unchanged, as glibc does. A block
/// of another allocator cannot be resized: `ENOMEM`, and the block is as it was.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn realloc(ptr: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: the program's promise.
    let block = unsafe { memfold_heap::realloc(ptr.cast(), size) };
    if block.is_null() && size == 0 && !ptr.is_null() {
        return core::ptr::null_mut();
    }
    result(block)
}

/// `reallocarray(3)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn reallocarray(ptr: *mut c_void, count: usize, size: usize) -> *mut c_void {
    match count.checked_mul(size) {
        // SAFETY: the program's promise.
        Some(total) => unsafe { realloc(ptr, total) },
        None => no_memory(),
    }
}

/// `posix_memalign(3)`: returns its error, leaves `errno` and, on an error, `*out` alone.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || !align.is_multiple_of(core::mem::size_of::<*mut c_void>()) {
        return libc::EINVAL;
    }
    let block = memfold_heap::aligned(align, size);
    if block.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the program gives a place for the result.
    unsafe { *out = block.cast() };
    0
}

/// `memalign(3)`. As in glibc, an alignment that is no power of two counts as the next one above.
#[no_mangle]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match align.checked_next_power_of_two() {
        Some(align) => result(memfold_heap::aligned(align, size)),
        None => fail(libc::EINVAL),
    }
}

/// `aligned_alloc(3)`: in glibc 2.36 another name of [`memalign`], with any size.
#[no_mangle]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    memalign(align, size)
}

/// `valloc(3)`: aligned to a page.
#[no_mangle]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    result(memfold_heap::aligned(memfold_sys::PAGE_SIZE, size))
}

/// `pvalloc(3)`: whole pages.
#[no_mangle]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    match size.checked_next_multiple_of(memfold_sys::PAGE_SIZE) {
        Some(size) => result(memfold_heap::aligned(memfold_sys::PAGE_SIZE, size)),
        None => no_memory(),
    }
}

/// `malloc_usable_size(3)`.
///
/// # Safety
/// As in C.
#[no_mangle]
pub unsafe extern "C" fn malloc_usable_size(ptr: *mut c_void) -> usize {
    // SAFETY: the program's promise.
    unsafe { memfold_heap::usable_size(ptr.cast()) }
}

/// `malloc_trim(3)`: 1 if memory went back to the kernel.
#[no_mangle]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    c_int::from(memfold_heap::trim(pad) > 0)
}

/// `mallopt(3)`: accepts every option and heeds none; they tune an allocator that this one replaces.
#[no_mangle]
pub extern "C" fn mallopt(_option: c_int, _value: c_int) -> c_int {
    1
}

/// `mallinfo2(3)`. Blocks that threads keep at hand count as allocated.
#[no_mangle]
pub extern "C" fn mallinfo2() -> libc::mallinfo2 {
    let counters = &memfold_arena::COUNTERS;
    let mapped = counters.mapped_bytes.get();
    let used = memfold_heap::stats::used_bytes(&memfold_heap::stats::classes());
    let large = counters.large_bytes.get();
    libc::mallinfo2 {
        arena: mapped.saturating_sub(large),
        ordblks: 0,
        smblks: 0,
        hblks: counters.large_blocks.get(),
        hblkhd: large,
        usmblks: 0,
        fsmblks: 0,
        uordblks: used,
        fordblks: mapped.saturating_sub(used + large),
        keepcost: counters.cached_bytes.get(),
    }
}

/// `mallinfo(3)`: [`mallinfo2`] in 32 bits; larger values come out as the largest there is.
#[no_mangle]
pub extern "C" fn mallinfo() -> libc::mallinfo {
    let info = mallinfo2();
    let short = |bytes: usize| c_int::try_from(bytes).unwrap_or(c_int::MAX);
    libc::mallinfo {
        arena: short(info.arena),
        ordblks: short(info.ordblks),
        smblks: short(info.smblks),
        hblks: short(info.hblks),
        hblkhd: short(info.hblkhd),
        usmblks: short(info.usmblks),
        fsmblks: short(info.fsmblks),
        uordblks: short(info.uordblks),
        fordblks: short(info.fordblks),
        keepcost: short(info.keepcost),
    }
}

/// `malloc_stats(3)`: one line on standard error.
#[no_mangle]
pub extern "C" fn malloc_stats() {
    let counters = &memfold_arena::COUNTERS;
    // SAFETY: the format matches the arguments.
    unsafe {
        dprintf(
            libc::STDERR_FILENO,
            c"memfold: mapped %zu, in spans %zu, cached %zu, in %zu large blocks %zu bytes\n".as_ptr(),
            counters.mapped_bytes.get(),
            counters.span_bytes.get(),
            counters.cached_bytes.get(),
            counters.large_blocks.get(),
            counters.large_bytes.get(),
        );
    }
}

/// `malloc_info(3)`: an XML document with the totals. `EINVAL` if `options` is not 0.
///
/// # Safety
/// `stream` is an open stream.
#[no_mangle]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        fail(libc::EINVAL);
        return -1;
    }
    let counters = &memfold_arena::COUNTERS;
    // SAFETY: the stream is the program's, and the format matches the arguments.
    let written = unsafe {
        libc::fprintf(
            stream,
            c"<malloc version=\"1\">\n<system type=\"current\" size=\"%zu\"/>\n<total type=\"mmap\" count=\"%zu\" size=\"%zu\"/>\n</malloc>\n".as_ptr(),
            counters.mapped_bytes.get(),
            counters.large_blocks.get(),
            counters.large_bytes.get(),
        )
    };
    if written < 0 {
        -1
    } else {
        0
    }
}
