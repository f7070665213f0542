//! Setting pages aside, handing them over, and taking them back: the agent's part in folding.
//!
//! Invariants: a page is registered for missing faults before it leaves; its entry says `Held` before it moves and until it is
//! in the program's view or in the store; its staged copy goes only after that.

use super::agent::Agent;
use super::region::{has, set, Bits};
use memfold_daemon::channel::{job, Entry, State, JOBS, REGIONS};
use memfold_pager::codec::{CodecId, MAX_STORED};
use memfold_pager::store::{Slot, Store, GRAIN};
use memfold_policy::age::Step;
use memfold_policy::returns::SOON;
use memfold_sys::pagemap::{Categories, Query, Run};
use memfold_sys::thread::Backoff;
use memfold_sys::time::{self, Nanos};
use memfold_sys::uffd::Modes;
use memfold_sys::{mem, Errno, EXTENT_PAGES, PAGE_SIZE};
use std::sync::atomic::Ordering::*;

/// Pages that are moved by one call.
const MOVE_BATCH: usize = 64;
/// Stands for the region of a page that came back while it was being compressed.
const NOBODY: usize = usize::MAX;
/// Where the stall budget is broken, what was wanted back so lately comes back as a whole, ns.
const RECENT: u64 = 1_000_000_000;
/// Longest time of a pass before faults and requests are looked at again, pieces.
const PIECES_A_PASS: usize = 8;

impl Agent {
    /// Looks at some pieces. Whether there is more to do at once.
    pub fn pass(&mut self) -> bool {
        let cold_age = self.cold_age();
        if self.cursor == (0, 0) {
            let due = self.now.saturating_sub(self.pass_began) >= self.tick().0 || self.pass_began == 0;
            // What waits for room goes on as soon as the daemon has made some.
            let room = self.backlog && self.jobs_out <= JOBS / 2;
            if !due && !room {
                return false;
            }
            self.pass_began = self.now;
            self.backlog = false;
        }
        let (mut region, mut piece) = self.cursor;
        for _ in 0..PIECES_A_PASS {
            while region < REGIONS && piece >= self.regions[region].pieces() {
                (region, piece) = (region + 1, 0);
            }
            if region == REGIONS {
                self.cursor = (0, 0);
                self.counts.holds += u64::from(core::mem::take(&mut self.withheld));
                return false;
            }
            self.backlog |= self.step(region, piece, cold_age);
            piece += 1;
        }
        self.cursor = (region, piece);
        true
    }

    /// Does what is due for one piece. Whether pages of it wait for room to be handed over.
    pub fn step(&mut self, region: usize, piece: usize, cold_age: u64) -> bool {
        let now = self.now;
        if self.regions[region].piece(piece).soon.iter().any(|&word| word != 0) {
            let told = std::mem::take(&mut self.regions[region].piece(piece).soon);
            self.probe(region, piece, Some(&told), cold_age);
            return false;
        }
        if self.broken && now.saturating_sub(self.regions[region].piece(piece).wanted_at) < RECENT {
            let (lo, hi) = self.regions[region].span(piece);
            self.bring_range(region, lo, hi);
            self.regions[region].piece(piece).age.retreated(now);
            return false;
        }
        let timing = self.source().timing();
        match self.regions[region].piece(piece).age.due(now, cold_age, timing) {
            Step::Wait => false,
            Step::Watch => {
                self.watch(region, piece);
                self.regions[region].piece(piece).age.watched(now);
                false
            }
            Step::Probe if !self.may_set_aside() => false,
            Step::Probe => {
                let state = self.regions[region].piece(piece);
                if state.age.recheck_due(now, cold_age) {
                    state.hot = [0; EXTENT_PAGES / 64];
                }
                if state.age.retry_due(now) {
                    state.refused = [0; EXTENT_PAGES / 64];
                }
                self.probe(region, piece, None, cold_age);
                let state = self.regions[region].piece(piece);
                if state.refused.iter().any(|&word| word != 0) {
                    state.age.refused(now, cold_age);
                }
                false
            }
            Step::Launder if !self.may_hand_over() => false,
            Step::Launder => {
                let more = self.hand_over(region, piece);
                let state = self.regions[region].piece(piece);
                if !more && state.held == 0 {
                    let (probed, touched) = (state.probed as usize, state.touched as usize);
                    state.age.probed(now, cold_age, probed, touched);
                }
                more
            }
        }
    }

    /// Registers what may go of a piece, in runs.
    fn arm(&mut self, region: usize, piece: usize, modes: Modes) -> bool {
        let (lo, hi) = self.regions[region].span(piece);
        let kept = self.regions[region].piece(piece).kept;
        let mut all = true;
        for_runs(
            hi - lo,
            |n| !has(&kept, n),
            |from, to| {
                let start = self.regions[region].addr(lo + from);
                all &= self.uffd.register(start, (to - from) * PAGE_SIZE, modes).is_ok();
            },
        );
        all
    }

    /// Begins to track the writes of a piece.
    fn watch(&mut self, region: usize, piece: usize) {
        // What is armed already stays so.
        if self.regions[region].piece(piece).probed == 0 {
            self.arm(region, piece, Modes::WP);
        }
        if let Ok((_, written)) = self.scan(region, piece, true) {
            let state = self.regions[region].piece(piece);
            // Nobody has watched, so all that may have been written counts.
            state.refused.iter_mut().zip(written).for_each(|(word, written)| *word &= !written);
        }
    }

    /// The pages of a piece that are in memory, and those of them that were written since the last look.
    fn scan(&mut self, region: usize, piece: usize, protect: bool) -> Result<(Bits, Bits), Errno> {
        let (lo, hi) = self.regions[region].span(piece);
        let (start, end) = (self.regions[region].addr(lo), self.regions[region].addr(hi));
        let (mut present, mut written) = ([0; EXTENT_PAGES / 64], [0; EXTENT_PAGES / 64]);
        let report = Categories::WRITTEN;
        let look = Query { all: Categories::PRESENT, none: Categories::ZERO, report, protect: false };
        let mut runs = [Run::EMPTY; 64];
        let mut at = start;
        while at < end {
            let (count, stopped) = self.pagemap.scan(at, end, &look, &mut runs)?;
            for run in &runs[..count] {
                let range = (run.start as usize - start) / PAGE_SIZE..(run.end as usize - start) / PAGE_SIZE;
                for n in range {
                    set(&mut present, n, true);
                    set(&mut written, n, run.categories().contains(Categories::WRITTEN));
                }
            }
            if stopped <= at {
                break;
            }
            at = stopped;
        }
        if protect {
            let all = Categories::PRESENT | Categories::WRITTEN;
            let look = Query { all, none: Categories::ZERO, report, protect: true };
            let mut at = start;
            while at < end {
                let (_, stopped) = self.pagemap.scan(at, end, &look, &mut runs)?;
                if stopped <= at {
                    break;
                }
                at = stopped;
            }
        }
        Ok((present, written))
    }

    /// Sets aside what was not written since the last look, or of what was told all that is there.
    fn probe(&mut self, region: usize, piece: usize, told: Option<&Bits>, cold_age: u64) {
        let now = self.now;
        let Ok((present, written)) = self.scan(region, piece, told.is_none()) else {
            self.arm(region, piece, Modes::WP);
            return self.regions[region].piece(piece).age.nothing_cold(now, cold_age);
        };
        let state = self.regions[region].piece(piece);
        let mut wanted = present;
        for (n, word) in wanted.iter_mut().enumerate() {
            *word &= !state.kept[n];
            match told {
                Some(told) => *word &= told[n],
                None => {
                    // With other bytes it may shrink, and a page that was written is the program's alone.
                    state.incompressible[n] &= !written[n];
                    state.refused[n] &= !written[n];
                    let spared = state.hot[n] | state.refused[n] | state.incompressible[n];
                    *word &= !(written[n] | spared);
                }
            }
        }
        let any = wanted.iter().any(|&word| word != 0);
        if !any || !self.arm(region, piece, Modes::MISSING | Modes::WP) {
            return self.regions[region].piece(piece).age.nothing_cold(now, cold_age);
        }
        let (lo, hi) = self.regions[region].span(piece);
        let mut moved = 0;
        let mut runs = [(0u16, 0u16); EXTENT_PAGES / 2 + 1];
        let mut count = 0;
        for_runs(
            hi - lo,
            |n| has(&wanted, n),
            |from, to| {
                runs[count] = (from as u16, to as u16);
                count += 1;
            },
        );
        for &(from, to) in &runs[..count] {
            let mut at = from as usize;
            while at < to as usize {
                let end = (at + MOVE_BATCH).min(to as usize);
                moved += self.move_out(region, lo + at, lo + end);
                at = end;
            }
        }
        let state = self.regions[region].piece(piece);
        if moved == 0 {
            return state.age.nothing_cold(now, cold_age);
        }
        (state.probed, state.touched) = (moved as u32, 0);
        state.age.set_aside(now);
    }

    /// Moves pages of one piece to staging. How many went.
    fn move_out(&mut self, region: usize, lo: usize, hi: usize) -> usize {
        let held = Entry::new(State::Held, 0);
        self.regions[region].piece(lo / EXTENT_PAGES).away = true;
        let mut at = lo;
        let mut moved = 0;
        while at < hi {
            let mut end = at;
            while end < hi {
                self.take_back_slot(region, end);
                let cell = place_cell(self, region, end);
                if cell.compare_exchange(Entry::RESIDENT.0, held.0, SeqCst, SeqCst).is_err() {
                    break;
                }
                end += 1;
            }
            if end == at {
                at += 1;
                continue;
            }
            let place = &self.regions[region];
            let (from, to) = (place.addr(at), place.staged_at(at));
            // SAFETY: the entries say `Held` and the pages are registered: who touches them waits for us.
            let progress = unsafe { self.staging.move_pages(to, from, (end - at) * PAGE_SIZE) };
            let mut gone = progress.done / PAGE_SIZE;
            while progress.error == Some(Errno::EEXIST) {
                let done = gone * PAGE_SIZE;
                match self.pagemap.moved_unseen(from + done, to + done, end - at - gone) {
                    Ok(0) => break,
                    Ok(more) => gone += more,
                    // Whether the program still has the pages is not known, and going on could lose them.
                    Err(_) => memfold_sys::thread::abort_process(),
                }
            }
            for page in at..at + gone {
                let piece = self.regions[region].piece(page / EXTENT_PAGES);
                set(&mut piece.staged, page % EXTENT_PAGES, true);
                piece.held += 1;
            }
            self.held += gone as u64;
            moved += gone;
            for page in at + gone..end {
                if self.regions[region].release(&self.channel, page, Entry::RESIDENT) {
                    self.uffd.wake(self.regions[region].addr(page), PAGE_SIZE);
                }
            }
            if progress.error.is_some() && gone == 0 {
                // Pinned, shared with a child, or part of a huge page that cannot be split now.
                set(&mut self.regions[region].piece(at / EXTENT_PAGES).refused, at % EXTENT_PAGES, true);
                at += 1;
            } else {
                at += gone;
            }
        }
        moved
    }

    /// Brings one page that is set aside back into the program's view. Returns when it was there, before who waits was woken.
    pub fn bring_back(&mut self, region: usize, page: usize) -> Nanos {
        let (addr, staged) = (self.regions[region].addr(page), self.regions[region].staged_at(page));
        let mut backoff = Backoff::new();
        loop {
            // A move would interrupt every CPU that ran the program, while somebody may be waiting.
            // SAFETY: a held page is readable in staging.
            let copied = unsafe { self.uffd.copy(addr, staged, PAGE_SIZE) };
            let error = match copied.error {
                // SAFETY: a held page is ours to move, back to where it came from.
                Some(Errno::ENOMEM) => unsafe { self.uffd.move_present(addr, staged, PAGE_SIZE) }.error,
                other => other,
            };
            match error {
                // It is there, or nothing is registered there any more.
                None | Some(Errno::EEXIST | Errno::ENOENT | Errno::ESRCH) => break,
                Some(_) => backoff.wait(),
            }
        }
        // What is being compressed is of no more use: the page may be written now, and be handed over again.
        for out in self.out.iter_mut().filter(|out| **out == Some((region, page))) {
            *out = Some((NOBODY, 0));
        }
        let there = time::now();
        let piece = self.regions[region].piece(page / EXTENT_PAGES);
        piece.touched += 1;
        set(&mut piece.hot, page % EXTENT_PAGES, true);
        self.regions[region].release(&self.channel, page, Entry::RESIDENT);
        self.uffd.wake(addr, PAGE_SIZE);
        self.drop_staged(region, page, 1);
        there
    }

    /// The staged copies of so many pages are of no more use.
    fn drop_staged(&mut self, region: usize, page: usize, count: usize) {
        let start = self.regions[region].staged_at(page);
        // SAFETY: our own memory; the pages are in the program's view or in the store.
        let _ = unsafe { mem::madvise(start, count * PAGE_SIZE, libc::MADV_DONTNEED) };
        for page in page..page + count {
            let piece = self.regions[region].piece(page / EXTENT_PAGES);
            set(&mut piece.staged, page % EXTENT_PAGES, false);
            piece.held -= 1;
        }
        self.held -= count as u64;
    }

    /// Hands what is set aside of a piece over to be compressed, as far as there is room. Whether something is left.
    fn hand_over(&mut self, region: usize, piece: usize) -> bool {
        if !self.is_served() {
            return false;
        }
        if self.jobs_out == JOBS {
            return self.regions[region].piece(piece).held != 0;
        }
        let (lo, hi) = self.regions[region].span(piece);
        for page in lo..hi {
            if !has(&self.regions[region].piece(piece).staged, page - lo) || self.is_out(region, page) {
                continue;
            }
            let Some(n) = self.out.iter().position(Option::is_none) else { return true };
            let staged = self.regions[region].staged_at(page);
            // SAFETY: a held page is readable in staging, and nobody else writes there.
            let bytes = unsafe { core::slice::from_raw_parts(staged as *const u8, PAGE_SIZE) };
            self.channel.write_job(n, 0, bytes);
            self.out[n] = Some((region, page));
            self.jobs_out += 1;
            // Release: who sees the state sees the bytes.
            self.channel.header().jobs[n].state.store(job::ASKED, Release);
            self.ring_daemon = true;
        }
        false
    }

    fn is_out(&self, region: usize, page: usize) -> bool {
        self.jobs_out != 0 && self.out.contains(&Some((region, page)))
    }

    /// Takes what was compressed into the store.
    pub fn collect(&mut self) {
        let mut filed = [(0, 0); JOBS];
        let mut count = 0;
        for n in 0..JOBS {
            let Some((region, page)) = self.out[n] else { continue };
            let job = &self.channel.header().jobs[n];
            if job.state.load(Acquire) != job::DONE {
                continue;
            }
            let (result, word) = (job.result.load(Relaxed), job.word.load(Relaxed));
            job.state.store(job::FREE, Relaxed);
            self.out[n] = None;
            self.jobs_out -= 1;
            // Of a page that came back meanwhile.
            if region == NOBODY {
                continue;
            }
            let entry = match result {
                job::INCOMPRESSIBLE => {
                    let piece = self.regions[region].piece(page / EXTENT_PAGES);
                    set(&mut piece.incompressible, page % EXTENT_PAGES, true);
                    self.counts.incompressible += 1;
                    None
                }
                job::SAME => Some(Entry::new(State::Same, word)),
                len => self.store_page(n, region, page, (word, len as usize)),
            };
            match entry {
                Some(entry) => {
                    self.file(region, page, entry);
                    filed[count] = (region, page);
                    count += 1;
                }
                None => {
                    self.bring_back(region, page);
                }
            }
        }
        self.drop_filed(&mut filed[..count]);
    }

    /// Drops the staged copies of pages that are filed, in runs: each call interrupts every CPU that runs the program.
    fn drop_filed(&mut self, filed: &mut [(usize, usize)]) {
        filed.sort_unstable();
        for run in filed.chunk_by(|&(region, page), &next| next == (region, page + 1)) {
            self.drop_staged(run[0].0, run[0].1, run.len());
        }
    }

    /// The entry of a page that was compressed. `None` if there is no room for it, or if its codec or its length is one that no
    /// compressed page has, which comes from a daemon that is broken.
    fn store_page(
        &mut self,
        n: usize,
        region: usize,
        page: usize,
        (codec, len): (u64, usize),
    ) -> Option<Entry> {
        // A daemon has no dictionaries.
        let codec = CodecId::from_bits(codec).filter(|codec| codec.dictionary().is_none())?;
        self.channel.read_job(n, 1, &mut self.buffer);
        let bytes = self.buffer.get(..len).filter(|_| (1..=MAX_STORED).contains(&len))?;
        let slot = self.store.put(self.regions[region].addr(page), codec, bytes).ok()?;
        Some(Entry::new(State::Stored, slot.payload() - (self.channel.store().0 / GRAIN) as u64))
    }

    /// The page is in the store, or one word; its staged copy may go.
    fn file(&mut self, region: usize, page: usize, entry: Entry) {
        let wanted = self.regions[region].release(&self.channel, page, entry);
        self.counts.evicted += 1;
        self.regions[region].piece(page / EXTENT_PAGES).filed_at = self.now;
        if entry.state() == State::Same {
            self.counts.same += 1;
        }
        if wanted {
            // Who waits touches it again, and is served from the store.
            self.uffd.wake(self.regions[region].addr(page), PAGE_SIZE);
        }
    }

    /// Whether the page lies in staging.
    pub fn is_staged(&mut self, region: usize, page: usize) -> bool {
        has(&self.regions[region].piece(page / EXTENT_PAGES).staged, page % EXTENT_PAGES)
    }

    /// Frees the slot of a page that was restored.
    pub fn take_back_slot(&mut self, region: usize, page: usize) {
        let entry = self.regions[region].entry(&self.channel, page);
        if entry.state() != State::Returned || entry.is_busy() {
            return;
        }
        let cell = place_cell(self, region, page);
        if cell.compare_exchange(entry.0, Entry::RESIDENT.0, SeqCst, SeqCst).is_ok() {
            // SAFETY: the slot was filed by us, and its page's entry names it no more.
            unsafe { self.store.free(self.slot_of(entry)) };
            let (now, soon) = (self.now, self.cold_age().saturating_mul(SOON));
            let piece = self.regions[region].piece(page / EXTENT_PAGES);
            piece.wanted_at = now;
            self.counts.soon_back += u64::from(now.saturating_sub(piece.filed_at) < soon);
        }
    }

    /// The slot that an entry names.
    pub fn slot_of(&self, entry: Entry) -> Slot {
        Slot::from_payload(entry.payload() + (self.channel.store().0 / GRAIN) as u64)
    }

    /// Packs the store where it has become sparse.
    pub fn pack(&mut self) {
        let first = (self.channel.store().0 / GRAIN) as u64;
        let (channel, regions) = (self.channel, &self.regions);
        let store: &mut Store = &mut self.store;
        store.compact(|addr, old, new| {
            let Some((_, _, number)) = channel.find(addr) else { return false };
            let Some(cell) = regions.iter().find_map(|r| {
                let page = number.checked_sub(r.first).filter(|&page| r.exists() && page < r.pages)?;
                Some(r.cell(&channel, page))
            }) else {
                return false;
            };
            let entry = |slot: Slot| Entry::new(State::Stored, slot.payload() - first);
            cell.compare_exchange(entry(old).0, entry(new).0, SeqCst, SeqCst).is_ok()
        });
    }
}

fn place_cell(agent: &Agent, region: usize, page: usize) -> &std::sync::atomic::AtomicU64 {
    agent.regions[region].cell(&agent.channel, page)
}

/// Calls `each` for every run of numbers below `end` for which `is` holds.
pub fn for_runs(end: usize, is: impl Fn(usize) -> bool, mut each: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < end {
        let Some(from) = (at..end).find(|&n| is(n)) else { return };
        let to = (from..end).find(|&n| !is(n)).unwrap_or(end);
        each(from, to);
        at = to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_at_both_ends() {
        let mut found = Vec::new();
        for_runs(10, |n| n < 2 || n == 5 || n > 7, |from, to| found.push((from, to)));
        assert_eq!(found, [(0, 2), (5, 6), (8, 10)]);
    }
}
