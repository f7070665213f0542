//! The log of the page daemon: one row for each pass, as CSV, or as JSON lines where the file's name ends in `.jsonl`.
//!
//! What it is not: needed. A file that cannot be written, or is another user's, is left unwritten, and nothing else changes. The file is opened for
//! each row, so that the program finds no descriptor that is not its own.

use crate::file_path::FilePath;
use crate::text::Text;
use core::fmt::Write;
use memfold_policy::daemon::Row;
use memfold_sys::file::{self, Fd};
use memfold_sys::{Errno, Result};

/// What a row has beside the daemon's own counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pass {
    /// Its number, from 1.
    pub number: u64,
    /// When it was made, ns since the engine's control page was.
    pub at: u64,
    /// How long it took, ns.
    pub took: u64,
    /// Page faults since the last pass: pages that were set aside or stored, and that a thread waited for.
    pub faults: u64,
    /// Of those the ones that found the page whole, so that nothing was decompressed.
    pub minor_faults: u64,
    /// Pages decompressed since the last pass, those brought ahead among them.
    pub restored: u64,
    /// Pages compressed since the last pass.
    pub compressed: u64,
    /// Chosen to go, still whole, and waiting to be compressed.
    pub backlog: u64,
    /// The limit, in pages.
    pub limit: u64,
}

/// The columns, in order.
fn columns(pass: &Pass, row: &Row) -> [(&'static str, u64); 26] {
    [
        ("pid", u64::from(memfold_sys::thread::current_pid())),
        ("pass", pass.number),
        ("time_us", pass.at / 1000),
        ("took_us", pass.took / 1000),
        ("limit", pass.limit),
        ("faults", pass.faults),
        ("minor_faults", pass.minor_faults),
        ("brought_ahead", row.brought + row.free_to_inactive),
        ("restored", pass.restored),
        ("active_scan", u64::from(row.active_scan)),
        ("inactive_scan", u64::from(row.inactive_scan)),
        ("scanned", row.scanned),
        ("active_to_inactive", row.active_to_inactive),
        ("inactive_to_active", row.inactive_to_active),
        ("inactive_to_free", row.inactive_to_free),
        ("to_laundry", row.active_to_laundry + row.inactive_to_laundry),
        ("laundered", row.laundered),
        ("compressed", pass.compressed),
        ("arrived", row.arrived),
        ("free_to_active", row.free_to_active),
        ("removed", row.removed.iter().sum()),
        ("active", row.active),
        ("inactive", row.inactive),
        ("laundry", row.laundry + pass.backlog),
        ("free", row.free),
        ("evicted", row.evicted),
    ]
}

/// Opens the log, or makes it; no link, nothing that would have us wait, and nothing that another user put there.
fn open(path: &FilePath) -> Result<Fd> {
    let (dir, name) = path.parent()?;
    let flags = libc::O_WRONLY | libc::O_APPEND;
    match dir.create(name.as_c_str(), flags) {
        Err(Errno(libc::EEXIST)) => dir.open_own_file(name.as_c_str(), flags),
        made => made,
    }
}

/// Adds a row to the file at `path`, with the names of the columns before it in an empty CSV file.
pub fn append(path: &str, pass: &Pass, row: &Row) {
    let Some(name) = FilePath::of(path) else { return };
    let Ok(file) = open(&name) else { return };
    let mut text = Text::<2048>::new();
    let json = path.ends_with(".jsonl");
    if !json && file::is_empty(file.raw()) {
        for (n, (name, _)) in columns(pass, row).into_iter().enumerate() {
            let _ = write!(text, "{}{name}", if n == 0 { "" } else { "," });
        }
        text.push("\n");
    }
    for (n, (name, value)) in columns(pass, row).into_iter().enumerate() {
        let _ = match (json, n) {
            (true, 0) => write!(text, "{{\"{name}\":{value}"),
            (true, _) => write!(text, ",\"{name}\":{value}"),
            (false, 0) => write!(text, "{value}"),
            (false, _) => write!(text, ",{value}"),
        };
    }
    text.push(if json { "}\n" } else { "\n" });
    // A full disk costs the row.
    file::say(file.raw(), text.as_str().as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::{chown, symlink};
    use std::string::String;

    #[test]
    fn rows_go_to_a_file_of_the_own_user_and_to_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| String::from(dir.path().join(name).to_str().unwrap());
        let add = |path: &str| append(path, &Pass::default(), &Row::default());
        let lines = |path: &str| fs::read_to_string(path).unwrap().lines().count();
        add(&at("new"));
        add(&at("new"));
        assert_eq!(lines(&at("new")), 3);
        fs::write(at("victim"), b"bytes\n").unwrap();
        symlink("victim", at("link")).unwrap();
        add(&at("link"));
        let pipe = std::ffi::CString::new(at("pipe")).unwrap();
        // SAFETY: a valid path.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        // With a reader, whom a row would reach.
        let reader = file::open(&pipe, libc::O_RDONLY | libc::O_NONBLOCK, 0).unwrap();
        add(&at("pipe"));
        assert_eq!((file::read(reader.raw(), &mut [0; 8]), lines(&at("victim"))), (Ok(0), 1));
        if memfold_sys::thread::effective_user() != 0 {
            std::eprintln!("skipped: only root can be two users");
            return;
        }
        chown(at("victim"), Some(61_302), None).unwrap();
        add(&at("victim"));
        assert_eq!(lines(&at("victim")), 1);
    }
}
