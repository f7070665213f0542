//! Tiers below memory: where pages lie that have been compressed for long.
//!
//! Memory is the first tier ([`crate::store`]), and what lies there is *ready*: whoever wants the page reads it at once. What lies below is
//! *pending*: it must be fetched, which may take milliseconds, and the fault thread waits for nobody. It notes what is wanted, and the
//! [`thread`] of the tier fetches it, puts it in place and wakes who waits. [`location`] tells the two apart, and only a tier knows what its
//! locations mean.
//!
//! Pages go down and come back in clusters of up to [`CLUSTER`], which left together and lie in one piece: [`crate::evict::demote`] gathers them,
//! `clusters` knows where each is and which of its pages are still wanted, `seal` makes their bytes unreadable and unchangeable for
//! everybody else, or `checksum` finds out what changed by accident where a user wants no seal, and a [`Tier`] keeps them: [`files`] on a disk, [`remote`] on an engine in the network.
//!
//! What it is not: a decision. When a page goes down, [`crate::evict::demote`] says.
//!
//! Invariants: an entry names a cluster only after all of it was written; a cluster's place is not used again while an entry names it, or a
//! forked child's may. One thread reads and writes, so whoever has read a cluster, and then takes an entry that still names it at the same
//! place, has the right bytes.

pub mod arrived;
pub mod below;
pub mod bring;
pub mod checksum;
pub mod choice;
pub mod clusters;
pub mod early;
pub mod files;
pub mod keeper;
mod left;
pub mod location;
pub mod lost;
pub mod order;
pub mod reading;
pub mod remote;
pub mod round;
pub mod seal;
pub mod stream;
pub mod thread;
pub mod wire;

use crate::codec::MAX_STORED;
use memfold_sys::{Result, PAGE_SIZE};

/// Most pages of a cluster: 64 KiB of the program's memory.
pub const CLUSTER: usize = 16;

/// Bytes of what places are given in: what direct reads and writes of files want.
pub const BLOCK: usize = PAGE_SIZE;

/// Most bytes of a cluster.
pub const CLUSTER_BYTES: usize = 64 << 10;

/// Of those the most that it has before it is sealed, or its checksum is behind it.
pub const UNSEALED_BYTES: usize = CLUSTER_BYTES - seal::TAG;

const _: () = assert!(arrived::HEADER + CLUSTER * MAX_STORED <= UNSEALED_BYTES);
const _: () = assert!(CLUSTER_BYTES / BLOCK <= clusters::MOST_BLOCKS);

/// What keeps clusters. Its calls may take long: only the thread of the tier makes them, or a thread beside which there is no other.
pub trait Tier {
    /// Keeps the bytes of a cluster, whole blocks, at a place that was reserved for it. After an error the place holds anything.
    fn put(&self, place: clusters::Place, bytes: &[u8]) -> Result<()>;

    /// Fetches what was put there into `out`, as long as the place says.
    fn fetch(&self, place: clusters::Place, out: &mut [u8]) -> Result<()>;
}
