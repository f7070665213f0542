//! What becomes of memory that was moved while it is being followed: by which reports its pages are led to where they are now.
//!
//! What it is not: acting on a report ([`crate::fault::events`]).

use crate::sabotage::fault_point;
use memfold_sys::uffd::Event;
use memfold_sys::PAGE_SIZE;

/// Most reports that are read while one `mremap` is being followed: a hundred threads that change their mappings all the time came to more than 64 on a busy machine.
const MOST_STEPS: usize = 128;
/// Most `mremap`s that are being followed, each begun while the one before was.
const MOST_FOLLOWED: usize = 16;

/// What became of ranges since the first of the `mremap`s that are being followed was reported, in order.
#[derive(Clone, Copy)]
pub struct Steps {
    steps: [Step; MOST_STEPS],
    count: usize,
    /// From where the memory came that is being followed, and the number of the step that moved it.
    followed: [(usize, usize, usize); MOST_FOLLOWED],
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
    /// Where a step led to, if anywhere, and how many bytes, of the steps from number `since` on that moved memory of the range that was followed since then.
    pub fn targets(
        &self,
        since: usize,
        from: usize,
        len: usize,
    ) -> impl Iterator<Item = (usize, usize)> + '_ {
        let steps = (since..self.count).filter(move |&step| self.concerns(step, since, from, len));
        steps.filter_map(|step| Some((self.steps[step].to?, self.steps[step].len)))
    }

    /// Nothing is being followed.
    pub const fn new() -> Steps {
        let none = Step { from: 0, len: 0, to: None, unmapped: false };
        Steps { steps: [none; MOST_STEPS], count: 0, followed: [(0, 0, 0); MOST_FOLLOWED], depth: 0 }
    }

    /// Where a page at `addr` is after the steps from number `since` on, unless nothing is mapped there any more; `None` if it was dropped.
    ///
    /// A thread that unmaps reports it a moment after the kernel has done so. Another may have moved memory to the place by then, and
    /// have reported that before. So a page is taken for unmapped only when something else was moved there after it; if it was,
    /// without that, it cannot be brought back there.
    pub fn lead(&self, since: usize, addr: usize) -> Option<usize> {
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

    /// Whether a step may have to do with memory that is being followed: with where it came from, or with a place that something was moved to since.
    fn matters(&self, step: &Step) -> bool {
        let mut places = (self.followed[..self.depth].iter().map(|&(from, to, _)| (from, to)))
            .chain(self.steps[..self.count].iter().filter_map(|step| Some((step.to?, step.to? + step.len))));
        let meets = |start: usize, from: usize, to: usize| start < to && from < start + step.len;
        places.any(|(from, to)| meets(step.from, from, to) || step.to.is_some_and(|at| meets(at, from, to)))
    }

    /// From where the memory came that is being followed, and the number of the step that moved it.
    pub fn followed(&self) -> &[(usize, usize, usize)] {
        &self.followed[..self.depth]
    }

    /// Keeps what a report says, for as long as memory is being followed. Whether there was room.
    pub fn keep(&mut self, event: Event) -> bool {
        let (from, len, to) = match event {
            Event::Remap { from, to, len } => (from, len, Some(to)),
            Event::Remove { start, end } | Event::Unmap { start, end } => (start, end - start, None),
            Event::Fault { .. } | Event::Fork { .. } | Event::Unknown(_) => return true,
        };
        let step = Step { from, len, to, unmapped: matches!(event, Event::Unmap { .. }) };
        if self.depth == 0 || !self.matters(&step) {
            return true;
        }
        let Some(place) = self.steps.get_mut(self.count) else { return false };
        *place = step;
        self.count += 1;
        true
    }

    /// The memory of a range that was reported as moved is being followed from now on. Returns the number of the step that moved it.
    pub fn begin(&mut self, from: usize, to: usize, len: usize) -> Option<usize> {
        *self.followed.get_mut(self.depth)? = (from, from + len, 0);
        self.depth += 1;
        if self.depth == 1 {
            self.count = 0;
        }
        // That of another was kept when it was read, if it has to do with the memory that was being followed already.
        let moved = |step: &&Step| step.from == from && step.to == Some(to);
        if self.steps[..self.count].last().filter(moved).is_none()
            && !self.keep(Event::Remap { from, to, len })
        {
            return None;
        }
        let first = self.count - 1;
        self.followed[self.depth - 1].2 = first;
        Some(first)
    }

    /// Ends [`Steps::begin`].
    pub fn end(&mut self) {
        self.depth -= 1;
    }

    /// Whether the range is where memory came from that is being followed: that the kernel unmaps it then is no news.
    pub fn was_left(&self, start: usize, end: usize) -> bool {
        self.followed().iter().any(|&(from, to, _)| from <= start && end <= to)
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
