//! Control pages that say anything, of a process that is there: the test's own.

use memfold_pager::control::{ControlPage, Mode, CONTROL_LEN, MAGIC, VERSION};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A control page of this process with every word at its most, under the daemon at `socket`.
///
/// # Panics
/// If the path is no text.
pub fn greatest_page(socket: &Path) -> Vec<u8> {
    page_of(u64::MAX, |page| {
        page.pid.store(std::process::id(), Relaxed);
        page.mode.store(Mode::Embedded as u32, Relaxed);
        page.daemon.set(socket.to_str().expect("a path that is text"));
    })
}

/// Writes a control page that `fill` has filled in to a file.
///
/// # Panics
/// If it cannot be written.
pub fn write(path: &Path, fill: impl FnOnce(&ControlPage)) {
    fs::write(path, page_of(0, fill)).expect("a file to write");
}

/// A page with every word at `word`, and then as `fill` makes it.
fn page_of(word: u64, fill: impl FnOnce(&ControlPage)) -> Vec<u8> {
    let mut words = vec![word; CONTROL_LEN / 8];
    // SAFETY: as long as a page and aligned like one, any bytes are one, and nothing else uses them meanwhile.
    let page = unsafe { &*words.as_mut_ptr().cast::<ControlPage>() };
    page.magic.store(MAGIC, Relaxed);
    page.version.store(VERSION, Relaxed);
    fill(page);
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A new directory of a run in which there can be pages.
///
/// # Panics
/// If it cannot be made.
pub fn run_dir(home: &Path) -> PathBuf {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let number = memfold_sys::time::now().0 + MADE.fetch_add(1, Relaxed);
    let run = home.join(format!("run-{}-{number:x}", std::process::id()));
    fs::create_dir(&run).expect("a directory to make");
    run
}

/// A file where a control page of this process would be, locked as a page in use is, for as long as it is kept.
///
/// # Panics
/// If it cannot be made.
pub fn page_file(home: &Path, bytes: &[u8]) -> File {
    let path = run_dir(home).join(std::process::id().to_string());
    let file = File::options().create_new(true).read(true).write(true).open(path).expect("a file to make");
    file.write_all_at(bytes, 0).expect("a file to write");
    // SAFETY: no memory involved.
    assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH) }, 0);
    file
}
