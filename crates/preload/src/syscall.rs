//! libc's `syscall`: system calls by number.
//!
//! A few numbers go where the function of the same name goes; all others go straight to the kernel, in
//! assembly, because a call such as `clone` may return on another stack.

use crate::host::pager;
use crate::{fork, mapping, or_errno, sandbox};
use core::ffi::{c_long, c_void};
use core::sync::atomic::{AtomicU64, Ordering::*};
use memfold_pager::sabotage::{planted, Bug};
use memfold_pager::Engine;
use memfold_sys::{call, mem, Errno};

/// Numbers below this can be routed.
const NUMBERS: usize = 512;

/// One bit a number.
static ROUTED: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

/// Begins to route; before, `syscall` is libc's.
pub fn route() {
    let numbers = [
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_mprotect,
        libc::SYS_madvise,
        libc::SYS_mlock,
        libc::SYS_mlock2,
        libc::SYS_mlockall,
        libc::SYS_munlock,
        libc::SYS_munlockall,
        libc::SYS_ioctl,
        libc::SYS_futex,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_exit,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_chroot,
        libc::SYS_prctl,
        libc::SYS_seccomp,
        libc::SYS_landlock_restrict_self,
        libc::SYS_tkill,
        libc::SYS_tgkill,
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setreuid,
        libc::SYS_setregid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork,
    ];
    for number in numbers {
        ROUTED[number as usize / 64].fetch_or(1 << (number % 64), Relaxed);
    }
}

unsafe extern "C" fn routed(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let pointer = |addr: usize| addr as *mut c_void;
    // SAFETY: the arguments are the program's, as it would have passed them to the function of the same name.
    unsafe {
        match number {
            libc::SYS_mmap => mapping::mmap(pointer(a), b, c as i32, d as i32, e as i32, f as i64) as c_long,
            libc::SYS_munmap => mapping::munmap(pointer(a), b).into(),
            libc::SYS_mremap => mapping::mremap(pointer(a), b, c, d as i32, pointer(e)) as c_long,
            libc::SYS_mprotect => mapping::mprotect(pointer(a), b, c as i32).into(),
            libc::SYS_madvise => mapping::madvise(pointer(a), b, c as i32).into(),
            libc::SYS_mlock => mapping::mlock(pointer(a), b).into(),
            libc::SYS_mlock2 => mapping::mlock2(pointer(a), b, c as u32).into(),
            libc::SYS_mlockall => mapping::mlockall(a as i32).into(),
            libc::SYS_munlock => mapping::munlock(pointer(a), b).into(),
            libc::SYS_munlockall => mapping::munlockall().into(),
            libc::SYS_ioctl => mapping::ioctl(a as i32, b as u64, c).into(),
            libc::SYS_futex => futex([a, b, c, d, e, f]),
            libc::SYS_unshare => sandbox::unshare(a as i32).into(),
            libc::SYS_setns => sandbox::setns(a as i32, b as i32).into(),
            libc::SYS_chroot => sandbox::chroot(pointer(a).cast()).into(),
            libc::SYS_prctl => sandbox::prctl(a as i32, b, c, d, e).into(),
            libc::SYS_seccomp => sandbox::seccomp(a, b, c),
            libc::SYS_landlock_restrict_self => sandbox::landlock_restrict_self(a, b),
            libc::SYS_tkill => {
                sandbox::before_signal(a as u32, b as i32);
                or_errno(straight(number, [a, b, c, d, e, f])) as c_long
            }
            libc::SYS_tgkill => sandbox::tgkill(a as i32, b as i32, c as i32).into(),
            libc::SYS_setuid
            | libc::SYS_setgid
            | libc::SYS_setreuid
            | libc::SYS_setregid
            | libc::SYS_setresuid
            | libc::SYS_setresgid => sandbox::change_thread(|| straight(number, [a, b, c, d, e, f])),
            libc::SYS_exit => {
                fork::thread_leaves(a as u32);
                straight(number, [a, b, c, d, e, f]).map_or(-1, |_| 0)
            }
            // What makes a process with memory of its own, on a copy of this stack.
            _ => or_errno(fork::raw(|| straight(number, [a, b, c, d, e, f]))) as c_long,
        }
    }
}

/// The system call itself.
unsafe fn straight(number: c_long, args: [usize; 6]) -> memfold_sys::Result<usize> {
    let number = call::Sysno::new(number as usize).ok_or(memfold_sys::Errno::ENOSYS)?;
    // SAFETY: the program's own call.
    unsafe { call::call(number, args) }
}

/// What comes before a call that makes a thread or process: `clone` with these flags, stack and number of the child, or `clone3` with a structure of them in place of the
/// flags, and its length in place of the stack. Whether the call must be the kernel's alone: what it makes begins on a stack on which no frame of ours is.
extern "C" fn begins_elsewhere(number: c_long, first: usize, stack: usize, child_tid: usize) -> bool {
    let (flags, stack, child_tid) = match number {
        // No structure, which the kernel refuses. In a program that is confined it cannot be asked whether there is memory.
        libc::SYS_clone3 if first == 0 || stack < LEAST => return true,
        libc::SYS_clone3 => (
            word(first),
            // The length comes with it, and an older kernel's structure has both, too.
            word(first + STACK).wrapping_add(word(first + STACK + 8)),
            word(first + CHILD_TID),
        ),
        _ => (first, stack, child_tid),
    };
    if !fork::copies_memory(flags) {
        fork::before_sharing(flags, child_tid);
    } else if stack == 0 {
        return false;
    } else {
        sandbox::stop(&"the program made a copy of itself on another stack (clone)", Bug::CopyUnserved);
    }
    true
}

/// Where `clone3`'s structure has the address of the number, and the lowest address of the stack, before its length.
const CHILD_TID: usize = 16;
const STACK: usize = 40;
/// The length of the first kernels' structure: with less it is refused.
const LEAST: usize = 64;

/// A word of the program's; 0 where there is no memory: what the kernel says of that is its own affair.
fn word(at: usize) -> usize {
    match mem::is_readable(at, size_of::<usize>()) {
        // SAFETY: there is memory, or the kernel does not tell.
        true => unsafe { core::ptr::read_unaligned(at as *const usize) },
        false => 0,
    }
}

/// `futex(2)`. Some of its operations write to the program's word in a way in which the kernel does not wait for whom it should ask for the page.
fn futex(args: [usize; 6]) -> c_long {
    /// `FUTEX_PRIVATE_FLAG` and `FUTEX_CLOCK_REALTIME`.
    const FLAGS: usize = 128 | 256;
    /// `FUTEX_WAKE_OP`, `FUTEX_LOCK_PI`, `FUTEX_TRYLOCK_PI`, `FUTEX_CMP_REQUEUE_PI`, `FUTEX_LOCK_PI2`.
    const WRITES: [usize; 5] = [5, 6, 8, 12, 13];
    // SAFETY: the program's own call.
    let call = || unsafe { straight(libc::SYS_futex, args) };
    let result = call();
    if result != Err(Errno::EFAULT) || !WRITES.contains(&(args[1] & !FLAGS)) || planted(Bug::WordNotBrought) {
        return or_errno(result) as c_long;
    }
    let words = [args[0], args[4]];
    let is_away = |engine: &Engine| words.iter().any(|&at| engine.is_away(at, size_of::<u32>()));
    or_errno(if pager().is_some_and(is_away) {
        // To look at a word brings its page.
        for at in words {
            let _ = mem::peek(at & !7, &mut [0]);
        }
        call()
    } else {
        result
    }) as c_long
}

/// `syscall(2)`. Not routed: numbers without a bit, and those that make a thread or process in this memory or on another stack, of which the pager is told
/// before they happen.
///
/// # Safety
/// As for libc's.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp rdi, {numbers}",
        "jae 2f",
        "lea rax, [rip + {routed_numbers}]",
        "bt qword ptr [rax], rdi",
        "jnc 2f",
        "cmp rdi, {clone}",
        "je 4f",
        "cmp rdi, {clone3}",
        "jne 5f",
        "4:",
        // Seven words keep the stack as a call wants it.
        "push rdi",
        "push rsi",
        "push rdx",
        "push rcx",
        "push r8",
        "push r9",
        "push rax",
        "mov rcx, r8",
        "call {begins_elsewhere}",
        "test al, al",
        "pop rax",
        "pop r9",
        "pop r8",
        "pop rcx",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "jnz 2f",
        "5:",
        "jmp {routed}",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "neg eax",
        "push rax",
        "call {errno}",
        "pop rcx",
        "mov [rax], ecx",
        "mov rax, -1",
        "ret",
        numbers = const NUMBERS,
        routed_numbers = sym ROUTED,
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        routed = sym routed,
        begins_elsewhere = sym begins_elsewhere,
        errno = sym libc::__errno_location,
    )
}

/// `syscall(2)`, as on x86-64.
///
/// # Safety
/// As for libc's.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
#[no_mangle]
pub unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp x0, #{numbers}",
        "b.hs 2f",
        "adrp x9, {routed_numbers}",
        "add x9, x9, :lo12:{routed_numbers}",
        "lsr x10, x0, #6",
        "ldr x9, [x9, x10, lsl #3]",
        "lsr x9, x9, x0",
        "tbz x9, #0, 2f",
        "cmp x0, #{clone}",
        "b.eq 4f",
        "cmp x0, #{clone3}",
        "b.ne 5f",
        "4:",
        "stp x29, x30, [sp, #-80]!",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "str x6, [sp, #64]",
        "mov x3, x5",
        "bl {begins_elsewhere}",
        "mov w9, w0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldr x6, [sp, #64]",
        "ldp x29, x30, [sp], #80",
        "tbnz w9, #0, 2f",
        "5:",
        "b {routed}",
        "2:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc #0",
        "cmn x0, #4095",
        "b.hs 3f",
        "ret",
        "3:",
        "stp x29, x30, [sp, #-32]!",
        "neg w0, w0",
        "str w0, [sp, #16]",
        "bl {errno}",
        "ldr w1, [sp, #16]",
        "str w1, [x0]",
        "mov x0, #-1",
        "ldp x29, x30, [sp], #32",
        "ret",
        numbers = const NUMBERS,
        routed_numbers = sym ROUTED,
        clone = const libc::SYS_clone,
        clone3 = const libc::SYS_clone3,
        routed = sym routed,
        begins_elsewhere = sym begins_elsewhere,
        errno = sym libc::__errno_location,
    )
}
