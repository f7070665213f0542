//! A helper's life, and how the background thread makes helpers.
//!
//! Invariants: a helper gives way to whoever changes mappings or forks, as everybody does who restores ahead; it takes no lock. It is scheduled as
//! the program's threads are: whoever lost the CPU with entries in hand would keep others waiting for them.

use super::MOST;
use crate::engine::{Agent, Engine, Phase};
use crate::evict::worker::Worker;
use crate::fault::restore::{Outcome, Reason, Restorer};
use crate::tables::bitmap::PageRange;
use core::mem::align_of;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::{self, Thread};
use memfold_sys::time::{self, Nanos};
use memfold_sys::{futex, PAGE_SIZE};

/// A helper leaves when there was nothing to do for so long.
const IDLE: Nanos = Nanos::from_secs(5);
/// So many pages at a time: who touches one of them meanwhile waits for all.
const PIECE: usize = 8;

// The low bits of the engine's address are a helper's place.
const _: () = assert!(align_of::<Engine>() >= MOST);

/// The thread's entry; `arg` is the engine's address, and in its low bits the helper's place.
extern "C" fn main(arg: usize) {
    let place = arg % MOST;
    // SAFETY: the engine lives for ever.
    let engine: &'static Engine = unsafe { &*((arg - place) as *const Engine) };
    thread::set_name(c"memfold-helper");
    // Without it the thread keeps rights that it has no use for, which is no reason to stop.
    let _ = thread::drop_capabilities(0);
    if let Some(Ok(mut restorer)) = engine.kernel().map(|kernel| Restorer::new(engine, kernel)) {
        help(engine, &mut restorer);
    }
    engine.helpers.leave(place);
}

fn help(engine: &'static Engine, restorer: &mut Restorer) {
    let helpers = &engine.helpers;
    let mut last = time::now();
    while !helpers.are_ending() {
        let bell = helpers.bell.load(Acquire);
        if let Some((page, pages)) = engine.prefetch.take() {
            let before = time::thread_cpu();
            bring(engine, restorer, page, pages);
            helpers.spend(time::thread_cpu().since(before).0);
            last = time::now();
        } else if time::now().since(last) >= IDLE {
            return;
        } else {
            thread::sleep_on(&helpers.bell, bell, IDLE);
        }
    }
}

/// Brings these pages back, as far as nobody else is at it. A page that cannot come now is brought when it is touched.
fn bring(engine: &'static Engine, restorer: &mut Restorer, page: usize, pages: usize) {
    let (mut at, end) = (page, page + pages * PAGE_SIZE);
    while at < end {
        let Some(extent) = engine.space().find(at) else { return };
        let wanted = ((end - at) / PAGE_SIZE).min(PIECE);
        if (wanted as u64) > engine.room.left() {
            return;
        }
        let must_wait =
            || engine.traffic.is_forking() || engine.traffic.brake.wanted() || engine.helpers.are_ending();
        let Some(_work) = engine.helpers.begin(must_wait) else { return };
        let index = (at - extent.base()) / PAGE_SIZE;
        at = match restorer.restore(extent, PageRange::from(index, wanted), Reason::Ahead) {
            Outcome::Done { first, pages } => extent.page_addr(first + pages).max(at + PAGE_SIZE),
            // What lies below memory is fetched when it is touched.
            _ => at + PAGE_SIZE,
        };
    }
}

impl Engine {
    /// Asks for pages ahead of their touch, from address `page` on. False where nobody can be asked now. Fault thread.
    pub(crate) fn ask_ahead(&self, page: usize, pages: usize) -> bool {
        let asked = self.prefetch.put(page, pages);
        if self.helpers.count() == 0 {
            self.ring();
        } else if asked {
            self.helpers.bell.fetch_add(1, Release);
            futex::wake(&self.helpers.bell, 1);
        }
        asked
    }

    /// Has the helpers leave, and waits until they have.
    pub(crate) fn end_helpers(&self) {
        self.helpers.end();
        self.helpers.bell.fetch_add(1, Release);
        futex::wake(&self.helpers.bell, u32::MAX >> 1);
        (0..MOST).filter_map(|place| self.agents.take(Agent::Helper(place))).for_each(Thread::join);
    }
}

impl Worker {
    /// Sees to it that there are helpers, one for each CPU at most and no more than there is to do; none where no CPU is idle. Whether there are
    /// any.
    pub(crate) fn make_helpers(&mut self) -> bool {
        let engine = self.engine;
        if engine.conditions.are_contended() || engine.phase() != Phase::Running {
            return engine.helpers.count() > 0;
        }
        let most = self.budgets.contention.cpus().min(engine.prefetch.len());
        while let Some(place) = engine.helpers.free_place(most) {
            // Who left has ended, or is about to.
            if let Some(before) = engine.agents.take(Agent::Helper(place)) {
                before.join();
            }
            engine.helpers.arrive(place);
            // SAFETY: `main` keeps to the rules of agent threads.
            match unsafe { Thread::spawn(main, engine as *const Engine as usize + place) } {
                Ok(thread) => engine.agents.note(Agent::Helper(place), thread),
                Err(_) => {
                    engine.helpers.leave(place);
                    break;
                }
            }
        }
        engine.helpers.count() > 0
    }
}
