//! `libmemfold.so`: the allocator and the pager, put before a program by `LD_PRELOAD`.
//!
//! Glue and no more: the C functions that it exports ([`malloc`], [`mapping`], [`brk`], [`fork`],
//! [`sandbox`], [`loading`], [`lookup`], [`syscall`], and by other names [`names`]) turn into calls of the crates below, and the constructor ([`start`]) joins heap and pager ([`host`]).
//!
//! Everything here runs inside somebody else's process: no `std`, no allocation, no panic that unwinds, and
//! with `MEMFOLD_PAGER` unset nothing but the allocator.
#![no_std]

mod allocator;
mod brk;
mod clock;
mod environment;
mod fork;
mod host;
mod hot_cold;
mod loading;
mod lookup;
mod malloc;
mod mapping;
mod names;
mod notice;
mod real;
mod sandbox;
mod sanitizer;
mod small;
mod start;
mod statistics;
mod symbols;
mod syscall;
mod valgrind;

use core::fmt::Write;

/// How often calls to the kernel were made to fail, for the verifier's report.
#[cfg(feature = "inject")]
#[no_mangle]
pub extern "C" fn memfold_injections() -> *const memfold_sys::inject::Counters {
    memfold_sys::inject::counters()
}

/// A defect in the library itself: says where, and ends the process.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut line = memfold_pager::Line::new();
    let _ = write!(line, "memfold: internal error: {info}");
    notice::say(line.as_str());
    memfold_sys::thread::abort_process()
}

// Named by the precompiled `core`, never called: panics abort. Hidden: exported, it would be found in place of the one of a program in Rust whose `std` is a library
// of its own (rustc), which could not unwind.
core::arch::global_asm!(".globl rust_eh_personality", ".hidden rust_eh_personality", "rust_eh_personality:");

/// Turns a result into what a C function returns: the value, or −1 with `errno` set.
pub(crate) fn or_errno(result: memfold_sys::Result<usize>) -> isize {
    match result {
        Ok(value) => value as isize,
        Err(e) => {
            set_errno(e);
            -1
        }
    }
}

pub(crate) fn set_errno(error: memfold_sys::Errno) {
    // SAFETY: only program threads call exported functions, and they have an `errno`.
    unsafe { *libc::__errno_location() = error.0 };
}
