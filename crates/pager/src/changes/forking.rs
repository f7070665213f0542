//! Fork: the child must find every byte, though it inherits neither the userfaultfd nor the agent threads.
//!
//! Before the fork, program threads are kept from changing mappings and the background thread stands still, so
//! tables, store and staging are whole. The fault thread goes on: the forking thread itself may touch evicted
//! pages inside libc's `fork`. What it does meanwhile can reach the child in part only, page table by page
//! table, but never harmfully:
//!
//! - The kernel locks a mapping from when it has copied it until the fork is over, and a restore into it
//!   waits for that. So the child never gets a page's entry as `Resident` without the page.
//! - The child may get the page, and its entry as it was before. The page is there, so it never faults, and
//!   the entry is out of date, no more. Its slot is not reused, because slots are kept until the fork is over.
//! - It may get the entry as it was before, of memory that is reported as unmapped past libc and is something else
//!   by now. The extent says so: what is away there and not anonymous memory is forgotten.
//!
//! In the child the first thing that happens is [`Engine::after_fork_in_child`]: a background thread of its own, which makes a
//! userfaultfd in a descriptor table that the child's program does not see, registers the same ranges, and makes the threads that
//! serve it. Until then the forking thread waits.

use crate::changes::proxy::server::bring_extent_back;
use crate::engine::{Engine, Phase};
use crate::fault::restore::Restorer;
use crate::kernel::{make_uffd, Kernel, Missing};
use crate::retry::patiently;
use crate::sabotage::fault_point;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::entry::State;
use crate::tables::extent::Extent;
use crate::text::Line;
use crate::tier;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_sys::pagemap::Pagemap;
use memfold_sys::thread::Backoff;
use memfold_sys::{limits, mem, Errno, Result, PAGE_SIZE};

/// More descriptors than the agents ever have open.
const MOST_DESCRIPTORS: u64 = 16;

/// So far below the top of its stack the thread of a child may get before it is served, bytes: through libc, its handlers and ours.
const STACK: usize = 64 << 10;

/// What a child has not that could not make a userfaultfd.
const UNOPENED: &str = "no userfaultfd of its own";

/// What a child has not that cannot read what is away.
const NO_MEMORY: &str = "no memory to bring it back with";

/// What is missing where a child may not have threads.
const NO_THREAD: &str = "no thread for the pager in a forked child";

/// The last words of a child that would read zeros.
const UNREACHABLE: &str = "memfold: a forked child cannot reach its evicted memory and must not go on";

impl Engine {
    /// To be called by the forking thread, as the last thing before the fork, if it holds no lock that [`crate::Host`]'s `decay` may wait for.
    pub fn before_fork(&'static self) {
        let mut backoff = Backoff::new();
        while !self.try_before_fork(None) {
            backoff.wait();
        }
    }

    /// The same where it holds such locks. False while the engine starts or stops, which it does by itself and soon, but not before it has got
    /// those locks: they must be let go of, and taken anew before the next try. `stack` is the top of the child's, where it is another than the caller's.
    #[must_use]
    pub fn try_before_fork(&'static self, stack: Option<usize>) -> bool {
        loop {
            fault_point!(GateNotClosed: self.traffic.gate.close());
            fault_point!(BrakeNotHeld: self.traffic.brake.hold());
            // Nothing starts or stops while the gate is closed.
            if self.phase().is_settled() {
                break;
            }
            self.let_others_go_on();
            fault_point!(HeapKeptFromStop: return false);
        }
        if self.phase() == Phase::Running && self.anything_away() && !self.may_serve_child() {
            // The child could not be served, so nothing may be away. (It could be when the pager began; the program has
            // lost the right since.)
            if self.bring_all_back().is_err() {
                self.fail_hard(
                    "memfold: cannot fork: the child cannot be folded, and there is no memory to go without",
                );
            }
        }
        let own = [0u8; 1];
        for top in [Some(own.as_ptr() as usize), stack].into_iter().flatten() {
            fault_point!(StackNotBrought: self.bring_stack_back(top));
        }
        self.traffic.begin_fork();
        // Whatever the fault thread does from its next message on, it does as during a fork. And the tables that the
        // child gets are up to date.
        self.settle_changes();
        self.traffic.turns.wait_for_reader();
        self.helpers.wait_for_work();
        if let Some(below) = self.below() {
            below.wait_for_restore();
        }
        true
    }

    /// Brings back what is away below the top of a stack. What the child's thread writes there before it is served could not be told from
    /// what the pages held.
    fn bring_stack_back(&'static self, top: usize) {
        let bottom = top.saturating_sub(STACK) & !(PAGE_SIZE - 1);
        // Nobody changes mappings, and the background thread stands still. Where there is no memory for it, the child may find pages of zeros under what it has
        // written, as far as these are below its stack.
        let _ = self.bring_back(self.space().existing(bottom, top), bottom, top);
    }

    /// To be called by the forking thread in the parent, also when the fork failed.
    pub fn after_fork_in_parent(&'static self) {
        if let Some(below) = self.below() {
            below.share();
        }
        self.traffic.end_fork();
        self.let_others_go_on();
    }

    fn let_others_go_on(&self) {
        fault_point!(BrakeNotHeld: self.traffic.brake.let_go());
        fault_point!(GateNotClosed: self.traffic.gate.open());
    }

    /// To be called in the child before anything else touches memory that may be evicted.
    pub fn after_fork_in_child(&'static self) {
        fault_point!(ChildNotTold: (), else return);
        self.lifecycle.come_home_in_child();
        self.link.forget_pagemap_in_child();
        self.traffic.reset_in_child();
        self.tables.pool.reset_in_child();
        self.prefetch.reset_in_child();
        self.helpers.reset();
        self.stamps.forget_in_child();
        self.tables.young.reset_in_child();
        self.room.reset_in_child();
        self.latency.reset_in_child();
        self.storage.deferred.forget_in_child();
        self.errand.forget_in_child();
        if let Some(below) = self.below() {
            below.reset_in_child();
        }
        for extent in self.space().all() {
            self.forget_reported_in_child(extent);
            self.forget_unforked_in_child(extent);
            self.forget_gone_in_child(extent);
        }
        // SAFETY: the background thread does not exist here.
        unsafe { self.storage.take_store() }.reset_in_child();
        self.storage.free_slots.reset_in_child();
        if self.phase() != Phase::Running {
            // The page is the parent's.
            let _ = self.count_for_nobody();
            return;
        }
        let anything = self.settle_extents_in_child();
        if !anything {
            self.be_idle_in_child();
            self.start_if_due();
            return;
        }
        self.forget_threads_in_child();
        let _ = self.count_for_nobody();
        self.set_phase(Phase::Starting);
        match self.spawn_background() {
            Ok(()) => {
                while self.phase() == Phase::Starting {
                    self.wait_for_phase_after(Phase::Starting);
                }
                if self.phase() == Phase::Off {
                    self.join_threads();
                }
            }
            Err(error) => {
                let _ = self.reach_memory_in_child();
                self.go_on_plainly_in_child((NO_THREAD, error));
            }
        }
    }

    /// Serves a forked child from now on, or brings all of it back. By its background thread, while the forking thread waits.
    /// Whether it is served.
    pub(crate) fn take_over_in_child(&'static self) -> bool {
        let servants = || self.spawn_servants().map_err(|error| (NO_THREAD, error));
        match self.reach_memory_in_child().and_then(|()| servants()) {
            Ok(()) => {
                self.set_phase(Phase::Running);
                true
            }
            Err(missing) => {
                self.go_on_plainly_in_child(missing);
                false
            }
        }
    }

    /// Has the kernel report touches of what is away. An error says that it cannot be left so.
    fn reach_memory_in_child(&'static self) -> core::result::Result<(), Missing> {
        let missing = self.reopen_kernel_in_child().unwrap_or_else(|missing| self.fail_in_child(missing));
        let Some(kernel) = self.kernel() else { self.fail_in_child((UNOPENED, Errno(libc::EBADF))) };
        let written = fault_point!(ChildTouchUnmended: self.drop_zeros_in_child(kernel), else false);
        if let Err(error) = self.register_in_child() {
            self.fail_in_child(("its memory cannot be registered", error));
        }
        if written {
            let mut restorer = patiently(|| Restorer::new(self, kernel))
                .unwrap_or_else(|error| self.fail_in_child((NO_MEMORY, error)));
            self.mend_written_in_child(&mut restorer);
        }
        missing.map_or(Ok(()), Err)
    }

    /// Ends a child that would read zeros, and says for want of what.
    fn fail_in_child(&self, (what, error): Missing) -> ! {
        let mut line = Line::new();
        let _ = write!(line, "{UNREACHABLE}: {what}: {}", error.name());
        self.fail_hard(line.as_str())
    }

    /// The child may not have threads (`RLIMIT_NPROC`, `pids.max`), or nothing that keeps its userfaultfd open (`fs.aio-max-nr`): the thread that is here
    /// brings everything back, and the child is not folded. The program does not run meanwhile.
    fn go_on_plainly_in_child(&'static self, (what, error): Missing) {
        let Some(kernel) = self.kernel() else { self.fail_in_child((what, error)) };
        let mut restorer = patiently(|| Restorer::new(self, kernel))
            .unwrap_or_else(|error| self.fail_in_child((NO_MEMORY, error)));
        for extent in self.space().all().filter(|extent| extent.away.load(SeqCst) != 0) {
            // There is no thread of the tier here.
            let fetch = |page, restorer: &mut Restorer| {
                if let Some(below) = self.below() {
                    tier::bring::fetch(self, below, page, &mut restorer.arrived);
                }
            };
            bring_extent_back(&mut restorer, extent, PageRange::ALL, fetch);
        }
        if self.anything_away() {
            self.fail_in_child((what, error));
        }
        if let Some(below) = self.below() {
            below.files.remote.hang_up();
        }
        self.end_servants(kernel);
        for extent in self.space().all() {
            extent.armed.remove(&PageSet::ALL);
        }
        // SAFETY: nothing is away, and no other thread looks. Closing the descriptor lets every range go.
        unsafe { self.close_kernel() };
        self.give_up(what, Some(error));
    }

    /// Whether a child could open what it needs.
    fn may_serve_child(&self) -> bool {
        self.may_make_uffd() && fault_point!(PagemapTakenForGranted: Pagemap::open().is_ok(), else true)
    }

    /// Whether a child could make a userfaultfd. It does so in a descriptor table of its own, so how many descriptors the
    /// program has open does not matter.
    fn may_make_uffd(&self) -> bool {
        match make_uffd(self.link.device()) {
            Ok(_) => true,
            Err(Errno::EMFILE) => limits::descriptors().is_none_or(|limit| limit >= MOST_DESCRIPTORS),
            Err(_) => false,
        }
    }

    fn anything_away(&self) -> bool {
        self.space().all().any(|extent| extent.away.load(SeqCst) != 0)
    }

    /// Makes every extent usable again and counts what is away. Whether anything is.
    fn settle_extents_in_child(&self) -> bool {
        let mut anything = false;
        for extent in self.space().all() {
            extent.settle_in_child();
            anything |= extent.away.load(Relaxed) != 0;
        }
        anything
    }

    /// Forgets what was reported to the fault thread as gone while the child was forked, and of which the child has the entries as they were before.
    /// What they name may be in no child, and what lies there now is something else.
    fn forget_reported_in_child(&'static self, extent: &Extent) {
        let reported = extent.away_pages().minus(&extent.anonymous.load());
        if fault_point!(ReportTorn: !reported.is_empty(), else false) {
            self.forget_in_child(extent, &reported);
        }
    }

    /// Forgets what the child has no part of (`MADV_DONTFORK`).
    fn forget_unforked_in_child(&'static self, extent: &Extent) {
        let unforked = extent.unforked.load();
        if fault_point!(UnforkedInherited: unforked.is_empty(), else true) {
            return;
        }
        let away = unforked.and(&extent.away_pages());
        let is_here = |run: PageRange| mem::is_mapped(extent.page_addr(run.lo), run.bytes());
        if fault_point!(UnforkedUnseen: away.runs().any(is_here), else false) {
            // The program let its children have this again, past libc. The memory is here, and what it held is not.
            self.fail_in_child(("memory that was not for its children is here", Errno::EINVAL));
        }
        self.forget_in_child(extent, &unforked);
    }

    /// Forgets what another thread was unmapping past libc when the child was forked: the parent had not read yet that it is gone. Before the child maps
    /// anything: what came to lie there would be taken for it.
    fn forget_gone_in_child(&'static self, extent: &Extent) {
        let known = extent.armed.load().or(&extent.away_pages());
        let is_gone = |pages: PageRange| mem::has_hole(extent.page_addr(pages.lo), pages.len());
        if known.is_empty() || fault_point!(GoneTakenForAway: !is_gone(PageRange::ALL), else true) {
            return;
        }
        let gone = PageSet::of(|index| known.contains(index) && is_gone(PageRange::one(index)));
        if !gone.is_empty() {
            self.forget_in_child(extent, &gone);
        }
    }

    /// Forgets pages that are not the child's, and drops what staging has of them.
    fn forget_in_child(&'static self, extent: &Extent, pages: &PageSet) {
        if let Some(entries) = extent.entries() {
            for index in pages.and(&extent.away_pages()).pages() {
                let count = match entries[index].forget_in_child().state() {
                    State::Aside => &self.counts.aside,
                    _ => &self.counts.stored,
                };
                count.fetch_sub(1, Relaxed);
            }
        }
        if let Some(kernel) = self.kernel() {
            for run in pages.runs() {
                // SAFETY: none of them is aside any more.
                unsafe { kernel.staging.drop_pages(extent, run) };
            }
        }
        self.forget_mapping(extent, pages);
    }

    /// Registers what may be away with the child's own userfaultfd.
    fn register_in_child(&'static self) -> Result<()> {
        let kernel = self.kernel().ok_or(Errno(libc::EBADF))?;
        fault_point!(ChildNotRegistered: (), else return Ok(()));
        for extent in self.space().all() {
            if extent.away.load(Relaxed) == 0 {
                extent.armed.remove(&PageSet::ALL);
                continue;
            }
            for run in extent.armed.load().runs() {
                register(kernel, extent, run)?;
            }
        }
        Ok(())
    }
}

/// Registers pages with a child's userfaultfd, as far as they are what they were: another thread may have been
/// unmapping some, or mapping something else there, past libc, when the child was forked. `ENOMEM` for lack of memory.
fn register(kernel: &Kernel, extent: &Extent, run: PageRange) -> Result<()> {
    match patiently(|| kernel.uffd.register(extent.page_addr(run.lo), run.bytes(), kernel.armed_modes())) {
        Err(Errno::ENOMEM) => Err(Errno::ENOMEM),
        Err(_) if run.len() > 1 => {
            let (first, second) = run.split_at(run.lo + run.len() / 2);
            register(kernel, extent, first)?;
            register(kernel, extent, second)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::codec::CodecId;
    use crate::config::Config;
    use crate::engine::Host;
    use crate::slot::Apart;
    use crate::tables::entry::{Entry, State};
    use crate::tier::location::Location;
    use memfold_sys::{EXTENT_SIZE, PAGE_SIZE};
    use std::boxed::Box;

    pub(crate) fn engine() -> &'static Engine {
        let host = Host {
            notice: |_| {},
            open_control: |_| None,
            own_heap: || true,
            decay: || {},
            thread_cpu: |_, _| None,
            went_away: |_, _| {},
            sampler: None,
        };
        let engine: &'static Engine = Box::leak(Box::new(Engine::new(host)));
        engine.prepare(&Config::default()).unwrap();
        engine
    }

    #[test]
    fn a_slot_that_is_given_up_during_a_fork_keeps_its_bytes_until_after_it() {
        let engine = engine();
        // SAFETY: no background thread was started.
        let store = unsafe { engine.storage.take_store() };
        let bytes = [0xA5; 200];
        let slot = store.put(PAGE_SIZE, CodecId::Lz4, &bytes, Apart::default()).unwrap();
        engine.traffic.begin_fork();
        engine.release(Location::Memory(slot));
        engine.flush_deferred();
        store.drain(&engine.storage.free_slots);
        // SAFETY: nobody else knows the slot, and it was not freed yet.
        let kept = unsafe { slot.read() };
        assert_eq!(kept.map(|(_, data)| data), Some(&bytes[..]));
        assert_ne!(store.usage().data, 0);
        engine.traffic.end_fork();
        engine.wipe_at_once();
        engine.flush_deferred();
        // SAFETY: it is in the queue, and was not freed yet.
        let left = unsafe { slot.read() }.map(|(_, data)| data[8..].to_vec());
        assert_eq!(
            left,
            Some(std::vec![0; bytes.len() - 8]),
            "overwritten, but for the link, before it is freed"
        );
        store.drain(&engine.storage.free_slots);
        assert_eq!(store.usage().data, 0);
    }

    #[test]
    fn a_child_that_got_half_of_a_report_forgets_what_is_in_no_child() {
        let engine = engine();
        let base = mem::reserve_aligned(EXTENT_SIZE, EXTENT_SIZE).unwrap();
        // SAFETY: our own memory, as the child has it that was mapped there past libc.
        unsafe { mem::mprotect(base, EXTENT_SIZE, libc::PROT_READ | libc::PROT_WRITE) }.unwrap();
        let extent = engine.space().find_or_make(base, &engine.tables.pool).unwrap();
        let pages = PageRange::new(3, 5);
        let entries = extent.lock().make_entries(&pages.set(), &engine.tables.pool).unwrap();
        extent.anonymous.insert(&pages.set());
        extent.unforked.insert(&pages.set());
        // SAFETY: no background thread was started.
        let store = unsafe { engine.storage.take_store() };
        for index in pages.indices() {
            let slot = store
                .put(
                    extent.page_addr(index),
                    CodecId::Lz4,
                    &[7; 100],
                    Apart { unforked: true, undumped: false },
                )
                .unwrap();
            let (leaving, aside) = (Entry::new(State::Leaving), Entry::new(State::Aside));
            assert!(entries[index].transition(Entry::RESIDENT, leaving));
            assert!(entries[index].transition(leaving, aside));
            assert!(entries[index].transition(aside, Location::Memory(slot).entry()));
            extent.away.fetch_add(1, Relaxed);
            engine.counts.stored.fetch_add(1, Relaxed);
        }
        // The fault thread has dropped the pages by now, but that the child has not got.
        engine.forget_mapping(extent, &pages.set());
        engine.after_fork_in_child();
        assert!(pages.indices().all(|index| entries[index].load() == Entry::RESIDENT));
        assert_eq!(engine.counts.stored.load(Relaxed), 0);
    }

    #[test]
    fn a_child_counts_its_own_waits_on_a_page_of_its_own() {
        let engine = engine();
        let parents = engine.control();
        engine.latency.stall.store(1_000_000, Relaxed);
        engine.after_fork_in_child();
        assert_eq!(engine.latency.stall.load(Relaxed), 0);
        assert!(engine.counts_for_nobody() && !core::ptr::eq(engine.control(), parents));
    }

    #[test]
    fn what_stands_for_entries_that_were_never_made_is_free_in_the_child() {
        let engine = engine();
        let extent = engine.space().find_or_make(1 << 40, &engine.tables.pool).unwrap();
        extent.lock().make_entries(&PageSet::range(7, 8), &engine.tables.pool).unwrap();
        assert!(extent.hold_resident(100).is_some() && extent.hold_resident(200).is_none());
        extent.settle_in_child();
        assert!(extent.hold_resident(100).is_some(), "a touch, or a change, would wait for ever");
    }

    #[test]
    fn entries_are_made_once_nobody_has_what_stood_for_them() {
        static MADE: core::sync::atomic::AtomicBool = core::sync::atomic::AtomicBool::new(false);
        let engine = engine();
        let extent = engine.space().find_or_make(1 << 40, &engine.tables.pool).unwrap();
        let held = extent.hold_resident(100).expect("nobody has it");
        let maker = std::thread::spawn(|| {
            extent.lock().make_entries(&PageSet::range(100, 101), &engine.tables.pool).unwrap();
            MADE.store(true, SeqCst);
        });
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(!MADE.load(SeqCst), "the page could leave while zeros are put where it was");
        held.put_back(Entry::RESIDENT);
        maker.join().unwrap();
        assert!(extent.hold_resident(100).is_some_and(|entry| entry.load().is_busy()));
    }

    #[test]
    fn an_entry_that_was_busy_when_the_child_was_forked_can_be_taken_there() {
        let engine = engine();
        let extent = engine.space().find_or_make(1 << 40, &engine.tables.pool).unwrap();
        let entries = extent.lock().make_entries(&PageSet::ALL, &engine.tables.pool).unwrap();
        let leaving = Entry::new(State::Leaving);
        let aside = Entry::new(State::Aside);
        assert!(entries[7].transition(Entry::RESIDENT, leaving) && entries[7].transition(leaving, aside));
        assert!(entries[7].take(aside));
        extent.settle_in_child();
        assert_eq!(extent.away.load(Relaxed), 1);
        assert!(entries[7].take(aside), "the page would never come back");
    }
}
