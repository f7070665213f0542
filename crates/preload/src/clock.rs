//! The kernel's clocks, past libc: a program that is shown another time than it is, such as by libfaketime, is folded by the real one,
//! and nobody is called back who cannot tell the time yet.

use core::ffi::CStr;

/// What the kernel calls the library that it maps into every process (vdso(7)), and the function there that reads clocks.
const LIBRARY: &CStr = c"linux-vdso.so.1";
#[cfg(target_arch = "x86_64")]
const FUNCTION: &CStr = c"__vdso_clock_gettime";
#[cfg(target_arch = "aarch64")]
const FUNCTION: &CStr = c"__kernel_clock_gettime";

/// Finds them, once libc's loader is known ([`crate::loading`]). Without, clocks are read by libc's function.
pub fn find() {
    // SAFETY: it is loaded already, or it is not found; a look-up; and what that finds is the function in question, or none.
    unsafe {
        let library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if !library.is_null() {
            memfold_sys::time::read_by(libc::dlsym(library, FUNCTION.as_ptr()));
        }
    }
}
