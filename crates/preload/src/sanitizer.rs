//! Stepping aside for a sanitizer: a program that is built with one has its allocator and its checks, and that of addresses refuses to run
//! behind another library. `memfold run` sees that in the program's file; what such programs are started by later is seen here.
//!
//! Before anything else of this library, or of any other, the program is executed again without it.

use crate::environment::Environment;
use crate::notice;
use core::ffi::{c_char, CStr};
use core::fmt::Write;
use memfold_pager::Line;

memfold_sys::weak! {
    /// What every sanitizer exports that has an allocator (sanitizer/allocator_interface.h), and nothing else.
    allocator = "__sanitizer_get_heap_size"
}

/// Whether the program has one.
pub fn has_this_program() -> bool {
    !allocator().is_null()
}

/// Executes a program with a sanitizer again without this library. Returns where it has none, or where it cannot be done.
pub fn step_aside(argv: *mut *mut c_char, envp: *mut *mut c_char, environment: Environment) {
    // Where the loader itself was executed, with the program as its argument, the file below is the loader's. SAFETY: a look-up.
    if !has_this_program() || unsafe { libc::getauxval(libc::AT_BASE) } == 0 {
        return;
    }
    let mut path = [0; libc::PATH_MAX as usize];
    // SAFETY: the buffer is as long as said, and stays zero behind what is written.
    let len = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), path.as_mut_ptr(), path.len() - 1) };
    // SAFETY: constructors run before any other thread exists.
    if len <= 0 || !unsafe { environment.end_preloading() } {
        return;
    }
    let mut line = Line::new();
    // SAFETY: ended by a zero, as above.
    let name = unsafe { CStr::from_ptr(path.as_ptr()) }.to_str().unwrap_or("a program");
    let _ = write!(
        line,
        "memfold: not folding {name}: it has a sanitizer, which has to come before all other libraries"
    );
    notice::say_once(line.as_str());
    // SAFETY: the arguments and the environment that the loader handed to this process.
    unsafe { libc::execve(path.as_ptr(), argv.cast_const().cast(), envp.cast_const().cast()) };
}
