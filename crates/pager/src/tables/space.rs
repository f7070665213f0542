//! From an address to its extent: two levels over the 47 bits of user address space.
//!
//! Look-ups take no lock and may come from any thread; extents are added, never removed.
//!
//! Beside each extent stands until when it may rest: a program with much address space and little in it has tens of
//! thousands of extents in which nothing is due for a minute, and to look at each in every pass would cost more than they
//! hold. A pass reads the times alone, sixteen to a cache line. Whoever gives the background thread a reason to look earlier
//! wakes the extent; the time is set under the extent's lock.

use crate::sync::{AtomicPtr, AtomicU32, Ordering::*};
use crate::tables::bitmap::AtomicPageSet;
use crate::tables::extent::Extent;
use crate::tables::pool::Pool;
use memfold_sys::{Errno, Result, EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

const LEAF_BITS: u32 = 13;
const ROOT_BITS: u32 = 13;
pub const LEAF: usize = 1 << LEAF_BITS;
pub const ROOT: usize = 1 << ROOT_BITS;
/// One past the highest address that can be managed: 2^47, the user half of x86-64 with four-level page tables and less
/// than that of aarch64.
pub const LIMIT: usize = EXTENT_SIZE << (LEAF_BITS + ROOT_BITS);

/// Extents whose pointers fill a page, as many as a set of pages tells apart.
const ROW: usize = PAGE_SIZE / core::mem::size_of::<AtomicPtr<Extent>>();
const ROWS: usize = LEAF / ROW;
const _: () = assert!(ROW == EXTENT_PAGES && ROWS <= u32::BITS as usize);

/// Extents side by side. Allocators that choose addresses at random have hundreds of leaves with an extent or two, and a pass that looked at each place
/// would take milliseconds.
#[repr(C)]
struct Leaf {
    extents: [AtomicPtr<Extent>; LEAF],
    /// Until when each may rest.
    rests: [AtomicU32; LEAF],
    /// Which there are, by rows.
    there: [AtomicPageSet; ROWS],
    /// A bit for each row in which there is any.
    rows: AtomicU32,
}

impl Leaf {
    /// An extent is about to come to the place of that index. Returns how many bytes of this leaf are used for the first time, about.
    fn use_place(&self, index: usize) -> u64 {
        let row = index / ROW;
        self.there[row].add(index % ROW);
        // Release: who sees the row sees that. Who does not see the extent yet finds it at the next look.
        if self.rows.fetch_or(1 << row, AcqRel) >> row & 1 != 0 {
            return 0;
        }
        // The row's pointers, and as many times.
        (PAGE_SIZE + ROW * core::mem::size_of::<AtomicU32>()) as u64
    }

    /// The indices at which there are extents, or are about to be.
    fn used(&self) -> impl Iterator<Item = usize> + '_ {
        let rows = self.rows.load(Acquire);
        let used = (0..ROWS).filter(move |row| rows >> row & 1 != 0);
        used.flat_map(|row| self.there[row].load().pages().map(move |place| row * ROW + place))
    }
}

/// Nanoseconds to a moment as extents rest until it, as a power of two: 67 ms. Moments are rounded down, so nothing is looked
/// at too late.
const MOMENT_BITS: u32 = 26;

/// A time in ns, as extents rest until it.
pub fn moment(ns: u64) -> u32 {
    u32::try_from(ns >> MOMENT_BITS).unwrap_or(u32::MAX)
}

/// All extents. All-zero bytes are an empty space.
pub struct Space {
    root: [AtomicPtr<Leaf>; ROOT],
}

impl Space {
    fn leaf(&self, root: usize) -> Option<&'static Leaf> {
        // Acquire: pairs with the release in `leaf_or_make`. SAFETY: leaves stay for ever.
        unsafe { self.root[root].load(Acquire).as_ref() }
    }

    /// The extent that holds the address, if there is one.
    pub fn find(&self, addr: usize) -> Option<&'static Extent> {
        if addr >= LIMIT {
            return None;
        }
        let number = addr / EXTENT_SIZE;
        let leaf = self.leaf(number >> LEAF_BITS)?;
        // Acquire: pairs with the release in `find_or_make`. SAFETY: extents stay for ever.
        unsafe { leaf.extents[number & (LEAF - 1)].load(Acquire).as_ref() }
    }

    /// The extent that holds the address, made if need be. `EINVAL` beyond [`LIMIT`].
    pub fn find_or_make(&self, addr: usize, pool: &Pool) -> Result<&'static Extent> {
        if addr >= LIMIT {
            return Err(Errno::EINVAL);
        }
        let number = addr / EXTENT_SIZE;
        let root = &self.root[number >> LEAF_BITS];
        let leaf = match self.leaf(number >> LEAF_BITS) {
            Some(leaf) => leaf,
            // SAFETY: null pointers are an empty leaf.
            None => publish(root, unsafe { pool.make_sparse::<Leaf>() }?),
        };
        let cell = &leaf.extents[number & (LEAF - 1)];
        // SAFETY: extents stay for ever.
        if let Some(extent) = unsafe { cell.load(Acquire).as_ref() } {
            return Ok(extent);
        }
        // SAFETY: zeros are an extent, which nobody else sees before it is published.
        let extent = unsafe {
            let extent = pool.make::<Extent>()?;
            extent.place(number * EXTENT_SIZE);
            extent
        };
        pool.use_more(leaf.use_place(number & (LEAF - 1)));
        Ok(publish(cell, extent))
    }

    /// The existing extents that overlap `start..end`, by address.
    pub fn existing(&self, start: usize, end: usize) -> impl Iterator<Item = &'static Extent> + '_ {
        let mut number = start / EXTENT_SIZE;
        let last = end.min(LIMIT).div_ceil(EXTENT_SIZE);
        core::iter::from_fn(move || {
            while number < last {
                let Some(leaf) = self.leaf(number >> LEAF_BITS) else {
                    number = ((number >> LEAF_BITS) + 1) << LEAF_BITS;
                    continue;
                };
                // SAFETY: extents stay for ever.
                let extent = unsafe { leaf.extents[number & (LEAF - 1)].load(Acquire).as_ref() };
                number += 1;
                if extent.is_some() {
                    return extent;
                }
            }
            None
        })
    }

    fn rest(&self, extent: &Extent) -> Option<&'static AtomicU32> {
        let number = extent.base() / EXTENT_SIZE;
        self.leaf(number >> LEAF_BITS).map(|leaf| &leaf.rests[number & (LEAF - 1)])
    }

    /// No pass need look at the extent before `until`, a [`moment`], unless somebody wakes it. Under the extent's lock.
    pub fn let_rest(&self, extent: &Extent, until: u32) {
        if let Some(rest) = self.rest(extent) {
            // SeqCst: who gives a reason without the lock either sees this time and ends it, or its reason is seen here.
            rest.store(until, SeqCst);
        }
    }

    /// There is a reason to look at the extent in the next pass. Under its lock, or after the reason was written down.
    pub fn wake(&self, extent: &Extent) {
        self.let_rest(extent, 0);
    }

    /// The extents that do not rest at `now`, a [`moment`], by address.
    pub fn awake(&self, now: u32) -> impl Iterator<Item = &'static Extent> + '_ {
        let leaves = (0..ROOT).filter_map(|root| self.leaf(root));
        leaves.flat_map(move |leaf| {
            leaf.used().filter_map(move |index| {
                let awake = leaf.rests[index].load(Relaxed) <= now;
                // Acquire: pairs with the release in `find_or_make`. SAFETY: extents stay for ever.
                awake.then(|| unsafe { leaf.extents[index].load(Acquire).as_ref() }).flatten()
            })
        })
    }

    /// All extents, by address.
    pub fn all(&self) -> impl Iterator<Item = &'static Extent> + '_ {
        self.awake(u32::MAX)
    }
}

/// Puts `made` into an empty cell; where another thread was quicker, its object wins and ours stays unused.
fn publish<T>(cell: &AtomicPtr<T>, made: &'static T) -> &'static T {
    let pointer = made as *const T as *mut T;
    match cell.compare_exchange(core::ptr::null_mut(), pointer, AcqRel, Acquire) {
        Ok(_) => made,
        // SAFETY: only objects that stay for ever are published.
        Err(winner) => unsafe { &*winner },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn extents_are_found_by_every_address_in_them_and_listed_in_order() {
        let pool = Pool::new();
        // SAFETY: zeros are an empty space.
        let space = unsafe { pool.make::<Space>() }.unwrap();
        let addresses = [0x7fff_ffe0_0000usize, 0x20_0000, 0x5555_5560_0000, 0x40_0000];
        for addr in addresses {
            assert!(space.find(addr).is_none());
            let extent = space.find_or_make(addr + 12_345, &pool).unwrap();
            assert_eq!(extent.base(), addr);
            assert!(core::ptr::eq(space.find(addr + EXTENT_SIZE - 1).unwrap(), extent));
        }
        let listed: Vec<usize> = space.all().map(Extent::base).collect();
        assert_eq!(listed, [0x20_0000, 0x40_0000, 0x5555_5560_0000, 0x7fff_ffe0_0000]);
        let some: Vec<usize> = space.existing(0x3f_ffff, 0x40_0001).map(Extent::base).collect();
        assert_eq!(some, [0x20_0000, 0x40_0000]);
        assert!(space.find(LIMIT).is_none() && space.find_or_make(LIMIT, &pool).is_err());
    }

    #[test]
    fn extents_far_apart_are_charged_a_page_and_a_half_of_their_leaf_each_and_neighbours_nothing() {
        let pool = Pool::new();
        // SAFETY: zeros are an empty space.
        let space = unsafe { pool.make::<Space>() }.unwrap();
        let charged = |addr: usize| {
            let before = pool.used_bytes();
            space.find_or_make(addr, &pool).unwrap();
            pool.used_bytes() - before - core::mem::size_of::<Extent>() as u64
        };
        let page = PAGE_SIZE as u64;
        for far in 1..20 {
            assert_eq!(charged(far << 40), page + page / 2);
            assert_eq!(charged((far << 40) + EXTENT_SIZE), 0);
            assert_eq!(charged((far << 40) + (ROW - 1) * EXTENT_SIZE), 0, "in the same page");
        }
        // A leaf that is full has been charged whole.
        let all: u64 = (0..LEAF).map(|n| charged((64 << 40) + n * EXTENT_SIZE)).sum();
        assert_eq!(all as usize, LEAF * (core::mem::size_of::<usize>() + core::mem::size_of::<u32>()));
        assert_eq!(space.all().count(), 19 * 3 + LEAF);
    }

    #[test]
    fn an_extent_rests_until_its_moment_or_until_it_is_woken() {
        let pool = Pool::new();
        // SAFETY: zeros are an empty space.
        let space = unsafe { pool.make::<Space>() }.unwrap();
        let extents =
            [0x40_0000usize, 0x60_0000, 0x7fff_ffe0_0000].map(|at| space.find_or_make(at, &pool).unwrap());
        let awake = |now: u32| space.awake(now).map(Extent::base).collect::<Vec<_>>();
        assert_eq!(awake(0), extents.map(|extent| extent.base()));
        space.let_rest(extents[1], moment(5 << MOMENT_BITS));
        space.let_rest(extents[2], u32::MAX);
        assert_eq!(awake(4), [0x40_0000]);
        assert_eq!(awake(5), [0x40_0000, 0x60_0000]);
        space.wake(extents[2]);
        assert_eq!(awake(4), [0x40_0000, 0x7fff_ffe0_0000]);
        assert_eq!(moment(u64::MAX), u32::MAX);
    }
}
