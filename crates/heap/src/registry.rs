//! Which thread has which heap.
//!
//! What it is: the list of all heaps, the idle ones among them, and the hand-over at a thread's first
//! allocation and at its exit. What it is not: on any fast path.
//!
//! Invariants: a heap is either in one idle list or in the hands of one thread, which alone touches it. The
//! lock guards the idle lists and nothing else: no page is touched, no hook called and no memory asked for
//! while it is held.

use crate::heap::{shelf, Heap, State, NO_SHELF};
use crate::sync::{AtomicPtr, AtomicUsize, Cell, Ordering::*};
use crate::{flush, misuse, parcel, remote, tls};
use memfold_arena::{Domain, Mutex};
use memfold_sys::thread::Backoff;

/// Idle heaps by domain, and cold ones by themselves, first in first out.
struct Idle {
    first: [*const Heap; LISTS],
    last: [*const Heap; LISTS],
}

const LISTS: usize = 3;

/// The list of cold heaps ([`crate::cold`]); the others' have the numbers of their domains.
const COLD: usize = 2;

/// The list that a heap waits in.
fn list_of(heap: &Heap) -> usize {
    if heap.is_cold.get() {
        COLD
    } else {
        heap.domain.get() as usize
    }
}

// SAFETY: heaps are immortal and may be handed from thread to thread.
unsafe impl Send for Idle {}

static IDLE: Mutex<Idle> =
    Mutex::new(Idle { first: [core::ptr::null(); LISTS], last: [core::ptr::null(); LISTS] });

/// How many heaps are idle, by list; a hint for those who do not want the lock.
static IDLE_COUNT: [AtomicUsize; LISTS] = [const { AtomicUsize::new(0) }; LISTS];

/// The heap made last; the others follow by `next_heap`.
static ALL: AtomicPtr<Heap> = AtomicPtr::new(core::ptr::null_mut());

/// The key whose destructor runs at a thread's exit, once it exists.
static KEY: Mutex<Option<libc::pthread_key_t>> = Mutex::new(None);

/// Takes an idle heap, which the calling thread then uses.
pub(crate) fn pop_idle(domain: Domain) -> Option<&'static Heap> {
    pop_of(domain as usize)
}

/// Takes an idle cold heap, likewise.
pub(crate) fn pop_cold() -> Option<&'static Heap> {
    pop_of(COLD)
}

fn pop_of(index: usize) -> Option<&'static Heap> {
    if IDLE_COUNT[index].load(Relaxed) == 0 {
        return None;
    }
    let mut idle = IDLE.lock();
    // SAFETY: heaps are immortal.
    let heap = unsafe { idle.first[index].as_ref() }?;
    idle.first[index] = heap.next_idle.get();
    if idle.first[index].is_null() {
        idle.last[index] = core::ptr::null();
    }
    IDLE_COUNT[index].fetch_sub(1, Relaxed);
    give_to_caller(heap);
    heap.remote.leave(false);
    heap.state.store(State::InUse as u8, Relaxed);
    Some(heap)
}

/// Writes down that the calling thread uses the heap from now on, and by which number others know that thread.
pub(crate) fn hand_over(heap: &Heap) {
    give_to_caller(heap);
    heap.user_tid.store(memfold_sys::thread::current_tid_if_free(), Relaxed);
}

/// Writes down that the calling thread uses the heap, which may be for a moment only: no number is asked of the kernel.
fn give_to_caller(heap: &Heap) {
    heap.user.store(memfold_sys::thread::pointer(), Relaxed);
    // With checks on no block is at hand, not even one from before.
    let keeps_none = misuse::is_on() || heap.is_cold.get();
    heap.shelf.set(if keeps_none { NO_SHELF } else { shelf(heap.domain.get()) });
}

/// Calls `read` with the thread pointer of the thread with this number, if that thread ever allocated and still runs; it does not end
/// before `read` returns, which must be soon. Takes no lock and may be called from any thread.
pub fn with_thread_pointer_of<R>(tid: u32, read: impl Fn(usize) -> Option<R>) -> Option<R> {
    let mut at: *const Heap = ALL.load(Acquire);
    // SAFETY: heaps are immortal, and linked before they are published.
    while let Some(heap) = unsafe { at.as_ref() } {
        if heap.user_tid.load(Relaxed) == tid {
            // SeqCst, here and in `await_readers`: either we see that the thread is about to end, or it sees us.
            heap.readers.fetch_add(1, SeqCst);
            let pointer = heap.user.load(SeqCst);
            let found = (pointer != 0 && heap.user_tid.load(Relaxed) == tid).then(|| read(pointer));
            heap.readers.fetch_sub(1, Release);
            if let Some(found) = found {
                return found;
            }
        }
        at = heap.next_heap.get();
    }
    None
}

/// Says that the heap's thread uses it no more, and waits until nobody reads anything of that thread's.
fn await_readers(heap: &Heap) {
    heap.user_tid.store(0, Relaxed);
    heap.user.store(0, SeqCst);
    let mut backoff = Backoff::new();
    while heap.readers.load(SeqCst) != 0 {
        backoff.wait();
    }
}

/// A heap for the calling thread to use, an idle one if there is any. `None` if the kernel gives no more
/// memory.
pub(crate) fn acquire(domain: Domain) -> Option<&'static Heap> {
    match pop_idle(domain) {
        Some(heap) => {
            hand_over(heap);
            Some(heap)
        }
        None => make(domain, false),
    }
}

/// A cold heap for the calling thread to use, likewise.
pub(crate) fn acquire_cold() -> Option<&'static Heap> {
    pop_cold().or_else(|| make(Domain::Managed, true))
}

fn make(domain: Domain, is_cold: bool) -> Option<&'static Heap> {
    let bytes = memfold_arena::pinned_bytes(core::mem::size_of::<Heap>(), core::mem::align_of::<Heap>())?;
    // SAFETY: the bytes are ours alone, large enough, aligned and zero, and zero bytes are a valid heap.
    let heap = unsafe { &*bytes.cast::<Heap>() };
    heap.set_up(domain);
    heap.is_cold.set(is_cold);
    hand_over(heap);
    let mut head = ALL.load(Relaxed);
    loop {
        heap.next_heap.set(head);
        match ALL.compare_exchange_weak(head, bytes.cast(), Release, Relaxed) {
            Ok(_) => return Some(heap),
            Err(now) => head = now,
        }
    }
}

/// Gives a heap that the calling thread uses to whoever needs one next.
pub(crate) fn release(heap: &'static Heap) {
    remote::drain(heap, None);
    flush::flush_all(heap);
    put_idle(heap);
}

/// Has a heap wait for whoever needs one next.
pub(crate) fn put_idle(heap: &'static Heap) {
    await_readers(heap);
    let index = list_of(heap);
    let mut idle = IDLE.lock();
    heap.next_idle.set(core::ptr::null());
    heap.remote.leave(true);
    heap.state.store(State::Idle as u8, Relaxed);
    // SAFETY: heaps are immortal.
    match unsafe { idle.last[index].as_ref() } {
        Some(last) => last.next_idle.set(heap),
        None => idle.first[index] = heap,
    }
    idle.last[index] = heap;
    IDLE_COUNT[index].fetch_add(1, Relaxed);
}

/// Calls `f` for every heap there is.
pub(crate) fn for_each(mut f: impl FnMut(&'static Heap)) {
    let mut heap: *const Heap = ALL.load(Acquire);
    // SAFETY: heaps are immortal.
    while let Some(this) = unsafe { heap.as_ref() } {
        heap = this.next_heap.get();
        f(this);
    }
}

/// Runs `alloc` with a heap on behalf of a thread whose own heap is the sentinel `found`: its own from now
/// on for a thread that starts, a borrowed one for a thread that exits. `None` if there is no memory.
#[cold]
pub(crate) fn with_heap<R>(found: &'static Heap, alloc: impl FnOnce(&'static Heap) -> R) -> Option<R> {
    if found.is(&tls::EMPTY) {
        let heap = attach()?;
        return Some(alloc(heap));
    }
    if found.is(&tls::EXITED) {
        let heap = acquire(Domain::Managed)?;
        let result = alloc(heap);
        release(heap);
        return Some(result);
    }
    None
}

/// The calling thread's heap, a new one if it only begins to use the allocator; `None` if it exits or may have none.
pub(crate) fn heap_to_free_with() -> Option<&'static Heap> {
    let found = tls::get();
    match is_sentinel(found) {
        false => Some(found),
        true if found.is(&tls::EMPTY) => attach(),
        true => None,
    }
}

/// Whether `heap` stands for having none.
pub(crate) fn is_sentinel(heap: &'static Heap) -> bool {
    heap.is(&tls::EMPTY) || heap.is(&tls::EXITED) || heap.is(&tls::REFUSED)
}

memfold_sys::weak! {
    /// Up to glibc 2.33 it is in a library of its own, which a program need not have. Without, heaps of threads that end are lost to others.
    create_key = "pthread_key_create"
}
type CreateKey = unsafe extern "C" fn(
    *mut libc::pthread_key_t,
    Option<unsafe extern "C" fn(*mut libc::c_void)>,
) -> libc::c_int;

fn attach() -> Option<&'static Heap> {
    let heap = acquire(Domain::Managed)?;
    tls::set(heap);
    let mut key = KEY.lock();
    if key.is_none() {
        let mut made: libc::pthread_key_t = 0;
        // SAFETY: libc's function of this name has this type.
        let create: Option<CreateKey> = unsafe { core::mem::transmute(create_key()) };
        // SAFETY: the function pointer stays valid: a library with initial-exec variables is never
        // unloaded. The call takes a slot of a static table and does not allocate.
        if create.is_some_and(|create| unsafe { create(&mut made, Some(at_thread_exit)) } == 0) {
            *key = Some(made);
        }
    }
    let made = *key;
    drop(key);
    if let Some(made) = made {
        // SAFETY: the key exists. Only for a key number above 31 does glibc allocate here, and by now this
        // thread has its heap. Without the value, the thread's heap is lost to others, and nothing else.
        let _ = unsafe { libc::pthread_setspecific(made, (heap as *const Heap).cast()) };
    }
    Some(heap)
}

/// How many rounds of destructors a thread keeps its heap for. Ours is of one of the first keys, so in each round the others run after
/// it; libc makes no more than four rounds (`PTHREAD_DESTRUCTOR_ITERATIONS`).
const ROUNDS: usize = 2;

/// Runs at the exit of a thread that has a heap. Destructors that run later may still allocate.
unsafe extern "C" fn at_thread_exit(value: *mut libc::c_void) {
    let round = value.addr() % core::mem::align_of::<Heap>();
    let key = *KEY.lock();
    if let Some(key) = key.filter(|_| round < ROUNDS) {
        // SAFETY: the key exists, and this thread had a value of it, so nothing is allocated for one.
        if unsafe { libc::pthread_setspecific(key, value.wrapping_byte_add(1)) } == 0 {
            return;
        }
    }
    tls::set(&tls::EXITED);
    // SAFETY: the value of the key is the heap that `attach` gave this thread, and how often it was put off.
    release(unsafe { &*value.wrapping_byte_sub(round).cast::<Heap>() });
}

/// Gives back what is free in the heaps of threads that are gone, and in cold ones.
pub(crate) fn tidy_idle() {
    tidy_some(0, 1);
}

/// The same for one in so many of each list, and at least so many, those first that were looked at longest ago.
fn tidy_some(least: usize, in_so_many: usize) {
    for (index, count) in IDLE_COUNT.iter().enumerate() {
        let count = count.load(Relaxed);
        for _ in 0..(count / in_so_many).max(least).min(count) {
            let Some(idle) = pop_of(index) else { break };
            release(idle);
        }
    }
}

/// Who frees much of threads that are gone gives it back in their place.
#[inline]
pub(crate) fn tidy_if_much_is_left() {
    if parcel::is_much_left() {
        tidy_some(LOOKED_AT, PARTS);
    }
}

/// Heaps that nobody uses, and that are looked at at once: at least so many.
const LOOKED_AT: usize = 4;
/// And one in so many: so often much may be left until all were looked at, however many they are.
const PARTS: usize = 32;

/// Keeps idle heaps and the key at rest for the time around `fork`.
pub(crate) fn hold() {
    KEY.hold();
    IDLE.hold();
}

/// # Safety
/// As [`Mutex::release`].
pub(crate) unsafe fn let_go(in_child: bool) {
    // SAFETY: the caller's contract.
    unsafe {
        IDLE.release(in_child);
        KEY.release(in_child);
    }
}

/// Has the calling thread's allocations come from pinned memory until it is dropped; see [`pinned`].
#[must_use]
pub struct Pinned {
    before: &'static Heap,
    heap: Option<&'static Heap>,
    /// The guard must be dropped by the thread that made it.
    _thread: core::marker::PhantomData<Cell<*const ()>>,
}

/// While the result is held, everything that the calling thread allocates is never evicted.
///
/// It is for calls into libc whose allocations the pager's own threads or fork handlers will read. Blocks
/// made so may be freed anywhere, at any time. If there is no memory for it, the thread's allocations fail
/// meanwhile. Guards may be nested.
pub fn pinned() -> Pinned {
    let before = tls::get();
    let heap = acquire(Domain::Pinned);
    tls::set(heap.unwrap_or(&tls::REFUSED));
    Pinned { before, heap, _thread: core::marker::PhantomData }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        tls::set(self.before);
        if let Some(heap) = self.heap {
            release(heap);
        }
    }
}
