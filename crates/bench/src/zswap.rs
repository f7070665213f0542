//! The kernel's zswap, for the time of a run: compressed memory before the swap file.
//!
//! Only whether it is on is changed, and put back as it was. Which compressor it has and how much it may take stay the machine's.
//!
//! Invariants: it is on for one process at a time, the one that has the turn for swap. Who is killed leaves a mark by which the next run puts it back;
//! the mark lies where a restart of the machine, which puts it back too, leaves nothing.
//!
//! Sources: Documentation/admin-guide/mm/zswap.rst; `Zswap` and `Zswapped` of Documentation/filesystems/proc.rst.

use crate::undo::Undo;
use crate::{swap, Unsupported};
use anyhow::{Context, Result};
use std::fs;
use std::path::{Path, PathBuf};

const PARAMETERS: &str = "/sys/module/zswap/parameters";
const ENABLED: &str = "enabled";
const MARKS: &str = "/run";
const MARK: &str = "memfold-zswap-";

/// Zswap that is on; as it was when dropped, on a signal and on a panic.
#[derive(Debug)]
pub struct Zswap {
    // Before the turn, which ends when it is as it was.
    _undo: Undo,
    _turn: swap::Turn,
}

impl Zswap {
    /// Turns it on, after waiting for the turn for swap and putting back what a killed run left.
    ///
    /// # Errors
    /// [`Unsupported`] without root or where the kernel has none; otherwise what could not be done.
    pub fn start() -> Result<Zswap> {
        // SAFETY: no arguments, no effects.
        if unsafe { libc::geteuid() } != 0 {
            return Err(
                Unsupported("zswap is turned on by root: run as root, or leave --vs out".into()).into()
            );
        }
        let parameters = Path::new(PARAMETERS);
        if !parameters.join(ENABLED).exists() {
            return Err(Unsupported(format!("this kernel has no zswap ({PARAMETERS} is missing)")).into());
        }
        let turn = swap::Turn::wait()?;
        let undo = turn_on(parameters, Path::new(MARKS))
            .map_err(|error| Unsupported(format!("zswap cannot be turned on here: {error:#}")))?;
        Ok(Zswap { _undo: undo, _turn: turn })
    }

    /// Bytes of pages that it holds, of all processes, and bytes that these take.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn usage(&self) -> Result<(u64, u64)> {
        of_meminfo(&fs::read_to_string("/proc/meminfo")?)
    }
}

fn of_meminfo(text: &str) -> Result<(u64, u64)> {
    let field = |name: &str| -> Result<u64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
        Ok(number
            .with_context(|| format!("no {name} in /proc/meminfo: the kernel must be Linux 5.19 or newer"))?
            << 10)
    };
    Ok((field("Zswapped")?, field("Zswap")?))
}

/// Turns it on, with a mark that says how it was.
fn turn_on(parameters: &Path, marks: &Path) -> Result<Undo> {
    let parameter = parameters.join(ENABLED);
    put_back_stale(&parameter, marks);
    let before = fs::read_to_string(&parameter).context("cannot read whether it is on")?;
    let mark = marks.join(format!("{MARK}{}", std::process::id()));
    fs::write(&mark, &before).with_context(|| format!("cannot write {}", mark.display()))?;
    let undo = {
        let (parameter, before) = (parameter.clone(), before.clone());
        Undo::at_end(move || put_back(&parameter, &before, &mark))?
    };
    fs::write(&parameter, "Y").context("the kernel does not let it be turned on")?;
    Ok(undo)
}

fn put_back(parameter: &Path, before: &str, mark: &Path) {
    if fs::write(parameter, before.trim()).is_ok() {
        let _ = fs::remove_file(mark);
    }
}

/// As it was before runs that are gone.
fn put_back_stale(parameter: &Path, marks: &Path) {
    let pid = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix(MARK)?.parse::<u32>().ok();
    let found = fs::read_dir(marks).into_iter().flatten().flatten().map(|entry| entry.path());
    for mark in found.filter(|path| pid(path).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()))
    {
        if let Ok(before) = fs::read_to_string(&mark) {
            put_back(parameter, &before, &mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_it_was_afterwards_and_so_after_a_run_that_was_killed() {
        let (parameters, marks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let parameter = parameters.path().join(ENABLED);
        let now = || fs::read_to_string(&parameter).unwrap().trim().to_owned();
        for before in ["N", "Y"] {
            fs::write(&parameter, format!("{before}\n")).unwrap();
            let undo = turn_on(parameters.path(), marks.path()).unwrap();
            assert_eq!(now(), "Y");
            drop(undo);
            assert_eq!(now(), before);
            assert_eq!(fs::read_dir(marks.path()).unwrap().count(), 0);
        }
        // Of one that was killed while it was on, and had found it off.
        fs::write(marks.path().join(format!("{MARK}{}", u32::MAX)), "N\n").unwrap();
        drop(turn_on(parameters.path(), marks.path()).unwrap());
        assert_eq!(now(), "N");
        assert_eq!(fs::read_dir(marks.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_kernel_says_what_it_holds() {
        let text = "SwapFree: 5 kB\nZswap:               8 kB\nZswapped:           24 kB\n";
        assert_eq!(of_meminfo(text).unwrap(), (24 << 10, 8 << 10));
        assert!(of_meminfo("SwapFree: 5 kB\n").unwrap_err().to_string().contains("5.19"));
    }
}
