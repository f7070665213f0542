//! Counting the mappings of the process, and having the kernel join what registering has cut ([`crate::changes::pieces`]).
//!
//! It is done now and then, and when a program thread asks because the kernel has refused it a mapping. That thread waits for the background
//! thread, and holds no lock meanwhile.

use crate::changes::pieces::{self, may_have_run_out};
use crate::engine::{Engine, Phase};
use crate::evict::worker::Worker;
use crate::sabotage::fault_point;
use memfold_sys::file;
use memfold_sys::time::{self, Nanos};

/// How often a program thread looks for its answer, a millisecond apart each time.
const TRIES: u32 = 2000;

impl Engine {
    /// The kernel has refused the calling thread a change of mappings for want of memory (`ENOMEM`). Whether that may have been for their
    /// number and it should try again, as there are fewer now.
    pub fn join_mappings(&'static self) -> bool {
        if fault_point!(PiecesNotJoined: self.phase() != Phase::Running, else true) {
            return false;
        }
        let ticket = self.pieces.ask();
        self.ring();
        for _ in 0..TRIES {
            if let Some(joined) = self.pieces.answer_to(ticket) {
                return joined;
            }
            if self.phase() != Phase::Running {
                return false;
            }
            time::sleep(Nanos::from_millis(1));
        }
        false
    }
}

impl Worker {
    /// Counts the mappings if it is time to, or if somebody has asked, and where they are scarce registers all managed memory in the same
    /// way.
    pub(crate) fn look_at_mappings(&mut self) {
        let question = self.engine.pieces.question();
        if question.is_none() && !self.upkeep.mappings.is_due(self.now) {
            return;
        }
        let began = time::now();
        let count = self.count_mappings();
        let most = most_mappings();
        self.now = time::now();
        self.upkeep.mappings.counted(self.now, self.now.since(began));
        // Who was refused one may have been refused many at once.
        let ran_out = question.is_some() && may_have_run_out(count, most);
        self.engine.pieces.counted(if ran_out { most } else { count }, most);
        if self.engine.pieces.are_scarce() {
            self.join_pieces();
        }
        if let Some(ticket) = question {
            self.engine.pieces.answer(ticket, ran_out);
        }
    }

    /// How many mappings the process has; none where the kernel does not tell.
    fn count_mappings(&mut self) -> u64 {
        let (mut piece, mut at, mut count) = ([0; 2048], 0, 0);
        while let Ok(len @ 1..) = self.engine.link.gauges.read_maps(&mut piece, at) {
            count += piece[..len].iter().filter(|byte| **byte == b'\n').count() as u64;
            at += len as u64;
            self.stand_still_if_wanted();
        }
        count
    }

    /// Registers all managed memory as that is of which pages are away.
    fn join_pieces(&mut self) {
        for extent in self.engine.space().all() {
            if let Some(extent) = extent.try_lock() {
                // What cannot be had now stays in pieces.
                self.arm(&extent, &extent.managed.load());
            }
            self.stand_still_if_wanted();
        }
    }
}

/// How many mappings the kernel allows a process.
fn most_mappings() -> u64 {
    let mut text = [0; 24];
    let read = file::open(c"/proc/sys/vm/max_map_count", libc::O_RDONLY, 0)
        .and_then(|file| file::pread(file.raw(), &mut text, 0));
    let digits = read.ok().and_then(|len| core::str::from_utf8(&text[..len]).ok());
    digits.and_then(|digits| digits.trim().parse().ok()).unwrap_or(pieces::MOST)
}
