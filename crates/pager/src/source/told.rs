//! What somebody outside tells: DAMON and idle page tracking, which need root, seen by the launcher or the daemon and written to a
//! file ([`crate::report`]).
//!
//! Invariants: the file is read, never mapped: one that is cut short meanwhile tells nothing, and ends nobody. What it says of a page
//! for which the program has no more memory than before is all the same: it only says what is tried.

use super::writes::scan_and_begin_anew;
use super::{AccessSource, Seen};
use crate::kernel::Kernel;
use crate::report::{Ages, Header};
use crate::tables::bitmap::PageSet;
use crate::tables::extent::Extent;
use memfold_sys::file::{self, Fd};
use memfold_sys::Errno;

/// The last report, if there is one.
pub(crate) struct Told {
    report: Option<(Header, Fd)>,
}

impl Told {
    /// Nothing.
    pub const fn new() -> Told {
        Told { report: None }
    }

    /// The head of the last report.
    pub fn header(&self) -> Option<&Header> {
        self.report.as_ref().map(|(header, _)| header)
    }

    /// Takes a report in. Whether it is another one than the last.
    pub fn hear(&mut self, report: Fd) -> bool {
        let mut bytes = [0; Header::LEN];
        let whole = file::pread(report.raw(), &mut bytes, 0).is_ok_and(|read| read == Header::LEN);
        let Some(header) = whole.then(|| Header::read(&bytes)).flatten() else { return false };
        let other =
            self.header().is_none_or(|last| last.sequence != header.sequence || last.kind != header.kind);
        if other {
            self.report = Some((header, report));
        }
        other
    }

    /// Nothing is to be believed any more.
    pub fn forget(&mut self) {
        self.report = None;
    }

    /// What it says of the extent at `base`; `None` where that is nothing.
    fn ages(&self, base: usize) -> Option<Ages> {
        let (header, report) = self.report.as_ref()?;
        let read = |index: u64| {
            let mut bytes = [0; Ages::LEN];
            let whole = file::pread(report.raw(), &mut bytes, Header::offset_of(index)) == Ok(Ages::LEN);
            whole.then(|| Ages::read(&bytes))
        };
        // By address, as they are written.
        let (mut least, mut end) = (0, header.extents);
        while least < end {
            let middle = least + (end - least) / 2;
            let ages = read(middle)?;
            match ages.base.cmp(&(base as u64)) {
                core::cmp::Ordering::Equal => return Some(ages),
                core::cmp::Ordering::Less => least = middle + 1,
                core::cmp::Ordering::Greater => end = middle,
            }
        }
        None
    }

    /// The pages of an extent that were not touched for this long, ns.
    fn untouched(&self, base: usize, cold_age: u64) -> PageSet {
        let unit = self.header().map_or(0, |header| header.unit_ns);
        self.ages(base).map_or(PageSet::EMPTY, |ages| {
            PageSet::of(|index| {
                ages.ages[index] != 0 && u64::from(ages.ages[index]).saturating_mul(unit) >= cold_age
            })
        })
    }
}

impl AccessSource for Told {
    fn look(&self, kernel: &Kernel, extent: &Extent, cold_age: u64) -> Result<Seen, Errno> {
        let scan = scan_and_begin_anew(kernel, extent)?;
        let cold = scan.present.and(&self.untouched(extent.base(), cold_age));
        Ok(Seen { scan, cold })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
    use crate::source::Kind;
    use memfold_sys::{EXTENT_SIZE, PAGE_SIZE};
    use std::io::Write;
    use std::os::fd::IntoRawFd;

    const UNIT: u64 = 1_000;

    fn open(bytes: &[u8]) -> Fd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        // SAFETY: nobody else closes it.
        unsafe { Fd::from_raw(file.into_raw_fd()) }
    }

    fn told(sequence: u64) -> Report {
        let mut report = Report::new(Kind::Idle, sequence, UNIT, UNIT);
        for extent in [7usize, 3, 100, 4] {
            let base = extent * EXTENT_SIZE;
            report.note(base + PAGE_SIZE, base + 3 * PAGE_SIZE, UNIT * extent as u64);
        }
        report
    }

    #[test]
    fn each_extent_finds_the_ages_of_its_own_pages() {
        let mut source = Told::new();
        assert!(source.hear(open(&told(1).bytes())));
        for extent in [3, 4, 7, 100] {
            let base = extent * EXTENT_SIZE;
            assert_eq!(source.untouched(base, UNIT * extent as u64), PageSet::range(1, 3), "{extent}");
            assert!(source.untouched(base, UNIT * extent as u64 + 1).is_empty(), "{extent}");
        }
        for none in [0, 2, 5, 101] {
            assert!(source.untouched(none * EXTENT_SIZE, 0).is_empty(), "{none}");
        }
    }

    #[test]
    fn what_is_cut_short_or_no_report_tells_nothing() {
        let whole = told(1).bytes();
        let mut source = Told::new();
        for bytes in [&[][..], &whole[..Header::LEN - 1], &[7; 4096]] {
            assert!(!source.hear(open(bytes)) && source.header().is_none());
        }
        assert!(source.hear(open(&whole[..Header::LEN + Ages::LEN])));
        // Of the others nothing is there, and to look for one ends at what is missing.
        assert!(source.untouched(100 * EXTENT_SIZE, UNIT).is_empty());
        assert!(!source.hear(open(&whole)), "the same again");
        assert!(source.hear(open(&told(2).bytes())));
        source.forget();
        assert!(source.untouched(3 * EXTENT_SIZE, UNIT).is_empty());
    }
}
