//! Other names by which libc exports functions of which this library has its own.
//!
//! Programs put functions of theirs around libc's by them: a `malloc` that counts and then calls `__libc_malloc`, beside the `free` that is there. Its blocks
//! have to be those of that `free`. Names that libc keeps to itself (`GLIBC_PRIVATE`) are not among them.

use crate::{brk, fork, malloc};

/// Exports a function by another name.
macro_rules! also_named {
    ($($name:ident = $function:path;)*) => {$(
        #[doc = concat!("`", stringify!($function), "`.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!("jmp {function}", function = sym $function);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!("b {function}", function = sym $function);
        }
    )*};
}

also_named! {
    __libc_malloc = malloc::malloc;
    __libc_free = malloc::free;
    __libc_calloc = malloc::calloc;
    __libc_realloc = malloc::realloc;
    __libc_memalign = malloc::memalign;
    __libc_valloc = malloc::valloc;
    __libc_pvalloc = malloc::pvalloc;
    __libc_mallopt = malloc::mallopt;
    __libc_mallinfo = malloc::mallinfo;
    __clone = fork::clone;
    __pthread_setspecific = fork::pthread_setspecific;
    __sbrk = brk::sbrk;
}
