//! A replacement policy as a page daemon: the touches of a pass are its requests.

use super::{PageDaemon, Place, Row};
use crate::replace::list::Queues;
use crate::replace::{Outcome, Replacement, NEVER};
use alloc::boxed::Box;
use alloc::vec::Vec;

const INACTIVE: usize = 0;
const FREE: usize = 1;
/// That part of the limit is kept for pages that the policy has let go and that may still be wanted: who sees
/// only reference bits once a pass errs.
const SECOND_CHANCE: usize = 16;

/// Makes the policy for a capacity and a universe.
type Make = Box<dyn Fn(usize, usize) -> Box<dyn Replacement + Send> + Send>;

/// Any replacement policy at work on reference bits.
///
/// What the policy evicts becomes inactive, and is freed oldest first when room is needed; a touch before that is a
/// request again. The policy cannot be told that a page is gone: such pages stay with it until it evicts them, and when
/// they are many it is made anew from the pages that are left, least recently touched first, and so it is when the
/// limit changes or the universe grows.
pub struct Adapter {
    make: Make,
    policy: Box<dyn Replacement + Send>,
    /// Inactive and free pages.
    queues: Queues<2>,
    /// The pass in which each page was last touched, plus one; 0 for one that is gone.
    touched: Vec<u32>,
    /// Pages that the policy holds and that are gone.
    gone: usize,
    now: u32,
    limit: usize,
    row: Row,
}

impl Adapter {
    /// For `limit` resident pages, of page numbers below `universe`; `make` makes the policy for a capacity and a universe, as often as it is
    /// asked.
    pub fn new(
        make: impl Fn(usize, usize) -> Box<dyn Replacement + Send> + Send + 'static,
        limit: usize,
        universe: usize,
    ) -> Adapter {
        let universe = universe.max(1).next_power_of_two();
        Adapter {
            policy: make(capacity(limit, universe), universe),
            make: Box::new(make),
            queues: Queues::new(universe),
            touched: alloc::vec![0; universe],
            gone: 0,
            now: 1,
            limit,
            row: Row::default(),
        }
    }

    /// Makes the policy anew; until now its page numbers were below `old`.
    fn rebuild(&mut self, old: usize) {
        let universe = self.touched.len();
        let live = |&page: &u32| self.touched[page as usize] != 0 && self.policy.is_resident(page);
        let mut pages: Vec<u32> = (0..old as u32).filter(live).collect();
        pages.sort_by_key(|&page| self.touched[page as usize]);
        self.policy = (self.make)(capacity(self.limit, universe), universe);
        self.gone = 0;
        for page in pages {
            if let Outcome::Miss { evicted: Some(victim) } = self.policy.request(page, NEVER) {
                self.queues.push_front(INACTIVE, victim);
                self.row.active_to_inactive += 1;
            }
        }
    }

    fn active(&self) -> usize {
        self.policy.resident() - self.gone
    }
}

fn capacity(limit: usize, universe: usize) -> usize {
    let limit = limit.clamp(1, universe);
    (limit - limit / SECOND_CHANCE).max(1)
}

impl PageDaemon for Adapter {
    fn grow(&mut self, universe: usize) {
        if universe > self.touched.len() {
            let universe = universe.next_power_of_two();
            self.queues.grow(universe);
            let old = self.touched.len();
            self.touched.resize(universe, 0);
            self.rebuild(old);
        }
    }

    fn touch(&mut self, page: u32, _written: bool) {
        let known = core::mem::replace(&mut self.touched[page as usize], self.now);
        self.row.scanned += 1;
        match self.queues.queue_of(page) {
            Some(queue) => {
                self.queues.remove(page);
                *if queue == FREE {
                    &mut self.row.free_to_active
                } else {
                    &mut self.row.inactive_to_active
                } += 1;
            }
            None if known == 0 => {
                self.row.arrived += 1;
                self.gone -= usize::from(self.policy.is_resident(page));
            }
            None => {}
        }
        if let Outcome::Miss { evicted: Some(victim) } = self.policy.request(page, NEVER) {
            if self.touched[victim as usize] == 0 {
                self.gone -= 1;
            } else {
                self.queues.push_front(INACTIVE, victim);
                self.row.active_to_inactive += 1;
            }
        }
    }

    fn bring(&mut self, page: u32) {
        let known = self.touched[page as usize] != 0;
        match self.queues.queue_of(page) {
            Some(FREE) => {
                self.queues.remove(page);
                self.row.free_to_inactive += 1;
            }
            // The policy holds it: gone, and back.
            None if !known && self.policy.is_resident(page) => return self.touch(page, false),
            None if !known => self.row.brought += 1,
            _ => return,
        }
        self.touched[page as usize] = self.now;
        self.queues.push_front(INACTIVE, page);
    }

    fn remove(&mut self, page: u32) {
        if core::mem::take(&mut self.touched[page as usize]) == 0 {
            return;
        }
        match self.queues.queue_of(page) {
            Some(queue) => {
                self.queues.remove(page);
                self.row.removed[if queue == FREE { 3 } else { 1 }] += 1;
            }
            None => {
                self.gone += 1;
                self.row.removed[0] += 1;
            }
        }
    }

    fn pass(&mut self, limit: usize, _elapsed: u64) -> Row {
        let universe = self.touched.len();
        let resized = capacity(limit, universe) != capacity(self.limit, universe);
        self.limit = limit;
        if resized || self.gone > capacity(limit, universe) / 8 {
            self.rebuild(universe);
        }
        self.row.active_scan = self.row.scanned > 0;
        while self.in_use() > limit {
            let Some(page) = self.queues.pop_back(INACTIVE) else { break };
            self.row.inactive_scan = true;
            self.row.scanned += 1;
            self.row.inactive_to_free += 1;
            self.queues.push_front(FREE, page);
        }
        while self.in_use() + self.queues.len(FREE) > limit && self.take_free().is_some() {}
        self.now += 1;
        self.row.active = self.active() as u64;
        self.row.inactive = self.queues.len(INACTIVE) as u64;
        self.row.free_queue = self.queues.len(FREE) as u64;
        self.row.free = limit.saturating_sub(self.in_use()) as u64;
        core::mem::take(&mut self.row)
    }

    fn place(&self, page: u32) -> Place {
        match self.queues.queue_of(page) {
            Some(INACTIVE) => Place::Inactive,
            Some(_) => Place::Free,
            None if self.touched[page as usize] != 0 => Place::Active,
            None => Place::Out,
        }
    }

    fn in_use(&self) -> usize {
        self.active() + self.queues.len(INACTIVE)
    }

    fn take_free(&mut self) -> Option<u32> {
        let page = self.queues.pop_back(FREE)?;
        self.touched[page as usize] = 0;
        self.row.evicted += 1;
        Some(page)
    }
}
