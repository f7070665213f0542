//! What the agent knows of a registered range: its entries in the channel, where its pages lie while they are set aside, and
//! the state of each piece of it.
//!
//! Agent only, so nothing here is atomic but what lies in the channel.

use memfold_daemon::channel::{Channel, Entry, State};
use memfold_policy::age::ExtentAge;
use memfold_sys::uffd::{Modes, Userfaultfd};
use memfold_sys::{mem, Result, EXTENT_PAGES, PAGE_SIZE};
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Bits for the pages of a piece.
pub type Bits = [u64; EXTENT_PAGES / 64];

/// A set bit?
pub fn has(bits: &Bits, n: usize) -> bool {
    bits[n / 64] >> (n % 64) & 1 != 0
}

/// Sets a bit, or clears it.
pub fn set(bits: &mut Bits, n: usize, value: bool) {
    let mask = 1 << (n % 64);
    bits[n / 64] = if value { bits[n / 64] | mask } else { bits[n / 64] & !mask };
}

/// 512 pages of a range, counted from its start; the last piece may be shorter. Zeros are a piece of which nothing is known.
#[repr(C)]
pub struct Piece {
    /// Its age.
    pub age: ExtentAge,
    /// Pages of it may be away: where not, nothing needs to be brought back. Set before any goes.
    pub away: bool,
    /// Pages in staging.
    pub held: u32,
    /// Pages that were set aside by the last probe, and how many came back since.
    pub probed: u32,
    /// See `probed`.
    pub touched: u32,
    /// When pages of it were last put into the store, and last wanted back, ns.
    pub filed_at: u64,
    /// See `filed_at`.
    pub wanted_at: u64,
    /// Pages that are not needed soon.
    pub soon: Bits,
    /// Pages in staging, by page.
    pub staged: Bits,
    /// Pages that were touched while they were set aside.
    pub hot: Bits,
    /// Pages that the kernel refused to move: left alone until they are written, or for a while.
    pub refused: Bits,
    /// Pages that did not shrink.
    pub incompressible: Bits,
    /// Pages that must stay.
    pub kept: Bits,
}

/// A registered range. Zeros are none.
#[repr(C)]
pub struct Region {
    /// Its address; 0 for none.
    pub base: usize,
    /// Its pages.
    pub pages: usize,
    /// Its first entry.
    pub first: usize,
    /// Where its pages lie while they are set aside.
    staging: usize,
    /// Its pieces.
    table: usize,
}

impl Region {
    /// Makes the range at `base` one of the agent's: with entries from `first` on and a place in staging, which is
    /// registered with `staging`.
    pub fn make(&mut self, base: usize, pages: usize, first: usize, staging: &Userfaultfd) -> Result<()> {
        let len = pages * PAGE_SIZE;
        let table = mem::map_anonymous(0, Region::table_len(pages), 0)?;
        mem::name_range(table, Region::table_len(pages), c"memfold tables");
        let place = mem::map_anonymous(0, len, libc::MAP_NORESERVE).and_then(|place| {
            mem::name_range(place, len, c"memfold staging");
            // SAFETY: our own mapping, unused.
            unsafe {
                let _ = mem::madvise(place, len, libc::MADV_NOHUGEPAGE);
                let _ = mem::madvise(place, len, libc::MADV_DONTFORK);
            }
            staging.register(place, len, Modes::WP).map(|()| place).inspect_err(|_| {
                // SAFETY: our own mapping, unused.
                let _ = unsafe { mem::munmap(place, len) };
            })
        });
        let place = place.inspect_err(|_| {
            // SAFETY: our own mapping, unused.
            let _ = unsafe { mem::munmap(table, Region::table_len(pages)) };
        })?;
        *self = Region { base, pages, first, staging: place, table };
        Ok(())
    }

    fn table_len(pages: usize) -> usize {
        (pages.div_ceil(EXTENT_PAGES) * size_of::<Piece>()).next_multiple_of(PAGE_SIZE)
    }

    /// What its entries and the tables of its pieces take, bytes.
    pub fn tables_bytes(&self) -> usize {
        self.pages * size_of::<Entry>() + Region::table_len(self.pages)
    }

    /// Gives everything up. Nothing may be held or stored any more.
    pub fn end(&mut self) {
        // SAFETY: our own mappings; the region is none afterwards.
        unsafe {
            let _ = mem::munmap(self.staging, self.pages * PAGE_SIZE);
            let _ = mem::munmap(self.table, Region::table_len(self.pages));
        }
        *self = Region { base: 0, pages: 0, first: 0, staging: 0, table: 0 };
    }

    /// Whether there is one.
    pub fn exists(&self) -> bool {
        self.base != 0
    }

    /// Its pieces.
    pub fn pieces(&self) -> usize {
        self.pages.div_ceil(EXTENT_PAGES)
    }

    /// A piece; panics beyond the last.
    pub fn piece(&mut self, n: usize) -> &mut Piece {
        assert!(n < self.pieces());
        // SAFETY: within the table, of which zeros are valid pieces; borrowed from the region.
        unsafe { &mut *(self.table as *mut Piece).add(n) }
    }

    /// The pages of a piece: the first and the one after the last, counted within the range.
    pub fn span(&self, piece: usize) -> (usize, usize) {
        let lo = piece * EXTENT_PAGES;
        (lo, (lo + EXTENT_PAGES).min(self.pages))
    }

    /// The address of a page.
    pub fn addr(&self, page: usize) -> usize {
        self.base + page * PAGE_SIZE
    }

    /// Where a page lies while it is set aside.
    pub fn staged_at(&self, page: usize) -> usize {
        self.staging + page * PAGE_SIZE
    }

    /// The entry of a page.
    pub fn cell<'a>(&self, channel: &'a Channel, page: usize) -> &'a AtomicU64 {
        channel.entry(self.first + page).expect("a region lies within the channel")
    }

    /// The page's entry as it is.
    pub fn entry(&self, channel: &Channel, page: usize) -> Entry {
        Entry(self.cell(channel, page).load(SeqCst))
    }

    /// Ends the holding of a page: its entry says `then`. Whether somebody waits for it.
    pub fn release(&self, channel: &Channel, page: usize, then: Entry) -> bool {
        let held = Entry::new(State::Held, 0);
        let cell = self.cell(channel, page);
        if cell.compare_exchange(held.0, then.0, SeqCst, SeqCst).is_ok() {
            return false;
        }
        // Only we make it anything else than wanted.
        cell.store(then.0, SeqCst);
        true
    }
}
