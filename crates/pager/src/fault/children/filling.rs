//! Giving children what they are owed.
//!
//! A child may change its mappings meanwhile, and is reported to do so at its own userfaultfd. What it drops is owed no more; what it moves it gets at
//! once, where it is then.

use super::Children;
use crate::engine::{Agent, Engine};
use crate::fault::restore::{Peek, Restorer};
use crate::fault::steps::{Followed, Steps};
use crate::kernel::Kernel;
use crate::retry::patiently;
use crate::sabotage::fault_point;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::extent::Extent;
use crate::tier::below::Asker;
use core::sync::atomic::Ordering::*;
use memfold_sys::thread::{self, Backoff};
use memfold_sys::time::{sleep, Nanos};
use memfold_sys::uffd::{Event, Userfaultfd};
use memfold_sys::{mem, Errno, Result, PAGE_SIZE};

/// The last words of a program whose child cannot be given what is its own.
const NO_MEMORY: &str =
    "memfold: no memory to give a forked child what is its own; the program must not go on";
/// Most children that are owed anything at the same time. When one more is forked, the oldest gets all of it first.
const MOST: usize = 32;
/// Pages given before the parent's messages are looked at: some 0.2 ms.
const AT_ONCE: usize = 24;
/// Pages given with one that a child waits for.
const WINDOW: usize = 8;

/// What is being worked on; in memory of its own.
pub(super) struct Work {
    engine: &'static Engine,
    restorer: Restorer,
    children: [Option<Child>; MOST],
}

/// A child.
struct Child {
    uffd: Userfaultfd,
    /// What it is owed, by ascending addresses, in memory of its own.
    owed: *mut Owed,
    extents: usize,
    /// Before this one nothing is owed any more.
    next: usize,
    /// It has moved memory: where it touches a page is not where that was in its parent.
    moved: bool,
    /// It has ended, or executes another program.
    gone: bool,
    steps: Steps,
}

/// What is owed of one extent.
#[derive(Clone, Copy)]
struct Owed {
    extent: &'static Extent,
    pages: PageSet,
}

impl Children {
    #[allow(clippy::mut_from_ref)]
    fn work(&self) -> Option<&mut Work> {
        // SAFETY: the fault thread alone comes here, by one function after the other: none of them keeps a reference while another is called. It is unmapped by
        // `go_on` alone.
        unsafe { (self.work.load(Relaxed) as *mut Work).as_mut() }
    }

    /// A child was forked, and this is the number of its userfaultfd. `steps` is what the parent is being followed by.
    // Never a part of its caller, which calls itself, and would have room for children on the stack each time.
    #[inline(never)]
    pub fn begin(&self, engine: &'static Engine, kernel: &'static Kernel, steps: &Steps, number: i32) {
        // SAFETY: the number was just reported.
        let uffd = unsafe { Userfaultfd::handed_over(number) };
        fault_point!(ChildNotFilled: (), else return);
        // Whatever is under way is over then, and the tables say what is away.
        engine.traffic.brake.hold();
        engine.helpers.wait_for_work();
        self.alone.store(1, SeqCst);
        if let Some(below) = engine.below() {
            below.wait_for_restore();
        }
        let away = |extent: &&Extent| extent.away.load(SeqCst) != 0;
        let count = engine.space().all().filter(away).count();
        if count == 0 {
            self.alone.store(self.are_owed().into(), SeqCst);
            engine.traffic.brake.let_go();
            return;
        }
        let begun = self.work().is_some() || {
            // Until nothing is owed any more.
            engine.traffic.brake.hold();
            let made = patiently(|| {
                let block = mem::map_own(size_of::<Work>(), 0)? as *mut Work;
                let restorer = Restorer::new(engine, kernel)?;
                // Part by part, as there is no room for all of it on the stack.
                // SAFETY: a block of its own, as long as that.
                unsafe {
                    (&raw mut (*block).engine).write(engine);
                    (&raw mut (*block).restorer).write(restorer);
                    (0..MOST).for_each(|place| (&raw mut (*block).children[place]).write(None));
                }
                Ok(block)
            });
            made.map(|block| self.work.store(block as *mut (), Relaxed)).is_ok()
        };
        let child = begun.then(|| Child::new(uffd, count)).flatten();
        let (Some(mut child), Some(work)) = (child, self.work()) else { engine.fail_hard(NO_MEMORY) };
        for (place, extent) in (0..count).zip(engine.space().all().filter(away)) {
            let pages = extent.away_pages();
            // SAFETY: there are so many.
            unsafe { child.owed.add(place).write(Owed { extent, pages }) };
        }
        child.owed().sort_unstable_by_key(|owed| owed.extent.base());
        // What is being followed is no more where the tables have it, in the child neither.
        if child.steps.copy_from(steps).is_err() {
            engine.fail_hard(NO_MEMORY);
        }
        work.settle(&mut child);
        work.enter(child);
        engine.traffic.brake.let_go();
    }

    /// The pages are about to come back in the parent, from `src`.
    pub fn give(&self, extent: &Extent, pages: PageRange, src: usize) {
        fault_point!(ChildForgotten: (), else return);
        let Some(work) = self.work() else { return };
        if work.engine.tid(Agent::Fault) != Some(thread::current_tid()) {
            work.engine.fail_hard(
                "memfold: a page came back that a forked child is owed; the program must not go on",
            );
        }
        let (start, end) = (extent.page_addr(pages.lo), extent.page_addr(pages.hi));
        work.for_each_that_is_owed(start, end, |work, child| {
            let Some(place) = child.place_of(extent.base()) else { return };
            // What is owed no more is passed over.
            for index in pages.indices() {
                work.give_at(child, place, index, None, Some(src + (index - pages.lo) * PAGE_SIZE));
            }
        });
    }

    /// The parent has changed mappings, and what is away there is about to be dropped, or moved along.
    pub fn give_all_of(&self, event: Event) {
        let Some(work) = self.work() else { return };
        let (start, end) = match event {
            Event::Remap { from, len, .. } => (from, from + len),
            Event::Remove { start, end } | Event::Unmap { start, end } => (start, end),
            Event::Fault { .. } | Event::Fork { .. } | Event::Unknown(_) => return,
        };
        work.for_each_that_is_owed(start, end, |work, child| work.give_range(child, start, end, None));
    }

    /// Gives some of what is owed. While [`Children::are_owed`] says so.
    pub fn go_on(&self, engine: &'static Engine) {
        let Some(work) = self.work() else { return };
        for number in 0..MOST {
            work.with(number, Work::give_some);
        }
        if work.children.iter().all(Option::is_none) {
            let block = self.work.swap(core::ptr::null_mut(), Relaxed) as *mut Work;
            // SAFETY: nobody has it any more.
            unsafe {
                core::ptr::drop_in_place(block);
                let _ = mem::munmap(block as usize, size_of::<Work>());
            }
            self.alone.store(0, SeqCst);
            engine.traffic.brake.let_go();
        }
    }
}

impl Child {
    fn new(uffd: Userfaultfd, extents: usize) -> Option<Child> {
        let owed = patiently(|| mem::map_own(extents * size_of::<Owed>(), 0)).ok()?;
        let owed = owed as *mut Owed;
        Some(Child { uffd, owed, extents, next: 0, moved: false, gone: false, steps: Steps::new() })
    }

    /// What it is owed.
    fn owed(&mut self) -> &mut [Owed] {
        // SAFETY: memory of its own with so many in it.
        unsafe { core::slice::from_raw_parts_mut(self.owed, self.extents) }
    }

    fn place_of(&mut self, base: usize) -> Option<usize> {
        self.owed().binary_search_by_key(&base, |owed| owed.extent.base()).ok()
    }

    /// Nothing of the range is owed any more, but for what belongs to memory that came from there and is being followed.
    fn forget(&mut self, start: usize, end: usize) {
        for place in 0..self.extents {
            let Owed { extent, pages } = self.owed()[place];
            let gone = extent.clip(start, end).set();
            let own = fault_point!(OwedForgotten: self.steps.own(extent.base(), gone), else gone);
            self.owed()[place].pages = pages.minus(&own);
        }
    }

    fn is_owed(&mut self, start: usize, end: usize) -> bool {
        let of_range = |owed: &Owed| !owed.pages.and(&owed.extent.clip(start, end).set()).is_empty();
        self.owed().iter().any(of_range)
    }

    fn is_done(&mut self) -> bool {
        let next = self.next;
        let left = self.owed()[next..].iter().position(|owed| !owed.pages.is_empty());
        self.next = left.map_or(self.extents, |left| next + left);
        self.gone || left.is_none()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: memory of its own, which nobody else has. What the userfaultfd has registered the kernel lets go when that is closed.
        let _ = unsafe { mem::munmap(self.owed as usize, self.extents * size_of::<Owed>()) };
    }
}

impl Work {
    /// Does something for a child, and lets it go when nothing is owed to it any more.
    fn with(&mut self, number: usize, what: impl FnOnce(&mut Work, &mut Child)) {
        let Some(mut child) = self.children[number].take() else { return };
        what(self, &mut child);
        if !child.is_done() {
            // A child of its own may have taken its place.
            self.enter(child);
        }
    }

    /// Does something for each child that is owed anything of the range, until none is. A child may fork meanwhile, and its child is owed the same.
    fn for_each_that_is_owed(&mut self, start: usize, end: usize, what: impl Fn(&mut Work, &mut Child)) {
        let is_owed =
            |child: &mut Option<Child>| child.as_mut().is_some_and(|child| child.is_owed(start, end));
        while let Some(number) = self.children.iter_mut().position(is_owed) {
            self.with(number, &what);
        }
    }

    /// Takes a child in.
    fn enter(&mut self, child: Child) {
        loop {
            if let Some(place) = self.children.iter_mut().find(|place| place.is_none()) {
                *place = Some(child);
                return;
            }
            for number in 0..MOST {
                self.with(number, Work::give_some);
            }
        }
    }

    /// Gives a new child what is being followed.
    fn settle(&mut self, child: &mut Child) {
        let mut number = 0;
        while let Some(&Followed { from, end, since, .. }) = child.steps.followed().get(number) {
            child.moved = true;
            self.give_range(child, from, end, Some(since));
            number += 1;
        }
        child.steps = Steps::new();
    }

    /// Looks at what the child reports, and gives it some of what is owed.
    fn give_some(&mut self, child: &mut Child) {
        self.hear(child, false);
        let mut left = AT_ONCE;
        while left > 0 && !child.is_done() {
            let place = child.next;
            let Some(index) = child.owed()[place].pages.pages().next() else { continue };
            self.give_at(child, place, index, None, None);
            left -= 1;
        }
    }

    /// Gives what is owed of a range, by the steps from number `since` on.
    fn give_range(&mut self, child: &mut Child, start: usize, end: usize, since: Option<usize>) {
        for place in 0..child.extents {
            let owed = child.owed()[place];
            let pages = owed.extent.clip(start, end).set().and(&owed.pages);
            for index in pages.pages() {
                self.give_at(child, place, index, since, None);
            }
        }
    }

    /// Gives a page, from `src` or from where it is, and owes it no more.
    fn give_at(
        &mut self,
        child: &mut Child,
        place: usize,
        index: usize,
        since: Option<usize>,
        src: Option<usize>,
    ) {
        let extent = child.owed()[place].extent;
        let mut backoff = Backoff::new();
        loop {
            if child.gone || !child.owed()[place].pages.contains(index) {
                return;
            }
            let page = extent.page_addr(index);
            let Some(target) = since.map_or(Some(page), |since| child.steps.lead(since, page)) else { break };
            // Anew each time: what follows may use the restorer's memory.
            let from = match src.map_or_else(|| self.restorer.peek(extent, index), Peek::At) {
                Peek::At(from) => from,
                Peek::Below => {
                    fault_point!(OwedNotFetched: self.engine.fetch(Asker::Fault, page, &mut self.restorer.arrived), else break);
                    continue;
                }
                Peek::Unreadable => self.engine.fail_hard(
                    "memfold: a page that a forked child is owed cannot be read; the program must not go on",
                ),
            };
            // SAFETY: the bytes are those that the page had when the child was forked, and it has not dropped them since.
            match unsafe { child.uffd.copy(target, from, PAGE_SIZE) }.error {
                None | Some(Errno::EEXIST) => {
                    child.uffd.wake(target, PAGE_SIZE);
                    break;
                }
                // It is changing a mapping, and the report is to be read first, or the thread that does it to go on.
                Some(Errno::EAGAIN) => {
                    if !self.hear(child, true) {
                        backoff.wait();
                    }
                }
                Some(Errno::ENOMEM) => sleep(Nanos::from_millis(1)),
                Some(Errno(libc::ESRCH)) => {
                    child.gone = true;
                    return;
                }
                // It may have moved the mapping just now, and the report is not read yet: the kernel looks for the mapping first.
                Some(_) if child.uffd.is_changing() => {
                    if !self.hear(child, true) {
                        backoff.wait();
                    }
                }
                // Nothing of the parent's is mapped there any more.
                Some(_) => break,
            }
        }
        let owed = &mut child.owed()[place];
        owed.pages = owed.pages.minus(&PageRange::one(index).set());
    }

    /// Acts on what the child reports; whether there was anything. `nested` where that is in the midst of giving it a page.
    fn hear(&mut self, child: &mut Child, nested: bool) -> bool {
        let mut heard = false;
        while let Ok(message) = child.uffd.read() {
            heard = true;
            match message.event() {
                // It touches the page again, and the message comes again.
                Event::Fault { page, .. } if nested => child.uffd.wake(page, PAGE_SIZE),
                Event::Fault { page, .. } => self.serve(child, page),
                event @ (Event::Remove { start, end } | Event::Unmap { start, end }) => {
                    self.keep(child, event);
                    // That the kernel unmaps where memory came from that is being followed is no news.
                    if !(matches!(event, Event::Unmap { .. }) && child.steps.was_left(start, end)) {
                        child.forget(start, end);
                    }
                }
                event @ Event::Remap { from, to, len } => {
                    self.keep(child, event);
                    self.follow(child, from, to, len);
                }
                Event::Fork { child: number } => self.fork(child, number),
                Event::Unknown(_) => {}
            }
        }
        heard
    }

    fn keep(&self, child: &mut Child, event: Event) {
        if child.steps.keep(event).is_err() {
            self.engine.fail_hard(NO_MEMORY);
        }
    }

    /// The child waits for a page.
    fn serve(&mut self, child: &mut Child, page: usize) {
        if child.moved {
            // Where it was is not known. It comes by and by.
            return;
        }
        let extent = self.engine.space().find(page);
        if let Some(place) = extent.and_then(|extent| child.place_of(extent.base())) {
            let extent = child.owed()[place].extent;
            let index = (page - extent.base()) / PAGE_SIZE;
            if child.owed()[place].pages.contains(index) {
                for index in PageRange::from(index, WINDOW).indices() {
                    self.give_at(child, place, index, None, None);
                }
                return;
            }
        }
        // It was never there, or has been dropped since.
        child.uffd.zero(page, PAGE_SIZE);
        child.uffd.wake(page, PAGE_SIZE);
    }

    /// The child has moved memory.
    fn follow(&mut self, child: &mut Child, from: usize, to: usize, len: usize) {
        child.moved = true;
        // What was there is gone.
        child.forget(to, to + len);
        let before = child.steps.followed().len();
        let Ok(first) = child.steps.begin(from, to, len) else { self.engine.fail_hard(NO_MEMORY) };
        self.give_range(child, from, from + len, Some(first));
        child.steps.end(before);
    }

    /// The child has forked a child, which is owed what it is owed itself.
    fn fork(&mut self, child: &mut Child, number: i32) {
        // SAFETY: the number was just reported.
        let uffd = unsafe { Userfaultfd::handed_over(number) };
        let Some(mut other) = Child::new(uffd, child.extents) else { self.engine.fail_hard(NO_MEMORY) };
        if other.owed_from(child).is_err() {
            self.engine.fail_hard(NO_MEMORY);
        }
        self.settle(&mut other);
        self.enter(other);
    }
}

impl Child {
    /// It is owed what another one is.
    fn owed_from(&mut self, other: &mut Child) -> Result<()> {
        // SAFETY: as many, in memory of its own.
        unsafe { core::ptr::copy_nonoverlapping(other.owed, self.owed, self.extents) };
        (self.next, self.moved) = (other.next, other.moved);
        self.steps.copy_from(&other.steps)
    }
}
