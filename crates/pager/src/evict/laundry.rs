//! Laundering: from staging into the store, and from one codec to the stronger.
//!
//! Background thread only. It needs no lock of an extent, and ends each piece of work by swapping a page entry that may have
//! been taken meanwhile.

use crate::activity::Activity;
use crate::codec::{repeated_word_at, CodecId, MAX_STORED};
use crate::control::bump;
use crate::evict::set_aside::forget_written;
use crate::evict::worker::Worker;
use crate::fault::reason::{Outcome, Reason};
use crate::sabotage::fault_point;
use crate::slot::{Apart, Slot};
use crate::store::Store;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::entries::Entries;
use crate::tables::entry::{AtomicEntry, Entry, State};
use crate::tables::extent::{Extent, STAGED_HUGE, WHOLE};
use crate::tier::location::Location;
use core::sync::atomic::Ordering::*;
use memfold_policy::effort::{self, Effort};
use memfold_sys::{racing, EXTENT_PAGES, PAGE_SIZE};

impl Worker {
    /// Compresses those `pages` of an extent that are still set aside. Gives up, to go on later, when something more urgent comes.
    /// Returns whether it is finished.
    pub fn launder(&mut self, extent: &Extent, pages: &PageSet) -> bool {
        let before = self.enter(Activity::Learn);
        self.learn_if_due();
        self.enter(before);
        let Some(entries) = extent.entries() else { return true };
        let Some(staging) = self.kernel.staging.page_addr(extent, 0) else { return true };
        let aside = Entry::new(State::Aside);
        let (mut back, mut gone) = (PageSet::EMPTY, PageSet::EMPTY);
        let mut finished = true;
        for index in 0..EXTENT_PAGES {
            if !pages.contains(index) || entries[index].load() != aside {
                continue;
            }
            if !self.store_page(extent, entries, index, staging + index * PAGE_SIZE) {
                back.insert(index);
            } else {
                gone.insert(index);
            }
            if self.interrupted() {
                finished = false;
                break;
            }
        }
        self.enter(Activity::Other);
        for run in gone.runs() {
            self.engine.went_away(extent.page_addr(run.lo), run.bytes());
        }
        self.note_dense(extent, !back.is_empty(), finished);
        for run in back.runs() {
            self.take_back(extent, run);
        }
        self.enter(Activity::Drop);
        self.drop_staged(extent, entries, false);
        self.enter(before);
        if !gone.is_empty() {
            self.note_young(extent, &gone);
        }
        finished
    }

    /// Gives the frames back of all that is aside no more, and the slot if nothing is. Dropping a range costs an interrupt on
    /// every CPU that runs the program, however short it is, so the longest ranges are taken that hold nothing aside. A huge page is
    /// left whole, unless it is to be split.
    pub(crate) fn drop_staged(&self, extent: &Extent, entries: &Entries, split: bool) {
        // What is still aside was taken meanwhile or found no memory in the store, and keeps the slot.
        if self.release_staging(extent) {
            return;
        }
        if extent.flags.load(Relaxed) & STAGED_HUGE != 0 {
            if !split {
                return;
            }
            extent.flags.fetch_and(!STAGED_HUGE, SeqCst);
        }
        self.forget_copies(extent);
        let drops = |index: usize| fault_point!(AsideDropped: entries[index].load().state() != State::Aside, else true);
        let empty = PageSet::of(drops);
        for run in empty.runs() {
            // SAFETY: only this thread makes pages `Aside`, and these are not.
            unsafe { self.kernel.staging.drop_pages(extent, run) };
        }
    }

    /// Notes since when the extent has had pages that do not shrink: some just came back, or what there was is on its way below memory.
    fn note_dense(&self, extent: &Extent, back: bool, finished: bool) {
        let since = extent.last_dense.load(Relaxed);
        if back && since == 0 {
            extent.last_dense.store(self.now.0, Relaxed);
        } else if !back && finished && extent.incompressible.load().is_empty() {
            extent.last_dense.store(0, Relaxed);
        }
    }

    /// Compresses one page of the extent, which lies in staging, and swaps its entry. False if it must come back, as it does not shrink.
    fn store_page(&mut self, extent: &Extent, entries: &Entries, index: usize, staged: usize) -> bool {
        self.enter(Activity::Compress);
        let aside = Entry::new(State::Aside);
        let effort = self.effort();
        let control = self.engine.control();
        let apart = extent.apart_of(index);
        // A word of the program's that no core dump may have is none of the tables'.
        // SAFETY: staging is always readable, and only the kernel changes it. If the page is taken back while we read, here
        // and below, we read zeros or a part of it, and the entry is no longer `aside` when we try to swap it. Nobody has a
        // reference to it.
        let word = unsafe { repeated_word_at(staged) }.filter(|word| *word == 0 || !apart.undumped);
        if let Some(entry) = word.and_then(Entry::same) {
            let done = entries[index].transition(aside, entry);
            if done {
                bump(&control.pages_same_value, 1);
                self.stored(1);
            }
            return true;
        }
        self.packing.unforked |= apart.unforked;
        let (dictionary, out) = (self.dictionary(), &mut self.packing.buffer[..MAX_STORED]);
        // What does not shrink is not tried again for long: once with all effort, before it counts as that.
        let efforts = if effort == Effort::Most { &[Effort::Most][..] } else { &[effort, Effort::Most] };
        let packed = efforts.iter().find_map(|&effort| {
            // SAFETY: as above.
            let packed = unsafe { self.packing.codecs.compress_at(effort, dictionary, staged, out) };
            packed.map(|(codec, len)| (effort, codec, len))
        });
        let (codec, len) = match packed {
            Some((effort, codec, len)) => {
                if dictionary.is_none() {
                    self.see_what_more_gains(effort, staged, len);
                }
                (codec, len)
            }
            None if apart == Apart::default() && self.takes_whole(extent) => {
                // SAFETY: as above.
                unsafe { racing::copy(staged, &mut self.packing.buffer[..]) };
                extent.flags.fetch_or(WHOLE, Relaxed);
                (CodecId::Whole, PAGE_SIZE)
            }
            None => return false,
        };
        self.enter(Activity::Keep);
        let addr = extent.page_addr(index);
        let Ok(slot) = self.store.put(addr, codec, &self.packing.buffer[..len], apart) else {
            // No memory for the store: the page stays where it is.
            self.eviction.short_of_memory = true;
            return true;
        };
        let done = entries[index].transition(aside, Entry::with_payload(State::Stored, slot.payload()));
        if done {
            bump(&control.pages_by_codec[codec.bits() as usize], 1);
            self.stored(1);
            self.note_stored(extent, index);
        } else {
            // SAFETY: no entry came to name it.
            unsafe { self.store.free(slot) };
        }
        true
    }

    /// Compresses one page in some the other way as well, which took `len` bytes with this effort, where there is CPU time for that.
    fn see_what_more_gains(&mut self, effort: Effort, staged: usize, len: usize) {
        let other = match effort {
            Effort::Least => return,
            Effort::Once => Effort::Most,
            Effort::Most => Effort::Once,
        };
        self.packing.compressed += 1;
        if !self.packing.compressed.is_multiple_of(effort::BOTH_ONE_IN) {
            return;
        }
        // SAFETY: as in `store_page`: if the page is taken back meanwhile, a length that means nothing is noted.
        let packed = unsafe {
            self.packing.codecs.compress_at(other, None, staged, &mut self.packing.page[..MAX_STORED])
        };
        // A page that does not shrink that way is as long as it is.
        let other_len = packed.map_or(PAGE_SIZE, |(_, len)| len);
        let (once, most) = if effort == Effort::Once { (len, other_len) } else { (other_len, len) };
        let (once, most) = (Store::size_of(once) as u64, Store::size_of(most) as u64);
        self.packing.gains_at_once.note(once, most.min(once));
    }

    fn stored(&self, pages: u64) {
        self.engine.counts.aside.fetch_sub(pages, Relaxed);
        self.engine.counts.stored.fetch_add(pages, Relaxed);
        bump(&self.engine.control().pages_evicted, pages);
    }

    /// Pages that do not shrink go back, and are not tried again soon.
    fn take_back(&mut self, extent: &Extent, run: PageRange) {
        // SAFETY: none, it is the bug.
        fault_point!(IncompressibleDropped: (), else return unsafe { self.kernel.staging.drop_pages(extent, run) });
        extent.incompressible.insert(&run.set());
        let mut at = run.lo;
        while at < run.hi {
            let rest = run.starting_at(at);
            match self.restorer.restore(extent, rest, Reason::Ahead) {
                Outcome::Done { first, pages } => {
                    bump(&self.engine.control().pages_incompressible, pages.min(rest.len()) as u64);
                    // Else they would be tried again at every look: a limit that they do not fit under has the program wait for
                    // each of these.
                    let back = PageRange::from(first, pages);
                    fault_point!(ReturnTakenForWrite: forget_written(self.kernel, extent, back));
                    at = (first + pages).max(at + 1);
                }
                _ => at += 1,
            }
        }
    }

    /// Compresses stored pages of an extent again, with the strong codec, from where it was interrupted. Returns whether it is finished.
    pub fn recompress(&mut self, extent: &Extent) -> bool {
        let Some(entries) = extent.entries() else { return true };
        let before = self.enter(Activity::Compress);
        let from = extent.dense_below.load(Relaxed) as usize;
        for (index, cell) in entries.iter().enumerate().skip(from) {
            let entry = cell.load();
            if let (Some(slot), false) = (Location::memory(entry), entry.is_busy()) {
                self.recompress_page(extent, cell, (entry, slot), index);
            }
            extent.dense_below.store(index as u32 + 1, Relaxed);
            if self.interrupted() || !self.may_compress_again() {
                break;
            }
        }
        self.enter(before);
        extent.dense_below.load(Relaxed) as usize == EXTENT_PAGES
    }

    fn recompress_page(
        &mut self,
        extent: &Extent,
        cell: &AtomicEntry,
        (entry, old): (Entry, Slot),
        index: usize,
    ) {
        let apart = extent.apart_of(index);
        self.packing.unforked |= apart.unforked;
        // SAFETY: we are the background thread. If the entry is taken meanwhile, the swap below fails, whatever we have read.
        let Some((codec, stored)) = (unsafe { old.copy(&mut self.packing.buffer[..]) }) else { return };
        if codec.effort() == Effort::Most
            || !self.packing.codecs.decompress(
                codec,
                &self.engine.storage.dictionaries,
                &self.packing.buffer[..stored],
                self.packing.page,
            )
        {
            return;
        }
        let dictionary = self.dictionary();
        let (page, out) = (self.packing.page.as_ptr() as usize, &mut self.packing.buffer[..MAX_STORED]);
        // SAFETY: our own page, which nobody else writes.
        let packed = unsafe { self.packing.codecs.compress_at(Effort::Most, dictionary, page, out) };
        let Some((codec, len)) = packed else { return };
        let (before, after) = (Store::size_of(stored), Store::size_of(len));
        self.packing.gains.note(before as u64, after.min(before) as u64);
        if after >= before {
            return;
        }
        let addr = extent.page_addr(index);
        let Ok(slot) = self.store.put(addr, codec, &self.packing.buffer[..len], apart) else { return };
        if cell.transition(entry, Entry::with_payload(State::Stored, slot.payload())) {
            bump(&self.engine.control().pages_recompressed, 1);
            let freed = fault_point!(WrongSlotFreed: old, else slot);
            // SAFETY: no entry names it any more, and it was in no queue.
            unsafe { self.store.free(freed) };
        } else {
            // SAFETY: no entry came to name it.
            unsafe { self.store.free(slot) };
        }
    }
}
