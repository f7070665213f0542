//! The memory in a process that is mapped for the agent from outside: its plan, its code and data, and the stack of the thread that starts and ends it.
//!
//! All else the agent maps itself, and gives up itself.
//!
//! Invariants: one mapping when it is made, readable and writable; code becomes executable when it is no longer writable.

use crate::image::{Access, Image};
use crate::stopped::Stopped;
use crate::{memory, wait_until, Error, Target};
use memfold_pager::plan::{Plan, Status, MAGIC};
use memfold_sys::thread::{ADOPTED_BLOCK, FLAGS};
use std::sync::atomic::Ordering::Acquire;
use std::time::Duration;

const PAGE: usize = memfold_sys::PAGE_SIZE;
/// Where the image begins: behind the plan, and a page of zeros for the thread pointer.
const IMAGE: usize = 2 * PAGE;
/// Where the thread pointer points to in its page.
const THREAD_POINTER: usize = PAGE + PAGE / 2;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    base: usize,
    len: usize,
}

impl Region {
    /// Maps it.
    pub fn map(thread: &mut Stopped, image: &Image) -> Result<Region, Error> {
        let len = IMAGE + image.len() + ADOPTED_BLOCK;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let base =
            thread.call("mmap", libc::SYS_mmap, [0, len, access as usize, flags as usize, usize::MAX, 0])?;
        Ok(Region { base, len })
    }

    /// Puts image and plan there.
    pub fn fill(&self, target: &Target, image: &Image, plan: &mut Plan) -> Result<(), Error> {
        let at = self.base + IMAGE;
        memory::write(target.pid(), at, &image.at(at))?;
        let pointer = self.base + THREAD_POINTER;
        memory::write(target.pid(), pointer, &pointer.to_le_bytes())?;
        plan.mapped = [self.base as u64, self.len as u64];
        plan.stack = (self.base + self.len - ADOPTED_BLOCK) as u64;
        plan.entry = (at + image.entry()) as u64;
        plan.thread_pointer = pointer as u64;
        let constant = image.parts().iter().find(|&&(_, _, access)| access == Access::Read);
        plan.constant =
            constant.map_or([0; 2], |&(start, end, _)| [(at + start) as u64, (end - start) as u64]);
        memory::write(target.pid(), self.base, bytes_of(plan))
    }

    /// Makes code executable, and no longer writable. What is constant the agent protects itself.
    pub fn protect(&self, thread: &mut Stopped, image: &Image) -> Result<(), Error> {
        let access = (libc::PROT_READ | libc::PROT_EXEC) as usize;
        for &(start, end, _) in image.parts().iter().filter(|&&(_, _, access)| access == Access::Execute) {
            let at = self.base + IMAGE + start;
            thread.call("mprotect", libc::SYS_mprotect, [at, end - start, access, 0, 0, 0])?;
        }
        Ok(())
    }

    /// Makes a thread of the agent's, for what the plan says.
    pub fn start(&self, thread: &mut Stopped, plan: &Plan) -> Result<(), Error> {
        let stack = self.base + self.len - 256;
        let alive = self.base + std::mem::offset_of!(Plan, alive);
        let arguments = [FLAGS as usize, stack, 0, alive, plan.thread_pointer as usize, 0];
        thread.call_at(plan.entry as usize, "clone", libc::SYS_clone, arguments, self.base).map(drop)
    }

    /// Waits until the thread has ended. What it says.
    pub fn wait(&self, target: &Target, patience: Duration) -> Result<Status, Error> {
        let over = wait_until(patience, || Ok(self.plan(target)?.alive.load(Acquire) == 0))?;
        if !over {
            return Err(Error::AgentLost(target.pid()));
        }
        let status = Status::from_u32(self.plan(target)?.status.load(Acquire));
        Ok(status)
    }

    /// Takes it away. What cannot be taken away stays, and does nothing.
    pub fn unmap(&self, thread: &mut Stopped) {
        let _ = thread.call("munmap", libc::SYS_munmap, [self.base, self.len, 0, 0, 0, 0]);
    }

    /// That of the agent in a process, if there is one.
    pub fn find(target: &Target) -> Result<Option<Region>, Error> {
        use procfs::process::{MMPermissions, MMapPath};
        let maps = memory::maps(target.pid())?;
        let anonymous = |path: &MMapPath| matches!(path, MMapPath::Anonymous | MMapPath::Other(_));
        for map in
            maps.iter().filter(|map| map.perms.contains(MMPermissions::WRITE) && anonymous(&map.pathname))
        {
            let region = Region { base: map.address.0 as usize, len: 0 };
            let mut magic = [0; 8];
            if memory::read(target.pid(), region.base, &mut magic).is_err()
                || u64::from_le_bytes(magic) != MAGIC
            {
                continue;
            }
            let [base, len] = region.plan(target)?.mapped;
            if base == region.base as u64 {
                return Ok(Some(Region { len: len as usize, ..region }));
            }
        }
        Ok(None)
    }

    /// The plan as it is now.
    pub fn plan(&self, target: &Target) -> Result<Plan, Error> {
        let mut plan = Plan::new();
        // SAFETY: a plan is plain words and bytes, of any value.
        let bytes = unsafe { std::slice::from_raw_parts_mut(&raw mut plan as *mut u8, size_of::<Plan>()) };
        memory::read(target.pid(), self.base, bytes)?;
        Ok(plan)
    }

    /// Writes the plan anew, while no thread of the agent's reads it.
    pub fn write_plan(&self, target: &Target, plan: &Plan) -> Result<(), Error> {
        memory::write(target.pid(), self.base, bytes_of(plan))
    }
}

fn bytes_of(plan: &Plan) -> &[u8] {
    // SAFETY: plain words and bytes without gaps between them that matter.
    unsafe { std::slice::from_raw_parts(plan as *const Plan as *const u8, size_of::<Plan>()) }
}
const _: () = assert!(size_of::<Plan>() <= PAGE);
