//! The file that a summary goes to: opened before the program starts, written after it ended.
//!
//! Invariants: what another user could have put there is not written to ([`open_named`]); a file that was there is not shortened before there is something to write; a file that was
//! not there is removed again if nothing was written.

use crate::directory::open_named;
use anyhow::Context;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// An open file for a summary.
#[derive(Debug)]
pub struct Destination {
    path: PathBuf,
    file: File,
    ours: bool,
}

impl Destination {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// It cannot be written; nothing was changed.
    pub fn open(path: &Path) -> io::Result<Destination> {
        let ours = fs::symlink_metadata(path).is_err();
        let file = open_named(path)?;
        Ok(Destination { path: path.to_owned(), file, ours })
    }

    /// Puts `text` into the file in place of what was there.
    ///
    /// # Errors
    /// The file system is full or failing.
    pub fn write(mut self, text: &str) -> anyhow::Result<()> {
        let what = || format!("cannot write the summary to {}", self.path.display());
        if self.file.metadata().with_context(what)?.is_file() {
            self.file.set_len(0).with_context(what)?;
        }
        let written = self.file.write_all(text.as_bytes()).with_context(what);
        self.ours = self.ours && written.is_err();
        written
    }
}

impl Drop for Destination {
    fn drop(&mut self) {
        if self.ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_there_keeps_its_contents_until_the_summary_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.json");
        fs::write(&path, "a longer text than the summary").unwrap();
        drop(Destination::open(&path).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "a longer text than the summary");
        Destination::open(&path).unwrap().write("{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
    }

    #[test]
    fn a_file_that_was_not_there_disappears_if_nothing_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.json");
        drop(Destination::open(&path).unwrap());
        assert!(!path.exists());
        Destination::open(&path).unwrap().write("{}").unwrap();
        assert!(path.exists());
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error_at_once() {
        assert!(Destination::open(Path::new("/nonexistent/s.json")).is_err());
        assert!(Destination::open(Path::new("/tmp")).is_err());
    }
}
