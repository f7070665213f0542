use super::*;
use crate::tier::clusters::MOST_BLOCKS;
use std::{format, vec::Vec};
use tempfile::TempDir;

/// Files on a disk, and who keeps them. Nothing is written there.
struct Disk {
    keeper: Keeper,
    files: &'static Files,
    pool: Pool,
    now: Nanos,
    _directory: TempDir,
}

impl Disk {
    fn new() -> Disk {
        crate::sabotage::choose(None);
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let choice = format!("disk={},size=1G", directory.path().display());
        let mut keeper = Keeper::new(&Choice::parse(&choice).unwrap());
        let pool = Pool::new();
        // SAFETY: zeros are no files.
        let files: &'static Files = unsafe { pool.make_sparse() }.unwrap();
        keeper.begin(files, &pool).unwrap();
        Disk { keeper, files, pool, now: Nanos(0), _directory: directory }
    }

    /// The largest place that there is.
    fn reserve(&mut self) -> Result<Place> {
        self.keeper.reserve(self.files, &self.pool, MOST_BLOCKS)
    }

    /// The same for what moves.
    fn reserve_other(&mut self) -> Result<Place> {
        let emptied = self.keeper.to_empty(self.files);
        self.keeper.reserve_other(self.files, &self.pool, MOST_BLOCKS, emptied)
    }

    fn give_up(&mut self, place: Place) {
        self.keeper.give_up(self.files, place);
    }

    /// All children have ended, and the keeper has looked: first for another open file than theirs, then for who has it.
    fn children_end(&mut self) {
        self.look();
        self.look();
        assert!(self.files.all().all(|(_, file)| !file.is_shared()));
    }

    /// A fork after which something goes down while the child lives.
    fn fork(&mut self) -> Result<Place> {
        self.files.share();
        self.reserve()
    }

    /// Who has the file that is filled locked, as a child has that is forked now, until this is dropped.
    fn child(&self) -> Fd {
        let fd = self.files.get(self.keeper.filled.unwrap()).descriptor().unwrap();
        // SAFETY: it stays open.
        open_again(&ManuallyDrop::new(unsafe { Fd::from_raw(fd) })).unwrap()
    }

    /// The keeper looks again for who has the files.
    fn look(&mut self) {
        self.now = self.now + ASK_AGAIN;
        self.keeper.look_after(self.files, self.now);
    }

    fn count(&self) -> usize {
        self.files.all().count()
    }
}

#[test]
fn files_that_were_left_are_filled_again_once_no_child_has_them() {
    let mut disk = Disk::new();
    disk.reserve().unwrap();
    while disk.fork().is_ok() {}
    let count = disk.count();
    assert!(count > MOST && disk.reserve().is_err());
    disk.children_end();
    disk.reserve().unwrap();
    assert_eq!(disk.count(), count);
}

#[test]
fn the_last_segment_of_a_file_that_was_left_is_sparse_and_goes_back_like_any_other() {
    let mut disk = Disk::new();
    let places: Vec<Place> = (0..SEGMENT_BLOCKS / MOST_BLOCKS + 1).map(|_| disk.reserve().unwrap()).collect();
    let last = *places.last().unwrap();
    assert_eq!(last.segment(), 1);
    let filled = disk.fork().unwrap();
    assert_ne!(filled.file(), last.file());
    disk.children_end();
    let is_sparse = |disk: &Disk, place| disk.keeper.is_sparse(disk.files, place);
    assert!(is_sparse(&disk, last) && !is_sparse(&disk, places[0]) && !is_sparse(&disk, filled));
    let bytes = disk.keeper.file_bytes();
    disk.give_up(last);
    assert_eq!(disk.keeper.file_bytes(), bytes - SEGMENT as u64);
    // What goes to that file next, as the other one can be filled no more, has a segment that is held.
    disk.files.get(filled.file()).set_descriptor(None);
    let again = disk.reserve().unwrap();
    assert_eq!((again.file(), disk.keeper.file_bytes()), (last.file(), bytes));
}

#[test]
fn where_there_are_many_files_the_smallest_is_emptied_whoever_has_it_and_there_is_a_file_to_move_to() {
    let mut disk = Disk::new();
    let small = disk.reserve().unwrap().file();
    while disk.keeper.to_empty(disk.files).is_none() {
        disk.fork().unwrap();
        disk.reserve().unwrap();
    }
    assert_eq!((disk.count(), disk.keeper.to_empty(disk.files)), (MOST_OWN + 1, Some(small)));
    while disk.fork().is_ok() {}
    let (count, least) = (disk.count(), disk.keeper.to_empty(disk.files).unwrap());
    assert!(count < FILES);
    let to = disk.reserve_other().unwrap();
    assert!(to.file() != least && disk.count() == count + 1);
}

#[test]
fn what_leaves_a_file_that_is_emptied_does_not_move_to_that_file() {
    let mut disk = Disk::new();
    while disk.keeper.to_empty(disk.files).is_none() {
        disk.fork().unwrap();
    }
    let emptied = disk.keeper.to_empty(disk.files).unwrap();
    // A child that has the file that is filled, and the one that is to go no more.
    disk.files.share();
    disk.files.get(emptied).is_alone();
    let to = disk.reserve_other().unwrap();
    assert!(to.file() != emptied && disk.keeper.to_empty(disk.files) == Some(emptied));
}

#[test]
fn forks_one_after_another_do_not_take_the_files_for_what_moves() {
    let mut disk = Disk::new();
    disk.reserve().unwrap();
    while disk.fork().is_ok() {}
    disk.look();
    for _ in 0..2 * SPARE {
        if disk.keeper.may_move(disk.files) {
            disk.reserve_other().unwrap();
        }
        disk.files.share();
    }
    assert_eq!(disk.count(), FILES - SPARE + 1);
    disk.look();
    assert!(disk.keeper.may_move(disk.files) && disk.reserve_other().is_ok());
}

#[test]
fn a_child_has_no_file_of_its_parents_in_which_there_is_nothing() {
    let mut disk = Disk::new();
    disk.reserve().unwrap();
    // One that is filled, and empty.
    let place = disk.fork().unwrap();
    disk.give_up(place);
    assert_eq!(disk.count(), 2);
    disk.files.inherit();
    disk.keeper.inherit(disk.files);
    assert_eq!(disk.count(), 1);
    assert!(disk.files.all().all(|(_, file)| file.is_inherited()));
}

#[test]
fn what_parents_have_is_copied_only_where_files_run_out_and_within_what_the_child_may_take() {
    let mut disk = Disk::new();
    disk.reserve().unwrap();
    while disk.count() < MOST {
        disk.fork().unwrap();
    }
    disk.keeper.take_share(1 << 30);
    disk.files.inherit();
    disk.keeper.inherit(disk.files);
    disk.keeper.take_share(1 << 30);
    assert_eq!(disk.keeper.to_empty(disk.files), None);
    disk.reserve().unwrap();
    let least = disk.keeper.to_empty(disk.files).unwrap();
    assert!(disk.files.get(least).is_inherited());
    disk.keeper.take_share(0);
    assert_eq!(disk.keeper.to_empty(disk.files), None);
}

#[test]
fn what_is_left_to_a_child_counts_until_the_child_has_it_no_more() {
    let mut disk = Disk::new();
    let place = disk.reserve().unwrap();
    let child = disk.child();
    disk.fork().unwrap();
    disk.give_up(place);
    disk.look();
    disk.look();
    assert_eq!((disk.count(), disk.keeper.file_bytes()), (1, 2 * SEGMENT as u64));
    drop(child);
    disk.look();
    assert_eq!((disk.count(), disk.keeper.file_bytes()), (1, SEGMENT as u64));
}

#[test]
fn however_many_files_are_left_to_children_all_of_them_count() {
    let mut disk = Disk::new();
    let mut place = disk.reserve().unwrap();
    let mut segments = 1;
    // As many as can be kept in view, and then as there can be open.
    while let Ok(next) = disk.fork() {
        disk.give_up(place);
        (place, segments) = (next, segments + 1);
        assert_eq!(disk.keeper.file_bytes(), segments * SEGMENT as u64);
    }
    assert!(disk.count() > MOST && disk.keeper.to_empty(disk.files).is_none());
    disk.children_end();
    assert_eq!((disk.count(), disk.keeper.file_bytes()), (1, SEGMENT as u64));
}

#[test]
fn what_children_have_is_copied_only_within_what_the_tier_may_take() {
    let mut disk = Disk::new();
    while disk.keeper.to_empty(disk.files).is_none() {
        disk.fork().unwrap();
    }
    disk.keeper.size = disk.keeper.file_bytes();
    assert_eq!(disk.keeper.to_empty(disk.files), None);
    disk.children_end();
    assert!(disk.keeper.to_empty(disk.files).is_some());
}
