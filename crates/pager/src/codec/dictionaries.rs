//! The dictionaries of a process, by the numbers that stored pages name.
//!
//! Invariants: the background thread alone adds and removes. A dictionary is there from before the first page entry that leads to a
//! slot naming it, and until no such slot is allocated any more; who reads a slot has taken its entry, and so keeps it allocated.

use super::Dictionary;
use core::cell::UnsafeCell;

/// How many a process can have at once.
pub const DICTIONARIES: usize = 7;

/// See the module.
pub struct Dictionaries([UnsafeCell<Option<Dictionary>>; DICTIONARIES]);

// SAFETY: a place is written by the background thread while nobody reads it, by the invariants.
unsafe impl Sync for Dictionaries {}

impl Dictionaries {
    /// None.
    pub const fn new() -> Dictionaries {
        Dictionaries([const { UnsafeCell::new(None) }; DICTIONARIES])
    }

    /// The dictionary of that number.
    ///
    /// # Safety
    /// The caller is the background thread, or has taken a page entry that leads to a slot naming the number.
    pub unsafe fn get(&self, number: u8) -> Option<&Dictionary> {
        // SAFETY: nobody writes the place meanwhile.
        self.0.get(usize::from(number)).and_then(|place| unsafe { (*place.get()).as_ref() })
    }

    /// Puts a dictionary, or none, in the place of that number.
    pub(crate) fn set(&mut self, number: usize, dictionary: Option<Dictionary>) {
        if let Some(place) = self.0.get_mut(number) {
            *place.get_mut() = dictionary;
        }
    }

    /// Takes a dictionary in; returns its number, or `None`, and the dictionary is dropped, where all are taken.
    ///
    /// # Safety
    /// Only the background thread may call this.
    pub unsafe fn add(&self, dictionary: Dictionary) -> Option<u8> {
        // SAFETY: nobody else writes, and no slot names the number of a free place.
        let free = (0..DICTIONARIES as u8).find(|&number| unsafe { self.get(number) }.is_none())?;
        // SAFETY: as above.
        unsafe { *self.0[usize::from(free)].get() = Some(dictionary) };
        Some(free)
    }

    /// Drops the dictionary of that number.
    ///
    /// # Safety
    /// Only the background thread may call this, and no slot that is allocated names the number.
    pub unsafe fn remove(&self, number: u8) {
        if let Some(place) = self.0.get(usize::from(number)) {
            // SAFETY: the caller's contract.
            unsafe { *place.get() = None };
        }
    }

    /// Bytes of all.
    ///
    /// # Safety
    /// Only the background thread may call this.
    pub unsafe fn used_bytes(&self) -> u64 {
        // SAFETY: the caller's contract.
        let used = |number| unsafe { self.get(number) }.map_or(0, Dictionary::used_bytes);
        (0..DICTIONARIES as u8).map(|number| used(number) as u64).sum()
    }
}

impl Default for Dictionaries {
    fn default() -> Self {
        Dictionaries::new()
    }
}
