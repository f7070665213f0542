//! The allocator's statistics: printed at exit, on the control page, and for C programs.
//!
//! What it is: one gathering of counters, and three ways to show it. What it is not: any cost where nobody asks; nothing
//! is counted for it that would not be counted anyway, but spans are looked through when it is asked.
//!
//! Invariants: nothing here allocates.

use core::ffi::c_int;
use core::fmt::Write;
use core::mem::size_of;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use memfold_heap::{classes, stats};
use memfold_pager::control::{AllocCounters, ALLOC_CLASSES};
use memfold_pager::{Engine, Line};
use memfold_sys::file;
use memfold_sys::time::{self, Nanos};

const _: () = assert!(classes::COUNT <= ALLOC_CLASSES);

/// Whether they are to be printed at exit.
static AT_EXIT: AtomicBool = AtomicBool::new(false);

/// What `memfold_alloc.h` calls `struct memfold_alloc_stats`. Bytes unless the name says otherwise.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Stats {
    mapped_bytes: u64,
    live_bytes: u64,
    cached_bytes: u64,
    record_bytes: u64,
    large_blocks: u64,
    large_bytes: u64,
    process_resident_bytes: u64,
    process_minor_faults: u64,
    mmap_calls: u64,
    munmap_calls: u64,
    madvise_calls: u64,
    mprotect_calls: u64,
    mremap_calls: u64,
}

/// The allocator's own counters; those of the process are left 0. Makes no system call, since the program may have
/// forbidden itself all but a few.
fn gather(by_class: &stats::Classes) -> Stats {
    let counters = &memfold_arena::COUNTERS;
    let large_bytes = counters.large_bytes.get() as u64;
    Stats {
        mapped_bytes: counters.mapped_bytes.get() as u64,
        live_bytes: stats::used_bytes(by_class) as u64 + large_bytes,
        cached_bytes: counters.cached_bytes.get() as u64,
        record_bytes: counters.record_bytes.get() as u64,
        large_blocks: counters.large_blocks.get() as u64,
        large_bytes,
        process_resident_bytes: 0,
        process_minor_faults: 0,
        mmap_calls: counters.mmap_calls.get() as u64,
        munmap_calls: counters.munmap_calls.get() as u64,
        madvise_calls: counters.madvise_calls.get() as u64,
        mprotect_calls: counters.mprotect_calls.get() as u64,
        mremap_calls: counters.mremap_calls.get() as u64,
    }
}

/// All counters.
fn gather_all(by_class: &stats::Classes) -> Stats {
    let (process_resident_bytes, process_minor_faults) = process();
    Stats { process_resident_bytes, process_minor_faults, ..gather(by_class) }
}

/// Resident bytes and minor faults of the process, from /proc/self/stat (proc_pid_stat(5)); zeros where it cannot be read.
fn process() -> (u64, u64) {
    let mut text = [0u8; 1024];
    let read = file::open(c"/proc/self/stat", libc::O_RDONLY | libc::O_CLOEXEC, 0)
        .and_then(|file| file::read(file.raw(), &mut text));
    // The name, in parentheses, may hold anything; the third field follows it.
    let rest = read.ok().and_then(|len| {
        let start = text[..len].iter().rposition(|byte| *byte == b')')?;
        core::str::from_utf8(&text[start + 1..len]).ok()
    });
    let field = |number: usize| {
        let mut fields = rest.unwrap_or("").split_ascii_whitespace();
        fields.nth(number - 3).and_then(|text| text.parse::<u64>().ok()).unwrap_or(0)
    };
    (field(24) * memfold_sys::PAGE_SIZE as u64, field(10))
}

/// As [`publish`], which looks through all spans: if that was not done within the last second, or the address space has
/// grown by an eighth since. Not where it has shrunk: a large block may come and go all the time.
pub fn publish_if_due(engine: &Engine) {
    const PERIOD: Nanos = Nanos::from_secs(1);
    let page = &engine.control().alloc;
    let (now, before) = (memfold_arena::COUNTERS.mapped_bytes.get() as u64, page.mapped_bytes.load(Relaxed));
    let age = time::coarse().since(Nanos(page.updated_ns.load(Relaxed)));
    if age >= PERIOD || now > before + before / 8 {
        publish(page);
        engine.show_control();
    }
}

/// Writes the allocator's on a control page. Readers may see a mixture of two writings.
pub fn publish(page: &AllocCounters) {
    let by_class = stats::classes();
    let found = gather(&by_class);
    for (counter, value) in [
        (&page.mapped_bytes, found.mapped_bytes),
        (&page.live_bytes, found.live_bytes),
        (&page.cached_bytes, found.cached_bytes),
        (&page.record_bytes, found.record_bytes),
        (&page.large_blocks, found.large_blocks),
        (&page.large_bytes, found.large_bytes),
        (&page.mmap_calls, found.mmap_calls),
        (&page.munmap_calls, found.munmap_calls),
        (&page.madvise_calls, found.madvise_calls),
        (&page.mprotect_calls, found.mprotect_calls),
        (&page.mremap_calls, found.mremap_calls),
        (&page.updated_ns, time::coarse().0),
    ] {
        counter.store(value, Relaxed);
    }
    for (class, counts) in by_class.iter().enumerate() {
        let values = [classes::block_size(class), counts.span_bytes, counts.used_blocks];
        page.classes[class].iter().zip(values).for_each(|(word, value)| word.store(value as u64, Relaxed));
    }
}

/// Has them printed at exit.
pub fn print_at_exit() {
    AT_EXIT.store(true, Relaxed);
}

/// Prints them on standard error if that was asked for.
pub fn at_exit() {
    if !AT_EXIT.load(Relaxed) {
        return;
    }
    let by_class = stats::classes();
    let found = gather_all(&by_class);
    let print = |text: core::fmt::Arguments<'_>| {
        let mut line = Line::new();
        let _ = line.write_fmt(text);
        crate::notice::say(line.as_str());
    };
    print(format_args!(
        "memfold: allocator: live {} KiB, mapped {} KiB, free and resident {} KiB, records {} KiB; {} blocks of whole \
         pages, {} KiB",
        found.live_bytes >> 10,
        found.mapped_bytes >> 10,
        found.cached_bytes >> 10,
        found.record_bytes >> 10,
        found.large_blocks,
        found.large_bytes >> 10,
    ));
    print(format_args!(
        "memfold: kernel calls: mmap {}, munmap {}, madvise {}, mprotect {}, mremap {}; process: resident {} KiB, minor \
         faults {}",
        found.mmap_calls,
        found.munmap_calls,
        found.madvise_calls,
        found.mprotect_calls,
        found.mremap_calls,
        found.process_resident_bytes >> 10,
        found.process_minor_faults,
    ));
    for (class, counts) in by_class.iter().enumerate().filter(|(_, counts)| counts.spans > 0) {
        print(format_args!(
            "memfold: blocks of {} bytes: {} used, {} KiB in {} spans",
            classes::block_size(class),
            counts.used_blocks,
            counts.span_bytes >> 10,
            counts.spans,
        ));
    }
}

/// `memfold_alloc_stats` of `memfold_alloc.h`: fills in the first `size` bytes of `*out`. Returns 0, or −1 with `EINVAL` where `out`
/// is null or `size` is no multiple of 8.
///
/// # Safety
/// `out` has `size` bytes.
#[no_mangle]
pub unsafe extern "C" fn memfold_alloc_stats(out: *mut u8, size: usize) -> c_int {
    if out.is_null() || !size.is_multiple_of(size_of::<u64>()) {
        crate::set_errno(memfold_sys::Errno(libc::EINVAL));
        return -1;
    }
    let found = gather_all(&stats::classes());
    let known = size.min(size_of::<Stats>());
    // SAFETY: the caller's contract; a longer structure, of a later header, is filled up with zeros.
    unsafe {
        core::ptr::copy_nonoverlapping(core::ptr::from_ref(&found).cast::<u8>(), out, known);
        out.add(known).write_bytes(0, size - known);
    }
    0
}
