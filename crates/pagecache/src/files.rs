//! Test files: made once, checked, used again, removed on demand.
//!
//! What is ours stands in an inventory file in the same directory. Only what it lists is ever written to or removed.
//!
//! Invariants: a file has its final name only when it is whole; it is listed before it is made, so nothing is ever
//! left that [`Files::remove_all`] does not find. The inventory is locked while a run uses the directory. Blocks are
//! filled with noise, so that no device or file system stores them more cheaply than data.

use crate::place::Place;
use crate::stop::Stop;
use crate::workload::short_size;
use crate::Refused;
use anyhow::{Context, Result};
use memfold_stats::Rng;
use nix::fcntl::{posix_fadvise, Flock, FlockArg, PosixFadviseAdvice};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The list of our files in a directory.
const INVENTORY: &str = ".memfold-pagecache";

/// The test files of a directory, for one run.
#[derive(Debug)]
pub struct Files {
    place: Place,
    inventory: Flock<File>,
    listed: BTreeSet<String>,
    made: BTreeSet<String>,
}

/// A test file that is wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// Its size, bytes.
    pub bytes: u64,
    /// Which of several files of that size: 0 for the one that all share, `n` for the `n`th neighbour's.
    pub owner: usize,
}

impl Wanted {
    /// Its name: `test_file_1G`, and `test_file_1G_n1` for the first neighbour.
    pub fn name(&self) -> String {
        let size = short_size(self.bytes);
        match self.owner {
            0 => format!("test_file_{size}"),
            owner => format!("test_file_{size}_n{owner}"),
        }
    }
}

impl Files {
    /// Takes the directory for this run.
    ///
    /// # Errors
    /// [`Refused`] while another run uses it.
    pub fn take(place: Place) -> Result<Files> {
        let path = place.directory.join(INVENTORY);
        let inventory = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let mut inventory = Flock::lock(inventory, FlockArg::LockExclusiveNonblock).map_err(|_| {
            let name = place.directory.display();
            Refused(format!("another run uses {name}: wait for it, or name another --dir"))
        })?;
        let mut text = String::new();
        inventory.read_to_string(&mut text).with_context(|| format!("cannot read {}", path.display()))?;
        // A name is a name only, whatever somebody wrote into the file.
        let ours = |name: &&str| name.starts_with("test_file_") && !name.contains('/');
        let listed = text.lines().filter(ours).map(str::to_owned).collect();
        Ok(Files { place, inventory, listed, made: BTreeSet::new() })
    }

    /// Where a file lies.
    pub fn path(&self, wanted: &Wanted) -> PathBuf {
        self.place.directory.join(wanted.name())
    }

    /// Checks, before anything is made, that every file of `wanted` is there and whole or can be made.
    ///
    /// # Errors
    /// [`Refused`] if a file of somebody else is in the way, or there is too little space.
    pub fn check(&self, wanted: &[Wanted]) -> Result<()> {
        let mut missing = 0;
        for wanted in wanted {
            let (name, path) = (wanted.name(), self.path(wanted));
            if path.exists() && !self.listed.contains(&name) {
                return Err(Refused(format!(
                    "{} is there and is not one of memfold's test files; it would be overwritten. Move it away, or name \
                     another --dir",
                    path.display()
                ))
                .into());
            }
            if !self.whole(wanted) {
                // What is there is given back first.
                let there = fs::metadata(&path).map_or(0, |metadata| metadata.blocks() * 512);
                missing += wanted.bytes.saturating_sub(there);
            }
        }
        self.place.must_fit(missing)
    }

    /// Makes the file unless it is there and whole. `progress` is told bytes written so far.
    ///
    /// # Errors
    /// [`crate::Interrupted`], or what the file system says.
    pub fn make(&mut self, wanted: &Wanted, stop: &Stop, progress: &mut dyn FnMut(u64)) -> Result<PathBuf> {
        let path = self.path(wanted);
        if self.whole(wanted) {
            return Ok(path);
        }
        let name = wanted.name();
        if self.listed.insert(name.clone()) {
            writeln!(self.inventory, "{name}").context("cannot write the list of test files")?;
        }
        self.made.insert(name.clone());
        let part = part_of(&path);
        let _ = fs::remove_file(&path);
        fill(&part, wanted.bytes, stop, progress)
            .with_context(|| format!("cannot make {}", path.display()))?;
        fs::rename(&part, &path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(path)
    }

    /// Removes what this run made, after an interruption: what was there before stays.
    pub fn remove_made(&mut self) -> Result<()> {
        let made = std::mem::take(&mut self.made);
        self.remove(&made).map(drop)
    }

    /// Removes all test files and the inventory, and returns the names and bytes of what went.
    ///
    /// # Errors
    /// When a file cannot be removed.
    pub fn remove_all(mut self) -> Result<Vec<(String, u64)>> {
        let all = self.listed.clone();
        self.remove(&all)
    }

    fn remove(&mut self, names: &BTreeSet<String>) -> Result<Vec<(String, u64)>> {
        let mut gone = Vec::new();
        for name in names {
            let path = self.place.directory.join(name);
            for path in [part_of(&path), path] {
                let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
                fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
                gone.push((
                    path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
                    metadata.len(),
                ));
            }
            self.listed.remove(name);
        }
        self.write_inventory()?;
        Ok(gone)
    }

    fn write_inventory(&mut self) -> Result<()> {
        let path = self.place.directory.join(INVENTORY);
        if self.listed.is_empty() {
            return fs::remove_file(&path)
                .or_else(gone_is_fine)
                .context("cannot remove the list of test files");
        }
        self.inventory.set_len(0).and_then(|()| self.inventory.rewind())?;
        for name in &self.listed {
            writeln!(self.inventory, "{name}").context("cannot write the list of test files")?;
        }
        Ok(())
    }

    /// Whether the file is there in full: its size is right and no part of it is a hole.
    fn whole(&self, wanted: &Wanted) -> bool {
        let listed = self.listed.contains(&wanted.name());
        listed
            && fs::symlink_metadata(self.path(wanted)).is_ok_and(|metadata| {
                metadata.is_file()
                    && metadata.len() == wanted.bytes
                    && metadata.blocks() * 512 >= wanted.bytes
            })
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if self.listed.is_empty() {
            let _ = fs::remove_file(self.place.directory.join(INVENTORY));
        }
    }
}

fn gone_is_fine(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound {
        return Ok(());
    }
    Err(error)
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

fn fill(path: &Path, bytes: u64, stop: &Stop, progress: &mut dyn FnMut(u64)) -> Result<()> {
    const CHUNK: usize = 1 << 20;
    let mut rng = Rng::new(bytes);
    let mut chunk: Vec<u8> = (0..CHUNK / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    let mut file = File::create(path)?;
    let mut written = 0;
    while written < bytes {
        stop.check()?;
        // Each chunk differs from all others in each of its pages.
        for page in chunk.chunks_mut(memfold_sys::PAGE_SIZE) {
            page[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
        }
        let length = (bytes - written).min(CHUNK as u64) as usize;
        file.write_all(&chunk[..length])?;
        written += length as u64;
        progress(written);
    }
    file.sync_all()?;
    posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Wanted = Wanted { bytes: 3 << 20, owner: 0 };

    fn place(directory: &Path) -> Place {
        Place { directory: directory.to_owned(), device: "x".into(), disk: (0, 0) }
    }

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_made_once_used_again_and_removed_with_its_inventory() {
        let home = tempfile::tempdir().unwrap();
        let stop = Stop::default();
        let mut files = Files::take(place(home.path())).unwrap();
        files.check(&[SMALL]).unwrap();
        let mut told = 0;
        let path = files.make(&SMALL, &stop, &mut |bytes| told = bytes).unwrap();
        assert_eq!((told, fs::metadata(&path).unwrap().len()), (SMALL.bytes, SMALL.bytes));
        assert_eq!(path.file_name().unwrap(), "test_file_3M");
        drop(files);
        let mut files = Files::take(place(home.path())).unwrap();
        files.make(&SMALL, &stop, &mut |_| panic!("it is written again")).unwrap();
        files.remove_made().unwrap();
        assert!(path.exists(), "a file of an earlier run must stay");
        assert_eq!(files.remove_all().unwrap(), [("test_file_3M".to_owned(), SMALL.bytes)]);
        assert!(names(home.path()).is_empty());
    }

    #[test]
    fn a_file_with_a_hole_or_of_another_size_is_made_again() {
        let home = tempfile::tempdir().unwrap();
        let mut files = Files::take(place(home.path())).unwrap();
        let path = files.make(&SMALL, &Stop::default(), &mut |_| {}).unwrap();
        for damage in [1 << 20, SMALL.bytes] {
            let file = File::create(&path).unwrap();
            file.set_len(damage).unwrap();
            let mut told = 0;
            files.make(&SMALL, &Stop::default(), &mut |bytes| told = bytes).unwrap();
            assert_eq!(told, SMALL.bytes);
        }
    }

    #[test]
    fn an_interruption_leaves_nothing_of_this_run() {
        let home = tempfile::tempdir().unwrap();
        let stop = Stop::default();
        let mut files = Files::take(place(home.path())).unwrap();
        let error = files.make(&SMALL, &stop, &mut |_| stop.wish()).unwrap_err();
        assert!(error.is::<crate::Interrupted>());
        assert_eq!(names(home.path()), [INVENTORY, "test_file_3M.part"]);
        files.remove_made().unwrap();
        drop(files);
        assert!(names(home.path()).is_empty());
    }

    #[test]
    fn a_file_of_somebody_else_is_never_used() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("test_file_3M");
        fs::write(&path, "mine").unwrap();
        let files = Files::take(place(home.path())).unwrap();
        let error = files.check(&[SMALL]).unwrap_err().downcast::<Refused>().unwrap();
        assert!(error.0.contains("is not one of memfold's test files"), "{error}");
        assert!(files.remove_all().unwrap().is_empty());
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn two_runs_do_not_share_a_directory() {
        let home = tempfile::tempdir().unwrap();
        let _first = Files::take(place(home.path())).unwrap();
        let error = Files::take(place(home.path())).unwrap_err().downcast::<Refused>().unwrap();
        assert!(error.0.contains("another run uses"), "{error}");
    }
}
