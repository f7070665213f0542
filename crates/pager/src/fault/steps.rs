//! What becomes of memory that was moved while it is being followed: by which reports its pages are led to where they are now.
//!
//! There is no limit to how many there are: a hundred threads that change their mappings all the time come to hundreds on a busy machine.
//!
//! What it is not: acting on a report ([`crate::fault::events`]).

use crate::fault::row::Row;
use crate::sabotage::fault_point;
use crate::tables::bitmap::PageSet;
use memfold_sys::uffd::Event;
use memfold_sys::{Result, PAGE_SIZE};

/// What became of ranges since the first of the `mremap`s that are being followed was reported, in order.
pub struct Steps {
    steps: Row<Step>,
    followed: Row<Followed>,
}

/// Memory that is being followed.
#[derive(Clone, Copy, Debug)]
pub struct Followed {
    /// From where it came.
    pub from: usize,
    /// Where that ends.
    pub end: usize,
    /// Where it was moved to first.
    pub to: usize,
    /// The number of the step that moved it.
    pub since: usize,
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
    /// Where a step led to, if anywhere, and how many bytes, of the steps from number `since` on that moved memory of the range that was followed since then.
    pub fn targets(
        &self,
        since: usize,
        from: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, usize)> + '_ {
        let steps = (since..self.steps.len()).filter(move |&step| self.concerns(step, since, from, len));
        steps.filter_map(|step| Some((self.steps[step].to?, self.steps[step].len)))
    }

    /// Nothing is being followed.
    pub const fn new() -> Steps {
        Steps { steps: Row::new(), followed: Row::new() }
    }

    /// The same as others.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn copy_from(&mut self, other: &Steps) -> Result<()> {
        self.followed.copy_from(&other.followed)?;
        self.steps.copy_from(&other.steps)
    }

    /// Where a page at `addr` is after the steps from number `since` on, unless nothing is mapped there any more; `None` if it was dropped.
    ///
    /// A thread that unmaps reports it a moment after the kernel has done so. Another may have moved memory to the place by then, and
    /// have reported that before. So a page is taken for unmapped only when something else was moved there after it; if it was,
    /// without that, it cannot be brought back there.
    pub fn lead(&self, since: usize, addr: usize) -> Option<usize> {
        self.lead_before(since, self.steps.len(), addr)
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
        let mut moves = self.steps[step + 1..].iter().filter(|step| step.to.is_some());
        moves.find(|step| step.is_of(addr) || step.is_to(addr)).is_some_and(|step| !step.is_of(addr))
    }

    /// Whether the step moved a page of the range that was followed since step `since`.
    fn concerns(&self, step: usize, since: usize, from: usize, len: usize) -> bool {
        let led = |addr| self.lead_before(since, step, addr).is_some_and(|at| self.steps[step].is_of(at));
        step == since || (from..from + len).step_by(PAGE_SIZE).any(led)
    }

    /// Whether a step may have to do with memory that is being followed: with where it came from, or with a place that something was moved to since.
    fn matters(&self, step: &Step) -> bool {
        let mut places = (self.followed.iter().map(|followed| (followed.from, followed.end)))
            .chain(self.steps.iter().filter_map(|step| Some((step.to?, step.to? + step.len))));
        let meets = |start: usize, from: usize, to: usize| start < to && from < start + step.len;
        places.any(|(from, to)| meets(step.from, from, to) || step.to.is_some_and(|at| meets(at, from, to)))
    }

    /// What is being followed, in the order in which it was reported.
    pub fn followed(&self) -> &[Followed] {
        &self.followed
    }

    /// Keeps what a report says, for as long as memory is being followed.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn keep(&mut self, event: Event) -> Result<()> {
        let (from, len, to) = match event {
            Event::Remap { from, to, len } => (from, len, Some(to)),
            Event::Remove { start, end } | Event::Unmap { start, end } => (start, end - start, None),
            Event::Fault { .. } | Event::Fork { .. } | Event::Unknown(_) => return Ok(()),
        };
        let step = Step { from, len, to, unmapped: matches!(event, Event::Unmap { .. }) };
        if self.followed.is_empty() || !self.matters(&step) {
            return Ok(());
        }
        self.steps.push(step)
    }

    /// The memory of a range that was reported as moved is being followed from now on. Returns the number of the step that moved it.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn begin(&mut self, from: usize, to: usize, len: usize) -> Result<usize> {
        if self.followed.is_empty() {
            self.steps.cut(0);
        }
        // That of another was kept when it was read, if it has to do with the memory that was being followed already.
        let moved = |step: &&Step| step.from == from && step.to == Some(to);
        if self.steps.last().filter(moved).is_none() {
            self.steps.push(Step { from, len, to: Some(to), unmapped: false })?;
        }
        let since = self.steps.len() - 1;
        self.followed.push(Followed { from, end: from + len, to, since })?;
        Ok(since)
    }

    /// Of what is being followed the first `many` still are.
    pub fn end(&mut self, many: usize) {
        self.followed.cut(many);
    }

    /// Whether the range is where memory came from that is being followed: that the kernel unmaps it then is no news, and what is away there is that memory's.
    pub fn was_left(&self, start: usize, end: usize) -> bool {
        self.followed().iter().any(|followed| followed.from <= start && end <= followed.end)
    }

    /// Of these pages of the extent at `base` those of which what is away belongs to what lies there, and not to memory that came from there.
    pub fn own(&self, base: usize, pages: PageSet) -> PageSet {
        if self.followed.is_empty() {
            return pages;
        }
        let left = |page: usize| self.was_left(base + page * PAGE_SIZE, base + (page + 1) * PAGE_SIZE);
        PageSet::of(|page| pages.contains(page) && !left(page))
    }
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
        reports.iter().for_each(|report| steps.keep(*report).unwrap());
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

    #[test]
    fn there_is_no_end_to_what_can_be_followed() {
        crate::sabotage::choose(None);
        let mut steps = Steps::new();
        let first = steps.begin(A, B, LEN).unwrap();
        for _ in 0..500 {
            for (from, to) in [(B, C), (C, B)] {
                steps.keep(moved(from, to)).unwrap();
                steps.begin(from, to, LEN).unwrap();
            }
        }
        assert_eq!((steps.lead(first, A), steps.followed().len()), (Some(B), 1001));
        let mut others = Steps::new();
        others.copy_from(&steps).unwrap();
        others.keep(moved(B, D)).unwrap();
        assert_eq!((others.lead(first, A), steps.lead(first, A)), (Some(D), Some(B)));
        steps.end(0);
        assert!(!steps.was_left(A, A + LEN));
    }
}
