//! What one thread takes of an extent to bring it back: entries that follow one another, so that they come by one call where they can.
//!
//! Invariants: an entry that was taken is finished, after its page is in the program's view, or put back as it was.

use crate::engine::Engine;
use crate::fault::reason::{Outcome, Reason};
use crate::kernel::Kernel;
use crate::sabotage::fault_point;
use crate::tables::bitmap::PageRange;
use crate::tables::entries::Entries;
use crate::tables::entry::{AtomicEntry, Entry, State};
use crate::tables::extent::{Extent, STAGED_HUGE};
use crate::turns::Move;
use core::sync::atomic::Ordering::*;
use memfold_sys::{Errno, Result, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// Most pages brought back at once, but for those that lie whole where memory is walked through: all of them that follow one another are
/// moved by one call, and nobody waits for one in particular.
pub const MAX_WINDOW: usize = 32;

/// How often somebody else tries to get a turn while the fault thread has it: for about as long as serving a touch takes,
/// without ever sleeping.
const TRIES: u32 = 150;

/// Consecutive entries that one thread has taken.
pub(crate) struct Run<'a> {
    engine: &'static Engine,
    kernel: &'static Kernel,
    pub(crate) extent: &'a Extent,
    entries: &'a Entries,
    pub(crate) lo: usize,
    /// Pages `lo..next` are finished or put back.
    next: usize,
    pub(crate) hi: usize,
    taken: [Entry; MAX_WINDOW],
    /// All entries are `Aside`: they may be more than [`MAX_WINDOW`], as many as come back by one move.
    aside: bool,
    pub(crate) reason: Reason,
    /// It is being walked through: what comes back tells nothing of what is in use. Where a limit is kept it does all the same.
    pub(crate) walked: bool,
    /// All of the extent comes back as one huge page for a touch of this page, which tells nothing of the others.
    pub(crate) touched: Option<usize>,
}

impl<'a> Run<'a> {
    /// Nothing is taken yet.
    pub(crate) fn new(
        engine: &'static Engine,
        kernel: &'static Kernel,
        extent: &'a Extent,
        entries: &'a Entries,
        lo: usize,
        reason: Reason,
    ) -> Run<'a> {
        let taken = [Entry::RESIDENT; MAX_WINDOW];
        Run {
            engine,
            kernel,
            extent,
            entries,
            lo,
            next: lo,
            hi: lo,
            taken,
            aside: false,
            reason,
            walked: false,
            touched: None,
        }
    }

    /// Takes the entry of the first of the pages, and of those behind it that are away too; all of the extent where they are one huge page, unless its mapping
    /// was moved. `is_ready` says of what page the bytes can be read without waiting.
    pub(crate) fn take(
        &mut self,
        pages: PageRange,
        moved: bool,
        is_ready: &impl Fn(Entry) -> bool,
    ) -> core::result::Result<(), Outcome> {
        let reason = self.reason;
        // What was moved past libc comes back page by page.
        if !moved && self.extent.flags.load(Relaxed) & STAGED_HUGE != 0 {
            if self.take_whole() {
                let splits = reason.is_awaited() && !self.walked && self.engine.has_huge_pages();
                self.touched = splits.then_some(pages.lo);
                return Ok(());
            }
            if !reason.is_service() {
                // As in `restore`: the entries were busy for a moment.
                self.kernel.uffd.wake(self.extent.base(), EXTENT_SIZE);
            }
        }
        if reason == Reason::Walk && self.take_aside(pages) {
            return Ok(());
        }
        self.take_away(PageRange::from(pages.lo, pages.len().clamp(1, MAX_WINDOW)), is_ready)
    }

    /// Takes the entry of the first of the pages, and of those behind it that are away too.
    fn take_away(
        &mut self,
        pages: PageRange,
        is_ready: &impl Fn(Entry) -> bool,
    ) -> core::result::Result<(), Outcome> {
        let (extent, entries, reason) = (self.extent, self.entries, self.reason);
        while self.hi < pages.hi {
            let entry = entries[self.hi].load();
            let first = self.hi == pages.lo;
            match entry.state() {
                _ if entry.is_busy() => {
                    if first {
                        return Err(Outcome::InOtherHands);
                    }
                    break;
                }
                State::Resident if first => return Err(Outcome::Resident),
                State::Leaving if first => {
                    // The one who moves it wakes us.
                    if entries[pages.lo].transition(entry, Entry::new(State::LeavingWanted)) {
                        return Err(Outcome::InOtherHands);
                    }
                    continue;
                }
                State::LeavingWanted if first => return Err(Outcome::InOtherHands),
                State::Resident | State::Leaving | State::LeavingWanted => break,
                State::Aside | State::Stored | State::Same => {
                    if !is_ready(entry) {
                        if first {
                            return Err(Outcome::Pending);
                        }
                        break;
                    }
                    if !entries[self.hi].take(entry) {
                        continue;
                    }
                    if reason.gives_way()
                        && fault_point!(AnnouncementIgnored: extent.is_changing(self.hi), else false)
                    {
                        entries[self.hi].put_back(entry);
                        // Whoever touched the page while we had it was left asleep too, for us to have woken.
                        let unsaid = !reason.is_awaited() && fault_point!(AheadUnsaid: false, else true);
                        if unsaid || extent.turn_away(self.hi) {
                            if first {
                                return Err(Outcome::InOtherHands);
                            }
                            break;
                        }
                        // It is over, and whoever changed it may have found nobody to wake.
                        if !reason.is_service() {
                            fault_point!(AheadOverUnwoken: self.kernel.uffd.wake(extent.page_addr(self.hi), PAGE_SIZE));
                        }
                        continue;
                    }
                    self.taken[self.hi - pages.lo] = entry;
                    self.hi += 1;
                }
            }
        }
        Ok(())
    }

    /// Takes all entries of the extent if every one is `Aside` and nobody changes the mapping.
    fn take_whole(&mut self) -> bool {
        let aside = Entry::new(State::Aside);
        for index in 0..EXTENT_PAGES {
            if !self.entries[index].take(aside) {
                self.put_back_aside(PageRange::new(0, index));
                return false;
            }
        }
        if self.reason.gives_way() && (0..EXTENT_PAGES).any(|index| self.extent.is_changing(index)) {
            self.put_back_aside(PageRange::ALL);
            return false;
        }
        (self.lo, self.next, self.hi, self.aside) = (0, 0, EXTENT_PAGES, true);
        true
    }

    /// Takes the entries of the pages from the first on that are `Aside`, and whose mapping nobody changes. False where the first is not, and
    /// where they are parts of a huge page, which are copied one by one.
    fn take_aside(&mut self, pages: PageRange) -> bool {
        if self.extent.flags.load(Relaxed) & STAGED_HUGE != 0 {
            return false;
        }
        let aside = Entry::new(State::Aside);
        let takes =
            |entry: &AtomicEntry| fault_point!(RecallUntaken: entry.take(aside), else entry.load() == aside);
        while self.hi < pages.hi && takes(&self.entries[self.hi]) {
            if fault_point!(AnnouncementIgnored: self.extent.is_changing(self.hi), else false) {
                self.entries[self.hi].put_back(aside);
                break;
            }
            self.hi += 1;
        }
        self.aside = self.hi > self.lo;
        self.aside
    }

    fn put_back_aside(&self, pages: PageRange) {
        for entry in pages.indices().map(|index| &self.entries[index]) {
            entry.put_back(Entry::new(State::Aside));
        }
    }

    pub(crate) fn entry(&self, index: usize) -> Entry {
        if self.aside {
            Entry::new(State::Aside)
        } else {
            self.taken[index - self.lo]
        }
    }

    /// A mover's turn, which the fault thread itself needs not. It may be waiting for these very entries, so it is
    /// waited for no longer than serving a touch takes.
    pub(crate) fn turn(&self) -> Result<Option<Move<'static>>> {
        if self.reason.is_fault_thread() {
            return Ok(None);
        }
        let mut tries = 0;
        let engine = self.engine;
        let turn = engine.traffic.turns.move_unless(|| {
            tries += 1;
            tries > TRIES || self.reason == Reason::Ahead && engine.traffic.brake.wanted()
        });
        turn.map(Some).ok_or(Errno::EAGAIN)
    }

    /// The next pages that can be brought back in one go: all aside, or all stored.
    pub(crate) fn next_segment(&self) -> PageRange {
        let lo = self.next;
        let mut hi = lo;
        while hi < self.hi
            && (self.entry(hi).state() == State::Aside) == (self.entry(lo).state() == State::Aside)
        {
            hi += 1;
        }
        PageRange::new(lo, hi)
    }

    /// The page is in the program's view. Returns what its entry said before.
    pub(crate) fn finish(&mut self, index: usize) -> Entry {
        debug_assert_eq!(index, self.next);
        let entry = self.entry(index);
        let is_awaited = self.reason.is_awaited();
        let is_walk = self.reason == Reason::Walk || is_awaited && self.walked;
        let is_touched = is_awaited && self.touched.is_none_or(|touched| touched == index);
        if is_touched && !is_walk || fault_point!(WalkTakenForUse: false, else is_walk) {
            self.extent.hot.add(index);
        }
        self.entries[index].finish(entry);
        self.extent.away.fetch_sub(1, Relaxed);
        self.next += 1;
        entry
    }

    /// Gives up what is left of the run; whether there was anything.
    pub(crate) fn put_back_rest(&mut self) -> bool {
        for index in self.next..self.hi {
            self.entries[index].put_back(self.entry(index));
        }
        self.next < self.hi
    }
}
