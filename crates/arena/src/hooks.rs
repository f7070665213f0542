//! How the pager gets to see what the arena does to managed memory.
//!
//! What it is: seven functions that the arena calls instead of the kernel. What it is not: an event queue;
//! a hook does the work itself, and the arena goes on when it returns.
//!
//! Invariants: the arena calls a hook with none of its locks held, on a range that no other thread can reach
//! through the arena meanwhile; so a hook may block for a while and take the pager's locks. A hook never
//! allocates from this allocator.

use crate::counters::COUNTERS;
use core::sync::atomic::{AtomicPtr, Ordering::*};
use memfold_sys::{Errno, Result, EXTENT_SIZE};

/// What is to be done to managed memory. Addresses and lengths are in bytes and page-aligned.
pub struct Hooks {
    /// `(base, len)` was mapped for managed blocks: whole extents, private, anonymous, zero. No other hook is called for a part of it before
    /// this one returns.
    pub mapped: fn(usize, usize),
    /// Drop what `(addr, len)` holds and give the frames back; the range reads as zero afterwards, evicted
    /// pages too. On an error, the range holds what it held.
    pub discard: fn(usize, usize) -> Result<()>,
    /// Unmap `(base, len)`: whole extents, as they were reported by `mapped` or returned by `remap`.
    pub unmap: fn(usize, usize) -> Result<()>,
    /// Make `(addr, len)`, which holds nothing, impossible to touch.
    pub guard: fn(usize, usize) -> Result<()>,
    /// Make `(addr, len)`, which `guard` was called for and which holds nothing, fit to be touched again.
    pub unguard: fn(usize, usize) -> Result<()>,
    /// Give the mapping `(old_base, old_len)` the length `new_len`, moving it where it cannot grow in place;
    /// returns its base, aligned to an extent. All three are whole extents. The contents follow, new bytes
    /// are zero. On an error, nothing changed.
    pub remap: fn(usize, usize, usize) -> Result<usize>,
    /// Whether a page of `(addr, len)` is away from memory, so that who touches it waits. It may be otherwise a moment later. Waits for nobody.
    pub is_away: fn(usize, usize) -> bool,
}

/// The kernel, asked for what a hook is asked for. Public for hooks that only want to look on.
pub const PLAIN: Hooks = Hooks {
    mapped: |_, _| {},
    discard: |addr, len| {
        // SAFETY: the arena discards only free runs, which nobody uses.
        unsafe { memfold_sys::mem::madvise(addr, len, libc::MADV_DONTNEED) }
    },
    unmap: |base, len| {
        // SAFETY: the arena unmaps only chunks in which nothing is handed out.
        unsafe { memfold_sys::mem::munmap(base, len) }
    },
    guard: |addr, len| {
        // SAFETY: nobody has an address in the range that may be used.
        unsafe { memfold_sys::mem::mprotect(addr, len, libc::PROT_NONE) }
    },
    unguard: |addr, len| {
        // SAFETY: as above.
        unsafe { memfold_sys::mem::mprotect(addr, len, libc::PROT_READ | libc::PROT_WRITE) }
    },
    remap: plain_remap,
    is_away: |_, _| false,
};

/// The hooks in force; null stands for [`PLAIN`].
static HOOKS: AtomicPtr<Hooks> = AtomicPtr::new(core::ptr::null_mut());

/// Puts `hooks` in force. What was mapped before is listed by [`crate::for_each_managed`]; a mapping that another thread makes at
/// the same time may be reported, listed, both or neither.
pub fn set_hooks(hooks: &'static Hooks) {
    HOOKS.store(hooks as *const Hooks as *mut Hooks, Release);
}

/// Whether somebody looks on.
pub(crate) fn are_set() -> bool {
    !HOOKS.load(Relaxed).is_null()
}

fn hooks() -> &'static Hooks {
    let set = HOOKS.load(Acquire);
    if set.is_null() {
        return &PLAIN;
    }
    // SAFETY: `set_hooks` stored a reference of static lifetime.
    unsafe { &*set }
}

/// The hooks for one domain: those in force for managed memory, plain system calls for pinned.
fn of(managed: bool) -> &'static Hooks {
    if managed {
        hooks()
    } else {
        &PLAIN
    }
}

pub(crate) fn mapped(managed: bool, base: usize, len: usize) {
    (of(managed).mapped)(base, len);
}

pub(crate) fn discard(managed: bool, addr: usize, len: usize) -> Result<()> {
    COUNTERS.madvise_calls.add(1);
    (of(managed).discard)(addr, len)
}

/// Lets the kernel take the frames of a range when it needs them (`MADV_FREE`, Linux 4.5); until then the range holds
/// what it held.
pub(crate) fn lend(addr: usize, len: usize) -> Result<()> {
    COUNTERS.madvise_calls.add(1);
    // SAFETY: the arena lends only free runs, which nobody uses.
    unsafe { memfold_sys::mem::madvise(addr, len, libc::MADV_FREE) }
}

pub(crate) fn unmap(managed: bool, base: usize, len: usize) -> Result<()> {
    COUNTERS.munmap_calls.add(1);
    (of(managed).unmap)(base, len)
}

pub(crate) fn guard(addr: usize, len: usize) -> Result<()> {
    COUNTERS.mprotect_calls.add(1);
    (hooks().guard)(addr, len)
}

pub(crate) fn unguard(addr: usize, len: usize) -> Result<()> {
    COUNTERS.mprotect_calls.add(1);
    (hooks().unguard)(addr, len)
}

pub(crate) fn remap(managed: bool, old: usize, old_len: usize, new_len: usize) -> Result<usize> {
    COUNTERS.mremap_calls.add(1);
    (of(managed).remap)(old, old_len, new_len)
}

/// Whether a page of managed memory is away, see [`Hooks::is_away`].
pub fn is_away(addr: usize, len: usize) -> bool {
    (hooks().is_away)(addr, len)
}

/// `mremap` that keeps the base aligned to an extent: in place if it can, else onto address space reserved
/// for it. Public for hooks that only want to look on.
pub fn plain_remap(old: usize, old_len: usize, new_len: usize) -> Result<usize> {
    // SAFETY: the arena remaps a chunk that holds one block, whose owner is waiting in `realloc`.
    match unsafe { memfold_sys::mem::mremap(old, old_len, new_len, 0, 0) } {
        Ok(base) => return Ok(base),
        Err(Errno::ENOMEM) => {}
        Err(error) => return Err(error),
    }
    let target = memfold_sys::mem::reserve_aligned(new_len, EXTENT_SIZE)?;
    // Not unmapped after a refusal: the kernel may have done so before it refused, and another thread have mapped there since.
    // SAFETY: as above; the target range was reserved for this and is nobody's.
    unsafe {
        memfold_sys::mem::mremap(old, old_len, new_len, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, target)
    }
}
