//! `futex(2)` in a model.
//!
//! Invariants: as in the kernel, who is about to sleep lines up before the word is compared, and compares under a lock that
//! a waker takes before it looks who stands in line. So either the comparison sees the waker's change, or the waker sees
//! the sleeper.

use crate::sync::{pass_bucket, AtomicU32, Ordering::SeqCst};
use std::cell::RefCell;
use std::convert::Infallible;
use std::ops::RangeInclusive;

/// A thread in line at an address.
struct Sleeper {
    addr: usize,
    thread: loom::thread::Thread,
    asleep: bool,
}

thread_local! {
    static LINE: RefCell<Vec<Sleeper>> = RefCell::default();
}

pub(crate) fn reset() {
    LINE.with_borrow_mut(Vec::clear);
}

/// Sleeps while `word` holds `expected`. Returns on a wake-up only; there is no time limit.
pub fn wait(word: &AtomicU32, expected: u32, _limit: Option<Infallible>) -> memfold_sys::Result<()> {
    let addr = word as *const AtomicU32 as usize;
    line_up(addr);
    pass_bucket(addr);
    if word.load(SeqCst) != expected {
        let me = loom::thread::current().id();
        LINE.with_borrow_mut(|line| line.retain(|sleeper| sleeper.thread.id() != me));
        return Err(memfold_sys::Errno::EAGAIN);
    }
    sleep();
    Ok(())
}

/// Wakes at most `count` sleepers of `word`.
pub fn wake(word: &AtomicU32, count: u32) {
    let addr = word as *const AtomicU32 as usize;
    pass_bucket(addr);
    wake_at(addr..=addr, count);
}

/// The calling thread can be woken from now on by whoever wakes the address.
pub fn line_up(addr: usize) {
    let thread = loom::thread::current();
    LINE.with_borrow_mut(|line| line.push(Sleeper { addr, thread, asleep: false }));
}

/// Sleeps until the calling thread, which has lined up, was woken; not at all if it was already.
pub fn sleep() {
    let me = loom::thread::current().id();
    let stands_in_line = || {
        LINE.with_borrow_mut(|line| {
            let own = line.iter_mut().find(|sleeper| sleeper.thread.id() == me);
            own.map(|sleeper| sleeper.asleep = true).is_some()
        })
    };
    while stands_in_line() {
        loom::thread::park();
    }
}

/// Wakes at most `count` of those in line at an address of the range.
pub fn wake_at(addresses: RangeInclusive<usize>, count: u32) {
    let mut left = count;
    let mut woken = Vec::new();
    LINE.with_borrow_mut(|line| {
        line.retain(|sleeper| {
            let wakes = left > 0 && addresses.contains(&sleeper.addr);
            if wakes {
                left -= 1;
                // Who does something else before it sleeps must not be torn from that.
                woken.extend(sleeper.asleep.then(|| sleeper.thread.clone()));
            }
            !wakes
        });
    });
    woken.iter().for_each(|thread| thread.unpark());
}
