//! Where pages go: the store in memory, the tier below it, and what gives their places back.

use super::deferred::Deferred;
use crate::codec::Dictionaries;
use crate::free_queue::FreeQueue;
use crate::slot::Slot;
use crate::store::Stores;
use crate::tier::below::Below;
use crate::tier::location::Location;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicPtr, Ordering::*};

/// The storage.
pub(crate) struct Storage {
    /// Slots that nobody names any more, for the background thread to free.
    pub free_slots: FreeQueue,
    /// What stored pages need to be read.
    pub dictionaries: Dictionaries,
    /// The background thread's own; here so that a forked child finds it.
    store: UnsafeCell<Stores>,
    /// The tier below memory; null for none.
    below: AtomicPtr<Below>,
    /// What restores gave up during a fork.
    pub deferred: Deferred,
}

// SAFETY: `store` is the background thread's own, see `take_store`.
unsafe impl Sync for Storage {}

impl Storage {
    /// Empty, and without a tier.
    pub const fn new() -> Storage {
        Storage {
            free_slots: FreeQueue::new(),
            dictionaries: Dictionaries::new(),
            store: UnsafeCell::new(Stores::new()),
            below: AtomicPtr::new(core::ptr::null_mut()),
            deferred: Deferred::new(),
        }
    }

    /// The store.
    ///
    /// # Safety
    /// Only the background thread may call this, once.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn take_store(&'static self) -> &'static mut Stores {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.store.get() }
    }

    /// Gives the storage a tier, for ever.
    pub fn set_below(&self, below: &'static Below) {
        self.below.store(below as *const Below as *mut Below, Release);
    }

    /// The tier below memory, if there is one.
    pub fn below(&self) -> Option<&'static Below> {
        // SAFETY: made once, for ever.
        unsafe { self.below.load(Acquire).as_ref() }
    }

    /// Gives up the place of a page that no entry names any more: a slot goes to the background thread, which overwrites it, or is overwritten
    /// first where it `wipes`; of a page below memory nobody wants anything any more.
    ///
    /// # Safety
    /// The caller took the entry that named the place, and gives it up once.
    pub unsafe fn free(&self, place: Location, wipes: bool) {
        match place {
            Location::Memory(slot) => {
                // SAFETY: the caller's contract.
                unsafe { self.free_slot(slot, wipes) };
            }
            Location::Below(berth) => {
                if let Some(below) = self.below() {
                    below.pages.fetch_sub(1, Relaxed);
                    below.clusters.drop_page(berth.cluster, berth.page);
                }
            }
        }
    }

    /// # Safety
    /// As [`Storage::free`].
    unsafe fn free_slot(&self, slot: Slot, wipes: bool) {
        // SAFETY: the caller's contract.
        unsafe {
            if wipes {
                slot.wipe();
            }
            self.free_slots.push(slot);
        }
    }
}
