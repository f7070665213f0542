//! The chunks and free runs of one domain under their lock: cutting, coalescing, hand-out.
//!
//! What it is: everything that can be done to runs without the kernel. What it is not: allowed to call a
//! hook or touch a page; [`crate::supply`] does that with no lock held.
//!
//! Invariants: two adjacent free runs of a chunk are merged at once; every byte of a shared chunk is in
//! exactly one run (free, handed out or busy); a dedicated chunk has one span and no free run.

use crate::chunk::Chunk;
use crate::counters::COUNTERS;
use crate::lock::Mutex;
use crate::pagemap;
use crate::records;
use crate::runs::FreeRuns;
use crate::span::{Domain, Kind, Span};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use memfold_sys::PAGE_SIZE;

/// Where a block of more pages than this lies, in a run that is longer, is looked at.
const LONG: usize = 64;

static POOLS: [Mutex<Pool>; 2] = [Mutex::new(Pool::new()), Mutex::new(Pool::new())];

/// The pool of a domain.
pub(crate) fn pool(domain: Domain) -> &'static Mutex<Pool> {
    &POOLS[domain as usize]
}

/// The number of the chunk that was put into a list last.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// A chunk that somebody who goes through a list was at, and its number then. The list may change meanwhile.
pub(crate) type Place = (&'static Chunk, u64);

pub(crate) struct Pool {
    pub(crate) runs: FreeRuns,
    pub(crate) chunks: Option<&'static Chunk>,
    /// How many shared chunks there are.
    pub(crate) shared: usize,
    /// Bytes of all chunks.
    pub(crate) mapped: usize,
    /// Pages handed out.
    pub(crate) live_pages: usize,
    pub(crate) demand: Demand,
}

/// How many pages were handed out lately, and how many at once.
pub(crate) struct Demand {
    /// In the time that has begun, and in the one before.
    times: [Lately; 2],
    /// When it began, in ticks modulo 2^16.
    since: u16,
}

/// What a program took in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lately {
    /// Pages that it was handed out.
    pub(crate) taken: usize,
    /// The most that it had at once.
    pub(crate) peak: usize,
}

impl Demand {
    const fn new() -> Demand {
        Demand { times: [Lately { taken: 0, peak: 0 }; 2], since: 0 }
    }

    /// Counts `pages` more, with which there are `live`, and returns what was taken in the last one or two `times`, at `now`; the
    /// latter in ticks.
    pub(crate) fn count(&mut self, pages: usize, live: usize, now: u16, time: u16) -> Lately {
        let age = now.wrapping_sub(self.since);
        if age >= time {
            let is_next = u32::from(age) < 2 * u32::from(time);
            (self.times, self.since) =
                ([Lately::default(), if is_next { self.times[0] } else { Lately::default() }], now);
        }
        let [current, before] = &mut self.times;
        current.taken += pages;
        current.peak = current.peak.max(live);
        Lately { taken: current.taken + before.taken, peak: current.peak.max(before.peak) }
    }
}

impl Pool {
    pub(crate) const fn new() -> Pool {
        Pool {
            runs: FreeRuns::new(),
            chunks: None,
            shared: 0,
            mapped: 0,
            live_pages: 0,
            demand: Demand::new(),
        }
    }

    pub(crate) fn link_chunk(&mut self, chunk: &'static Chunk) {
        // Relaxed, here and below: the lock orders it; another domain's list has no chunk of the same number.
        chunk.number.store(LAST_NUMBER.fetch_add(1, Relaxed) + 1, Relaxed);
        chunk.prev.set(None);
        chunk.next.set(self.chunks);
        if let Some(head) = self.chunks {
            head.prev.set(Some(chunk));
        }
        self.chunks = Some(chunk);
        self.mapped += chunk.len.get();
        self.shared += usize::from(!chunk.dedicated.get());
        COUNTERS.mapped_bytes.add(chunk.len.get());
    }

    pub(crate) fn unlink_chunk(&mut self, chunk: &'static Chunk) {
        chunk.number.store(0, Relaxed);
        if let Some(next) = chunk.next.get() {
            next.prev.set(chunk.prev.get());
        }
        match chunk.prev.get() {
            Some(prev) => prev.next.set(chunk.next.get()),
            None => self.chunks = chunk.next.get(),
        }
        self.mapped -= chunk.len.get();
        self.shared -= usize::from(!chunk.dedicated.get());
        COUNTERS.mapped_bytes.sub(chunk.len.get());
    }

    /// The chunk that follows a place in the list, or the first. Who began at the first sees each chunk that is in the list all the time
    /// once: the list is in the order of the numbers, the highest first.
    pub(crate) fn chunk_after(&self, place: Option<Place>) -> Option<Place> {
        let mut next = match place {
            Some((chunk, number)) if chunk.number.load(Relaxed) == number => chunk.next.get(),
            _ => self.chunks,
        };
        let last = place.map_or(u64::MAX, |(_, number)| number);
        while let Some(chunk) = next.filter(|chunk| chunk.number.load(Relaxed) >= last) {
            next = chunk.next.get();
        }
        next.map(|chunk| (chunk, chunk.number.load(Relaxed)))
    }

    /// Counts `pages` more as handed out.
    pub(crate) fn count_out(&mut self, pages: usize) {
        self.live_pages += pages;
        COUNTERS.span_bytes.add(pages * PAGE_SIZE);
    }

    /// Counts `pages` as no longer handed out.
    pub(crate) fn count_in(&mut self, pages: usize) {
        self.live_pages -= pages;
        COUNTERS.span_bytes.sub(pages * PAGE_SIZE);
    }

    /// Hands out `pages` pages whose address is a multiple of `align` bytes (a power of two, at least a
    /// page), from the free runs; `None` if no run is long enough or a record is missing.
    pub(crate) fn take(&mut self, pages: usize, align: usize, kind: Kind) -> Option<&'static Span> {
        let run = self.runs.find(pages + align / PAGE_SIZE - 1)?;
        let chunk = run.chunk.get()?;
        let (run_start, run_end) = (run.start(), run.end());
        let first = run_start.next_multiple_of(align);
        let last = (run_end - pages * PAGE_SIZE) / align * align;
        // Most runs are resident as a whole, or nowhere; then there is nothing to count.
        let is_whole = run.dirty.get() as usize == run.pages();
        // A long block lies where more of it is resident, at the run's beginning or at its end.
        let is_long = pages > LONG && run.dirty.get() > 0 && !is_whole;
        let start = match is_long && chunk.count_dirty(last, pages) > chunk.count_dirty(first, pages) {
            true => last,
            false => first,
        };
        let end = start + pages * PAGE_SIZE;

        let head = if start > run_start { Some(records::take_span()?) } else { None };
        let tail = if end < run_end {
            let record = records::take_span();
            if record.is_none() {
                if let Some(head) = head {
                    records::give_span(head);
                }
                return None;
            }
            record
        } else {
            None
        };

        self.runs.remove(run);
        let domain = run.domain();
        let mut dirty_left = run.dirty.get() as usize;
        let count = |start, pages| match is_whole {
            true => pages,
            false => chunk.count_dirty(start, pages),
        };
        let counted = count(start, pages);
        dirty_left -= counted;
        if let Some(head) = head {
            head.describe(domain, Some(chunk), run_start, (start - run_start) / PAGE_SIZE, Kind::Free);
            let part = count(run_start, head.pages());
            dirty_left -= part;
            self.put(head, part);
        }
        if let Some(tail) = tail {
            tail.describe(domain, Some(chunk), end, (run_end - end) / PAGE_SIZE, Kind::Free);
            self.put(tail, dirty_left);
        }
        run.describe(domain, Some(chunk), start, pages, kind);
        run.dirty.set(counted as u32);
        run.set_zero(counted == 0 && chunk.is_zero(start, pages));
        match kind {
            Kind::Blocks => pagemap::set_all(run),
            _ => pagemap::set_ends(run),
        }
        self.count_out(pages);
        Some(run)
    }

    fn put(&mut self, run: &'static Span, dirty: usize) {
        run.dirty.set(dirty as u32);
        run.set_kind(Kind::Free);
        pagemap::set_ends(run);
        self.runs.insert(run);
    }

    /// Takes all free runs out of the lists for ever.
    pub(crate) fn forget_free(&mut self) {
        while let Some(run) = self.runs.find(1) {
            self.runs.remove(run);
            run.set_kind(Kind::Busy);
        }
    }

    /// Takes back a run of a shared chunk, `dirty` pages of which may be resident, and merges it with its
    /// free neighbours.
    pub(crate) fn insert(&mut self, run: &'static Span, mut dirty: usize) {
        let Some(chunk) = run.chunk.get() else { return };
        if run.start() > chunk.start() {
            if let Some(before) = pagemap::lookup(run.start() - PAGE_SIZE).filter(|s| s.kind() == Kind::Free)
            {
                self.runs.remove(before);
                dirty += before.dirty.get() as usize;
                run.resize(before.start(), before.pages() + run.pages());
                records::give_span(before);
            }
        }
        if run.end() < chunk.end() {
            if let Some(after) = pagemap::lookup(run.end()).filter(|s| s.kind() == Kind::Free) {
                self.runs.remove(after);
                dirty += after.dirty.get() as usize;
                run.resize(run.start(), run.pages() + after.pages());
                records::give_span(after);
            }
        }
        self.put(run, dirty);
    }

    /// Marks the first `touched` pages of a span as perhaps resident and takes it back.
    pub(crate) fn give_back(&mut self, span: &'static Span, touched: usize) {
        let Some(chunk) = span.chunk.get() else { return };
        self.count_in(span.pages());
        chunk.set_dirty(span.start(), touched);
        let dirty = match span.pages() - touched {
            0 => touched,
            _ => chunk.count_dirty(span.start(), span.pages()),
        };
        self.insert(span, dirty);
    }

    /// Lengthens a span of a shared chunk to `pages` by the free run behind it. False if it is too short.
    pub(crate) fn extend(&mut self, span: &'static Span, pages: usize) -> bool {
        let Some(chunk) = span.chunk.get() else { return false };
        if span.end() >= chunk.end() {
            return false;
        }
        let extra = pages - span.pages();
        let Some(after) =
            pagemap::lookup(span.end()).filter(|s| s.kind() == Kind::Free && s.pages() >= extra)
        else {
            return false;
        };
        self.runs.remove(after);
        let taken = chunk.count_dirty(after.start(), extra);
        let left = after.dirty.get() as usize - taken;
        span.resize(span.start(), pages);
        pagemap::set_ends(span);
        if after.pages() > extra {
            after.resize(span.end(), after.pages() - extra);
            self.put(after, left);
        } else {
            records::give_span(after);
        }
        self.count_out(extra);
        true
    }

    /// Shortens a span of a shared chunk to `pages` and takes the rest back. Does nothing if no record can
    /// be had for the rest.
    pub(crate) fn shorten(&mut self, span: &'static Span, pages: usize) {
        let Some(chunk) = span.chunk.get() else { return };
        let Some(rest) = records::take_span() else { return };
        let extra = span.pages() - pages;
        span.resize(span.start(), pages);
        pagemap::set_ends(span);
        rest.describe(span.domain(), Some(chunk), span.end(), extra, Kind::Busy);
        self.count_in(extra);
        chunk.set_dirty(rest.start(), extra);
        self.insert(rest, extra);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;

    #[test]
    fn who_goes_through_a_list_that_changes_sees_what_stays_once_and_nothing_twice() {
        let new_chunk = || {
            // SAFETY: all-zero bytes are a valid `Chunk`: integers, `None`, `false` and `Domain::Managed`.
            let chunk: &'static Chunk = Box::leak(unsafe { Box::new(core::mem::zeroed()) });
            chunk.describe(Domain::Managed, 0, memfold_sys::EXTENT_SIZE, true);
            chunk
        };
        let (mut pool, all) = (Pool::new(), [(); 6].map(|()| new_chunk()));
        all.iter().for_each(|chunk| pool.link_chunk(chunk));
        let is = |place: Option<Place>, index: usize| {
            place.is_some_and(|(chunk, _)| core::ptr::eq(chunk, all[index]))
        };
        let first = pool.chunk_after(None);
        assert!(is(first, 5));
        pool.unlink_chunk(all[4]);
        let second = pool.chunk_after(first);
        assert!(is(second, 3), "the one that followed is gone");
        pool.unlink_chunk(all[3]);
        pool.unlink_chunk(all[2]);
        pool.link_chunk(all[2]);
        let third = pool.chunk_after(second);
        assert!(is(third, 1), "the place itself is gone, and one behind it is before it now");
        pool.unlink_chunk(all[1]);
        pool.link_chunk(all[1]);
        let fourth = pool.chunk_after(third);
        assert!(is(fourth, 0), "the place itself is in the list, but elsewhere");
        assert!(pool.chunk_after(fourth).is_none());
        all.iter().filter(|chunk| chunk.number.load(Relaxed) > 0).for_each(|chunk| pool.unlink_chunk(chunk));
        assert_eq!(pool.mapped, 0);
    }

    #[test]
    fn what_was_handed_out_counts_for_one_to_two_times_of_decay_and_no_longer() {
        const TIME: u16 = 30;
        for start in [0u16, 7, u16::MAX - 40] {
            let at = |tick: u16| start.wrapping_add(tick);
            let lately = |taken, peak| Lately { taken, peak };
            let mut demand = Demand { since: start, ..Demand::new() };
            assert_eq!(demand.count(100, 400, at(29), TIME), lately(100, 400));
            assert_eq!(demand.count(7, 50, at(31), TIME), lately(107, 400));
            assert_eq!(demand.count(0, 60, at(60), TIME), lately(107, 400));
            assert_eq!(demand.count(0, 20, at(61), TIME), lately(7, 60), "handed out 32 ticks ago");
            assert_eq!(demand.count(0, 10, at(200), TIME), lately(0, 10));
            // Without a time of decay, nothing was handed out lately.
            demand.count(50, 70, at(200), 0);
            assert_eq!(demand.count(0, 5, at(200), 0), lately(0, 5));
        }
    }
}
