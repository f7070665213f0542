//! Setting aside: from the program's view to staging.
//!
//! Background thread only. It tries the locks of extents, and ends each piece of work by swapping a page entry
//! that may have been taken meanwhile.

use crate::activity::Activity;
use crate::evict::scan::read_runs;
pub use crate::evict::scan::{forget_written, scan};
use crate::evict::worker::Worker;
use crate::retry::patiently;
use crate::sabotage::{fault_point, linger, Bug};
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::entries::Entries;
use crate::tables::entry::{Entry, State};
use crate::tables::extent::{Extent, Locked, SPLITS, STAGED_HUGE, WAS_HUGE};
use crate::turns::Move;
use core::sync::atomic::Ordering::*;
use memfold_sys::pagemap::{Categories, Query};
use memfold_sys::uffd::{Modes, Userfaultfd};
use memfold_sys::{Errno, EXTENT_PAGES, PAGE_SIZE};

/// Pages moved by one call: many enough to share its cost, few enough that a thread which touches one of
/// them meanwhile waits for microseconds.
const MOVE_BATCH: usize = 64;
/// An extent of which nothing is away is not worth registering for fewer cold pages, because that may cut its mapping in
/// three...
const LEAST_PAGES: usize = 8;
/// ...unless so many pages lie scattered by fewer than that, which is a large mapping with little in it: its extents are
/// neighbours, and the kernel has those that are registered as one mapping again.
const MANY_SCATTERED: u64 = 1024;

impl Worker {
    /// Registers the managed pages of an extent for write tracking. Whether there are any; `None` where it cannot be done now.
    pub fn watch(&mut self, extent: &Locked) -> Option<bool> {
        let mut any = false;
        self.arm(extent, &self.stays_armed(extent));
        let fresh = extent.managed.load().minus(&extent.armed.load());
        let undisturbed = self.report_less(extent, &fresh, |start, len, run| {
            match self.kernel.uffd.register(start, len, Modes::WP) {
                Ok(()) => any = true,
                Err(e) => self.not_registrable(extent, run, e),
            }
        });
        if !undisturbed {
            return None;
        }
        if !any && extent.armed.load().is_empty() {
            return Some(false);
        }
        let scan = scan(self.kernel, extent, true).or_else(|_| {
            // Something lies where there was a hole when its neighbours were registered.
            self.register(extent, &extent.armed.load());
            scan(self.kernel, extent, true)
        });
        // Nobody has watched, so all that may have been written counts.
        Some(scan.map(|scan| extent.refused.remove(&scan.written)).is_ok())
    }

    /// A mover's turn in which no mapping is being changed; `None` where there is none now.
    fn turn(&self) -> Option<Move<'static>> {
        // The fault thread may be waiting for us to stand still.
        let turn = self.engine.traffic.turns.move_unless(|| self.engine.traffic.brake.wanted())?;
        // Where something was unmapped or moved past libc, and the report is not read yet, what the tables say of a place may be true no more.
        let changing = fault_point!(ReportNotAwaited: self.kernel.uffd.is_changing(), else false);
        (!changing).then_some(turn)
    }

    /// Has `act` make it so that the kernel reports no touches of what was never there in these pages of an extent, of which none is away. Whether it could be done now.
    ///
    /// While somebody moves other memory there past libc (mremap(2)), of which pages may be away, those must be reported on. Nobody acts on the report of that
    /// before our turn is over, nor goes on who moved it, and by then all of it is registered again.
    fn report_less(
        &self,
        extent: &Extent,
        pages: &PageSet,
        mut act: impl FnMut(usize, usize, PageRange),
    ) -> bool {
        let address = |run: &PageRange| (extent.page_addr(run.lo), run.bytes());
        let Some(_turn) = self.turn() else { return false };
        linger(Bug::MovedUnregistered);
        for run in pages.runs() {
            let (start, len) = address(&run);
            act(start, len, run);
        }
        if fault_point!(MovedUnregistered: !self.kernel.uffd.is_changing(), else true) {
            return true;
        }
        for (start, len) in pages.runs().map(|run| address(&run)) {
            // Where nothing is any more there is nothing to register.
            let _ = patiently(|| self.kernel.uffd.register(start, len, self.kernel.armed_modes()));
        }
        false
    }

    /// Registers the pages for write tracking of which [`Worker::disarm`] has let go. For the kernel all of them count as written by that, and
    /// what it refused to move is as it was.
    pub(crate) fn watch_again(&mut self, extent: &Locked) {
        let refused = extent.refused.load();
        self.watch(extent);
        fault_point!(RefusalsForgotten: { extent.refused.insert(&refused); });
    }

    /// A mapping that cannot be registered is not what we took it for: leave it alone.
    fn not_registrable(&self, extent: &Locked, run: PageRange, error: Errno) {
        if error == Errno::ENOMEM {
            // The limit on mappings, or no memory: try again later.
            return;
        }
        self.unmanage(extent, &run.set());
    }

    fn unmanage(&self, extent: &Locked, pages: &PageSet) {
        let gone = extent.managed.load().and(pages);
        extent.managed.remove(&gone);
        self.engine.counts.managed.fetch_sub((gone.len() * PAGE_SIZE) as u64, Relaxed);
    }

    /// Registers pages that can leave for missing faults, and returns those of which that is certain: from then on the kernel reports
    /// whatever happens to their mapping.
    ///
    /// That it is noted of a page is not enough. The kernel skips holes when it registers, and a hole is what something leaves that goes
    /// past libc before it is registered, which nobody reports; nor what comes to lie there next.
    fn arm_for_certain(&self, extent: &Locked, wanted: &PageSet) -> PageSet {
        if fault_point!(HoleTakenForArmed: false, else true) {
            return if self.arm(extent, wanted) { *wanted } else { PageSet::EMPTY };
        }
        if !self.kernel.tracks_writes {
            // The kernel does not tell. To register again changes nothing.
            return if self.register(extent, wanted) { *wanted } else { PageSet::EMPTY };
        }
        for _ in 0..2 {
            let (mut there, mut certain) = (PageSet::EMPTY, PageSet::EMPTY);
            let (all, report) = (Categories::PRESENT, Categories::TRACKED);
            let look = Query { all, none: Categories::empty(), report, protect: false };
            let looked = self.arm(extent, wanted)
                && read_runs(self.kernel, extent, &look, |pages, categories| {
                    there = there.or(&pages);
                    if categories.contains(Categories::TRACKED) {
                        certain = certain.or(&pages);
                    }
                })
                .is_ok();
            if !looked {
                break;
            }
            let uncertain = wanted.and(&there).minus(&certain);
            if uncertain.is_empty() {
                return wanted.and(&certain);
            }
            self.register(extent, &uncertain);
        }
        PageSet::EMPTY
    }

    /// Pages of an extent that are registered for missing faults also while none is away.
    fn stays_armed(&self, extent: &Extent) -> PageSet {
        let all = self.engine.room.is_kept() || self.engine.pieces.are_scarce();
        if all {
            extent.managed.load()
        } else {
            extent.uncut.load()
        }
    }

    /// Registers pages for missing faults, except those of which that is noted.
    pub(crate) fn arm(&self, extent: &Locked, pages: &PageSet) -> bool {
        self.keep_uncut(extent, pages);
        self.register(extent, &pages.minus(&extent.armed.load()))
    }

    /// The same, whatever is noted. What is away stays noted as registered throughout, since a forked child goes by that.
    pub(super) fn register(&self, extent: &Locked, pages: &PageSet) -> bool {
        if pages.is_empty() {
            return true;
        }
        if extent.armed.load().is_empty() {
            self.engine.control().extents_registered.fetch_add(1, Relaxed);
        }
        // Whole managed runs, so that the mapping is not cut into more pieces than it must.
        for run in extent.managed.load().or(&extent.uncut.load()).runs() {
            if run.set().and(pages).is_empty() {
                continue;
            }
            match self.kernel.uffd.register(extent.page_addr(run.lo), run.bytes(), self.kernel.armed_modes())
            {
                Ok(()) => {
                    extent.armed.insert(&run.set());
                }
                Err(e) => {
                    self.not_registrable(extent, run, e);
                    return false;
                }
            }
        }
        true
    }

    /// Sets aside the pages in `wanted` that can be, and returns how many were.
    pub fn set_aside(&mut self, extent: &Locked, wanted: &PageSet, huge: bool) -> usize {
        let wanted = wanted.and(&extent.managed.load());
        let few = wanted.len() < LEAST_PAGES && extent.away.load(Relaxed) == 0;
        self.note_scattered(extent, if few { wanted.len() } else { 0 });
        if few && self.census.scattered < MANY_SCATTERED {
            return 0;
        }
        self.set_aside_any(extent, &wanted, huge)
    }

    /// So many pages of the extent could be set aside, and are too few for it alone.
    pub(crate) fn note_scattered(&mut self, extent: &Extent, pages: usize) {
        let before = u64::from(extent.scattered.swap(pages as u32, Relaxed));
        self.census.scattered = (self.census.scattered + pages as u64).saturating_sub(before);
    }

    /// The same, however few pages they are.
    pub fn set_aside_any(&mut self, extent: &Locked, wanted: &PageSet, huge: bool) -> usize {
        let before = self.enter(Activity::SetAside);
        let moved = self.move_wanted(extent, wanted, huge);
        self.enter(before);
        moved
    }

    fn move_wanted(&mut self, extent: &Locked, wanted: &PageSet, huge: bool) -> usize {
        let wanted = wanted.and(&extent.managed.load());
        if wanted.is_empty() {
            return 0;
        }
        let Ok(entries) = extent.make_entries(&wanted, &self.engine.tables.pool) else { return 0 };
        self.engine.space().wake(extent);
        let wanted = fault_point!(ArmedTooLate: self.arm_for_certain(extent, &wanted), else wanted);
        if wanted.is_empty() {
            return 0;
        }
        if extent.staging.load(SeqCst) != 0 {
            self.sweep_staging(extent, entries, &wanted);
        } else {
            // SAFETY: we are the background thread.
            let taken = unsafe { self.kernel.staging.take(extent) };
            if !taken {
                return 0;
            }
        }
        let kernel = self.kernel;
        // Without memory to open it, nothing goes.
        let moved = kernel.staging.open_to(extent, &kernel.uffd).map_or(0, |uffd| {
            let moved = self.move_all_out(extent, entries, uffd, &wanted, huge);
            kernel.staging.close_to(extent, &kernel.uffd);
            moved
        });
        linger(Bug::ArmedTooLate);
        fault_point!(ArmedTooLate: true, else self.arm(extent, &wanted));
        self.engine.control().pages_set_aside.fetch_add(moved as u64, Relaxed);
        if moved != 0 {
            extent.last_aside.store(self.now.0, Relaxed);
        }
        if moved == 0 && extent.away.load(SeqCst) == 0 {
            self.release_staging(extent);
        }
        moved
    }

    /// Moves the wanted pages to staging, by batches. Returns how many went.
    fn move_all_out(
        &mut self,
        extent: &Locked,
        entries: &Entries,
        uffd: &Userfaultfd,
        wanted: &PageSet,
        huge: bool,
    ) -> usize {
        if huge && wanted.len() == EXTENT_PAGES {
            return self.move_out(extent, entries, uffd, PageRange::ALL, true);
        }
        if huge {
            // Parts of a huge page are not taken out of it: that would split it, at a high price.
            return 0;
        }
        let mut moved = 0;
        for run in wanted.runs() {
            for at in run.indices().step_by(MOVE_BATCH) {
                let batch = PageRange::new(at, (at + MOVE_BATCH).min(run.hi));
                moved += self.move_out(extent, entries, uffd, batch, false);
            }
        }
        moved
    }

    /// Moves pages, where they are `Resident`, to staging. Returns how many went.
    fn move_out(
        &mut self,
        extent: &Locked,
        entries: &Entries,
        uffd: &Userfaultfd,
        pages: PageRange,
        huge: bool,
    ) -> usize {
        let Some(_turn) = self.turn() else {
            self.eviction.put_off = true;
            return 0;
        };
        let leaving = Entry::new(State::Leaving);
        let mut leavers = PageSet::EMPTY;
        // Again: the mapping may have been changed past libc.
        let managed = extent.managed.load();
        for (index, entry) in entries.iter().enumerate().take(pages.hi).skip(pages.lo) {
            if managed.contains(index) && entry.transition(Entry::RESIDENT, leaving) {
                leavers.insert(index);
            }
        }
        let mut moved = 0;
        if huge {
            if leavers.len() == pages.len() {
                extent.flags.fetch_or(STAGED_HUGE, SeqCst);
                let gone = self.move_run(extent, entries, uffd, pages);
                if gone != pages.len() {
                    extent.flags.fetch_and(!STAGED_HUGE, SeqCst);
                }
                return gone;
            }
        } else if extent.flags.fetch_and(!(STAGED_HUGE | SPLITS), SeqCst) & SPLITS != 0 {
            // The kernel splits it when the first of its pages moves, which takes it some 0.4 ms.
            extent.flags.fetch_or(WAS_HUGE, Relaxed);
        }
        for run in leavers.runs() {
            moved += if huge {
                self.stay(extent, entries, run)
            } else {
                self.move_run(extent, entries, uffd, run)
            };
        }
        moved
    }

    /// Moves `Leaving` pages to staging and says in their entries what came of it.
    fn move_run(&mut self, extent: &Locked, entries: &Entries, uffd: &Userfaultfd, run: PageRange) -> usize {
        let Some(staging) = self.kernel.staging.page_addr(extent, 0) else {
            return self.stay(extent, entries, run);
        };
        let mut moved = 0;
        let (mut at, hi) = (run.lo, run.hi);
        while at < hi {
            let page = extent.page_addr(at);
            // SAFETY: the pages' entries are `Leaving`, their mapping is registered, and the extent's lock
            // keeps the program from changing it, or the kernel reports that; whoever touches them waits for us.
            let progress = unsafe { uffd.move_pages(staging + at * PAGE_SIZE, page, (hi - at) * PAGE_SIZE) };
            linger(Bug::LeavingWakeLost);
            let gone = match progress.error {
                Some(Errno::EEXIST) if fault_point!(MovedUnseen: true, else false) => {
                    let done = progress.done;
                    done / PAGE_SIZE
                        + self.moved_unseen(
                            page + done,
                            staging + at * PAGE_SIZE + done,
                            hi - at - done / PAGE_SIZE,
                        )
                }
                _ => progress.done / PAGE_SIZE,
            };
            for index in at..at + gone {
                extent.away.fetch_add(1, Relaxed);
                self.arrive(extent, entries, index, Entry::new(State::Aside));
            }
            self.engine.counts.aside.fetch_add(gone as u64, Relaxed);
            moved += gone;
            at += gone;
            match progress.error {
                None => {}
                // Stopped in the middle: ask at the page itself.
                Some(_) if gone > 0 => {}
                Some(Errno::EAGAIN) => {
                    self.eviction.put_off = true;
                    self.stay(extent, entries, run.starting_at(at));
                    return moved;
                }
                // Pinned for a device, or shared with a forked child and not written since.
                Some(Errno::EBUSY) => {
                    // What holds for one page of a huge one holds for all, and to ask for a part would split it.
                    let huge = extent.flags.load(Relaxed) & STAGED_HUGE != 0;
                    let refused = if huge { run.starting_at(at) } else { PageRange::one(at) };
                    self.stay(extent, entries, refused);
                    extent.refused.insert(&refused.set());
                    at = refused.hi;
                }
                // More than one mapping, or one that cannot be moved from: go by halves until it is clear which.
                Some(Errno::EINVAL) if hi - at > 1 => {
                    let half = PageRange::new(at, at + (hi - at) / 2);
                    moved += self.move_run(extent, entries, uffd, half);
                    at = half.hi;
                }
                Some(Errno::EINVAL) => {
                    self.stay(extent, entries, run.starting_at(at));
                    self.unmanage(extent, &run.starting_at(at).set());
                    return moved;
                }
                Some(_) => {
                    self.stay(extent, entries, PageRange::one(at));
                    at += 1;
                }
            }
        }
        moved
    }

    /// How many pages a move has moved that says that something was there already. Nothing was: [`Worker::set_aside_any`]
    /// sees to that.
    fn moved_unseen(&self, page: usize, staged: usize, pages: usize) -> usize {
        self.kernel.pagemap.moved_unseen(page, staged, pages).unwrap_or_else(|_| {
            // Whether the program still has the pages is not known, and going on could lose them.
            self.engine.fail_hard("memfold: the page map cannot be read; the program must not go on")
        })
    }

    /// Drops what restores by copying left in staging at pages that are not there any more by their entries.
    fn sweep_staging(&self, extent: &Extent, entries: &Entries, wanted: &PageSet) {
        let resident =
            PageSet::of(|index| wanted.contains(index) && entries[index].load() == Entry::RESIDENT);
        for run in resident.runs() {
            // SAFETY: only this thread makes pages `Aside`, and these are not.
            unsafe { self.kernel.staging.drop_pages(extent, run) };
        }
    }

    /// The pages did not leave after all. Returns 0, the number moved.
    fn stay(&self, extent: &Extent, entries: &Entries, pages: PageRange) -> usize {
        for index in pages.indices() {
            if entries[index].load() != Entry::RESIDENT {
                self.arrive(extent, entries, index, Entry::RESIDENT);
            }
        }
        0
    }

    /// Ends `Leaving`; wakes who waited for that.
    fn arrive(&self, extent: &Extent, entries: &Entries, index: usize, to: Entry) {
        if !entries[index].transition(Entry::new(State::Leaving), to) {
            entries[index].transition(Entry::new(State::LeavingWanted), to);
            fault_point!(LeavingWakeLost: self.kernel.uffd.wake(extent.page_addr(index), PAGE_SIZE));
        }
    }

    /// Gives the staging slot back if nothing of the extent is aside. Returns whether it has none any more.
    pub fn release_staging(&self, extent: &Extent) -> bool {
        if extent.staging.load(SeqCst) == 0 {
            return true;
        }
        let aside = extent.entries().is_some_and(|entries| {
            entries
                .iter()
                .any(|e| matches!(e.load().state(), State::Aside | State::Leaving | State::LeavingWanted))
        });
        if !aside {
            self.forget_copies(extent);
            // SAFETY: nothing is aside, and only this thread sets anything aside.
            unsafe { self.kernel.staging.give_back(extent) };
            extent.flags.fetch_and(!STAGED_HUGE, SeqCst);
        }
        !aside
    }

    /// What restores left in staging of the extent is about to be dropped.
    pub(crate) fn forget_copies(&self, extent: &Extent) {
        self.engine.counts.copies.fetch_sub(u64::from(extent.copies.swap(0, Relaxed)), Relaxed);
    }

    /// Lets an extent of which nothing is away go: faults in it are the kernel's again. Under a limit, and where mappings are scarce, only
    /// what is not managed any more. Tries the lock, and returns it if it let go of anything.
    pub fn disarm<'e>(&self, extent: &'e Extent) -> Option<Locked<'e>> {
        let to_go = |extent: &Extent| extent.armed.load().minus(&self.stays_armed(extent));
        if extent.away.load(SeqCst) != 0 || to_go(extent).is_empty() {
            return None;
        }
        let extent = extent.try_lock()?;
        // Only this thread makes entries other than `Resident`.
        if extent.away.load(SeqCst) != 0 || !self.release_staging(&extent) {
            return None;
        }
        if !extent.refused.load().is_empty() {
            // Which is not to be seen any more when it is watched again.
            if let Ok(scan) = scan(self.kernel, &extent, false) {
                extent.refused.remove(&scan.written);
            }
        }
        let gone = to_go(&extent);
        let undisturbed = self.report_less(&extent, &gone, |start, len, _| {
            let _ = self.kernel.uffd.unregister(start, len);
        });
        if !undisturbed {
            return None;
        }
        extent.armed.remove(&gone);
        Some(extent)
    }
}
