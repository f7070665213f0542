//! Bringing pages back into the program's view.
//!
//! The fault thread, the background thread (ahead of a touch) and the proxy (for a program thread, before a change of
//! mapping that evicted pages cannot go through) all do it by this code, each with a [`Restorer`] of its own.
//!
//! Invariants: a page's entry is taken before its bytes are touched, and becomes `Resident` only after the
//! page is in the program's view; what a page leaves behind (slot, staged copy) is given up after that.

use crate::codec::{Codecs, Page};
use crate::engine::Engine;
use crate::kernel::Kernel;
use crate::sabotage::{fault_point, linger, planted, Bug};
use crate::tables::bitmap::PageRange;
use crate::tables::entries::Entries;
use crate::tables::entry::{AtomicEntry, Entry, State};
use crate::tables::extent::{Extent, RECALLED, SETTLED, SPLITS, STAGED_HUGE};
use crate::tier::arrived::Arrived;
use crate::tier::location::Location;
use crate::turns::Move;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::{self, Nanos};
use memfold_sys::uffd::Progress;
use memfold_sys::{mem, Errno, Result, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// Most pages brought back at once, but for those that lie whole where memory is walked through: all of them that follow one another are
/// moved by one call, and nobody waits for one in particular.
pub const MAX_WINDOW: usize = 32;

/// Most pages that are brought on one touch where a CPU is idle; from so many on the background thread is asked to bring the
/// next ones while the program works on these. Where none is, that thread gets no time, and [`MAX_WINDOW`] is the most.
pub const AT_ONCE: u32 = 8;

/// Up to so many pages come back from staging by a copy. A move interrupts every CPU that ran the program, which costs more:
/// to wake an idle virtual CPU just for that takes 30 to 100 us, and whoever touched the page waits.
const COPY_MOST: usize = 16;

/// What copies left behind in staging is dropped from so many pages on ([`Worker::drop_copies`]); twice as many there are at most,
/// beyond which pages are moved.
///
/// [`Worker::drop_copies`]: crate::evict::worker::Worker::drop_copies
pub const COPIES: u64 = 512;

/// What may lie there before it is dropped: under a limit, as little as a page or two of each extent, since it counts.
pub fn copies_kept(engine: &Engine) -> u64 {
    if engine.room.is_kept() {
        COPIES / 16
    } else {
        COPIES
    }
}

impl Engine {
    /// So many pages of the extent are left in staging that are not there any more by their entries.
    pub(crate) fn note_copies(&self, extent: &Extent, pages: usize) {
        let pages = fault_point!(CopiesUncounted: pages, else 0);
        self.counts.copies.fetch_add(pages as u64, Relaxed);
        extent.copies.fetch_add(pages as u32, Relaxed);
    }
}

/// Why the page is brought back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reason {
    /// A thread waits for it.
    Fault,
    /// Pages around it are touched one after another, and the fault thread brings it along.
    Walk,
    /// It will be touched soon.
    Ahead,
    /// The mapping is about to change, or the pager to end; the caller holds the extent's lock.
    Change,
    /// Its mapping was moved past libc, and the fault thread takes it along.
    Moved,
    /// A thread waits for it, and it had to be fetched from below memory.
    Late,
}

impl Reason {
    /// Whether the one who restores gives way to an announced change.
    fn gives_way(self) -> bool {
        matches!(self, Reason::Fault | Reason::Walk | Reason::Ahead | Reason::Late)
    }

    /// Whether a thread waits for the first page.
    fn is_awaited(self) -> bool {
        matches!(self, Reason::Fault | Reason::Late)
    }

    fn is_fault_thread(self) -> bool {
        matches!(self, Reason::Fault | Reason::Walk | Reason::Moved)
    }

    /// Whether the fault thread does it while it serves a touch. It turns nobody away meanwhile, and wipes and wakes itself.
    fn is_service(self) -> bool {
        matches!(self, Reason::Fault | Reason::Walk)
    }
}

/// How often somebody else tries to get a turn while the fault thread has it: for about as long as serving a touch takes,
/// without ever sleeping.
const TRIES: u32 = 150;

/// What became of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// These pages are in the program's view; whoever sleeps on them is to be woken.
    Done {
        /// The first.
        first: usize,
        /// How many.
        pages: usize,
    },
    /// Somebody else is bringing the first page back, or changing its mapping: they wake who waits.
    InOtherHands,
    /// The first page is not away.
    Resident,
    /// The kernel is in the middle of a change that it has yet to report; read its messages, then try again.
    TryAgain,
    /// There is no registered mapping at the page any more.
    Gone,
    /// It lies below memory, and must be fetched first (`crate::tier`).
    Pending,
}

/// Where the bytes of a page can be read ([`Restorer::peek`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Peek {
    /// At this address: in staging, or in the restorer's working memory until its next use.
    At(usize),
    /// Below memory: it must be fetched first.
    Below,
    /// Nowhere.
    Unreadable,
}

/// What an agent restores with: whom it works for, and working memory.
pub struct Restorer {
    pub(crate) engine: &'static Engine,
    pub(crate) kernel: &'static Kernel,
    codecs: Codecs,
    /// [`MAX_WINDOW`] pages.
    buffer: usize,
    /// So many of them may hold bytes of the program's.
    used: usize,
    /// How far from its extent a page is put; 0 except after an `mremap` past libc.
    shift: usize,
    /// What was fetched from below memory.
    pub(crate) arrived: Arrived,
    /// When the steps of the next restore are reached, where that is wanted.
    pub(crate) marks: Option<Marks>,
}

/// When the steps of a restore were reached; 0 for not at all.
#[derive(Clone, Copy, Default)]
pub struct Marks {
    /// Its entries were taken.
    pub taken: Nanos,
    /// The bytes of the first pages were in the buffer.
    pub unpacked: Nanos,
}

impl Restorer {
    /// Maps it.
    pub fn new(engine: &'static Engine, kernel: &'static Kernel) -> Result<Restorer> {
        let buffer = mem::map_own(MAX_WINDOW * PAGE_SIZE, libc::MAP_POPULATE)?;
        let codecs = Codecs::new()?;
        Ok(Restorer {
            engine,
            kernel,
            codecs,
            buffer,
            used: 0,
            shift: 0,
            arrived: Arrived::new(),
            marks: None,
        })
    }

    /// Overwrites what the last restores left in the working memory. [`restore`](Self::restore) does so itself, but for a fault: whoever
    /// waits for the page is to be woken before.
    pub fn wipe(&mut self) {
        let used = core::mem::take(&mut self.used);
        if fault_point!(BufferNotWiped: used == 0, else true) {
            return;
        }
        // SAFETY: the buffer is ours and has so many pages, of which nobody has a reference.
        unsafe { core::ptr::write_bytes(self.buffer as *mut u8, 0, used * PAGE_SIZE) };
        // SAFETY: as above, and of the first page there is no other reference.
        self.codecs.wipe(unsafe { &mut *(self.buffer as *mut Page) });
    }

    /// Brings back the first of these pages of the extent, and of those behind it as many as are away too.
    ///
    /// Ahead of a touch it wakes whoever touched them meanwhile; otherwise nobody but who was turned away.
    pub fn restore(&mut self, extent: &Extent, pages: PageRange, reason: Reason) -> Outcome {
        let engine = self.engine;
        let Some(entries) = extent.entries() else { return Outcome::Resident };
        // The fault thread's waits begin with its messages.
        let began = if reason.is_service() { Nanos(0) } else { time::now() };
        let mut run = Run::new(extent, entries, pages.lo, reason);
        run.walked = engine.takes_guesses() && extent.is_walked_through();
        if let Err(outcome) = run.take(self, pages) {
            return outcome;
        }
        self.mark(|marks| &mut marks.taken);
        linger(Bug::BusyNotAwaited);
        if reason == Reason::Ahead {
            linger(Bug::AheadWakeLost);
        }
        let first = run.lo;
        let mut done = 0;
        let outcome = loop {
            let segment = run.next_segment();
            if segment.is_empty() {
                break Outcome::Done { first, pages: done };
            }
            let result = match run.entry(segment.lo).state() {
                State::Aside => self.bring_aside(&mut run, segment),
                _ => self.bring_stored(&mut run, segment),
            };
            match result {
                Ok(pages) => done += pages,
                // The pages behind the first are a bonus: what went wrong with them is found out when they are touched.
                Err(_) if done > 0 => break Outcome::Done { first, pages: done },
                Err(Errno::EAGAIN) => break Outcome::TryAgain,
                Err(Errno(libc::ESTALE)) => break Outcome::Pending,
                Err(_) => break Outcome::Gone,
            }
        };
        if run.put_back_rest() && !reason.is_service() {
            // The fault thread may have seen the entries busy, and left the waking to us.
            engine.wake_ahead(self.kernel, extent.page_addr(run.lo), (run.hi - run.lo) * PAGE_SIZE, began);
        }
        if !reason.is_service() {
            self.wipe();
        }
        engine.room.take(done);
        if let (Reason::Ahead, Outcome::Done { first, pages }) = (reason, outcome) {
            let (start, len) = (extent.page_addr(first), pages * PAGE_SIZE);
            fault_point!(AheadWakeLost: engine.wake_ahead(self.kernel, start, len, began));
        }
        outcome
    }

    fn mark(&mut self, step: impl Fn(&mut Marks) -> &mut Nanos) {
        if let Some(marks) = &mut self.marks {
            *step(marks) = time::now();
        }
    }

    /// Brings a page back at an address other than its own, because its mapping was moved there.
    pub fn restore_elsewhere(&mut self, extent: &Extent, index: usize, target: usize) -> Outcome {
        self.shift = target.wrapping_sub(extent.page_addr(index));
        let outcome = self.restore(extent, PageRange::one(index), Reason::Moved);
        self.shift = 0;
        outcome
    }

    /// Brings back pages that lie whole in staging.
    fn bring_aside(&mut self, run: &mut Run<'_>, segment: PageRange) -> Result<usize> {
        let (engine, kernel, extent) = (self.engine, self.kernel, run.extent);
        let Some(staged) = kernel.staging.page_addr(extent, segment.lo) else { return Err(Errno::ENOENT) };
        let page = extent.page_addr(segment.lo).wrapping_add(self.shift);
        let len = segment.bytes();
        let huge = extent.flags.load(Relaxed) & STAGED_HUGE != 0;
        let _turn = run.turn(engine)?;
        engine.children.give(extent, segment, staged);
        // SAFETY: the entries were taken: the pages are ours to move, back to where they came from.
        let move_back = || unsafe { kernel.uffd.move_present(page, staged, len) };
        let progress = if huge && len < EXTENT_SIZE {
            // Moving one small page out of a huge one splits it, which takes a hundred times as long as a copy.
            Progress { done: 0, error: Some(Errno::EBUSY) }
        } else if engine.options.wipes.load(Relaxed) == 0
            && run.reason.gives_way()
            && segment.len() <= COPY_MOST
            && engine.counts.copies.load(Relaxed) < 2 * copies_kept(engine)
        {
            // SAFETY: a taken `Aside` page is readable in staging.
            match unsafe { kernel.uffd.copy(page, staged, len) } {
                Progress { done: 0, error: Some(Errno::ENOMEM) } => move_back(),
                progress => {
                    engine.note_copies(extent, progress.done / PAGE_SIZE);
                    progress
                }
            }
        } else {
            move_back()
        };
        let pages = settle(progress, |at| {
            // Shared with a forked child, part of a huge page, or mapped with another protection than staging.
            // SAFETY: a taken `Aside` page is readable in staging.
            let progress = unsafe { kernel.uffd.copy(page + at, staged + at, PAGE_SIZE) };
            engine.note_copies(extent, progress.done / PAGE_SIZE);
            progress
        })?;
        for index in PageRange::from(segment.lo, pages).indices() {
            run.finish(index);
        }
        engine.counts.aside.fetch_sub(pages as u64, Relaxed);
        if run.reason.is_service() {
            engine.control().pages_second_chance.fetch_add(pages as u64, Relaxed);
        }
        if run.reason == Reason::Walk {
            extent.unasked.fetch_add(pages as u32, Relaxed);
        }
        if run.touched.is_some() && pages == EXTENT_PAGES {
            extent.unasked.fetch_add(pages as u32 - 1, Relaxed);
            extent.flags.fetch_or(SPLITS | RECALLED, Relaxed);
        }
        Ok(pages)
    }

    /// Whether the page of the entry can be read without waiting.
    fn is_ready(&self, entry: Entry) -> bool {
        match (Location::below(entry), self.engine.below()) {
            (Some(berth), Some(below)) => self.arrived.is(berth.cluster, &below.clusters),
            _ => true,
        }
    }

    /// Brings back pages from the store.
    fn bring_stored(&mut self, run: &mut Run<'_>, segment: PageRange) -> Result<usize> {
        let (engine, kernel, extent, control) = (self.engine, self.kernel, run.extent, self.engine.control());
        self.used = self.used.max(segment.len());
        let mut segment = segment;
        for index in segment.indices() {
            // The cluster that was fetched may lie elsewhere by now.
            if !self.is_ready(run.entry(index)) {
                segment.hi = index;
                break;
            }
            if !self.decompress(run.entry(index), index - segment.lo) {
                control.pages_lost.fetch_add(1, Relaxed);
                engine.fail_hard("memfold: a stored page cannot be read back; the program must not go on");
            }
        }
        if segment.is_empty() {
            return Err(Errno(libc::ESTALE));
        }
        self.mark(|marks| &mut marks.unpacked);
        let _turn = run.turn(engine)?;
        engine.children.give(extent, segment, self.buffer);
        let page = extent.page_addr(segment.lo).wrapping_add(self.shift);
        // SAFETY: the buffer holds the bytes that belong at these pages, whose entries were taken.
        let progress = unsafe { kernel.uffd.copy(page, self.buffer, segment.bytes()) };
        let buffer = self.buffer;
        let pages = settle(progress, |at| {
            // SAFETY: as above, for one page.
            unsafe { kernel.uffd.copy(page + at, buffer + at, PAGE_SIZE) }
        })?;
        let soon = extent.flags.load(Relaxed) & SETTLED == 0 && !run.walked;
        for index in PageRange::from(segment.lo, pages).indices() {
            if soon && run.reason == Reason::Fault {
                extent.back_soon.add(index);
            }
            let entry = run.finish(index);
            if let Some(location) = Location::of(entry) {
                engine.release(location);
                fault_point!(SlotFreedTwice: (), else engine.release(location));
            }
        }
        engine.counts.stored.fetch_sub(pages as u64, Relaxed);
        control.pages_restored.fetch_add(pages as u64, Relaxed);
        if run.reason == Reason::Ahead {
            control.pages_prefetched.fetch_add(pages as u64, Relaxed);
        }
        if soon {
            engine.counts.soon_back.fetch_add(pages as u64, Relaxed);
        }
        Ok(pages)
    }

    /// Where the bytes of a page lie that is away and in no other hands.
    pub(crate) fn peek(&mut self, extent: &Extent, index: usize) -> Peek {
        let entry = extent.entry(index);
        let at = match entry.state() {
            State::Aside => self.kernel.staging.page_addr(extent, index),
            State::Stored | State::Same if !self.is_ready(entry) => return Peek::Below,
            State::Stored | State::Same => {
                self.used = self.used.max(1);
                self.decompress(entry, 0).then_some(self.buffer)
            }
            State::Resident | State::Leaving | State::LeavingWanted => None,
        };
        at.map_or(Peek::Unreadable, Peek::At)
    }

    /// Puts the bytes of a stored page that was found to be ready into page `n` of the buffer.
    fn decompress(&mut self, entry: Entry, n: usize) -> bool {
        debug_assert!(n < MAX_WINDOW);
        // SAFETY: the buffer is ours and has so many pages.
        let page = unsafe { &mut *((self.buffer + n * PAGE_SIZE) as *mut Page) };
        if entry.state() == State::Same {
            let word = entry.same_word().to_ne_bytes();
            page.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
            return true;
        }
        let stored = match Location::of(entry) {
            // SAFETY: the entry was taken, so its slot stays until we give it up.
            Some(Location::Memory(slot)) => unsafe { slot.read() },
            Some(Location::Below(berth)) => {
                let is = !planted(Bug::MovedTakenForLost) || self.is_ready(entry);
                self.arrived.page(berth).filter(|_| is)
            }
            None => None,
        };
        stored.is_some_and(|(codec, data)| {
            self.codecs.decompress(codec, &self.engine.storage.dictionaries, data, page)
        })
    }
}

impl Drop for Restorer {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody has its address.
        let _ = unsafe { mem::munmap(self.buffer, MAX_WINDOW * PAGE_SIZE) };
    }
}

/// Turns the progress of a call over several pages into the number of pages that are in place: goes on by
/// `one(offset)` after a page that is there already, and where the call cannot serve a page.
fn settle(first: Progress, mut one: impl FnMut(usize) -> Progress) -> Result<usize> {
    let pages = first.done / PAGE_SIZE;
    match first.error {
        None => Ok(pages),
        // A part was done, and why the rest was not is not told: whoever needs the rest asks again.
        Some(_) if pages > 0 => Ok(pages),
        // The page is in the program's view: nothing of it is missing.
        Some(Errno::EEXIST) if fault_point!(ExistingTakenForGone: true, else false) => Ok(1),
        // Shared or part of a huge page; more than one mapping; out of memory: the first page alone may do.
        Some(Errno::EBUSY | Errno::EINVAL | Errno::ENOENT | Errno::ENOMEM) => loop {
            match one(0).error {
                None | Some(Errno::EEXIST) => return Ok(1),
                // Out of memory, or out of the control group's: the page is needed, so wait for some.
                Some(Errno::ENOMEM) => memfold_sys::time::sleep(memfold_sys::time::Nanos::from_millis(1)),
                Some(e) => return Err(e),
            }
        },
        Some(e) => Err(e),
    }
}

/// Consecutive entries that one thread has taken.
struct Run<'a> {
    extent: &'a Extent,
    entries: &'a Entries,
    lo: usize,
    /// Pages `lo..next` are finished or put back.
    next: usize,
    hi: usize,
    taken: [Entry; MAX_WINDOW],
    /// All entries are `Aside`: they may be more than [`MAX_WINDOW`], as many as come back by one move.
    aside: bool,
    reason: Reason,
    /// It is being walked through: what comes back tells nothing of what is in use. Where a limit is kept it does all the same.
    walked: bool,
    /// All of the extent comes back as one huge page for a touch of this page, which tells nothing of the others.
    touched: Option<usize>,
}

impl<'a> Run<'a> {
    /// Nothing is taken yet.
    fn new(extent: &'a Extent, entries: &'a Entries, lo: usize, reason: Reason) -> Run<'a> {
        let taken = [Entry::RESIDENT; MAX_WINDOW];
        Run {
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

    /// Takes the entry of the first of the pages, and of those behind it that are away too; all of the extent where they are one huge page.
    fn take(&mut self, restorer: &Restorer, pages: PageRange) -> core::result::Result<(), Outcome> {
        let reason = self.reason;
        // What was moved past libc comes back page by page.
        if restorer.shift == 0 && self.extent.flags.load(Relaxed) & STAGED_HUGE != 0 {
            if self.take_whole() {
                let splits = reason.is_awaited() && !self.walked && restorer.engine.has_huge_pages();
                self.touched = splits.then_some(pages.lo);
                return Ok(());
            }
            if !reason.is_service() {
                // As in `restore`: the entries were busy for a moment.
                restorer.kernel.uffd.wake(self.extent.base(), EXTENT_SIZE);
            }
        }
        if reason == Reason::Walk && self.take_aside(pages) {
            return Ok(());
        }
        self.take_away(restorer, PageRange::from(pages.lo, pages.len().clamp(1, MAX_WINDOW)))
    }

    /// Takes the entry of the first of the pages, and of those behind it that are away too.
    fn take_away(&mut self, restorer: &Restorer, pages: PageRange) -> core::result::Result<(), Outcome> {
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
                    if !restorer.is_ready(entry) {
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
                            fault_point!(AheadOverUnwoken: restorer.kernel.uffd.wake(extent.page_addr(self.hi), PAGE_SIZE));
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

    fn entry(&self, index: usize) -> Entry {
        if self.aside {
            Entry::new(State::Aside)
        } else {
            self.taken[index - self.lo]
        }
    }

    /// A mover's turn, which the fault thread itself needs not. It may be waiting for these very entries, so it is
    /// waited for no longer than serving a touch takes.
    fn turn<'t>(&self, engine: &'t Engine) -> Result<Option<Move<'t>>> {
        if self.reason.is_fault_thread() {
            return Ok(None);
        }
        let mut tries = 0;
        let turn = engine.traffic.turns.move_unless(|| {
            tries += 1;
            tries > TRIES || self.reason == Reason::Ahead && engine.traffic.brake.wanted()
        });
        turn.map(Some).ok_or(Errno::EAGAIN)
    }

    /// The next pages that can be brought back in one go: all aside, or all stored.
    fn next_segment(&self) -> PageRange {
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
    fn finish(&mut self, index: usize) -> Entry {
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
    fn put_back_rest(&mut self) -> bool {
        for index in self.next..self.hi {
            self.entries[index].put_back(self.entry(index));
        }
        self.next < self.hi
    }
}
