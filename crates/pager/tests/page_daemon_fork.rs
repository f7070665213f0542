//! A page daemon across a fork. By itself, because what a child shares cannot be moved, whichever test it belongs to.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_sys::PAGE_SIZE;

#[test]
fn a_forked_child_goes_on_under_its_parents_policy_and_sees_every_byte() {
    const PAGES: usize = 2048;
    let (engine, memory) = policed("bonchance", PAGES / 4, PAGES, false);
    memory.fill(3);
    wait_until("it is down to the limit", || evicted(engine) >= (PAGES / 2 * PAGE_SIZE) as u64);
    let pid = fork(engine);
    if pid == 0 {
        memory.check(3);
        unsafe { libc::_exit(0) };
    }
    assert_eq!(wait(pid), 0);
    memory.check(3);
}
