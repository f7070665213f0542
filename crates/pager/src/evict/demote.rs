//! Demotion: what was stored in memory for long goes to the tier below it, cluster by cluster.
//!
//! Background thread only. It gathers the compressed bytes of up to sixteen pages of an extent, in order, and hands them over to the tier's
//! thread; when they are written it swaps the pages' entries, and frees what they had in memory. Until then they are where they were, and
//! whoever takes one meanwhile keeps it.
//!
//! What it is not: an eviction. It needs no lock of an extent and no call that the program's threads could feel.

use crate::activity::Activity;
use crate::evict::worker::Worker;
use crate::slot::Slot;
use crate::tables::bitmap::PageSet;
use crate::tables::entry::Entry;
use crate::tables::extent::{Extent, WHOLE};
use crate::text::Line;
use crate::tier::arrived::Writer;
use crate::tier::below::{Asker, Below, Job};
use crate::tier::location::{Berth, Location};
use crate::tier::remote::AWAY;
use crate::tier::CLUSTER;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::Nanos;
use memfold_sys::{Errno, EXTENT_PAGES, PAGE_SIZE};

/// For how long nothing goes down after the tier could take no more.
const FULL: Nanos = Nanos::from_secs(10);
/// How long a page must have been stored where memory is scarce, at most.
const AFTER_PRESSED: Nanos = Nanos::from_secs(1);
/// For how long the tier is waited for where somebody waits for room.
const PATIENCE: Nanos = Nanos::from_secs(5);
/// Bits of numbers of dictionaries.
const DICTIONARY_BITS: usize = 16;
/// Most pages that are kept whole in memory, on their way down: there they take an eighth more than where they were.
pub(crate) const MOST_WHOLE: u64 = (16 << 20) / PAGE_SIZE as u64;
const _: () = assert!(crate::codec::DICTIONARIES <= DICTIONARY_BITS);

impl Worker {
    /// Takes in what was written, and hands over what is due.
    pub(crate) fn demote(&mut self) {
        let Some(below) = self.engine.below() else { return };
        self.settle_tier();
        // SAFETY: we are the background thread.
        unsafe { below.keeper() }.look_after(&below.files, self.now);
        self.compact_tier(below);
        if !self.takes_more(below)
            || self.now.0 < self.demotion.next.0
            || !self.is_pressed() && !self.may_fold()
        {
            return;
        }
        let before = self.enter(Activity::Keep);
        self.go_round(below);
        self.enter(before);
    }

    /// Whether the tier is there, and takes more of what this process has.
    fn takes_more(&self, below: &Below) -> bool {
        below.is_open() && self.now.0 >= self.demotion.full_until.0 && !self.has_no_share(below)
    }

    /// Whether memory is scarce, or the program sleeps.
    fn is_pressed(&self) -> bool {
        self.watch.is_pressed() || self.engine.room.is_kept() || self.rest.is_asleep()
    }

    /// How long a page must have been stored.
    fn goes_after(&self, below: &Below) -> Nanos {
        // SAFETY: we are the background thread.
        let after = unsafe { below.keeper() }.after;
        if self.is_pressed() {
            after.min(AFTER_PRESSED)
        } else {
            after
        }
    }

    /// Whether pages of the extent that do not shrink may be kept as they are, to go down at once: there is a tier that takes more, and they have
    /// been known for as long as what goes down must have been stored, or somebody waits for their room.
    pub(crate) fn takes_whole(&self, extent: &Extent) -> bool {
        let Some(below) = self.engine.below().filter(|below| self.takes_more(below)) else { return false };
        // SAFETY: we are the background thread.
        if !unsafe { below.keeper() }.has_room() {
            return false;
        }
        let since = extent.last_dense.load(Relaxed);
        let is_due = since != 0 && self.now.since(Nanos(since)).0 >= self.goes_after(below).0;
        self.rest.is_asleep() || (is_due || self.eviction.hand.needs_room) && self.store.whole() < MOST_WHOLE
    }

    /// Has pages of the extent tried again that did not shrink, where they may go down.
    pub(crate) fn let_dense_go(&self, extent: &Extent) {
        if !extent.incompressible.load().is_empty() && self.takes_whole(extent) {
            extent.incompressible.remove(&PageSet::ALL);
        }
    }

    fn go_round(&mut self, below: &'static Below) {
        let after = self.goes_after(below);
        if self.demote_all(below, after) {
            self.demotion.next =
                self.now + Nanos(after.0 / 8).clamp(Nanos::from_millis(5), Nanos::from_secs(5));
        }
    }

    /// Hands over what has been in memory for `after`, whatever else there is to do. False where some of it must wait; true where all is handed over, and
    /// where the tier takes no more.
    pub(crate) fn demote_now(&mut self, below: &'static Below, after: Nanos) -> bool {
        !self.takes_more(below) || self.demote_all(below, after)
    }

    /// Hands over what is stored as it was, and waits until at most so many pages of that are left.
    pub(crate) fn sink_whole(&mut self, most: u64) {
        let Some(below) = self.engine.below().filter(|_| self.store.whole() > most) else { return };
        let end = self.now + PATIENCE;
        self.sink(below, Nanos(u64::MAX), |worker| worker.store.whole() <= most || worker.now.0 > end.0);
    }

    /// Hands over what is stored until the store takes so many bytes less. Whether it takes less.
    pub(crate) fn sink_some(&mut self, bytes: u64) -> bool {
        let Some(below) = self.engine.below() else { return false };
        let memory = |worker: &mut Worker| {
            worker.compact_store();
            worker.store.usage().memory
        };
        let (before, end) = (memory(self), self.now + PATIENCE);
        let most = before.saturating_sub(bytes);
        self.sink(below, Nanos(0), |worker| memory(worker) <= most || worker.now.0 > end.0);
        memory(self) < before
    }

    /// Hands over what has been in memory for `after`, from where the last round was left. Whether it came to the end.
    fn demote_all(&mut self, below: &'static Below, after: Nanos) -> bool {
        let began = self.demotion.at;
        for extent in self.engine.space().all().filter(|extent| extent.base() >= began) {
            if !self.demote_extent(below, extent, after) || self.interrupted() {
                // The jobs are all out, or something more urgent came.
                self.demotion.at = extent.base();
                return false;
            }
        }
        self.demotion.at = 0;
        true
    }

    /// Hands over what the extent has in memory, if it has been there for long or does not shrink. False where some of it must wait.
    fn demote_extent(&mut self, below: &'static Below, extent: &Extent, after: Nanos) -> bool {
        let used = extent.last_laundry.load(Relaxed).max(extent.last_return.load(Relaxed));
        let due = self.now.since(Nanos(used)).0 >= after.0;
        if extent.away.load(Relaxed) == 0 || !due && extent.flags.load(Relaxed) & WHOLE == 0 {
            return true;
        }
        let Some(entries) = extent.entries() else { return true };
        let apart = extent.apart();
        let goes = |index: usize| slot_that_goes(entries[index].load(), index, &apart, due).is_some();
        let on_its_way = |(job, &of): (&Job, &usize)| !job.is_free() && of == extent.base();
        if below.jobs.iter().zip(&self.demotion.extents).any(on_its_way) {
            // No page is handed over twice.
            return false;
        }
        let mut index = 0;
        while let Some(first) = (index..EXTENT_PAGES).find(|&index| goes(index)) {
            let Some(number) = below.jobs.iter().position(Job::is_free) else { return false };
            self.demotion.hand_over(number, extent.base());
            match self.gather(below, &below.jobs[number], extent, first, due) {
                Ok(Some(end)) => index = end,
                // What lies there is not to be had now.
                Ok(None) => index = first + 1,
                Err(error) => {
                    // SAFETY: the job is free, and we are the background thread.
                    if let Ok(bytes) = unsafe { below.jobs[number].inner() }.bytes() {
                        bytes.fill(0);
                    }
                    self.tier_is_full(below, error);
                    return false;
                }
            }
        }
        extent.flags.fetch_and(!WHOLE, Relaxed);
        true
    }

    /// Hands over a cluster of what lies in memory from page `first` on, or of that what does not shrink. Returns the page behind its last.
    fn gather(
        &mut self,
        below: &'static Below,
        job: &Job,
        extent: &Extent,
        first: usize,
        all: bool,
    ) -> Result<Option<usize>, Errno> {
        // SAFETY: the job is free, and we are the background thread.
        let inner = unsafe { job.inner() };
        let Some(entries) = extent.entries() else { return Ok(None) };
        let apart = extent.apart();
        let (mut index, mut dictionaries) = (first, 0);
        let mut pages = [(0, 0); CLUSTER];
        let mut writer = Writer::new(inner.bytes()?);
        while index < EXTENT_PAGES && !writer.is_full() {
            let entry = entries[index].load();
            let slot = slot_that_goes(entry, index, &apart, all);
            // SAFETY: we are the background thread. If the entry is taken meanwhile, it is not swapped in the end.
            if let Some((codec, len)) = slot.and_then(|slot| unsafe { slot.copy(writer.room()) }) {
                pages[writer.add(codec, len)] = (index as u16, entry.word());
                if let Some(dictionary) = codec.dictionary() {
                    dictionaries |= 1 << dictionary;
                }
            }
            index += 1;
        }
        let (count, len) = writer.size();
        if count == 0 {
            return Ok(None);
        }
        let blocks = inner.set_len(len);
        (inner.pages, inner.count, inner.dictionaries) = (pages, count, dictionaries);
        // SAFETY: we are the background thread.
        let keeper = unsafe { below.keeper() };
        inner.place = Some(keeper.reserve(&below.files, &self.engine.tables.pool, blocks)?);
        inner.cluster = match below.clusters.take(&self.engine.tables.pool) {
            Ok(cluster) => cluster,
            Err(error) => {
                if let Some(place) = inner.place.take() {
                    keeper.give_up(&below.files, place);
                }
                return Err(error);
            }
        };
        // Until it is settled, what it names must stay.
        keeper.note_dictionaries(dictionaries, true);
        below.hand_over(job);
        Ok(Some(index))
    }

    /// Swaps the entries of what was written, and takes back places that nobody wants any more.
    pub(crate) fn settle_tier(&mut self) {
        let Some(below) = self.engine.below() else { return };
        for (number, job) in below.jobs.iter().enumerate() {
            if let Some(outcome) = job.outcome() {
                if job.is_move() {
                    self.settle_move(below, job, outcome);
                } else {
                    self.settle_job(below, job, number, outcome);
                }
                job.free();
            }
        }
        // SAFETY: we are the background thread.
        unsafe { below.take_done() };
        let control = self.engine.control();
        let bytes = below.pages.load(Relaxed) * PAGE_SIZE as u64;
        control.tier_bytes.store(bytes, Relaxed);
        control.tier_bytes_peak.fetch_max(bytes, Relaxed);
        self.say_file_bytes(below);
    }

    /// Says what the files of the tier take.
    pub(super) fn say_file_bytes(&self, below: &Below) {
        // SAFETY: we are the background thread.
        self.engine.control().tier_file_bytes.store(unsafe { below.keeper() }.file_bytes(), Relaxed);
    }

    /// A page of the extent was stored, with what it holds now.
    pub(crate) fn note_stored(&mut self, extent: &Extent, index: usize) {
        self.demotion.note_stored(extent.base(), index);
    }

    /// Ends the job of this number.
    fn settle_job(&mut self, below: &'static Below, job: &Job, number: usize, outcome: Result<(), Errno>) {
        // SAFETY: the job is done, and we are the background thread.
        let inner = unsafe { job.inner() };
        let (extent, anew) = (self.demotion.extents[number], self.demotion.anew[number]);
        let entries = self.engine.space().find(extent).and_then(Extent::entries);
        let (Ok(()), Some(entries), Some(place)) = (outcome, entries, inner.place) else {
            // SAFETY: as above.
            unsafe { below.undo(job) };
            if let Err(error) = outcome {
                self.tier_is_full(below, error);
            }
            return;
        };
        inner.place = None;
        let cluster = inner.cluster;
        below.clusters.fill(cluster, place, inner.count, inner.dictionaries);
        for (page, &(index, word)) in inner.pages[..inner.count].iter().enumerate() {
            let (old, berth) = (Entry::from_word(word), Berth { cluster, page });
            below.pages.fetch_add(1, Relaxed);
            let is_same = !anew.contains(usize::from(index));
            if is_same && entries[usize::from(index)].transition(old, Location::Below(berth).entry()) {
                if let Some(slot) = Location::memory(old) {
                    // SAFETY: no entry names it any more, and it is in no queue.
                    unsafe { self.store.free(slot) };
                }
            } else {
                // It was touched, dropped or written anew meanwhile.
                below.pages.fetch_sub(1, Relaxed);
                below.clusters.drop_page(cluster, page);
            }
        }
    }

    /// Waits for the cluster of a page, as if asleep: whoever needs this thread to stand still may be whom the tier's thread waits for.
    pub(crate) fn fetch(&mut self, page: usize) {
        self.park();
        self.engine.fetch(Asker::Background, page, &mut self.restorer.arrived);
        self.engine.traffic.brake.unpark();
    }

    /// Whether a daemon lets it take nothing more of a tier that others have too.
    fn has_no_share(&self, below: &Below) -> bool {
        // SAFETY: we are the background thread.
        let keeper = unsafe { below.keeper() };
        keeper.is_shared() && !keeper.has_room()
    }

    fn tier_is_full(&mut self, below: &Below, error: Errno) {
        self.demotion.full_until = self.now + FULL;
        if self.has_no_share(below) {
            return;
        }
        self.tell_of_tier(below, error);
    }

    /// Says that nothing goes down, and why, if that was not said.
    pub(crate) fn tell_of_tier(&mut self, below: &Below, error: Errno) {
        if !self.demotion.told.is_new(error) {
            return;
        }
        // SAFETY: we are the background thread.
        let keeper = unsafe { below.keeper() };
        let mut line = Line::new();
        let _ = match error {
            Errno(libc::ENOSPC) => write!(line, "memfold: the tier in {} is full", keeper.name()),
            AWAY => write!(line, "memfold: the tier in {} cannot be reached now", keeper.name()),
            error => {
                write!(line, "memfold: the tier in {} cannot be used ({})", keeper.name(), error.name())
            }
        };
        line.push(": what is folded stays in memory");
        self.engine.notify(line.as_str());
    }
}

/// Where the page of the entry lies in memory, if it may go down: nobody has it in hand, and everybody may have what it holds. `all`, or what does not
/// shrink alone. By the background thread.
fn slot_that_goes(entry: Entry, index: usize, apart: &PageSet, all: bool) -> Option<Slot> {
    let slot = Location::memory(entry).filter(|_| !entry.is_busy() && !apart.contains(index))?;
    // SAFETY: we are the background thread, which alone frees: a slot that an entry named is still allocated.
    (all || unsafe { slot.is_whole() }).then_some(slot)
}
