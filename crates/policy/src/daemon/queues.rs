//! The queues of FreeBSD's page daemon, its scans and its targets; what Bon Chance changes is left open.
//!
//! Source: FreeBSD 12 (2018), `sys/vm/vm_pageout.c` and `vm_page.c`; the rules as issue and report give them.
//! What differs: pages that a kernel keeps for its own needs (`v_free_reserved`) are not kept; a page in the free queue
//! can be brought back until its memory is used (as in FreeBSD up to 11, `PQ_CACHE`); laundering takes no time here,
//! what it takes is the pager's affair, and there is none ahead of a shortage.

use super::pid::Pid;
use super::{PageDaemon, Place, Row, INTERVAL};
use crate::replace::list::Queues;
use alloc::vec::Vec;

/// The queues, by number.
const ACTIVE: usize = 0;
const INACTIVE: usize = 1;
const LAUNDRY: usize = 2;
const FREE: usize = 3;

/// Activity of a page when it comes (`ACT_INIT`), what a reference adds beside their number (`ACT_ADVANCE`), and the
/// most (`ACT_MAX`).
const ACT_INIT: u8 = 5;
const ACT_ADVANCE: u8 = 3;
const ACT_MAX: u8 = 64;
/// So many pages in the laundry queue make up for one in the inactive queue (`vm.act_scan_laundry_weight`).
const LAUNDRY_WEIGHT: usize = 3;

const REFERENCED: u8 = 1;
const DIRTY: u8 = 2;

/// What can be set.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Parameters {
    /// Part of the limit that should be free. FreeBSD's `v_free_target` is four times a two-hundredth of memory, 0.02.
    pub free: f64,
    /// Time in which every active page is looked at, s (`vm.pageout_update_period`, 600).
    pub period: f64,
    /// Time between two intervals of the controller, ns ([`INTERVAL`]).
    pub interval: u64,
}

impl Default for Parameters {
    fn default() -> Parameters {
        Parameters { free: 0.02, period: 600.0, interval: INTERVAL }
    }
}

/// An end of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The end that new pages come to; they are looked at last.
    Tail,
    /// The end that is looked at first.
    Head,
}

/// What FreeBSD's page daemon and Bon Chance do differently.
pub trait Rules {
    /// The activity of an active page that was not referenced.
    fn decay(&mut self, activity: u8) -> u8;
    /// Where a page enters the inactive or the free queue.
    fn end(&mut self) -> End;
}

#[derive(Clone, Copy, Default)]
struct Page {
    activity: u8,
    flags: u8,
}

/// A page daemon of four queues, with rules to fill in.
pub struct FourQueues<R> {
    rules: R,
    parameters: Parameters,
    queues: Queues<4>,
    pages: Vec<Page>,
    pid: Pid,
    /// The two hands on the active queue: the page that is looked at next, and the last one of this round. `None` where
    /// they have met.
    hands: Option<(u32, u32)>,
    /// Pages of the least rate that are still owed, in billionths.
    owed: u128,
    limit: usize,
    row: Row,
}

impl<R: Rules> FourQueues<R> {
    /// For page numbers below `universe`.
    pub fn new(rules: R, parameters: Parameters, universe: usize) -> FourQueues<R> {
        FourQueues {
            rules,
            parameters,
            queues: Queues::new(universe),
            pages: alloc::vec![Page::default(); universe],
            pid: Pid::default(),
            hands: None,
            owed: 0,
            limit: usize::MAX,
            row: Row::default(),
        }
    }

    /// Free pages below this should be few: the pass frees towards it.
    pub fn free_target(&self, limit: usize) -> usize {
        ((limit as f64 * self.parameters.free) as usize).max(1)
    }

    /// Puts a page into the inactive or the free queue.
    fn enter(&mut self, queue: usize, page: u32) {
        match self.rules.end() {
            End::Tail => self.queues.push_front(queue, page),
            End::Head => self.queues.push_back(queue, page),
        }
    }

    fn leave(&mut self, page: u32) {
        if let Some((next, last)) = self.hands {
            self.hands = match (next == page, last == page) {
                (true, true) => None,
                (true, false) => self.queues.newer(page).map(|next| (next, last)),
                (false, true) => self.queues.older(page).map(|last| (next, last)),
                (false, false) => self.hands,
            };
        }
        self.queues.remove(page);
    }

    fn activate(&mut self, page: u32) {
        let state = &mut self.pages[page as usize];
        // As one that comes (`vm_page_activate`), and for its reference on top.
        state.activity = (state.activity.max(ACT_INIT) + ACT_ADVANCE + 1).min(ACT_MAX);
        state.flags &= !REFERENCED;
        self.queues.push_front(ACTIVE, page);
    }

    fn referenced(&mut self, page: u32) -> bool {
        let flags = &mut self.pages[page as usize].flags;
        let referenced = *flags & REFERENCED != 0;
        *flags &= !REFERENCED;
        referenced
    }

    /// Looks at the inactive queue from its head until `shortage` pages are freed. Returns what is still lacking.
    fn scan_inactive(&mut self, mut shortage: usize) -> usize {
        let most = self.queues.len(INACTIVE);
        for _ in 0..most {
            if shortage == 0 {
                break;
            }
            let Some(page) = self.queues.pop_back(INACTIVE) else { break };
            self.row.scanned += 1;
            if self.referenced(page) {
                self.activate(page);
                self.row.inactive_to_active += 1;
            } else if self.pages[page as usize].flags & DIRTY != 0 {
                self.queues.push_front(LAUNDRY, page);
                self.row.inactive_to_laundry += 1;
            } else {
                self.enter(FREE, page);
                self.row.inactive_to_free += 1;
                shortage -= 1;
            }
        }
        shortage
    }

    /// Cleans pages of the laundry queue until `shortage` are.
    fn launder(&mut self, mut shortage: usize) {
        let most = self.queues.len(LAUNDRY);
        for _ in 0..most {
            if shortage == 0 {
                break;
            }
            let Some(page) = self.queues.pop_back(LAUNDRY) else { break };
            if self.referenced(page) {
                self.activate(page);
                self.row.laundry_to_active += 1;
            } else {
                self.pages[page as usize].flags &= !DIRTY;
                self.enter(FREE, page);
                self.row.laundered += 1;
                shortage -= 1;
            }
        }
    }

    /// The page under the first hand, which goes on. Where the hands have met, they move to the ends of the queue again.
    fn next_active(&mut self) -> Option<u32> {
        let (next, last) = match self.hands {
            Some(hands) => hands,
            None => (self.queues.back(ACTIVE)?, self.queues.front(ACTIVE)?),
        };
        let after = if next == last { None } else { self.queues.newer(next) };
        self.hands = after.map(|after| (after, last));
        Some(next)
    }

    /// Looks at active pages: all of them while the inactive queue lacks `shortage` pages, else so many that each is
    /// looked at once in the period.
    fn scan_active(&mut self, shortage: usize, elapsed: u64) {
        let length = self.queues.len(ACTIVE);
        self.owed = self.owed.saturating_add(length as u128 * u128::from(elapsed));
        let period = ((self.parameters.period * 1e9) as u128).max(1);
        let least = (self.owed / period).min(length as u128) as usize;
        self.owed %= period;
        let most = if shortage > 0 { length } else { least };
        self.row.active_scan = most > 0;
        let mut lacking = shortage * LAUNDRY_WEIGHT;
        for seen in 0..most {
            if lacking == 0 && seen >= least {
                break;
            }
            let Some(page) = self.next_active() else { break };
            self.row.scanned += 1;
            let referenced = self.referenced(page);
            let state = &mut self.pages[page as usize];
            state.activity = if referenced {
                (state.activity + ACT_ADVANCE + 1).min(ACT_MAX)
            } else {
                self.rules.decay(state.activity)
            };
            if state.activity > 0 {
                continue;
            }
            let dirty = state.flags & DIRTY != 0;
            self.leave(page);
            // In a shortage the inactive queue is short, and a dirty page would spend no time there.
            if dirty && lacking > 0 {
                self.queues.push_front(LAUNDRY, page);
                self.row.active_to_laundry += 1;
                lacking -= 1;
            } else {
                self.enter(INACTIVE, page);
                self.row.active_to_inactive += 1;
                lacking = lacking.saturating_sub(LAUNDRY_WEIGHT);
            }
        }
    }
}

impl<R: Rules> PageDaemon for FourQueues<R> {
    fn grow(&mut self, universe: usize) {
        self.queues.grow(universe);
        self.pages.resize(universe.max(self.pages.len()), Page::default());
    }

    fn touch(&mut self, page: u32, written: bool) {
        let place = self.queues.queue_of(page);
        let state = &mut self.pages[page as usize];
        if written {
            state.flags |= DIRTY;
        }
        match place {
            Some(FREE) => {
                self.queues.remove(page);
                self.activate(page);
                self.row.free_to_active += 1;
            }
            Some(_) => state.flags |= REFERENCED,
            None => {
                *state = Page { activity: ACT_INIT, flags: state.flags & DIRTY };
                self.queues.push_front(ACTIVE, page);
                self.row.arrived += 1;
            }
        }
    }

    fn bring(&mut self, page: u32) {
        match self.queues.queue_of(page) {
            Some(FREE) => {
                self.queues.remove(page);
                self.row.free_to_inactive += 1;
            }
            Some(_) => return,
            None => self.row.brought += 1,
        }
        // As FreeBSD does with the pages that a fault reads ahead (`vm_page_readahead_finish`).
        self.pages[page as usize] = Page::default();
        self.enter(INACTIVE, page);
    }

    fn remove(&mut self, page: u32) {
        if let Some(queue) = self.queues.queue_of(page) {
            self.leave(page);
            self.pages[page as usize] = Page::default();
            self.row.removed[queue] += 1;
        }
    }

    fn pass(&mut self, limit: usize, elapsed: u64) -> Row {
        self.limit = limit;
        let in_use = self.in_use();
        let target = self.free_target(limit);
        let free = limit.saturating_sub(in_use);
        // What is above the limit is needed at once, as by a kernel's threads that wait for pages.
        let deficit = in_use.saturating_sub(limit);
        let shortage = self.pid.ask(target, free, elapsed, self.parameters.interval) + deficit;
        self.row.inactive_scan = shortage > 0 && self.queues.len(INACTIVE) > 0;
        let lacking = self.scan_inactive(shortage);
        self.launder(lacking);
        let inactive = self.queues.len(INACTIVE) + self.queues.len(LAUNDRY) / LAUNDRY_WEIGHT;
        let wanted = (target * 3 / 2).max(1) + lacking;
        self.scan_active(wanted.saturating_sub(inactive), elapsed);
        while self.in_use() + self.queues.len(FREE) > limit && self.take_free().is_some() {}
        self.row.active = self.queues.len(ACTIVE) as u64;
        self.row.inactive = self.queues.len(INACTIVE) as u64;
        self.row.laundry = self.queues.len(LAUNDRY) as u64;
        self.row.free_queue = self.queues.len(FREE) as u64;
        self.row.free = limit.saturating_sub(self.in_use()) as u64;
        core::mem::take(&mut self.row)
    }

    fn place(&self, page: u32) -> Place {
        match self.queues.queue_of(page) {
            Some(ACTIVE) => Place::Active,
            Some(INACTIVE) => Place::Inactive,
            Some(LAUNDRY) => Place::Laundry,
            Some(_) => Place::Free,
            None => Place::Out,
        }
    }

    fn in_use(&self) -> usize {
        self.queues.len(ACTIVE) + self.queues.len(INACTIVE) + self.queues.len(LAUNDRY)
    }

    fn take_free(&mut self) -> Option<u32> {
        let page = self.queues.pop_back(FREE)?;
        self.pages[page as usize] = Page::default();
        self.row.evicted += 1;
        Some(page)
    }
}
