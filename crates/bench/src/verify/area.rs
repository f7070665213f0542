//! A private anonymous mapping and the model of what each of its pages holds.
//!
//! Invariants: every method changes the memory and the model together; a range is in pages of the area, its end
//! excluded; nobody else maps or unmaps within the area.

use super::findings::{Findings, Mismatch, Tags};
use super::invocation::{Call, Way};
use crate::content::{Content, WORDS, ZERO};
use anyhow::{ensure, Context, Result};
use memfold_sys::PAGE_SIZE;
use std::io::Error;
use std::ops::Range;

const RW: i32 = libc::PROT_READ | libc::PROT_WRITE;
const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

/// What a page should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Its contents.
    tag: u64,
    /// One word that was written since, by index.
    patch: Option<(usize, u64)>,
    /// After `MADV_FREE`: each word may as well be zero, until the page is written.
    freed: bool,
}

const UNTOUCHED: State = State { tag: ZERO, patch: None, freed: false };

impl State {
    fn word(&self, content: Content, index: usize) -> u64 {
        match self.patch {
            Some((place, word)) if place == index => word,
            _ => content.word(self.tag, index),
        }
    }
}

/// See the module. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct Area {
    base: usize,
    states: Vec<State>,
    /// Whether the kernel sees one mapping, which `mremap` must be able to move. What was mapped over may stay apart.
    whole: bool,
    /// Whether children that are forked have it not.
    kept: bool,
}

impl Area {
    /// Maps an area of `pages`, more than 0.
    pub fn map(pages: usize) -> Result<Area> {
        // SAFETY: a fresh mapping, placed by the kernel.
        let raw = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE_SIZE, RW, PRIVATE, -1, 0) };
        ensure!(raw != libc::MAP_FAILED, "cannot map {pages} pages: {}", Error::last_os_error());
        Ok(Area { base: raw as usize, states: vec![UNTOUCHED; pages], whole: true, kept: false })
    }

    /// Its length in pages.
    pub fn pages(&self) -> usize {
        self.states.len()
    }

    /// The address of a page.
    pub fn address(&self, page: usize) -> usize {
        self.base + page * PAGE_SIZE
    }

    fn pointer(&self, page: usize) -> *mut libc::c_void {
        self.address(page) as *mut libc::c_void
    }

    /// What the pages of `range` should hold, to be given to [`Area::became`] of another area; `None` if one of
    /// them may have been dropped by the kernel, so that a copy of it is not known.
    pub fn states(&self, range: Range<usize>) -> Option<&[State]> {
        let states = &self.states[range];
        states.iter().all(|state| !state.freed).then_some(states)
    }

    /// What a word of a page that was not freed should be.
    pub fn known_word(&self, content: Content, page: usize, index: usize) -> u64 {
        self.states[page].word(content, index)
    }

    /// Notes that the pages from `first` on were overwritten, by a system call, with pages in these states.
    pub fn became(&mut self, first: usize, states: &[State]) {
        self.states[first..first + states.len()].copy_from_slice(states);
    }

    /// Writes every word of the pages.
    pub fn write(&mut self, content: Content, range: Range<usize>, tags: &mut Tags) {
        for page in range {
            let tag = tags.next();
            let start = self.address(page) as *mut u64;
            for index in 0..WORDS {
                // SAFETY: within the area. Volatile: the compiler must not move it past a system call on the range.
                unsafe { start.add(index).write_volatile(content.word(tag, index)) };
            }
            self.states[page] = State { tag, ..UNTOUCHED };
        }
    }

    /// Writes one word of a page; nothing if the page may have been dropped.
    pub fn patch(&mut self, page: usize, index: usize, word: u64) {
        let state = &mut self.states[page];
        if state.freed {
            return;
        }
        if let Some((place, _)) = state.patch.filter(|&(place, _)| place != index) {
            // One patch a page is modelled: the earlier one is taken back.
            return self.patch(page, place, word);
        }
        state.patch = Some((index, word));
        // SAFETY: within the area.
        unsafe { (self.address(page) as *mut u64).add(index).write_volatile(word) };
    }

    /// Compares the pages with the model, and reports to `findings` under the name `what`.
    pub fn check(&self, findings: &Findings, what: &'static str, range: Range<usize>) {
        for page in range {
            let wrong = self.wrong_word(findings.content, page).map(|(index, expected, found)| Mismatch {
                what: what.into(),
                address: self.address(page) + index * 8,
                expected,
                found,
            });
            findings.saw(PAGE_SIZE, wrong);
        }
    }

    fn wrong_word(&self, content: Content, page: usize) -> Option<(usize, u64, u64)> {
        let state = self.states[page];
        let start = self.address(page) as *const u64;
        (0..WORDS).find_map(|index| {
            let expected = state.word(content, index);
            // SAFETY: within the area, readable.
            let found = unsafe { start.add(index).read_volatile() };
            (found != expected && !(state.freed && found == 0)).then_some((index, expected, found))
        })
    }

    /// Drops the pages: they read as zeros.
    pub fn dont_need(&mut self, range: Range<usize>, way: Way) -> Result<()> {
        self.advise(&range, libc::MADV_DONTNEED, way)?;
        self.states[range].fill(UNTOUCHED);
        Ok(())
    }

    /// Lets the kernel drop the pages when it likes.
    pub fn free(&mut self, range: Range<usize>, way: Way) -> Result<()> {
        self.advise(&range, libc::MADV_FREE, way)?;
        self.states[range].iter_mut().for_each(|state| state.freed = true);
        Ok(())
    }

    /// Keeps pages from core dumps, or no more. They may be a mapping of their own then.
    pub fn keep_from_dumps(&mut self, range: Range<usize>, kept: bool, way: Way) -> Result<()> {
        self.whole = false;
        self.advise(&range, if kept { libc::MADV_DONTDUMP } else { libc::MADV_DODUMP }, way)
    }

    /// Gives advice for all of it that changes no bytes. The kernel may have no huge pages, or none to make of this.
    pub fn prefer(&self, advice: i32, way: Way) {
        let _ = self.advise(&(0..self.pages()), advice, way);
    }

    fn advise(&self, range: &Range<usize>, advice: i32, way: Way) -> Result<()> {
        let args = [self.address(range.start), range.len() * PAGE_SIZE, advice as usize, 0, 0, 0];
        // SAFETY: the area is ours, and the model follows what the advice does.
        let done = unsafe { Call::Madvise.by(way, args) };
        done.with_context(|| format!("madvise({advice}) of {} pages, {way:?}", range.len())).map(drop)
    }

    /// Whether children that are forked have it not.
    pub fn is_kept(&self) -> bool {
        self.kept
    }

    /// Keeps the area from children that are forked from now on, or no more.
    pub fn keep_from_children(&mut self, kept: bool, way: Way) -> Result<()> {
        let advice = if kept { libc::MADV_DONTFORK } else { libc::MADV_DOFORK };
        self.advise(&(0..self.pages()), advice, way.seen())?;
        self.kept = kept;
        Ok(())
    }

    /// The way in which a change of the mapping can be made. What becomes of memory that children do not have, the pager must be told: a child that is
    /// forked at the wrong moment, and has something else there, cannot know that from memory that it has again, and ends.
    fn permitted(&self, way: Way) -> Way {
        if self.kept {
            way.seen()
        } else {
            way
        }
    }

    /// Forbids writing (or any access), lets `meanwhile` run, and allows everything again.
    pub fn protect(&self, range: Range<usize>, readable: bool, meanwhile: impl FnOnce()) -> Result<()> {
        let (start, len) = (self.pointer(range.start), range.len() * PAGE_SIZE);
        let less = if readable { libc::PROT_READ } else { libc::PROT_NONE };
        // SAFETY: the area is ours, and `meanwhile` keeps to what is allowed.
        let result = unsafe { libc::mprotect(start, len, less) };
        ensure!(result == 0, "mprotect({less}): {}", Error::last_os_error());
        meanwhile();
        // SAFETY: allows what was allowed before.
        let result = unsafe { libc::mprotect(start, len, RW) };
        ensure!(result == 0, "mprotect({RW}): {}", Error::last_os_error());
        Ok(())
    }

    /// Maps fresh memory over the pages: they read as zeros.
    pub fn map_over(&mut self, range: Range<usize>, way: Way) -> Result<()> {
        let way = self.permitted(way);
        let start = self.address(range.start);
        let flags = PRIVATE | libc::MAP_FIXED;
        let args = [start, range.len() * PAGE_SIZE, RW as usize, flags as usize, usize::MAX, 0];
        // SAFETY: replaces a part of our own mapping; the model follows.
        let place = unsafe { Call::Mmap.by(way, args) };
        let place = place.with_context(|| format!("mmap over {} pages, {way:?}", range.len()))?;
        ensure!(place == start, "mmap over {start:#x} mapped {place:#x}, {way:?}");
        self.states[range].fill(UNTOUCHED);
        self.whole = false;
        if self.kept {
            self.keep_from_children(true, Way::Named)?;
        }
        Ok(())
    }

    /// Unmaps the pages of `range`, which must not reach either end of the area; what lies behind them becomes an area
    /// of its own, which is returned.
    pub fn split(&mut self, range: Range<usize>, way: Way) -> Result<Area> {
        debug_assert!(range.start > 0 && range.end < self.pages(), "a split needs something on both sides");
        unmap(self.address(range.start), range.len(), self.permitted(way))?;
        let states = self.states.split_off(range.end);
        let rest = Area { base: self.address(range.end), states, whole: self.whole, kept: self.kept };
        self.states.truncate(range.start);
        Ok(rest)
    }

    /// Gives the area another length, more than 0, at an address that the kernel chooses. False if the kernel may refuse
    /// that, and did.
    pub fn resize(&mut self, pages: usize, way: Way) -> Result<bool> {
        let moved = self.remap(pages, libc::MREMAP_MAYMOVE, 0, way)?;
        if moved {
            self.states.resize(pages, UNTOUCHED);
        }
        Ok(moved)
    }

    /// Moves the area to an address of our choice. False if the kernel may refuse that, and did.
    pub fn relocate(&mut self, way: Way) -> Result<bool> {
        // Holds the place until the move replaces it.
        let target = Area::map(self.pages())?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let place = target.base;
        // Not unmapped by us after a refusal either: the kernel may have done so already, and another thread have
        // mapped there since.
        std::mem::forget(target);
        // Since Linux 6.17 a refused move of several mappings may have moved the first of them, and a bare call cannot be
        // kept from that: see `remap`.
        self.remap(self.pages(), flags, place, way.seen())
    }

    /// A bare call may be refused, since the pager's registration of a part of the area makes it several mappings; a
    /// call through libc is interposed, and must do what it does without a pager.
    fn remap(&mut self, pages: usize, flags: i32, target: usize, way: Way) -> Result<bool> {
        let (old, new) = (self.pages() * PAGE_SIZE, pages * PAGE_SIZE);
        let way = self.permitted(way);
        // SAFETY: the area is ours and nothing keeps an address into it; the target is reserved by the caller.
        match unsafe { Call::Mremap.by(way, [self.base, old, new, flags as usize, target, 0]) } {
            Ok(base) => {
                self.base = base;
                Ok(true)
            }
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && (!self.whole || way == Way::Bare) => {
                Ok(false)
            }
            Err(error) => Err(error).with_context(|| format!("mremap of {old} bytes to {new}, {way:?}")),
        }
    }

    /// Unmaps the area.
    pub fn unmap(mut self, way: Way) -> Result<()> {
        let (pages, way) = (self.pages(), self.permitted(way));
        self.states = Vec::new();
        unmap(self.base, pages, way)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        if self.pages() > 0 {
            // An error leaves the memory mapped until the process ends, which harms nobody.
            let _ = unmap(self.base, self.pages(), Way::Named);
        }
    }
}

fn unmap(address: usize, pages: usize, way: Way) -> Result<()> {
    // SAFETY: callers unmap what they own and forget it.
    let done = unsafe { Call::Munmap.by(way, [address, pages * PAGE_SIZE, 0, 0, 0, 0]) };
    done.with_context(|| format!("munmap of {pages} pages, {way:?}")).map(drop)
}
