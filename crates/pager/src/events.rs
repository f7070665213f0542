//! Mappings that were changed past libc: by a system call of the program's own making.
//!
//! The library sees `munmap`, `madvise` and `mremap` before they happen and prepares for them
//! ([`crate::program`]); the kernel reports the same calls too, and the thread that made one sleeps until
//! the report is read. A report of something that the library did not prepare is acted on here: what was
//! evicted in the range is dropped or moved along, and the range is never evicted from again, because the
//! library cannot tell when the next such call comes.
//!
//! The thread that made the call goes on as soon as the report is read; what that means for others that move pages, see
//! [`crate::turns`].
//!
//! Fault thread only. It may wait for the background thread, which never waits for it.

use crate::bitmap::PageSet;
use crate::engine::Engine;
use crate::entry::Entry;
use crate::kernel::Kernel;
use crate::patience::patiently;
use crate::restore::{Outcome, Restorer};
use crate::sabotage::{planted, widen, Bug};
use core::ops::Range;
use core::sync::atomic::Ordering::*;
use sys::thread::Backoff;
use sys::uffd::{self, Event};
use sys::{Result, PAGE_SIZE};

/// Reads the next message; `EAGAIN` if there is none. In the fault thread's turn.
pub fn read(engine: &Engine, kernel: &Kernel) -> Result<Event> {
    engine.turns.wait_for_movers(|| uffd::touch_waits(&kernel.uffd_info));
    kernel.uffd.read().map(|message| message.event())
}

/// Acts on a report of the kernel.
pub fn changed_past_libc(engine: &'static Engine, kernel: &'static Kernel, event: Event) {
    widen(Bug::TurnNotTaken, 20);
    let ignored = match event {
        Event::Remove { .. } => Bug::RemoveReportIgnored,
        Event::Unmap { .. } => Bug::UnmapReportIgnored,
        _ => Bug::RemapReportIgnored,
    };
    if planted(ignored) {
        return;
    }
    match event {
        Event::Remove { start, end } | Event::Unmap { start, end } => {
            if !prepared(engine, start, end) {
                engine.changed_past_libc.store(1, Release);
                engine.brake.hold();
                forget(engine, start, end, matches!(event, Event::Unmap { .. }));
                engine.brake.let_go();
                kernel.uffd.wake(start, end - start);
            }
        }
        Event::Remap { from, to, len } => {
            if !prepared(engine, from, from + len) {
                engine.moved_past_libc.store(1, Release);
                engine.changed_past_libc.store(1, Release);
                engine.brake.hold();
                move_along(engine, kernel, from, to, len);
                engine.brake.let_go();
                kernel.uffd.wake(from, len);
                kernel.uffd.wake(to, len);
            }
        }
        Event::Fault { .. } | Event::Unknown(_) => {}
    }
}

/// Reads the next message if there is one, so that a change that is under way can go on. `moved` was moved away:
/// that the kernel unmaps it then is no news.
pub fn read_on(engine: &'static Engine, kernel: &'static Kernel, moved: Range<usize>, backoff: &mut Backoff) {
    let Ok(message) = read(engine, kernel) else {
        backoff.wait();
        return;
    };
    match message {
        // Its sleeper touches the page again, and the message comes again.
        Event::Fault { page, .. } => kernel.uffd.wake(page, PAGE_SIZE),
        Event::Unmap { start, end } if moved.start <= start && end <= moved.end => {}
        other => changed_past_libc(engine, kernel, other),
    }
}

/// Whether a program thread announced the change of all of the range, as far as the pager has to do with it.
fn prepared(engine: &Engine, start: usize, end: usize) -> bool {
    engine.space().existing(start, end).all(|extent| {
        let (lo, hi) = extent.clip(start, end);
        extent.is_changing_all(lo, hi)
            // Nothing is away, and nothing will be.
            || extent.away.load(SeqCst) == 0 && extent.managed.load().and(&PageSet::range(lo, hi)).is_empty()
    })
}

/// Drops what was evicted in the range, and manages it no more.
fn forget(engine: &Engine, start: usize, end: usize, unmapped: bool) {
    for extent in engine.space().existing(start, end) {
        let (lo, hi) = extent.clip(start, end);
        engine.forget_pages(extent, lo, hi);
        let pages = PageSet::range(lo, hi);
        if unmapped {
            engine.forget_mapping(extent, &pages);
        } else {
            engine.leave_alone(extent, &pages);
        }
    }
}

/// What was evicted at `from` belongs to `to` now. It is brought back there at once, from a copy of its own.
fn move_along(engine: &'static Engine, kernel: &'static Kernel, from: usize, to: usize, len: usize) {
    let Ok(mut restorer) = patiently(Restorer::new) else {
        engine.fail_hard("memfold: no memory to follow an mremap")
    };
    for extent in engine.space().existing(from, from + len) {
        let (lo, hi) = extent.clip(from, from + len);
        for index in lo..hi {
            if extent.entry(index) != Entry::RESIDENT {
                let target = to + (extent.page_addr(index) - from);
                let mut backoff = Backoff::new();
                loop {
                    match restorer.restore_elsewhere(engine, kernel, extent, index, target) {
                        Outcome::Done { .. } | Outcome::Resident => break,
                        // The kernel holds restores back until the thread that moved the mapping has run again.
                        Outcome::TryAgain => read_on(engine, kernel, from..from + len, &mut backoff),
                        Outcome::InOtherHands => backoff.wait(),
                        // Its thread went on, and unmapped or moved it again.
                        Outcome::Gone => engine.forget_page(extent, index),
                    }
                }
            }
        }
        engine.forget_mapping(extent, &PageSet::range(lo, hi));
    }
    engine.mapped_and_left_alone(to, len);
}
