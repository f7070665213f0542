//! Laundering: from staging into the store, and from one codec to the stronger.
//!
//! Background thread only. It needs no lock of an extent, and ends each piece of work by swapping a page entry that may have
//! been taken meanwhile.

use crate::bitmap::PageSet;
use crate::codec::{repeated_word, Codec, CodecId, Page, MAX_STORED};
use crate::control::bump;
use crate::entry::{AtomicEntry, Entry, State};
use crate::evict::MOVE_BATCH;
use crate::extent::{Entries, Extent, STAGED_HUGE};
use crate::restore::{Outcome, Reason};
use crate::sabotage::{planted, Bug};
use crate::store::{Slot, Store};
use crate::worker::Worker;
use core::sync::atomic::Ordering::*;
use sys::{EXTENT_PAGES, PAGE_SIZE};

impl Worker {
    /// Compresses those `pages` of an extent that are still set aside. Gives up, to go on later, when something more urgent comes.
    /// Returns whether it is finished.
    pub fn launder(&mut self, extent: &Extent, pages: &PageSet) -> bool {
        let Some(entries) = extent.entries() else { return true };
        let Some(staging) = self.kernel.staging.page_addr(extent, 0) else { return true };
        let mut drop_from = None;
        let mut finished = true;
        for index in 0..EXTENT_PAGES {
            let stored = pages.contains(index)
                && entries[index].load() == Entry::new(State::Aside)
                && self.store_page(extent, entries, index, staging + index * PAGE_SIZE);
            match (stored, drop_from) {
                (true, None) => drop_from = Some(index),
                (false, Some(from)) => {
                    self.drop_staged(extent, from, index);
                    drop_from = None;
                }
                (true, Some(from)) if index - from >= MOVE_BATCH => {
                    self.drop_staged(extent, from, index);
                    drop_from = Some(index);
                }
                _ => {}
            }
            if self.interrupted() {
                finished = false;
                if let Some(from) = drop_from.take() {
                    self.drop_staged(extent, from, index + 1);
                }
                break;
            }
        }
        if let Some(from) = drop_from {
            self.drop_staged(extent, from, EXTENT_PAGES);
        }
        extent.last_laundry.store(self.now.0, Relaxed);
        // What stayed aside, because it was taken meanwhile or does not shrink, keeps the slot.
        self.release_staging(extent);
        finished
    }

    fn drop_staged(&self, extent: &Extent, lo: usize, hi: usize) {
        if extent.flags.load(Relaxed) & STAGED_HUGE == 0 {
            // SAFETY: the pages were stored; no entry says that they are aside.
            unsafe { self.kernel.staging.drop_pages(extent, lo, hi) };
        }
    }

    /// Compresses one page that lies in staging. Returns whether its entry names the store now.
    fn store_page(&mut self, extent: &Extent, entries: &Entries, index: usize, staged: usize) -> bool {
        let aside = Entry::new(State::Aside);
        // SAFETY: staging is always readable. If the page is taken back while we read, we read zeros or a part of it, and
        // the entry is no longer `aside` when we try to swap it.
        let page = unsafe { &*(staged as *const Page) };
        let control = self.engine.control();
        if let Some(entry) = repeated_word(page).and_then(Entry::same) {
            let done = entries[index].transition(aside, entry);
            if done {
                bump(&control.pages_same_value, 1);
                self.stored(1);
            }
            return done;
        }
        let Some(len) = self.codecs.lz4.compress(page, &mut self.buffer[..MAX_STORED]) else {
            if planted(Bug::IncompressibleDropped) {
                return true;
            }
            self.take_back(extent, index);
            return false;
        };
        let addr = extent.page_addr(index);
        let Ok(slot) = self.store.put(addr, CodecId::Lz4, &self.buffer[..len]) else {
            // No memory for the store: the page stays where it is.
            self.short_of_memory = true;
            return false;
        };
        let done = entries[index].transition(aside, Entry::with_payload(State::Stored, slot.payload()));
        if done {
            self.stored(1);
        } else {
            // SAFETY: no entry came to name it.
            unsafe { self.store.free(slot) };
        }
        done
    }

    fn stored(&self, pages: u64) {
        self.engine.aside_pages.fetch_sub(pages, Relaxed);
        self.engine.stored_pages.fetch_add(pages, Relaxed);
        bump(&self.engine.control().pages_evicted, pages);
    }

    /// The page does not shrink: it goes back, and is not tried again soon.
    fn take_back(&mut self, extent: &Extent, index: usize) {
        extent.incompressible.add(index);
        let outcome = self.restorer.restore(self.engine, self.kernel, extent, index, 1, Reason::Ahead);
        if let Outcome::Done { first, pages } = outcome {
            bump(&self.engine.control().pages_incompressible, 1);
            self.kernel.uffd.wake(extent.page_addr(first), pages * PAGE_SIZE);
        }
    }

    /// Compresses stored pages of an extent again, with the strong codec. Returns whether it is finished.
    pub fn recompress(&mut self, extent: &Extent) -> bool {
        let Some(entries) = extent.entries() else { return true };
        for (index, cell) in entries.iter().enumerate() {
            let entry = cell.load();
            if entry.state() == State::Stored && !entry.is_busy() {
                self.recompress_page(extent, cell, entry, index);
            }
            if self.interrupted() {
                return false;
            }
        }
        true
    }

    fn recompress_page(&mut self, extent: &Extent, cell: &AtomicEntry, entry: Entry, index: usize) {
        let old = Slot::from_payload(entry.payload());
        // SAFETY: only this thread frees slots, so the bytes stay while we read, whoever takes the entry.
        let Some((CodecId::Lz4, data)) = (unsafe { old.read() }) else { return };
        if !self.codecs.lz4.decompress(data, &mut self.page) {
            return;
        }
        let Some(len) = self.codecs.zstd.compress(&self.page, &mut self.buffer[..MAX_STORED]) else { return };
        if Store::size_of(len) >= Store::size_of(data.len()) {
            return;
        }
        let Ok(slot) = self.store.put(extent.page_addr(index), CodecId::Zstd, &self.buffer[..len]) else {
            return;
        };
        if cell.transition(entry, Entry::with_payload(State::Stored, slot.payload())) {
            bump(&self.engine.control().pages_recompressed, 1);
            let freed = if planted(Bug::WrongSlotFreed) { slot } else { old };
            // SAFETY: no entry names it any more, and it was in no queue.
            unsafe { self.store.free(freed) };
        } else {
            // SAFETY: no entry came to name it.
            unsafe { self.store.free(slot) };
        }
    }
}
