//! What is still wanted: files, their segments, and who owns them.
//!
//! A file is owned by the connections that say so. Without one it is kept for as long as some process has its mark locked, which forked children have of
//! their parents' files (flock(2)); it is asked twice, since its owner lets the lock go for moments.
//!
//! What it is not: the deletion itself. [`Kept::ended`] says what nobody wants, once.

use memfold_pager::tier::wire::{Name, NameText};
use nix::fcntl::{Flock, FlockArg};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

/// How often a mark must be found unlocked.
const LOOKS: u32 = 2;

/// All of it.
#[derive(Debug)]
pub struct Kept {
    directory: PathBuf,
    files: BTreeMap<Name, Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    owners: usize,
    segments: BTreeSet<u32>,
    /// The number behind the last segment that ever had something.
    end: u32,
    /// How often it was found unlocked.
    looks: u32,
}

impl Kept {
    /// Nothing; the marks are in this directory.
    pub fn new(directory: &Path) -> Kept {
        Kept { directory: directory.to_owned(), files: BTreeMap::new() }
    }

    /// A connection owns the file, or no more does.
    pub fn own(&mut self, file: Name, owns: bool) {
        let entry = self.files.entry(file).or_default();
        entry.owners = if owns { entry.owners + 1 } else { entry.owners.saturating_sub(1) };
        entry.looks = 0;
    }

    /// Segments of it have something.
    pub fn keep(&mut self, file: Name, segments: std::ops::Range<u32>) {
        let entry = self.files.entry(file).or_default();
        entry.end = entry.end.max(segments.end);
        entry.segments.extend(segments);
    }

    /// Nothing of a segment is wanted.
    pub fn forget(&mut self, file: Name, segment: u32) {
        if let Some(entry) = self.files.get_mut(&file) {
            entry.segments.remove(&segment);
        }
    }

    /// All files with their segments.
    pub fn all(&self) -> Vec<(Name, Vec<u32>)> {
        self.files.iter().map(|(name, entry)| (*name, entry.segments.iter().copied().collect())).collect()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The files that nobody can read any more, with all segments that they ever had: what was to be forgotten while an engine was away, or nobody
    /// was here to hear of it, is there still. Now and then.
    pub fn ended(&mut self) -> Vec<(Name, Vec<u32>)> {
        let mut ended = Vec::new();
        for (name, entry) in self.files.iter_mut().filter(|(_, entry)| entry.owners == 0) {
            entry.looks = if is_locked(&mark(&self.directory, *name)) { 0 } else { entry.looks + 1 };
            if entry.looks >= LOOKS {
                ended.push((*name, (0..entry.end).collect()));
            }
        }
        for (name, _) in &ended {
            self.files.remove(name);
            let _ = std::fs::remove_file(mark(&self.directory, *name));
        }
        ended
    }
}

fn mark(directory: &Path, name: Name) -> PathBuf {
    directory.join(NameText(name).to_string())
}

/// Whether a process has the mark locked. One that cannot be opened for another reason than that it is gone counts as locked: what may be wanted is
/// kept.
fn is_locked(mark: &Path) -> bool {
    match OpenOptions::new().read(true).open(mark) {
        Ok(file) => Flock::<File>::lock(file, FlockArg::LockExclusiveNonblock).is_err(),
        Err(error) => error.kind() != std::io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_kept_while_it_has_an_owner_or_its_mark_is_locked() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = Kept::new(dir.path());
        let name = [7; 16];
        let lock = |path: &Path| {
            let file = File::open(path).unwrap();
            Flock::lock(file, FlockArg::LockSharedNonblock).unwrap()
        };
        std::fs::write(mark(dir.path(), name), "").unwrap();
        kept.own(name, true);
        kept.keep(name, 3..6);
        kept.forget(name, 4);
        assert!((0..5).all(|_| kept.ended().is_empty()), "it is owned");
        let held = lock(&mark(dir.path(), name));
        kept.own(name, false);
        assert!((0..5).all(|_| kept.ended().is_empty()), "a child has it");
        drop(held);
        assert!(kept.ended().is_empty(), "once is not enough");
        assert_eq!(kept.all(), [(name, vec![3, 5])]);
        assert_eq!(kept.ended(), [(name, (0..6).collect())]);
        assert!(kept.is_empty() && !mark(dir.path(), name).exists());
    }

    #[test]
    fn an_owner_that_comes_back_is_waited_for_anew() {
        let dir = tempfile::tempdir().unwrap();
        let mut kept = Kept::new(dir.path());
        kept.keep([1; 16], 0..1);
        assert!(kept.ended().is_empty());
        kept.own([1; 16], true);
        kept.own([1; 16], false);
        assert!(kept.ended().is_empty());
        assert_eq!(kept.ended().len(), 1);
    }
}
