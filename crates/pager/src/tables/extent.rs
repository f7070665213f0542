//! What the pager knows of one extent: 2 MiB of address space.
//!
//! Three kinds of threads meet here. Program threads change mappings under the lock; the background thread
//! evicts under the lock, which it only ever tries; the fault thread never locks and goes by the page entries
//! and `changing` alone. What takes a [`Locked`] extent is done by who holds the lock.
//!
//! Invariants:
//! - an extent, once made, stays for ever at its address: references to it are always valid;
//! - a page whose entry is not `Resident` is in `armed`: the kernel reports its touch;
//! - `managed` ⊆ `anonymous` without `left_alone`; all change under the lock only, and so does `armed`.

use crate::lock::Mutex;
use crate::sabotage::fault_point;
use crate::slot::Apart;
use crate::sync::{
    AtomicPtr, AtomicU32, AtomicU64,
    Ordering::{self, *},
};
use crate::tables::bitmap::{AtomicPageSet, PageRange, PageSet};
use crate::tables::entries::Entries;
use crate::tables::entry::{AtomicEntry, Entry, State};
use crate::tables::pool::Pool;
use core::cell::UnsafeCell;
use core::mem::offset_of;
use core::ops::Deref;
use memfold_policy::age::ExtentAge;
use memfold_policy::walk::Burst;
use memfold_sys::thread::Backoff;
use memfold_sys::{Result, EXTENT_SIZE, PAGE_SIZE};

/// An extent. All-zero bytes are an extent at address 0 of which nothing is known.
#[repr(C, align(256))]
pub struct Extent {
    /// Its address; written once, before anybody else can see the extent.
    base: UnsafeCell<usize>,
    /// Pages of private anonymous mappings that the program made and that may be managed.
    pub anonymous: AtomicPageSet,
    /// Pages that no forked child has (`MADV_DONTFORK`). Beside `anonymous`, and cleared after it.
    pub unforked: AtomicPageSet,
    /// Serialises changes of the mappings with each other and with eviction. What the policy knows lies in it.
    lock: Mutex<ExtentAge>,
    /// Pages that may be evicted: anonymous, readable, writable, and nothing odd.
    pub managed: AtomicPageSet,
    /// Pages that are never evicted again, whatever becomes of their protection.
    pub left_alone: AtomicPageSet,
    /// Pages of which the kernel is about to drop what they hold, and may not have done so yet: not managed meanwhile. Only where the kernel alone tells
    /// of changes ([`crate::evict::discover`]).
    pub dropping: AtomicPageSet,
    /// Of those that are left alone the ones that the program has locked in memory (mlock(2)).
    pub locked: AtomicPageSet,
    /// Pages registered for missing faults.
    pub armed: AtomicPageSet,
    /// Pages of mappings of which all is registered if any of it is, so that they stay one. Background thread only ([`crate::evict::uncut`]).
    pub uncut: AtomicPageSet,
    /// Pages that no core dump has (`MADV_DONTDUMP`).
    pub undumped: AtomicPageSet,
    /// Pages that were touched while set aside or stored: left alone for a while.
    pub hot: AtomicPageSet,
    /// Of those the ones that were touched so soon after they were stored that it was not worth it; others may be in it too.
    pub back_soon: AtomicPageSet,
    /// Of the pages that were hot, and of those that were back soon, the ones that were last tried again. Set by the background thread.
    pub tried: [AtomicPageSet; 2],
    /// Pages that a thread touched while they were away, and waited for, since a page daemon last looked. Written by the fault
    /// thread.
    pub asked: AtomicPageSet,
    /// Of those the ones that were found whole.
    pub asked_whole: AtomicPageSet,
    /// Pages that were foretold since they were last set aside, and come along with others once that pays ([`crate::fault::beside`]). Written by the fault
    /// thread, cleared by the background thread.
    pub along: AtomicPageSet,
    /// Pages that the kernel refused to move: left alone until they are written, or for a while.
    pub refused: AtomicPageSet,
    /// Of those the ones that a forked child shared when last looked: they may go when it has ended. Background thread only.
    pub shared: AtomicPageSet,
    /// Pages that did not shrink when last tried.
    pub incompressible: AtomicPageSet,
    /// Pages that the program said it will not need soon; the background thread sets them aside and clears them.
    pub soon: AtomicPageSet,
    /// Two ranges of pages in which a program thread is changing the mappings, 32 bits each ([`PageRange::packed`]). Zero where there is none.
    changing: AtomicU64,
    /// The last two ranges of which what was evicted was dropped by a change that a program thread announced, each with the stretch ([`crate::turns::Turns::stretch`]) in which that was over:
    /// its report may have been read, and not been acted on. The stretch in the high half, the range as above.
    forgotten: [core::sync::atomic::AtomicU64; 2],
    /// 1 while somebody who touched a page that is being changed is left asleep.
    turned_away: AtomicU32,
    entries: AtomicPtr<Entries>,
    /// Stands for the entries that were never made, for who puts zeros where such a page was never there.
    unmade: AtomicEntry,
    /// Pages whose entry is not `Resident`.
    pub away: AtomicU32,
    /// The staging slot that belongs to the extent, plus one; 0 for none. Written by the background thread.
    pub staging: AtomicU32,
    /// Pages that restores copied out of staging or that the program gave up there, and that still lie there.
    pub copies: AtomicU32,
    /// [`STAGED_HUGE`], [`SETTLED`], [`WALKED`], [`RECALLED`], [`SEEN`], [`WHOLE`], [`SPLITS`], [`WAS_HUGE`], [`DROPPED`] and [`TRIES`].
    pub flags: AtomicU32,
    /// The program thread that holds the lock, by the kernel's number; 0 for none or another kind of thread.
    pub holder: AtomicU32,
    /// Pages in memory at the last scan; background thread only.
    pub present: AtomicU32,
    /// Pages that could be set aside at the last look but were too few; background thread only.
    pub scattered: AtomicU32,
    /// What the next step waits for, though it is due: [`WAITS_FOR_CPU`], [`WAITS_FOR_STALL`], [`WAITS_FOR_ROOM`] or 0. Written under the lock.
    pub waits_for: AtomicU32,
    /// Pages of the last probe that were touched, plus one; 0 before they were counted. Background thread only.
    pub touched: AtomicU32,
    /// Pages set aside by the last probe; background thread only.
    pub probed_pages: AtomicU32,
    /// When the fault thread last restored a page of it, ns.
    pub last_restore: AtomicU64,
    /// When pages of it were last set aside, ns. Written by the background thread.
    pub last_aside: AtomicU64,
    /// When the last touches of it began, ns, how many came, and [`IN_USE`]; fault thread only.
    burst_began: AtomicU64,
    /// See `burst_began`.
    burst: AtomicU32,
    /// Pages of the last probe that came back because the extent was walked through, and not by a touch of their own.
    pub unasked: AtomicU32,
    /// When pages of it were last stored, ns; background thread only.
    pub last_laundry: AtomicU64,
    /// Pages that were stored since a moment, and in as long a time before it. Set by the background thread.
    pub stored_lately: [AtomicPageSet; 2],
    /// That moment, ns; background thread only.
    pub stored_since: AtomicU64,
    /// When the fault thread last brought a page of it back from the store, ns.
    pub last_return: AtomicU64,
    /// What is stored of the pages below this one was compressed with the strong codec, as far as that saves anything; background thread only.
    pub dense_below: AtomicU32,
    /// When pages of it did not shrink, first since such pages went below memory, ns; 0 before. Background thread only.
    pub last_dense: AtomicU64,
    /// Its number for the page daemon, plus one; 0 for none. Background thread only.
    pub number: AtomicU32,
    /// Page that the next fault hits if the touches are sequential, and how many pages were last restored at once.
    pub next_fault: AtomicU32,
    /// See `next_fault`.
    pub window: AtomicU32,
}

// Both are in one page of memory: a child that is forked while the fault thread changes them gets them as they were at one moment.
const _: () = assert!(offset_of!(Extent, unforked) + size_of::<AtomicPageSet>() <= 256);

/// [`Extent::flags`]: the pages set aside are one huge page.
pub const STAGED_HUGE: u32 = 1;
/// [`Extent::flags`]: what is stored has stayed away for so long that it was worth storing.
pub const SETTLED: u32 = 2;
/// [`Extent::flags`]: it was walked through, and the policy was not told yet.
pub const WALKED: u32 = 8;

/// [`Extent::flags`]: what was set aside came back because others were walked through, and the policy was not told yet.
pub const RECALLED: u32 = 16;
/// [`Extent::flags`]: what the probe under way has cost so far was noted.
pub const SEEN: u32 = 32;
/// [`Extent::flags`]: pages of it are stored that did not shrink, and only wait to go below memory.
pub const WHOLE: u32 = 64;
/// [`Extent::flags`]: it is one huge page that a touch of one of its pages brought back as a whole. The next time they go one by one, and it is seen which are in use.
pub const SPLITS: u32 = 128;
/// [`Extent::flags`]: it was one huge page until it was split to see which of its pages are in use.
pub const WAS_HUGE: u32 = 256;
/// [`Extent::flags`]: the kernel reported that something was dropped here, since the memory was found.
pub const DROPPED: u32 = 512;
/// [`Extent::flags`]: the probe under way tries those pages that are in `tried`, of either kind.
pub const TRIES: [u32; 2] = [1024, 2048];

/// [`Extent::waits_for`]: CPU time of the pager's.
pub const WAITS_FOR_CPU: u32 = 1;
/// [`Extent::waits_for`]: the stall budget, which is used up.
pub const WAITS_FOR_STALL: u32 = 2;
/// [`Extent::waits_for`]: a place to be set aside in.
pub const WAITS_FOR_ROOM: u32 = 3;

/// In `Extent::burst`: the touches tell of use.
const IN_USE: u32 = 1 << 31;
/// In `Extent::burst`: they are a walk's.
const WALKS: u32 = 1 << 30;

// SAFETY: `base` is written before the extent is shared.
unsafe impl Sync for Extent {}

impl Extent {
    /// Where in its bytes lie its address, that of its entries, and the number of its staging slot plus one, of 32 bits.
    pub const BASE_AT: usize = offset_of!(Extent, base);
    /// See [`Extent::BASE_AT`].
    pub const ENTRIES_AT: usize = offset_of!(Extent, entries);
    /// See [`Extent::BASE_AT`].
    pub const STAGING_AT: usize = offset_of!(Extent, staging);

    /// Sets the address of a new extent.
    ///
    /// # Safety
    /// Nobody else can see the extent yet.
    pub unsafe fn place(&self, base: usize) {
        // SAFETY: the caller's contract.
        unsafe { *self.base.get() = base };
    }

    /// Its address.
    pub fn base(&self) -> usize {
        // SAFETY: no longer written once the extent is shared.
        unsafe { *self.base.get() }
    }

    /// The address of one of its pages.
    pub fn page_addr(&self, index: usize) -> usize {
        self.base() + index * PAGE_SIZE
    }

    /// The pages of it that lie in `start..end`.
    pub fn clip(&self, start: usize, end: usize) -> PageRange {
        let base = self.base();
        let lo = start.clamp(base, base + EXTENT_SIZE) - base;
        let hi = end.clamp(base, base + EXTENT_SIZE) - base;
        PageRange { lo: lo / PAGE_SIZE, hi: hi.div_ceil(PAGE_SIZE) }
    }

    /// The page entries, if any page of it was ever evicted.
    pub fn entries(&self) -> Option<&'static Entries> {
        self.entries_in(Acquire)
    }

    fn entries_in(&self, order: Ordering) -> Option<&'static Entries> {
        // Acquire at least: pairs with the store in `make_entries`, for the zeros.
        // SAFETY: entries stay for ever once made.
        unsafe { self.entries.load(order).as_ref() }
    }

    /// Takes the entry of a page that is `Resident`, so that the page stays so until it is [put back](AtomicEntry::put_back); `None` where it is
    /// otherwise, or in other hands. By the fault thread.
    pub fn hold_resident(&self, index: usize) -> Option<&AtomicEntry> {
        // SeqCst, as where they are made: see below.
        let made = || self.entries_in(SeqCst).and_then(|entries| entries.made_entry(index));
        let entry = made().unwrap_or(&self.unmade);
        if !entry.take(Entry::RESIDENT) {
            return None;
        }
        // Either we see the entry that was made meanwhile, or who made it sees that we have this one.
        if fault_point!(StandInOutlived: core::ptr::eq(entry, &self.unmade) && made().is_some(), else false) {
            entry.put_back(Entry::RESIDENT);
            return None;
        }
        Some(entry)
    }

    /// The entry of a page; `Resident` when none was ever made.
    pub fn entry(&self, index: usize) -> Entry {
        self.entries().map_or(Entry::RESIDENT, |entries| entries[index].load())
    }

    /// The pages that are set aside or stored.
    pub fn away_pages(&self) -> PageSet {
        if self.away.load(Relaxed) == 0 {
            return PageSet::EMPTY;
        }
        PageSet::of(|index| self.entry(index).state().is_away())
    }

    /// The pages that are set aside.
    pub fn aside_pages(&self) -> PageSet {
        if self.away.load(Relaxed) == 0 {
            return PageSet::EMPTY;
        }
        PageSet::of(|index| self.entry(index).state() == State::Aside)
    }

    /// The pages that children or core dumps have not: what is evicted of them is kept apart, and stays in memory.
    pub fn apart(&self) -> PageSet {
        self.unforked.load().or(&self.undumped.load())
    }

    /// Who has no part of a page.
    pub fn apart_of(&self, index: usize) -> Apart {
        Apart { unforked: self.unforked.contains(index), undumped: self.undumped.contains(index) }
    }

    /// Whether a page that is stored was stored not long ago.
    pub fn was_stored_lately(&self, index: usize) -> bool {
        self.flags.load(Relaxed) & SETTLED == 0 && self.stored_lately.iter().any(|set| set.contains(index))
    }

    /// The pages that are not tried for the time being.
    pub fn spared(&self) -> PageSet {
        self.hot.load().or(&self.refused.load()).or(&self.incompressible.load())
    }

    /// The last touches of it. The fault thread keeps count of them.
    pub fn burst(&self) -> Burst {
        let touches = self.burst.load(Relaxed);
        Burst {
            began: self.burst_began.load(Relaxed),
            touches: touches & !(IN_USE | WALKS),
            in_use: touches & IN_USE != 0,
        }
    }

    /// Notes them, and whether they are a walk's. By the fault thread.
    pub fn set_burst(&self, burst: Burst, walks: bool) {
        self.burst_began.store(burst.began, Relaxed);
        let flags = if burst.in_use { IN_USE } else { 0 } | if walks { WALKS } else { 0 };
        self.burst.store(burst.touches.min(WALKS - 1) | flags, Relaxed);
    }

    /// A walk comes to it next, and may find all of it there, so that nothing else would tell. By the fault thread.
    pub fn note_walk_ahead(&self) {
        self.burst.fetch_or(WALKS, Relaxed);
        self.flags.fetch_or(WALKED, Relaxed);
    }

    /// Whether it was being walked through when it was last touched: what comes back of it says nothing of what is in use.
    pub fn is_walked_through(&self) -> bool {
        self.burst.load(Relaxed) & WALKS != 0
    }

    /// Locks it, waiting as long as it takes.
    pub fn lock(&self) -> Locked<'_> {
        self.lock.acquire();
        Locked { extent: self, releases: true }
    }

    /// Locks it if nobody else has.
    pub fn try_lock(&self) -> Option<Locked<'_>> {
        core::mem::forget(self.lock.try_lock()?);
        Some(Locked { extent: self, releases: true })
    }

    /// Locks it until [`Extent::release`], which must follow.
    pub fn acquire(&self) {
        self.lock.acquire();
    }

    /// Ends [`Extent::acquire`].
    pub fn release(&self) {
        self.lock.release();
    }

    /// The extent, for a while, as one that is locked.
    ///
    /// # Safety
    /// The caller has it locked by [`Extent::acquire`], and keeps no other such reference.
    pub unsafe fn held(&self) -> Locked<'_> {
        Locked { extent: self, releases: false }
    }

    /// Announces that pages are being changed, and waits until no restore of theirs is under way.
    /// Restores that begin later see the announcement and give up. At most two at a time.
    /// By the program thread that has it locked.
    pub fn begin_change(&self, pages: PageRange) {
        let others = self.changing.load(Relaxed);
        debug_assert!(others >> 32 == 0, "a third range");
        // SeqCst, here and in the entries: either we see the busy bit, or the restore sees this word.
        self.changing.store(others << 32 | pages.packed(), SeqCst);
        self.await_unmade();
        if let Some(entries) = fault_point!(BusyNotAwaited: self.entries(), else None) {
            for index in pages.indices() {
                let mut backoff = Backoff::new();
                while entries[index].load().is_busy() {
                    backoff.wait();
                }
            }
        }
    }

    /// Waits until nobody has what stands for entries that were never made.
    fn await_unmade(&self) {
        let mut backoff = Backoff::new();
        while self.unmade.load().is_busy() {
            backoff.wait();
        }
    }

    /// What was evicted of the pages was dropped by an announced change, in this stretch. By who has it locked, before the change ends: nothing is evicted of
    /// them until the stretch is over.
    pub fn note_forgotten(&self, stretch: u32, pages: PageRange) {
        self.forgotten[1].store(self.forgotten[0].load(SeqCst), SeqCst);
        self.forgotten[0].store(u64::from(stretch) << 32 | pages.packed(), SeqCst);
    }

    /// Whether that is so of all of the pages. To be asked after [`Extent::is_changing_all`]: either that sees the change, or this sees that it is over.
    pub fn was_forgotten(&self, stretch: u32, pages: PageRange) -> bool {
        let words = self.forgotten.iter().map(|word| word.load(SeqCst));
        words.filter(|word| word >> 32 == u64::from(stretch)).any(|word| pages.lies_in(word))
    }

    /// Ends what `begin_change` began. Whether somebody faulted in between, who must be woken now.
    pub fn end_change(&self) -> bool {
        self.changing.store(0, SeqCst);
        self.turned_away.swap(0, SeqCst) != 0
    }

    /// Whether who touched the page is left asleep, because it is being changed: whoever changes it wakes them then. By whoever had the page's
    /// entry, if only for a moment: who touched it then was left to be woken.
    pub fn turn_away(&self, index: usize) -> bool {
        // SeqCst: either `end_change` sees this, or we see that it is over.
        self.turned_away.store(1, SeqCst);
        self.is_changing(index)
    }

    /// Whether the page is being changed.
    pub fn is_changing(&self, index: usize) -> bool {
        self.is_changing_all(PageRange::one(index))
    }

    /// Whether all of the pages are being changed.
    pub fn is_changing_all(&self, pages: PageRange) -> bool {
        let word = self.changing.load(SeqCst);
        [word, word >> 32].into_iter().any(|word| pages.lies_in(word))
    }

    /// Makes a forked child's copy usable: nobody who held the lock, or was in the middle of a change or a
    /// restore, exists there. Counts again what is away.
    pub fn settle_in_child(&self) {
        self.lock.reset_in_child();
        self.changing.store(0, Relaxed);
        self.forgotten.iter().for_each(|word| word.store(0, Relaxed));
        self.turned_away.store(0, Relaxed);
        fault_point!(StandInLeftBusy: self.unmade.settle_in_child());
        // Locks are not inherited.
        self.locked.remove(&PageSet::ALL);
        let Some(entries) = self.entries() else { return };
        let mut away = 0;
        for entry in entries.made().map(|index| &entries[index]) {
            fault_point!(ChildLeftBusy: entry.settle_in_child());
            away += u32::from(entry.load() != Entry::RESIDENT);
        }
        self.away.store(away, Relaxed);
    }
}

/// An extent whose lock the calling thread has; unlocked when dropped, unless it was only [held](Extent::held).
#[must_use]
pub struct Locked<'a> {
    extent: &'a Extent,
    releases: bool,
}

impl Deref for Locked<'_> {
    type Target = Extent;

    fn deref(&self) -> &Extent {
        self.extent
    }
}

impl<'a> Locked<'a> {
    /// The extent, locked or not.
    pub fn place(&self) -> &'a Extent {
        self.extent
    }

    /// What the policy knows of it.
    pub fn age(&mut self) -> &mut ExtentAge {
        // SAFETY: under the lock, by the only reference that its holder has.
        unsafe { self.extent.lock.held() }
    }

    /// The page entries, made if need be: those of `pages` can be changed.
    pub fn make_entries(&self, pages: &PageSet, pool: &Pool) -> Result<&'static Entries> {
        let entries = match self.extent.entries() {
            Some(entries) => entries,
            None => {
                // SAFETY: all-zero bytes are the entries of pages that are all `Resident`.
                let entries = unsafe { pool.make::<Entries>() }?;
                self.extent.entries.store(entries as *const Entries as *mut Entries, SeqCst);
                entries
            }
        };
        if entries.make(pages, pool)? {
            fault_point!(StandInOutlived: self.extent.await_unmade());
        }
        Ok(entries)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.releases {
            self.extent.lock.release();
        }
    }
}
