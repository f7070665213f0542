//! The memory in a process that is mapped for the agent from outside: its plan, its code and data, and the stack of the thread that starts and ends it.
//!
//! All else the agent maps itself, and gives up itself.
//!
//! Invariants: one mapping when it is made, readable and writable, behind a page that nobody may touch; code becomes executable when it is no longer writable.
//! The plan stays the beginning of a mapping, by which it is found: whatever the program maps below it, the kernel joins nothing with it across that page.

use crate::error::Trouble;
use crate::image::{Access, Image};
use crate::memory::Memory;
use crate::stopped::Stopped;
use crate::{wait_until, Error};
use memfold_pager::plan::{Plan, Status, Task, MAGIC};
use memfold_pager::sabotage::{planted, Bug};
use memfold_sys::thread::{ADOPTED_BLOCK, FLAGS};
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

const PAGE: usize = memfold_sys::PAGE_SIZE;
/// The page below the plan.
const GUARD: usize = PAGE;
/// Where the image begins: behind the plan, and a page of zeros for the thread pointer.
const IMAGE: usize = 2 * PAGE;
/// Where the thread pointer points to in its page.
const THREAD_POINTER: usize = PAGE + PAGE / 2;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Where the plan is.
    base: usize,
    /// From there on.
    len: usize,
    /// Below it.
    guard: usize,
}

/// What there is in a process, by its plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// The process is folded.
    Folding,
    /// It could not be; memory of the agent's may be left.
    Failed,
    /// An agent that has not begun, or that has ended: memory that nobody uses.
    Remains,
}

impl State {
    /// By that plan; `None` while a thread of the agent's is at it.
    pub fn of(plan: &Plan) -> Option<State> {
        if plan.alive.load(Acquire) != 0 {
            return None;
        }
        match Status::from_u32(plan.status.load(Acquire)) {
            Status::Running => Some(State::Folding),
            Status::Failed => Some(State::Failed),
            Status::Working | Status::Ended => Some(State::Remains),
        }
    }
}

impl Region {
    /// Maps it, so that it can be found from then on. A child that is forked meanwhile does not get it.
    pub fn map(memory: &Memory, thread: &mut Stopped, image: &Image) -> Result<Region, Trouble> {
        let len = IMAGE + image.len() + ADOPTED_BLOCK;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arguments = [0, GUARD + len, access as usize, flags as usize, usize::MAX, 0];
        let guard = thread.call("mmap", libc::SYS_mmap, arguments)?;
        let region = Region { base: guard + GUARD, len, guard: GUARD };
        let begun = region.begin(memory, thread, image);
        if begun.is_err() {
            region.unmap(thread);
        }
        begun.map(|()| region)
    }

    fn begin(&self, memory: &Memory, thread: &mut Stopped, image: &Image) -> Result<(), Trouble> {
        let [start, len] = self.whole();
        let kept = [start, len, libc::MADV_DONTFORK as usize, 0, 0, 0];
        thread.call("madvise", libc::SYS_madvise, kept)?;
        if !planted(Bug::RegionJoined) {
            let guarded = [start, self.guard, libc::PROT_NONE as usize, 0, 0, 0];
            thread.call("mprotect", libc::SYS_mprotect, guarded)?;
        }
        let mut plan = Plan::new();
        plan.build = image.build();
        self.enter(&mut plan);
        memory.write(self.base, bytes_of(&plan)).map_err(|_| Trouble::Ended)
    }

    /// Has the plan say where it lies.
    fn enter(&self, plan: &mut Plan) {
        (plan.mapped, plan.guard) = ([self.base as u64, self.len as u64], self.guard as u32);
    }

    /// What is mapped for it: address and length.
    fn whole(&self) -> [usize; 2] {
        [self.base - self.guard, self.guard + self.len]
    }

    /// Puts image and plan there.
    pub fn fill(&self, memory: &Memory, image: &Image, plan: &mut Plan) -> Result<(), Error> {
        let at = self.base + IMAGE;
        memory.write(at, &image.at(at))?;
        let pointer = self.base + THREAD_POINTER;
        memory.write(pointer, &pointer.to_le_bytes())?;
        self.enter(plan);
        plan.stack = (self.base + self.len - ADOPTED_BLOCK) as u64;
        plan.entry = (at + image.entry()) as u64;
        plan.thread_pointer = pointer as u64;
        let constant = image.parts().iter().find(|&&(_, _, access)| access == Access::Read);
        plan.constant =
            constant.map_or([0; 2], |&(start, end, _)| [(at + start) as u64, (end - start) as u64]);
        memory.write(self.base, bytes_of(plan))
    }

    /// Makes code executable, and no longer writable. What is constant the agent protects itself.
    pub fn protect(&self, thread: &mut Stopped, image: &Image) -> Result<(), Trouble> {
        let access = (libc::PROT_READ | libc::PROT_EXEC) as usize;
        for &(start, end, _) in image.parts().iter().filter(|&&(_, _, access)| access == Access::Execute) {
            let at = self.base + IMAGE + start;
            thread.call("mprotect", libc::SYS_mprotect, [at, end - start, access, 0, 0, 0])?;
        }
        Ok(())
    }

    /// Makes a thread of the agent's, for a task.
    pub fn start(&self, memory: &Memory, thread: &mut Stopped, task: Task) -> Result<(), Trouble> {
        let plan = || self.plan(memory).map_err(|_| Trouble::Ended);
        let (before, mut now) = (plan()?, plan()?);
        let write = |plan: &Plan| memory.write(self.base, bytes_of(plan)).map_err(|_| Trouble::Ended);
        (now.task, now.status, now.alive) = (task as u32, 0.into(), 1.into());
        write(&now)?;
        let stack = self.base + self.len - 256;
        let alive = self.base + std::mem::offset_of!(Plan, alive);
        let arguments = [FLAGS as usize, stack, 0, alive, now.thread_pointer as usize, 0];
        let made = thread.call_at(now.entry as usize, "clone", libc::SYS_clone, arguments, self.base);
        if made.is_err() {
            let _ = write(&before);
        }
        made.map(drop)
    }

    /// Waits until no thread is at it. What there is then.
    pub fn settle(&self, memory: &Memory, patience: Duration) -> Result<State, Error> {
        let mut state = None;
        wait_until(patience, || {
            state = State::of(&self.plan(memory)?);
            Ok(state.is_some())
        })?;
        state.ok_or(Error::AgentLost(memory.pid()))
    }

    /// Takes it away. What cannot be taken away stays, and does nothing.
    pub fn unmap(&self, thread: &mut Stopped) {
        let [start, len] = self.whole();
        let _ = thread.call("munmap", libc::SYS_munmap, [start, len, 0, 0, 0, 0]);
    }

    /// That of the agent in a process, if there is one.
    pub fn find(memory: &Memory) -> Result<Option<Region>, Error> {
        let maps = memory.maps()?;
        for map in maps.iter().filter(|map| map.is_writable() && map.is_anonymous()) {
            let region = Region { base: map.start, len: 0, guard: 0 };
            let mut magic = [0; 8];
            if memory.read(region.base, &mut magic).is_err() || u64::from_le_bytes(magic) != MAGIC {
                continue;
            }
            let Plan { mapped: [base, len], guard, .. } = region.plan(memory)?;
            if base == region.base as u64 {
                // The process may have written anything there.
                let guard = if guard as usize == GUARD { GUARD } else { 0 };
                return Ok(Some(Region { len: len as usize, guard, ..region }));
            }
        }
        Ok(None)
    }

    /// The plan as it is now.
    pub fn plan(&self, memory: &Memory) -> Result<Plan, Error> {
        let mut plan = Plan::new();
        // SAFETY: a plan is plain words and bytes, of any value.
        let bytes = unsafe { std::slice::from_raw_parts_mut(&raw mut plan as *mut u8, size_of::<Plan>()) };
        memory.read(self.base, bytes)?;
        Ok(plan)
    }
}

fn bytes_of(plan: &Plan) -> &[u8] {
    // SAFETY: plain words and bytes without gaps between them that matter.
    unsafe { std::slice::from_raw_parts(plan as *const Plan as *const u8, size_of::<Plan>()) }
}
const _: () = assert!(size_of::<Plan>() <= PAGE);
