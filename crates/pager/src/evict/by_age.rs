//! Eviction by age: an extent is watched, what was not written of it is set aside, and what stays there untouched is compressed, each when it
//! has lain still for so long.
//!
//! What it is not: the rule, which is [`memfold_policy::age`]. Here is what the rule is told, and what follows from walks and from a stall budget
//! that is used up.
//!
//! Background thread only.

use crate::config::Setting;
use crate::engine::Engine;
use crate::evict::round::{Choice, Due, Policy};
use crate::evict::set_aside;
use crate::evict::worker::{Round, Worker};
use crate::fault::beside;
use crate::source::Seen;
use crate::tables::bitmap::PageSet;
use crate::tables::entries::Entries;
use crate::tables::entry::State;
use crate::tables::extent::{Extent, Locked, RECALLED, SEEN, TRIES, WAITS_FOR_STALL, WALKED};
use core::sync::atomic::Ordering::*;
use memfold_policy::age::Step;
use memfold_policy::recheck::Used;
use memfold_policy::stall::Cause;
use memfold_sys::time::Nanos;
use memfold_sys::{thread, PAGE_SIZE};

/// How often what is being touched comes back while the stall budget is used up.
const BRING_BACK: Nanos = Nanos::from_millis(20);

/// So many touches within a second tell that an extent is in use.
const IN_USE: u32 = 2;

/// How often resident pages are counted, where a limit or a daemon wants to know how many there are.
const CENSUS: Nanos = Nanos::from_secs(1);

/// The policy, for one round or a part of it.
pub(crate) struct ByAge {
    cold_age: u64,
    /// How many times as long pages in use are left alone.
    stretch: u32,
    /// The stall budget is used up, by what: of what is being touched, that comes back.
    broken: Option<Cause>,
    begun: bool,
    /// Where the round can do no more than look: the CPU time that had been taken when it began, ns.
    looks: Option<u64>,
    /// Resident pages of what was visited.
    resident: u64,
}

impl ByAge {
    /// As things are now.
    pub(crate) fn new(worker: &mut Worker) -> ByAge {
        let limit = worker.engine.setting(Setting::MaxStall);
        // Passes may follow one another without a pause, as while much is read from a tier.
        let rested = worker.now.since(worker.eviction.brought_back) >= BRING_BACK;
        let may = rested && !worker.engine.room.is_kept();
        let broken = may.then(|| worker.budgets.stall.broken(worker.now.0, limit)).flatten();
        let cold_age = worker.cold_age();
        let stretch = worker.budgets.tries.times(worker.now.0, cold_age, limit);
        ByAge { cold_age, stretch, broken, begun: false, looks: None, resident: 0 }
    }

    /// Has pages that were in use tried again, if their time has come: some of them, or all of a huge page, of which no part goes.
    fn try_again(&self, worker: &Worker, extent: &mut Locked, huge: bool) {
        extent.flags.fetch_and(!(TRIES[0] | TRIES[1]), Relaxed);
        for used in Used::ALL {
            if !extent.age().recheck_due(used, worker.now.0, self.cold_age, self.stretch) {
                continue;
            }
            let (hot, returned) = (extent.hot.load(), extent.back_soon.load());
            let mut pages = if used == Used::Returned { returned } else { hot.minus(&returned) };
            if used == Used::Touched && !worker.kernel.tracks_writes {
                pages = pages.or(&extent.incompressible.load());
            }
            let last = extent.tried[used as usize].load();
            let stayed = last.and(&extent.away_pages()).len();
            let sample = extent.age().recheck(used, worker.now.0, last.len(), stayed, pages.len());
            let Some(sample) = sample else { continue };
            let places = pages.pages().enumerate().filter(|&(place, _)| huge || sample.takes(place));
            let mut tried = PageSet::EMPTY;
            places.for_each(|(_, page)| tried.insert(page));
            extent.tried[used as usize].remove(&last);
            extent.tried[used as usize].insert(&tried);
            extent.flags.fetch_or(TRIES[used as usize], Relaxed);
            extent.hot.remove(&tried);
            extent.back_soon.remove(&tried);
            if !worker.kernel.tracks_writes {
                extent.incompressible.remove(&tried);
            }
        }
    }

    /// How expensive looks are is seen long before the first of them are over.
    fn look_at_probe(&self, worker: &mut Worker, extent: &Extent) {
        let early = worker.now.since(Nanos(extent.last_aside.load(Relaxed))).0 < self.cold_age / 4;
        if !early && extent.flags.load(Relaxed) & SEEN == 0 {
            extent.flags.fetch_or(SEEN, Relaxed);
            let (pages, touched) = touched_of(extent);
            if let Some((pages, touched)) = besides_tried(extent, pages, touched) {
                worker.budgets.stall.has_seen(pages, touched);
            }
        }
    }
}

impl Policy for ByAge {
    const KEEPS_LIMIT: bool = false;

    fn begin(&mut self, worker: &mut Worker) -> Option<Round> {
        if core::mem::replace(&mut self.begun, true) {
            return None;
        }
        let wants_census = !worker.engine.options.daemon.is_empty();
        if !worker.may_fold() && self.broken.is_none() && !wants_census {
            if worker.now < worker.eviction.next_look {
                return None;
            }
            self.looks = Some(worker.spent());
        }
        // A round that was interrupted goes on: from the beginning it would never come to the end where there is little time.
        let mut round = core::mem::take(&mut worker.eviction.round);
        if round.at == 0 {
            // A probe counts too, but the first comes after a whole cold age.
            round.census = wants_census && worker.now.since(worker.census.taken_at) >= CENSUS;
            // Who rests was told so by the cold age that held then.
            let before = core::mem::replace(&mut worker.eviction.paced_by, self.cold_age);
            round.all = round.census || before != self.cold_age;
            // What comes back, too, does so from the beginning on.
            round.at = worker.eviction.held.begin(round.all || self.broken.is_some());
        }
        Some(round)
    }

    fn due<'e>(&mut self, worker: &mut Worker, extent: &'e Extent) -> Due<'e> {
        if extent.managed.load().is_empty() && extent.away.load(Relaxed) == 0 {
            worker.let_empty_rest(extent);
            return Due::Empty;
        }
        match self.broken.filter(|_| recently_touched(worker.engine, extent, worker.now)) {
            Some(Cause::Returns) => return Due::BringBack,
            // What has proved to be cold is not what is waited for.
            Some(Cause::Looks) if count_aside(extent) != 0 => return Due::BringBackAside,
            _ => {}
        }
        let Some(mut locked) = extent.try_lock() else { return Due::Nothing };
        let (now, cold_age, timing) = (worker.now.0, self.cold_age, worker.sources.timing());
        if !extent.soon.load().is_empty() {
            worker.set_aside_as_told(&mut locked);
            return Due::Nothing;
        }
        let level = worker.utilization.level(now, cold_age);
        // What is probed ends its probe first: some of it may have been left where it is.
        if !locked.age().is_probed() && took_walk(extent) {
            locked.age().walked(now, cold_age);
            locked.age().in_use(level);
            forget_returns(worker, extent);
        }
        // The fault thread may still be at it; what cannot come back ends with the probe.
        if extent.flags.load(Relaxed) & RECALLED != 0
            && (!locked.age().is_probed() || count_aside(extent) == 0)
        {
            extent.flags.fetch_and(!RECALLED, Relaxed);
            if locked.age().is_probed() {
                locked.age().recalled(now, cold_age);
                forget_returns(worker, extent);
            }
        }
        let came_back = !extent.back_soon.load().is_empty();
        locked.age().calmed(now, cold_age, &worker.utilization, came_back);
        match locked.age().due(now, cold_age, timing) {
            Step::Wait => {
                if locked.age().is_probed() {
                    self.look_at_probe(worker, extent);
                }
                let until = locked.age().next(cold_age, timing);
                worker.let_rest(&locked, until);
                Due::Care
            }
            Step::Watch => Due::Watch(locked),
            Step::Probe if locked.age().has_proved(cold_age) => Due::SetAsideAgain(locked),
            Step::Probe => Due::SetAside(locked),
            Step::Launder => Due::Launder(PageSet::ALL),
        }
    }

    fn watched(&mut self, worker: &Worker, extent: &mut Locked, watching: bool) {
        if watching {
            extent.age().watched(worker.now.0);
        } else {
            extent.age().nothing_cold(worker.now.0);
            extent.age().in_use(worker.utilization.level(worker.now.0, self.cold_age));
        }
    }

    /// What the access source takes for cold.
    fn choose(&mut self, worker: &mut Worker, extent: &mut Locked) -> Choice {
        if extent.age().retry_due(worker.now.0) {
            extent.refused.remove(&PageSet::ALL);
        }
        let refused = extent.refused.load().minus(&extent.shared.load());
        let Ok(Seen { scan, cold }) = worker.sources.look(worker.kernel, extent, self.cold_age) else {
            // Not registered for write tracking any more, or never: begin again.
            worker.watch(extent);
            return Choice { pages: None, huge: false, refused };
        };
        worker.note_present(extent, scan.present.len());
        // With other bytes it may shrink, and a page that was written is the program's alone.
        extent.incompressible.remove(&scan.written);
        extent.refused.remove(&scan.written);
        worker.let_dense_go(extent);
        self.try_again(worker, extent, scan.huge);
        Choice { pages: Some(cold.minus(&extent.spared())), huge: scan.huge, refused }
    }

    fn set_aside(&mut self, worker: &mut Worker, extent: &mut Locked, choice: &Choice) -> usize {
        let (now, cold_age) = (worker.now.0, self.cold_age);
        let pages = choice.pages.map_or(0, |pages| worker.set_aside(extent, &pages, choice.huge));
        worker.note_present(extent, (extent.present.load(Relaxed) as usize).saturating_sub(pages));
        if !extent.refused.load().is_empty() {
            extent.age().refused(now, cold_age);
        }
        if pages == 0 {
            extent.age().nothing_cold(now);
            extent.age().in_use(worker.utilization.level(now, cold_age));
        } else {
            extent.probed_pages.store(pages as u32, Relaxed);
            extent.unasked.store(0, Relaxed);
            extent.along.remove(&PageSet::ALL);
            extent.flags.fetch_and(!SEEN, Relaxed);
            extent.age().set_aside(now);
        }
        pages
    }

    fn launders(&mut self, extent: &Extent) {
        if extent.touched.load(Relaxed) == 0 {
            let (_, touched) = touched_of(extent);
            extent.touched.store(touched as u32 + 1, Relaxed);
        }
    }

    fn laundered(&mut self, worker: &mut Worker, extent: &Extent) -> bool {
        let Some(mut locked) = extent.try_lock() else { return true };
        let probed = u64::from(extent.probed_pages.load(Relaxed));
        let touched = u64::from(extent.touched.swap(0, Relaxed) - 1);
        locked.age().probed(worker.now.0, probed as usize, touched as usize);
        if touched != 0 {
            locked.age().in_use(worker.utilization.level(worker.now.0, self.cold_age));
        }
        let walked = took_walk(extent);
        beside::settle(extent, walked);
        let (_, used) = tried(extent);
        if used != 0 {
            let cost = worker.touch_cost();
            worker.budgets.tries.charge(used, cost);
        }
        if walked {
            // Which says nothing of what the next look costs.
            locked.age().walked(worker.now.0, self.cold_age);
        } else if let Some((pages, touched)) = besides_tried(extent, probed, touched) {
            worker.budgets.stall.looked(pages, touched);
        }
        false
    }

    fn brought_back(&mut self, worker: &Worker, extent: &Extent) {
        let Some(mut extent) = extent.try_lock() else { return };
        extent.age().in_use(worker.utilization.level(worker.now.0, worker.cold_age()));
        // Where somebody walks, it is being walked through, though it may not be known of this one yet.
        if took_walk(&extent) || worker.engine.conditions.is_walked(worker.now) {
            extent.age().walked(worker.now.0, worker.cold_age());
        } else {
            extent.age().retreated(worker.now.0);
        }
        extent.waits_for.store(WAITS_FOR_STALL, Relaxed);
    }

    fn visited(&mut self, worker: &mut Worker, round: &Round, extent: &Extent) {
        if round.census {
            worker.count_present(extent);
        }
        self.resident += u64::from(extent.present.load(Relaxed));
    }

    fn end(&mut self, worker: &mut Worker, round: Round) -> bool {
        if let Some(before) = self.looks {
            worker.put_off_looks(worker.spent().saturating_sub(before));
        }
        if round.at != 0 {
            worker.eviction.round = round;
            return true;
        }
        if self.broken.is_some() {
            // Not before: a round that was interrupted has yet to come to the other extents.
            worker.eviction.brought_back = worker.now;
        }
        if round.all && round.more {
            // Some have something left to do.
            worker.eviction.paced_by = 0;
        }
        if round.all && round.from_start {
            worker.census.resident = self.resident;
        }
        let resident = worker.census.resident * PAGE_SIZE as u64;
        worker.engine.control().resident_bytes.store(resident, Relaxed);
        if round.census {
            worker.census.taken_at = worker.now;
        }
        round.more
    }
}

impl Worker {
    /// Measures how much the program does. When it has become calm, extents that rest are looked at: it may not use what it did.
    pub(crate) fn look_at_utilization(&mut self) {
        let cold_age = self.cold_age();
        if self.utilization.is_due(self.now.0, cold_age)
            && self.utilization.note(self.now.0, thread::program_cpu().0, cold_age)
        {
            self.eviction.paced_by = 0;
        }
    }
}

/// Whether pages of it were needed back within the last second, and so many that it is in use: all of it for one that is touched by chance would be dear.
fn recently_touched(engine: &Engine, extent: &Extent, now: Nanos) -> bool {
    extent.away.load(Relaxed) != 0
        && now.since(Nanos(extent.last_restore.load(Relaxed))) < Nanos::from_secs(1)
        && (extent.burst().touches >= IN_USE || !engine.takes_guesses())
}

/// What came back unasked was not written by that.
fn forget_returns(worker: &Worker, extent: &Extent) {
    for run in extent.managed.load().runs() {
        set_aside::forget_written(worker.kernel, extent, run);
    }
}

/// Whether the extent was walked through since the policy was last told.
fn took_walk(extent: &Extent) -> bool {
    extent.flags.load(Relaxed) & WALKED != 0 && extent.flags.fetch_and(!WALKED, Relaxed) & WALKED != 0
}

/// How many pages of the extent the probe under way set aside, and how many of them were touched.
fn touched_of(extent: &Extent) -> (u64, u64) {
    let probed = extent.probed_pages.load(Relaxed);
    let came = probed.saturating_sub(count_aside(extent));
    (u64::from(probed), u64::from(came.saturating_sub(extent.unasked.load(Relaxed))))
}

/// The same without the pages that are tried again: that they are touched is likely, and says nothing of what other looks cost. `None` where there are no others.
fn besides_tried(extent: &Extent, pages: u64, touched: u64) -> Option<(u64, u64)> {
    let (tried, used) = tried(extent);
    let others = pages.checked_sub(tried).filter(|&others| others != 0)?;
    Some((others, touched.saturating_sub(used).min(others)))
}

/// How many pages that were in use the probe under way tries again, and how many of these were touched. What was not cold at the look did not go with it.
fn tried(extent: &Extent) -> (u64, u64) {
    let flags = extent.flags.load(Relaxed);
    let kinds = TRIES.iter().zip(&extent.tried).filter(|(&flag, _)| flags & flag != 0);
    let tried = kinds.fold(PageSet::EMPTY, |all, (_, tried)| all.or(&tried.load()));
    if tried.is_empty() {
        return (0, 0);
    }
    let used = tried.and(&extent.hot.load());
    (tried.and(&extent.away_pages()).or(&used).len() as u64, used.len() as u64)
}

fn count_aside(extent: &Extent) -> u32 {
    let aside = |entries: &Entries| entries.iter().filter(|e| e.load().state() == State::Aside).count();
    extent.entries().map_or(0, aside) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::entry::Entry;
    use crate::tables::pool::Pool;
    use crate::tables::space::Space;

    #[test]
    fn only_pages_that_this_probe_tries_count_as_tried() {
        let pool = Pool::new();
        // SAFETY: zeros are an empty space.
        let space = unsafe { pool.make::<Space>() }.unwrap();
        let extent = space.find_or_make(1 << 40, &pool).unwrap();
        // The first were tried before and came back soon. Of those that are tried now four were touched, and the last ten were written and did not go.
        let (before, now) = (PageSet::range(0, 16), PageSet::range(100, 120));
        extent.tried[Used::Returned as usize].insert(&before);
        extent.tried[Used::Touched as usize].insert(&now);
        extent.hot.insert(&before.or(&PageSet::range(100, 104)));
        let locked = extent.try_lock().unwrap();
        let entries = locked.make_entries(&PageSet::ALL, &pool).unwrap();
        let aside = |page: usize| {
            let (leaving, aside) = (Entry::new(State::Leaving), Entry::new(State::Aside));
            assert!(
                entries[page].transition(Entry::RESIDENT, leaving)
                    && entries[page].transition(leaving, aside)
            );
        };
        (104..110).chain(200..294).for_each(aside);
        extent.away.store(100, Relaxed);
        extent.flags.fetch_or(TRIES[Used::Touched as usize], Relaxed);
        assert_eq!(tried(extent), (10, 4));
        assert_eq!(besides_tried(extent, 110, 14), Some((100, 10)));
        // The next one tries none.
        extent.flags.fetch_and(!TRIES[Used::Touched as usize], Relaxed);
        assert_eq!((tried(extent), besides_tried(extent, 110, 14)), ((0, 0), Some((110, 14))));
    }
}
