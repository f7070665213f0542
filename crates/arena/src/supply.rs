//! Getting memory from the kernel and handing it back.
//!
//! What it is: growth by chunks, decommit of free runs and unmapping of free chunks, and the chunks that
//! hold one large block each.
//!
//! Invariants: no lock is held while the kernel or a hook is called; a run or chunk that such a call is
//! about is in no list meanwhile, so nobody else can reach it.
//!
//! The decay rule: pages of free runs stay resident for [`Knob::Decay`], because a fault costs more than a page kept
//! only if the page is used again; then they go back, but for [`Knob::DecommitTarget`] or a share of what is handed
//! out, whichever is more. That is looked at when something is freed, and by [`crate::decay`]. Nobody may come to look
//! again, so what was not wanted lately is not kept for that time at all: the longest free go at once beyond as much as
//! was handed out within the last one or two times of decay, and at any rate beyond 32 MiB or as much as is handed out
//! now (in a tight profile, eight times the target or a quarter). Who was handed out in that time more than twice what it had
//! at once is kept as much as is missing of that and a quarter (in a tight profile, of that). Where the target was set by itself,
//! everything beyond it goes at once, and so does what is beyond a ceiling. A chunk that is free as a whole is unmapped instead, unless it is the last.

use crate::chunk::{Chunk, Purpose};
use crate::counters::COUNTERS;
use crate::pool::{pool, Lately, Pool};
use crate::settings::{self, Decommit, Knob};
use crate::span::{Domain, Kind, Span};
use crate::{density, hooks, pagemap, records};
use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use memfold_sys::{EXTENT_SIZE, PAGE_SIZE};

/// Below this target, in bytes, memory is tight: less of it may be resident and free at any time.
const TIGHT: usize = EXTENT_SIZE;

/// Pages of free runs that may be resident at any time where memory is not tight.
const BUSY: usize = 16 * EXTENT_SIZE / PAGE_SIZE;

/// Pages that go at a time, at least, where a run has as many.
const LEAST_PURGE: usize = 64;

/// The part of the handed-out pages that may stay resident besides for good.
const IDLE_SHARE: usize = 8;

/// Nanoseconds to a tick: the age of free runs is known to so much.
const TICK: u64 = 1 << 25;

/// Before this many bytes are mapped, a small program is spared huge pages, which would make its first touch cost 2
/// MiB.
const SMALL_PROGRAM: usize = 4 * EXTENT_SIZE;

/// Where the next chunk would continue the last, so that the kernel can join their mappings.
static HINT: AtomicUsize = AtomicUsize::new(0);

/// Maps `len` bytes (whole extents) at a multiple of `align` (a power of two, at least an extent).
fn map_aligned(len: usize, align: usize) -> Option<usize> {
    COUNTERS.mmap_calls.add(1);
    let hint = HINT.load(Relaxed);
    let hint = hint.saturating_sub(len);
    let base = memfold_sys::mem::map_anonymous(hint, len, 0).ok()?;
    let base = if base.is_multiple_of(align) {
        base
    } else {
        // SAFETY: just mapped and not handed out.
        let _ = unsafe { memfold_sys::mem::munmap(base, len) };
        COUNTERS.mmap_calls.add(1);
        let padded = len.checked_add(align - PAGE_SIZE)?;
        let raw = memfold_sys::mem::map_anonymous(0, padded, 0).ok()?;
        let base = raw.next_multiple_of(align);
        // SAFETY: both ends lie in the mapping just made and are not handed out.
        unsafe {
            if base > raw {
                let _ = memfold_sys::mem::munmap(raw, base - raw);
            }
            if base + len < raw + padded {
                let _ = memfold_sys::mem::munmap(base + len, raw + padded - base - len);
            }
        }
        base
    };
    HINT.store(base, Relaxed);
    Some(base)
}

/// A chunk of `len` bytes that is in no list yet.
pub(crate) fn map_chunk(
    domain: Domain,
    len: usize,
    align: usize,
    purpose: Purpose,
) -> Option<&'static Chunk> {
    let chunk = records::take_chunk()?;
    let Some(base) = map_aligned(len, align) else {
        records::give_chunk(chunk);
        return None;
    };
    if !pagemap::cover(base, len) {
        // SAFETY: just mapped and not handed out.
        let _ = unsafe { memfold_sys::mem::munmap(base, len) };
        records::give_chunk(chunk);
        return None;
    }
    chunk.describe(domain, base, len, purpose == Purpose::Dedicated);
    chunk.huge.set(advise(domain, base, len, purpose));
    Some(chunk)
}

/// Tells the kernel whether a fresh chunk is to have huge pages; where nothing is said, the system's setting holds. Whether it was
/// asked for some.
fn advise(domain: Domain, base: usize, len: usize, purpose: Purpose) -> bool {
    let untold = matches!(purpose, Purpose::Shared | Purpose::Long(None));
    let small = untold && COUNTERS.mapped_bytes.get() < SMALL_PROGRAM;
    match purpose {
        Purpose::Shared if small && domain == Domain::Managed => density::sample(base, len),
        Purpose::Long(None) => density::sample_long(base),
        _ => {}
    }
    let dense = || match purpose {
        Purpose::Long(dense) => dense == Some(true),
        _ => density::is_high(),
    };
    let advice = if domain == Domain::Pinned || small {
        libc::MADV_NOHUGEPAGE
    } else if settings::wants_huge(purpose == Purpose::Dedicated, hooks::are_set(), dense) {
        libc::MADV_HUGEPAGE
    } else {
        return false;
    };
    COUNTERS.madvise_calls.add(1);
    // SAFETY: advice about an unused mapping; a kernel without huge pages refuses, which is as good.
    let done = unsafe { memfold_sys::mem::madvise(base, len, advice) }.is_ok();
    done && advice == libc::MADV_HUGEPAGE
}

/// Adds a shared chunk in which `pages` fit: between guards where those are wanted and to be had.
pub(crate) fn grow(domain: Domain, pages: usize, kind: Kind) -> bool {
    let guarded = domain == Domain::Managed && settings::is_on(Knob::Check) && settings::is_on(Knob::Guard);
    guarded && grow_between_guards(pages) || grow_plainly(domain, pages, kind)
}

/// How many blocks a fresh chunk for a long one has room for, as far as a chunk may be so long.
const SEVERAL: usize = 4;

/// Bytes before and behind a shared chunk's part that may be touched: who misses a block in it by a MiB hits one of them.
const MARGIN: usize = 7 * EXTENT_SIZE / 8;

/// The least and the most bytes between two guards. Each costs two mappings, of which a process has 65 530
/// (`vm.max_map_count`), so there are few where the program has much memory.
const GUARDED_LEAST: usize = EXTENT_SIZE / 4;
const GUARDED_MOST: usize = 12 * EXTENT_SIZE;

/// Adds a shared chunk in which `pages` fit, of a 64th of what is handed out, whose first and last bytes cannot be touched.
fn grow_between_guards(pages: usize) -> bool {
    let live = pool(Domain::Managed).lock().live_pages;
    let wanted = (live / 64 * PAGE_SIZE).clamp(GUARDED_LEAST, GUARDED_MOST);
    let room = wanted.max(pages * PAGE_SIZE);
    let len = (room + 2 * MARGIN).next_multiple_of(EXTENT_SIZE);
    if len > crate::chunk::MAX_SHARED {
        return false;
    }
    let Some(run) = records::take_span() else { return false };
    let Some(chunk) = map_chunk(Domain::Managed, len, EXTENT_SIZE, Purpose::Shared) else {
        records::give_span(run);
        return false;
    };
    chunk.lead.set(MARGIN);
    chunk.tail.set(len - MARGIN - room);
    hooks::mapped(true, chunk.base.get(), len);
    if hooks::guard(chunk.base.get(), MARGIN).is_err() || hooks::guard(chunk.end(), chunk.tail.get()).is_err()
    {
        records::give_span(run);
        unmap_chunk(Domain::Managed, chunk);
        return false;
    }
    run.describe(Domain::Managed, Some(chunk), chunk.start(), chunk.room() / PAGE_SIZE, Kind::Busy);
    let mut pool = pool(Domain::Managed).lock();
    pool.link_chunk(chunk);
    pool.insert(run, 0);
    true
}

/// Adds a shared chunk in which `pages` fit. A quarter of what is mapped, from [`Knob::ChunkLeast`] to
/// [`Knob::ChunkMost`]; under a limit of address space, less.
fn grow_plainly(domain: Domain, pages: usize, kind: Kind) -> bool {
    let least = (pages * PAGE_SIZE).next_multiple_of(EXTENT_SIZE);
    let is_long = least > EXTENT_SIZE && kind == Kind::Large;
    let purpose = match is_long && domain == Domain::Managed {
        true => Purpose::Long(density::is_high_of_long()),
        false => Purpose::Shared,
    };
    // Several blocks of the kind, so that what one leaves beside it serves another; the first by itself, as it tells whether huge pages pay.
    let is_first = purpose == Purpose::Long(None);
    let several = if is_long && !is_first { (SEVERAL * least).min(crate::chunk::MAX_SHARED) } else { least };
    let mapped = pool(domain).lock().mapped;
    let smallest = (settings::get(Knob::ChunkLeast) as usize).next_multiple_of(EXTENT_SIZE);
    let largest = (settings::get(Knob::ChunkMost) as usize).next_multiple_of(EXTENT_SIZE).max(smallest);
    let mut len = (mapped / 4).next_multiple_of(EXTENT_SIZE).clamp(smallest, largest).max(several).max(least);
    let Some(run) = records::take_span() else { return false };
    loop {
        if let Some(chunk) = map_chunk(domain, len, EXTENT_SIZE, purpose) {
            // Before anybody can be handed out a part of it.
            hooks::mapped(domain == Domain::Managed, chunk.base.get(), len);
            run.describe(domain, Some(chunk), chunk.base.get(), len / PAGE_SIZE, Kind::Busy);
            let mut pool = pool(domain).lock();
            pool.link_chunk(chunk);
            pool.insert(run, 0);
            return true;
        }
        if len == least {
            records::give_span(run);
            return false;
        }
        len = (len / 2).next_multiple_of(EXTENT_SIZE).max(least);
    }
}

/// Hands out `pages` pages from the free runs, as [`Pool::take`] does.
pub(crate) fn take(domain: Domain, pages: usize, align: usize, kind: Kind) -> Option<&'static Span> {
    let (now, time) = (tick(), decay_ticks());
    let mut pool = pool(domain).lock();
    let span = pool.take(pages, align, kind)?;
    let live = pool.live_pages;
    pool.demand.count(pages, live, now, time);
    drop(pool);
    forget_away(span);
    Some(span)
}

/// Drops what a span that is about to be handed out holds, where pages of it are away from memory: nobody wants them back.
fn forget_away(span: &'static Span) {
    let managed = span.domain() == Domain::Managed;
    if span.zero() || !managed || !hooks::is_away(span.start(), span.bytes()) {
        return;
    }
    let Some(chunk) = span.chunk.get() else { return };
    if hooks::discard(managed, span.start(), span.bytes()).is_ok() {
        let _pool = pool(span.domain()).lock();
        chunk.clear(span.start(), span.pages());
        span.set_zero(true);
    }
}

/// Writes zeros to the first `bytes` bytes of a span that was just handed out, but for pages that nobody wrote to before.
pub(crate) fn clear(span: &'static Span, bytes: usize) {
    const AT_ONCE: usize = 64 * PAGE_SIZE;
    let Some(chunk) = span.chunk.get() else { return };
    let end = span.start() + bytes;
    let write = |part: &Range<usize>| {
        // SAFETY: a part of the span, whose user waits for it.
        unsafe { (part.start as *mut u8).write_bytes(0, part.end.min(end) - part.start) }
    };
    let is_whole = span.dirty.get() as usize == span.pages();
    let mut part = span.start()..if is_whole { end } else { span.start() };
    for at in (part.end..end).step_by(AT_ONCE) {
        let lock = pool(span.domain()).lock();
        let mut written = chunk.written_from(at);
        drop(lock);
        while written != 0 {
            let first = written.trailing_zeros() as usize;
            let count = (!(written >> first)).trailing_zeros() as usize;
            written &= u64::MAX.checked_shl((first + count) as u32).unwrap_or(0);
            let next = at + first * PAGE_SIZE..at + (first + count) * PAGE_SIZE;
            if next.start >= end {
                break;
            }
            if part.end == next.start {
                part.end = next.end;
            } else {
                write(&part);
                part = next;
            }
        }
    }
    write(&part);
}

/// Lengthens a span by the free run behind it, as [`Pool::extend`] does.
pub(crate) fn extend(span: &'static Span, pages: usize) -> bool {
    let (now, time) = (tick(), decay_ticks());
    let mut pool = pool(span.domain()).lock();
    let extra = pages - span.pages();
    let extended = pool.extend(span, pages);
    if extended {
        let live = pool.live_pages;
        pool.demand.count(extra, live, now, time);
    }
    extended
}

/// Maps a chunk for one block of `pages` pages.
pub(crate) fn map_dedicated(domain: Domain, pages: usize, align: usize) -> Option<&'static Span> {
    let len = pages.checked_mul(PAGE_SIZE)?.checked_next_multiple_of(EXTENT_SIZE)?;
    let span = records::take_span()?;
    let Some(chunk) = map_chunk(domain, len, align.max(EXTENT_SIZE), Purpose::Dedicated) else {
        records::give_span(span);
        return None;
    };
    span.describe(domain, Some(chunk), chunk.base.get(), pages, Kind::Large);
    span.set_zero(true);
    pagemap::set(span.start(), span);
    let mut pool = pool(domain).lock();
    pool.link_chunk(chunk);
    pool.count_out(pages);
    drop(pool);
    hooks::mapped(domain == Domain::Managed, chunk.base.get(), len);
    Some(span)
}

/// Unmaps the chunk of a block that has one to itself.
pub(crate) fn unmap_dedicated(span: &'static Span, chunk: &'static Chunk) {
    let mut pool = pool(span.domain()).lock();
    pool.unlink_chunk(chunk);
    pool.count_in(span.pages());
    drop(pool);
    let domain = span.domain();
    records::give_span(span);
    unmap_chunk(domain, chunk);
}

/// Unmaps a chunk that is in no list and holds nothing. Where the kernel refuses (it may, at the limit of
/// mappings), the address range stays taken and unused.
pub(crate) fn unmap_chunk(domain: Domain, chunk: &'static Chunk) {
    let (base, len) = (chunk.base.get(), chunk.len.get());
    pagemap::clear(base, len);
    density::forget(base, len);
    if hooks::unmap(domain == Domain::Managed, base, len).is_err() {
        let _ = hooks::discard(domain == Domain::Managed, base, len);
    }
    records::give_chunk(chunk);
}

/// Pages by which a block must shrink for them to be given back at once.
const LEAST_GIVEN_BACK: usize = 16;

/// Resizes a block that has a chunk to itself, in place or elsewhere; its contents follow. False, and
/// nothing changed, if the kernel cannot.
pub(crate) fn resize_dedicated(span: &'static Span, chunk: &'static Chunk, pages: usize) -> bool {
    let Some(new_len) =
        pages.checked_mul(PAGE_SIZE).and_then(|len| len.checked_next_multiple_of(EXTENT_SIZE))
    else {
        return false;
    };
    let (old, old_len, old_pages) = (chunk.base.get(), chunk.len.get(), span.pages());
    let managed = span.domain() == Domain::Managed;
    let mut resized = new_len == old_len;
    if !resized {
        // Off the list and the map first: once the kernel moved the block, its old range may be anybody's.
        pool(span.domain()).lock().unlink_chunk(chunk);
        pagemap::clear(old, old_len);
        if let Ok(base) = hooks::remap(managed, old, old_len, new_len) {
            chunk.base.set(base);
            chunk.len.set(new_len);
            // Without memory for a leaf the block is as good as any, but `free` will not know it.
            let _ = pagemap::cover(base, new_len);
            resized = true;
        }
        pagemap::set(chunk.base.get(), span);
        pool(span.domain()).lock().link_chunk(chunk);
    }
    if resized {
        let mut pool = pool(span.domain()).lock();
        pool.count_in(span.pages());
        pool.count_out(pages);
        span.resize(chunk.base.get(), pages);
    }
    if resized && old_pages >= pages + LEAST_GIVEN_BACK {
        // What lies behind it up to the end of its chunk is nobody's, and might be for long.
        let _ = hooks::discard(managed, span.end(), chunk.end() - span.end());
    }
    resized
}

/// The present in ticks, modulo 2^16 (36 minutes). A run that is taken for young at the wrong moment goes back at
/// another.
fn tick() -> u16 {
    (memfold_sys::time::coarse().0 / TICK) as u16
}

/// Pages of free runs that may be resident at any time, and for good, where `live` pages are handed out.
fn limits(live: usize, lately: Lately) -> (usize, usize) {
    let (busy, keep) = limits_of_profile(live, lately);
    let most = settings::ceiling() / PAGE_SIZE;
    (busy.min(most), keep.min(most))
}

/// The same by the profile alone.
fn limits_of_profile(live: usize, lately: Lately) -> (usize, usize) {
    let target = settings::get(Knob::DecommitTarget) as usize;
    let pages = target / PAGE_SIZE;
    if settings::target_is_given() {
        return (pages, pages);
    }
    let (most, keep, peak) = if target < TIGHT {
        ((8 * pages).max(live / 4), pages.max(live / (4 * IDLE_SHARE)), lately.peak)
    } else {
        (BUSY.max(8 * pages).max(live), pages.max(live / IDLE_SHARE), lately.peak + lately.peak / 4)
    };
    // Who takes again and again what it had at once is kept that, which costs nothing at its peak.
    let peak = if lately.taken > 2 * lately.peak { peak } else { 0 };
    (lately.taken.clamp(keep, most.max(peak.saturating_sub(live)).max(keep)), keep)
}

/// [`Knob::Decay`] in ticks.
fn decay_ticks() -> u16 {
    settings::get(Knob::Decay).div_ceil(TICK).min(u64::from(u16::MAX)) as u16
}

/// Takes a span back, of which `touched` pages may be resident.
pub(crate) fn give_back(span: &'static Span, touched: usize) {
    take_back(span.domain(), |pool| pool.give_back(span, touched.min(span.pages())));
}

/// Shortens a span, as [`Pool::shorten`] does.
pub(crate) fn shorten(span: &'static Span, pages: usize) {
    take_back(span.domain(), |pool| pool.shorten(span, pages));
}

/// Has `take` take something back, and applies the decay rule.
fn take_back(domain: Domain, take: impl FnOnce(&mut Pool)) {
    let now = tick();
    let mut pool = pool(domain).lock();
    let new_tick = pool.runs.tick != now;
    pool.runs.tick = now;
    take(&mut pool);
    let (live, dirty) = (pool.live_pages, pool.runs.dirty_pages);
    let lately = pool.demand.count(0, live, now, decay_ticks());
    drop(pool);
    if settings::decommit() == Decommit::Off {
        return;
    }
    let (busy, _) = limits(live, lately);
    if dirty > busy {
        // Little more than must go: what goes is wanted again soon, and then costs its faults.
        purge(domain, busy - busy / 16);
    } else if new_tick {
        purge_idle(domain);
    }
}

/// Gives back what is left alone, down to what may stay for good. Returns how many pages went.
pub(crate) fn purge_idle(domain: Domain) -> usize {
    if settings::decommit() == Decommit::Off {
        return 0;
    }
    let now = tick();
    let (_, keep) = limits(pool(domain).lock().live_pages, Lately::default());
    let (age, ceiling) = (decay_ticks(), settings::ceiling() / PAGE_SIZE);
    purge_while(domain, |pool, oldest| {
        let dirty = pool.runs.dirty_pages;
        match dirty > keep && now.wrapping_sub(oldest.freed.get()) >= age {
            // Nobody wants it: all of it.
            true => oldest.pages(),
            false => dirty.saturating_sub(ceiling),
        }
    })
}

/// Gives frames of free runs back, the longest free first, until at most `keep` pages may be resident.
/// Returns how many pages went.
pub(crate) fn purge(domain: Domain, keep: usize) -> usize {
    purge_while(domain, |pool, _| pool.runs.dirty_pages.saturating_sub(keep))
}

/// Of a free run that begins at `start`, whose end `(address, bytes)` is to be dropped, the extents that are dropped instead: what is dropped of a huge page in part
/// is faulted in by small ones from then on. `None` where there is no whole one.
fn whole_extents(start: usize, (addr, len): (usize, usize)) -> Option<(usize, usize)> {
    let first = (addr - addr % EXTENT_SIZE).max(start.next_multiple_of(EXTENT_SIZE));
    let end = addr + len - (addr + len) % EXTENT_SIZE;
    (first < end).then(|| (first, end - first))
}

/// Gives frames of the longest free run back, its last ones first, while `surplus(pool, run)` says how many are too many.
fn purge_while(domain: Domain, surplus: impl Fn(&Pool, &'static Span) -> usize) -> usize {
    let managed = domain == Domain::Managed;
    let mut gone = 0;
    loop {
        let mut pool = pool(domain).lock();
        let Some(run) = pool.runs.oldest() else { return gone };
        let Some(chunk) = run.chunk.get() else { return gone };
        let dirty = run.dirty.get() as usize;
        let surplus = surplus(&pool, run);
        if surplus == 0 {
            return gone;
        }
        let count = surplus.max(LEAST_PURGE).min(dirty);
        pool.runs.remove(run);
        run.set_kind(Kind::Busy);
        if count == dirty && run.bytes() == chunk.room() && pool.shared > 1 {
            pool.unlink_chunk(chunk);
            drop(pool);
            records::give_span(run);
            unmap_chunk(domain, chunk);
            gone += dirty;
            continue;
        }
        let hull = chunk.dirty_end(run.start(), run.pages(), if count == dirty { usize::MAX } else { count });
        let whole = hull
            .filter(|_| count < dirty && chunk.huge.get())
            .and_then(|hull| whole_extents(run.start(), hull))
            .map(|(addr, len)| ((addr, len), chunk.count_dirty(addr, len / PAGE_SIZE)))
            .filter(|(_, pages)| *pages > 0);
        let (hull, count) = whole.map_or((hull, count), |(extents, pages)| (Some(extents), pages));
        drop(pool);
        let lazily = settings::decommit() == Decommit::Free && !(managed && hooks::are_set());
        let done = hull.is_some_and(|(addr, len)| match lazily {
            true => hooks::lend(addr, len).is_ok(),
            false => hooks::discard(managed, addr, len).is_ok(),
        });
        let mut pool = crate::pool::pool(domain).lock();
        if let Some((addr, len)) = hull {
            // Locked memory cannot be dropped, and lent memory may or may not be zero.
            match done && !lazily {
                true => chunk.clear(addr, len / PAGE_SIZE),
                false => chunk.leave(addr, len / PAGE_SIZE),
            }
        }
        gone += usize::from(done) * count;
        pool.insert(run, dirty - count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_run_with_huge_pages_whole_ones_go() {
        const E: usize = EXTENT_SIZE;
        // Begun in the run, so the whole of the first goes too, and the last stays.
        assert_eq!(whole_extents(3 * E, (5 * E + PAGE_SIZE, 4 * E)), Some((5 * E, 4 * E)));
        // The first is not the run's alone.
        assert_eq!(whole_extents(5 * E + PAGE_SIZE, (5 * E + 2 * PAGE_SIZE, 3 * E)), Some((6 * E, 2 * E)));
        assert_eq!(whole_extents(5 * E + PAGE_SIZE, (5 * E + PAGE_SIZE, E)), None);
        assert_eq!(whole_extents(0, (E - PAGE_SIZE, PAGE_SIZE)), Some((0, E)));
        assert_eq!(whole_extents(0, (PAGE_SIZE, PAGE_SIZE)), None);
    }
}
