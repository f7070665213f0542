//! Whether the program runs inside Valgrind, which lets one of its threads run at a time: one that waits for its page would keep the pager's thread from
//! bringing it, for ever.
//!
//! Valgrind answers requests that are instructions without effect for a processor ("The Client Request mechanism" of its manual, and the macros of
//! `valgrind.h`).

/// The request's number: how many of them the program runs inside.
const RUNNING_ON_VALGRIND: usize = 0x1001;

/// Whether it does.
pub fn has_this_program() -> bool {
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut depth = 0_usize;
    // SAFETY: rotates a register by 128 bits in all, and exchanges another with itself; Valgrind reads the request and writes the answer.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") &raw const request,
            inout("rdx") depth,
            options(nostack),
        );
    }
    // SAFETY: as above, with an `or` of a register with itself.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "ror x12, x12, 3",
            "ror x12, x12, 13",
            "ror x12, x12, 51",
            "ror x12, x12, 61",
            "orr x10, x10, x10",
            inout("x3") depth,
            in("x4") &raw const request,
            options(nostack),
        );
    }
    depth != 0
}
