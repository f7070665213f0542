//! The C functions by which programs change their mappings.
//!
//! Each makes the same system call as libc's would, and tells the pager. Without the pager they are the system calls and
//! nothing else.

use crate::host::pager;
use crate::small::{makes_a_row, LEAST};
use crate::{or_errno, set_errno};
use core::ffi::{c_int, c_uint, c_ulong, c_void};
use memfold_pager::sabotage::{planted, Bug};
use memfold_pager::{Engine, HugeWish};
use memfold_sys::{mem, Errno, Result, PAGE_SIZE};

/// Inaccessible mappings up to this length are entered into the tables at once, to be managed when they become accessible; longer ones
/// part by part, as they do.
const LONG_RESERVATION: usize = 1 << 30;

const PLAIN: c_int = libc::PROT_READ | libc::PROT_WRITE;

fn pointer(result: Result<usize>) -> *mut c_void {
    or_errno(result) as *mut c_void
}

fn status(result: Result<()>) -> c_int {
    or_errno(result.map(|()| 0)) as c_int
}

/// Makes a call, and once more if the kernel refuses it for the number of mappings and the pager can have fewer of them.
fn again<R>(engine: &'static Engine, call: impl Fn() -> Result<R>) -> Result<R> {
    match call() {
        Err(Errno::ENOMEM) if engine.join_mappings() => call(),
        result => result,
    }
}

/// Whether a mapping made with these flags may be managed.
fn is_manageable(flags: c_int) -> bool {
    const WANTED: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const ODD: c_int = libc::MAP_SHARED & !libc::MAP_PRIVATE
        | libc::MAP_STACK
        | libc::MAP_GROWSDOWN
        | libc::MAP_LOCKED
        | libc::MAP_HUGETLB;
    flags & WANTED == WANTED && flags & ODD == 0
}

/// Whether a mapping made with these flags is one that may be managed but for being locked in memory.
fn is_locked(flags: c_int) -> bool {
    flags & libc::MAP_LOCKED != 0 && is_manageable(flags & !libc::MAP_LOCKED)
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
    let manageable = is_manageable(flags);
    if replaces && !manageable {
        engine.no_longer_reserved(addr as usize, len);
    }
    let result = again(engine, || if replaces { engine.unmap(addr as usize, len, map) } else { map() });
    if let Some(start) = result.ok().filter(|_| len >= LEAST && is_locked(flags)) {
        engine.mapped_locked(start, len);
    }
    if let Some(start) = result.ok().filter(|_| manageable) {
        if prot == PLAIN && (len >= LEAST || engine.lies_beside_known(start, len) || makes_a_row(start, len))
        {
            engine.mapped(start, len);
        } else if prot == libc::PROT_NONE && len >= LEAST {
            if len <= LONG_RESERVATION {
                engine.reserved(start, len);
            } else {
                engine.reserved_long(start, len);
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
        Some(engine) => {
            engine.no_longer_reserved(addr as usize, len);
            again(engine, || engine.unmap(addr as usize, len, unmap))
        }
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
        Some(engine) => {
            if prot == PLAIN {
                engine.enter_reserved(addr as usize, len);
            }
            again(engine, || engine.protect(addr as usize, len, prot == PLAIN, protect))
        }
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
        Meaning::Forked(forked) => {
            // What the tables do not know could not tell of it later.
            engine.no_longer_reserved(addr as usize, len);
            engine.set_forked(addr as usize, len, forked, advise)
        }
        Meaning::Dumped(dumped) => {
            engine.set_reserved_dumped(addr as usize, len, dumped);
            engine.set_dumped(addr as usize, len, dumped, advise)
        }
        Meaning::Huge => match engine.huge_wish() {
            HugeWish::Granted => advise(),
            // What is refused to the one is to the other.
            // SAFETY: as above.
            HugeWish::Declined => unsafe { mem::madvise(addr as usize, len, libc::MADV_NOHUGEPAGE) },
            HugeWish::LeftAlone => engine.exempt(addr as usize, len, advise),
        },
        Meaning::MakesHuge => match engine.huge_wish() {
            // The kernel makes one of what is there.
            HugeWish::Granted => engine.with_all_there(addr as usize, len, advise),
            HugeWish::Declined => Err(Errno::EINVAL),
            HugeWish::LeftAlone => engine.exempt(addr as usize, len, advise),
        },
        Meaning::Odd => engine.exempt(addr as usize, len, advise),
    })
}

/// What an advice means for evicted pages.
enum Meaning {
    /// The contents go.
    Drops,
    /// Nothing.
    Harmless,
    /// Whether forked children have the memory.
    Forked(bool),
    /// Whether core dumps have the memory.
    Dumped(bool),
    /// It should be in huge pages.
    Huge,
    /// It should be so now.
    MakesHuge,
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
            | libc::MADV_KEEPONFORK
            // What is merged with other pages the kernel does not move, and keeps.
            | libc::MADV_MERGEABLE
            | libc::MADV_UNMERGEABLE
            | libc::MADV_NOHUGEPAGE
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_POPULATE_READ
            | libc::MADV_POPULATE_WRITE => Meaning::Harmless,
            libc::MADV_DONTDUMP => Meaning::Dumped(false),
            libc::MADV_DODUMP => Meaning::Dumped(true),
            libc::MADV_DONTFORK => Meaning::Forked(false),
            libc::MADV_DOFORK => Meaning::Forked(true),
            libc::MADV_HUGEPAGE => Meaning::Huge,
            libc::MADV_COLLAPSE => Meaning::MakesHuge,
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
    // What the kernel refuses, or does something else with, is the kernel's to answer.
    let fits = |start: usize, len: usize| start.checked_add(len).is_some_and(|end| end < 1 << 47);
    if new_len == 0 || !fits(old, old_len) || !fits(old, new_len) {
        return pointer(call(flags));
    }
    engine.no_longer_reserved(old, old_len);
    if flags & libc::MREMAP_FIXED != 0 && fits(new, new_len) {
        engine.no_longer_reserved(new, new_len);
    }
    let moves_only = flags & !libc::MREMAP_MAYMOVE != 0 || old_len == 0;
    let result = if !moves_only && old % PAGE_SIZE == 0 {
        let may_move = flags & libc::MREMAP_MAYMOVE != 0;
        resize(engine, old, old_len, new_len, may_move, None, call)
    } else {
        let fixed = (flags & libc::MREMAP_FIXED != 0).then_some(new);
        if flags & libc::MREMAP_DONTUNMAP != 0 {
            // The old range stays, empty, and the new one is like it; both are left alone from now on.
            engine.exempt(old, old_len, || call(flags))
        } else {
            let whole = round(new_len) == round(old_len) && engine.may_have_cut(old, old_len);
            engine.remap(old, old_len, new_len, fixed, || match fixed {
                Some(new) if whole && is_cut(old, old_len) && !overlap(old, new, round(old_len)) => {
                    move_in_pieces(old, round(old_len), new, round(new_len)).map_err(|(_, error)| error)
                }
                _ => call(flags),
            })
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
    align: Option<usize>,
    call: impl Fn(c_int) -> Result<usize>,
) -> Result<usize> {
    let (old_end, new_end) = (old + round(old_len), old + round(new_len));
    let into_pieces = || {
        let new = mem::map_anonymous(0, new_len, libc::MAP_NORESERVE)?;
        move_or_unmap(old, round(old_len), new, round(new_len))
    };
    if align.is_none() && !engine.is_managed(old, old_len) {
        let flags = if may_move { libc::MREMAP_MAYMOVE } else { 0 };
        let ours = engine.may_have_cut(old, old_len);
        return engine.remap(old, old_len, new_len, None, || match call(flags) {
            // It may have been one mapping before the pager registered parts of it.
            Err(Errno::EFAULT) if ours && may_move => into_pieces(),
            Err(Errno::EFAULT) if ours => Err(Errno::ENOMEM),
            result => result,
        });
    }
    if new_end <= old_end {
        // SAFETY: the caller gives up the end of its memory.
        let cut = || unsafe { mem::munmap(new_end, old_end - new_end) };
        return if new_end == old_end {
            Ok(old)
        } else {
            engine.unmap(new_end, old_end - new_end, cut).map(|()| old)
        };
    }
    // Memory of the same kind right behind becomes one mapping with it, and what is evicted may stay so.
    let extra = new_end - old_end;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: takes address space that nobody uses.
    match unsafe { mem::mmap(old_end, extra, PLAIN, flags, -1, 0) } {
        Ok(start) if start == old_end => {
            engine.mapped(old_end, extra);
            return Ok(old);
        }
        // A kernel that does not know the flag (before 4.17) took the address for a hint.
        // SAFETY: just mapped, and of no use.
        Ok(elsewhere) => drop(unsafe { mem::munmap(elsewhere, extra) }),
        Err(_) => {}
    }
    if !may_move {
        return Err(Errno::ENOMEM);
    }
    match align {
        None => engine.remap(old, old_len, new_len, None, || match call(libc::MREMAP_MAYMOVE) {
            Err(Errno::EFAULT) => into_pieces(),
            result => result,
        }),
        Some(align) => engine.remap(old, old_len, new_len, None, || {
            let new = mem::reserve_aligned(new_len, align)?;
            // SAFETY: just reserved, and nobody's.
            unsafe { mem::mprotect(new, new_len, PLAIN) }?;
            move_or_unmap(old, round(old_len), new, round(new_len))
        }),
    }
}

fn move_or_unmap(old: usize, old_len: usize, new: usize, new_len: usize) -> Result<usize> {
    move_in_pieces(old, old_len, new, new_len).map_err(|(ours, error)| {
        if ours > 0 {
            // SAFETY: empty again. What lies behind is not unmapped: the kernel may have done so before it refused a move there,
            // and another thread have mapped something since.
            let _ = unsafe { mem::munmap(new, ours) };
        }
        error
    })
}

/// Moves memory that the kernel has as several mappings, because parts of it were registered with the pager:
/// `mremap` takes only one at a time. The new place, at least as long, is replaced; the last mapping grows to its length. On
/// failure nothing has happened but to the new place, and it says how many bytes of that are there for certain.
fn move_in_pieces(
    old: usize,
    old_len: usize,
    new: usize,
    new_len: usize,
) -> core::result::Result<usize, (usize, Errno)> {
    debug_assert!(new_len >= old_len);
    // The last piece goes for good, with its growth; what comes before it can come back until then.
    let mut last = 0;
    while last < old_len {
        let piece = one_mapping_at(old + last, old_len - last);
        if last + piece == old_len {
            break;
        }
        last += piece;
    }
    let result = move_contents(old, new, last).and_then(|()| {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: the last piece of the old place, to its place in the new one.
        unsafe { mem::mremap(old + last, old_len - last, new_len - last, flags, new + last) }
            .map_err(|e| (last, e))
    });
    match result {
        Ok(_) if last == 0 => {}
        Ok(_) => {
            // SAFETY: empty now, and still ours. Where the kernel refuses, it stays taken and unused.
            let _ = unsafe { mem::munmap(old, last) };
        }
        Err((moved, error)) => {
            // Back with what was moved, so that nothing has happened.
            if moved > 0 && move_contents(new, old, moved).is_err() {
                memfold_sys::thread::abort_process();
            }
            return Err((moved, error));
        }
    }
    Ok(new)
}

/// Moves the contents of a range piece by piece, as the kernel has it. The range stays taken, by mappings that are empty
/// then. On failure says how many bytes had been moved.
fn move_contents(from: usize, to: usize, len: usize) -> core::result::Result<(), (usize, Errno)> {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
    let mut done = 0;
    while done < len {
        let piece = one_mapping_at(from + done, len - done);
        // SAFETY: the caller moves all of the range, and the target is its own.
        unsafe { mem::mremap(from + done, piece, piece, flags, to + done) }.map_err(|e| (done, e))?;
        done += piece;
    }
    Ok(())
}

/// How many bytes at `addr`, `len` at most, the kernel has as one mapping.
fn one_mapping_at(addr: usize, len: usize) -> usize {
    let mut piece = len;
    while piece > PAGE_SIZE && is_cut(addr, piece) {
        piece = round(piece / 2);
    }
    piece
}

/// Whether the kernel has the range as more than one mapping. To find out by a move that fails would be too late: a move
/// to a fixed place unmaps what is there before it fails, and another thread may map there then.
fn is_cut(addr: usize, len: usize) -> bool {
    /// All the address space that a program is given by default: what begins in it reaches the end, where the stack is.
    const TOO_LONG: usize = (1 << if cfg!(target_arch = "x86_64") { 47 } else { 48 }) - PAGE_SIZE;
    // SAFETY: asks for growth in place that there is no room for, which the kernel refuses, after it has looked whether
    // the range is one mapping.
    let refused = unsafe { mem::mremap(addr, len, TOO_LONG, 0, 0) };
    refused == Err(Errno::EFAULT) && !planted(Bug::CutNotSeen)
}

fn overlap(a: usize, b: usize, len: usize) -> bool {
    a.abs_diff(b) < len
}

/// Up to whole pages.
pub(crate) fn round(len: usize) -> usize {
    len.saturating_add(PAGE_SIZE - 1) & !(PAGE_SIZE - 1)
}

/// `mremap` that may move to an address that is a multiple of an extent, for the allocator's own large blocks.
pub fn remap_managed(engine: &'static Engine, old: usize, old_len: usize, new_len: usize) -> Result<usize> {
    // SAFETY: the allocator gives up the old range.
    let call = |flags| unsafe { mem::mremap(old, old_len, new_len, flags, 0) };
    resize(engine, old, old_len, new_len, true, Some(memfold_sys::EXTENT_SIZE), call)
}

/// `mlock(2)`: locked memory is never evicted.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: locking changes no contents.
    lock_with(addr as usize, len, || unsafe { memfold_sys::syscall!(mlock, addr as usize, len) })
}

/// `mlock2(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn mlock2(addr: *const c_void, len: usize, flags: c_uint) -> c_int {
    // SAFETY: locking changes no contents.
    lock_with(addr as usize, len, || unsafe { memfold_sys::syscall!(mlock2, addr as usize, len, flags) })
}

fn lock_with(addr: usize, len: usize, lock: impl FnOnce() -> Result<usize>) -> c_int {
    or_errno(match pager() {
        Some(engine) => engine.lock_in_memory(addr, len, lock),
        None => lock(),
    }) as c_int
}

/// `munlock(2)`: what was locked once is not folded, but no longer counts as locked.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn munlock(addr: *const c_void, len: usize) -> c_int {
    // SAFETY: unlocking changes no contents.
    let result = unsafe { memfold_sys::syscall!(munlock, addr as usize, len) };
    if let Some(engine) = pager().filter(|_| result.is_ok()) {
        engine.unlocked(addr as usize, len);
    }
    or_errno(result) as c_int
}

/// `munlockall(2)`, the same for all memory.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn munlockall() -> c_int {
    // SAFETY: unlocking changes no contents.
    let result = unsafe { memfold_sys::syscall!(munlockall) };
    if let Some(engine) = pager().filter(|_| result.is_ok()) {
        engine.unlocked(0, usize::MAX);
    }
    or_errno(result) as c_int
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
    if let Some(engine) = pager().filter(|_| !planted(Bug::LockNotSeen)) {
        engine.stop(&"the program locked all its memory (mlockall)");
    }
    // SAFETY: locking changes no contents.
    or_errno(unsafe { memfold_sys::syscall!(mlockall, flags) }) as c_int
}

/// A structure of the program's of so many words, if there is memory and folding has not ended because the program confines itself: what the kernel
/// says of others is its own affair.
fn words<const N: usize>(at: usize) -> Option<[u64; N]> {
    // SAFETY: it is in memory, and need not be aligned.
    (!memfold_sys::thread::is_confined() && mem::is_readable(at, N * 8))
        .then(|| unsafe { core::ptr::read_unaligned(at as *const [u64; N]) })
}

/// `ioctl(2)`; of interest is the registration of memory with a userfaultfd of the program's own, and what moves pages by one. libc's takes a
/// variable number of arguments, of which the kernel looks at one.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    /// `UFFDIO_REGISTER` (linux/userfaultfd.h); its argument begins with start and length.
    const REGISTER: u32 = 0xc020_aa00;
    /// `UFFDIO_MOVE`; its argument begins with target, source and length.
    const MOVE: u32 = 0xc028_aa05;
    // The kernel takes 32 bits of it; who has it in an `int` passes others with them.
    let asked = request as u32;
    // SAFETY: the caller's contract.
    let call = || unsafe { memfold_sys::syscall!(ioctl, fd, request, argument) };
    or_errno(match pager() {
        Some(engine) if asked == REGISTER && !planted(Bug::UserfaultfdNotSeen) => match words(argument) {
            Some([start, len]) => engine.hand_over(start as usize, len as usize, call),
            None => call(),
        },
        Some(engine) if asked == MOVE && !planted(Bug::TakenAwayUnseen) => match words(argument) {
            Some([_, from, len]) => engine.with_all_there(from as usize, len as usize, call),
            None => call(),
        },
        _ => call(),
    }) as c_int
}
