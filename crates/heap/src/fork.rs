//! The allocator across `fork`.
//!
//! What it is: the handlers that keep locks and records at rest while the process is copied. What it is not: what the child does with the
//! heaps of threads that it does not have, which it calls orphans ([`crate::orphans`]).

use crate::heap::State;
use crate::sync::{AtomicUsize, Ordering::*};
use crate::{orphans, registry, remote, samples, slots, tls, voids};

/// The thread that holds the locks around its `fork`, or did last.
static HOLDER: AtomicUsize = AtomicUsize::new(0);

/// Called in the thread that forks, before `fork`: takes every lock of heap and arena.
///
/// A signal handler that interrupted the allocator may fork, too, or one that interrupted a fork: what its thread has in hand stays as it is.
///
/// Nothing may allocate or free between this and [`fork_parent`] or [`fork_child`]. No lock of the allocator
/// is ever held while an [`memfold_arena::Hooks`] function runs, so it does not matter whether the pager takes its
/// own locks before or after.
pub fn fork_prepare() {
    let heap = tls::get();
    if !registry::is_sentinel(heap) {
        remote::put_aside(heap);
    }
    registry::hold();
    voids::hold();
    samples::hold();
    memfold_arena::fork_prepare();
    HOLDER.store(memfold_sys::thread::pointer(), Relaxed);
}

/// Called in the parent after `fork`, whether it worked or not, by the thread that called [`fork_prepare`].
pub fn fork_parent() {
    release(false);
}

/// Called in the child of a thread that called [`fork_prepare`], before anything in it allocates or frees.
///
/// The child has one thread, a copy of that one; but `clone` may have given it another thread pointer (`CLONE_SETTLS`, clone(2)).
pub fn fork_child() {
    let forked = HOLDER.load(Relaxed);
    // With fresh thread-local variables it goes on with no heap.
    let goes_on = forked == memfold_sys::thread::pointer() || !registry::is_sentinel(tls::get());
    slots::begin_anew();
    registry::for_each(|heap| {
        // What was sent between the preparation and the copy: its links cannot be believed.
        heap.remote.forget();
        // Nor does anybody read anything of a thread's here.
        heap.readers.store(0, Relaxed);
        let in_use = heap.state.load(Relaxed) == State::InUse as u8;
        if in_use && goes_on && heap.user.load(Relaxed) == forked {
            // The same thread by another number.
            registry::hand_over(heap);
        } else if in_use {
            orphans::make(heap);
        }
    });
    release(true);
}

fn release(in_child: bool) {
    // SAFETY: this thread, or the one that it is a copy of, took the locks in `fork_prepare`.
    unsafe {
        memfold_arena::fork_release(in_child);
        samples::let_go(in_child);
        voids::let_go(in_child);
        registry::let_go(in_child);
    }
}
