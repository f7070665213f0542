//! `memfold-handshake`: makes the handshake of a userfaultfd with reports of forks, for an ordinary user who attaches to a program of theirs.
//!
//! The kernel reports forks only where who makes the handshake has CAP_SYS_PTRACE (userfaultfd(2)). `memfold setup` installs this program with that
//! capability, to be executed by root and the members of its group alone. Its standard input is a socket, from which it takes a userfaultfd; its
//! argument is what to ask of that, a number. It answers with a byte: 0, or the number of the error.
//!
//! What it is not: a way to any process. A userfaultfd is of the memory of who made it, and this program can make one call, on nothing else.
//!
//! Invariants: of the capability nothing is used but by that call; no file, no environment, no memory but its own is read.
#![no_std]
#![no_main]

#[path = "../freestanding.rs"]
mod freestanding;

use core::ffi::CStr;
use memfold_sys::handing::{hand_over, take_over};
use memfold_sys::time::Nanos;
use memfold_sys::uffd::{Features, Userfaultfd};
use memfold_sys::{Errno, Result};

/// How long who asks may take.
const PATIENCE: Nanos = Nanos::from_secs(20);
/// Where it is asked.
const SOCKET: i32 = 0;

// At the beginning the kernel has left the number of arguments on the stack, and their addresses behind it.
core::arch::global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {main}",
    "mov edi, eax",
    "mov eax, {exit}",
    "syscall",
    "ud2",
    main = sym main,
    exit = const libc::SYS_exit_group,
);

/// Returns the exit code: 0 if somebody was answered.
///
/// # Safety
/// `stack` is as the kernel has left it (execve(2)): the number of the arguments, and as many strings.
unsafe extern "C" fn main(stack: *const usize) -> i32 {
    // SAFETY: the caller's contract.
    let argument = unsafe {
        match *stack {
            2 => CStr::from_ptr(*stack.add(2) as *const _),
            _ => c"",
        }
    };
    let features = argument.to_str().ok().and_then(|text| text.parse().ok());
    let answer =
        features.ok_or(Errno::EINVAL).and_then(|features| serve(Features::from_bits_retain(features)));
    let byte = answer.map_or_else(|error| error.0 as u8, |()| 0);
    i32::from(hand_over(SOCKET, byte, None).is_err())
}

fn serve(features: Features) -> Result<()> {
    let (_, came) = take_over(SOCKET, PATIENCE)?;
    Userfaultfd::taken_over(came.ok_or(Errno::ENODATA)?)?.handshake(features).map(drop)
}

/// A defect: nobody is answered, and who asks hears the end.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    memfold_sys::thread::abort_process()
}

/// Named by the precompiled `core`, never called: panics abort.
#[no_mangle]
extern "C" fn rust_eh_personality() {}

/// As above.
#[no_mangle]
extern "C" fn _Unwind_Resume() {}
