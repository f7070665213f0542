//! Eviction by a page daemon: the resident set is kept at the limit by what a policy of [`memfold_policy::daemon`] says.
//!
//! What it is not: a policy. Once a pass, the background thread tells the daemon which pages were touched, has it make a
//! pass, and does what came of it: a page that is no longer active is set aside, where every touch is seen and brings it
//! back; one that was freed is compressed.
//!
//! A page counts as touched if it was written, by the kernel's write tracking; if a thread waited for it to come back from
//! where it was set aside or stored; and if it could not leave. What came with such a page, or ahead of a reader, was not
//! touched: it is inactive, and stays in view until the next pass. A read of a page in view is not seen: such a page has its
//! second chance when it is set aside, and a fault then says that it is in use.
//!
//! Invariants: the daemon's memory comes from the global allocator, which in a program is the library's own and never the
//! program's heap; what the daemon says can only choose among pages, all of which go by [`crate::evict::set_aside`] and its rules.

mod passes;

use crate::evict::passlog::Pass;
use crate::tables::bitmap::PageSet;
use alloc::boxed::Box;
use alloc::vec::Vec;
use memfold_policy::daemon::{PageDaemon, Row, INTERVAL};
use memfold_policy::spec::Spec;
use memfold_sys::time::Nanos;

/// Pause between two passes while more is resident than may be; half of it after each pass that gained no ground.
const HURRY: Nanos = Nanos::from_millis(10);

/// But no less than this.
const LEAST_PAUSE: Nanos = Nanos::from_millis(1);

/// What `--policy` can name.
pub enum Choice {
    /// Pages go by their age, see [`memfold_policy::age`].
    Age,
    /// Pages go by a page daemon.
    Daemon(Spec),
}

impl Choice {
    /// Reads `age`, or a policy that can run without knowing the future, with its parameters.
    pub fn parse(text: &str) -> Option<Choice> {
        match text {
            "" | "age" => Some(Choice::Age),
            _ => Spec::parse(text).ok().filter(|spec| !spec.needs_future()).map(Choice::Daemon),
        }
    }
}

/// Where the pages of one extent were after the last pass.
#[derive(Clone, Copy)]
struct Known {
    /// In the program's view.
    view: PageSet,
    /// Set aside or stored.
    away: PageSet,
    /// In view although they should have left.
    stayed: PageSet,
    /// Touched while inactive: the daemon knows, and a further touch would tell it nothing.
    spared: PageSet,
    /// Came back since the pass before without having been touched.
    ahead: PageSet,
    /// To be compressed as soon as there is time.
    backlog: PageSet,
}

/// A page daemon at work.
pub struct DaemonPolicy {
    daemon: Box<dyn PageDaemon + Send>,
    extents: Vec<Known>,
    last_pass: Nanos,
    /// Until the next pass.
    pause: Nanos,
    /// Pages in use after the last pass.
    in_use: usize,
    behind: bool,
    pass: Pass,
    row: Row,
    restored: u64,
    compressed: u64,
    missed_since: Option<Nanos>,
    told: bool,
    /// The pass that is being made, or that somebody has asked for.
    making: Making,
}

/// The pass that is being made.
#[derive(Clone, Copy, Default)]
struct Making {
    /// So long after the last one, ns, because somebody asked for it.
    asked: Option<u64>,
    elapsed: u64,
    /// A pass was made, and what it left is compressed before the next.
    passed: bool,
    began: Nanos,
    /// Pages in view, and those of them that left.
    resident: usize,
    left: usize,
    /// The extent at hand, by its number, and what is to leave of it and was freed.
    number: usize,
    leave: PageSet,
    freed: PageSet,
}

impl DaemonPolicy {
    /// How long to wait for the next pass.
    pub fn pause(&self) -> Nanos {
        self.pause
    }

    /// Sets the pause after a pass that left so many pages in use.
    ///
    /// A kernel's page daemon has the program wait for the pages that it frees, so that few of the others are touched
    /// from one scan to the next. Here the program runs on: one that touches all its memory within the pause would have
    /// every page referenced on every scan, and the limit would never hold. Shorter pauses tell its pages apart.
    fn set_pause(&mut self, in_use: usize, limit: usize) {
        let before = core::mem::replace(&mut self.in_use, in_use);
        self.pause = if in_use <= limit {
            // Where the free pages were nearly used up since the last pass, the next comes sooner.
            if self.row.arrived + self.row.brought <= self.row.free / 2 {
                Nanos(INTERVAL)
            } else {
                HURRY
            }
        } else if in_use < before || self.pause > HURRY {
            self.pause.min(HURRY)
        } else {
            Nanos(self.pause.0 / 2).max(LEAST_PAUSE)
        };
    }
}
