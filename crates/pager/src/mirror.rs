//! The copy of a control page in a file, where others see it.
//!
//! What is counted is counted in the process's own memory, and copied to the file now and then; what others write there, a request
//! or a share, is copied back. A thread that touched the file itself would end the process by SIGBUS once somebody has cut the
//! file short. So the kernel copies (process_vm_writev(2)), which then answers `EFAULT`, and needs no descriptor, which the program
//! might close. Where a sandbox does not permit that call, as Docker's did before version 23, the thread copies: the file's blocks are there, and
//! who may cut it short may also end the process.
//!
//! What it is not: who makes the file ([`crate::control_file`]), or what is in it ([`crate::control`]).
//!
//! Invariants: nothing but the kernel touches the mapped file where it may; what is shown last is newest in every field, whichever threads show
//! at once; a field goes one way only.

use crate::control::{ControlPage, Mailbox};
use crate::sabotage::{planted, Bug};
use crate::share::Share;
use core::mem::{offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use memfold_sys::call::{call, Sysno};
use memfold_sys::{thread, Errno, Result};

/// Parts of a page: offset and length.
type Parts<const N: usize> = [(usize, usize); N];

const ASKED: usize = offset_of!(ControlPage, mailbox) + offset_of!(Mailbox, asked);
const ANSWERED: usize = offset_of!(ControlPage, mailbox) + offset_of!(Mailbox, answered);
const ERROR: usize = offset_of!(ControlPage, mailbox) + offset_of!(Mailbox, error);
const UPDATED: usize = offset_of!(ControlPage, updated_ns);
const REQUEST: usize = offset_of!(ControlPage, request);
const DAEMON: usize = offset_of!(ControlPage, daemon);
const RENEWALS: usize = offset_of!(ControlPage, share) + offset_of!(Share, renewals);
const SHARE: usize = offset_of!(ControlPage, share);
const WORD: usize = size_of::<u32>();

/// What others write. First what says that there is something new: the rest is then no older.
const HEARD: Parts<5> = [
    (ASKED, WORD),
    (RENEWALS, size_of::<u64>()),
    (offset_of!(ControlPage, mailbox), ASKED - offset_of!(ControlPage, mailbox)),
    (REQUEST, DAEMON - REQUEST),
    (SHARE, RENEWALS - SHARE),
];

/// What the process writes. Last what says as of when that is, and that it has answered.
const SHOWN: Parts<7> = [
    (0, UPDATED),
    (UPDATED + size_of::<u64>(), offset_of!(ControlPage, mailbox) - UPDATED - size_of::<u64>()),
    (ERROR, REQUEST - ERROR),
    (DAEMON, SHARE - DAEMON),
    (SHARE + size_of::<Share>(), size_of::<ControlPage>() - SHARE - size_of::<Share>()),
    (UPDATED, size_of::<u64>()),
    (ANSWERED, WORD),
];

/// A mapped file as long as a control page.
#[derive(Clone, Copy, Debug)]
pub struct Mapped(usize);

impl Mapped {
    /// The mapping at `base`.
    ///
    /// # Safety
    /// It is shared, writable and at least as long as a control page, nothing else uses it, and it stays for as long as it is
    /// shown in.
    pub unsafe fn new(base: usize) -> Mapped {
        Mapped(base)
    }

    /// Copies what the process writes. False where the kernel does not copy, as the file was cut short.
    pub fn show(self, page: &ControlPage) -> bool {
        if planted(Bug::FileTouched) {
            // SAFETY: none, if the file is shorter.
            unsafe { (self.0 as *const u32).read_volatile() };
        }
        let copied = self.copy(Sysno::process_vm_writev, page, SHOWN);
        copied == Ok(SHOWN.iter().map(|part| part.1).sum())
    }

    /// Copies back what others write.
    fn hear(self, page: &ControlPage) {
        let _ = self.copy(Sysno::process_vm_readv, page, HEARD);
    }

    /// Has the kernel copy parts of a page to the same parts of the file, or back. Returns how many bytes.
    fn copy<const N: usize>(self, number: Sysno, page: &ControlPage, parts: Parts<N>) -> Result<usize> {
        let (local, remote) = (pieces(page as *const ControlPage as usize, parts), pieces(self.0, parts));
        let tid = thread::current_tid() as usize;
        // SAFETY: nothing refers to the mapping, and the page's words are atomics of any value.
        match unsafe { call(number, [tid, local.as_ptr() as usize, N, remote.as_ptr() as usize, N, 0]) } {
            Err(Errno::EPERM | Errno::ENOSYS) => {}
            done => return done,
        }
        let (from, to) = match number {
            Sysno::process_vm_writev => (page as *const ControlPage as usize, self.0),
            _ => (self.0, page as *const ControlPage as usize),
        };
        for (offset, len) in parts {
            // SAFETY: as above.
            unsafe { copy_words(from + offset, to + offset, len) };
        }
        Ok(parts.iter().map(|part| part.1).sum())
    }
}

/// Copies words, in their order.
///
/// # Safety
/// There are so many bytes in both places, of words that may be read and written by others at any time.
unsafe fn copy_words(from: usize, to: usize, len: usize) {
    let mut at = 0;
    while at < len {
        // SAFETY: the caller's contract.
        unsafe {
            if (from + at).is_multiple_of(size_of::<u64>()) && len - at >= size_of::<u64>() {
                let word = (*((from + at) as *const AtomicU64)).load(SeqCst);
                (*((to + at) as *const AtomicU64)).store(word, SeqCst);
                at += size_of::<u64>();
            } else {
                let word = (*((from + at) as *const AtomicU32)).load(SeqCst);
                (*((to + at) as *const AtomicU32)).store(word, SeqCst);
                at += size_of::<u32>();
            }
        }
    }
}

/// Whether parts are of whole words.
const fn are_words<const N: usize>(parts: &Parts<N>) -> bool {
    let mut n = 0;
    while n < N {
        if !parts[n].0.is_multiple_of(WORD) || !parts[n].1.is_multiple_of(WORD) {
            return false;
        }
        n += 1;
    }
    true
}

const _: () = assert!(are_words(&SHOWN) && are_words(&HEARD));

fn pieces<const N: usize>(base: usize, parts: Parts<N>) -> [libc::iovec; N] {
    parts.map(|(offset, len)| libc::iovec { iov_base: (base + offset) as *mut libc::c_void, iov_len: len })
}

/// Where a process's counters are shown, if they are.
pub struct Mirror {
    /// See [`Mapped`]; 0 for nowhere.
    file: AtomicUsize,
    /// How often somebody began to show.
    begun: AtomicU32,
}

impl Default for Mirror {
    fn default() -> Self {
        Mirror::new()
    }
}

impl Mirror {
    /// Nowhere.
    pub const fn new() -> Mirror {
        Mirror { file: AtomicUsize::new(0), begun: AtomicU32::new(0) }
    }

    /// Shown in `file` from now on, or nowhere.
    pub fn set(&self, file: Option<Mapped>) {
        self.file.store(file.map_or(0, |mapped| mapped.0), Release);
    }

    /// Whether they are shown.
    pub fn is_set(&self) -> bool {
        self.file.load(Relaxed) != 0
    }

    fn file(&self) -> Option<Mapped> {
        Some(self.file.load(Acquire)).filter(|&base| base != 0).map(Mapped)
    }

    /// Has others see the counters as they are now.
    pub fn show(&self, page: &ControlPage) {
        let Some(file) = self.file() else { return };
        let mut begun = self.begun.fetch_add(1, SeqCst) + 1;
        loop {
            file.show(page);
            // Who began meanwhile may have seen newer counts, and have shown them before ours.
            let now = self.begun.load(SeqCst);
            if now == begun {
                return;
            }
            begun = now;
        }
    }

    /// Takes in what others wrote.
    pub fn hear(&self, page: &ControlPage) {
        if let Some(file) = self.file() {
            file.hear(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memfold_sys::{mem, PAGE_SIZE};

    /// Has the kernel refuse both calls to this thread, as the filter of a container does.
    fn forbid_copies() {
        let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
        let is = |number: i64, jt| step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, jt, 0, number as u32);
        let answer = |value| step(libc::BPF_RET | libc::BPF_K, 0, 0, value);
        let mut steps = [
            // The number of the call stands first in what a filter sees (seccomp(2)).
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            is(libc::SYS_process_vm_readv, 2),
            is(libc::SYS_process_vm_writev, 1),
            answer(libc::SECCOMP_RET_ALLOW),
            answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: a filter of this thread alone, which ends with it.
        unsafe {
            assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
            assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
        }
    }

    #[test]
    fn a_sandbox_that_forbids_the_copying_calls_hides_nothing() {
        let confined = std::thread::spawn(|| {
            forbid_copies();
            let len = size_of::<ControlPage>().next_multiple_of(PAGE_SIZE);
            let [own, base] = [(); 2].map(|()| mem::map_anonymous(0, len, 0).unwrap());
            // SAFETY: zeros are a page, and nobody else knows of the mappings.
            let [page, shown] = [own, base].map(|base| unsafe { &*(base as *const ControlPage) });
            // SAFETY: as above.
            let mapped = unsafe { Mapped::new(base) };
            page.pages_evicted.store(0x1234_5678_9ABC, Relaxed);
            page.mailbox.answered.store(7, Relaxed);
            assert!(mapped.show(page));
            assert_eq!(shown.pages_evicted.load(Relaxed), 0x1234_5678_9ABC);
            assert_eq!(shown.mailbox.answered.load(Relaxed), 7);
            shown.mailbox.asked.store(8, Relaxed);
            mapped.hear(page);
            assert_eq!((page.mailbox.asked.load(Relaxed), page.mailbox.answered.load(Relaxed)), (8, 7));
            let mut out = std::vec![0u8; size_of::<ControlPage>()];
            mem::read_mapped(base, &mut out).unwrap();
            assert!(out.iter().any(|&byte| byte != 0), "what a forked child reads of a tier");
        });
        confined.join().unwrap();
    }
}
