//! Fork: by itself, because what a child shares with its parent is not moved while the child lives.

// Every address here lies in a mapping that the test itself made.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_client::register;
use std::time::Duration;

#[test]
fn a_forked_child_finds_every_byte_of_a_folded_range() {
    started(Duration::from_millis(20));
    let memory = Memory::new(8 * MIB, 5);
    register(memory.pointer(), memory.len).unwrap();
    wait_until("it is folded", || memory.present() == 0);
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // A child that hangs must not outlive the test, nor unwind into the harness.
        unsafe { libc::alarm(30) };
        let right = memory.is_right();
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    assert!(memory.is_right());
    let mut status = -1;
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0, "the child read something else");
}
