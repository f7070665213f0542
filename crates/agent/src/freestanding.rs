//! What the compilers of the agent's Rust and C call by themselves, and what the pager has of libc.
//!
//! `rep movsb` and `rep stosb` in place of loops, which a compiler would take for the very functions that are being defined here.

use core::ffi::{c_char, c_int, c_void};

/// Copies `len` bytes upwards.
///
/// # Safety
/// As for memcpy(3).
#[no_mangle]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller's contract; the direction flag is clear by the ABI.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _,
            options(nostack, preserves_flags));
    }
    to
}

/// Copies `len` bytes that may overlap.
///
/// # Safety
/// As for memmove(3).
#[no_mangle]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: upwards, no byte is overwritten before it was read.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: the caller's contract. Downwards, and the flag is cleared again, as the ABI wants it.
    unsafe {
        core::arch::asm!("std", "rep movsb", "cld",
            inout("rcx") len => _,
            inout("rdi") to.wrapping_add(len).wrapping_sub(1) => _,
            inout("rsi") from.wrapping_add(len).wrapping_sub(1) => _,
            options(nostack));
    }
    to
}

/// Fills `len` bytes.
///
/// # Safety
/// As for memset(3).
#[no_mangle]
unsafe extern "C" fn memset(to: *mut u8, byte: c_int, len: usize) -> *mut u8 {
    // SAFETY: the caller's contract.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8,
            options(nostack, preserves_flags));
    }
    to
}

/// Compares bytes.
///
/// # Safety
/// As for memcmp(3).
#[no_mangle]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, len: usize) -> c_int {
    for at in 0..len {
        // SAFETY: the caller's contract.
        let (a, b) = unsafe { (one.add(at).read_volatile(), other.add(at).read_volatile()) };
        if a != b {
            return c_int::from(a) - c_int::from(b);
        }
    }
    0
}

/// Compares bytes for being the same.
///
/// # Safety
/// As for bcmp(3).
#[no_mangle]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, len: usize) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { memcmp(one, other, len) }
}

/// The length of a string.
///
/// # Safety
/// As for strlen(3).
#[no_mangle]
unsafe extern "C" fn strlen(text: *const c_char) -> usize {
    let mut len = 0;
    // SAFETY: the caller's contract. Volatile, as a compiler would take the loop for a call of this very function.
    while unsafe { text.add(len).read_volatile() } != 0 {
        len += 1;
    }
    len
}

/// Reads a clock, by the system call: the vDSO is a matter of the program's libc.
///
/// # Safety
/// As for clock_gettime(2).
#[no_mangle]
unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, to: *mut libc::timespec) -> c_int {
    // SAFETY: the caller's contract.
    match unsafe { memfold_sys::syscall!(clock_gettime, clock as isize, to as usize) } {
        Ok(_) => 0,
        Err(_) => -1,
    }
}

/// Nothing is known here of what the kernel told the program at its start; the program was looked at before the agent came.
#[no_mangle]
extern "C" fn getauxval(_: u64) -> u64 {
    0
}

/// There is no environment here.
#[no_mangle]
extern "C" fn getenv(_: *const c_char) -> *mut c_char {
    core::ptr::null_mut()
}

/// The C libraries work in memory that they are given; to be asked for any is a defect.
#[no_mangle]
extern "C" fn malloc(_: usize) -> *mut c_void {
    core::ptr::null_mut()
}

/// As [`malloc`].
#[no_mangle]
extern "C" fn calloc(_: usize, _: usize) -> *mut c_void {
    core::ptr::null_mut()
}

/// Of what [`malloc`] gave there is nothing.
#[no_mangle]
extern "C" fn free(_: *mut c_void) {}
