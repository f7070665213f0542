//! Where a page lies that was compressed: the payload of its entry, which means something to its tier alone.

use crate::slot::Slot;
use crate::tables::entry::{Entry, State};

/// Set in the payload of what lies below memory. No address divided by the store's grain has it.
const BELOW: u64 = 1 << 59;
const PAGE_BITS: u32 = 4;

/// A page of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Berth {
    /// The number of the cluster.
    pub cluster: u32,
    /// Which of its pages, below [`CLUSTER`](super::CLUSTER).
    pub page: usize,
}

/// Where a page lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Location {
    /// In memory: ready.
    Memory(Slot),
    /// Below it: pending, until its cluster has been fetched.
    Below(Berth),
}

impl Location {
    /// From the payload of an entry that is [`State::Stored`].
    pub fn from_payload(payload: u64) -> Location {
        if payload & BELOW == 0 {
            return Location::Memory(Slot::from_payload(payload));
        }
        let page = (payload & ((1 << PAGE_BITS) - 1)) as usize;
        Location::Below(Berth { cluster: (payload >> PAGE_BITS) as u32, page })
    }

    /// Where the page of the entry lies, if it is stored; of one that is busy too.
    pub fn of(entry: Entry) -> Option<Location> {
        (entry.state() == State::Stored).then(|| Location::from_payload(entry.payload()))
    }

    /// Of those the berth, of a page that lies below memory.
    pub fn below(entry: Entry) -> Option<Berth> {
        match Location::of(entry)? {
            Location::Below(berth) => Some(berth),
            Location::Memory(_) => None,
        }
    }

    /// Of those the slot, of a page that lies in memory.
    pub fn memory(entry: Entry) -> Option<Slot> {
        match Location::of(entry)? {
            Location::Memory(slot) => Some(slot),
            Location::Below(_) => None,
        }
    }

    /// For the payload of an entry.
    pub fn payload(self) -> u64 {
        match self {
            Location::Memory(slot) => slot.payload(),
            Location::Below(berth) => BELOW | u64::from(berth.cluster) << PAGE_BITS | berth.page as u64,
        }
    }

    /// The entry of a page that lies there.
    pub fn entry(self) -> Entry {
        Entry::with_payload(State::Stored, self.payload())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_location_survives_its_entry(cluster: u32, page in 0usize..16, grain in 1u64..1 << 44) {
            let below = Location::Below(Berth { cluster, page });
            let memory = Location::Memory(Slot::from_payload(grain));
            for location in [below, memory] {
                prop_assert_eq!(Location::of(location.entry()), Some(location));
            }
            prop_assert_eq!(Location::memory(below.entry()), None);
            prop_assert_eq!(Location::below(memory.entry()), None);
        }
    }
}
