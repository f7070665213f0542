//! Symbols that another library, or the program, may have or not.
//!
//! They are references that may stay open, which the dynamic loader settles before any code runs. `dlsym` tells the same, but where there is no such
//! symbol it writes a message into memory that it gets by `malloc`: that of a program which has its own, and which may not work before the program
//! has begun (GNU Common Lisp).

/// Makes a function that returns the address of a symbol, or null.
#[macro_export]
macro_rules! weak {
    ($(#[$doc:meta])* $name:ident = $symbol:literal) => {
        $(#[$doc])*
        #[unsafe(naked)]
        extern "C" fn $name() -> *const core::ffi::c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                concat!(".weak ", $symbol),
                concat!("mov rax, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                "ret",
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                concat!(".weak ", $symbol),
                concat!("adrp x0, :got:", $symbol),
                concat!("ldr x0, [x0, :got_lo12:", $symbol, "]"),
                "ret",
            );
        }
    };
}
