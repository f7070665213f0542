//! Bringing pages back into the program's view.
//!
//! The fault thread, the background thread (ahead of a touch) and the proxy (for a program thread, before a change of
//! mapping that evicted pages cannot go through) all do it by this code, each with a [`Restorer`] of its own.
//!
//! Invariants: a page's entry is taken before its bytes are touched, and becomes `Resident` only after the
//! page is in the program's view; what a page leaves behind (slot, staged copy) is given up after that.

use crate::codec::{Codecs, Page};
use crate::engine::Engine;
use crate::fault::reason::{Outcome, Reason};
use crate::fault::run::{Run, MAX_WINDOW};
use crate::kernel::Kernel;
use crate::sabotage::{fault_point, linger, planted, Bug};
use crate::tables::bitmap::PageRange;
use crate::tables::entry::{Entry, State};
use crate::tables::extent::{Extent, RECALLED, SPLITS, STAGED_HUGE};
use crate::tier::arrived::Arrived;
use crate::tier::location::Location;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::{self, Nanos};
use memfold_sys::uffd::Progress;
use memfold_sys::{mem, Errno, Result, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// Most pages that are brought on one touch where a CPU is idle; from so many on helpers are asked to bring the
/// next ones while the program works on these. Where none is, they get no time, and [`MAX_WINDOW`] is the most.
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
        let buffer = mem::map_scratch(MAX_WINDOW * PAGE_SIZE, libc::MAP_POPULATE)?;
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
        let mut run = Run::new(engine, self.kernel, extent, entries, pages.lo, reason);
        run.walked = engine.takes_guesses() && extent.is_walked_through();
        if let Err(outcome) = run.take(pages, self.shift != 0, &|entry| self.is_ready(entry)) {
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
        let _turn = run.turn()?;
        engine.children.give(extent, segment, staged);
        let move_back = || {
            // SAFETY: the entries were taken: the pages are ours to move, back to where they came from.
            let mut progress = unsafe { kernel.uffd.move_present(page, staged, len) };
            if progress.error == Some(Errno::EEXIST) {
                // Where the page map cannot be read, what came unseen is found to be there page by page.
                let (done, rest) = (progress.done, (len - progress.done) / PAGE_SIZE);
                let unseen = kernel.pagemap.moved_unseen(staged + done, page.wrapping_add(done), rest);
                progress.done += fault_point!(BroughtUnseen: unseen.unwrap_or(0), else 0) * PAGE_SIZE;
            }
            progress
        };
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
        let _turn = run.turn()?;
        engine.children.give(extent, segment, self.buffer);
        let page = extent.page_addr(segment.lo).wrapping_add(self.shift);
        // SAFETY: the buffer holds the bytes that belong at these pages, whose entries were taken.
        let progress = unsafe { kernel.uffd.copy(page, self.buffer, segment.bytes()) };
        let buffer = self.buffer;
        let pages = settle(progress, |at| {
            // SAFETY: as above, for one page.
            unsafe { kernel.uffd.copy(page + at, buffer + at, PAGE_SIZE) }
        })?;
        let mut soon = 0;
        for index in PageRange::from(segment.lo, pages).indices() {
            if !run.walked && extent.was_stored_lately(index) {
                soon += 1;
                if run.reason == Reason::Fault {
                    extent.back_soon.add(index);
                }
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
        engine.counts.soon_back.fetch_add(soon, Relaxed);
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
