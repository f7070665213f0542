//! A zram device of our own with swap on it: made by the benchmark, and gone after it however it ends.
//!
//! What it is not: a set-up for users. It takes the highest swap priority, for the minutes of a run.
//!
//! Invariants: only a device that this module added is ever reset or removed. It is recognised by the label
//! in its swap header, `memfold-PID`, so that the next run also finds the device of one that was killed;
//! a device whose process lives is left alone. At most one device exists per process.
//!
//! Sources: Documentation/admin-guide/blockdev/zram.rst; the swap header is `union swap_header` of
//! include/linux/swap.h.

use crate::Unsupported;
use anyhow::{bail, ensure, Context, Result};
use memfold_sys::PAGE_SIZE;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread::sleep;
use std::time::Duration;

const CONTROL: &str = "/sys/class/zram-control";
const LABEL: &str = "memfold-";
const LABEL_OFFSET: usize = 1024 + 4 + 4 + 4 + 16;
const SWAP_FLAG_PREFER: i32 = 0x8000;
const HIGHEST_PRIORITY: i32 = 0x7fff;

/// The number of the device that this process has, for the hooks that run when it ends early.
static OURS: Mutex<Option<u32>> = Mutex::new(None);

/// A zram device in use as swap; taken down when dropped, on a signal and on a panic.
#[derive(Debug)]
pub struct Zram {
    number: u32,
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
    /// Adds a device of `bytes` and swaps to it before all others. First takes down what killed runs left behind. Its compressor is
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
        remove_stale();
        install_hooks()?;
        let mut ours = ours();
        ensure!(ours.is_none(), "this process already has a zram device");
        let answer = fs::read_to_string(format!("{CONTROL}/hot_add")).context("cannot add a zram device")?;
        let number: u32 =
            answer.trim().parse().with_context(|| format!("zram's hot_add answered {answer:?}"))?;
        *ours = Some(number);
        drop(ours);
        let zram = Zram { number };
        let (first, second) = match algorithm.split_once('+') {
            Some((first, second)) => (first, Some(second)),
            None => (algorithm, None),
        };
        compress_by(number, "comp_algorithm", first, first)?;
        if let Some(second) = second {
            compress_by(number, "recomp_algorithm", second, &format!("algo={second} priority=1"))?;
        }
        set(number, "disksize", &bytes.to_string())?;
        write_swap_header(&node(number), bytes, std::process::id())?;
        swap_on(&node(number))?;
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

impl Drop for Zram {
    fn drop(&mut self) {
        take_down_ours(&mut ours());
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

fn write_swap_header(device: &Path, bytes: u64, pid: u32) -> Result<()> {
    let last_page = u32::try_from(bytes / PAGE_SIZE as u64 - 1).context("the zram device is too large")?;
    let mut page = [0u8; PAGE_SIZE];
    page[1024..1028].copy_from_slice(&1u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_le_bytes());
    let label = format!("{LABEL}{pid}");
    page[LABEL_OFFSET..LABEL_OFFSET + label.len()].copy_from_slice(label.as_bytes());
    page[PAGE_SIZE - 10..].copy_from_slice(b"SWAPSPACE2");
    let file = OpenOptions::new()
        .write(true)
        .open(device)
        .with_context(|| format!("cannot open {}", device.display()))?;
    file.write_all_at(&page, 0)?;
    Ok(file.sync_all()?)
}

/// The process named in the swap label of a device, if the label is ours.
fn owner(device: &Path) -> Option<u32> {
    let mut label = [0u8; 16];
    fs::File::open(device).ok()?.read_exact_at(&mut label, LABEL_OFFSET as u64).ok()?;
    let text = std::str::from_utf8(&label).ok()?;
    text.trim_end_matches('\0').strip_prefix(LABEL)?.parse().ok()
}

fn swap_on(device: &Path) -> Result<()> {
    let path = CString::new(device.as_os_str().as_encoded_bytes())?;
    // SAFETY: a valid path; the call changes nothing in this process.
    let result = unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | HIGHEST_PRIORITY) };
    ensure!(result == 0, "cannot swap to {}: {}", device.display(), std::io::Error::last_os_error());
    Ok(())
}

fn swap_off(device: &Path) {
    if let Ok(path) = CString::new(device.as_os_str().as_encoded_bytes()) {
        // SAFETY: a valid path. An error means that it was not in use.
        unsafe { libc::swapoff(path.as_ptr()) };
    }
}

/// Swaps off, resets and removes device `number`; says so on stderr if it would not go.
fn take_down(number: u32) {
    swap_off(&node(number));
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

/// Takes down the device of this process. The lock is held until it is gone, so that whoever comes second (the end of
/// the program, after an interruption) waits for whoever came first.
fn take_down_ours(ours: &mut Option<u32>) {
    if let Some(number) = ours.take() {
        take_down(number);
    }
}

fn ours() -> MutexGuard<'static, Option<u32>> {
    OURS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn remove_stale() {
    let Ok(devices) = fs::read_dir("/sys/block") else { return };
    for name in devices.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()) {
        let Some(number) = name.strip_prefix("zram").and_then(|n| n.parse().ok()) else { continue };
        match owner(&node(number)) {
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

/// Takes the device down when the process is interrupted or panics (which aborts, without unwinding).
fn install_hooks() -> Result<()> {
    static HOOKS: Once = Once::new();
    let mut outcome = Ok(());
    HOOKS.call_once(|| {
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            earlier(info);
            // The thread that panics may itself hold the lock; then the next run removes the device.
            if let Ok(mut ours) = OURS.try_lock() {
                take_down_ours(&mut ours);
            }
        }));
        outcome = ctrlc::set_handler(|| {
            take_down_ours(&mut ours());
            std::process::exit(128 + libc::SIGINT);
        });
    });
    outcome.context("cannot watch for interruption")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_swap_header_of_ours_names_its_process_and_others_do_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        assert_eq!(owner(file.path()), None);
        write_swap_header(file.path(), 1 << 20, 4321).unwrap();
        assert_eq!(owner(file.path()), Some(4321));
        let bytes = fs::read(file.path()).unwrap();
        assert_eq!(&bytes[PAGE_SIZE - 10..PAGE_SIZE], b"SWAPSPACE2");
        assert_eq!(u32::from_le_bytes(bytes[1028..1032].try_into().unwrap()), 255);
    }
}
