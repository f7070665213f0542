//! Restartable sequences (rseq(2)): code that the kernel has begun anew where its thread was interrupted in it.
//!
//! The kernel goes by where a thread goes on, and a thread that makes calls for us goes on elsewhere. So what the kernel would do is done here.

use crate::memory::Memory;
use memfold_pager::sabotage::{planted, Bug};
use nix::unistd::Pid;

/// The request (linux/ptrace.h).
const GET_RSEQ_CONFIGURATION: libc::c_int = 0x420F;
/// Where the address of the present sequence stands in `struct rseq` (linux/rseq.h).
const PRESENT: usize = 8;

/// `struct ptrace_rseq_configuration` (linux/ptrace.h).
#[repr(C)]
#[derive(Default)]
struct Configuration {
    area: u64,
    len: u32,
    signature: u32,
    flags: u32,
    padding: u32,
}

/// Takes a stopped thread out of the sequence that it is in. Where it is to go on then; `None` where it is in none.
pub fn leave(memory: &Memory, thread: Pid, at: u64) -> Option<u64> {
    if planted(Bug::SequenceNotLeft) {
        return None;
    }
    let mut configuration = Configuration::default();
    let len = size_of::<Configuration>();
    // SAFETY: the kernel writes so many bytes, or none where it does not know the request.
    let known =
        unsafe { libc::ptrace(GET_RSEQ_CONFIGURATION as _, thread.as_raw(), len, &raw mut configuration) };
    if known != len as libc::c_long || configuration.area == 0 {
        return None;
    }
    let present = configuration.area as usize + PRESENT;
    let aborts_at = aborts_at(at, word(memory, present)?, |at| word(memory, at))?;
    // As the kernel does.
    memory.write(present, &[0; 8]).ok()?;
    Some(aborts_at)
}

/// Where a thread that is at `at` goes on, if it is in the sequence that is described at `sequence` (`struct rseq_cs`).
fn aborts_at(at: u64, sequence: u64, word: impl Fn(usize) -> Option<u64>) -> Option<u64> {
    let sequence = Some(sequence as usize).filter(|&sequence| sequence != 0)?;
    let [start, len, aborts_at] = [8, 16, 24].map(|place| word(sequence.wrapping_add(place)));
    (at.wrapping_sub(start?) < len?).then_some(aborts_at?)
}

fn word(memory: &Memory, at: usize) -> Option<u64> {
    let mut bytes = [0; 8];
    memory.read(at, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_in_a_sequence_from_its_first_instruction_to_the_one_that_commits() {
        let described = [0, 100, 10, 7];
        let at = |at, sequence| aborts_at(at, sequence, |place| described.get((place - 64) / 8).copied());
        assert_eq!([at(99, 64), at(100, 64), at(109, 64), at(110, 64)], [None, Some(7), Some(7), None]);
        assert_eq!(at(100, 0), None);
    }
}
