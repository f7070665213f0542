//! A trace of the pages that a program touches, made by taking its pages' permissions away (ptrace and mprotect).
//!
//! Two ways: *exactly*, where each instruction that touches a page is let through alone and the page is closed again, and by
//! *reference bits*, where a page that was touched stays open until the interval ends, so that each page has at most one
//! request an interval. Neither needs root, a kernel module or a change of the program.
//!
//! What it is not: cheap. An exact access takes four stops of the program, some ten microseconds; [`Recorded`] says
//! how many. What is seen: private anonymous memory that may be read and written, the heap included; not stacks, files
//! and shared memory, and not what the kernel touches for the program during a system call, for which everything is
//! open. Programs that it starts are not recorded.
//!
//! Invariants: a page is closed only while the program's one thread runs its own code; when the program starts a second
//! thread, or the recording has as many requests as it may, everything is opened and the program goes on alone.

mod maps;
#[cfg(target_arch = "x86_64")]
mod recorder;
#[cfg(target_arch = "x86_64")]
mod tracee;

use std::time::Duration;

#[cfg(target_arch = "x86_64")]
pub use recorder::record;

/// How accesses are seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Every access, instruction by instruction.
    Exact,
    /// A reference bit a page, read and cleared this often.
    Bits(Duration),
}

/// What came of a recording.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recorded {
    /// Requests in the trace.
    pub requests: u64,
    /// Times that the program was stopped for the recording.
    pub stops: u64,
    /// How long the recording went on.
    pub time: Duration,
    /// Why it ended.
    pub end: End,
    /// The program's exit code, or 128 and the signal that ended it.
    pub code: u8,
}

/// Why a recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The program ended.
    Program,
    /// The program started a second thread.
    Thread,
    /// The trace has as many requests as it may.
    Limit,
}

/// The program cannot be recorded on this machine.
#[derive(Debug)]
pub struct Unsupported(pub String);

impl std::fmt::Display for Unsupported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unsupported {}

/// Recording steps through instructions of x86-64 only.
///
/// # Errors
/// Always.
#[cfg(not(target_arch = "x86_64"))]
pub fn record(
    _: std::process::Command,
    _: Mode,
    _: u64,
    _: impl FnMut(memfold_sim::format::Request) -> std::io::Result<()>,
) -> anyhow::Result<Recorded> {
    Err(Unsupported("recording steps through instructions of x86-64, and this is another processor".into())
        .into())
}
