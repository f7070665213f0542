//! Mappings that were changed past libc: by a system call of the program's own making.
//!
//! The library sees `munmap`, `madvise` and `mremap` before they happen and prepares for them
//! ([`crate::changes::mappings`]); the kernel reports the same calls too, and the thread that made one sleeps until
//! the report is read. A report of something that the library did not prepare is acted on here: what was
//! evicted in the range is dropped or moved along, and the range is never evicted from again, because the
//! library cannot tell when the next such call comes.
//!
//! Where nobody but the kernel tells of changes ([`Engine::go_by_reports`]), such calls are the rule, and ranges are evicted from again: what was unmapped or
//! moved when something is found there, what was dropped page by page, once the kernel has dropped it ([`crate::evict::discover`]).
//!
//! The thread that made the call goes on as soon as the report is read; what that means for others that move pages, see
//! [`crate::turns`].
//!
//! Memory that was moved is followed page by page. Its thread may do more to it meanwhile, by calls whose reports are read on the way:
//! they are kept in order, as [`Steps`], and each page goes where they lead it.
//!
//! Fault thread only. It may wait for the background thread, which never waits for it.

use crate::engine::Engine;
use crate::fault::reason::Outcome;
use crate::fault::restore::Restorer;
use crate::fault::steps::{Followed, Steps};
use crate::kernel::Kernel;
use crate::retry::patiently;
use crate::sabotage::{fault_point, linger, planted, Bug};
use crate::tables::bounds::Bounds;
use crate::tables::entry::Entry;
use crate::tier::below::Asker;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::Backoff;
use memfold_sys::time::{self, Nanos};
use memfold_sys::uffd::{self, Event};
use memfold_sys::{Errno, Result, PAGE_SIZE};

/// How long a report may wait that cannot be read.
const MOST_UNREAD: Nanos = Nanos::from_secs(10);
/// The last words of a program for which that was not enough.
const UNREAD: &str = "memfold: a fork waits for memory, or for a descriptor below the limit (RLIMIT_NOFILE, fs.file-max): none has been there for ten seconds";

/// The last words of a program whose memory cannot be followed.
const NO_MEMORY: &str = "memfold: no memory to follow an mremap";

/// Reads the next message; `EAGAIN` if there is none. In the fault thread's turn.
pub fn read(engine: &Engine, kernel: &Kernel) -> Result<Event> {
    engine
        .traffic
        .turns
        .wait_for_movers(|| uffd::touch_waits(&kernel.uffd_info), || kernel.uffd.is_changing());
    let read = kernel.uffd.read().map(|message| message.event());
    // A report that cannot be given, of a fork, stays where it is, and no touch can be served before it is.
    let waits = matches!(read, Err(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM));
    if engine.traffic.unread_for(waits, time::now()) > MOST_UNREAD {
        engine.fail_hard(UNREAD);
    }
    read
}

/// Acts on a report of the kernel.
pub fn changed_past_libc(engine: &'static Engine, kernel: &'static Kernel, steps: &mut Steps, event: Event) {
    linger(Bug::TurnNotTaken);
    let ignored = match event {
        Event::Remove { .. } => Bug::RemoveReportIgnored,
        Event::Unmap { .. } => Bug::UnmapReportIgnored,
        _ => Bug::RemapReportIgnored,
    };
    if planted(ignored) {
        return;
    }
    if fault_point!(StepNotFollowed: steps.keep(event).is_err(), else false) {
        engine.fail_hard(NO_MEMORY);
    }
    if let Event::Fork { child } = event {
        engine.children.begin(engine, kernel, steps, child);
        return;
    }
    // What is about to be dropped or moved along here is owed to children that were forked before.
    engine.children.give_all_of(event);
    match event {
        Event::Unmap { start, end } if steps.was_left(start, end) => {}
        Event::Remove { start, end } | Event::Unmap { start, end } => {
            if !prepared(engine, start, end) {
                engine.traffic.note_change_past_libc(false);
                engine.traffic.brake.hold();
                forget(engine, kernel, steps, Bounds { start, end }, matches!(event, Event::Unmap { .. }));
                engine.traffic.brake.let_go();
                kernel.uffd.wake(start, end - start);
            }
        }
        Event::Remap { from, to, len } => {
            if !prepared(engine, from, from + len) {
                engine.traffic.note_change_past_libc(true);
                if steps.begin(from, to, len).is_err() {
                    engine.fail_hard(NO_MEMORY);
                }
                // Whoever follows another at this moment follows this one next.
                if steps.followed().len() == 1 {
                    engine.traffic.brake.hold();
                    follow(engine, kernel, steps);
                    engine.traffic.brake.let_go();
                }
            }
        }
        Event::Fault { .. } | Event::Fork { .. } | Event::Unknown(_) => {}
    }
}

/// Reads the next message if there is one, so that a change that is under way can go on.
pub fn read_on(engine: &'static Engine, kernel: &'static Kernel, steps: &mut Steps, backoff: &mut Backoff) {
    // Who waits for a report is the one that a touch which is being served waits for.
    let serves = engine.traffic.turns.leave_touch();
    match read(engine, kernel) {
        Ok(message) => act_on(engine, kernel, steps, message),
        Err(_) => backoff.wait(),
    }
    if serves {
        engine.traffic.turns.serve_touch();
    }
}

fn act_on(engine: &'static Engine, kernel: &'static Kernel, steps: &mut Steps, message: Event) {
    match message {
        // Its sleeper touches the page again, and the message comes again.
        Event::Fault { page, .. } => kernel.uffd.wake(page, PAGE_SIZE),
        other => changed_past_libc(engine, kernel, steps, other),
    }
}

/// Whether a program thread announced the change of all of the range, as far as the pager has to do with it.
fn prepared(engine: &Engine, start: usize, end: usize) -> bool {
    let stretch = engine.traffic.turns.stretch();
    engine.space().existing(start, end).all(|extent| {
        let pages = extent.clip(start, end);
        extent.is_changing_all(pages)
            // It is over already. Whatever else is reported of these pages in this stretch finds nothing that was evicted.
            || stretch.is_some_and(|stretch| extent.was_forgotten(stretch, pages))
            // Nothing is away, and nothing will be.
            || extent.away.load(SeqCst) == 0 && extent.managed.load().and(&pages.set()).is_empty()
    })
}

/// Drops what was evicted in the range, and manages it no more, or not before it is known to have been dropped.
fn forget(engine: &Engine, kernel: &Kernel, steps: &Steps, Bounds { start, end }: Bounds, unmapped: bool) {
    for extent in engine.space().existing(start, end) {
        let pages = extent.clip(start, end).set();
        let own = fault_point!(FollowedForgotten: steps.own(extent.base(), pages), else pages);
        own.runs().for_each(|run| engine.forget_pages(extent, run));
        if unmapped {
            engine.forget_mapping(extent, &pages);
        } else if engine.traffic.goes_by_reports() {
            engine.await_drop(kernel, extent, &pages);
        } else {
            engine.leave_alone(extent, &pages);
        }
    }
}

/// Brings back what is being followed, and what comes to be followed meanwhile, one after the other: each may have to wait for all others that change mappings.
fn follow(engine: &'static Engine, kernel: &'static Kernel, steps: &mut Steps) {
    let Ok(mut restorer) = patiently(|| Restorer::new(engine, kernel)) else { engine.fail_hard(NO_MEMORY) };
    let mut number = 0;
    while let Some(&followed) = steps.followed().get(number) {
        move_along(engine, kernel, steps, &mut restorer, followed);
        number += 1;
    }
    if let Some(below) = engine.below() {
        // It has the restorer's memory.
        below.end_ask(Asker::Fault);
    }
    steps.end(0);
}

/// What was evicted where the memory came from belongs to where it is now. It is brought back there at once, from a copy of its own.
fn move_along(
    engine: &'static Engine,
    kernel: &'static Kernel,
    steps: &mut Steps,
    restorer: &mut Restorer,
    Followed { from, end, to, since: first }: Followed,
) {
    for extent in engine.space().existing(from, end) {
        let pages = extent.clip(from, end);
        for index in pages.indices() {
            let mut backoff = Backoff::new();
            while extent.entry(index) != Entry::RESIDENT {
                let Some(target) = steps.lead(first, extent.page_addr(index)) else {
                    engine.forget_page(extent, index);
                    break;
                };
                match restorer.restore_elsewhere(extent, index, target) {
                    Outcome::Done { .. } | Outcome::Resident => break,
                    // The kernel holds restores back until the thread that moved the mapping has run again, and from when one
                    // begins to move it further until its report is read.
                    Outcome::TryAgain => read_on(engine, kernel, steps, &mut backoff),
                    Outcome::InOtherHands => backoff.wait(),
                    Outcome::Pending => {
                        let page = extent.page_addr(index);
                        let fetched = engine
                            .below()
                            .is_none_or(|below| below.ask(Asker::Fault, page, &mut restorer.arrived));
                        if !fetched {
                            read_on(engine, kernel, steps, &mut backoff);
                        }
                    }
                    // It may have been moved further just now, and the report is not read yet: the kernel looks for the mapping first.
                    Outcome::Gone if kernel.uffd.is_changing() => {
                        read_on(engine, kernel, steps, &mut backoff)
                    }
                    // Another mapping than anonymous memory was put there.
                    Outcome::Gone => engine.forget_page(extent, index),
                }
            }
        }
        engine.forget_mapping(extent, &pages.set());
    }
    // Where nobody tells of mappings, what lies there now will be found.
    if !engine.traffic.goes_by_reports() {
        for (to, len) in steps.targets(first, from, end - from) {
            engine.mapped_and_left_alone(to, len);
        }
    }
    kernel.uffd.wake(from, end - from);
    kernel.uffd.wake(to, end - from);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::forking::tests::engine;
    use crate::changes::mappings::First;
    use memfold_sys::{mem, EXTENT_SIZE};

    #[test]
    fn a_change_that_is_over_when_its_report_is_looked_at_was_announced_and_others_were_not() {
        let engine = engine();
        let base = mem::reserve_aligned(EXTENT_SIZE, EXTENT_SIZE).unwrap();
        engine.mapped(base, EXTENT_SIZE);
        engine.tell_young(Bounds::of(base, EXTENT_SIZE));
        let (turns, end) = (&engine.traffic.turns, base + 4 * PAGE_SIZE);
        // Its report is read while it is made.
        let reads = || {
            turns.begin_read();
            Ok(())
        };
        engine.drop_contents(base, 4 * PAGE_SIZE, reads).unwrap();
        assert!(prepared(engine, base, end));
        assert!(!prepared(engine, base, end + PAGE_SIZE), "more than was announced");
        // From here on pages may have been evicted.
        turns.serve_touch();
        turns.leave_touch();
        assert!(!prepared(engine, base, end), "a report that is read later");
        turns.end_read();
        engine.drop_contents(base, 4 * PAGE_SIZE, || Ok(())).unwrap();
        turns.begin_read();
        assert!(!prepared(engine, base, end), "one that was over before anything was read");
        turns.end_read();
        // What does not drop anything leaves what is evicted where it is.
        let range = [Bounds::of(base, 4 * PAGE_SIZE)];
        engine.change(&range, First::Nothing, reads, |_, _, _| ()).unwrap();
        assert!(!prepared(engine, base, end));
        turns.end_read();
    }
}
