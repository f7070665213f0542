//! A helper's life, and how the first of them makes the others.
//!
//! The first is there from the start, with a stack and nothing else, since who is made later by the background thread would have its low priority.
//! It makes others when there is more to do than it can do alone, and what they need to work with they have only while there is something to do.
//!
//! Invariants: a helper gives way to whoever changes mappings or forks, as everybody does who restores ahead; it takes no lock. It is scheduled as
//! the program's threads are: whoever lost the CPU with entries in hand would keep others waiting for them.

use crate::engine::{Agent, Engine};
use crate::fault::helpers::{FIRST, MOST};
use crate::fault::reason::{Outcome, Reason};
use crate::fault::restore::{Restorer, AT_ONCE};
use crate::sabotage::{fault_point, linger, Bug};
use crate::tables::bitmap::PageRange;
use core::mem::align_of;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::{self, Thread};
use memfold_sys::time::{self, Nanos};
use memfold_sys::{futex, Result, PAGE_SIZE};

/// A helper leaves when there was nothing to do for so long.
const IDLE: Nanos = Nanos::from_secs(5);
/// So many pages at a time: who touches one of them meanwhile waits for all.
const PIECE: usize = 8;

// The low bits of the engine's address are a helper's place.
const _: () = assert!(align_of::<Engine>() >= MOST);

/// The thread's entry; `arg` is the engine's address, and in its low bits the helper's place.
pub extern "C" fn main(arg: usize) {
    let place = arg % MOST;
    // SAFETY: the engine lives for ever.
    let engine: &'static Engine = unsafe { &*((arg - place) as *const Engine) };
    thread::set_name(thread::agent_name::HELPER);
    // Without it the thread keeps rights that it has no use for, which is no reason to stop.
    let _ = thread::drop_capabilities(0);
    let helpers = &engine.helpers;
    loop {
        // Before the look: who has them end says so, and rings then.
        let bell = helpers.bell.load(Acquire);
        if helpers.are_ending() {
            break;
        }
        linger(Bug::BellReadLate);
        let bell = fault_point!(BellReadLate: bell, else helpers.bell.load(Acquire));
        if engine.prefetch.is_empty() {
            if place != FIRST {
                break;
            }
            let _ = futex::wait(&helpers.bell, bell, None);
            continue;
        }
        match engine.kernel().map(|kernel| Restorer::new(engine, kernel)) {
            Some(Ok(restorer)) => help(engine, place, restorer),
            // Without memory to bring it, it comes when it is touched.
            _ => drop(engine.prefetch.take()),
        }
    }
    helpers.leave(place);
}

/// Works until there was nothing to do for a while.
fn help(engine: &'static Engine, place: usize, mut restorer: Restorer) {
    let helpers = &engine.helpers;
    let mut last = time::now();
    loop {
        let bell = helpers.bell.load(Acquire);
        if helpers.are_ending() {
            break;
        }
        if place == FIRST {
            engine.make_helpers();
        }
        if let Some((page, pages)) = engine.prefetch.take() {
            let before = time::thread_cpu();
            bring(engine, &mut restorer, page, pages);
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
            Outcome::Done { first, pages } => {
                // The next fault of a sequential reader comes behind what it finds there.
                extent.next_fault.store((first + pages) as u32, Relaxed);
                extent.window.fetch_max(AT_ONCE, Relaxed);
                extent.page_addr(first + pages).max(at + PAGE_SIZE)
            }
            // It may have been dropped, unmapped or moved since it was asked for; what lies below memory is fetched when it is touched.
            outcome => {
                fault_point!(GuessMade: (), else if outcome == Outcome::Resident {
                    restorer.kernel.uffd.zero(at, PAGE_SIZE);
                });
                at + PAGE_SIZE
            }
        };
    }
}

impl Engine {
    /// Asks for pages ahead of their touch, from address `page` on, in pieces that several may take. False where the queue has no room for all of them.
    /// Fault thread.
    pub(crate) fn ask_ahead(&self, page: usize, pages: usize) -> bool {
        let asked = self.prefetch.put_in_pieces(page, pages, PIECE);
        if asked > 0 {
            self.helpers.ring(asked as u32);
        }
        asked == pages.div_ceil(PIECE)
    }

    /// Has the helpers leave, and waits until they have.
    pub(crate) fn end_helpers(&self) {
        self.helpers.end();
        self.helpers.ring(u32::MAX >> 1);
        // The first makes none any more once it has ended.
        (0..MOST).filter_map(|place| self.agents.take(Agent::Helper(place))).for_each(Thread::join);
    }

    /// Sees to it that there are as many helpers as there is to do for, but no more than CPUs. By the first of them.
    fn make_helpers(&'static self) {
        let most = self.helpers.cpus().min(self.prefetch.len());
        while let Some(place) = self.helpers.free_place(most) {
            // Who left has ended, or is about to.
            if let Some(before) = self.agents.take(Agent::Helper(place)) {
                before.join();
            }
            if self.make_helper(place).is_err() {
                return;
            }
        }
    }

    /// Makes the helper of that place.
    pub(crate) fn make_helper(&'static self, place: usize) -> Result<()> {
        self.helpers.arrive(place);
        // SAFETY: `main` keeps to the rules of agent threads.
        let made = unsafe { Thread::spawn(main, self as *const Engine as usize + place) };
        match made {
            Ok(thread) => self.agents.note(Agent::Helper(place), thread),
            Err(error) => {
                self.helpers.leave(place);
                return Err(error);
            }
        }
        Ok(())
    }
}
