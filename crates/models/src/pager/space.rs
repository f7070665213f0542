//! From an address to its extent, in a model: there is one.

use crate::tables::extent::Extent;
use crate::tables::pool::Pool;
use crate::world::BASE;
use memfold_sys::{Errno, Result, EXTENT_SIZE};

/// As in the pager.
pub const LIMIT: usize = 1 << 47;

/// The extent.
pub struct Space(pub &'static Extent);

impl Space {
    pub fn find(&self, addr: usize) -> Option<&'static Extent> {
        (BASE..BASE + EXTENT_SIZE).contains(&addr).then_some(self.0)
    }

    pub fn find_or_make(&self, addr: usize, _: &Pool) -> Result<&'static Extent> {
        self.find(addr).ok_or(Errno::EINVAL)
    }

    pub fn existing(&self, start: usize, end: usize) -> impl Iterator<Item = &'static Extent> {
        (start < BASE + EXTENT_SIZE && BASE < end).then_some(self.0).into_iter()
    }

    pub fn wake(&self, _: &Extent) {}

    pub fn all(&self) -> impl Iterator<Item = &'static Extent> {
        Some(self.0).into_iter()
    }
}
