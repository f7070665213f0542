//! Forked children check their copy of the parent's memory, change it, check it again and leave.
//!
//! Invariants: a child takes no lock that a thread of the parent may have held when it was forked, those of its allocator among them; it reports through a pipe
//! of its own, and is killed by its alarm if it hangs.

use super::calls::pipe;
use super::findings::{Findings, Mismatch};
use crate::worker::alloc::malloc_from;
use anyhow::{ensure, Result};
use memfold_stats::Rng;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Error, Read, Write};
use std::os::fd::IntoRawFd;
use std::sync::atomic::Ordering::Relaxed;

/// After so many seconds a child counts as hung. Less than the standstill that its parent is allowed.
const ALARM_SECONDS: u32 = 300;

/// Room for what a child has to say, bytes.
const REPORT: usize = 16 << 10;

/// What a child has to say.
#[derive(Debug, Serialize, Deserialize)]
struct Finding {
    bytes_verified: u64,
    mismatch_count: u64,
    mismatches: Vec<Mismatch>,
}

/// A running child.
#[derive(Debug)]
pub(super) struct Child {
    pid: i32,
    finding: File,
}

/// How a child is made, and how it ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// By `fork`; ends by `_exit`.
    Forked,
    /// By `clone` without libc; its only thread ends, and with it the process.
    Cloned,
    /// The same with the parent's descriptor table: what it closes the parent has lost.
    SharesDescriptors,
}

impl Kind {
    /// Any, `fork` as often as both others.
    pub fn any(rng: &mut Rng) -> Kind {
        [Kind::Forked, Kind::Forked, Kind::Cloned, Kind::SharesDescriptors][rng.below(4) as usize]
    }

    /// Whether such a child can allocate: of what is made without libc only memfold's allocator knows, and others leave it the locks of the parent's threads.
    fn may_allocate(self) -> bool {
        matches!(self, Kind::Forked) || malloc_from().is_ok_and(|file| file.ends_with("libmemfold.so"))
    }

    /// As `fork(2)`.
    fn make(self) -> i32 {
        let flags = match self {
            // SAFETY: the child keeps to what the module says.
            Kind::Forked => return unsafe { libc::fork() },
            Kind::Cloned => libc::SIGCHLD,
            Kind::SharesDescriptors => libc::SIGCHLD | libc::CLONE_FILES,
        };
        // SAFETY: as above; on the stack of this thread, of which the child has a copy.
        unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) as i32 }
    }

    /// Ends the child.
    fn end(self, status: i32) -> ! {
        if let Kind::Cloned | Kind::SharesDescriptors = self {
            // SAFETY: ends the child's only thread.
            unsafe { libc::syscall(libc::SYS_exit, status) };
        }
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(status) }
    }
}

/// Makes a child, which does `work`, reports and ends. `work` is told whether it may allocate.
pub(super) fn make(findings: &Findings, kind: Kind, work: impl FnOnce(bool)) -> Result<Child> {
    let (reader, writer) = pipe()?;
    // Before there is a child: the dynamic loader, who is asked, has locks too.
    let (may_allocate, mut report) = (kind.may_allocate(), vec![0; REPORT]);
    let pid = kind.make();
    ensure!(pid >= 0, "cannot make a child ({kind:?}): {}", Error::last_os_error());
    if pid > 0 {
        if let Kind::SharesDescriptors = kind {
            // The child closes it, in the table of both.
            let _ = writer.into_raw_fd();
        }
        return Ok(Child { pid, finding: File::from(reader) });
    }
    // SAFETY: sets a timer of this process.
    unsafe { libc::alarm(ALARM_SECONDS) };
    findings.bytes_verified.store(0, Relaxed);
    findings.mismatch_count.store(0, Relaxed);
    // What the parent kept is the parent's to tell.
    if let Ok(mut kept) = findings.mismatches.try_lock() {
        kept.clear();
    }
    work(may_allocate);
    let finding = Finding {
        bytes_verified: findings.bytes_verified.load(Relaxed),
        mismatch_count: findings.mismatch_count.load(Relaxed),
        mismatches: findings.mismatches.try_lock().map_or(Vec::new(), |mut kept| std::mem::take(&mut *kept)),
    };
    let mut room = report.as_mut_slice();
    let written = serde_json::to_writer(&mut room, &finding).map(|()| REPORT - room.len());
    let sent = written.is_ok_and(|len| File::from(writer).write_all(&report[..len]).is_ok());
    kind.end(if sent { 0 } else { 1 })
}

impl Child {
    /// Waits for the child and adds what it found to the parent's findings.
    pub fn wait(mut self, findings: &Findings) {
        let mut text = Vec::new();
        let read = self.finding.read_to_end(&mut text);
        let mut status = 0;
        // SAFETY: `status` is valid; the child is ours and has not been waited for.
        let waited = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        findings.children.fetch_add(1, Relaxed);
        if waited != self.pid || !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
            findings.fail(format!("child {}: {}", self.pid, outcome(status)));
            return;
        }
        match read.map_err(anyhow::Error::from).and_then(|_| Ok(serde_json::from_slice::<Finding>(&text)?)) {
            Err(error) => findings.fail(format!("child {}: no report: {error}", self.pid)),
            Ok(finding) => {
                findings.bytes_verified.fetch_add(finding.bytes_verified, Relaxed);
                findings.mismatch_count.fetch_add(finding.mismatch_count, Relaxed);
                let in_child =
                    |m: Mismatch| Mismatch { what: format!("{} in child {}", m.what, self.pid), ..m };
                findings.keep(finding.mismatches.into_iter().map(in_child));
            }
        }
    }
}

fn outcome(status: i32) -> String {
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGALRM {
        return format!("hung: not done after {ALARM_SECONDS} s");
    }
    if libc::WIFSIGNALED(status) {
        return format!("killed by signal {}", libc::WTERMSIG(status));
    }
    format!("ended with status {}", libc::WEXITSTATUS(status))
}
