//! Threads that libc does not know of, and their scheduling.
//!
//! The agent's threads are made by `clone(2)` itself, not by `pthread_create`: they may be started from
//! anywhere (inside an allocation, in a forked child, in a signal handler), nothing of them lies in memory
//! that the program's allocator handed out, libc goes on treating a single-threaded program as one, and a
//! program whose last own thread leaves by `pthread_exit` ends as it should.
//!
//! The price: code on such a thread must not use anything that needs a thread control block: no `std`, no
//! `thread_local!`, no libc function that may lock, allocate or cancel. The thread pointer addresses a page
//! of zeros, so that a stray `errno` or stack-protector access is harmless.

use crate::call::{Errno, Result};
pub use crate::identity::{
    agents, confine, current_pid, current_tid, current_tid_if_free, effective_user, is_agent, is_confined,
    parent_pid, process_has_more_rights, program_cpu, robust_list, Credentials,
};
use crate::identity::{forget, forget_stack, note, note_stack, AGENT_BLOCK as BLOCK};
use crate::inject::{self, Point};
use crate::{futex, mem, signal, syscall, PAGE_SIZE};
use core::sync::atomic::{AtomicU32, Ordering::*};

/// Bytes of stack, without the guard page below it.
const STACK: usize = BLOCK - GUARD - TLS - PAGE_SIZE;
/// Bytes around the thread pointer: below it for accesses to libc's static thread-locals, above it for the
/// fields of the thread control block.
const TLS: usize = 4 * PAGE_SIZE;
const GUARD: usize = PAGE_SIZE;
/// What a thread of an agent shares with the process that it is made in.
pub const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_CHILD_CLEARTID;
/// How often to try while an `execve` is under way, a millisecond apart.
const EXEC_TRIES: u32 = 200;
/// How often to look whether an ended thread is gone, 50 us apart: a second.
const LEAVING_TRIES: u32 = 20_000;

/// A running agent thread.
#[derive(Debug)]
pub struct Thread {
    block: usize,
    tid: u32,
}

/// What lies at the very top of the block; the kernel zeroes `alive` and wakes its sleepers when the thread is gone.
#[repr(C)]
struct Header {
    alive: AtomicU32,
    tid: AtomicU32,
    entry: extern "C" fn(usize),
    arg: usize,
}

/// Where every agent begins.
extern "C" fn begin(header: usize) {
    note(current_tid());
    // SAFETY: written before the thread was made, and mapped until `join`.
    let (entry, arg) = unsafe { ((*(header as *const Header)).entry, (*(header as *const Header)).arg) };
    entry(arg);
}

impl Thread {
    fn header(&self) -> &Header {
        // SAFETY: the last page of the block, mapped until `join`, zeroed by the kernel.
        unsafe { &*((self.block + BLOCK - PAGE_SIZE) as *const Header) }
    }

    /// Starts `entry(arg)` on a new thread with every signal blocked.
    ///
    /// # Safety
    /// `entry` must keep to what the module says a thread like this may do, and `arg` must be what it expects.
    pub unsafe fn spawn(entry: extern "C" fn(usize), arg: usize) -> Result<Thread> {
        let block = mem::map_own(BLOCK, libc::MAP_NORESERVE)?;
        mem::name_range(block, BLOCK, c"memfold agent");
        mem::note_own(block, BLOCK);
        // SAFETY: the guard page is ours and unused.
        unsafe { mem::mprotect(block, GUARD, libc::PROT_NONE) }?;
        let mut thread = Thread { block, tid: 0 };
        let stack_top = block + GUARD + STACK;
        let thread_pointer = stack_top + TLS / 2;
        // The x86-64 ABI finds the thread pointer by loading the word it points to.
        // SAFETY: inside the block.
        unsafe { *(thread_pointer as *mut usize) = thread_pointer };
        let top = block + BLOCK - PAGE_SIZE;
        let (alive, tid) = (AtomicU32::new(1), AtomicU32::new(0));
        // SAFETY: the last page of the block, which nobody else knows yet.
        unsafe { (top as *mut Header).write(Header { alive, tid, entry, arg }) };
        let header = thread.header();
        let flags = FLAGS | libc::CLONE_PARENT_SETTID;
        let blocked = signal::block_all();
        let mut raw;
        let mut tries = 0;
        note_stack(block);
        loop {
            tries += 1;
            if tries < EXEC_TRIES && inject::error(Point::Clone).is_some() {
                crate::time::sleep(crate::time::Nanos::from_millis(1));
                continue;
            }
            // SAFETY: the stack, the thread pointer and both words live until `join`; the new thread runs
            // only `entry` and then exits by itself.
            raw = unsafe {
                clone_thread(
                    flags as usize,
                    stack_top,
                    header.tid.as_ptr() as usize,
                    header.alive.as_ptr() as usize,
                    thread_pointer,
                    begin,
                    top,
                )
            };
            // While another thread is in `execve`, which may yet fail, the kernel makes no thread that shares the
            // current directory.
            if raw != -libc::EAGAIN as isize || tries == EXEC_TRIES {
                break;
            }
            crate::time::sleep(crate::time::Nanos::from_millis(1));
        }
        drop(blocked);
        if raw < 0 {
            forget_stack(block);
            // SAFETY: no thread was made, so nobody uses the block.
            let _ = unsafe { mem::munmap(block, BLOCK) };
            return Err(Errno(-raw as i32));
        }
        thread.tid = raw as u32;
        note(thread.tid);
        inject::note_agent(thread.tid);
        Ok(thread)
    }

    /// The kernel's number for the thread.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Waits until the thread has left, and frees its memory.
    pub fn join(self) {
        loop {
            let alive = self.header().alive.load(Acquire);
            if alive == 0 {
                break;
            }
            // Not the private form: the kernel's wake-up at thread exit is a shared one.
            // SAFETY: the word lives in the block.
            let _ = unsafe {
                syscall!(futex, self.header().alive.as_ptr() as usize, libc::FUTEX_WAIT, alive, 0, 0, 0)
            };
        }
        // The word is cleared a moment before the kernel ceases to count the thread, and some calls that the program may
        // make next (`unshare`, `setns`) are for processes with a single thread.
        let process = current_pid() as usize;
        for _ in 0..LEAVING_TRIES {
            // SAFETY: signal 0 is no signal: only asks whether the thread is there.
            if unsafe { syscall!(tgkill, process, self.tid, 0) }.is_err() {
                break;
            }
            crate::time::sleep(crate::time::Nanos(50_000));
        }
        forget(self.tid);
        forget_stack(self.block);
        // SAFETY: the kernel clears `alive` after the thread's last instruction in user mode.
        let _ = unsafe { mem::munmap(self.block, BLOCK) };
    }

    /// Frees the memory of a thread that does not exist in this process: the copy that a forked child has
    /// of its parent's.
    pub fn forget_in_child(self) {
        forget(self.tid);
        forget_stack(self.block);
        // SAFETY: in the child only the forking thread exists.
        let _ = unsafe { mem::munmap(self.block, BLOCK) };
    }
}

/// Bytes of the block of memory in which an agent thread runs that somebody else has made ([`adopt`]).
pub const ADOPTED_BLOCK: usize = BLOCK;

/// The calling thread, which somebody else has made with its stack in the block of [`ADOPTED_BLOCK`] bytes, is an agent from now on.
pub fn adopt(block: usize) {
    note_stack(block);
    note(current_tid());
}

/// It is none any more, and about to end.
pub fn disown(block: usize) {
    forget(current_tid());
    forget_stack(block);
}

#[cfg(target_arch = "x86_64")]
unsafe fn clone_thread(
    flags: usize,
    stack_top: usize,
    parent_tid: usize,
    child_tid: usize,
    thread_pointer: usize,
    entry: extern "C" fn(usize),
    arg: usize,
) -> isize {
    let result: isize;
    // SAFETY: the caller's contract. The child starts on an empty stack of its own, reads nothing from
    // the parent's, and never returns from this block.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "mov eax, {exit}",
            "xor edi, edi",
            "syscall",
            "ud2",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("rax") libc::SYS_clone as isize => result,
            in("rdi") flags,
            in("rsi") stack_top,
            in("rdx") parent_tid,
            in("r10") child_tid,
            in("r8") thread_pointer,
            in("r12") arg,
            in("r13") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn clone_thread(
    flags: usize,
    stack_top: usize,
    parent_tid: usize,
    child_tid: usize,
    thread_pointer: usize,
    entry: extern "C" fn(usize),
    arg: usize,
) -> isize {
    let result: isize;
    // SAFETY: as on x86-64.
    unsafe {
        core::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x9",
            "blr x10",
            "mov x8, {exit}",
            "mov x0, xzr",
            "svc #0",
            "brk #1",
            "2:",
            exit = const libc::SYS_exit,
            inlateout("x0") flags as isize => result,
            in("x1") stack_top,
            in("x2") parent_tid,
            in("x3") thread_pointer,
            in("x4") child_tid,
            in("x8") libc::SYS_clone,
            in("x9") arg,
            in("x10") entry,
            lateout("x30") _,
        );
    }
    result
}

/// Ends the calling agent thread. The process ends with `status` if it was the last.
pub fn exit(status: u32) -> ! {
    loop {
        // SAFETY: nothing of the thread is used any more.
        let _ = unsafe { syscall!(exit, status) };
    }
}

/// Most CPUs that an affinity mask here can name.
pub const MAX_CPUS: usize = 1024;

/// A set of CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSet([u64; MAX_CPUS / 64]);

impl CpuSet {
    /// Just one CPU.
    pub fn only(cpu: u32) -> CpuSet {
        let mut set = [0; MAX_CPUS / 64];
        set[cpu as usize / 64 % (MAX_CPUS / 64)] = 1 << (cpu % 64);
        CpuSet(set)
    }

    /// Whether the CPU is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1)
    }

    /// The CPUs that the calling thread may run on.
    pub fn of_current_thread() -> Result<CpuSet> {
        CpuSet::of_thread(0)
    }

    /// Those that a thread may run on, by the kernel's number; 0 for the calling one.
    fn of_thread(tid: u32) -> Result<CpuSet> {
        let mut set = CpuSet([0; MAX_CPUS / 64]);
        // SAFETY: the set is valid for its size.
        unsafe {
            syscall!(sched_getaffinity, tid, core::mem::size_of_val(&set.0), set.0.as_mut_ptr() as usize)
        }?;
        Ok(set)
    }

    /// The CPUs that the process's first thread may run on.
    pub fn of_process() -> Result<CpuSet> {
        CpuSet::of_thread(current_pid())
    }

    /// How many CPUs are in the set.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Confines the calling thread to the set.
    pub fn apply(&self) -> Result<()> {
        self.apply_to(0)
    }

    /// Confines a thread of this process, by the kernel's number; 0 for the calling one.
    pub fn apply_to(&self, tid: u32) -> Result<()> {
        // SAFETY: the set is valid for its size.
        unsafe { syscall!(sched_setaffinity, tid, core::mem::size_of_val(&self.0), self.0.as_ptr() as usize) }
            .map(drop)
    }
}

/// The CPU that the calling thread runs on at this moment.
pub fn current_cpu() -> Option<u32> {
    let mut cpu = 0u32;
    // SAFETY: the kernel writes one word.
    unsafe { syscall!(getcpu, &mut cpu as *mut u32 as usize, 0, 0) }.ok()?;
    Some(cpu)
}

/// How the kernel schedules a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheduling {
    /// The ordinary class, at nice 0 (lower than now needs a right).
    Normal,
    /// `SCHED_BATCH`: a share as in the ordinary class, but nobody has to make room when the thread is woken.
    Batch,
    /// `SCHED_FIFO` with this priority (1 to 99); needs CAP_SYS_NICE or RLIMIT_RTPRIO.
    RealTime {
        /// The priority.
        priority: i32,
    },
}

/// Schedules the calling thread so from now on.
pub fn set_scheduling(scheduling: Scheduling) -> Result<()> {
    let (policy, priority) = match scheduling {
        Scheduling::Normal => (libc::SCHED_OTHER, 0),
        Scheduling::Batch => (libc::SCHED_BATCH, 0),
        Scheduling::RealTime { priority } => (libc::SCHED_FIFO, priority),
    };
    // SAFETY: the priority is the whole of `struct sched_param`.
    unsafe { syscall!(sched_setscheduler, 0, policy, &priority as *const i32 as usize) }?;
    if scheduling == Scheduling::Normal {
        // SAFETY: no memory involved.
        unsafe { syscall!(setpriority, libc::PRIO_PROCESS, 0, 0) }?;
    }
    Ok(())
}

/// Gives the calling thread the CPUs and the nice value of its process's first thread, in the ordinary class, as far as that is permitted: who made it
/// may be confined to one CPU, or give way to all others.
pub fn be_scheduled_as_first() {
    let first = current_pid();
    let ordinary = 0i32;
    let _ = CpuSet::of_thread(first).and_then(|set| set.apply());
    // SAFETY: the priority is the whole of `struct sched_param`; the rest are numbers.
    unsafe {
        let _ = syscall!(sched_setscheduler, 0, libc::SCHED_OTHER, &ordinary as *const i32 as usize);
        // The kernel tells 20 less the value, which it takes as it is (getpriority(2)).
        if let Ok(told) = syscall!(getpriority, libc::PRIO_PROCESS, first) {
            let _ = syscall!(setpriority, libc::PRIO_PROCESS, 0, 20 - told as isize);
        }
    }
}

/// What agent threads are called.
pub mod agent_name {
    use core::ffi::CStr;

    /// The one that folds.
    pub const BACKGROUND: &CStr = c"memfold-bg";
    /// The one that answers touches.
    pub const FAULT: &CStr = c"memfold-fault";
    /// The one that asks the kernel for program threads.
    pub const PROXY: &CStr = c"memfold-proxy";
    /// Those that bring pages before they are touched.
    pub const HELPER: &CStr = c"memfold-helper";
    /// The one of the tier below memory.
    pub const TIER: &CStr = c"memfold-tier";

    /// Whether one has this name.
    pub fn is(name: &str) -> bool {
        [BACKGROUND, FAULT, PROXY, HELPER, TIER].iter().any(|own| own.to_bytes() == name.as_bytes())
    }
}

/// Names the calling thread, at most 15 bytes.
pub fn set_name(name: &'static core::ffi::CStr) {
    // SAFETY: the name is static.
    let _ = unsafe { syscall!(prctl, libc::PR_SET_NAME, name.as_ptr() as usize) };
}

/// `CAP_SYS_NICE`: to become a real-time thread.
pub const CAP_SYS_NICE: u32 = 1 << 23;

/// Gives up the capabilities of the calling thread, and of it alone, but those in `keep` (of the first 32) that it has.
/// What it opened before stays open.
pub fn drop_capabilities(keep: u32) -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let mut header: [u32; 2] = [VERSION_3, 0];
    // Effective, permitted and inheritable, low words first.
    let mut sets = [0u32; 6];
    // SAFETY: the two structures of `capget(2)` and `capset(2)`.
    unsafe {
        syscall!(capget, header.as_mut_ptr() as usize, sets.as_mut_ptr() as usize)?;
        let kept = sets[1] & keep;
        sets = [kept, kept, 0, 0, 0, 0];
        syscall!(capset, header.as_mut_ptr() as usize, sets.as_mut_ptr() as usize)
    }
    .map(drop)
}

/// Ends the whole process by SIGABRT, whatever the program does with that signal.
pub fn abort_process() -> ! {
    let pid = current_pid();
    // A default action: zeros are SIG_DFL without flags or mask.
    let action = [0u64; 4];
    loop {
        // SAFETY: the process ends here.
        unsafe {
            let _ = syscall!(rt_sigaction, libc::SIGABRT, action.as_ptr() as usize, 0, 8);
            let unblocked = 0u64;
            let _ = syscall!(rt_sigprocmask, libc::SIG_SETMASK, &unblocked as *const u64 as usize, 0, 8);
            // To this thread: another one might get it too late, and the process would end with a code.
            let _ = syscall!(tgkill, pid, current_tid(), libc::SIGABRT);
            let _ = syscall!(exit_group, 128 + libc::SIGABRT);
        }
    }
}

/// Waiting for another thread to do what takes it microseconds: spins at first, then sleeps, so that a real-time
/// thread too lets the other one run.
#[derive(Debug, Default)]
pub struct Backoff {
    turns: u32,
}

impl Backoff {
    /// Turns before sleeping: a few microseconds.
    const SPINS: u32 = 200;

    /// Starts with spinning.
    pub const fn new() -> Backoff {
        Backoff { turns: 0 }
    }

    /// Waits a moment.
    pub fn wait(&mut self) {
        self.turns += 1;
        if self.turns < Backoff::SPINS {
            core::hint::spin_loop();
        } else {
            crate::time::sleep(crate::time::Nanos(20_000));
        }
    }
}

/// The thread pointer: what tells living threads apart. It stays the same in a forked child. For threads that libc knows of.
pub fn pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads the thread pointer; on x86-64 the ABI keeps it in the word that it points to.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!(
            "mov {0}, qword ptr fs:[0]",
            out(reg) pointer,
            options(pure, readonly, nostack, preserves_flags),
        );
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!(
            "mrs {0}, tpidr_el0",
            out(reg) pointer,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    pointer
}

/// Lets others run first that want to run on this CPU.
pub fn give_way() {
    // SAFETY: no memory involved. It cannot fail.
    let _ = unsafe { crate::syscall!(sched_yield) };
}

/// Sleeps until `word` is no longer `expected` or the time is over.
pub fn sleep_on(word: &AtomicU32, expected: u32, timeout: crate::time::Nanos) {
    // A wake-up, a changed word, a signal and the timeout all mean: look again.
    let _ = futex::wait(word, expected, Some(timeout));
}

#[cfg(test)]
mod tests {
    use super::*;

    static RESULT: AtomicU32 = AtomicU32::new(0);

    extern "C" fn entry(arg: usize) {
        RESULT.store(arg as u32 + u32::from(current_tid() != current_pid()), SeqCst);
    }

    #[test]
    fn a_thread_runs_its_entry_and_can_be_joined() {
        // SAFETY: the entry only stores a word and makes two system calls.
        let thread = unsafe { Thread::spawn(entry, 41) }.unwrap();
        thread.join();
        assert_eq!(RESULT.load(SeqCst), 42);
    }

    #[test]
    fn a_joined_thread_is_not_counted_any_more() {
        for _ in 0..500 {
            // SAFETY: as above.
            let thread = unsafe { Thread::spawn(entry, 41) }.unwrap();
            let tid = thread.tid;
            thread.join();
            // SAFETY: asks only.
            assert!(unsafe { syscall!(tgkill, current_pid(), tid, 0) }.is_err());
        }
    }

    #[test]
    fn a_thread_that_was_made_by_a_confined_one_is_scheduled_as_the_first_of_its_process() {
        std::thread::spawn(confine_and_be_ordinary).join().unwrap();
    }

    fn confine_and_be_ordinary() {
        let cpus = |tid| CpuSet::of_thread(tid).map_or(0, |set| set.len());
        // SAFETY: numbers, and one that lives.
        let nice = |tid: u32| unsafe { syscall!(getpriority, libc::PRIO_PROCESS, tid) }.unwrap_or(0);
        // SAFETY: as above.
        unsafe {
            let _ = syscall!(setpriority, libc::PRIO_PROCESS, 0, 19);
            let _ = CpuSet::only(current_cpu().unwrap_or(0)).apply();
        }
        assert_eq!((nice(0), cpus(0)), (1, 1));
        be_scheduled_as_first();
        let first = current_pid();
        assert_eq!(cpus(0), cpus(first));
        // Who may not rise stays below.
        let may_rise = effective_user() == 0;
        assert!(nice(0) == nice(first) || !may_rise && nice(0) == 1);
    }

    #[test]
    fn a_cpu_set_holds_what_was_put_in() {
        assert!(CpuSet::only(70).contains(70));
        assert!(!CpuSet::only(70).contains(6));
        assert!(!CpuSet::only(70).contains(5_000));
    }
}
