//! Recording the pages that a program touches by the pager's own access source: what it sets aside comes back when touched.
//!
//! The library in the program writes what was touched to a file beside the trace, in the form that the module `recording` of
//! the crate `pager` describes; this side starts the program and reads the file when it has ended.

use super::launch::{Choices, Launch};
use super::supervise::{supervise, Ended};
use crate::directory::{is_locked, open_file};
use crate::pages::{self, Name};
use crate::{library, runtime, text};
use anyhow::{ensure, Context, Result};
use memfold_inspect::{Mailbox, Snapshot};
use memfold_pager::config::Setting;
use memfold_pager::control::{Command as Request, Mode};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::prctl::set_thp_disable;
use std::ffi::OsString;
use std::io::{BufReader, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// The variable that tells the library what to record.
const VARIABLE: &str = "MEMFOLD_RECORD";
/// The beginning of the name of the file of what was touched; the recorder has it locked.
const PREFIX: &str = ".memfold-touches-";
/// How often the recorder looks how far it has come.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long the pager may take to let the program go.
const STOPPING: Duration = Duration::from_secs(10);

/// What is to be recorded.
pub struct Wish<'a> {
    /// The program's file.
    pub file: &'a Path,
    /// Its name and arguments.
    pub command: &'a [OsString],
    /// How often a page can be touched in the trace.
    pub every: Duration,
    /// Requests after which the program goes on alone.
    pub most: u64,
    /// The directory for what is not read yet.
    pub dir: &'a Path,
}

/// What came of it, beside the requests.
pub struct Recorded {
    /// Requests in the trace.
    pub requests: u64,
    /// How the program ended.
    pub ended: Ended,
    /// How long the recording went on.
    pub time: Duration,
    /// Why the program went on alone, if it did.
    pub alone: Option<String>,
    /// Touches that brought a page back.
    pub touches: u64,
    /// How long the program's threads waited for those in all.
    pub waited: Duration,
}

/// Runs the program to its end, calling `progress` with how many requests there are so far, and afterwards `each` with every
/// request's interval and page.
///
/// # Errors
/// The program cannot be started or cannot be recorded; what was recorded cannot be read; and what `each` says.
pub fn record(
    wish: &Wish<'_>,
    mut progress: impl FnMut(u64),
    mut each: impl FnMut(u64, u64) -> Result<()>,
) -> Result<Recorded> {
    sweep(wish.dir);
    let touches = tempfile::Builder::new()
        .prefix(PREFIX)
        .tempfile_in(wish.dir)
        .with_context(|| format!("cannot make a file in {}", wish.dir.display()))?;
    let _in_use = Flock::lock(touches.reopen()?, FlockArg::LockSharedNonblock);
    let mut choices = Choices::default();
    choices.settings.set(Setting::StartAt, "0");
    let launch = Launch::prepare(&library::find()?, &choices)?;
    let mut command = Command::new(wish.file);
    command.arg0(&wish.command[0]).args(&wish.command[1..]);
    launch.apply(&mut command);
    let began = memfold_sys::time::now().0;
    let path = std::path::absolute(touches.path())?;
    let errand = format!("{}:{began}:{}:{}", wish.every.as_nanos(), std::process::id(), path.display());
    command.env(VARIABLE, errand);
    // In a huge page a touch could not be told from those of its neighbours.
    let no_huge_pages = || set_thp_disable(true).map_err(std::io::Error::from);
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(no_huge_pages) };
    let begun = Instant::now();
    let mut cut = None;
    let ended = supervise(command, LOOK_EVERY, |_| {
        // Heads of pieces included: a few too many.
        let requests = touches.as_file().metadata().map_or(0, |file| file.len() / 8);
        progress(requests);
        if requests >= wish.most && cut.is_none() {
            cut = Some(begun.elapsed());
            stop(launch.control_dir());
        }
    })?;
    let time = cut.unwrap_or_else(|| begun.elapsed());
    let page = page_of_child(launch.control_dir());
    let off = page.as_ref().filter(|page| page.mode == Mode::Off).map(|page| page.reason.clone());
    if let Some(reason) = off.as_deref().filter(|_| cut.is_none()) {
        ensure!(touches.as_file().metadata()?.len() > 0, "nothing was recorded: {reason}");
    }
    let requests = read(BufReader::new(touches.reopen()?), wish.most, &mut each)?;
    let (touches, waited) = page.map_or((0, 0), |page| (page.pages.second_chance, page.costs.stall_ns));
    let alone = cut.map(|_| "the trace is as long as it may be".to_owned()).or(off);
    Ok(Recorded { requests, ended, time, alone, touches, waited: Duration::from_nanos(waited) })
}

/// Removes what recorders left that were killed, and whose programs did not come to do so.
fn sweep(dir: &Path) {
    let is_touches =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    for path in runtime::entries(dir).into_iter().filter(is_touches) {
        if open_file(&path, libc::O_RDONLY).ok().and_then(is_locked) == Some(false) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The control page of the program that was started here, which outlives it.
fn page_of_child(dir: &Path) -> Option<Snapshot> {
    // It is in our own PID namespace, as its children need not be.
    let is_here = |path: &PathBuf| Name::of(path).is_some_and(|name| name.namespace.is_none());
    let mut pages =
        runtime::entries(dir).into_iter().filter(is_here).filter_map(|path| pages::snapshot(&path).ok());
    pages.find(|page| page.parent_pid == std::process::id())
}

/// Has the pager of the program bring everything back and end. A program that has just ended itself needs no stopping.
fn stop(dir: &Path) {
    let Some(page) = page_of_child(dir) else { return };
    let path = dir.join(page.pid.to_string());
    let asked = open_file(&path, libc::O_RDWR)
        .map_err(Into::into)
        .and_then(|file| Mailbox::open(file, page.pid)?.ask(Request::Stop, 0, 0, "", STOPPING));
    if let Err(error) = asked {
        text::say(format_args!("cannot end the recording of process {}: {error:#}", page.pid));
    }
}

/// Reads what the library wrote. Returns how many requests it was.
fn read(mut from: impl Read, most: u64, each: &mut impl FnMut(u64, u64) -> Result<()>) -> Result<u64> {
    let mut requests = 0;
    let mut raw = [0; 8];
    let mut word = || match from.read_exact(&mut raw) {
        Ok(()) => Ok(Some(u64::from_le_bytes(raw))),
        // The last piece of a program that was killed may be incomplete.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error).context("cannot read what was touched"),
    };
    while let Some(interval) = word()? {
        for _ in 0..word()?.unwrap_or(0) {
            let Some(page) = word()? else { return Ok(requests) };
            if requests == most {
                return Ok(requests);
            }
            each(interval, page)?;
            requests += 1;
        }
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(words: &[u64], cut_off: usize, most: u64) -> (u64, Vec<(u64, u64)>) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut found = Vec::new();
        let mut each = |interval, page| {
            found.push((interval, page));
            Ok(())
        };
        let count = read(&bytes[..bytes.len() - cut_off], most, &mut each).unwrap();
        (count, found)
    }

    #[test]
    fn pieces_are_read_up_to_what_is_wanted_or_whole() {
        let words = [3, 2, 10, 11, 4, 1, 12];
        assert_eq!(requests(&words, 0, 100), (3, vec![(3, 10), (3, 11), (4, 12)]));
        assert_eq!(requests(&words, 0, 1), (1, vec![(3, 10)]));
        for cut_off in 1..=8 {
            assert_eq!(requests(&words, cut_off, 100), (2, vec![(3, 10), (3, 11)]));
        }
        assert_eq!(requests(&words, 9, 100).0, 2);
        assert_eq!(requests(&words, 29, 100).0, 1);
        assert_eq!(requests(&[], 0, 100).0, 0);
    }
}
