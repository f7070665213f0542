//! The last words of a process that would read something else than it wrote: where that lies, and what became of it.
//!
//! What it is not: a decision. How often and for how long a cluster is tried is [`super::bring`]'s.

use super::below::Below;
use super::choice::Choice;
use super::location::Berth;
use super::remote::AWAY;
use super::BLOCK;
use crate::engine::Engine;
use crate::text::Text;
use core::fmt::Write;
use memfold_sys::Errno;

/// Ends the process. Names the directory of the file, as it was given by its whole path, and the byte there; of an engine in the network what it did.
pub fn fail(engine: &Engine, below: &Below, berth: Berth, error: Errno) -> ! {
    let mut line = Text::<1023>::new();
    if !below.files.are_on_disk() {
        let what = match error {
            AWAY => "cannot be reached",
            Errno(libc::ENOENT) => "is not there any more",
            Errno(libc::EBADMSG) => "is not what was put there",
            _ => "cannot be fetched",
        };
        let _ = write!(
            line,
            "memfold: what lies on the tier's engine {what} ({}): the program must not go on",
            error.name()
        );
        engine.fail_hard(line.as_str());
    }
    let byte = below.clusters.place(berth.cluster).map_or(0, |place| place.block() * BLOCK);
    let what = match error {
        Errno(libc::EBADMSG) => "is not what was written there",
        _ => "cannot be read",
    };
    let mut buffer = [0; 512];
    let tier = engine.options.tier.read(&mut buffer);
    let directory = Choice::parse(tier).ok().and_then(|tier| tier.directory()).unwrap_or("?");
    let _ = write!(
        line,
        "memfold: what lies in the tier's file in {directory} at byte {byte} {what} ({}): the program must not go on",
        error.name()
    );
    engine.fail_hard(line.as_str());
}
