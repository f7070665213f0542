//! Learning from a program's pages how to write them with fewer bytes, in less time.
//!
//! Background thread only. Pages are looked at where they lie set aside, all in one moment, and what was copied of them is gone when that
//! is over: only what many pages have in common stays, as a dictionary.
//!
//! Invariants: nothing is learnt from what the program keeps from its children, and nothing at all where it wants its memory wiped at
//! once. A dictionary goes when it is not in use and no stored page needs it.

use crate::codec::{Dictionary, DICTIONARIES};
use crate::control::bump;
use crate::evict::worker::Worker;
use crate::sabotage::fault_point;
use crate::tables::entry::{Entry, State};
use crate::training::{Samples, Trained};
use core::sync::atomic::Ordering::*;
use memfold_policy::effort::Effort;
use memfold_policy::learning::SAMPLES;
use memfold_sys::PAGE_SIZE;

impl Worker {
    /// Makes a dictionary of what is aside, if it is time for that. With no lock held.
    pub(crate) fn learn_if_due(&mut self) {
        let (stored, aside) =
            (self.engine.control().pages_evicted.load(Relaxed), self.engine.counts.aside.load(Relaxed));
        if !self.packing.learning.is_due(stored, aside)
            || self.effort() == Effort::Least
            || self.engine.options.wipes.load(Relaxed) != 0
        {
            return;
        }
        let made = self.train();
        let used = self.packing.learning.made(
            stored,
            made.as_ref().map(|made| (made.now, made.with)),
            self.packing.dictionary.is_some(),
        );
        let Some(made) = made.filter(|_| used) else { return };
        // SAFETY: we are the background thread.
        if let Some(number) = unsafe { self.engine.storage.dictionaries.add(made.dictionary) } {
            let old = self.packing.dictionary.replace(number);
            bump(&self.engine.control().dictionaries_made, 1);
            if let Some(old) = fault_point!(DictionaryDropped: None, else old) {
                // SAFETY: none, it is the bug.
                unsafe { self.engine.storage.dictionaries.remove(old) };
            }
        }
        self.place_dictionaries();
    }

    /// Looks at some of the pages that are aside.
    fn train(&mut self) -> Option<Trained> {
        let mut samples = Samples::new().ok()?;
        self.sample(&mut samples);
        let current = self.packing.dictionary;
        // What follows is long, and works with nothing that others look at.
        self.park();
        // SAFETY: we are the background thread, which alone removes it.
        let current = current.and_then(|number| unsafe { self.engine.storage.dictionaries.get(number) });
        let trained = samples.train(&mut self.packing.codecs, current);
        self.engine.traffic.brake.unpark();
        trained
    }

    fn sample(&self, samples: &mut Samples) {
        let step = (self.engine.counts.aside.load(Relaxed) as usize / SAMPLES).max(1);
        let mut seen = 0;
        for extent in self.engine.space().all() {
            let (Some(entries), Some(staging)) = (extent.entries(), self.kernel.staging.page_addr(extent, 0))
            else {
                continue;
            };
            let apart = extent.apart();
            for (index, entry) in entries.iter().enumerate() {
                if entry.load() != Entry::new(State::Aside) || apart.contains(index) {
                    continue;
                }
                seen += 1;
                // SAFETY: staging is always readable, and only the kernel changes it.
                if seen % step == 0 && !unsafe { samples.add_at(staging + index * PAGE_SIZE) } {
                    return;
                }
            }
        }
    }

    /// The dictionary that pages are compressed with, and its number.
    pub(crate) fn dictionary(&self) -> Option<(u8, &'static Dictionary)> {
        let number = self.packing.dictionary?;
        // SAFETY: we are the background thread, which alone removes it.
        Some((number, unsafe { self.engine.storage.dictionaries.get(number) }?))
    }

    /// Drops dictionaries that are of no more use.
    pub(crate) fn drop_dictionaries(&mut self) {
        let mut dropped = false;
        // SAFETY: we are the background thread.
        let keeper = self.engine.below().map(|below| &*unsafe { below.keeper() });
        for number in 0..DICTIONARIES as u8 {
            // SAFETY: as above.
            let is_there = unsafe { self.engine.storage.dictionaries.get(number) }.is_some();
            let needed = self.store.needs(number) || keeper.is_some_and(|keeper| keeper.needs(number));
            if is_there && self.packing.dictionary != Some(number) && !needed {
                // SAFETY: as above, and no stored page names it.
                unsafe { self.engine.storage.dictionaries.remove(number) };
                dropped = true;
            }
        }
        if dropped {
            self.place_dictionaries();
        }
    }

    /// Says where dictionaries are, for who looks at a core.
    fn place_dictionaries(&self) {
        if let Some(anchor) = self.engine.tables.anchor() {
            for number in 0..DICTIONARIES as u8 {
                // SAFETY: we are the background thread.
                let place = unsafe { self.engine.storage.dictionaries.get(number) }.map(Dictionary::bytes);
                anchor.set_dictionary(usize::from(number), place.unwrap_or(&[]));
            }
        }
    }
}
