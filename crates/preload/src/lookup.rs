//! libc's `dlsym` and `dlvsym`: who asks libc for a function by libc's handle gets this library's, like who calls it by its name.
//!
//! So do Python's ctypes and cffi, Ruby's Fiddle, JNA and .NET. What libc allocates for them, such as `strdup`'s, is a block of our `malloc`, which libc's
//! `free` ends the program for; and the pager would not hear of what they map or confine.
//!
//! The answer is ours where the handle gives the very function that ours stands in front of, whichever library's handle it is. It is libc's, or the other
//! library's, where there is one between: that one may be asking for what it calls, and ours would call it again.
//!
//! What it is not: an answer to `RTLD_NEXT` and `RTLD_DEFAULT`. Libc looks at who called it for these, so that it must see the program's return address,
//! and not one in here.

use crate::symbols;
use core::ffi::{c_char, c_void, CStr};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

/// libc's `dlsym`, whoever else has one; null before it was looked for.
static LIBCS: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
/// The functions behind ours, which are libc's or those of a library between.
static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(absent as *mut c_void);
static DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(absent as *mut c_void);
/// Whether functions of ours are answered.
static ANSWERS: AtomicBool = AtomicBool::new(false);

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Stands for a function that there is none of.
pub(crate) extern "C" fn absent() -> *mut c_void {
    core::ptr::null_mut()
}

/// What libc's own `dlsym` finds, before the constructor has run, too.
///
/// # Safety
/// As for `dlsym`.
pub unsafe fn by_libcs(handle: *mut c_void, name: &CStr) -> *mut c_void {
    let mut dlsym = LIBCS.load(Relaxed);
    if dlsym.is_null() {
        dlsym = symbols::of_libc(c"dlsym").unwrap_or(absent as *mut c_void);
        LIBCS.store(dlsym, Relaxed);
    }
    // SAFETY: libc's function of this name has this type.
    let dlsym: Dlsym = unsafe { core::mem::transmute(dlsym) };
    // SAFETY: the caller's contract.
    unsafe { dlsym(handle, name.as_ptr()) }
}

/// The next definition of a function behind this library's own.
pub fn next(name: &CStr) -> *mut c_void {
    // SAFETY: a look-up.
    unsafe { by_libcs(libc::RTLD_NEXT, name) }
}

/// Looks libc's functions up, before anybody calls them.
pub fn find() {
    behind(&DLSYM, c"dlsym");
    behind(&DLVSYM, c"dlvsym");
}

/// Begins to answer with functions of ours.
pub fn answer() {
    ANSWERS.store(true, Relaxed);
}

/// The function behind ours. Whoever calls it before the constructor looks it up.
fn behind(place: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = place.load(Relaxed);
    if known != absent as *mut c_void {
        return known;
    }
    let found = next(name);
    if found.is_null() {
        return known;
    }
    place.store(found, Relaxed);
    found
}

/// What a handle gives for a name, or ours in its place; null where that is to be asked for.
fn ours(handle: *mut c_void, name: *const c_char, ask: impl Fn(*mut c_void) -> *mut c_void) -> *mut c_void {
    if [libc::RTLD_DEFAULT, libc::RTLD_NEXT].contains(&handle) || !ANSWERS.load(Relaxed) {
        return core::ptr::null_mut();
    }
    // SAFETY: the caller's name.
    let name = unsafe { CStr::from_ptr(name) };
    let Some(ours) = symbols::own(name) else { return core::ptr::null_mut() };
    // Both, as a look-up by a version passes over a library between that has no versions.
    let behind = [next(name), ask(libc::RTLD_NEXT)];
    // The last one asked: what `dlerror` says is about this.
    let found = ask(handle);
    if !found.is_null() && behind == [found; 2] {
        ours
    } else {
        found
    }
}

extern "C" fn by_name(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: libc's function of this name has this type.
    let dlsym: Dlsym = unsafe { core::mem::transmute(behind(&DLSYM, c"dlsym")) };
    // SAFETY: the caller's contract.
    ours(handle, name, |handle| unsafe { dlsym(handle, name) })
}

extern "C" fn by_version(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    // SAFETY: libc's function of this name has this type.
    let dlvsym: Dlvsym = unsafe { core::mem::transmute(behind(&DLVSYM, c"dlvsym")) };
    // SAFETY: the caller's contract.
    ours(handle, name, |handle| unsafe { dlvsym(handle, name, version) })
}

/// Exports a function that returns what `$ours` does, or goes on to `$behind` where that is null.
macro_rules! look_up {
    ($name:ident, $ours:ident, $behind:ident) => {
        #[doc = concat!("`", stringify!($name), "(3)`.")]
        ///
        /// # Safety
        /// As for libc's.
        #[unsafe(naked)]
        #[no_mangle]
        pub unsafe extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "push rdi",
                "push rsi",
                "push rdx",
                // Another word keeps the stack as a call wants it.
                "push rdx",
                "call {ours}",
                "pop rdx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "pop rbp",
                "test rax, rax",
                "jz 2f",
                "ret",
                "2:",
                "jmp qword ptr [rip + {behind}]",
                ours = sym $ours,
                behind = sym $behind,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {ours}",
                "cbz x0, 2f",
                "ldp x29, x30, [sp], #48",
                "ret",
                "2:",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                "adrp x16, {behind}",
                "ldr x16, [x16, :lo12:{behind}]",
                "br x16",
                ours = sym $ours,
                behind = sym $behind,
            );
        }
    };
}

look_up!(dlsym, by_name, DLSYM);
look_up!(dlvsym, by_version, DLVSYM);
