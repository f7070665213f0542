//! The C functions by which programs change their mappings.
//!
//! Each makes the same system call as libc's would, and tells the pager. Without the pager they are the system calls and
//! nothing else.

use crate::start::pager;
use crate::{or_errno, set_errno};
use core::ffi::{c_int, c_uint, c_void};
use pager::Engine;
use sys::{mem, Errno, Result, PAGE_SIZE};

/// Mappings shorter than this are not managed.
const LEAST: usize = 1 << 20;
/// Inaccessible mappings up to this length are remembered, to be managed when they become accessible.
const LONGEST_RESERVATION: usize = 4 << 30;

const PLAIN: c_int = libc::PROT_READ | libc::PROT_WRITE;

fn pointer(result: Result<usize>) -> *mut c_void {
    or_errno(result) as *mut c_void
}

fn status(result: Result<()>) -> c_int {
    or_errno(result.map(|()| 0)) as c_int
}

/// Whether a mapping made with these arguments may be managed.
fn is_manageable(len: usize, flags: c_int) -> bool {
    const WANTED: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const ODD: c_int = libc::MAP_SHARED & !libc::MAP_PRIVATE
        | libc::MAP_STACK
        | libc::MAP_GROWSDOWN
        | libc::MAP_LOCKED
        | libc::MAP_HUGETLB;
    len >= LEAST && flags & WANTED == WANTED && flags & ODD == 0
}

/// `mmap(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    let map = || unsafe { mem::mmap(addr as usize, len, prot, flags, fd, offset) };
    let Some(engine) = pager() else { return pointer(map()) };
    let replaces =
        flags & libc::MAP_FIXED != 0 && flags & libc::MAP_FIXED_NOREPLACE != libc::MAP_FIXED_NOREPLACE;
    let result = if replaces { engine.unmap(addr as usize, len, map) } else { map() };
    if let Ok(start) = result {
        if is_manageable(len, flags) {
            if prot == PLAIN {
                engine.mapped(start, len);
            } else if prot == libc::PROT_NONE && len <= LONGEST_RESERVATION {
                engine.reserved(start, len);
            }
        }
    }
    pointer(result)
}

/// `mmap64`, the same on 64-bit machines.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's contract.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// `munmap(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn munmap(addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: the caller's contract.
    let unmap = || unsafe { mem::munmap(addr as usize, len) };
    status(match pager() {
        Some(engine) => engine.unmap(addr as usize, len, unmap),
        None => unmap(),
    })
}

/// `mprotect(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mprotect(addr: *mut c_void, len: usize, prot: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let protect = || unsafe { mem::mprotect(addr as usize, len, prot) };
    status(match pager() {
        Some(engine) => engine.protect(addr as usize, len, prot == PLAIN, protect),
        None => protect(),
    })
}

/// `madvise(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn madvise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let advise = || unsafe { mem::madvise(addr as usize, len, advice) };
    let Some(engine) = pager() else { return status(advise()) };
    status(match Meaning::of(advice) {
        Meaning::Drops => engine.drop_contents(addr as usize, len, advise),
        Meaning::Harmless => advise(),
        Meaning::Odd => engine.exempt(addr as usize, len, advise),
    })
}

/// What an advice means for evicted pages.
enum Meaning {
    /// The contents go.
    Drops,
    /// Nothing.
    Harmless,
    /// Something that eviction could not honour.
    Odd,
}

impl Meaning {
    fn of(advice: c_int) -> Meaning {
        match advice {
            libc::MADV_DONTNEED | libc::MADV_FREE | libc::MADV_DONTNEED_LOCKED => Meaning::Drops,
            libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_DOFORK
            | libc::MADV_KEEPONFORK
            | libc::MADV_UNMERGEABLE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_DONTDUMP
            | libc::MADV_DODUMP
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_POPULATE_READ
            | libc::MADV_POPULATE_WRITE => Meaning::Harmless,
            _ => Meaning::Odd,
        }
    }
}

/// `mremap(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let (old, new) = (old as usize, new as usize);
    // SAFETY: the caller's contract.
    let call = |flags: c_int| unsafe { mem::mremap(old, old_len, new_len, flags, new) };
    let Some(engine) = pager() else { return pointer(call(flags)) };
    let moves_only = flags & (libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) != 0 || old_len == 0;
    let result = if !moves_only && old % PAGE_SIZE == 0 {
        let may_move = flags & libc::MREMAP_MAYMOVE != 0;
        resize(engine, old, old_len, new_len, may_move, call)
    } else {
        if flags & libc::MREMAP_FIXED != 0 && new % PAGE_SIZE == 0 {
            // The kernel unmaps what is at the new place; this way the pager sees it.
            // SAFETY: the caller gives up what is there.
            let _ = engine.unmap(new, new_len, || unsafe { mem::munmap(new, new_len) });
        }
        if flags & libc::MREMAP_DONTUNMAP != 0 {
            // The old range stays, empty, and the new one is like it; both are left alone from now on.
            engine.exempt(old, old_len, || call(flags))
        } else {
            engine.remap(old, old_len, new_len, || call(flags))
        }
    };
    pointer(result)
}

/// A change of length that moves only if it must.
fn resize(
    engine: &'static Engine,
    old: usize,
    old_len: usize,
    new_len: usize,
    may_move: bool,
    call: impl Fn(c_int) -> Result<usize>,
) -> Result<usize> {
    let (old_end, new_end) = (old + round(old_len), old + round(new_len));
    if new_end <= old_end {
        return engine.unmap(new_end, old_end - new_end, || call(0));
    }
    match call(0) {
        Ok(start) => {
            if engine.is_managed(old, old_len) {
                engine.mapped(old_end, new_end - old_end);
            }
            Ok(start)
        }
        Err(Errno::ENOMEM) if may_move => engine.remap(old, old_len, new_len, || call(libc::MREMAP_MAYMOVE)),
        Err(e) => Err(e),
    }
}

fn round(len: usize) -> usize {
    len.saturating_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1)
}

/// `mremap` that may move, for the allocator's own large blocks.
pub fn remap_managed(engine: &'static Engine, old: usize, old_len: usize, new_len: usize) -> Result<usize> {
    // SAFETY: the allocator gives up the old range.
    resize(engine, old, old_len, new_len, true, |flags| unsafe {
        mem::mremap(old, old_len, new_len, flags, 0)
    })
}

/// `mlock(2)`: locked memory is never evicted.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: locking changes no contents.
    lock_with(addr as usize, len, || unsafe { sys::syscall!(mlock, addr as usize, len) })
}

/// `mlock2(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    // SAFETY: locking changes no contents.
    lock_with(addr as usize, len, || unsafe { sys::syscall!(mlock2, addr as usize, len, flags) })
}

fn lock_with(addr: usize, len: usize, lock: impl FnOnce() -> Result<usize>) -> c_int {
    or_errno(match pager() {
        Some(engine) => engine.exempt(addr, len, lock),
        None => lock(),
    }) as c_int
}

/// `mlockall(2)`: a program that locks all its memory is not folded from then on.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    if flags & (libc::MCL_CURRENT | libc::MCL_FUTURE) == 0 {
        set_errno(Errno::EINVAL);
        return -1;
    }
    if let Some(engine) = pager() {
        engine.stop(&"the program locked all its memory (mlockall)");
    }
    // SAFETY: locking changes no contents.
    or_errno(unsafe { sys::syscall!(mlockall, flags) }) as c_int
}
