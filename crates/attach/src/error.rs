//! Why a process cannot be attached to, or detached from: what is in the way, and what to do about it.

use nix::errno::Errno;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is none such.
    #[error("there is no process {0}")]
    NoProcess(u32),
    /// It has ended meanwhile.
    #[error("process {0} has ended")]
    Ended(u32),
    /// Something else keeps it from being looked at.
    #[error("process {0} cannot be looked at: {1}")]
    NotSeen(u32, Errno),
    /// It is the kernel's.
    #[error("process {0} is a thread of the kernel, which has no memory of its own")]
    KernelThread(u32),
    /// It has ended and waits for its parent.
    #[error("process {0} has ended, and its parent has not taken notice yet")]
    Zombie(u32),
    /// It is stopped.
    #[error("process {0} is stopped: continue it first (`kill -CONT {0}`)")]
    Suspended(u32),
    /// Somebody traces it.
    #[error("process {0} is traced by process {1}: detach that debugger first")]
    Traced(u32, u32),
    /// Its first thread has ended, others go on.
    #[error("the first thread of process {0} has ended while others go on, and the kernel does not show it its own memory any more")]
    Headless(u32),
    /// A filter of system calls is in force.
    #[error("process {0} is under a filter of system calls (seccomp), which may end it for the agent's: start it with `memfold run` before it sets the filter")]
    Filtered(u32),
    /// For another kind of machine.
    #[error("process {0} executes a program for another machine ({1}), and the agent is for 64-bit x86")]
    OtherMachine(u32, String),
    /// Its memory belongs to another process too.
    #[error("process {0} shares its memory with process {1}, which the agent would not survive: wait until that has ended")]
    Shared(u32, u32),
    /// The library is in it, or the agent.
    #[error("process {0} is folded already: see `memfold stat {0}`")]
    Folded(u32),
    /// Somebody is at it.
    #[error("process {0} is being attached to or detached from by somebody else: try again")]
    Taken(u32),
    /// It has a userfaultfd of its own.
    #[error("process {0} has a userfaultfd of its own, and the kernel lets no memory have two")]
    OwnUserfaultfd(u32),
    /// Forks would not be reported.
    #[error("the kernel would not report the forks of process {0} to user {1}, and its children would read zeros: CAP_SYS_PTRACE is needed, as root has it (`sudo memfold attach {0}`) and who root lets (`sudo memfold setup --user NAME`); or start it with `memfold run`")]
    NoForks(u32, u32),
    /// What has the right to reports of forks could not lend it.
    #[error("process {0} has not CAP_SYS_PTRACE, and the userfaultfd cannot be asked for reports of forks in its place ({1}: {2}): that takes Linux 6.9 or later, /dev/userfaultfd, and for who is not root `sudo memfold setup`")]
    Helping(u32, &'static str, Errno),
    /// ptrace(2) is not permitted.
    #[error("process {0} may not be traced by this user ({1}): {2}")]
    Forbidden(u32, Errno, &'static str),
    /// No thread could be stopped.
    #[error("no thread of process {0} could be stopped: all of them wait in the kernel for something that cannot be interrupted; try again")]
    Busy(u32),
    /// What was begun in it was not brought to its end, as far as we have seen.
    #[error("what was begun in process {0} has not come to its end: it has a thread wait in a system call of ours, or who was at it was killed; try again")]
    Unfinished(u32),
    /// What no thread could be borrowed for.
    #[error("no thread of process {0} can be borrowed: {1}")]
    Unfit(u32, Unfit),
    /// It has forbidden itself what the agent's code needs.
    #[error("process {0} may make no memory executable that it has written (PR_SET_MDWE of prctl(2), as `MemoryDenyWriteExecute` of systemd has it, or `execmem` of SELinux): start it with `memfold run`")]
    NoCode(u32),
    /// There is no instruction to make system calls with.
    #[error("process {0} has no `syscall` instruction in its memory")]
    NoSyscall(u32),
    /// A system call of its own failed.
    #[error("{call} failed in process {pid}: {errno}")]
    Call {
        /// The process.
        pid: u32,
        /// Which.
        call: &'static str,
        /// Why.
        errno: Errno,
    },
    /// Its memory could not be read or written.
    #[error("the memory of process {0} cannot be reached: {1}")]
    Memory(u32, Errno),
    /// The agent has given up.
    #[error("not folded: {0}")]
    AgentFailed(String),
    /// The agent does not answer.
    #[error("the agent in process {0} does not answer; it was left there")]
    AgentLost(u32),
    /// There is none in it.
    #[error("process {0} was not attached to")]
    NotAttached(u32),
    /// One of another version is in it.
    #[error("process {0} was attached to by another version of memfold, which must detach it")]
    OtherVersion(u32),
    /// The choices are too long.
    #[error(
        "the options are longer than the {} bytes that an agent is told",
        memfold_pager::plan::MOST_CHOICES
    )]
    TooMuchChosen,
    /// The agent's file is not what it should be.
    #[error("this file is not the agent: {0}")]
    BadImage(&'static str),
}

/// What a thread does that a system call of ours would not outlive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// It has its system calls made by a handler of its own.
    Dispatches,
    /// It executes 32-bit code.
    Narrow,
}

impl std::fmt::Display for Unfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Unfit::Dispatches => "its system calls go to a handler of its own (prctl(2), PR_SET_SYSCALL_USER_DISPATCH), and the agent's would too",
            Unfit::Narrow => "it executes 32-bit code, and the agent is for 64-bit x86",
        })
    }
}

/// What goes wrong while a thread of a process is stopped, in plain words: they are told by another process ([`crate::hand`]).
#[derive(Clone, Copy, Debug)]
pub enum Trouble {
    /// As [`Error::Ended`].
    Ended,
    /// As [`Error::Busy`].
    Busy,
    /// As [`Error::Suspended`].
    Suspended,
    /// As [`Error::Filtered`].
    Filtered,
    /// As [`Error::Unfit`].
    Unfit(Unfit),
    /// As [`Error::Forbidden`].
    Forbidden(Errno),
    /// As [`Error::Call`].
    Call(&'static str, Errno),
}

/// Why a process may not be traced.
pub fn forbidden(pid: u32, errno: Errno) -> Error {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let remedy = match scope.trim() {
        "1" => "kernel.yama.ptrace_scope is 1: attach as root, or set it to 0",
        "2" => "kernel.yama.ptrace_scope is 2: attach as root",
        "3" => "kernel.yama.ptrace_scope is 3, which forbids it to everybody until the machine starts anew",
        _ => "it belongs to another user, or has rights that this user has not: attach as root",
    };
    Error::Forbidden(pid, errno, remedy)
}
