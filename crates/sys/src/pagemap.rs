//! `PAGEMAP_SCAN` (Linux 6.7) and `/proc/self/pagemap`: which pages are there, huge, or were written.

use crate::call::Result;
use crate::file::{self, Fd};
use crate::inject::{self, Point};
use crate::{syscall, PAGE_SIZE};
use bitflags::bitflags;
use core::ffi::CStr;

bitflags! {
    /// Properties of a page, as `PAGEMAP_SCAN` names them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Categories: u64 {
        /// In a mapping of which writes are tracked: registered with a userfaultfd, for write protection with `WP_ASYNC`.
        const TRACKED = 1 << 0;
        /// Written since it was last write-protected.
        const WRITTEN = 1 << 1;
        /// In memory.
        const PRESENT = 1 << 3;
        /// In swap.
        const SWAPPED = 1 << 4;
        /// The shared zero page.
        const ZERO = 1 << 5;
        /// Part of a transparent huge page that is mapped as a whole.
        const HUGE = 1 << 6;
    }
}

/// A run of pages with the same categories.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// First byte.
    pub start: u64,
    /// Byte after the last.
    pub end: u64,
    raw_categories: u64,
}

impl Run {
    /// An empty run, to make room for the kernel's.
    pub const EMPTY: Run = Run { start: 0, end: 0, raw_categories: 0 };

    /// What holds for all pages of it.
    pub fn categories(&self) -> Categories {
        Categories::from_bits_retain(self.raw_categories)
    }
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// All of these must hold.
    pub all: Categories,
    /// None of these may hold.
    pub none: Categories,
    /// Report these for each run; also what splits runs.
    pub report: Categories,
    /// Write-protect the pages found, so that the next scan sees new writes only. The range must be
    /// registered for write protection with `WP_ASYNC`.
    pub protect: bool,
}

#[repr(C)]
struct Arg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    inverted: u64,
    mask: u64,
    any_of: u64,
    report: u64,
}

const IOC_SCAN: u32 = (3 << 30) | ((core::mem::size_of::<Arg>() as u32) << 16) | ((b'f' as u32) << 8) | 16;
const FLAG_WP_MATCHING: u64 = 1 << 0;
const FLAG_CHECK_WPASYNC: u64 = 1 << 1;

/// An open `/proc/self/pagemap`.
#[derive(Debug)]
pub struct Pagemap {
    fd: Fd,
}

impl Pagemap {
    /// Opens the page map of the calling process: by the calling thread, because the main thread may have ended.
    pub fn open() -> Result<Pagemap> {
        Pagemap::open_at(c"/proc/thread-self/pagemap")
    }

    /// Takes over one that is open.
    pub fn handed_over(fd: Fd) -> Pagemap {
        Pagemap { fd }
    }

    /// Gives up ownership of the descriptor.
    pub fn into_fd(self) -> Fd {
        self.fd
    }

    /// Opens the page map at a path, such as that of another process: `/proc/PID/pagemap`.
    pub fn open_at(path: &CStr) -> Result<Pagemap> {
        file::open(path, libc::O_RDONLY, 0).map(|fd| Pagemap { fd })
    }

    /// Finds runs of pages in `start..end`. Returns how many of `runs` were filled and the address where
    /// the walk stopped: `end`, or less when `runs` was too short.
    pub fn scan(&self, start: usize, end: usize, query: &Query, runs: &mut [Run]) -> Result<(usize, usize)> {
        if let Some(error) = inject::error(Point::Scan) {
            return Err(error);
        }
        let mut arg = Arg {
            size: core::mem::size_of::<Arg>() as u64,
            flags: if query.protect { FLAG_WP_MATCHING | FLAG_CHECK_WPASYNC } else { 0 },
            start: start as u64,
            end: end as u64,
            walk_end: 0,
            vec: runs.as_mut_ptr() as u64,
            vec_len: runs.len() as u64,
            max_pages: 0,
            inverted: query.none.bits(),
            mask: (query.all | query.none).bits(),
            any_of: 0,
            report: query.report.bits(),
        };
        // SAFETY: `arg` is what the request takes, and `runs` is valid for `vec_len` entries.
        let filled = unsafe { syscall!(ioctl, self.fd.raw(), IOC_SCAN, &mut arg as *mut Arg as usize) }?;
        Ok((filled, arg.walk_end as usize))
    }

    /// How many of `pages` pages, from the first on, a move from `from` to `to` has moved that said `EEXIST`, where nothing
    /// was at `to` before.
    ///
    /// Linux 6.18 keeps the `EAGAIN` of a first try in mind when the second one succeeds, tries a third time, and then
    /// finds the pages that it has just moved. (Told from what it does; `move_pages` in its `mm/userfaultfd.c` is the place.)
    /// Of a huge page all that moved are counted, and holes among them: who asked the kernel for the rest could be told of another error for
    /// pages that have long moved.
    pub fn moved_unseen(&self, from: usize, to: usize, pages: usize) -> Result<usize> {
        let is_there = |entry: &Entry| entry.present() || entry.swapped();
        let (mut left, mut arrived) = ([Entry::default(); 64], [Entry::default(); 64]);
        let mut moved = 0;
        for at in (0..pages).step_by(64) {
            let part = 64.min(pages - at);
            let read = self
                .entries(from + at * PAGE_SIZE, &mut left[..part])?
                .min(self.entries(to + at * PAGE_SIZE, &mut arrived[..part])?);
            for index in 0..read {
                if is_there(&left[index]) {
                    return Ok(moved);
                }
                if is_there(&arrived[index]) {
                    moved = at + index + 1;
                }
            }
            if read < part {
                break;
            }
        }
        Ok(moved)
    }

    /// Reads the entries of consecutive pages from `start` on. Returns how many were read.
    pub fn entries(&self, start: usize, out: &mut [Entry]) -> Result<usize> {
        // SAFETY: entries are plain words that any bytes may fill.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<u8>(), core::mem::size_of_val(out))
        };
        Ok(file::pread(self.fd.raw(), bytes, (start / PAGE_SIZE * 8) as u64)? / 8)
    }
}

/// One word of `/proc/self/pagemap` (Documentation/admin-guide/mm/pagemap.rst).
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Entry(u64);

impl Entry {
    /// In memory.
    pub fn present(self) -> bool {
        self.0 >> 63 & 1 == 1
    }

    /// The number of the physical page; 0 without `CAP_SYS_ADMIN`, or where there is none.
    pub fn frame(self) -> u64 {
        if self.present() {
            self.0 & ((1 << 55) - 1)
        } else {
            0
        }
    }

    /// In swap.
    pub fn swapped(self) -> bool {
        self.0 >> 62 & 1 == 1
    }

    /// Mapped by this process alone.
    pub fn exclusive(self) -> bool {
        self.0 >> 56 & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem;
    use crate::uffd::{Features, Modes, Userfaultfd};

    #[test]
    fn what_moved_unseen_is_counted_to_the_last_page_over_holes() {
        let pagemap = Pagemap::open().unwrap();
        let pages = 512;
        let [from, to] = [(); 2].map(|()| mem::map_anonymous(0, pages * PAGE_SIZE, 0).unwrap());
        let moved = || pagemap.moved_unseen(from, to, pages).unwrap();
        // SAFETY: within the mappings just made.
        let write = |base: usize, page: usize| unsafe { *((base + page * PAGE_SIZE) as *mut u64) = 1 };
        assert_eq!(moved(), 0);
        (0..pages).filter(|page| !(60..200).contains(page)).for_each(|page| write(to, page));
        assert_eq!(moved(), pages);
        write(from, 300);
        assert_eq!(moved(), 300);
        write(from, 199);
        assert_eq!(moved(), 60, "holes behind the last that moved are left to the kernel");
        write(from, 0);
        assert_eq!(moved(), 0);
    }

    #[test]
    fn a_scan_reports_exactly_the_pages_written_since_the_last() {
        let uffd = Userfaultfd::open().expect("userfaultfd is permitted to root");
        uffd.handshake(Features::WP_ASYNC | Features::WP_UNPOPULATED).expect("Linux 6.7 or later");
        let pagemap = Pagemap::open().unwrap();
        let base = mem::map_anonymous(0, 8 * PAGE_SIZE, 0).unwrap();
        // SAFETY: within the mapping just made.
        let write = |page: usize| unsafe { *((base + page * PAGE_SIZE) as *mut u64) = 1 };
        (0..6).for_each(write);
        uffd.register(base, 8 * PAGE_SIZE, Modes::WP).unwrap();
        let written = Categories::PRESENT | Categories::WRITTEN;
        let query =
            Query { all: written, none: Categories::ZERO, report: Categories::WRITTEN, protect: true };
        let mut runs = [Run::EMPTY; 8];
        let (n, end) = pagemap.scan(base, base + 8 * PAGE_SIZE, &query, &mut runs).unwrap();
        assert_eq!((n, end), (1, base + 8 * PAGE_SIZE));
        assert_eq!((runs[0].start as usize, runs[0].end as usize), (base, base + 6 * PAGE_SIZE));
        assert_eq!(pagemap.scan(base, base + 8 * PAGE_SIZE, &query, &mut runs).unwrap().0, 0);
        write(2);
        write(7);
        let (n, _) = pagemap.scan(base, base + 8 * PAGE_SIZE, &query, &mut runs).unwrap();
        assert_eq!(n, 2);
        assert_eq!(runs[0].start as usize, base + 2 * PAGE_SIZE);
        assert_eq!(runs[1].start as usize, base + 7 * PAGE_SIZE);
    }
}
