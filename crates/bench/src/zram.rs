//! A zram device of our own with swap on it: made by the benchmark, and gone after it however it ends.
//!
//! What it is not: a set-up for users. It takes the highest swap priority, for the minutes of a run.
//!
//! Invariants: only a device that this module added is ever reset or removed. It is recognised by the label
//! in its swap header, `memfold-PID`, so that the next run also finds the device of one that was killed;
//! a device whose process lives is left alone.
//!
//! Source: Documentation/admin-guide/blockdev/zram.rst.

use crate::undo::Undo;
use crate::{swap, Unsupported};
use anyhow::{bail, Context, Result};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

const CONTROL: &str = "/sys/class/zram-control";

/// A zram device in use as swap; taken down when dropped, on a signal and on a panic.
#[derive(Debug)]
pub struct Zram {
    number: u32,
    // Before the turn, which ends when the device is gone.
    _undo: Undo,
    _turn: swap::Turn,
}

/// What the device holds, in bytes (`mm_stat`).
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// Bytes of pages swapped out to it.
    pub original: u64,
    /// The same, compressed.
    pub compressed: u64,
    /// Memory that it takes for them, gaps and tables included.
    pub memory: u64,
}

impl Zram {
    /// Adds a device of `bytes` and swaps to it before all others. First waits until no other process has swap of its own by this crate,
    /// and takes down what killed runs left behind. Its compressor is
    /// `algorithm`; behind a `+` can stand a second one, for [`Zram::recompress`].
    ///
    /// # Errors
    /// [`Unsupported`] without root, or without zram or such a compressor in the kernel; otherwise what could not be done.
    pub fn start(bytes: u64, algorithm: &str) -> Result<Zram> {
        // SAFETY: no arguments, no effects.
        if unsafe { libc::geteuid() } != 0 {
            return Err(
                Unsupported("comparing with zram needs root: run as root, or leave zram out".into()).into()
            );
        }
        if !Path::new(CONTROL).exists() {
            return Err(Unsupported(format!(
                "this kernel has no zram ({CONTROL} is missing): try `modprobe zram`, or leave zram out"
            ))
            .into());
        }
        let turn = swap::Turn::wait()?;
        remove_stale();
        let answer = fs::read_to_string(format!("{CONTROL}/hot_add")).context("cannot add a zram device")?;
        let number: u32 =
            answer.trim().parse().with_context(|| format!("zram's hot_add answered {answer:?}"))?;
        let zram = Zram { number, _undo: Undo::at_end(move || take_down(number))?, _turn: turn };
        let (first, second) = match algorithm.split_once('+') {
            Some((first, second)) => (first, Some(second)),
            None => (algorithm, None),
        };
        compress_by(number, "comp_algorithm", first, first)?;
        if let Some(second) = second {
            compress_by(number, "recomp_algorithm", second, &format!("algo={second} priority=1"))?;
        }
        set(number, "disksize", &bytes.to_string())?;
        swap::write_header(&node(number), bytes, std::process::id())?;
        swap::on(&node(number))?;
        Ok(zram)
    }

    /// Has the kernel compress everything that it holds with the second compressor. The calling thread does it.
    ///
    /// # Errors
    /// When the kernel does not.
    pub fn recompress(&self) -> Result<()> {
        set(self.number, "idle", "all")?;
        set(self.number, "recompress", "type=idle")
    }

    /// What it holds now.
    ///
    /// # Errors
    /// When the kernel's account cannot be read.
    pub fn usage(&self) -> Result<Usage> {
        let text = fs::read_to_string(attribute(self.number, "mm_stat"))?;
        let fields: Vec<u64> = text.split_whitespace().map_while(|f| f.parse().ok()).collect();
        match fields[..] {
            [original, compressed, memory, ..] => Ok(Usage { original, compressed, memory }),
            _ => bail!("zram's mm_stat has too few fields: {text:?}"),
        }
    }
}

fn node(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/zram{number}"))
}

fn attribute(number: u32, name: &str) -> String {
    format!("/sys/block/zram{number}/{name}")
}

fn set(number: u32, name: &str, value: &str) -> Result<()> {
    let file = attribute(number, name);
    fs::write(&file, value).with_context(|| format!("cannot write {value:?} to {file}"))
}

/// Chooses a compressor, of those that the kernel has.
fn compress_by(number: u32, attribute_name: &str, algorithm: &str, request: &str) -> Result<()> {
    let Err(error) = set(number, attribute_name, request) else { return Ok(()) };
    let Ok(known) = fs::read_to_string(attribute(number, attribute_name)) else {
        return Err(Unsupported(format!(
            "this kernel's zram does not compress again (CONFIG_ZRAM_MULTI_COMP): {algorithm} cannot come second"
        ))
        .into());
    };
    let known: Vec<&str> = known.split_whitespace().map(|name| name.trim_matches(['[', ']'])).collect();
    if known.contains(&algorithm) {
        return Err(error);
    }
    Err(Unsupported(format!("this kernel's zram has no {algorithm}, but {}", known.join(", "))).into())
}

/// Swaps off, resets and removes device `number`; says so on stderr if it would not go.
fn take_down(number: u32) {
    swap::off(&node(number));
    // The device is busy for a moment after the last user (udev among them) let go of it.
    for _ in 0..50 {
        let gone = set(number, "reset", "1").is_ok()
            && fs::write(format!("{CONTROL}/hot_remove"), number.to_string()).is_ok();
        if gone {
            return;
        }
        sleep(Duration::from_millis(20));
    }
    let _ = writeln!(
        io::stderr(),
        "memfold: /dev/zram{number} could not be removed; as root: swapoff /dev/zram{number}; \
         echo 1 >/sys/block/zram{number}/reset; echo {number} >{CONTROL}/hot_remove"
    );
}

fn remove_stale() {
    let Ok(devices) = fs::read_dir("/sys/block") else { return };
    for name in devices.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        let Some(number) = name.strip_prefix("zram").and_then(|n| n.parse().ok()) else { continue };
        match swap::owner(&node(number)) {
            Some(pid) if !Path::new(&format!("/proc/{pid}")).exists() => {
                let _ = writeln!(
                    io::stderr(),
                    "memfold: removing /dev/zram{number}, left behind by process {pid}"
                );
                take_down(number);
            }
            _ => {}
        }
    }
}
