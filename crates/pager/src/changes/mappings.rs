//! What program threads do when they change their mappings.
//!
//! The preload library calls these around the system calls of the program. Each announces the change to the fault
//! thread, makes it, and brings the tables in line, so that what was evicted in the range is dropped, kept
//! or brought back exactly as the kernel would have it.
//!
//! Invariants: signals are blocked while extents are locked; extents are locked by ascending address; a
//! thread that holds locks here waits for nobody but the kernel, the fault thread and the proxy.

use crate::engine::{Engine, Phase};
use crate::sabotage::{fault_point, linger, Bug};
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::bounds::Bounds;
use crate::tables::entry::{Entry, State};
use crate::tables::extent::{Extent, Locked};
use crate::tier::location::Location;
use core::sync::atomic::{fence, Ordering::*};
use memfold_sys::thread::Backoff;
use memfold_sys::{mem, signal, thread, Errno, Result, EXTENT_SIZE, PAGE_SIZE};

/// A mapping longer than this is left alone: it is a reservation, and tables for it would cost more than they save.
const LONGEST: usize = 1 << 40;

impl Engine {
    /// The program mapped private anonymous memory, readable and writable, at `addr`: it may be managed.
    pub fn mapped(&'static self, addr: usize, len: usize) {
        if self.phase() != Phase::Off && !self.note_young(addr, len) {
            self.add_mapping(addr, len, true, || {});
        }
        self.start_if_due();
    }

    /// The program mapped private anonymous memory that it cannot access yet: it may be managed once it can.
    pub fn reserved(&'static self, addr: usize, len: usize) {
        self.take_young(Bounds::of(addr, len));
        self.add_mapping(addr, len, false, || {});
    }

    /// Enters a mapping into the tables; `entered` is called when that is done, before a fork may begin.
    pub(crate) fn add_mapping(&'static self, addr: usize, len: usize, managed: bool, entered: impl FnOnce()) {
        if len > LONGEST || self.phase() == Phase::Off {
            return entered();
        }
        let Bounds { start, end } = Bounds::of(addr, len);
        self.keep_pages_small(start, end - start);
        // Relaxed: a statistic that orders nothing.
        self.control().ranges_added.fetch_add(1, Relaxed);
        let blocked = signal::block_all();
        let pass = self.traffic.gate.pass();
        // Something may have been unmapped or moved away from here past libc a moment ago. What was evicted of it may have
        // to follow, and whatever is written here now must not be taken for a part of it.
        self.traffic.turns.wait_for_reader();
        if self.traffic.saw_change_past_libc() || self.is_anonymous(addr, len) {
            self.settle_changes();
        }
        let mut at = start;
        while at < end {
            // Without tables the memory is simply not managed.
            let Ok(extent) = self.space().find_or_make(at, &self.tables.pool) else { break };
            let mut extent = extent.lock();
            let pages = extent.clip(start, end);
            self.begin_managing(&mut extent, pages, managed);
            self.arm_from_start(&extent, &pages.set());
            at = extent.base() + EXTENT_SIZE;
        }
        entered();
        drop(pass);
        drop(blocked);
    }

    /// Enters pages of an extent as newly mapped.
    pub(crate) fn begin_managing(&self, extent: &mut Locked, pages: PageRange, managed: bool) {
        // Nothing should be left of an earlier mapping; if it is, it does not belong to this one.
        self.forget_pages(extent, pages);
        let pages = &pages.set();
        extent.armed.remove(pages);
        if extent.managed.load().is_empty() {
            extent.age().forget();
            extent.waits_for.store(0, Relaxed);
        }
        extent.anonymous.insert(pages);
        extent.left_alone.remove(pages);
        extent.locked.remove(pages);
        extent.unforked.remove(pages);
        extent.undumped.remove(pages);
        self.set_managed(extent, pages, managed);
    }

    /// Waits until all changes past libc that the kernel has made have reached the tables.
    pub(crate) fn settle_changes(&self) {
        self.proxy.settle();
        self.traffic.turns.wait_for_reader();
    }

    /// Runs `op`, which unmaps the range or maps something else there. Where it has, what was evicted is dropped
    /// and the range no longer managed: also where it fails then, as the kernel refuses some mappings only when the old ones are gone.
    pub fn unmap<R>(&'static self, addr: usize, len: usize, op: impl FnOnce() -> Result<R>) -> Result<R> {
        let range = Bounds::of(addr, len);
        if self.take_young(range) && fault_point!(UnmapNotSeen: true, else false) {
            return op();
        }
        if self.space().existing(range.start, range.end).next().is_some() {
            // Relaxed: a statistic that orders nothing.
            self.control().ranges_removed.fetch_add(1, Relaxed);
        }
        self.change(&[range], First::Unmap, op, |engine, extent, pages| {
            fault_point!(UnmapNotSeen: engine.forget_changed(extent, pages));
            fault_point!(UnmapNotSeen: engine.forget_mapping(extent, &pages.set()));
        })
    }

    /// Runs `op`, which drops the contents of the range (`MADV_DONTNEED`, `MADV_FREE`). If it succeeds, what
    /// was evicted is dropped too.
    ///
    /// `op` may be run twice: where the kernel refuses a part of the range, it has dropped what lies before that
    /// part; so everything comes back, and the kernel decides again.
    pub fn drop_contents<R>(&'static self, addr: usize, len: usize, op: impl Fn() -> Result<R>) -> Result<R> {
        let range = [Bounds::of(addr, len)];
        let result = self.change(&range, First::Drop, &op, |engine, extent, pages| {
            fault_point!(DropNotSeen: engine.forget_changed(extent, pages));
        });
        match result {
            Err(Errno::ENOMEM) | Ok(_) => result,
            Err(_) => self.change(&range, First::BringBack, &op, |_, _, _| {}),
        }
    }

    /// Runs `op`, which changes the protection of the range; `plain` says that it becomes readable, writable and
    /// nothing else. What was evicted stays so; other protections are not evicted from.
    pub fn protect<R>(
        &'static self,
        addr: usize,
        len: usize,
        plain: bool,
        op: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.change(&[Bounds::of(addr, len)], First::Nothing, op, |engine, extent, pages| {
            let pages = pages.set().and(&extent.anonymous.load()).minus(&extent.left_alone.load());
            engine.set_managed(extent, &pages, plain);
            engine.arm_from_start(extent, &pages);
        })
        .inspect(|_| self.start_if_due())
    }

    /// Brings the range back, runs `op`, and never manages the range again: for advice that eviction could not honour.
    pub fn exempt<R>(&'static self, addr: usize, len: usize, op: impl FnOnce() -> Result<R>) -> Result<R> {
        self.change(&[Bounds::of(addr, len)], First::BringBack, op, |engine, extent, pages| {
            engine.leave_alone(extent, &pages.set());
        })
    }

    /// Runs `op`, which locks the range in memory (mlock(2)): as [`Engine::exempt`], and the pages count as locked.
    pub fn lock_in_memory<R>(
        &'static self,
        addr: usize,
        len: usize,
        op: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.change(&[Bounds::of(addr, len)], First::BringBack, op, |engine, extent, pages| {
            let pages = pages.set();
            engine.leave_alone(extent, &pages);
            extent.locked.insert(&pages);
        })
    }

    /// The program mapped private anonymous memory that is locked from the start (`MAP_LOCKED`).
    pub fn mapped_locked(&self, addr: usize, len: usize) {
        if len > LONGEST || self.phase() == Phase::Off {
            return;
        }
        self.mapped_and_left_alone(addr, len);
        self.set_locked(addr, len, true);
    }

    /// The program has unlocked the range, or all its memory. It is left alone all the same.
    pub fn unlocked(&self, addr: usize, len: usize) {
        self.set_locked(addr, len, false);
    }

    fn set_locked(&self, addr: usize, len: usize, locked: bool) {
        let Bounds { start, end } = Bounds::of(addr, len);
        for extent in self.space().existing(start, end) {
            let pages = extent.clip(start, end).set();
            if locked {
                extent.locked.insert(&pages);
            } else {
                extent.locked.remove(&pages);
            }
        }
    }

    /// Whether some page of the range is kept from children or core dumps.
    fn is_apart(&self, addr: usize, len: usize) -> bool {
        self.has_any(addr, len, Extent::apart)
    }

    /// The same for a range that `op` registers with a userfaultfd of the program's own: the kernel lets no range have two.
    pub fn hand_over<R>(&'static self, addr: usize, len: usize, op: impl FnOnce() -> Result<R>) -> Result<R> {
        self.change(&[Bounds::of(addr, len)], First::LetGo, op, |engine, extent, pages| {
            engine.leave_alone(extent, &pages.set());
        })
    }

    /// Brings the range back and runs `op`, by which the kernel does something with the pages that it finds: moves them elsewhere by a userfaultfd of the program's
    /// own, or makes huge ones of them.
    pub fn with_all_there<R>(
        &'static self,
        addr: usize,
        len: usize,
        op: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.change(&[Bounds::of(addr, len)], First::BringBack, op, |_, _, _| ())
    }

    /// Remembers a range as memory that the pager may have cut into several mappings, and that it leaves alone from now
    /// on. Takes no lock.
    pub(crate) fn mapped_and_left_alone(&self, addr: usize, len: usize) {
        let Bounds { start, end } = Bounds::of(addr, len);
        self.disown_young(Bounds { start, end });
        let mut at = start;
        while at < end {
            // Without tables, it is not known.
            let Ok(extent) = self.space().find_or_make(at, &self.tables.pool) else { break };
            let pages = extent.clip(start, end).set();
            self.leave_alone(extent, &pages);
            extent.anonymous.insert(&pages);
            at = extent.base() + EXTENT_SIZE;
        }
    }

    /// Whether every page of the range is managed, and like any new mapping: what children or core dumps have not is a mapping of another kind.
    pub fn is_managed(&'static self, addr: usize, len: usize) -> bool {
        let Bounds { start, end } = Bounds::of(addr, len);
        self.tell_young(Bounds { start, end });
        let pages = |extent: &Extent| extent.managed.load().and(&extent.clip(start, end).set()).len();
        !self.is_apart(addr, len)
            && self.space().existing(start, end).map(pages).sum::<usize>() == (end - start) / PAGE_SIZE
    }

    /// Runs `op`, which moves the range to an address that it returns, `fixed` if that is told in advance;
    /// `new_len` is its length there. What was evicted is brought back first. The new place is managed if all of
    /// the old one was, and left alone otherwise.
    pub fn remap(
        &'static self,
        addr: usize,
        len: usize,
        new_len: usize,
        fixed: Option<usize>,
        op: impl FnOnce() -> Result<usize>,
    ) -> Result<usize> {
        let managed = self.is_managed(addr, len);
        let anonymous = self.is_anonymous(addr, len);
        let (old, target) = (Bounds::of(addr, len), fixed.map(|new| Bounds::of(new, new_len)));
        let after = |engine: &Engine, extent: &mut Locked, pages: PageRange| {
            engine.forget_changed(extent, pages);
            engine.forget_mapping(extent, &pages.set());
        };
        let new = match target {
            // Locks are taken by ascending address.
            Some(target) if fault_point!(LockOrder: target.start < old.start, else false) => {
                self.change(&[target, old], First::LetGoLast, op, after)
            }
            Some(target) => self.change(&[old, target], First::LetGo, op, after),
            None => self.change(&[old], First::LetGo, op, after),
        }?;
        if managed {
            self.mapped(new, new_len);
        } else if anonymous {
            self.mapped_and_left_alone(new, new_len);
        }
        Ok(new)
    }

    /// Manages the range no more: the kernel has just given it to memfold itself, so what was there before is gone. Takes
    /// no lock, because who maps may hold one; nobody else changes tables of a range that is not theirs.
    pub(crate) fn disown(&self, addr: usize, len: usize) {
        let Bounds { start, end } = Bounds::of(addr, len);
        self.disown_young(Bounds { start, end });
        for extent in self.space().existing(start, end) {
            self.forget_mapping(extent, &extent.clip(start, end).set());
        }
    }

    /// Whether the pager may have cut a mapping in the range by registering parts of it. It registers nothing that it has
    /// only noted ([`crate::tables::young`]).
    pub fn may_have_cut(&self, addr: usize, len: usize) -> bool {
        self.traffic.saw_move_past_libc() || self.is_anonymous(addr, len)
    }

    /// Whether there is anonymous memory in the range that the tables know, managed or not.
    pub(crate) fn is_anonymous(&self, addr: usize, len: usize) -> bool {
        self.has_any(addr, len, |extent| extent.anonymous.load())
    }

    /// Whether some page of the range is among those.
    pub(super) fn has_any(&self, addr: usize, len: usize, pages: impl Fn(&Extent) -> PageSet) -> bool {
        let Bounds { start, end } = Bounds::of(addr, len);
        let mut extents = self.space().existing(start, end);
        extents.any(|extent| !pages(extent).and(&extent.clip(start, end).set()).is_empty())
    }

    /// Whether the tables know anonymous memory right before or behind the range.
    pub fn lies_beside_known(&self, addr: usize, len: usize) -> bool {
        self.is_anonymous(addr.saturating_sub(PAGE_SIZE), PAGE_SIZE)
            || self.is_anonymous(addr.saturating_add(len), PAGE_SIZE)
    }

    /// Never evicts from the pages again.
    pub(crate) fn leave_alone(&self, extent: &Extent, pages: &PageSet) {
        extent.left_alone.insert(pages);
        self.set_managed(extent, pages, false);
    }

    /// Whether the pager knows anything of the range.
    pub fn knows(&'static self, addr: usize, len: usize) -> bool {
        let Bounds { start, end } = Bounds::of(addr, len);
        self.tell_young(Bounds { start, end });
        self.space().existing(start, end).next().is_some()
    }

    /// The frame of every change: locks the extents of the ranges, announces, brings back and lets go what lies in the
    /// first one if asked to, runs `op`, lets `after` bring the tables in line if it succeeded, and wakes who
    /// faulted meanwhile.
    pub(crate) fn change<R>(
        &'static self,
        ranges: &[Bounds],
        first: First,
        op: impl FnOnce() -> Result<R>,
        after: impl Fn(&Engine, &mut Locked, PageRange),
    ) -> Result<R> {
        // Nothing is away, and nothing ever will be. A sandbox may not permit what follows.
        if self.phase() == Phase::Off {
            return op();
        }
        let drops = first == First::Drop;
        ranges.iter().for_each(|range| self.tell_young(*range));
        let space = self.space();
        // Pairs of a range and an extent that exists in it, by ascending address.
        let pairs = || ranges.iter().flat_map(|r| space.existing(r.start, r.end).map(move |e| (r, e)));
        let back = match first {
            First::Nothing | First::Drop | First::Unmap => None,
            First::BringBack | First::LetGo => fault_point!(MoveNotSeen: ranges.first(), else None),
            First::LetGoLast => fault_point!(MoveNotSeen: ranges.last(), else None),
        };
        // The calling thread may have moved this memory past libc just now: it goes on before the pager has followed.
        self.traffic.turns.wait_for_reader();
        let let_go = back.filter(|_| matches!(first, First::LetGo | First::LetGoLast));
        if pairs().next().is_none() && (let_go.is_none() || !self.traffic.saw_move_past_libc()) {
            return op();
        }
        let _blocked = signal::block_all();
        let _pass = self.traffic.gate.pass();
        let me = thread::current_tid();
        for (_, extent) in pairs() {
            if extent.holder.load(Relaxed) != me {
                extent.acquire();
                linger(Bug::LockOrder);
                extent.holder.store(me, Relaxed);
            }
        }
        // Extents may be added to the ranges by others meanwhile; they are not ours.
        let locked = || pairs().filter(|(_, extent)| extent.holder.load(Relaxed) == me);
        let ready = back.map_or(Ok(()), |r| self.bring_back(locked().map(|(_, e)| e), r.start, r.end));
        for (range, extent) in locked() {
            extent.begin_change(extent.clip(range.start, range.end));
        }
        // What could not be brought back must stay registered, or it would read as zeros.
        if let Some(range) = let_go.filter(|_| fault_point!(LetGoWhileAway: ready.is_ok(), else true)) {
            self.let_go(locked().map(|(_, extent)| extent), range);
        }
        let result = ready.and_then(|()| op());
        // Advice is given to all that is mapped in the range, and only then are holes complained of.
        let happened =
            |result: &Result<R>| result.is_ok() || drops && result.as_ref().err() == Some(&Errno::ENOMEM);
        for (range, extent) in locked() {
            // SAFETY: this thread is its holder.
            let mut extent = unsafe { extent.held() };
            let pages = extent.clip(range.start, range.end);
            if happened(&result) {
                after(self, &mut extent, pages);
            } else if first.unmaps() {
                self.forget_unmapped(&extent, pages);
            }
        }
        for (_, extent) in locked() {
            if extent.end_change() {
                // Whoever faulted in the meantime was left asleep.
                fault_point!(ChangeWakeLost: self.proxy.wake(extent));
            }
            extent.holder.store(0, Relaxed);
            extent.release();
        }
        result
    }

    /// Unregisters a range of which nothing is away: `mremap` takes only what the kernel has as one mapping, and
    /// registering a part of one cuts it. Parts that grew past libc have no tables, but may be registered.
    fn let_go(&self, extents: impl Iterator<Item = &'static Extent>, range: &Bounds) {
        if !self.may_have_cut(range.start, range.end - range.start) {
            return;
        }
        // What stays registered, for lack of memory, is several mappings to `mremap`, and moves or fails as such.
        let _ = self.proxy.let_go(range.start, range.end - range.start);
        for extent in extents {
            extent.armed.remove(&extent.clip(range.start, range.end).set());
        }
    }

    /// Brings back what is away in the part of the range that lies in the extents, which the caller has locked, or keeps from
    /// everybody else.
    pub(super) fn bring_back(
        &'static self,
        extents: impl Iterator<Item = &'static Extent>,
        start: usize,
        end: usize,
    ) -> Result<()> {
        for extent in extents.filter(|extent| extent.away.load(SeqCst) != 0) {
            let pages = extent.clip(start, end);
            // Extents of another range are clipped to nothing.
            if !pages.is_empty() {
                self.proxy.bring_back(extent, pages)?;
            }
        }
        Ok(())
    }

    /// Brings everything back while the background thread stands still. The caller has closed the gate.
    pub(crate) fn bring_all_back(&'static self) -> Result<()> {
        self.bring_back(self.space().all(), 0, crate::tables::space::LIMIT)
    }

    /// Drops what staging and the store hold of the pages.
    pub(crate) fn forget_pages(&self, extent: &Extent, pages: PageRange) {
        if extent.away.load(SeqCst) != 0 {
            pages.indices().for_each(|index| self.forget_page(extent, index));
        }
    }

    /// The same after an announced change, by the thread that has made it. The fault thread may have read the report of that, whereupon this thread went on, and may not have
    /// looked yet whether anybody had announced it. By then the announcement is over.
    fn forget_changed(&self, extent: &Extent, pages: PageRange) {
        self.forget_pages(extent, pages);
        if let Some(stretch) = fault_point!(OverTakenForUnseen: self.traffic.turns.stretch(), else None) {
            extent.note_forgotten(stretch, pages);
        }
    }

    /// The same of those pages of a change that are not mapped any more, and manages them no more: it has failed when it had unmapped them.
    fn forget_unmapped(&self, extent: &Extent, pages: PageRange) {
        let is_hole = |index| mem::has_hole(extent.page_addr(index), 1);
        if fault_point!(HalfDoneNotSeen: !mem::has_hole(extent.page_addr(pages.lo), pages.len()), else true) {
            return;
        }
        for run in PageSet::of(|index| pages.indices().contains(&index) && is_hole(index)).runs() {
            self.forget_changed(extent, run);
            self.forget_mapping(extent, &run.set());
        }
    }

    /// Drops what staging or the store holds of a page. Waits for a restore that is under way.
    pub(crate) fn forget_page(&self, extent: &Extent, index: usize) {
        let Some(entries) = extent.entries() else { return };
        let mut backoff = Backoff::new();
        loop {
            let entry = entries[index].load();
            if entry.is_busy() {
                backoff.wait();
                continue;
            }
            match entry.state() {
                // `Leaving` is seen only while the background thread stands still: the page did not leave.
                State::Resident | State::Leaving | State::LeavingWanted => return,
                State::Aside | State::Stored | State::Same => {}
            }
            if !entries[index].transition(entry, Entry::RESIDENT) {
                continue;
            }
            extent.away.fetch_sub(1, SeqCst);
            self.control().pages_discarded.fetch_add(1, Relaxed);
            if entry.state() == State::Aside {
                // The staged copy is no more than one that a restore has left.
                self.note_copies(extent, 1);
                self.counts.aside.fetch_sub(1, Relaxed);
                return;
            }
            self.counts.stored.fetch_sub(1, Relaxed);
            if let Some(location) = Location::of(entry) {
                self.release(location);
            }
            return;
        }
    }

    /// The pages are no longer what they were mapped as. What a child is to know that is forked meanwhile comes first.
    pub(crate) fn forget_mapping(&self, extent: &Extent, pages: &PageSet) {
        self.set_managed(extent, pages, false);
        extent.anonymous.remove(pages);
        // A child that finds the second done finds the first done, too.
        fence(Release);
        extent.unforked.remove(pages);
        extent.undumped.remove(pages);
        extent.left_alone.remove(pages);
        extent.locked.remove(pages);
        extent.dropping.remove(pages);
        extent.uncut.remove(pages);
        extent.armed.remove(pages);
        extent.hot.remove(pages);
        for tried in &extent.tried {
            tried.remove(pages);
        }
        extent.along.remove(pages);
        extent.back_soon.remove(pages);
        extent.refused.remove(pages);
        extent.shared.remove(pages);
        extent.incompressible.remove(pages);
    }

    /// Makes pages managed or not, and keeps count. The fault thread, which acts on reports without the extent's lock, may be doing so
    /// too: a page counts for who changed it.
    pub(crate) fn set_managed(&self, extent: &Extent, pages: &PageSet, managed: bool) {
        let before = extent.managed.load();
        if managed {
            let added = extent.managed.insert(&pages.minus(&before));
            self.counts.managed.fetch_add((added.len() * PAGE_SIZE) as u64, Relaxed);
        } else {
            let removed = extent.managed.remove(&pages.and(&before));
            self.counts.managed.fetch_sub((removed.len() * PAGE_SIZE) as u64, Relaxed);
        }
        self.space().wake(extent);
    }
}

/// What comes before a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// Nothing: what is evicted may stay so.
    Nothing,
    /// Nothing either: the contents will be dropped.
    Drop,
    /// Nothing either: the range will be unmapped, or replaced.
    Unmap,
    /// Everything in the first range comes back.
    BringBack,
    /// Everything in the first range comes back, and the range is unregistered.
    LetGo,
    /// The same for the last range.
    LetGoLast,
}

impl First {
    /// Whether the change, where it fails, may have unmapped what lay in the range.
    fn unmaps(self) -> bool {
        matches!(self, First::Unmap | First::LetGo | First::LetGoLast)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::forking::tests::engine;
    use memfold_sys::mem;

    const REFUSED: Errno = Errno(libc::ENODEV);

    #[test]
    fn what_a_change_unmapped_before_it_failed_is_forgotten_and_the_rest_is_not() {
        let engine = engine();
        let base = mem::reserve_aligned(EXTENT_SIZE, EXTENT_SIZE).unwrap();
        engine.mapped(base, EXTENT_SIZE);
        let half = EXTENT_SIZE / 2;
        let fails = |addr: usize| {
            // SAFETY: within the mapping just made.
            move || unsafe { mem::munmap(addr, half) }.and(Err::<(), _>(REFUSED))
        };
        assert_eq!(engine.unmap(base, half, || Err::<(), _>(REFUSED)), Err(REFUSED));
        assert!(engine.is_managed(base, EXTENT_SIZE));
        assert_eq!(engine.unmap(base, EXTENT_SIZE, fails(base)), Err(REFUSED));
        assert!(!engine.is_anonymous(base, half) && engine.is_managed(base + half, half));
        let other = mem::map_anonymous(0, half, 0).unwrap();
        let moved = engine.remap(other, half, half, Some(base + half), || fails(base + half)().and(Ok(base)));
        assert_eq!(moved, Err(REFUSED));
        assert!(!engine.is_anonymous(base, EXTENT_SIZE));
    }
}
