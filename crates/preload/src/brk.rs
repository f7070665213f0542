//! The heap of `brk(2)`: of programs that have an allocator of their own on it.
//!
//! The calls are libc's, which keeps where the heap ends; around them the pager is told what came and what goes. Its pages are private
//! anonymous memory as any other.
//!
//! What it is not: the allocator's memory, which never lies there; and calls past libc, which the kernel reports as it does other changes.
//!
//! Invariant: what lies behind [`TOLD`] the pager knows nothing of.

use crate::host::pager;
use crate::mapping::round;
use crate::small::LEAST;
use crate::{or_errno, real};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use memfold_pager::sabotage::{planted, Bug};
use memfold_pager::Engine;
use memfold_sys::{Errno, Result};

/// The end of what the pager was told of, a multiple of pages; 0 before anything was. Programs take turns at moving the break, or libc's
/// own account of it would be lost.
static TOLD: AtomicUsize = AtomicUsize::new(0);

type Sbrk = unsafe extern "C" fn(isize) -> *mut c_void;
type Brk = unsafe extern "C" fn(*mut c_void) -> c_int;

fn libcs_sbrk(increment: isize) -> Result<usize> {
    let real = real::SBRK.get().ok_or(Errno::ENOMEM)?;
    // SAFETY: libc's function of this name has this type; what the program does to its heap is its own affair.
    match unsafe { core::mem::transmute::<usize, Sbrk>(real)(increment) } as usize {
        usize::MAX => Err(Errno::ENOMEM),
        end => Ok(end),
    }
}

fn libcs_brk(end: usize) -> Result<usize> {
    let real = real::BRK.get().ok_or(Errno::ENOMEM)?;
    // SAFETY: as above.
    match unsafe { core::mem::transmute::<usize, Brk>(real)(end as *mut c_void) } {
        0 => Ok(0),
        _ => Err(Errno::ENOMEM),
    }
}

/// Moves the end of the heap from `old` to `new` by `change`, and tells the pager.
fn move_break(
    engine: &'static Engine,
    old: usize,
    new: usize,
    change: impl FnOnce() -> Result<usize>,
) -> Result<usize> {
    let (old, new) = (round(old), round(new));
    if new < old && planted(Bug::BreakNotSeen) {
        return change();
    }
    if new < old {
        // Below the heap's beginning, and where the kernel refuses, libc says yes and nothing happens: then nothing is forgotten.
        let mut said = Err(Errno::ENOMEM);
        let gone = engine.unmap(new, old - new, || {
            said = change();
            match libcs_sbrk(0) {
                Ok(end) if said.is_ok() && (round(end) <= new || planted(Bug::BreakBelieved)) => Ok(()),
                _ => Err(Errno::ENOMEM),
            }
        });
        if gone.is_ok() {
            TOLD.store(TOLD.load(Relaxed).min(new), Relaxed);
        }
        return said;
    }
    let result = change()?;
    let told = TOLD.load(Relaxed);
    let from = if told == 0 { old } else { told.min(old) };
    // Small steps are told of together.
    let told = if new - from >= LEAST {
        engine.mapped(from, new - from);
        new
    } else {
        from
    };
    TOLD.store(told, Relaxed);
    Ok(result)
}

/// `sbrk(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn sbrk(increment: isize) -> *mut c_void {
    let change = || libcs_sbrk(increment);
    let result = match pager() {
        Some(engine) if increment != 0 => {
            libcs_sbrk(0).and_then(|old| move_break(engine, old, old.wrapping_add_signed(increment), change))
        }
        _ => change(),
    };
    or_errno(result) as *mut c_void
}

/// `brk(2)`.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn brk(end: *mut c_void) -> c_int {
    let end = end as usize;
    let change = || libcs_brk(end);
    let result = match pager() {
        Some(engine) => libcs_sbrk(0).and_then(|old| move_break(engine, old, end, change)),
        None => change(),
    };
    or_errno(result.map(|_| 0)) as c_int
}
