//! Keeping the files of a tier: what is free in them, when there is a new one, and when one can go.
//!
//! A file is a row of segments of 1 MiB, filled one after another. A segment in which nothing is wanted any more is given back to the file
//! system, and filled again. After a fork the child may read what lay in the files then: nothing of them is given back or overwritten until
//! it is known that no child has them. What goes down meanwhile goes to another file: one that was left so before and that no child has any
//! more, or a new one.
//!
//! There are [`FILES`] at most, and a forked child begins with its parent's. So where there are many, the smallest is emptied: what is in it
//! moves to the file that is filled ([`crate::evict::compact`]). A child that has it finds everything where it lay, and what it takes counts for as long
//! ([`super::left`]).
//!
//! Background thread only, which a fork finds standing still.

use super::choice::Choice;
use super::clusters::{Place, FILES, FILE_BLOCKS, SEGMENT_BLOCKS, SEQUENCES};
use super::files::{File, Files};
use super::left::Left;
use super::seal;
use super::wire::{Name, NameText, Op};
use super::BLOCK;
use crate::codec::DICTIONARIES;
use crate::file_path::FilePath;
use crate::sabotage::{fault_point, planted, Bug};
use crate::tables::pool::Pool;
use crate::text::Line;
use core::fmt::Write;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU16, Ordering::*};
use memfold_sys::file::{self, Fd};
use memfold_sys::time::Nanos;
use memfold_sys::{mem, random, Errno, Result};

/// Bytes of a segment.
const SEGMENT: usize = SEGMENT_BLOCKS * BLOCK;
const SEGMENTS: usize = FILE_BLOCKS / SEGMENT_BLOCKS;
/// How often it is asked whether children still have a file.
const ASK_AGAIN: Nanos = Nanos::from_millis(500);
/// How many times its size a file is mapped of which no segment is filled again.
const GROWTH: usize = 8;
/// Segments that may be held however little of them is wanted.
const FEW: u64 = 4;
/// A segment is sparse where no more than one block in so many is wanted, and the tier wasteful where one in [`WASTE`] of all is.
const SPARSE: usize = 4;
const WASTE: u64 = 2;
/// Where there are more files of its own, or more with those of its parents, the smallest is emptied.
const MOST_OWN: usize = FILES / 2;
const MOST: usize = FILES / 4 * 3;
/// So many files are opened for what moves alone, without which none could be emptied any more.
const SPARE: usize = 4;
/// Random numbers that are tried as names, where the file system has no files without one.
const NAMES: usize = 8;

/// More of a file is not mapped.
const END_OF_FILE: Errno = Errno(libc::EFBIG);

/// How often a lock is tried that somebody else has for a moment.
const LOCK_TRIES: usize = 10_000;

/// Set for a segment that was filled and not given back to the file system since.
const HELD: u16 = 1 << 15;

/// By segment how many of its blocks are wanted, with [`HELD`].
#[repr(C)]
struct Segments([AtomicU16; SEGMENTS]);

impl Segments {
    fn is_empty(&self, segment: usize) -> bool {
        self.0[segment].load(Relaxed) & !HELD == 0
    }

    fn is_held(&self, segment: usize) -> bool {
        self.0[segment].load(Relaxed) & HELD != 0
    }
}

/// What the background thread knows of a file.
#[derive(Clone, Copy, Default)]
struct State {
    segments: Option<&'static Segments>,
    /// How many segments it has, the one that is filled, and the next block there.
    count: usize,
    current: usize,
    next: usize,
    /// Bytes of it that are mapped: no more of it is filled.
    len: usize,
    /// Where a segment to be filled again is looked for first.
    cursor: usize,
    /// Clusters in it, and how many were ever written.
    clusters: u64,
    sequence: u32,
}

/// Within what a place is found: what all files may take, how many numbers of files are left alone, and the file that is emptied.
#[derive(Clone, Copy)]
struct Bounds {
    size: u64,
    spare: usize,
    emptied: Option<usize>,
}

/// The keeper.
pub struct Keeper {
    /// The directory of its files, or the engine.
    name: FilePath,
    /// The directory of its files, where there is one.
    directory: FilePath,
    size: u64,
    /// Whether what goes to files that are made from now on is sealed.
    sealed: bool,
    /// Bytes of that which are this process's, where it shares the tier with others.
    share: Option<u64>,
    /// How long a page must have been stored.
    pub after: Nanos,
    files: [State; FILES],
    /// The file that is filled.
    filled: Option<usize>,
    /// Segments of this process's files that are held, and blocks of them that are wanted.
    held: u64,
    wanted: u64,
    left: Left,
    /// How many clusters need each dictionary.
    needed: [u64; DICTIONARIES],
    asked: Nanos,
}

impl Keeper {
    /// For this tier. Nothing is opened yet.
    pub fn new(choice: &Choice<'_>) -> Keeper {
        Keeper {
            // A path that is too long names nothing, and opening says so.
            name: FilePath::of(choice.name()).unwrap_or(FilePath::empty()),
            directory: directory_of(choice),
            size: choice.size,
            sealed: choice.sealed,
            share: None,
            after: choice.after,
            files: [State::default(); FILES],
            filled: None,
            held: 0,
            wanted: 0,
            left: Left::NONE,
            needed: [0; DICTIONARIES],
            asked: Nanos(0),
        }
    }

    /// Takes another size and age. What is there already stays, also where it is more.
    pub fn change(&mut self, choice: &Choice<'_>) {
        (self.size, self.after) = (choice.size, choice.after);
    }

    /// Takes the tier from now on that could not be opened before: nothing is in any.
    pub fn replace(&mut self, choice: &Choice<'_>) {
        self.name = FilePath::of(choice.name()).unwrap_or(FilePath::empty());
        self.directory = directory_of(choice);
        self.sealed = choice.sealed;
        self.change(choice);
    }

    /// The tier is one that others have too, of which this process may take so many bytes. Whether that is more than before.
    pub fn take_share(&mut self, bytes: u64) -> bool {
        self.share.replace(bytes) < Some(bytes)
    }

    /// The process has the tier for itself.
    pub fn have_it_all(&mut self) {
        self.share = None;
    }

    /// Whether others have the tier too.
    pub fn is_shared(&self) -> bool {
        self.share.is_some()
    }

    /// Whether this process may take another segment.
    pub fn has_room(&self) -> bool {
        self.file_bytes() + SEGMENT as u64 <= self.allowed()
    }

    /// Bytes that its files take beyond what they may; a segment that is being filled, and one for what moves, do not count.
    pub fn excess(&self) -> u64 {
        self.file_bytes().saturating_sub(self.allowed() + 2 * SEGMENT as u64)
    }

    /// Bytes that its files may take.
    fn allowed(&self) -> u64 {
        let share = self.share.filter(|_| !planted(Bug::ShareUnheard));
        share.map_or(self.size, |share| share.min(self.size))
    }

    /// Where it is, for people.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Bytes of the files that are this process's, or were and are its children's still: segments that hold anything.
    pub fn file_bytes(&self) -> u64 {
        (self.held + self.left.segments()) * SEGMENT as u64
    }

    /// Whether a cluster needs the dictionary of that number.
    pub fn needs(&self, dictionary: u8) -> bool {
        self.needed[usize::from(dictionary)] != 0
    }

    /// A cluster came that needs these, a bit each; or one goes.
    pub fn note_dictionaries(&mut self, dictionaries: u16, comes: bool) {
        for (number, needed) in self.needed.iter_mut().enumerate() {
            if dictionaries >> number & 1 != 0 {
                *needed = if comes { *needed + 1 } else { *needed - 1 };
            }
        }
    }

    /// Whether much of what its files take is wanted by nobody.
    pub fn is_wasteful(&self) -> bool {
        self.held > FEW && self.wanted * WASTE < self.held * SEGMENT_BLOCKS as u64
    }

    /// Whether a cluster that lies there keeps a segment from going of which little is wanted.
    pub fn is_sparse(&self, files: &Files, place: Place) -> bool {
        let (state, segment) = (&self.files[place.file()], place.segment());
        let file = files.get(place.file());
        let wanted = |segments: &Segments| usize::from(segments.0[segment].load(Relaxed) & !HELD);
        file.descriptor().is_some()
            && !file.is_shared()
            && !self.is_filled(place.file(), segment)
            && state.segments.is_some_and(|segments| wanted(segments) * SPARSE <= SEGMENT_BLOCKS)
    }

    /// The file out of which all clusters are to move, where there are many files: the one that has the fewest. It goes once nothing of this process's is
    /// there. What a parent or a child has takes as much as before when it was copied: that goes only as far as there is room.
    pub fn to_empty(&self, files: &Files) -> Option<usize> {
        let all = files.all().count();
        let own = files.all().filter(|(_, file)| !file.is_inherited()).count();
        let may_copy = self.has_room() && self.left.has_place();
        let may_go = |&(number, file): &(usize, &File)| {
            let are_many = all > MOST || own > MOST_OWN && !file.is_inherited();
            let is_ours_alone = !file.is_inherited() && !file.is_shared();
            are_many && self.filled != Some(number) && (is_ours_alone || may_copy)
        };
        let least = files.all().filter(may_go).min_by_key(|&(number, _)| self.files[number].clusters);
        least.map(|(number, _)| number)
    }

    /// Whether clusters may move. Not when a fork has just been, whose child has the file that is filled: were each fork followed by another file for
    /// what moves, many at once would leave none.
    pub fn may_move(&self, files: &Files) -> bool {
        !files.all().any(|(_, file)| !file.is_inherited() && file.is_seen_by_child())
    }

    /// A place for a cluster of so many blocks. `ENOSPC` where the tier may take no more, and what opening a file answers.
    pub fn reserve(&mut self, files: &Files, pool: &Pool, blocks: usize) -> Result<Place> {
        self.reserve_within(files, pool, blocks, Bounds { size: self.allowed(), spare: SPARE, emptied: None })
    }

    /// The same for one that lies elsewhere in the tier, and leaves there: also where the tier is full, but not in the file that is emptied.
    pub fn reserve_other(
        &mut self,
        files: &Files,
        pool: &Pool,
        blocks: usize,
        emptied: Option<usize>,
    ) -> Result<Place> {
        let size = self.allowed().max(self.file_bytes()) + SEGMENT as u64;
        self.reserve_within(files, pool, blocks, Bounds { size, spare: 0, emptied })
    }

    fn reserve_within(&mut self, files: &Files, pool: &Pool, blocks: usize, bounds: Bounds) -> Result<Place> {
        let number = self.find_room(files, pool, blocks, bounds)?;
        let state = &mut self.files[number];
        let block = state.current * SEGMENT_BLOCKS + state.next;
        state.next += blocks;
        let place = Place::new(number, block, blocks, state.sequence);
        state.sequence += 1;
        state.clusters += 1;
        self.wanted += blocks as u64;
        if let Some(segments) = state.segments {
            segments.0[state.current].fetch_add(blocks as u16, Relaxed);
        }
        Ok(place)
    }

    /// The file that is filled from now on, with room for so many blocks in its segment: as before, or one that was left, or a new one.
    fn find_room(&mut self, files: &Files, pool: &Pool, blocks: usize, bounds: Bounds) -> Result<usize> {
        for number in self.filled.into_iter().chain(0..FILES) {
            if bounds.emptied == Some(number) || !self.may_fill(files, number) {
                continue;
            }
            let found = self.make_room(files, number, blocks, bounds.size);
            if found != Err(END_OF_FILE) {
                if self.filled != Some(number) {
                    self.leave_filled(files);
                    self.filled = Some(number);
                }
                return found.map(|()| number);
            }
        }
        self.leave_filled(files);
        let number = self.open(files, pool, bounds.spare)?;
        self.filled = Some(number);
        self.make_room(files, number, blocks, bounds.size)?;
        Ok(number)
    }

    fn may_fill(&self, files: &Files, number: usize) -> bool {
        let file = files.get(number);
        let open = file.is_there() && file.descriptor().is_some();
        open && (!file.is_shared() || planted(Bug::SharedFileFilled))
            && self.files[number].sequence < SEQUENCES - 1
    }

    /// Has so many blocks fit into the current segment of the file. `EFBIG` where all of the file is in use.
    fn make_room(&mut self, files: &Files, number: usize, blocks: usize, size: u64) -> Result<()> {
        let State { current, next, .. } = self.files[number];
        if current != usize::MAX && next + blocks <= SEGMENT_BLOCKS {
            return Ok(());
        }
        self.begin_segment(files, number, size)
    }

    /// The file that is filled is so no more.
    fn leave_filled(&mut self, files: &Files) {
        if let Some(old) = self.filled.take() {
            self.close_if_unused(files, old);
        }
    }

    /// Whether the next clusters go to that segment.
    fn is_filled(&self, number: usize, segment: usize) -> bool {
        self.filled == Some(number) && self.files[number].current == segment
    }

    /// Has the next clusters go to another segment: an empty one, or one more.
    fn begin_segment(&mut self, files: &Files, number: usize, size: u64) -> Result<()> {
        let before = core::mem::replace(&mut self.files[number].current, usize::MAX);
        self.give_back_if_empty(files, number, before);
        let state = &mut self.files[number];
        let Some(segments) = state.segments else { return Err(Errno::EINVAL) };
        // On the network none is filled again: that it is to be forgotten may arrive late.
        let again = !files.remote.is_on() || planted(Bug::SegmentFilledAgain);
        let free = |&segment: &usize| again && segments.0[segment].load(Relaxed) == 0;
        let found = (state.cursor..state.count).chain(0..state.cursor).find(free);
        let segment = found.unwrap_or(state.count);
        if segment == SEGMENTS {
            return Err(END_OF_FILE);
        }
        if self.file_bytes() + SEGMENT as u64 > size {
            return Err(Errno(libc::ENOSPC));
        }
        // A child reads where it is mapped. On the network alone nothing is.
        if files.are_on_disk()
            && (segment + 1) * SEGMENT > self.files[number].len
            && !planted(Bug::FilledPastMap)
        {
            return Err(END_OF_FILE);
        }
        let state = &mut self.files[number];
        segments.0[segment].store(HELD, Relaxed);
        self.held += 1;
        state.count = state.count.max(segment + 1);
        (state.current, state.cursor, state.next) = (segment, segment + 1, 0);
        Ok(())
    }

    /// A place is needed no more.
    pub fn give_up(&mut self, files: &Files, place: Place) {
        let (number, file) = (place.file(), files.get(place.file()));
        let state = &mut self.files[number];
        state.clusters -= 1;
        if file.descriptor().is_some() {
            self.wanted -= place.blocks() as u64;
        }
        let segment = place.segment();
        if let Some(segments) = state.segments {
            segments.0[segment].fetch_sub(place.blocks() as u16, Relaxed);
        }
        self.give_back_if_empty(files, number, segment);
        self.close_if_unused(files, number);
    }

    /// Gives a segment back to the file system in which nothing is wanted, unless a child may want it or it is being filled.
    fn give_back_if_empty(&mut self, files: &Files, number: usize, segment: usize) {
        let file = files.get(number);
        let (Some(segments), Some(fd)) = (self.files[number].segments, file.descriptor()) else { return };
        if segment < SEGMENTS
            && segments.is_held(segment)
            && segments.is_empty(segment)
            && !self.is_filled(number, segment)
            && (!file.is_shared() || planted(Bug::SharedFileFilled))
        {
            if files.remote.is_on() {
                files.remote.tell(Op::Forget, file.name(), segment, 1);
            }
            if files.are_on_disk() {
                let _ = file::punch(fd, (segment * SEGMENT) as u64, SEGMENT as u64);
            }
            segments.0[segment].store(0, Relaxed);
            self.held -= 1;
            let state = &mut self.files[number];
            if state.current == segment {
                state.current = usize::MAX;
            }
        }
    }

    /// A new file: open, mapped for children, and with a key. `ENOSPC` where only so many could be there besides.
    fn open(&mut self, files: &Files, pool: &Pool, spare: usize) -> Result<usize> {
        // The numbers of clusters go on, so that no two places are ever alike.
        let unused = |&number: &usize| self.files[number].sequence < SEQUENCES - 1;
        let number = files.vacant().filter(unused).nth(spare).ok_or(Errno(libc::ENOSPC))?;
        let segments = match self.files[number].segments {
            Some(segments) => segments,
            // SAFETY: zeros are segments that hold nothing.
            None => unsafe { pool.make_sparse::<Segments>() }?,
        };
        let (mut name, mut mark) = (Name::default(), None);
        if files.remote.is_on() {
            random::fill(&mut name)?;
            mark = Some(make_mark(files.remote.directory(), name)?);
        }
        let fd = match mark.take_if(|_| !files.are_on_disk()) {
            Some(mark) => mark,
            None => make(&self.directory)?,
        };
        let reader = open_again(&fd)?;
        if !files.are_on_disk() {
            // Without a lock nobody would know who may still read it.
            file::lock_shared(reader.raw())?;
        }
        let len = self.map_len(files);
        let base = mem::map_own_file(reader.raw(), len, libc::MAP_NORESERVE)?;
        let file = files.get(number);
        // SAFETY: the key of a file that there is not is used by nobody.
        let made = file.key_page().and_then(|page| unsafe { seal::make_key(page) });
        let mark = match made.and_then(|()| mark.as_ref().map_or(Ok(0), map_mark)) {
            Ok(mark) => mark,
            Err(error) => {
                // SAFETY: mapped just now, and known to nobody.
                let _ = unsafe { mem::munmap(base, len) };
                return Err(error);
            }
        };
        file.mark.store(mark, Relaxed);
        file.set_name(name);
        // Nothing leaves the machine unsealed, whatever anybody says.
        file.set_sealed(self.sealed || files.remote.is_on());
        files.remote.tell(Op::Own, name, 0, 0);
        file.set_descriptor(Some(fd.into_raw()));
        file.set_reader(Some(reader.into_raw()));
        file.mapped.store(base, Release);
        let sequence = self.files[number].sequence;
        self.files[number] =
            State { segments: Some(segments), current: usize::MAX, sequence, len, ..State::default() };
        Ok(number)
    }

    /// Opens the first file, to see that there can be one.
    pub fn begin(&mut self, files: &Files, pool: &Pool) -> Result<()> {
        self.filled = Some(self.open(files, pool, 0)?);
        Ok(())
    }

    fn map_len(&self, files: &Files) -> usize {
        // On the network no segment is filled again, so that a file grows past what is held of it.
        let times = if files.remote.is_on() { GROWTH } else { 1 };
        // With room for what moves while the tier is full.
        ((times * self.size as usize).next_multiple_of(SEGMENT) + SEGMENT).min(FILE_BLOCKS * BLOCK)
    }

    /// Closes a file in which nothing is wanted any more, unless it is filled, or is one that children may have and has to stay in view.
    fn close_if_unused(&mut self, files: &Files, number: usize) {
        let may_close = files.get(number).descriptor().is_none()
            || !files.get(number).is_shared()
            || self.left.has_place();
        if may_close && self.files[number].clusters == 0 && self.filled != Some(number) {
            self.close(files, number);
        }
    }

    fn close(&mut self, files: &Files, number: usize) {
        let file = files.get(number);
        let State { segments, count, sequence, len, .. } = self.files[number];
        files.remote.tell(Op::Leave, file.name(), 0, 0);
        // SAFETY: opened by us, and nobody else closes it.
        let own = |fd: i32| unsafe { Fd::from_raw(fd) };
        if let Some(fd) = file.descriptor().map(own) {
            let is_held = |segment: &usize| segments.is_some_and(|segments| segments.is_held(*segment));
            let held = (0..count).filter(is_held).count() as u64;
            self.held -= held;
            file.set_descriptor(None);
            drop(file.reader().map(own));
            file.set_reader(None);
            if file.is_shared() && held > 0 {
                self.left.add(fd, held);
            }
        }
        let base = file.clear();
        // SAFETY: no entry names anything in it. Who reads there all the same finds that out.
        let _ = unsafe { mem::munmap(base, len) };
        unmap_mark(file.mark.swap(0, Relaxed));
        if let Some(segments) = segments {
            segments.0[..count].iter().for_each(|segment| segment.store(0, Relaxed));
        }
        self.files[number] = State { segments, current: usize::MAX, sequence, ..State::default() };
    }

    /// Nothing more goes down: closes what nothing is in.
    pub fn end(&mut self, files: &Files) {
        self.filled = None;
        for (number, _) in files.all() {
            self.close_if_unused(files, number);
        }
    }

    /// Looks whether files that were shared with children, or left to them, are so still, now and then.
    pub fn look_after(&mut self, files: &Files, now: Nanos) {
        if now.since(self.asked) < ASK_AGAIN {
            return;
        }
        self.asked = now;
        if files.remote.is_on() && files.remote.tend() && !planted(Bug::KeptUntold) {
            self.tell_again(files);
        }
        self.left.look_after();
        for (number, file) in files.all().filter(|(_, file)| !file.is_inherited() && file.is_shared()) {
            let Some(fd) = file.descriptor() else { continue };
            if file.is_seen_by_child() {
                self.map_anew(file, fd, self.files[number].len);
            } else if file.reader().is_some_and(|reader| file::is_alone(fd, reader)) {
                file.is_alone();
                self.give_back_empty(files, number);
            }
            self.close_if_unused(files, number);
        }
    }

    /// Tells a process beside that is there anew of everything that it is to keep; of what a parent has put there too.
    fn tell_again(&self, files: &Files) {
        for (number, file) in files.all() {
            let State { segments, count, .. } = self.files[number];
            let Some(segments) = segments else { continue };
            if !files.remote.tell(Op::Own, file.name(), 0, 0) {
                return;
            }
            // How many it ever had: what was to be forgotten meanwhile is deleted with the rest at the end.
            files.remote.tell(Op::Keep, file.name(), count, 0);
            let mut at = 0;
            while let Some(first) = (at..count).find(|&segment| segments.is_held(segment)) {
                at = (first..count).find(|&segment| !segments.is_held(segment)).unwrap_or(count);
                files.remote.tell(Op::Keep, file.name(), first, at - first);
            }
        }
    }

    /// Maps an open file that no child has in the place of the one that children have.
    fn map_anew(&mut self, file: &File, fd: i32, len: usize) {
        // SAFETY: it stays open.
        let writer = ManuallyDrop::new(unsafe { Fd::from_raw(fd) });
        let Ok(reader) = open_again(&writer) else { return };
        let base = file.mapped.load(Relaxed);
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: this process reads its own files by their descriptors, and no fork is under way, which finds either mapping.
        if unsafe { mem::mmap(base, len, libc::PROT_READ, flags, reader.raw(), 0) }.is_ok() {
            let old = file.reader();
            file.set_reader(Some(reader.into_raw()));
            if let Some(old) = old {
                // SAFETY: opened by us, and nobody else closes it. A child that has it mapped keeps it open, and locked.
                drop(unsafe { Fd::from_raw(old) });
            }
            file.is_seen_alone();
        }
    }

    /// Gives back what has come to be wanted by nobody while a child might have wanted it.
    fn give_back_empty(&mut self, files: &Files, number: usize) {
        for segment in 0..self.files[number].count {
            self.give_back_if_empty(files, number, segment);
        }
    }

    /// In a forked child: what there is is its parent's.
    pub fn inherit(&mut self, files: &Files) {
        self.leave_filled(files);
        (self.held, self.wanted, self.left) = (0, 0, Left::NONE);
        // What it may take of a tier that is shared it has yet to be told.
        fault_point!(ShareInherited: self.share = self.share.map(|_| 0));
    }
}

/// A path that is too long names nothing, as none at all does, and opening says so.
fn directory_of(choice: &Choice<'_>) -> FilePath {
    choice.directory().and_then(FilePath::of).unwrap_or(FilePath::empty())
}

/// Maps a mark, and has it locked for as long as this process or a child of it lives and has it mapped. Nobody reads there.
fn map_mark(mark: &Fd) -> Result<usize> {
    let reader = open_again(mark)?;
    // Without a lock nobody would know who may still read what it stands for.
    file::lock_shared(reader.raw())?;
    mem::map_own_file(reader.raw(), BLOCK, libc::MAP_NORESERVE)
}

fn unmap_mark(mark: usize) {
    if mark != 0 {
        // SAFETY: our own mapping, which nobody reads.
        let _ = unsafe { mem::munmap(mark, BLOCK) };
    }
}

/// Opens an open file once more, with a lock that lasts for as long as anybody has it open or mapped. Where there are no locks, a file is
/// never known to be in nobody's hands but ours.
fn open_again(fd: &Fd) -> Result<Fd> {
    let mut path = Line::new();
    let _ = write!(path, "/proc/thread-self/fd/{}", fd.raw());
    let path = FilePath::of(path.as_str()).ok_or(Errno::EINVAL)?;
    let other = file::open(path.as_c_str(), libc::O_RDONLY, 0)?;
    // Somebody else may be asking at this moment whether anybody has it.
    let _ = (0..LOCK_TRIES).try_for_each(|_| match file::lock_shared(other.raw()) {
        Err(Errno::EAGAIN) => Ok(()),
        done => Err(done),
    });
    Ok(other)
}

/// Makes a file that has no name, and of which the system keeps no copy in memory where it can do without.
fn make(directory: &FilePath) -> Result<Fd> {
    for direct in [libc::O_DIRECT, 0] {
        let flags = libc::O_TMPFILE | libc::O_RDWR | libc::O_EXCL;
        match file::open(directory.as_c_str(), flags | direct, 0o600) {
            // The file system knows no direct reads and writes.
            Err(Errno::EINVAL) if direct != 0 => {}
            // It knows no files without a name.
            Err(Errno(libc::EOPNOTSUPP) | Errno(libc::EISDIR)) => {
                return make_named(directory, libc::O_DIRECT)
            }
            other => return other,
        }
    }
    Err(Errno::EINVAL)
}

/// Makes the mark of a file on the network: it has nothing, and whoever may read what lies there has it locked.
fn make_mark(directory: &FilePath, name: Name) -> Result<Fd> {
    let mut text = Line::new();
    let _ = write!(text, "{}", NameText(name));
    let path = FilePath::joined(directory.as_str(), text.as_str()).ok_or(Errno::EINVAL)?;
    file::open(path.as_c_str(), libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_RDWR, 0o600)
}

/// The same where a file must have a name: for a moment.
fn make_named(directory: &FilePath, direct: i32) -> Result<Fd> {
    for _ in 0..NAMES {
        let mut random = [0u8; 8];
        random::fill(&mut random)?;
        let mut name = Line::new();
        let _ = write!(name, ".memfold-{:016x}", u64::from_le_bytes(random));
        let path = FilePath::joined(directory.as_str(), name.as_str()).ok_or(Errno::EINVAL)?;
        let path = path.as_c_str();
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_RDWR;
        match file::open(path, flags | direct, 0o600) {
            Ok(fd) => {
                file::remove(path)?;
                return Ok(fd);
            }
            Err(Errno::EEXIST) => {}
            Err(Errno::EINVAL) if direct != 0 => {
                // Some file systems have made it by then.
                let _ = file::remove(path);
                return make_named(directory, 0);
            }
            Err(error) => return Err(error),
        }
    }
    Err(Errno::EEXIST)
}

#[cfg(test)]
mod tests;
