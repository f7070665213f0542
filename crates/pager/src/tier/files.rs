//! The files that clusters are in: how one is read and written.
//!
//! A forked child has none of the agents' descriptors, so each file is also mapped, for reading, and a child reads there. The kernel copies
//! from the mapping (process_vm_readv(2)): a thread that touched it would end the process by SIGBUS where the disk cannot be read. What is
//! mapped is another open file than the one that is written, and is locked (flock(2)): as long as somebody else has it locked, a child lives
//! that was forked with it ([`crate::tier::keeper`] asks).
//!
//! Invariants: a file that a child may have is written no more where anything lies that was there at the fork.

use super::clusters::{Place, FILES};
use super::remote::Remote;
use super::wire::Name;
use super::{seal, Tier};
use crate::sabotage::{planted, Bug};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use memfold_sys::inject::{self, Point};
use memfold_sys::{file, mem, Errno, Result};

/// One file. Zeros are none.
#[derive(Default)]
pub struct File {
    /// The number of the descriptor in the table of the agents, and one; 0 for none.
    descriptor: AtomicU32,
    /// The same of the open file that is mapped.
    reader: AtomicU32,
    /// Where it is mapped; 0 for nowhere.
    pub(super) mapped: AtomicUsize,
    /// The page that has its key, once there was one.
    key: AtomicUsize,
    /// Where its mark is mapped, whose lock says that this process may read it on the network, where the file itself is on a disk too; 0 for nowhere.
    pub(super) mark: AtomicUsize,
    /// Its random name, where it lies on the network.
    name: [AtomicU64; 2],
    /// 1 where what lies there is not sealed, and has a checksum.
    unsealed: AtomicU32,
    /// 1 where it is a parent's.
    inherited: AtomicU32,
    /// 1 from a fork on, until it is known that no child has it.
    shared: AtomicU32,
    /// 1 from a fork on, until what is mapped is an open file that no child has.
    seen_by_child: AtomicU32,
}

impl File {
    /// The descriptor, of one that is this process's.
    pub fn descriptor(&self) -> Option<i32> {
        Some(self.descriptor.load(Acquire) as i32 - 1).filter(|&fd| fd >= 0)
    }

    /// Has it opened by this number from now on, or closed.
    pub fn set_descriptor(&self, fd: Option<i32>) {
        self.descriptor.store(fd.map_or(0, |fd| fd as u32 + 1), Release);
    }

    /// The descriptor of the open file that is mapped, of one that is this process's.
    pub fn reader(&self) -> Option<i32> {
        Some(self.reader.load(Relaxed) as i32 - 1).filter(|&fd| fd >= 0)
    }

    /// Has what is mapped opened by this number from now on, or closed.
    pub fn set_reader(&self, fd: Option<i32>) {
        self.reader.store(fd.map_or(0, |fd| fd as u32 + 1), Relaxed);
    }

    /// Its random name, where it lies on the network.
    pub fn name(&self) -> Name {
        let mut name = Name::default();
        for (part, word) in name.chunks_exact_mut(8).zip(&self.name) {
            part.copy_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        name
    }

    /// Gives it that, before anybody else looks.
    pub fn set_name(&self, name: Name) {
        for (part, word) in name.chunks_exact(8).zip(&self.name) {
            word.store(u64::from_le_bytes(part.try_into().unwrap_or_default()), Relaxed);
        }
    }

    /// Whether it is one at all.
    pub fn is_there(&self) -> bool {
        self.mapped.load(Acquire) != 0
    }

    /// Whether what lies there is sealed.
    pub fn is_sealed(&self) -> bool {
        self.unsealed.load(Relaxed) == 0
    }

    /// What lies there is sealed, or not, before anybody else looks.
    pub fn set_sealed(&self, sealed: bool) {
        self.unsealed.store((!sealed).into(), Relaxed);
    }

    /// Whether it is a parent's.
    pub fn is_inherited(&self) -> bool {
        self.inherited.load(Relaxed) != 0
    }

    /// Whether a child may read from it.
    pub fn is_shared(&self) -> bool {
        self.shared.load(Acquire) != 0
    }

    /// Nobody else has it.
    pub fn is_alone(&self) {
        self.shared.store(0, Release);
    }

    /// Whether what is mapped may be mapped in a child too.
    pub fn is_seen_by_child(&self) -> bool {
        self.seen_by_child.load(Acquire) != 0
    }

    /// What is mapped is mapped nowhere else.
    pub fn is_seen_alone(&self) {
        self.seen_by_child.store(0, Release);
    }

    /// A child was forked, or may have been.
    fn share(&self) {
        if self.is_there() && !self.is_inherited() {
            self.seen_by_child.store(1, Release);
            self.shared.store(1, Release);
        }
    }

    /// It is the parent's.
    fn inherit(&self) {
        if self.is_there() {
            self.inherited.store(1, Relaxed);
            self.set_descriptor(None);
            self.set_reader(None);
        }
    }

    /// There is none any more, and its key is gone. Returns where it was mapped.
    pub(super) fn clear(&self) -> usize {
        if let Some(page) = self.key() {
            // SAFETY: it is the page of a key.
            unsafe { seal::forget_key(page) };
        }
        for word in [&self.inherited, &self.shared, &self.seen_by_child] {
            word.store(0, Relaxed);
        }
        self.mapped.swap(0, AcqRel)
    }

    /// The page that has its key, or its own number where it is not sealed, once there was one.
    pub(super) fn key(&self) -> Option<usize> {
        Some(self.key.load(Acquire)).filter(|&page| page != 0)
    }

    /// The same, made if there was none. Background thread only.
    pub(super) fn key_page(&self) -> Result<usize> {
        if let Some(page) = self.key() {
            return Ok(page);
        }
        let page = seal::make_page()?;
        self.key.store(page, Release);
        Ok(page)
    }
}

/// All of them. Made from zeros.
pub struct Files {
    files: [File; FILES],
    /// The way to them where they lie on the network. Without a disk beneath it the files that are open are empty then, and say who may read.
    pub remote: Remote,
}

impl Files {
    /// The file of that number.
    pub fn get(&self, number: usize) -> &File {
        &self.files[number % FILES]
    }

    /// All that there are, with their numbers.
    pub fn all(&self) -> impl Iterator<Item = (usize, &File)> {
        self.files.iter().enumerate().filter(|(_, file)| file.is_there())
    }

    /// The numbers of those that there are not.
    pub fn vacant(&self) -> impl Iterator<Item = usize> + use<'_> {
        (0..FILES).filter(|&number| !self.files[number].is_there())
    }

    /// Whether clusters lie in the files that are open.
    pub fn are_on_disk(&self) -> bool {
        !self.remote.is_on() || self.remote.is_over_disk()
    }

    /// Fetches what was put there from the files that are open.
    pub fn fetch_from_disk(&self, place: Place, out: &mut [u8]) -> Result<()> {
        let file = self.get(place.file());
        inject::spoiled(Point::TierRead, out, |out| match file.descriptor() {
            Some(fd) => file::read_all_at(fd, out, place.offset()),
            None => match file.mapped.load(Acquire) {
                0 => Err(Errno(libc::EBADF)),
                base => mem::read_mapped(base + place.offset() as usize, out),
            },
        })
    }

    /// A child may have been forked. In the parent, before anything else is written.
    pub fn share(&self) {
        self.files.iter().for_each(File::share);
    }

    /// In a forked child.
    pub fn inherit(&self) {
        self.files.iter().for_each(File::inherit);
        self.remote.reset_in_child();
    }
}

impl Tier for Files {
    fn put(&self, place: Place, bytes: &[u8]) -> Result<()> {
        let file = self.get(place.file());
        let fd = file.descriptor().ok_or(Errno(libc::EBADF))?;
        if let Some(error) = inject::error(Point::TierWrite) {
            return Err(error);
        }
        if self.are_on_disk() {
            file::write_all_at(fd, bytes, place.offset())?;
        }
        if self.remote.is_on() {
            let kept = self.remote.put(file.name(), place, bytes);
            // What an engine does not take lies on the disk beneath it.
            if !self.are_on_disk() || planted(Bug::DiskNotBeneath) {
                return kept;
            }
        }
        Ok(())
    }

    fn fetch(&self, place: Place, out: &mut [u8]) -> Result<()> {
        if !self.remote.is_on() {
            return self.fetch_from_disk(place, out);
        }
        let file = self.get(place.file());
        inject::spoiled(Point::TierRead, out, |out| match file.is_there() {
            true => self.remote.fetch(file.name(), place, out),
            false => Err(Errno(libc::EBADF)),
        })
    }
}
