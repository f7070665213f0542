//! The agent: the pager as one file that needs no loader and no libc, for processes that run already or that no library can be preloaded into.
//!
//! `memfold` puts it into a process by ptrace(2), with a thread for it that runs [`start`] or, to take it out again, [`end`]. What it is told, and
//! tells, is in a [`Plan`] in its own memory.
//!
//! What it is not: a program. It cannot be executed: [`entry`] is for who has mapped it.
//!
//! Invariants: no thread-local storage, no constructor, nothing of libc ([`freestanding`]); all of its memory is mapped by itself or by who put it there, and
//! can be taken away without a trace.
#![no_std]
#![no_main]

mod asking;
mod entry;
mod freestanding;
mod host;
mod life;

use core::fmt::Write;
use memfold_pager::own_heap::OwnHeap;

/// What replacement policies allocate.
#[global_allocator]
static HEAP: OwnHeap = OwnHeap;

/// A defect in the agent itself: says where, and ends the process.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let mut line = memfold_pager::Line::new();
    let _ = write!(line, "memfold: internal error: {info}");
    memfold_sys::table::say(line.as_str());
    memfold_sys::thread::abort_process()
}

/// Named by the precompiled `core`, never called: panics abort.
#[no_mangle]
extern "C" fn rust_eh_personality() {}

/// As above.
#[no_mangle]
extern "C" fn _Unwind_Resume() {}
