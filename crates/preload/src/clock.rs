//! The kernel's clocks, past libc: a program that is shown another time than it is, such as by libfaketime, is folded by the real one,
//! and nobody is called back who cannot tell the time yet.

use crate::{lookup, symbols};
use core::ffi::{c_char, c_int, c_void, CStr};

/// What the kernel calls the library that it maps into every process (vdso(7)), and the function there that reads clocks.
const LIBRARY: &CStr = c"linux-vdso.so.1";
#[cfg(target_arch = "x86_64")]
const FUNCTION: &CStr = c"__vdso_clock_gettime";
#[cfg(target_arch = "aarch64")]
const FUNCTION: &CStr = c"__kernel_clock_gettime";

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// Finds them, by libc's own functions: another library's may wait for its constructor, which has not run. Without, clocks are read by libc's function.
pub fn find() {
    let Some(dlopen) = symbols::of_libc(c"dlopen") else { return };
    // SAFETY: libc's function of this name has this type.
    let dlopen: Dlopen = unsafe { core::mem::transmute(dlopen) };
    // SAFETY: it is loaded already, or it is not found; a look-up; and what that finds is the function in question, or none.
    unsafe {
        let library = dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if !library.is_null() {
            memfold_sys::time::read_by(lookup::by_libcs(library, FUNCTION));
        }
    }
}
