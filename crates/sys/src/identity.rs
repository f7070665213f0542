//! Who calls: the thread, the process, its user; and which threads are agents.

use crate::time::{self, Nanos};
use crate::{syscall, PAGE_SIZE};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::*};

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

/// Where a thread of this process has its list of robust futexes (get_robust_list(2)): with glibc a part of what it keeps of the thread. `None` where it has none.
pub fn robust_list(tid: u32) -> Option<usize> {
    let (mut head, mut len) = (0usize, 0usize);
    // SAFETY: the kernel writes two words.
    unsafe { syscall!(get_robust_list, tid, &raw mut head as usize, &raw mut len as usize) }.ok()?;
    Some(head).filter(|&head| head != 0)
}

/// The effective user.
pub fn effective_user() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall!(geteuid) }.unwrap_or(0) as u32
}

/// Who a thread is to the kernel: real, effective and saved user, and the same of groups (credentials(7)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// Users.
    pub users: [u32; 3],
    /// Groups.
    pub groups: [u32; 3],
}

impl Credentials {
    /// Those of the calling thread.
    pub fn own() -> Credentials {
        let mut own = Credentials::default();
        let places = |ids: &mut [u32; 3]| {
            let at = ids.as_mut_ptr();
            [0, 1, 2].map(|index| at.wrapping_add(index) as usize)
        };
        let ([a, b, c], [d, e, f]) = (places(&mut own.users), places(&mut own.groups));
        // SAFETY: the kernel writes three words each; it cannot fail then.
        unsafe {
            let _ = syscall!(getresuid, a, b, c);
            let _ = syscall!(getresgid, d, e, f);
        }
        own
    }

    /// Whether a thread with these may take on each of the others, so that who has those has no more than it.
    pub fn reach(&self, others: &Credentials) -> bool {
        let [_, effective, _] = self.users;
        let within = |others: [u32; 3], own: [u32; 3]| others.iter().all(|id| own.contains(id));
        effective == 0 || (within(others.users, self.users) && within(others.groups, self.groups))
    }
}

/// The number of its parent, or 0 in a program that has confined its system calls.
pub fn parent_pid() -> u32 {
    if is_confined() {
        return 0;
    }
    // SAFETY: no arguments.
    unsafe { syscall!(getppid) }.unwrap_or(0) as u32
}

/// Set by [`confine`].
static CONFINED: AtomicBool = AtomicBool::new(false);

/// The program forbids itself system calls. One of ours that it would not make without us may end it from now on.
pub fn confine() {
    CONFINED.store(true, Release);
}

/// Whether it does, as far as we have seen.
pub fn is_confined() -> bool {
    CONFINED.load(Acquire)
}

/// [`current_tid`], or 0 in a program that has confined its system calls.
pub fn current_tid_if_free() -> u32 {
    if is_confined() {
        return 0;
    }
    current_tid()
}

/// More agents than a process ever has; further ones are not taken for agents.
const MOST_AGENTS: usize = 16;
/// Bytes of the block of memory that an agent runs in.
pub(crate) const AGENT_BLOCK: usize = (256 << 10) + 6 * PAGE_SIZE;
/// The kernel's numbers of this process's agent threads; 0 where there is none.
static AGENTS: [AtomicU32; MOST_AGENTS] = [const { AtomicU32::new(0) }; MOST_AGENTS];
/// Where the blocks of memory begin in which their stacks are; 0 where there is none.
static STACKS: [AtomicUsize; MOST_AGENTS] = [const { AtomicUsize::new(0) }; MOST_AGENTS];

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

/// An agent is about to run in the block of memory.
pub(crate) fn note_stack(block: usize) {
    let _ = STACKS.iter().find(|stack| stack.compare_exchange(0, block, AcqRel, Relaxed).is_ok());
}

/// It does not any more.
pub(crate) fn forget_stack(block: usize) {
    for stack in &STACKS {
        let _ = stack.compare_exchange(block, 0, AcqRel, Relaxed);
    }
}

/// Whether the calling thread is an agent, by the stack that it runs on: without a system call, which the program may have forbidden
/// to itself. What the program has open is not open there ([`crate::table`]).
pub fn is_agent() -> bool {
    let local = 0u8;
    let here = core::hint::black_box(&raw const local) as usize;
    STACKS.iter().any(|stack| match stack.load(Acquire) {
        0 => false,
        block => here.wrapping_sub(block) < AGENT_BLOCK,
    })
}

/// The kernel's numbers of all agents; 0 where there is none.
pub fn agents() -> [u32; MOST_AGENTS] {
    core::array::from_fn(|at| AGENTS[at].load(Acquire))
}

/// The CPU time that the program's own threads have used, those that ended too: all of the process's but the agents'. What agents that ended
/// have used counts as the program's.
pub fn program_cpu() -> Nanos {
    let own = agents().iter().filter(|&&tid| tid != 0).map(|&tid| time::cpu_of(tid).0).sum();
    Nanos(time::process_cpu().0.saturating_sub(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    static SEEN: AtomicBool = AtomicBool::new(false);

    extern "C" fn look(_: usize) {
        SEEN.store(is_agent(), SeqCst);
    }

    #[test]
    fn an_agent_knows_itself_by_its_stack_and_nobody_else_is_taken_for_one() {
        // SAFETY: the entry only stores a word.
        let thread = unsafe { crate::thread::Thread::spawn(look, 0) }.unwrap();
        assert!(!is_agent());
        thread.join();
        assert!(SEEN.load(SeqCst));
    }

    #[test]
    fn root_reaches_everybody_and_others_what_they_may_take_on_again() {
        let of = |users, groups| Credentials { users, groups };
        let (root, lowered, user) = (of([0; 3], [0; 3]), of([0, 7, 0], [0, 7, 0]), of([7; 3], [7; 3]));
        assert!(root.reach(&lowered) && root.reach(&user) && lowered.reach(&root) && lowered.reach(&user));
        assert!(user.reach(&user) && !user.reach(&root) && !user.reach(&lowered));
        assert!(!of([7; 3], [8; 3]).reach(&user) && !of([8; 3], [7; 3]).reach(&user));
        // SAFETY: no arguments.
        let own = unsafe { [libc::getuid(), libc::geteuid()] };
        assert_eq!(Credentials::own().users[..2], own);
    }
}
