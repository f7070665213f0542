//! Who calls: the thread, the process, its user; and which threads are agents.

use crate::syscall;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// The kernel's number for the calling thread.
pub fn current_tid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(gettid) }.unwrap_or(0) as u32
}

/// The number of the calling process.
pub fn current_pid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(getpid) }.unwrap_or(0) as u32
}

/// Whether this process has rights that whoever started it has not, as set-user-ID programs have (`AT_SECURE`, getauxval(3)).
pub fn process_has_more_rights() -> bool {
    // SAFETY: reads what the kernel told this process at its start.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// The effective user.
pub fn effective_user() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(geteuid) }.unwrap_or(0) as u32
}

/// The number of its parent.
pub fn parent_pid() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(getppid) }.unwrap_or(0) as u32
}

/// The kernel's numbers of this process's agent threads; 0 where there is none.
static AGENTS: [AtomicU32; MOST_AGENTS] = [const { AtomicU32::new(0) }; MOST_AGENTS];
/// More than a process ever has; further ones are not taken for agents.
const MOST_AGENTS: usize = 16;

/// The thread is an agent. Both it and who made it say so, whichever comes first.
pub(crate) fn note(tid: u32) {
    if !agents().contains(&tid) {
        let _ = AGENTS.iter().find(|agent| agent.compare_exchange(0, tid, AcqRel, Relaxed).is_ok());
    }
}

/// It is no more.
pub(crate) fn forget(tid: u32) {
    for agent in &AGENTS {
        let _ = agent.compare_exchange(tid, 0, AcqRel, Relaxed);
    }
}

/// Whether the calling thread is an agent. What the program has open is not open there ([`crate::table`]).
pub fn is_agent() -> bool {
    let me = current_tid();
    AGENTS.iter().any(|agent| agent.load(Acquire) == me)
}

/// The kernel's numbers of all agents; 0 where there is none.
pub fn agents() -> [u32; MOST_AGENTS] {
    core::array::from_fn(|at| AGENTS[at].load(Acquire))
}
