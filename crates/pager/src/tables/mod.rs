//! What the pager knows of the program's address space: extents with their pages' entries, and how they are found.
//!
//! What it is not: what anybody does with them. It uses nothing above it but the lock and the codecs' names in entries.

pub(crate) mod bitmap;
pub(crate) mod bounds;
pub(crate) mod entries;
pub(crate) mod entry;
pub(crate) mod extent;
pub(crate) mod pool;
pub(crate) mod reservations;
pub(crate) mod space;
pub(crate) mod young;
