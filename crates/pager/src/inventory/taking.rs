//! The walk over all mappings. Background thread only.

use crate::control::ControlPage;
use crate::evict::scan::look;
use crate::evict::worker::Worker;
use crate::gauge::Gauge;
use crate::maps::{Kind, Lines, Mapping};
use crate::tables::extent::{Extent, Locked, WAITS_FOR_CPU, WAITS_FOR_ROOM, WAITS_FOR_STALL};
use crate::why::{choose, Counts, Known, Why};
use core::sync::atomic::Ordering::*;
use memfold_policy::age::Standing;
use memfold_sys::pagemap::{Categories, Query, Run};
use memfold_sys::time::{self, Nanos};
use memfold_sys::{mem, Result, EXTENT_SIZE, PAGE_SIZE};

/// Mappings shorter than this are small; the preload library does not tell of them.
const SMALL: usize = 64 << 10;

/// Address space without tables that is looked at by one call: where there may be much in it, and where there hardly is anything.
const STRETCH: usize = 64 << 20;

const EMPTY_STRETCH: usize = 1 << 30;

/// How often an extent's lock is tried, and the pause between two tries.
const TRIES: u32 = 50;

const PAUSE: Nanos = Nanos(20_000);

/// What an inventory remembers on its way.
struct Walk {
    counts: Counts,
    /// Where the last mapping ended, and what it was.
    before: Option<(usize, Before)>,
    /// The extent that was looked at last, and how many of its pages may still count as too few.
    few: (usize, usize),
    /// Pages found in staging, and how many were set aside when the walk came there.
    staged: u64,
    aside: Option<u64>,
}

/// What lies below a mapping.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// A mapping that cannot be accessed, as below a stack.
    Guard,
    /// A file's, as below the variables of a program that begin as zeros.
    File,
    Other,
}

impl Worker {
    /// Takes inventory if it is time to, and CPU time for it.
    pub(crate) fn take_inventory_if_due(&mut self) {
        if self.now >= self.upkeep.inventory.next && self.may_fold() {
            // Where it cannot be had, there is none.
            let _ = self.take_inventory();
        }
    }

    /// Counts all resident memory by reason. An error where the kernel does not tell.
    pub(crate) fn take_inventory(&mut self) -> Result<()> {
        let began = time::now();
        // What comes soon is tried again soon.
        self.upkeep.inventory.taken(began, 0);
        let resident = self.resident();
        let mut walk = Walk { counts: Counts::default(), before: None, few: (0, 0), staged: 0, aside: None };
        self.walk_mappings(&mut walk)?;
        // What restores left there and what is being compressed is the pager's own; what is aside was counted where it belongs.
        walk.counts.add(Why::Own, walk.staged.saturating_sub(walk.aside.unwrap_or(0)) as usize);
        let resident = (resident + self.resident()) / 2;
        self.now = time::now();
        let took = self.now.since(began).0;
        self.upkeep.inventory.taken(self.now, took);
        publish(self.engine.control(), &walk.counts, resident, self.now, took);
        Ok(())
    }

    /// Resident bytes of the process as the kernel counts them.
    fn resident(&self) -> u64 {
        let numbers = self.engine.link.gauges.read::<2>(Gauge::Memory);
        numbers.map_or(0, |[_, resident]| resident * PAGE_SIZE as u64)
    }

    fn walk_mappings(&mut self, walk: &mut Walk) -> Result<()> {
        let (mut lines, mut at, mut piece) = (Lines::new(), 0, [0; 2048]);
        loop {
            let len = self.engine.link.gauges.read_maps(&mut piece, at)?;
            if len == 0 {
                return Ok(());
            }
            at += len as u64;
            for byte in &piece[..len] {
                if let Some(mapping) = lines.push(*byte) {
                    self.walk_mapping(walk, &mapping)?;
                }
            }
        }
    }

    /// Counts the pages of a mapping.
    fn walk_mapping(&mut self, walk: &mut Walk, mapping: &Mapping) -> Result<()> {
        let below = walk.before.filter(|(end, _)| *end == mapping.start).map(|(_, before)| before);
        walk.before = Some((mapping.end, Before::of(mapping)));
        let rest = mapping.rest(below);
        let tables = matches!(mapping.kind, Kind::Anonymous | Kind::Heap);
        let end = mapping.end.min(crate::tables::space::LIMIT);
        let stretch = if mapping.accessible { STRETCH } else { EMPTY_STRETCH };
        let mut at = mapping.start;
        let engine = self.engine;
        let known = engine.space().existing(at, end).take(if tables { usize::MAX } else { 0 });
        let mut extents = known.peekable();
        while at < end && mapping.kind != Kind::Reserved {
            at = match extents.next_if(|extent| extent.base() <= at) {
                Some(extent) => {
                    let stop = end.min(extent.base() + EXTENT_SIZE);
                    self.count_known(walk, extent, at, stop, rest)?;
                    stop
                }
                None => {
                    let next = extents.peek().map_or(end, |extent| extent.base());
                    let stop = next.min(at.saturating_add(stretch));
                    self.count_unknown(walk, at, stop, rest)?;
                    stop
                }
            };
            self.stay_responsive();
        }
        Ok(())
    }

    /// Counts a part of an extent; `rest` is why pages are here of which the tables know nothing.
    fn count_known(
        &mut self,
        walk: &mut Walk,
        extent: &Extent,
        start: usize,
        end: usize,
        rest: Why,
    ) -> Result<()> {
        let mut locked = self.try_for_a_while(extent);
        // Counted here, and not where they are: they come back meanwhile.
        let aside = extent.aside_pages().and(&extent.clip(start, end).set());
        let seen = look(self.kernel, extent, extent.clip(start, end))?;
        let managed = seen.present.and(&extent.managed.load());
        let (now, cold_age, timing) = (self.now.0, self.cold_age(), self.sources.timing());
        let standing = locked.as_mut().map(|extent| extent.age().standing(now, cold_age, timing));
        drop(locked);
        walk.counts.add(Why::SetAside, aside.minus(&seen.present).len());
        let standing = standing.unwrap_or(Standing::Young);
        if walk.few.0 != extent.base() {
            walk.few = (extent.base(), extent.scattered.load(Relaxed) as usize);
        }
        let before = walk.counts.pages(Why::Few);
        let known = Known {
            pages: managed,
            hot: extent.hot.load(),
            back_soon: extent.back_soon.load(),
            written: seen.written,
            incompressible: extent.incompressible.load(),
            refused: extent.refused.load(),
            shared: extent.shared.load(),
            huge: seen.huge,
            few: walk.few.1,
            standing,
            waits_for: self.waits_for(extent, standing),
            instead: self.instead(),
        };
        choose(&known, &mut walk.counts);
        walk.few.1 -= (walk.counts.pages(Why::Few) - before) as usize;
        let others = seen.present.minus(&managed);
        let alone = extent.left_alone.load();
        let locked = others.and(&alone).and(&extent.locked.load());
        let excluded = others.and(&alone.or(&extent.anonymous.load())).minus(&locked);
        walk.counts.add(Why::Locked, locked.len());
        walk.counts.add(Why::Excluded, excluded.len());
        for run in others.minus(&locked).minus(&excluded).runs() {
            self.count_run(walk, extent.page_addr(run.lo), extent.page_addr(run.hi), rest);
        }
        Ok(())
    }

    /// What the next step of an extent waits for.
    fn waits_for(&self, extent: &Extent, standing: Standing) -> Option<Why> {
        match extent.waits_for.load(Relaxed) {
            WAITS_FOR_CPU => Some(Why::WaitingForCpu),
            WAITS_FOR_STALL => Some(Why::StallBudget),
            WAITS_FOR_ROOM => Some(Why::WaitingForRoom),
            // Nobody came to look yet.
            _ => (standing == Standing::Due && !self.may_fold()).then_some(Why::WaitingForCpu),
        }
    }

    /// Why nothing goes by its age.
    fn instead(&self) -> Option<Why> {
        let paused = self.engine.control().paused.load(Relaxed) != 0 || self.recording.is_some();
        let policy = self.eviction.daemon.is_some().then_some(Why::Policy);
        if paused {
            Some(Why::Paused)
        } else {
            policy
        }
    }

    fn try_for_a_while<'e>(&mut self, extent: &'e Extent) -> Option<Locked<'e>> {
        for _ in 0..TRIES {
            if let Some(locked) = extent.try_lock() {
                return Some(locked);
            }
            self.stand_still_if_wanted();
            time::sleep(PAUSE);
        }
        None
    }

    /// Counts a range of which no tables were made.
    fn count_unknown(&mut self, walk: &mut Walk, start: usize, end: usize, rest: Why) -> Result<()> {
        let query = Query {
            all: Categories::PRESENT,
            none: Categories::ZERO,
            report: Categories::PRESENT,
            protect: false,
        };
        let (mut runs, mut at) = ([Run::EMPTY; 64], start);
        while at < end {
            let (count, stopped) = self.kernel.pagemap.scan(at, end, &query, &mut runs)?;
            for run in &runs[..count] {
                self.count_run(walk, run.start as usize, run.end as usize, rest);
            }
            if stopped <= at {
                break;
            }
            at = stopped;
        }
        Ok(())
    }

    /// Counts resident pages of which no tables were made: noted as young, in staging, memfold's own, or what the mapping says.
    fn count_run(&self, walk: &mut Walk, start: usize, end: usize, rest: Why) {
        let pages = (end - start) / PAGE_SIZE;
        if self.kernel.staging.range().contains(&start) {
            walk.aside.get_or_insert_with(|| self.engine.counts.aside.load(Relaxed));
            walk.staged += pages as u64;
            return;
        }
        if matches!(rest, Why::File | Why::SharedMemory) {
            return walk.counts.add(rest, pages);
        }
        let young = (self.engine.young_bytes_of(start, end) / PAGE_SIZE).min(pages);
        let own = (mem::own_bytes(start, end) / PAGE_SIZE).min(pages - young);
        walk.counts.add(Why::Young, young);
        walk.counts.add(Why::Own, own);
        walk.counts.add(rest, pages - young - own);
    }
}

impl Before {
    fn of(mapping: &Mapping) -> Before {
        match mapping.kind {
            Kind::Anonymous if !mapping.accessible => Before::Guard,
            Kind::File => Before::File,
            _ => Before::Other,
        }
    }
}

impl Mapping {
    /// Why pages of it are here of which the pager has no tables, by what lies right below it.
    fn rest(&self, below: Option<Before>) -> Why {
        match self.kind {
            Kind::File | Kind::Reserved => Why::File,
            Kind::Shared => Why::SharedMemory,
            Kind::Stack => Why::Stack,
            Kind::Heap => Why::Unknown,
            Kind::Anonymous if below == Some(Before::File) => Why::File,
            Kind::Anonymous if self.end - self.start < SMALL => Why::Small,
            Kind::Anonymous if below == Some(Before::Guard) && self.writable => Why::Stack,
            Kind::Anonymous => Why::Unknown,
        }
    }
}

fn publish(control: &ControlPage, counts: &Counts, resident: u64, now: Nanos, took: u64) {
    let inventory = &control.inventory;
    for why in Why::ALL {
        inventory.bytes[why as usize].store(counts.pages(why) * PAGE_SIZE as u64, Relaxed);
    }
    inventory.resident_bytes.store(resident, Relaxed);
    inventory.took_ns.store(took, Relaxed);
    inventory.taken_ns.store(now.0, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_without_tables_is_known_by_what_it_is_and_what_lies_below_it() {
        let mapping = |kind, len| Mapping {
            start: 0,
            end: len,
            kind,
            accessible: true,
            writable: true,
            plain: true,
            own: false,
        };
        let anonymous = |len, below| mapping(Kind::Anonymous, len).rest(below);
        assert_eq!(anonymous(SMALL, None), Why::Unknown);
        assert_eq!(anonymous(SMALL, Some(Before::Other)), Why::Unknown);
        assert_eq!(anonymous(SMALL, Some(Before::Guard)), Why::Stack);
        assert_eq!(anonymous(SMALL - PAGE_SIZE, Some(Before::Guard)), Why::Small);
        assert_eq!(anonymous(SMALL, Some(Before::File)), Why::File);
        let unwritable = Mapping { writable: false, ..mapping(Kind::Anonymous, SMALL) };
        assert_eq!(unwritable.rest(Some(Before::Guard)), Why::Unknown);
        let others = [
            (Kind::Heap, Why::Unknown),
            (Kind::Stack, Why::Stack),
            (Kind::File, Why::File),
            (Kind::Shared, Why::SharedMemory),
        ];
        for (kind, why) in others {
            assert_eq!(mapping(kind, PAGE_SIZE).rest(Some(Before::Guard)), why);
        }
        let guard = Mapping { accessible: false, ..mapping(Kind::Anonymous, PAGE_SIZE) };
        assert!(Before::of(&guard) == Before::Guard && Before::of(&mapping(Kind::File, 1)) == Before::File);
    }
}
