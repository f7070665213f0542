//! What a thread of the verification does, over and over, drawn at random.

use super::actor::Actor;
use super::area::Area;
use super::blocks::Block;
use super::children::{self, Kind};
use super::findings::lock;
use super::invocation::Way;
use super::shared::Shared;
use super::Work;
use anyhow::Result;
use memfold_stats::Rng;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::PoisonError;
use std::time::Duration;

/// Pages of the smallest area: 1 MiB, from which size on mappings are managed.
const LEAST_PAGES: u64 = 256;
/// Pages of the largest.
const MOST_PAGES: u64 = 2048;
/// Areas that a thread has at most.
const MOST_AREAS: usize = 6;
/// Blocks that a thread has at most.
const MOST_BLOCKS: usize = 400;
/// Blocks that may lie in the exchange.
const MOST_EXCHANGED: usize = 64;

/// The body of thread `number`.
pub(super) fn run(shared: &Shared, number: usize) {
    let beat = &shared.beats[number];
    let most = shared.options.operations.unwrap_or(u64::MAX);
    while !shared.over() && beat.count.load(Relaxed) < most {
        let mut actor = lock(&shared.actors[number]);
        if let Err(error) = actor.operate(shared) {
            shared.findings.fail(format!("thread {number}: {error:#}"));
            break;
        }
        beat.finish();
    }
    beat.done.store(true, Relaxed);
}

fn any_size(rng: &mut Rng) -> usize {
    (LEAST_PAGES + rng.below(MOST_PAGES - LEAST_PAGES)) as usize
}

/// Some pages of an area: often few, at times many, never none.
fn any_range(rng: &mut Rng, pages: usize) -> Range<usize> {
    let most = if rng.below(4) == 0 { pages } else { pages.min(32) };
    let len = 1 + rng.below(most as u64) as usize;
    let start = rng.below((pages - len + 1) as u64) as usize;
    start..start + len
}

impl Actor {
    fn operate(&mut self, shared: &Shared) -> Result<()> {
        let beat = &shared.beats[self.number];
        if self.areas.len() < 2 {
            beat.begin("map");
            return self.add_area(shared);
        }
        match self.rng.below(100) {
            0..=24 => {
                beat.begin("check");
                self.check_some(shared);
                Ok(())
            }
            25..=44 => {
                beat.begin("write");
                self.write_some(shared);
                Ok(())
            }
            45 if shared.does(Work::Huge) => {
                beat.begin("huge");
                self.make_huge(shared);
                Ok(())
            }
            45..=54 => {
                beat.begin("count");
                for _ in 0..64 {
                    shared.tally.count(self.rng.next_u64());
                    self.counted += 1;
                }
                Ok(())
            }
            55 if shared.does(Work::Protect) => {
                beat.begin("keep");
                self.keep_one(shared)
            }
            55..=59 => {
                beat.begin("common");
                self.use_common(shared);
                Ok(())
            }
            60..=64 if shared.does(Work::Calls) => {
                beat.begin("transfer");
                self.transfer(shared)
            }
            65..=69 if shared.does(Work::Drop) => {
                beat.begin("drop");
                self.drop_some(shared)
            }
            70..=73 if shared.does(Work::Protect) => {
                beat.begin("protect");
                self.protect_some(shared)
            }
            74..=79 if shared.does(Work::Unmap) => {
                beat.begin("unmap");
                self.unmap_some(shared)
            }
            80..=83 if shared.does(Work::Remap) => {
                beat.begin("remap");
                self.remap_one(shared)
            }
            84..=98 if shared.does(Work::Heap) => {
                beat.begin("heap");
                (0..8).for_each(|_| self.use_heap(shared));
                Ok(())
            }
            99 if shared.does(Work::Fork) && self.rng.below(4) == 0 => {
                beat.begin("fork");
                self.fork(shared)
            }
            _ => Ok(()),
        }
    }

    fn way(&mut self, shared: &Shared) -> Way {
        match self.rng.below(8) {
            0 if shared.does(Work::Raw) => Way::Bare,
            1 if shared.does(Work::Raw) => Way::Numbered,
            _ => Way::Named,
        }
    }

    fn pick(&mut self) -> usize {
        self.rng.below(self.areas.len() as u64) as usize
    }

    /// An area and some pages of it.
    fn place(&mut self) -> (usize, Range<usize>) {
        let at = self.pick();
        (at, any_range(&mut self.rng, self.areas[at].pages()))
    }

    fn add_area(&mut self, shared: &Shared) -> Result<()> {
        let mut area = Area::map(any_size(&mut self.rng))?;
        if shared.does(Work::Huge) && self.rng.below(3) == 0 {
            // From its first touch on.
            area.prefer(libc::MADV_HUGEPAGE, Way::Named);
        }
        // A part stays untouched, since untouched pages must go on reading as zeros.
        let written = any_range(&mut self.rng, area.pages()).end;
        area.write(shared.findings.content, 0..written, &mut self.tags);
        self.areas.push(area);
        Ok(())
    }

    fn check_some(&mut self, shared: &Shared) {
        let (at, range) = self.place();
        self.areas[at].check(&shared.findings, "area", range);
        let page = self.rng.below(shared.bedrock.pages() as u64) as usize;
        shared.bedrock.check(&shared.findings, "bedrock", page..page + 1);
    }

    fn write_some(&mut self, shared: &Shared) {
        let (at, range) = self.place();
        if self.rng.below(2) == 0 {
            self.areas[at].write(shared.findings.content, range, &mut self.tags);
        } else {
            for page in range {
                let (index, word) =
                    (self.rng.below(crate::content::WORDS as u64) as usize, self.rng.next_u64());
                self.areas[at].patch(page, index, word);
            }
        }
    }

    fn use_common(&mut self, shared: &Shared) {
        if self.rng.below(4) == 0 {
            let mut common = shared.common.write().unwrap_or_else(PoisonError::into_inner);
            let range = any_range(&mut self.rng, common.pages());
            common.write(shared.findings.content, range, &mut self.tags);
        } else {
            let common = shared.common.read().unwrap_or_else(PoisonError::into_inner);
            let range = any_range(&mut self.rng, common.pages());
            common.check(&shared.findings, "common", range);
        }
    }

    fn transfer(&mut self, shared: &Shared) -> Result<()> {
        // Two different areas: one is taken out while the other is borrowed.
        let mut to = self.areas.swap_remove(self.rng.below(self.areas.len() as u64) as usize);
        let from = self.pick();
        let result = self.pipe.transfer(&shared.findings, &self.areas[from], &mut to, &mut self.rng);
        self.areas.push(to);
        result
    }

    fn drop_some(&mut self, shared: &Shared) -> Result<()> {
        let ((at, range), way) = (self.place(), self.way(shared));
        let area = &mut self.areas[at];
        if self.rng.below(3) == 0 {
            area.free(range.clone(), way)?;
        } else {
            area.dont_need(range.clone(), way)?;
        }
        if self.rng.below(2) == 0 {
            area.check(&shared.findings, "dropped", range);
        }
        Ok(())
    }

    fn protect_some(&mut self, shared: &Shared) -> Result<()> {
        let (at, range) = self.place();
        let (area, readable, pause) = (&self.areas[at], self.rng.below(2) == 0, self.rng.below(2_000));
        area.protect(range.clone(), readable, || {
            if readable {
                area.check(&shared.findings, "read-only", range.clone());
            } else {
                std::thread::sleep(Duration::from_micros(pause));
            }
        })?;
        area.check(&shared.findings, "protected", range);
        Ok(())
    }

    /// Has an area be in huge pages, at once or as the kernel likes, or not any more.
    fn make_huge(&mut self, shared: &Shared) {
        let (at, way) = (self.pick(), self.way(shared));
        let area = &self.areas[at];
        let advice = [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE, libc::MADV_COLLAPSE];
        area.prefer(advice[self.rng.below(3) as usize], way);
        let range = any_range(&mut self.rng, area.pages());
        area.check(&shared.findings, "made huge", range);
    }

    /// Keeps an area from children, or one that was kept no more; or a part of one from core dumps.
    fn keep_one(&mut self, shared: &Shared) -> Result<()> {
        if self.rng.below(2) == 0 {
            let ((at, range), way, kept) = (self.place(), self.way(shared), self.rng.below(2) == 0);
            self.areas[at].keep_from_dumps(range.clone(), kept, way)?;
            self.areas[at].check(&shared.findings, "kept from core dumps", range);
            return Ok(());
        }
        let (at, way) = (self.pick(), self.way(shared));
        let area = &mut self.areas[at];
        area.keep_from_children(!area.is_kept(), way)?;
        let range = any_range(&mut self.rng, area.pages());
        area.check(&shared.findings, "kept from children", range);
        Ok(())
    }

    fn unmap_some(&mut self, shared: &Shared) -> Result<()> {
        let ((at, range), way) = (self.place(), self.way(shared));
        let inside = range.start > 0 && range.end < self.areas[at].pages();
        match self.rng.below(3) {
            0 => self.areas[at].map_over(range, way)?,
            1 if inside => {
                let rest = self.areas[at].split(range, way)?;
                self.areas.push(rest);
            }
            _ => self.areas.swap_remove(at).unmap(way)?,
        }
        while self.areas.len() > MOST_AREAS {
            let extra = self.pick();
            self.areas.swap_remove(extra).unmap(Way::Named)?;
        }
        Ok(())
    }

    fn remap_one(&mut self, shared: &Shared) -> Result<()> {
        let (at, way, pages) = (self.pick(), self.way(shared), any_size(&mut self.rng));
        let area = &mut self.areas[at];
        let moved = if self.rng.below(3) == 0 { area.relocate(way)? } else { area.resize(pages, way)? };
        let outcome = if moved { &shared.findings.moved } else { &shared.findings.refused };
        outcome.fetch_add(1, Relaxed);
        let range = any_range(&mut self.rng, area.pages());
        area.check(&shared.findings, "remapped", range);
        Ok(())
    }

    fn use_heap(&mut self, shared: &Shared) {
        let full = self.blocks.len() >= MOST_BLOCKS;
        let any = |actor: &mut Actor| actor.rng.below(actor.blocks.len().max(1) as u64) as usize;
        match self.rng.below(8) {
            0..=2 if !full => {
                self.blocks.extend(Block::allocate(&shared.findings, &mut self.rng, &mut self.tags))
            }
            3 => Block::check_calloc(&shared.findings, &mut self.rng),
            4 if !self.blocks.is_empty() => {
                let at = any(self);
                self.blocks[at].resize(&shared.findings, &mut self.rng);
            }
            5 => self.exchange(shared),
            _ if !self.blocks.is_empty() => {
                let at = any(self);
                self.blocks.swap_remove(at).check(&shared.findings);
            }
            _ => {}
        }
    }

    /// Gives a block away, and takes one that another thread allocated.
    fn exchange(&mut self, shared: &Shared) {
        let mut exchange = lock(&shared.exchange);
        let taken = (!exchange.is_empty()).then(|| exchange.remove(0));
        if exchange.len() < MOST_EXCHANGED {
            exchange.extend(self.blocks.pop());
        }
        drop(exchange);
        if let Some(block) = taken {
            block.check(&shared.findings);
        }
    }

    /// Forks while all other threads go on: the child can know this thread's memory and the shared.
    fn fork(&mut self, shared: &Shared) -> Result<()> {
        let common = shared.common.read().unwrap_or_else(PoisonError::into_inner);
        let child = children::make(&shared.findings, Kind::any(&mut self.rng), |may_allocate| {
            self.forget_kept();
            self.check(&shared.findings);
            shared.check_shared(&common);
            self.live_on(shared, may_allocate);
        })?;
        drop(common);
        child.wait(&shared.findings);
        Ok(())
    }

    /// What a child does with its copy: change it, and find it changed. It takes no lock, and allocates only if it may.
    pub fn live_on(&mut self, shared: &Shared, may_allocate: bool) {
        for _ in 0..10 {
            if !self.areas.is_empty() {
                self.write_some(shared);
                self.check_some(shared);
            }
            if may_allocate {
                self.blocks.extend(Block::allocate(&shared.findings, &mut self.rng, &mut self.tags));
            }
        }
        self.check(&shared.findings);
    }
}
