//! Mappings that were changed past libc: by a system call of the program's own making.
//!
//! The library sees `munmap`, `madvise` and `mremap` before they happen and prepares for them
//! ([`crate::changes::mappings`]); the kernel reports the same calls too, and the thread that made one sleeps until
//! the report is read. A report of something that the library did not prepare is acted on here: what was
//! evicted in the range is dropped or moved along, and the range is never evicted from again, because the
//! library cannot tell when the next such call comes.
//!
//! The thread that made the call goes on as soon as the report is read; what that means for others that move pages, see
//! [`crate::turns`].
//!
//! Memory that was moved is followed page by page. Its thread may do more to it meanwhile, by calls whose reports are read on the way:
//! they are kept in order, as [`Steps`], and each page goes where they lead it.
//!
//! Fault thread only. It may wait for the background thread, which never waits for it.

use crate::engine::Engine;
use crate::fault::restore::{Outcome, Restorer};
use crate::kernel::Kernel;
use crate::retry::patiently;
use crate::sabotage::{fault_point, linger, planted, Bug};
use crate::tables::bounds::Bounds;
use crate::tables::entry::Entry;
use crate::tier::below::Asker;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::Backoff;
use memfold_sys::uffd::{self, Event};
use memfold_sys::{Result, PAGE_SIZE};

/// Reads the next message; `EAGAIN` if there is none. In the fault thread's turn.
pub fn read(engine: &Engine, kernel: &Kernel) -> Result<Event> {
    engine.traffic.turns.wait_for_movers(|| uffd::touch_waits(&kernel.uffd_info));
    kernel.uffd.read().map(|message| message.event())
}

/// Most reports that are read while one `mremap` is being followed.
const MOST_STEPS: usize = 64;
/// Most `mremap`s that are being followed, each begun while the one before was.
const MOST_FOLLOWED: usize = 16;

/// What became of ranges since the first of the `mremap`s that are being followed was reported, in order.
pub struct Steps {
    steps: [Step; MOST_STEPS],
    count: usize,
    /// From where the memory came that is being followed.
    followed: [(usize, usize); MOST_FOLLOWED],
    depth: usize,
}

/// A range was moved, or, to nowhere, dropped.
#[derive(Clone, Copy)]
struct Step {
    from: usize,
    len: usize,
    to: Option<usize>,
    /// It was unmapped, not only its contents dropped.
    unmapped: bool,
}

impl Step {
    fn is_of(&self, addr: usize) -> bool {
        (self.from..self.from + self.len).contains(&addr)
    }

    fn is_to(&self, addr: usize) -> bool {
        self.to.is_some_and(|to| (to..to + self.len).contains(&addr))
    }
}

impl Steps {
    /// Nothing is being followed.
    pub const fn new() -> Steps {
        let none = Step { from: 0, len: 0, to: None, unmapped: false };
        Steps { steps: [none; MOST_STEPS], count: 0, followed: [(0, 0); MOST_FOLLOWED], depth: 0 }
    }

    /// Where a page at `addr` is after the steps from number `since` on, unless nothing is mapped there any more; `None` if it was dropped.
    ///
    /// A thread that unmaps reports it a moment after the kernel has done so. Another may have moved memory to the place by then, and
    /// have reported that before. So a page is taken for unmapped only when something else was moved there after it; if it was,
    /// without that, it cannot be brought back there.
    fn lead(&self, since: usize, addr: usize) -> Option<usize> {
        self.lead_before(since, self.count, addr)
    }

    fn lead_before(&self, since: usize, end: usize, addr: usize) -> Option<usize> {
        (since..end).try_fold(addr, |at, number| {
            let step = &self.steps[number];
            match step.to {
                _ if !step.is_of(at) => Some(at),
                Some(to) => Some(at - step.from + to),
                None if fault_point!(LateReportBelieved: step.unmapped, else false) => {
                    (!self.is_taken_after(number, at)).then_some(at)
                }
                None => None,
            }
        })
    }

    /// Whether something was moved to the address after a step, before anything was moved away from there.
    fn is_taken_after(&self, step: usize, addr: usize) -> bool {
        let mut moves = self.steps[step + 1..self.count].iter().filter(|step| step.to.is_some());
        moves.find(|step| step.is_of(addr) || step.is_to(addr)).is_some_and(|step| !step.is_of(addr))
    }

    /// Whether the step moved a page of the range that was followed since step `since`.
    fn concerns(&self, step: usize, since: usize, from: usize, len: usize) -> bool {
        let led = |addr| self.lead_before(since, step, addr).is_some_and(|at| self.steps[step].is_of(at));
        step == since || (from..from + len).step_by(PAGE_SIZE).any(led)
    }

    /// Keeps what a report says, for as long as memory is being followed. Whether there was room.
    fn keep(&mut self, event: Event) -> bool {
        let (from, len, to) = match event {
            Event::Remap { from, to, len } => (from, len, Some(to)),
            Event::Remove { start, end } | Event::Unmap { start, end } => (start, end - start, None),
            Event::Fault { .. } | Event::Unknown(_) => return true,
        };
        if self.depth == 0 {
            return true;
        }
        let Some(step) = self.steps.get_mut(self.count) else { return false };
        *step = Step { from, len, to, unmapped: matches!(event, Event::Unmap { .. }) };
        self.count += 1;
        true
    }

    /// The memory of a range that was reported as moved is being followed from now on. Returns the number of the step that moved it.
    fn begin(&mut self, from: usize, to: usize, len: usize) -> Option<usize> {
        *self.followed.get_mut(self.depth)? = (from, from + len);
        self.depth += 1;
        if self.depth == 1 {
            self.count = 0;
            self.keep(Event::Remap { from, to, len });
        }
        // That of another was kept when it was read.
        Some(self.count - 1)
    }

    fn end(&mut self) {
        self.depth -= 1;
    }

    /// Whether the range is where memory came from that is being followed: that the kernel unmaps it then is no news.
    fn was_left(&self, start: usize, end: usize) -> bool {
        self.followed[..self.depth].iter().any(|&(from, to)| from <= start && end <= to)
    }
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
    if fault_point!(StepNotFollowed: !steps.keep(event), else false) {
        engine.fail_hard("memfold: too many mappings were changed while an mremap was being followed");
    }
    match event {
        Event::Unmap { start, end } if steps.was_left(start, end) => {}
        Event::Remove { start, end } | Event::Unmap { start, end } => {
            if !prepared(engine, start, end) {
                engine.traffic.note_change_past_libc(false);
                engine.traffic.brake.hold();
                forget(engine, start, end, matches!(event, Event::Unmap { .. }));
                engine.traffic.brake.let_go();
                kernel.uffd.wake(start, end - start);
            }
        }
        Event::Remap { from, to, len } => {
            if !prepared(engine, from, from + len) {
                engine.traffic.note_change_past_libc(true);
                engine.traffic.brake.hold();
                move_along(engine, kernel, steps, Bounds { start: from, end: from + len }, to);
                engine.traffic.brake.let_go();
                kernel.uffd.wake(from, len);
                kernel.uffd.wake(to, len);
            }
        }
        Event::Fault { .. } | Event::Unknown(_) => {}
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
    engine.space().existing(start, end).all(|extent| {
        let pages = extent.clip(start, end);
        extent.is_changing_all(pages)
            // Nothing is away, and nothing will be.
            || extent.away.load(SeqCst) == 0 && extent.managed.load().and(&pages.set()).is_empty()
    })
}

/// Drops what was evicted in the range, and manages it no more.
fn forget(engine: &Engine, start: usize, end: usize, unmapped: bool) {
    for extent in engine.space().existing(start, end) {
        let pages = extent.clip(start, end);
        engine.forget_pages(extent, pages);
        let pages = pages.set();
        if unmapped {
            engine.forget_mapping(extent, &pages);
        } else {
            engine.leave_alone(extent, &pages);
        }
    }
}

/// What was evicted at `from` belongs to `to` now. It is brought back there at once, from a copy of its own.
fn move_along(engine: &'static Engine, kernel: &'static Kernel, steps: &mut Steps, from: Bounds, to: usize) {
    let Ok(mut restorer) = patiently(|| Restorer::new(engine, kernel)) else {
        engine.fail_hard("memfold: no memory to follow an mremap")
    };
    let len = from.end - from.start;
    let Some(first) = steps.begin(from.start, to, len) else {
        engine.fail_hard("memfold: too many mremaps at once to follow them")
    };
    for extent in engine.space().existing(from.start, from.end) {
        let pages = extent.clip(from.start, from.end);
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
                    // Another mapping than anonymous memory was put there.
                    Outcome::Gone => engine.forget_page(extent, index),
                }
            }
        }
        engine.forget_mapping(extent, &pages.set());
    }
    if let Some(below) = engine.below() {
        // It has the restorer's memory.
        below.end_ask(Asker::Fault);
    }
    for step in (first..steps.count).filter(|&step| steps.concerns(step, first, from.start, len)) {
        let Step { to, len, .. } = steps.steps[step];
        if let Some(to) = to {
            engine.mapped_and_left_alone(to, len);
        }
    }
    steps.end();
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 8 * PAGE_SIZE;
    const A: usize = 1 << 30;
    const B: usize = 2 << 30;
    const C: usize = 3 << 30;
    const D: usize = 4 << 30;

    fn moved(from: usize, to: usize) -> Event {
        Event::Remap { from, to, len: LEN }
    }

    fn unmapped(start: usize) -> Event {
        Event::Unmap { start, end: start + LEN }
    }

    /// Where the third page of what is moved from `A` to `B` is after the reports that follow.
    fn led(reports: &[Event]) -> Option<usize> {
        // Otherwise an engine does it.
        crate::sabotage::choose(None);
        let mut steps = Steps::new();
        let first = steps.begin(A, B, LEN).unwrap();
        assert!(reports.iter().all(|report| steps.keep(*report)));
        steps.lead(first, A + 2 * PAGE_SIZE)
    }

    fn third(of: usize) -> Option<usize> {
        Some(of + 2 * PAGE_SIZE)
    }

    #[test]
    fn a_page_is_led_wherever_its_memory_was_moved_until_it_is_dropped() {
        assert_eq!(led(&[]), third(B));
        assert_eq!(led(&[unmapped(A), moved(B, C), unmapped(B), moved(C, D)]), third(D));
        assert_eq!(led(&[moved(B, A), unmapped(B)]), third(A));
        assert_eq!(led(&[moved(C, D), unmapped(C)]), third(B));
        let dropped = Event::Remove { start: B, end: B + 3 * PAGE_SIZE };
        assert_eq!(led(&[dropped]), None);
        assert_eq!(led(&[moved(B, C), dropped]), third(C));
    }

    #[test]
    fn what_was_unmapped_before_memory_was_moved_there_may_be_reported_after_it() {
        assert_eq!(led(&[unmapped(B)]), third(B));
        assert_eq!(led(&[unmapped(B), moved(B, C)]), third(C));
        assert_eq!(led(&[unmapped(B), moved(B, C), moved(D, B)]), third(C));
        assert_eq!(led(&[unmapped(B), moved(D, B)]), None);
        assert_eq!(led(&[unmapped(B), moved(D, B), moved(B, C)]), None);
    }
}
