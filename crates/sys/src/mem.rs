//! Mapping, unmapping and advising address ranges of this process.

use crate::call::{Errno, Result};
use crate::inject::{self, Point};
use crate::{identity, syscall, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};

/// Called with address and length of every range that memfold maps for itself.
pub type ClaimHook = fn(usize, usize);

static CLAIM: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Has `hook` called for every range that [`map_anonymous`] or [`reserve_aligned`] takes from now on. The pager needs
/// it: where a program unmaps memory by a system call of its own, unseen, and memfold's own memory comes to lie
/// there, the pager must not take it for the program's.
pub fn on_claim(hook: ClaimHook) {
    CLAIM.store(hook as *mut (), Release);
}

/// Set by [`keep_from_children`].
static KEPT_FROM_CHILDREN: AtomicBool = AtomicBool::new(false);

/// Has all that memfold maps from now on be in no forked child (`MADV_DONTFORK`), and not locked in memory, as it would be after the program's
/// `mlockall(MCL_FUTURE)`: for who is in a process that nobody prepared for it. A child has no use for it, and what is locked the kernel would let pages
/// of locked memory be moved to.
pub fn keep_from_children() {
    KEPT_FROM_CHILDREN.store(true, Relaxed);
}

/// The same of a range that was mapped by somebody else.
pub fn keep_range_from_children(addr: usize, len: usize) {
    // SAFETY: changes no bytes. Where the kernel refuses, a child has a copy of what it does not use.
    unsafe {
        let _ = syscall!(madvise, addr, len, libc::MADV_DONTFORK);
        let _ = syscall!(munlock, addr, len);
    }
}

fn claim(addr: usize, len: usize) {
    if KEPT_FROM_CHILDREN.load(Relaxed) {
        keep_range_from_children(addr, len);
    }
    let hook = CLAIM.load(Acquire);
    if !hook.is_null() {
        // SAFETY: only `on_claim` stores here, and it stores a `ClaimHook`.
        let hook: ClaimHook = unsafe { core::mem::transmute(hook) };
        hook(addr, len);
    }
}

/// Where agents map memory next; 0 before any has.
static AGENTS_PLACE: AtomicUsize = AtomicUsize::new(0);

/// Where the calling thread had better map `len` bytes; 0 for wherever the kernel likes. A wish, no more.
///
/// Agents map memory at any time, and the kernel would give them what the program has unmapped a moment ago. A program that knows
/// that nothing is there, because it alone maps, would be wrong. So they have a place of their own, half as high as this
/// library, which is at random, and far from all else; what was unmapped there is not used again.
pub fn place(len: usize) -> usize {
    if !identity::is_agent() {
        return 0;
    }
    let library = &raw const AGENTS_PLACE as usize;
    let _ = AGENTS_PLACE.compare_exchange(0, agents_first(library), Relaxed, Relaxed);
    AGENTS_PLACE.fetch_add(len.next_multiple_of(PAGE_SIZE), Relaxed)
}

/// Where their place begins, by an address in this library.
fn agents_first(library: usize) -> usize {
    (library / 2).next_multiple_of(EXTENT_SIZE)
}

/// Ranges of memfold's own outside of the agents' place, one a word: the first page, and in the low bits how many. 0 is none.
static OWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Ranges in the agents' place that were somebody else's when they were wished for, as in [`OWN`].
static FOREIGN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// The low bits of such a word.
const OWN_PAGES: u32 = 28;

fn own_range(word: u64) -> (usize, usize) {
    let start = (word >> OWN_PAGES) as usize * PAGE_SIZE;
    (start, start + (word & ((1 << OWN_PAGES) - 1)) as usize * PAGE_SIZE)
}

/// Notes that a mapping is memfold's own for as long as the process lives, for [`own_bytes`]. What lies in the agents' place counts as
/// such anyway. Beyond 64 ranges that do not touch each other it is forgotten.
pub fn note_own(start: usize, len: usize) {
    let end = start + len.next_multiple_of(PAGE_SIZE);
    let (first, next) = agents_range();
    if first <= start && end <= next {
        return;
    }
    note_in(&OWN, start, end);
}

/// Notes what became of a wish for a place ([`place`]): where it was not granted, somebody else is there.
fn granted(wish: usize, start: usize, len: usize) {
    if wish != 0 && wish != start {
        let len = len.next_multiple_of(PAGE_SIZE);
        note_in(&FOREIGN, wish, wish + len);
        note_in(&OWN, start, start + len);
    }
}

fn note_in(cells: &[AtomicU64], start: usize, end: usize) {
    let pack = |(start, end): (usize, usize)| {
        ((start / PAGE_SIZE) as u64) << OWN_PAGES | ((end - start) / PAGE_SIZE) as u64
    };
    for cell in cells {
        loop {
            let word = cell.load(Relaxed);
            let (from, to) = own_range(word);
            let joined = match word {
                0 => (start, end),
                _ if to == start => (from, end),
                _ if end == from => (start, to),
                _ => break,
            };
            // Relaxed: the word is all there is.
            if cell.compare_exchange(word, pack(joined), Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }
}

/// The agents' place as far as it was used.
fn agents_range() -> (usize, usize) {
    match AGENTS_PLACE.load(Relaxed) {
        0 => (0, 0),
        next => (agents_first(&raw const AGENTS_PLACE as usize), next),
    }
}

/// The ranges that are memfold's own: those noted, and the agents' place; some may be empty.
pub fn own_ranges() -> impl Iterator<Item = (usize, usize)> {
    OWN.iter().map(|cell| own_range(cell.load(Relaxed))).chain([agents_range()])
}

/// Unmaps all that is memfold's own, but for the range of `spared`, and for what was somebody else's where agents wished to be.
///
/// # Safety
/// Nobody uses any of it any more, and nothing of memfold's is called again but to end the thread.
pub unsafe fn give_up_own(spared: (usize, usize)) {
    for (start, end) in own_ranges() {
        let mut at = start;
        while at < end {
            let foreign = |cell: &AtomicU64| own_range(cell.load(Relaxed));
            let kept = FOREIGN.iter().map(foreign).chain([spared]);
            let next = kept.filter(|&(from, to)| at < to && from < end && from < to).min();
            let (stop, on) = next.map_or((end, end), |(from, to)| (from.max(at), to));
            if at < stop {
                // SAFETY: the caller's contract.
                let _ = unsafe { munmap(at, stop - at) };
            }
            at = on;
        }
    }
}

/// How many bytes of a range are memfold's own.
pub fn own_bytes(start: usize, end: usize) -> usize {
    own_ranges().map(|(from, to)| end.min(to).saturating_sub(start.max(from))).sum()
}

/// Maps `len` bytes of private anonymous memory, readable and writable.
///
/// `flags` are added to `MAP_PRIVATE | MAP_ANONYMOUS`; a `hint` of 0 leaves the address to the kernel, or for agents to [`place`].
pub fn map_anonymous(hint: usize, len: usize, flags: i32) -> Result<usize> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    if let Some(error) = inject::error(Point::Map) {
        return Err(error);
    }
    if inject::is_refused(len) {
        return Err(crate::Errno::ENOMEM);
    }
    debug_assert!(flags & libc::MAP_FIXED == 0, "map_anonymous must not replace a mapping");
    let wish = if hint == 0 { place(len) } else { 0 };
    // SAFETY: a mapping without MAP_FIXED takes address space that nobody uses.
    let start = unsafe { syscall!(mmap, hint | wish, len, prot, flags, -1isize, 0) }?;
    granted(wish, start, len);
    claim(start, len);
    Ok(start)
}

/// Maps `len` bytes of memfold's own, as [`map_anonymous`] does with the address left open, and never in huge pages: where the kernel gives such by
/// itself (`transparent_hugepage/enabled` is `always`), a touch of a table would take 2 MiB.
pub fn map_own(len: usize, flags: i32) -> Result<usize> {
    let start = map_anonymous(0, len, flags & !libc::MAP_POPULATE)?;
    // SAFETY: advice about a mapping that nobody has seen. A kernel without huge pages refuses, which is as good.
    let _ = unsafe { madvise(start, len, libc::MADV_NOHUGEPAGE) };
    if flags & libc::MAP_POPULATE != 0 {
        populate(start, len);
    }
    Ok(start)
}

/// The same for what bytes of the program's pass through: no core dump has it, if the kernel can keep it out.
pub fn map_scratch(len: usize, flags: i32) -> Result<usize> {
    let start = map_own(len, flags)?;
    // SAFETY: our own mapping, of which this changes no bytes.
    let _ = unsafe { madvise(start, len, libc::MADV_DONTDUMP) };
    Ok(start)
}

/// Makes fresh memory resident, as far as there is room; before Linux 5.14, which has no call for it, by touching it.
fn populate(start: usize, len: usize) {
    // SAFETY: the caller's own mapping, which nobody has seen.
    if unsafe { madvise(start, len, libc::MADV_POPULATE_WRITE) } != Err(crate::Errno::EINVAL) {
        return;
    }
    for page in (start..start + len).step_by(PAGE_SIZE) {
        // SAFETY: as above; it holds zeros.
        unsafe { core::ptr::write_volatile(page as *mut u8, 0) };
    }
}

/// Maps a part of an open file, shared, to be read, where the kernel likes and the added `flags` permit.
pub fn map_file(fd: i32, len: usize, offset: usize, flags: i32) -> Result<usize> {
    // No wish for a place: the kernel refuses one for the rings of io_uring.
    // SAFETY: a mapping without MAP_FIXED takes address space that nobody uses.
    let start = unsafe { mmap(0, len, libc::PROT_READ, libc::MAP_SHARED | flags, fd, offset as i64) }?;
    claim(start, len);
    Ok(start)
}

/// The same of a file of the pager's own, from its beginning, where an agent's memory belongs ([`place`]).
pub fn map_own_file(fd: i32, len: usize, flags: i32) -> Result<usize> {
    let wish = place(len);
    // SAFETY: a mapping without MAP_FIXED takes address space that nobody uses.
    let start = unsafe { mmap(wish, len, libc::PROT_READ, libc::MAP_SHARED | flags, fd, 0) }?;
    granted(wish, start, len);
    claim(start, len);
    Ok(start)
}

/// Copies words of the process's own memory from an address that may hold none: the kernel copies, and answers `EFAULT` where a touch would be
/// a fault (process_vm_readv(2)). Returns how many bytes were copied, whole words.
pub fn peek(from: usize, out: &mut [usize]) -> Result<usize> {
    let len = core::mem::size_of_val(out);
    // Up to the end of a page, as what follows may be no memory.
    let len = len.min(PAGE_SIZE - from % PAGE_SIZE);
    let piece = |at: usize| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: len };
    let (local, remote) = (piece(out.as_ptr() as usize), piece(from));
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    // SAFETY: the slice is valid for its length, and the kernel finds out whether the rest is.
    let read = unsafe { syscall!(process_vm_readv, identity::current_pid(), local, 1, remote, 1, 0) }?;
    Ok(read / 8 * 8)
}

/// Whether the kernel finds memory that can be read in all of a range, which ends on the page where it begins or on the next one. Also true where it does not tell, as in a
/// program that has confined its system calls: what it says of no memory is its own affair.
pub fn is_readable(at: usize, len: usize) -> bool {
    let is_there = |at: usize| peek(at & !7, &mut [0]) != Err(Errno::EFAULT);
    let last = at.wrapping_add(len - 1);
    identity::is_confined() || (is_there(at) && (at / PAGE_SIZE == last / PAGE_SIZE || is_there(last)))
}

/// Maps a file of memfold's own, shared, from its beginning, with the protection `prot`, where an agent's memory belongs ([`place`]).
///
/// # Safety
/// Where it can be written, who uses the file otherwise is prepared for that.
pub unsafe fn map_own_shared(fd: i32, len: usize, prot: i32) -> Result<usize> {
    let wish = place(len);
    // SAFETY: a mapping without MAP_FIXED takes address space that nobody uses.
    let start = unsafe { mmap(wish, len, prot, libc::MAP_SHARED, fd, 0) }?;
    granted(wish, start, len);
    if KEPT_FROM_CHILDREN.load(Relaxed) {
        keep_range_from_children(start, len);
    }
    Ok(start)
}

/// Copies from a mapping of a file, which may be cut short or lie on a disk that cannot be read: the kernel copies, and answers `EFAULT` where a
/// touch would end the process by SIGBUS (process_vm_readv(2)). Where a sandbox does not permit that call, the thread copies. What was read is not kept in
/// the page table.
pub fn read_mapped(from: usize, out: &mut [u8]) -> Result<()> {
    let piece = |at: usize| libc::iovec { iov_base: at as *mut libc::c_void, iov_len: out.len() };
    let (local, remote) = (piece(out.as_ptr() as usize), piece(from));
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    // SAFETY: the slice is valid for its length, and the kernel finds out whether the rest is.
    let read = unsafe { syscall!(process_vm_readv, identity::current_tid(), local, 1, remote, 1, 0) };
    let read = match read {
        Err(crate::Errno::EPERM | crate::Errno::ENOSYS) => {
            // SAFETY: the caller's mapping is as long, and nobody writes to what is read.
            unsafe { core::ptr::copy_nonoverlapping(from as *const u8, out.as_mut_ptr(), out.len()) };
            Ok(out.len())
        }
        read => read,
    };
    let (start, end) = (from & !(PAGE_SIZE - 1), (from + out.len()).next_multiple_of(PAGE_SIZE));
    // SAFETY: a part of a mapping of a file, whose pages come back from there.
    let _ = unsafe { madvise(start, end - start, libc::MADV_DONTNEED) };
    match read {
        Ok(n) if n == out.len() => Ok(()),
        Ok(_) => Err(crate::Errno(libc::EFAULT)),
        Err(error) => Err(error),
    }
}

/// Reserves `len` bytes of address space at an address aligned to `align` (a power of two), with no
/// access and no memory behind it.
pub fn reserve_aligned(len: usize, align: usize) -> Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let padded = len.checked_add(align).ok_or(crate::Errno::ENOMEM)?;
    let wish = place(padded);
    // SAFETY: takes address space that nobody uses.
    let raw = unsafe { syscall!(mmap, wish, padded, libc::PROT_NONE, flags, -1isize, 0) }?;
    granted(wish, raw, padded);
    let start = raw.next_multiple_of(align);
    // SAFETY: both trimmed ends lie within the mapping just made and are not handed out.
    unsafe {
        if start > raw {
            munmap(raw, start - raw)?;
        }
        if start + len < raw + padded {
            munmap(start + len, raw + padded - start - len)?;
        }
    }
    claim(start, len);
    Ok(start)
}

/// The `mmap` system call as it is.
///
/// # Safety
/// With `MAP_FIXED`, nothing may still use what was mapped at `addr`.
pub unsafe fn mmap(addr: usize, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { syscall!(mmap, addr, len, prot, flags, fd as isize, offset) }
}

/// Unmaps a range.
///
/// # Safety
/// Nothing may still use the range.
pub unsafe fn munmap(addr: usize, len: usize) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { syscall!(munmap, addr, len) }.map(drop)
}

/// The `mremap` system call as it is.
///
/// # Safety
/// Nothing may still use the old range unless it stays where it is.
pub unsafe fn mremap(old: usize, old_len: usize, new_len: usize, flags: i32, new: usize) -> Result<usize> {
    // SAFETY: the caller's contract.
    unsafe { syscall!(mremap, old, old_len, new_len, flags, new) }
}

/// Changes the protection of a range.
///
/// # Safety
/// The accesses that the program still makes must be allowed by `prot`.
pub unsafe fn mprotect(addr: usize, len: usize, prot: i32) -> Result<()> {
    // SAFETY: the caller's contract.
    unsafe { syscall!(mprotect, addr, len, prot) }.map(drop)
}

/// The `madvise` system call as it is.
///
/// # Safety
/// Some advice (`MADV_DONTNEED`, `MADV_FREE`, …) drops what the range holds.
pub unsafe fn madvise(addr: usize, len: usize, advice: i32) -> Result<()> {
    if let Some(error) = inject::error(Point::Drop) {
        return Err(error);
    }
    // SAFETY: the caller's contract.
    unsafe { syscall!(madvise, addr, len, advice) }.map(drop)
}

/// Whether anything is mapped in a range of whole pages. For a process of one thread: the range is taken for a moment.
pub fn is_mapped(addr: usize, len: usize) -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: takes address space that nobody uses, or none.
    match unsafe { mmap(addr, len, libc::PROT_NONE, flags, -1, 0) } {
        Ok(at) => {
            // SAFETY: just mapped.
            let _ = unsafe { munmap(at, len) };
            at != addr
        }
        Err(_) => (addr..addr + len).step_by(PAGE_SIZE).any(|page| mincore(page, &mut [0]).is_ok()),
    }
}

/// Whether some of these pages, at most [`EXTENT_PAGES`], are not mapped.
pub fn has_hole(addr: usize, pages: usize) -> bool {
    mincore(addr, &mut [0; EXTENT_PAGES][..pages]) == Err(Errno::ENOMEM)
}

/// Writes for each page of a range whether it is resident, in the lowest bit of a byte; `pages` says how many (mincore(2)).
pub fn mincore(addr: usize, pages: &mut [u8]) -> Result<()> {
    // SAFETY: the kernel writes a byte for each page of the given length, and that many there are.
    unsafe { syscall!(mincore, addr, pages.len() * PAGE_SIZE, pages.as_mut_ptr() as usize) }.map(drop)
}

/// Names a range of anonymous memory in `/proc/PID/maps` (Linux 5.17, `CONFIG_ANON_VMA_NAME`).
/// Returns nothing: where the kernel cannot, the range stays unnamed.
pub fn name_range(addr: usize, len: usize, name: &'static core::ffi::CStr) {
    // SAFETY: changes a label only; the name is static.
    let _ = unsafe {
        syscall!(prctl, libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME, addr, len, name.as_ptr() as usize)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_ranges_that_touch_are_one_and_only_their_bytes_count() {
        const BASE: usize = 0x1234_5670_0000;
        note_own(BASE, 4 * PAGE_SIZE);
        note_own(BASE - PAGE_SIZE, 1);
        note_own(BASE + 4 * PAGE_SIZE, 2 * PAGE_SIZE);
        note_own(BASE + 16 * PAGE_SIZE, PAGE_SIZE);
        let pages = |from: isize, to: isize| {
            let at = |page: isize| BASE.wrapping_add_signed(page * PAGE_SIZE as isize);
            own_bytes(at(from), at(to)) / PAGE_SIZE
        };
        assert_eq!((pages(-8, 32), pages(-1, 6), pages(6, 16), pages(5, 17)), (8, 7, 0, 2));
        let noted =
            OWN.iter().filter(|cell| own_range(cell.load(Relaxed)).0.abs_diff(BASE) < 1 << 20).count();
        assert_eq!(noted, 2);
    }
}
