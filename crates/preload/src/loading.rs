//! libc's `dlopen` and `dlmopen`: a library that is loaded while the program runs uses this library's functions like every other.
//!
//! With `RTLD_DEEPBIND` a library looks into its own dependencies first, libc among them. What the program got from our `malloc` such a library gives to libc's
//! `free`, which ends the program, and the pager would not hear of what it maps or forks. So that flag is taken away. PHP up to 8.4 loads its extensions with it.
//!
//! In assembly, because libc's function looks at who called it: whose search path counts, and which namespace. So it must see the
//! program's return address, and not one in here.

use crate::next;
use core::ffi::{c_char, c_int, c_void, CStr};
use core::sync::atomic::{AtomicPtr, Ordering::*};

static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(absent as *mut c_void);
static DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(absent as *mut c_void);

/// Stands for a function that there is none of: up to glibc 2.33 they are in a library of their own, which a program need not have.
extern "C" fn absent() -> *mut c_void {
    core::ptr::null_mut()
}

/// Looks libc's functions up, before anybody calls them.
pub fn find_loader() {
    for (place, name) in [(&DLOPEN, c"dlopen"), (&DLMOPEN, c"dlmopen")] {
        let real = next(name);
        if !real.is_null() {
            place.store(real, Relaxed);
        }
    }
}

/// What the kernel calls its library, and the function there that reads clocks (vdso(7)).
#[cfg(target_arch = "x86_64")]
const CLOCK: (&CStr, &CStr) = (c"linux-vdso.so.1", c"__vdso_clock_gettime");
#[cfg(target_arch = "aarch64")]
const CLOCK: (&CStr, &CStr) = (c"linux-vdso.so.1", c"__kernel_clock_gettime");

/// Finds the kernel's clocks, so that a program which is shown another time, such as by libfaketime, is folded by the real one, and
/// so that nobody is called back who cannot tell the time yet.
pub fn find_clock() {
    let real = DLOPEN.load(Relaxed);
    // SAFETY: libc's function of this name has this type, and what stands for it takes whatever there is.
    let dlopen: unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void =
        unsafe { core::mem::transmute(real) };
    // SAFETY: it is loaded already, or it is not found; and a look-up.
    let function = unsafe {
        let library = dlopen(CLOCK.0.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() {
            return;
        }
        libc::dlsym(library, CLOCK.1.as_ptr())
    };
    // SAFETY: it is that function, or there is none.
    unsafe { memfold_sys::time::read_by(function) };
}

/// `dlopen(3)`, without `RTLD_DEEPBIND`.
///
/// # Safety
/// As for libc's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "and esi, {without}",
        "jmp qword ptr [rip + {real}]",
        without = const !libc::RTLD_DEEPBIND,
        real = sym DLOPEN,
    )
}

/// `dlmopen(3)`, without `RTLD_DEEPBIND`.
///
/// # Safety
/// As for libc's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlmopen() {
    core::arch::naked_asm!(
        "and edx, {without}",
        "jmp qword ptr [rip + {real}]",
        without = const !libc::RTLD_DEEPBIND,
        real = sym DLMOPEN,
    )
}

/// `dlopen(3)`, as on x86-64.
///
/// # Safety
/// As for libc's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlopen() {
    core::arch::naked_asm!(
        "and w1, w1, #{without}",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "br x9",
        without = const !libc::RTLD_DEEPBIND,
        real = sym DLOPEN,
    )
}

/// `dlmopen(3)`, as on x86-64.
///
/// # Safety
/// As for libc's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn dlmopen() {
    core::arch::naked_asm!(
        "and w2, w2, #{without}",
        "adrp x9, {real}",
        "ldr x9, [x9, :lo12:{real}]",
        "br x9",
        without = const !libc::RTLD_DEEPBIND,
        real = sym DLMOPEN,
    )
}
