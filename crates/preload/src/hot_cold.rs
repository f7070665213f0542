//! TCMalloc's operators `new` that say how often a block will be touched, exported under their own names.
//!
//! What it is: `operator new(size_t, __hot_cold_t)` and the seven others that TCMalloc declares in its `malloc_extension.h` (`[]`, `std::align_val_t`,
//! `std::nothrow_t`). Compilers put calls of them in where a profile says that what a call allocates is seldom touched (LLVM's MemProf), and programs may
//! call them. The type is a byte: 0 for what is touched least, 255 for what is touched most. What it is not: the usual operators, which stay those of
//! libstdc++ or libc++, and come here through `malloc`; nor `delete`, which frees these blocks like any others.
//!
//! Invariants: where there is no memory, the usual operator is jumped to with what this one was called with. So it is the one that calls the new handler and
//! throws, and no frame of this library, which has no tables to unwind by, is on the stack then.

use core::ffi::c_void;
use memfold_heap::aligned_cold;

/// Blocks that are said to be touched no more than this are cold. Compilers say 1 for what a profile calls cold, 128 for what it does not, and 222 and 254
/// for what it calls ambiguous and hot (LLVM's `-memprof-cold-new-hint-value` and those beside it).
const COLD_BELOW: u8 = 128;

/// As a C++ compiler hands a `size_t`, a `std::align_val_t` and a `__hot_cold_t` over. A byte's upper bits are anything.
extern "C" fn allocate(size: usize, align: usize, hot_cold: usize) -> *mut c_void {
    // Valgrind has operators `delete` of its own in place of all others, and knows nothing of these.
    if !align.is_power_of_two() || crate::valgrind::has_this_program() {
        return core::ptr::null_mut();
    }
    match (hot_cold as u8) < COLD_BELOW {
        true => aligned_cold(align, size).cast(),
        false => memfold_heap::aligned(align, size).cast(),
    }
}

extern "C" fn of_any(size: usize, hot_cold: usize) -> *mut c_void {
    allocate(size, 1, hot_cold)
}

extern "C" fn of_any_or_null(size: usize, _nothrow: usize, hot_cold: usize) -> *mut c_void {
    allocate(size, 1, hot_cold)
}

extern "C" fn of_aligned(size: usize, align: usize, hot_cold: usize) -> *mut c_void {
    allocate(size, align, hot_cold)
}

extern "C" fn of_aligned_or_null(size: usize, align: usize, _nothrow: usize, hot_cold: usize) -> *mut c_void {
    allocate(size, align, hot_cold)
}

/// Exports an operator: `$name` is what `$allocate` returns, or what `$usual` does where that is null.
macro_rules! operator {
    ($function:ident, $name:literal, $allocate:ident, $usual:literal) => {
        #[doc = concat!("`", $name, "`.")]
        ///
        /// # Safety
        /// To be called as the C++ operator of that name only.
        #[export_name = $name]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $function() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                concat!(".weak ", $usual),
                "push rbp",
                "mov rbp, rsp",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "call {allocate}",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "pop rbp",
                "test rax, rax",
                "jz 2f",
                "ret",
                "2:",
                concat!("mov rax, qword ptr [rip + ", $usual, "@GOTPCREL]"),
                "test rax, rax",
                "jz 3f",
                "jmp rax",
                // A program without the usual operators has nobody who could throw.
                "3:",
                "jmp {abort}",
                allocate = sym $allocate,
                abort = sym none,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                concat!(".weak ", $usual),
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "bl {allocate}",
                "cbz x0, 2f",
                "ldp x29, x30, [sp], #48",
                "ret",
                "2:",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                concat!("adrp x16, :got:", $usual),
                concat!("ldr x16, [x16, :got_lo12:", $usual, "]"),
                "cbz x16, 3f",
                "br x16",
                "3:",
                "b {abort}",
                allocate = sym $allocate,
                abort = sym none,
            );
        }
    };
}

extern "C" fn none() -> ! {
    crate::notice::say("memfold: operator new(size_t, __hot_cold_t) has no memory, and there is no operator new(size_t) that could say so");
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

operator!(new, "_Znwm12__hot_cold_t", of_any, "_Znwm");
operator!(new_or_null, "_ZnwmRKSt9nothrow_t12__hot_cold_t", of_any_or_null, "_ZnwmRKSt9nothrow_t");
operator!(new_aligned, "_ZnwmSt11align_val_t12__hot_cold_t", of_aligned, "_ZnwmSt11align_val_t");
operator!(
    new_aligned_or_null,
    "_ZnwmSt11align_val_tRKSt9nothrow_t12__hot_cold_t",
    of_aligned_or_null,
    "_ZnwmSt11align_val_tRKSt9nothrow_t"
);
operator!(new_array, "_Znam12__hot_cold_t", of_any, "_Znam");
operator!(new_array_or_null, "_ZnamRKSt9nothrow_t12__hot_cold_t", of_any_or_null, "_ZnamRKSt9nothrow_t");
operator!(new_array_aligned, "_ZnamSt11align_val_t12__hot_cold_t", of_aligned, "_ZnamSt11align_val_t");
operator!(
    new_array_aligned_or_null,
    "_ZnamSt11align_val_tRKSt9nothrow_t12__hot_cold_t",
    of_aligned_or_null,
    "_ZnamSt11align_val_tRKSt9nothrow_t"
);
