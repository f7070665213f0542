//! The page entries of one extent, in groups that are made when a page of them leaves for the first time.
//!
//! An extent may hold a single page that is worth evicting. A table for all of its pages would take as much memory as that
//! page does, so only the groups that are needed have one.
//!
//! Invariants: a group, once made, stays for ever at its place; where there is none, every page is `Resident`, and nobody
//! writes an entry: pages leave `Resident` by the hands of the background thread alone, which makes their groups first. Who puts zeros where a page
//! was never there has what stands for such entries meanwhile ([`crate::tables::extent::Extent::hold_resident`]).

use crate::sync::{
    AtomicPtr,
    Ordering::{self, *},
};
use crate::tables::bitmap::PageSet;
use crate::tables::entry::AtomicEntry;
use crate::tables::pool::Pool;
use core::mem::offset_of;
use core::ops::Index;
use memfold_sys::{Result, EXTENT_PAGES};

/// Pages to a group: 512 bytes of entries.
pub const GROUP: usize = if EXTENT_PAGES < 64 { EXTENT_PAGES } else { 64 };
pub const GROUPS: usize = EXTENT_PAGES / GROUP;

type Group = [AtomicEntry; GROUP];

/// The entries. All-zero bytes are an extent of which every page is `Resident`.
#[repr(C)]
pub struct Entries {
    groups: [AtomicPtr<Group>; GROUPS],
    /// Stands for every page of a group that was never made.
    resident: AtomicEntry,
}

impl Entries {
    /// Where the addresses of the groups lie in its bytes.
    pub const GROUPS_AT: usize = offset_of!(Entries, groups);

    fn group(&self, index: usize, order: Ordering) -> Option<&Group> {
        // Acquire at least: pairs with the store in `make`, for the zeros.
        // SAFETY: groups stay for ever once made.
        unsafe { self.groups[index / GROUP].load(order).as_ref() }
    }

    /// The page's entry, if its group was made: SeqCst, for [`crate::tables::extent::Extent::hold_resident`].
    pub fn made_entry(&self, index: usize) -> Option<&AtomicEntry> {
        self.group(index, SeqCst).map(|group| &group[index % GROUP])
    }

    /// Makes the groups that these pages need. Under the extent's lock. Whether there was any to make.
    pub fn make(&self, pages: &PageSet, pool: &Pool) -> Result<bool> {
        let mut any = false;
        for (n, group) in self.groups.iter().enumerate() {
            let (lo, hi) = (n * GROUP, (n + 1) * GROUP);
            if self.group(lo, Acquire).is_none() && !pages.and(&PageSet::range(lo, hi)).is_empty() {
                // SAFETY: all-zero entries are `Resident`.
                let made = unsafe { pool.make::<Group>() }?;
                group.store(made as *const Group as *mut Group, SeqCst);
                any = true;
            }
        }
        Ok(any)
    }

    /// All of them, by page.
    pub fn iter(&self) -> impl Iterator<Item = &AtomicEntry> {
        (0..EXTENT_PAGES).map(|index| &self[index])
    }

    /// The pages that may be other than `Resident`, as far as that can be told without looking at entries.
    pub fn made(&self) -> impl Iterator<Item = usize> + '_ {
        (0..GROUPS)
            .filter(|n| self.group(n * GROUP, Acquire).is_some())
            .flat_map(|n| n * GROUP..(n + 1) * GROUP)
    }
}

impl Index<usize> for Entries {
    type Output = AtomicEntry;

    #[inline]
    fn index(&self, index: usize) -> &AtomicEntry {
        self.group(index, Acquire).map_or(&self.resident, |group| &group[index % GROUP])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::entry::{Entry, State};

    #[test]
    fn entries_are_made_for_the_pages_that_need_them_and_all_others_are_resident() {
        let pool = Pool::new();
        // SAFETY: zeros are the entries of pages that are all `Resident`.
        let entries = unsafe { pool.make::<Entries>() }.unwrap();
        assert_eq!(entries.made().count(), 0);
        let mut pages = PageSet::EMPTY;
        pages.insert(70);
        pages.insert(511);
        entries.make(&pages, &pool).unwrap();
        let used = pool.used_bytes();
        entries.make(&pages, &pool).unwrap();
        assert_eq!(pool.used_bytes(), used, "made twice");
        assert!(entries.made().eq((64..128).chain(448..512)));
        assert!(entries[70].transition(Entry::RESIDENT, Entry::new(State::Leaving)));
        for (index, entry) in entries.iter().enumerate() {
            let state = if index == 70 { State::Leaving } else { State::Resident };
            assert_eq!(entry.load().state(), state, "page {index}");
        }
    }
}
