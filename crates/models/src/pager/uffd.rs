//! `userfaultfd(2)` in a model: the calls that move pages, one page a step.

use crate::futex;
use crate::world::{content_at, enter, page_index, set_staged, staging, World, ZERO};
pub use linux::uffd::{Modes, Progress};
use memfold_sys::{Errno, Result, PAGE_SIZE};

/// The userfaultfd of the program, or of staging.
pub struct Userfaultfd;

/// Does `page(offset)` for each page until one fails.
fn each(len: usize, page: impl Fn(usize) -> Result<()>) -> Progress {
    for done in (0..len).step_by(PAGE_SIZE) {
        if let Err(error) = page(done) {
            // With a part done, the kernel says only that it stopped.
            return Progress { done, error: Some(if done == 0 { error } else { Errno::EAGAIN }) };
        }
    }
    Progress { done: len, error: None }
}

/// Whether a page can be put at the program's page `index`.
fn may_put(world: &World, index: usize) -> Result<()> {
    match world {
        World { changing: true, .. } => Err(Errno::EAGAIN),
        _ if !world.armed[index] => Err(Errno::ENOENT),
        _ if world.pages[index].is_some() => Err(Errno::EEXIST),
        _ => Ok(()),
    }
}

impl Userfaultfd {
    /// As in `sys`.
    ///
    /// # Safety
    /// `src` is readable.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize) -> Progress {
        each(len, |at| {
            enter(|world| {
                let index = page_index(dst + at);
                may_put(world, index)?;
                world.pages[index] = Some(content_at(src + at));
                Ok(())
            })
        })
    }

    /// As in `sys`.
    pub fn zero(&self, start: usize, len: usize) -> Progress {
        each(len, |at| {
            enter(|world| {
                let index = page_index(start + at);
                may_put(world, index)?;
                world.pages[index] = Some(ZERO);
                Ok(())
            })
        })
    }

    /// As in `sys`: from the program to staging.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize) -> Progress {
        each(len, |at| {
            enter(|world| {
                let (from, to) = (page_index(src + at), (dst + at - staging()) / PAGE_SIZE);
                if world.changing {
                    return Err(Errno::EAGAIN);
                }
                if world.pages[from].is_some() && world.staged[to] {
                    return Err(Errno::EEXIST);
                }
                if let Some(content) = world.pages[from].take() {
                    world.staged[to] = true;
                    set_staged(to, content);
                }
                Ok(())
            })
        })
    }

    /// As in `sys`: from staging to the program.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn move_present(&self, dst: usize, src: usize, len: usize) -> Progress {
        each(len, |at| {
            enter(|world| {
                let (to, from) = (page_index(dst + at), (src + at - staging()) / PAGE_SIZE);
                may_put(world, to)?;
                if !world.staged[from] {
                    return Err(Errno::ENOENT);
                }
                world.pages[to] = Some(content_at(src + at));
                world.staged[from] = false;
                set_staged(from, ZERO);
                Ok(())
            })
        })
    }

    /// As in `sys`.
    pub fn wake(&self, start: usize, len: usize) {
        enter(|_| ());
        futex::wake_at(start..=start + len - 1, u32::MAX);
    }

    /// As in `sys`.
    pub fn register(&self, start: usize, len: usize, modes: Modes) -> Result<()> {
        enter(|world| {
            let lo = page_index(start);
            world.armed[lo..lo + len / PAGE_SIZE].fill(modes.contains(Modes::MISSING));
        });
        Ok(())
    }

    /// As in `sys`.
    pub fn unregister(&self, start: usize, len: usize) -> Result<()> {
        enter(|world| {
            let lo = page_index(start);
            world.armed[lo..lo + len / PAGE_SIZE].fill(false);
        });
        futex::wake_at(start..=start + len - 1, u32::MAX);
        Ok(())
    }

    /// As in `sys`.
    pub fn is_changing(&self) -> bool {
        enter(|world| world.changing)
    }
}
