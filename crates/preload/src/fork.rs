//! Fork handlers, and the functions that fork without calling them.

use crate::host::pager;
use crate::{real, sandbox, set_errno};
use core::ffi::{c_int, c_uint, c_void};
use memfold_pager::sabotage::{planted, Bug};
use memfold_pager::Engine;
use memfold_sys::thread::Backoff;
use memfold_sys::{Errno, Result};

type Handler = unsafe extern "C" fn();

extern "C" {
    fn _IO_list_lock();
    fn _IO_list_unlock();
    fn _IO_list_resetlock();
}

type RegisterAtfork =
    unsafe extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *mut c_void) -> c_int;
type GetSpecific = unsafe extern "C" fn(libc::pthread_key_t) -> *mut c_void;
type SetSpecific = unsafe extern "C" fn(libc::pthread_key_t, *const c_void) -> c_int;
type Entered = extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(
    Option<Entered>,
    *mut c_void,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// Registers the handlers, before any other library can: they run last before a fork and first after it.
pub fn register() {
    // SAFETY: the handlers are functions of this library, which is never unloaded.
    unsafe { __register_atfork(Some(prepare), Some(parent), Some(child), core::ptr::null_mut()) };
}

unsafe extern "C" fn prepare() {
    // libc's `fork` takes the lock of its list of streams after the handlers. A thread that holds that lock may be waiting
    // for one of ours, so take it first. libc takes it again, as the same thread may.
    // SAFETY: released in the other two handlers.
    unsafe { _IO_list_lock() };
    before(None);
    if !planted(Bug::StreamsNotTouched) {
        touch_streams();
    }
}

unsafe extern "C" fn parent() {
    after_in_parent();
    // SAFETY: taken in `prepare`.
    unsafe { _IO_list_unlock() };
}

unsafe extern "C" fn child() {
    after_in_child();
    // libc has reset it only where it took it, in a program of several threads. A thread that the child makes would wait for ever.
    if !planted(Bug::StreamsLeftLocked) {
        // SAFETY: there is no other thread.
        unsafe { _IO_list_resetlock() };
    }
}

/// The forking thread's signals stay blocked across the fork: a handler that changed a mapping would wait for the thread
/// that it interrupted. One fork at a time, by the locks taken in `before`; where a handler forks within one, as signals may not be blocked, there is
/// nothing here of either.
static FORKING: Held = Held(core::cell::UnsafeCell::new(Forking { _blocked: None, engine: None }));

/// What a fork is prepared with, and ends with.
struct Forking {
    _blocked: Option<memfold_sys::signal::Blocked>,
    /// What was told of it.
    engine: Option<&'static Engine>,
}

struct Held(core::cell::UnsafeCell<Forking>);

impl Held {
    /// What the fork was prepared with.
    ///
    /// # Safety
    /// By the thread that forks, or in its child.
    unsafe fn take(&self) -> Forking {
        // SAFETY: the caller's contract.
        unsafe { core::ptr::replace(self.0.get(), Forking { _blocked: None, engine: None }) }
    }
}

// SAFETY: written between `before` and `after_*`, by the one thread that forks.
unsafe impl Sync for Held {}

/// The pager, but in a program that has confined its system calls: there it has ended for good, and any call of its own may end the program.
fn folding() -> Option<&'static Engine> {
    pager().filter(|_| !memfold_sys::thread::is_confined())
}

/// `stack` is the top of the child's, where it is another than the caller's.
fn before(stack: Option<usize>) {
    let blocked = (!memfold_sys::thread::is_confined()).then(memfold_sys::signal::block_all);
    // Another thread may confine the program meanwhile; who is told of the beginning is told of the end.
    let engine = folding();
    let mut backoff = Backoff::new();
    loop {
        memfold_heap::fork_prepare();
        if engine.is_none_or(|engine| engine.try_before_fork(stack)) {
            break;
        }
        memfold_heap::fork_parent();
        backoff.wait();
    }
    // SAFETY: `fork_prepare` lets one thread through at a time.
    unsafe { *FORKING.0.get() = Forking { _blocked: blocked, engine } };
}

fn after_in_parent() {
    // SAFETY: as in `before`.
    let forking = unsafe { FORKING.take() };
    if let Some(engine) = forking.engine {
        engine.after_fork_in_parent();
    }
    memfold_heap::fork_parent();
}

fn after_in_child() {
    // SAFETY: as in `before`; in static memory, which is never evicted.
    let forking = unsafe { FORKING.take() };
    // The pager first: whatever else is touched may be evicted.
    if let Some(engine) = forking.engine {
        engine.after_fork_in_child();
    }
    memfold_heap::fork_child();
}

/// In the child of a program with several threads, libc's `fork` resets the locks of all streams before it calls handlers: it looks at their flags,
/// and writes zeros, which nobody could tell from what was not written. Nothing is evicted between here and the fork, so what is touched here is
/// there then.
fn touch_streams() {
    extern "C" {
        fn _IO_iter_begin() -> *mut c_void;
        fn _IO_iter_end() -> *mut c_void;
        fn _IO_iter_next(iter: *mut c_void) -> *mut c_void;
        fn _IO_iter_file(iter: *mut c_void) -> *mut c_void;
    }
    /// Offset of the pointer to its lock in libc's `FILE`; part of the ABI of glibc on 64-bit machines.
    const LOCK: usize = 136;
    // SAFETY: the list is locked by `prepare`. Each stream is an object of libc with flags at its beginning and a lock.
    unsafe {
        let mut iter = _IO_iter_begin();
        while iter != _IO_iter_end() {
            let file = _IO_iter_file(iter) as *const u8;
            core::ptr::read_volatile(file);
            let lock = core::ptr::read_volatile(file.add(LOCK) as *const *const u8);
            if !lock.is_null() {
                core::ptr::read_volatile(lock);
            }
            iter = _IO_iter_next(iter);
        }
    }
}

/// What `pthread_atfork` calls. The list of handlers is read in the child before it is served, so its memory must never be
/// evicted.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn __register_atfork(
    prepare: Option<Handler>,
    parent: Option<Handler>,
    child: Option<Handler>,
    dso: *mut c_void,
) -> c_int {
    let Some(real) = real::REGISTER_ATFORK.get() else { return libc::ENOSYS };
    // SAFETY: libc's function of this name has this type.
    let real: RegisterAtfork = unsafe { core::mem::transmute(real) };
    let _pinned = (!planted(Bug::HandlersEvictable)).then(memfold_heap::pinned);
    // SAFETY: the caller's contract.
    unsafe { real(prepare, parent, child, dso) }
}

/// `pthread_setspecific(3)`. What a thread has of the later keys libc allocates at its first use, and the child of another thread's fork
/// overwrites it by zeros before it is served: it must never be evicted.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn pthread_setspecific(key: libc::pthread_key_t, value: *const c_void) -> c_int {
    /// The values of so many keys are a part of the thread's control block.
    const IN_PLACE: libc::pthread_key_t = 32;
    let functions = real::SETSPECIFIC.get().zip(real::GETSPECIFIC.get());
    let Some((set, get)) = functions else { return libc::ENOSYS };
    // SAFETY: libc's function of this name has this type.
    let set: SetSpecific = unsafe { core::mem::transmute(set) };
    // SAFETY: as above.
    let get: GetSpecific = unsafe { core::mem::transmute(get) };
    let may_allocate = || {
        // SAFETY: only asks.
        key >= IN_PLACE && !value.is_null() && unsafe { get(key) }.is_null()
    };
    let _pinned = (may_allocate() && !planted(Bug::ValuesEvictable)).then(memfold_heap::pinned);
    // SAFETY: the caller's contract.
    unsafe { set(key, value) }
}

/// `tss_set(3)`, the same by another name, which in libc does not come by ours.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn tss_set(key: c_uint, value: *mut c_void) -> c_int {
    const SUCCESS: c_int = 0;
    const ERROR: c_int = 2;
    // SAFETY: the caller's contract; glibc's keys of both kinds are one.
    match unsafe { pthread_setspecific(key, value) } {
        0 => SUCCESS,
        _ => ERROR,
    }
}

/// `_Fork` (glibc 2.34): fork without handlers. Ours run all the same.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn _Fork() -> c_int {
    let Some(real) = real::FORK_ALONE.get() else {
        set_errno(Errno::ENOSYS);
        return -1;
    };
    // SAFETY: libc's function of this name has this type.
    let real: unsafe extern "C" fn() -> c_int = unsafe { core::mem::transmute(real) };
    before(None);
    // SAFETY: as for libc's.
    let pid = unsafe { real() };
    after(pid as isize);
    pid
}

fn after(pid: isize) {
    if pid == 0 {
        after_in_child();
    } else {
        after_in_parent();
    }
}

/// A forking system call of the program's own, on the caller's stack.
pub fn raw(call: impl FnOnce() -> Result<usize>) -> Result<usize> {
    if planted(Bug::RawForkNotSeen) {
        return call();
    }
    before(None);
    let result = call();
    after(result.map_or(-1, |pid| pid as isize));
    result
}

/// Whether `clone` with these flags makes a process with memory of its own.
pub fn copies_memory(flags: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0
}

/// To be called before a thread or process is made in this memory (`CLONE_VM`), with the flags of `clone` and where its number is to be. A process that shares
/// the memory, and for which its parent does not wait as for one of `vfork`, can outlive the parent, and with it the pager's threads: folding
/// ends before. Where the kernel is to overwrite the number at its end, which can wait for nobody, it must be there then.
pub fn before_sharing(flags: usize, child_tid: usize) {
    if flags & libc::CLONE_CHILD_CLEARTID as usize != 0 && !planted(Bug::NumberEvictable) {
        if let Some(engine) = folding().filter(|engine| engine.is_at_home()) {
            // Without memory for that it stays as it is.
            let _ = engine.exempt(child_tid, size_of::<u32>(), || Ok(()));
        }
    }
    let of_its_own = flags & (libc::CLONE_THREAD | libc::CLONE_VFORK) as usize == 0;
    if of_its_own {
        sandbox::stop(&"the program shares its memory with another process (clone)", Bug::SharingNotSeen);
    }
}

/// The calling thread is about to end past libc, with this status.
pub fn thread_leaves(status: u32) {
    if let Some(engine) = folding() {
        engine.thread_leaves(status);
    }
}

struct Entry {
    function: Entered,
    arg: *mut c_void,
}

extern "C" fn enter_child(entry: *mut c_void) -> c_int {
    after_in_child();
    // SAFETY: points to the parent's stack, of which the child has a copy.
    let entry = unsafe { &*(entry as *const Entry) };
    let status = (entry.function)(entry.arg);
    // libc ends the thread now, and not the process.
    thread_leaves(status as u32);
    status
}

/// `clone(2)` as libc has it.
///
/// # Safety
/// As for libc's.
#[no_mangle]
pub unsafe extern "C" fn clone(
    function: Option<Entered>,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parent_tid: *mut c_void,
    tls: *mut c_void,
    child_tid: *mut c_void,
) -> c_int {
    let Some(real) = real::CLONE.get() else {
        set_errno(Errno::ENOSYS);
        return -1;
    };
    // SAFETY: libc's function of this name has this type.
    let real: Clone = unsafe { core::mem::transmute(real) };
    let call = |function: Option<Entered>, arg: *mut c_void| {
        // SAFETY: the caller's contract.
        unsafe { real(function, stack, flags, arg, parent_tid, tls, child_tid) }
    };
    // Without one libc refuses.
    let Some(entered) = function else { return call(None, arg) };
    if !copies_memory(flags as usize) {
        before_sharing(flags as usize, child_tid as usize);
        return call(function, arg);
    }
    let entry = Entry { function: entered, arg };
    before(Some(stack as usize));
    let pid = call(Some(enter_child), (&raw const entry).cast_mut().cast());
    after_in_parent();
    pid
}
