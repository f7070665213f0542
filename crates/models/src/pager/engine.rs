//! The engine, in a model: what the modelled files share, without its start and end.

use crate::changes::pieces::Pieces;
use crate::changes::proxy::Proxy;
use crate::control::ControlPage;
use crate::counts::Counts;
use crate::fault::reason::{Outcome, Reason};
use crate::fault::restore::Restorer;
use crate::free_queue::FreeQueue;
use crate::kernel::{Kernel, Pagemap, Staging};
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::bounds::Bounds;
use crate::tables::entry::{Entry, State};
use crate::tables::extent::{Extent, Locked};
use crate::tables::pool::Pool;
use crate::tables::space::Space;
use crate::tier::below::Below;
use crate::tier::clusters::Clusters;
use crate::tier::location::Location;
use crate::traffic::Traffic;
use crate::world::{enter, page_index, Content, BASE, ZERO};
use crate::{explore, futex};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use memfold_sys::uffd::Userfaultfd;
use memfold_sys::{Errno, PAGE_SIZE};
use std::sync::OnceLock;

/// As in the pager.
#[allow(dead_code, reason = "the engine runs from the start of a model to its end")]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    Idle,
    Starting,
    Running,
    Stopping,
    Off,
}

/// No limit is kept on resident memory.
pub struct Room;

impl Room {
    pub fn is_kept(&self) -> bool {
        false
    }

    pub fn take(&self, _: usize) {}
}

/// No child is forked that is owed anything.
pub struct Children;

impl Children {
    pub fn give(&self, _: &Extent, _: PageRange, _: usize) {}
}

/// Of the tables, what they are made of.
pub struct Tables {
    pub(crate) pool: Pool,
}

/// Of the storage, what is shared.
pub struct Storage {
    pub(crate) free_slots: FreeQueue,
    pub(crate) dictionaries: crate::codec::Dictionaries,
}

/// Of the options, whether what comes back is overwritten at once.
pub struct Options {
    pub(crate) wipes: AtomicU32,
}

/// The fields that the modelled files use.
pub struct Engine {
    pub(crate) tables: Tables,
    pub(crate) storage: Storage,
    pub(crate) options: Options,
    pub(crate) counts: Counts,
    pub(crate) traffic: Traffic,
    pub(crate) space: Space,
    pub(crate) kernel: &'static Kernel,
    pub(crate) proxy: Proxy,
    pub(crate) room: Room,
    pub(crate) children: Children,
    pub(crate) pieces: Pieces,
    below: Below,
    control: ControlPage,
    /// The fault thread: whoever holds the lock acts for it.
    fault_thread: OnceLock<loom::sync::Mutex<Restorer>>,
}

// SAFETY: as in the pager; all threads of a model run on one thread of the system.
unsafe impl Sync for Engine {}

impl Engine {
    /// No allocator is told.
    pub(crate) fn went_away(&self, _: usize, _: usize) {}

    /// There is no limit here.
    pub fn arm_from_start(&self, _: &Locked, _: &PageSet) {}

    /// There are no huge pages here.
    pub fn keep_pages_small(&self, _: usize, _: usize) {}

    /// Nor can there be.
    pub fn has_huge_pages(&self) -> bool {
        false
    }

    /// The tables are told of each mapping at once.
    pub fn note_young(&self, _: usize, _: usize) -> bool {
        false
    }

    /// As nothing is noted, there is nothing to take back.
    pub fn take_young(&self, _: Bounds) -> bool {
        false
    }

    /// As nothing is noted, there is nothing to tell.
    pub fn tell_young(&self, _: Bounds) {}

    /// The same.
    pub fn disown_young(&self, _: Bounds) {}

    /// An engine with one extent, of which the last page is away: it was one repeated word.
    pub fn make() -> &'static Engine {
        crate::mem::reset();
        crate::world::reset();
        let pool = Pool;
        // SAFETY: as in the pager.
        let extent: &'static Extent = unsafe { pool.make() }.expect("a model's memory does not run out");
        // SAFETY: nobody else has it yet.
        unsafe { extent.place(BASE) };
        let entries =
            extent.lock().make_entries(&PageSet::ALL, &pool).expect("a model's memory does not run out");
        let last = &entries[memfold_sys::EXTENT_PAGES - 1];
        let mut before = Entry::RESIDENT;
        let same = Entry::same(7).expect("a small word fits");
        for after in [Entry::new(State::Leaving), Entry::new(State::Aside), same] {
            assert!(last.transition(before, after));
            before = after;
        }
        extent.away.fetch_add(1, Relaxed);
        let engine = explore::keep(Engine {
            tables: Tables { pool },
            storage: Storage { free_slots: FreeQueue::new(), dictionaries: crate::codec::Dictionaries },
            options: Options { wipes: AtomicU32::new(0) },
            counts: Counts::new(),
            traffic: Traffic::new(),
            space: Space(extent),
            kernel: explore::keep(Kernel {
                uffd: Userfaultfd,
                staging: Staging(Userfaultfd),
                pagemap: Pagemap,
                tracks_writes: true,
            }),
            proxy: Proxy::default(),
            room: Room,
            children: Children,
            pieces: Pieces::new(),
            // SAFETY: zeros are an empty table.
            below: Below::new(unsafe { Pool.make::<Clusters>() }.expect("a model's memory does not run out")),
            control: ControlPage::default(),
            fault_thread: OnceLock::new(),
        });
        engine.proxy.open(engine);
        let restorer = Restorer::new(engine, engine.kernel).expect("a model's memory does not run out");
        assert!(engine.fault_thread.set(loom::sync::Mutex::new(restorer)).is_ok(), "one fault thread");
        engine.counts.stored.store(1, Relaxed);
        let all = PageSet::ALL;
        extent.anonymous.insert(&all);
        extent.managed.insert(&all);
        extent.armed.add(memfold_sys::EXTENT_PAGES - 1);
        enter(|world| world.armed[memfold_sys::EXTENT_PAGES - 1] = true);
        engine
    }

    pub(crate) fn control(&self) -> &ControlPage {
        &self.control
    }

    /// Of a walk nothing is guessed here.
    pub(crate) fn takes_guesses(&self) -> bool {
        false
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::Running
    }

    pub(crate) fn fail_hard(&self, message: &str) -> ! {
        panic!("{message}")
    }

    pub(crate) fn wake_ahead(&self, kernel: &Kernel, start: usize, len: usize, _: crate::time::Nanos) {
        kernel.uffd.wake(start, len);
    }

    /// There is one, in which nothing is unless a scenario puts it there.
    pub(crate) fn below(&self) -> Option<&Below> {
        Some(&self.below)
    }

    pub(crate) fn release(&self, place: Location) {
        let slot = match place {
            Location::Memory(slot) => slot,
            Location::Below(berth) => return self.below.clusters.drop_page(berth.cluster, berth.page),
        };
        // SAFETY: the caller took the entry that named the slot.
        unsafe {
            if self.options.wipes.load(Relaxed) != 0 {
                slot.wipe();
            }
            self.storage.free_slots.push(slot);
        }
    }

    /// A program thread reads or, with `Some`, writes a page; as in the pager, a touch of an absent page is reported to
    /// the fault thread, which serves one at a time.
    pub fn touch(&'static self, index: usize, write: Option<Content>) -> Content {
        loop {
            let page = BASE + index * PAGE_SIZE;
            let there = enter(|world| {
                if world.pages[index].is_none() && world.armed[index] {
                    futex::line_up(page);
                    return None;
                }
                let content = world.pages[index].get_or_insert(ZERO);
                let found = *content;
                *content = write.unwrap_or(found);
                Some(found)
            });
            if let Some(content) = there {
                return content;
            }
            self.serve(page);
            futex::sleep();
        }
    }

    /// What `service.rs` does for one touch, without its clocks and windows.
    fn serve(&'static self, page: usize) {
        let mut restorer =
            self.fault_thread.get().expect("made at the start").lock().expect("nobody panics with the lock");
        let index = page_index(page);
        loop {
            match restorer.restore(self.space.0, PageRange::one(index), Reason::Fault) {
                Outcome::Done { first, pages } => {
                    self.kernel.uffd.wake(BASE + first * PAGE_SIZE, pages * PAGE_SIZE);
                    return;
                }
                Outcome::InOtherHands => return,
                Outcome::Pending => {
                    self.below.want(page);
                    return;
                }
                Outcome::Resident if self.first_touch(page) => return,
                Outcome::Gone => {
                    self.kernel.uffd.wake(page, PAGE_SIZE);
                    return;
                }
                Outcome::TryAgain | Outcome::Resident => loom::thread::yield_now(),
            }
        }
    }

    fn first_touch(&'static self, page: usize) -> bool {
        let entries = self.space.0.entries().expect("made at the start");
        let entry = &entries[page_index(page)];
        if !entry.take(Entry::RESIDENT) {
            return false;
        }
        let progress = self.kernel.uffd.zero(page, PAGE_SIZE);
        entry.put_back(Entry::RESIDENT);
        if progress.error == Some(Errno::EAGAIN) {
            return false;
        }
        self.kernel.uffd.wake(page, PAGE_SIZE);
        true
    }

    /// No model reaches the engine's start.
    pub(crate) fn start_if_due(&'static self) {}
}
