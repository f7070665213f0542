//! An answer that is too long for a control page: a file beside it, which the process writes.

use crate::pages::PageFile;
use anyhow::Context;
use memfold_inspect::Mailbox;
use memfold_pager::control::Command;
use std::io::Read;
use std::time::Duration;

/// The longest answer, bytes. Another user's program may write anything, and as much as it likes.
const LONGEST: u64 = 128 << 20;

/// Has the process write its answer to a file, whose name begins with `prefix`, and reads it.
///
/// # Errors
/// The process has ended, does not answer in time or cannot tell.
pub fn ask(
    file: &PageFile,
    pid: u32,
    command: Command,
    prefix: &str,
    timeout: Duration,
) -> anyhow::Result<Vec<u8>> {
    // Another number for everybody who asks.
    let number = memfold_sys::time::now().0;
    let name = format!("{prefix}{number}-{}", file.name);
    let answer = file.run.make(&name).context("cannot make a file for the answer")?;
    let asked = file
        .open()
        .context("cannot open the control page")
        .and_then(|page| Mailbox::open(page, pid)?.ask(command, 0, number, "", timeout));
    file.run.remove(&name);
    asked?;
    let mut bytes = Vec::new();
    answer.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}
