//! Who must stand still while somebody else works, and what of the program's changes that is owed to.
//!
//! Program threads pass the gate before they change a mapping; the background thread is held by the brake; whoever moves pages takes turns with
//! the fault thread. The flags say what has happened that nobody can undo: they are only ever set.

use crate::gate::{Brake, Gate};
use crate::turns::Turns;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use memfold_sys::time::Nanos;

/// The traffic.
pub(crate) struct Traffic {
    /// Every change of mappings passes it; a fork and the end close it.
    pub gate: Gate,
    /// What holds the background thread.
    pub brake: Brake,
    /// Whether pages are moved or reports read.
    pub turns: Turns,
    /// 1 from before a fork until after it.
    forking: AtomicU32,
    /// 1 once a mapping was moved past libc. It may have grown, and no table knows how far.
    moved_past_libc: AtomicU32,
    /// 1 once a mapping was changed past libc in any way.
    changed_past_libc: AtomicU32,
    /// 1 where no change is announced, and the kernel's reports alone tell of them.
    by_reports: AtomicU32,
    /// 1 while there may be pages that the kernel is about to drop (`Extent::dropping`).
    dropping: AtomicU32,
    /// Since when the next report cannot be read, ns; 0 while it can.
    unread_since: AtomicU64,
}

impl Traffic {
    /// Everybody goes.
    pub const fn new() -> Traffic {
        Traffic {
            gate: Gate::new(),
            brake: Brake::new(),
            turns: Turns::new(),
            forking: AtomicU32::new(0),
            moved_past_libc: AtomicU32::new(0),
            changed_past_libc: AtomicU32::new(0),
            by_reports: AtomicU32::new(0),
            dropping: AtomicU32::new(0),
            unread_since: AtomicU64::new(0),
        }
    }

    /// Whether the next report waits that cannot be read; for how long it has been so. By who reads.
    pub fn unread_for(&self, waits: bool, now: Nanos) -> Nanos {
        let since = match self.unread_since.load(Relaxed) {
            _ if !waits => 0,
            0 => now.0,
            since => since,
        };
        self.unread_since.store(since, Relaxed);
        if waits {
            now.since(Nanos(since))
        } else {
            Nanos(0)
        }
    }

    /// Whether a fork is under way.
    pub fn is_forking(&self) -> bool {
        self.forking.load(SeqCst) != 0
    }

    /// A fork begins.
    pub fn begin_fork(&self) {
        self.forking.store(1, SeqCst);
    }

    /// It is over.
    pub fn end_fork(&self) {
        self.forking.store(0, SeqCst);
    }

    /// Whether a mapping was ever moved past libc.
    pub fn saw_move_past_libc(&self) -> bool {
        self.moved_past_libc.load(Acquire) != 0
    }

    /// Whether a mapping was ever changed past libc in any way.
    pub fn saw_change_past_libc(&self) -> bool {
        self.changed_past_libc.load(Acquire) != 0
    }

    /// A mapping was changed past libc, and if `moved`, moved.
    pub fn note_change_past_libc(&self, moved: bool) {
        if moved {
            self.moved_past_libc.store(1, Release);
        }
        self.changed_past_libc.store(1, Release);
    }

    /// Whether the kernel's reports alone tell of changes.
    pub fn goes_by_reports(&self) -> bool {
        self.by_reports.load(Relaxed) != 0
    }

    /// There may be pages that the kernel is about to drop.
    pub fn note_dropping(&self) {
        self.dropping.store(1, SeqCst);
    }

    /// Whether there may be, since this was last asked.
    pub fn take_dropping(&self) -> bool {
        self.dropping.load(SeqCst) != 0 && self.dropping.swap(0, SeqCst) != 0
    }

    /// They alone do. Before the engine starts.
    pub fn go_by_reports(&self) {
        self.by_reports.store(1, Relaxed);
    }

    /// Nobody is under way, in a forked child.
    pub fn reset_in_child(&self) {
        self.gate.reset_in_child();
        self.brake.reset_in_child();
        self.turns.reset_in_child();
        self.end_fork();
    }
}
