//! Staging: where pages lie while they are set aside, whole and out of the program's sight.
//!
//! Address space for a number of extents, one slot each; a page keeps its place within the extent, so that
//! huge pages stay aligned and an extent needs to remember one number only. Slots are taken and given back
//! by the background thread alone; the fault thread moves pages out of them.
//!
//! Staging is registered with a userfaultfd of its own, because a page can be moved only to a registered
//! place. It is registered for write protection and not for missing pages: a touch of an absent page there
//! reads zeros and can never leave an agent thread asleep.
//!
//! Where nobody but the kernel tells of changes, staging has none of its own: a slot is registered with that of the program's pages while pages move into
//! it ([`Staging::open_to`]). The kernel lets none move by a userfaultfd of which a report is not read yet. So what comes to lie where something was unmapped
//! cannot be moved in its place: the unmapping is reported before.

use crate::retry::patiently;
use crate::sabotage::fault_point;
use crate::tables::bitmap::{PageRange, PageSet};
use crate::tables::extent::{Extent, Locked};
use core::cell::UnsafeCell;
use core::mem::forget;
use core::sync::atomic::{AtomicU64, Ordering::*};
use memfold_sys::uffd::{Features, Modes, Userfaultfd};
use memfold_sys::{address_space, mem, Result, EXTENT_SIZE, PAGE_SIZE};

/// Most slots; their address space costs nothing where neither the process nor the machine limits it.
const MOST_SLOTS: usize = 4096;
/// One part in so many of the address space that the process may still take: the program needs the rest.
const PART: u64 = 16;
/// Most slots where the machine commits to all that is mapped. Every process that is forked has them again.
const MOST_COMMITTED_SLOTS: usize = 32;
/// Fewest slots that are worth having.
const LEAST_SLOTS: usize = 4;
/// So many slots are always in a core dump, and others while they are needed: address space with nothing in it makes it longer, and
/// where it goes through a pipe, slower.
const DUMPED_SLOTS: usize = 4;

/// The staging area.
pub struct Staging {
    base: usize,
    slots: usize,
    /// None where pages move in by that of the program's pages.
    uffd: Option<Userfaultfd>,
    /// One bit a slot, set when taken; background thread only.
    taken: UnsafeCell<[u64; MOST_SLOTS / 64]>,
    /// How many slots, the first, are in a core dump; all that are taken. Background thread only.
    dumped: UnsafeCell<usize>,
    /// One bit a slot, set where a part of it is in none all the same.
    undumped: [AtomicU64; MOST_SLOTS / 64],
}

// SAFETY: `taken` and `dumped` are reached by the background thread only; the rest does not change.
unsafe impl Sync for Staging {}

/// How many slots are taken where the process may still map so many bytes, and whether the machine commits to them at once.
fn slots_for(left: Option<u64>, committed: bool) -> usize {
    let most = if committed { MOST_COMMITTED_SLOTS } else { MOST_SLOTS };
    let part = left.map_or(u64::MAX, |left| left / PART / EXTENT_SIZE as u64);
    usize::try_from(part).unwrap_or(usize::MAX).clamp(LEAST_SLOTS, most)
}

/// Address space that can be read and written. It stays MAP_NORESERVE: nothing is committed before pages move in, unless the machine commits to all
/// that is mapped (`vm.overcommit_memory=2`).
fn accessible(len: usize) -> Result<usize> {
    let base = mem::reserve_aligned(len, EXTENT_SIZE)?;
    // SAFETY: our own mapping, unused.
    unsafe {
        mem::mprotect(base, len, libc::PROT_READ | libc::PROT_WRITE).inspect_err(|_| {
            let _ = mem::munmap(base, len);
        })?;
    }
    Ok(base)
}

impl Staging {
    /// Maps and registers 4096 slots (8 GiB), or fewer where address space is limited.
    pub fn new(uffd: Option<Userfaultfd>) -> Result<Staging> {
        if let Some(uffd) = &uffd {
            uffd.handshake(Features::MOVE | Features::PAGEFAULT_FLAG_WP)?;
        }
        let mut slots = slots_for(address_space::left(), address_space::is_committed());
        let base = loop {
            match accessible(slots * EXTENT_SIZE) {
                Ok(base) => break base,
                Err(e) if slots <= LEAST_SLOTS => return Err(e),
                Err(_) => slots = (slots / 2).max(LEAST_SLOTS),
            }
        };
        let len = slots * EXTENT_SIZE;
        // SAFETY: our own mapping, unused.
        let _ = unsafe { mem::madvise(base, len, libc::MADV_NOHUGEPAGE) };
        mem::name_range(base, len, c"memfold staging");
        if let Some(uffd) = &uffd {
            patiently(|| uffd.register(base, len, Modes::WP))?;
        }
        let taken = UnsafeCell::new([0; MOST_SLOTS / 64]);
        let undumped = [const { AtomicU64::new(0) }; MOST_SLOTS / 64];
        let staging = Staging { base, slots, uffd, taken, dumped: UnsafeCell::new(slots), undumped };
        // SAFETY: nobody else has it.
        unsafe { staging.dump(DUMPED_SLOTS) };
        Ok(staging)
    }

    /// Where it lies.
    pub fn base(&self) -> usize {
        self.base
    }

    /// All of it.
    pub fn range(&self) -> core::ops::Range<usize> {
        self.base..self.base + self.slots * EXTENT_SIZE
    }

    /// Has the first `slots` be in a core dump, and no others.
    ///
    /// # Safety
    /// Only the background thread may call this.
    unsafe fn dump(&self, slots: usize) {
        // SAFETY: the caller's contract.
        let dumped = unsafe { &mut *self.dumped.get() };
        let slots = slots.min(self.slots);
        let (lo, hi) = (slots.min(*dumped), slots.max(*dumped));
        if lo < hi {
            let advice = if slots > *dumped { libc::MADV_DODUMP } else { libc::MADV_DONTDUMP };
            let (at, len) = (self.base + lo * EXTENT_SIZE, (hi - lo) * EXTENT_SIZE);
            // SAFETY: our own mapping, of which this changes no bytes. Where it cannot be cut, a core has more or less of it.
            let _ = unsafe { mem::madvise(at, len, advice) };
            *dumped = slots;
        }
    }

    /// Has no core dump have what comes to lie here of these pages of the extent, until its slot is given back. Nor has any what dumps may have again by then: that would be
    /// said of a slot that may be another extent's.
    pub fn keep_from_dumps(&self, extent: &Locked, pages: &PageSet) -> Result<()> {
        let Some(slot) = extent.staging.load(SeqCst).checked_sub(1).map(|slot| slot as usize) else {
            return Ok(());
        };
        let kept = pages.runs().try_for_each(|run| {
            let addr = self.base + slot * EXTENT_SIZE + run.lo * PAGE_SIZE;
            // SAFETY: our own mapping, of which this changes no bytes.
            unsafe { mem::madvise(addr, run.bytes(), libc::MADV_DONTDUMP) }
        });
        if !pages.is_empty() {
            // Not before: the slot may be given back meanwhile.
            self.undumped[slot / 64].fetch_or(1 << (slot % 64), Relaxed);
        }
        kept
    }

    /// The userfaultfd to move pages into the extent's slot with, which takes pages from now on, until [`Staging::close_to`]. `main` is that of the program's
    /// pages. Nothing is dropped from the slot meanwhile, as that would be reported.
    pub fn open_to<'a>(&'a self, extent: &Extent, main: &'a Userfaultfd) -> Result<&'a Userfaultfd> {
        if let Some(uffd) = &self.uffd {
            return Ok(uffd);
        }
        let slot = self.page_addr(extent, 0).ok_or(memfold_sys::Errno::ENOENT)?;
        main.register(slot, EXTENT_SIZE, Modes::WP).map(|()| main)
    }

    /// Ends [`Staging::open_to`].
    pub fn close_to(&self, extent: &Extent, main: &Userfaultfd) {
        if let (None, Some(slot)) = (&self.uffd, self.page_addr(extent, 0)) {
            // Without memory for it the kernel refuses, and has some a moment later.
            let _ = patiently(|| main.unregister(slot, EXTENT_SIZE));
        }
    }

    /// Whether a slot is free.
    ///
    /// # Safety
    /// Only the background thread may call this.
    pub unsafe fn has_room(&self) -> bool {
        // SAFETY: the caller's contract.
        self.free_slot(unsafe { &*self.taken.get() }).is_some()
    }

    fn free_slot(&self, taken: &[u64; MOST_SLOTS / 64]) -> Option<usize> {
        (0..self.slots).find(|slot| taken[slot / 64] >> (slot % 64) & 1 == 0)
    }

    /// Takes a free slot for the extent.
    ///
    /// # Safety
    /// Only the background thread may call this.
    pub unsafe fn take(&self, extent: &Locked) -> bool {
        // SAFETY: the caller's contract.
        let taken = unsafe { &mut *self.taken.get() };
        let Some(slot) = self.free_slot(taken) else { return false };
        taken[slot / 64] |= 1 << (slot % 64);
        // SAFETY: the caller's contract.
        unsafe {
            if slot >= *self.dumped.get() {
                self.dump((slot + 1).next_power_of_two());
            }
        }
        extent.staging.store(slot as u32 + 1, SeqCst);
        let kept = fault_point!(UndumpedStaged: extent.undumped.load(), else PageSet::EMPTY);
        if self.keep_from_dumps(extent, &kept).is_err() {
            // SAFETY: nothing has come to lie there yet.
            unsafe { self.give_back(extent) };
            return false;
        }
        true
    }

    /// The address at which a page of the extent lies in staging, if the extent has a slot.
    pub fn page_addr(&self, extent: &Extent, index: usize) -> Option<usize> {
        let slot = extent.staging.load(SeqCst).checked_sub(1)?;
        Some(self.base + slot as usize * EXTENT_SIZE + index * PAGE_SIZE)
    }

    /// Drops staged pages of the extent.
    ///
    /// # Safety
    /// No page entry says that one of them is aside.
    pub unsafe fn drop_pages(&self, extent: &Extent, pages: PageRange) {
        if let Some(addr) = self.page_addr(extent, pages.lo) {
            // SAFETY: staging memory that nobody needs, by the caller's contract.
            let _ = unsafe { mem::madvise(addr, pages.bytes(), libc::MADV_DONTNEED) };
        }
    }

    /// Drops whatever is left in the extent's slot, and frees the slot.
    ///
    /// # Safety
    /// No page of the extent is aside, and only the background thread may call this.
    pub unsafe fn give_back(&self, extent: &Extent) {
        // SAFETY: the caller's contract.
        unsafe { self.drop_pages(extent, PageRange::ALL) };
        let slot = extent.staging.swap(0, SeqCst) as usize - 1;
        if self.undumped[slot / 64].fetch_and(!(1 << (slot % 64)), Relaxed) >> (slot % 64) & 1 != 0 {
            // SAFETY: our own mapping, of which this changes no bytes.
            let _ = unsafe { mem::madvise(self.base + slot * EXTENT_SIZE, EXTENT_SIZE, libc::MADV_DODUMP) };
        }
        // SAFETY: the caller's contract.
        unsafe {
            let taken = &mut *self.taken.get();
            taken[slot / 64] &= !(1 << (slot % 64));
            if taken.iter().all(|&word| word == 0) {
                self.dump(DUMPED_SLOTS);
            }
        }
    }

    /// Registers the copy of the area that a forked child has with a userfaultfd of the child's own.
    pub fn adopt_in_child(&mut self, uffd: Userfaultfd) -> Result<()> {
        uffd.handshake(Features::MOVE | Features::PAGEFAULT_FLAG_WP)?;
        patiently(|| uffd.register(self.base, self.slots * EXTENT_SIZE, Modes::WP))?;
        // The parent's is not open here.
        forget(self.uffd.replace(uffd));
        Ok(())
    }

    /// Gives up the copy of the area that a forked child has, which needs nothing of it.
    pub fn forget_in_child(self) {
        // SAFETY: nothing is aside, and nobody else has the address.
        let _ = unsafe { mem::munmap(self.base, self.slots * EXTENT_SIZE) };
        forget(self);
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // SAFETY: an engine that ends has brought every page back.
        let _ = unsafe { mem::munmap(self.base, self.slots * EXTENT_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_keeps_nearly_all_of_the_address_space_that_it_may_have() {
        const GIB: u64 = 1 << 30;
        for (left, committed, slots) in [
            (None, false, 4096),
            (Some(1024 * GIB), false, 4096),
            (Some(16 * GIB), false, 512),
            (Some(GIB / 8), false, 4),
            (Some(0), false, 4),
            (None, true, 32),
            (Some(GIB / 2), true, 16),
        ] {
            assert_eq!(slots_for(left, committed), slots, "{left:?} {committed}");
        }
    }
}
