//! The thread's own heap, two instructions away.
//!
//! What it is: one thread-local word in the initial-exec model (Drepper, "ELF Handling For Thread-Local
//! Storage", 2013, section 4.3): its offset from the thread pointer is a constant that the dynamic loader
//! writes into the global offset table. Rust's `thread_local!` in a shared library calls `__tls_get_addr`
//! at every access, and that may itself allocate.
//!
//! Invariants: the word always points to a heap. Its initial image is [`EMPTY`], so a thread's first call
//! needs no test for null. glibc's loader copies that image before it makes its first call to an
//! interposed `malloc` (`elf/rtld.c`: `_dl_allocate_tls_init`, then `__rtld_malloc_init_real`).
//! A library with initial-exec variables must be loaded at program start, as a preloaded one is.

use crate::heap::Heap;

/// The heap of a thread that has not allocated yet: it has no blocks, so every request takes the slow path.
pub(crate) static EMPTY: Heap = Heap::sentinel();

/// The heap of a thread whose own was taken away at its exit.
pub(crate) static EXITED: Heap = Heap::sentinel();

/// The heap of a thread that asked for pinned memory when there was none: it refuses every request.
pub(crate) static REFUSED: Heap = Heap::sentinel();

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("memfold's thread-local heap pointer is written for x86-64 and aarch64");

core::arch::global_asm!(
    ".pushsection .tdata.memfold_thread_heap,\"awT\",@progbits",
    ".globl memfold_thread_heap",
    ".hidden memfold_thread_heap",
    ".type memfold_thread_heap,@object",
    ".size memfold_thread_heap,8",
    ".p2align 3",
    "memfold_thread_heap:",
    ".quad {empty}",
    ".popsection",
    empty = sym EMPTY,
);

/// The heap that the calling thread allocates from.
#[inline(always)]
pub(crate) fn get() -> &'static Heap {
    let heap: *const Heap;
    // SAFETY: reads the thread-local word defined above, which always points to an immortal heap.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "mov {0}, qword ptr [rip + memfold_thread_heap@GOTTPOFF]",
            "mov {0}, qword ptr fs:[{0}]",
            out(reg) heap,
            options(pure, readonly, nostack, preserves_flags),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "adrp {0}, :gottprel:memfold_thread_heap",
            "ldr {0}, [{0}, :gottprel_lo12:memfold_thread_heap]",
            "mrs {1}, tpidr_el0",
            "ldr {0}, [{1}, {0}]",
            out(reg) heap,
            out(reg) _,
            options(pure, readonly, nostack, preserves_flags),
        );
        &*heap
    }
}

/// Makes the calling thread allocate from `heap`.
#[inline]
pub(crate) fn set(heap: &'static Heap) {
    // SAFETY: writes the thread-local word defined above, which only this thread reads.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "mov {1}, qword ptr [rip + memfold_thread_heap@GOTTPOFF]",
            "mov qword ptr fs:[{1}], {0}",
            in(reg) heap,
            out(reg) _,
            options(nostack, preserves_flags),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "adrp {1}, :gottprel:memfold_thread_heap",
            "ldr {1}, [{1}, :gottprel_lo12:memfold_thread_heap]",
            "mrs {2}, tpidr_el0",
            "str {0}, [{2}, {1}]",
            in(reg) heap,
            out(reg) _,
            out(reg) _,
            options(nostack, preserves_flags),
        );
    }
}
