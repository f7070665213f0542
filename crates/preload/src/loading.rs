//! libc's `dlopen` and `dlmopen`: a library that is loaded while the program runs uses this library's functions like every other.
//!
//! With `RTLD_DEEPBIND` a library looks into its own dependencies first, libc among them. What the program got from our `malloc` such a library gives to libc's
//! `free`, which ends the program, and the pager would not hear of what it maps or forks. So that flag is taken away. PHP up to 8.4 loads its extensions with it.
//!
//! In assembly, because libc's function looks at who called it: whose search path counts, and which namespace. So it must see the
//! program's return address, and not one in here.

use crate::lookup::{absent, next};
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, Ordering::*};

// Up to glibc 2.33 they are in a library of their own, which a program need not have.
static DLOPEN: AtomicPtr<c_void> = AtomicPtr::new(absent as *mut c_void);
static DLMOPEN: AtomicPtr<c_void> = AtomicPtr::new(absent as *mut c_void);

/// Looks libc's functions up, before anybody calls them.
pub fn find() {
    for (place, name) in [(&DLOPEN, c"dlopen"), (&DLMOPEN, c"dlmopen")] {
        let real = next(name);
        if !real.is_null() {
            place.store(real, Relaxed);
        }
    }
}

/// A function of libc's with its flags in the register of this name, by machine.
macro_rules! without_deep_binding {
    ($name:ident, $real:ident, $x86_64:literal, $aarch64:literal) => {
        #[doc = concat!("`", stringify!($name), "(3)`, without `RTLD_DEEPBIND`.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                concat!("and ", $x86_64, ", {without}"),
                "jmp qword ptr [rip + {real}]",
                without = const !libc::RTLD_DEEPBIND,
                real = sym $real,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                concat!("and ", $aarch64, ", ", $aarch64, ", #{without}"),
                "adrp x9, {real}",
                "ldr x9, [x9, :lo12:{real}]",
                "br x9",
                without = const !libc::RTLD_DEEPBIND,
                real = sym $real,
            );
        }
    };
}

without_deep_binding!(dlopen, DLOPEN, "esi", "w1");
without_deep_binding!(dlmopen, DLMOPEN, "edx", "w2");
