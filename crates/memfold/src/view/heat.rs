//! The address space of a process as a picture: 2 MiB by 2 MiB, what of it is in use, cold, set aside, folded, or not managed.
//!
//! What the pager knows of an extent the process says itself, when it is asked ([`memfold_pager::heat`]); what is in memory say its page tables,
//! read from outside. Where those may not be read, as of a program that keeps itself from being traced, the process's last scan stands for them, and
//! of what is not managed nothing is seen.

use crate::answer;
use crate::pages::PageFile;
use memfold_pager::control::Command;
use memfold_pager::heat::{Row, PREFIX};
use memfold_sys::pagemap::{Categories, Pagemap, Query, Run};
use memfold_sys::{EXTENT_SIZE, PAGE_SIZE};
use nix::time::{clock_gettime, ClockId};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::time::{Duration, Instant};

/// No address of a program is higher.
const HIGHEST: u64 = 1 << 57;

/// What the pages of an extent, or of several, are; how many of each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// Managed, in memory, and touched not long ago.
    pub in_use: u64,
    /// Managed, in memory, not touched for half a cold age.
    pub cooling: u64,
    /// Managed, in memory, not touched for a cold age.
    pub cold: u64,
    /// Set aside.
    pub aside: u64,
    /// Folded.
    pub folded: u64,
    /// In memory, and not managed.
    pub other: u64,
    /// In memory, and memfold's own: what is set aside or folded lies there.
    pub own: u64,
}

/// What most pages of a cell are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    InUse,
    Cooling,
    Cold,
    Aside,
    Folded,
    Other,
    Own,
    /// No page is anywhere.
    Nothing,
}

impl Kind {
    /// Those that there are to see, with what they are called; what is more in use comes first.
    pub const SHOWN: [(Kind, &'static str); 7] = [
        (Kind::InUse, "in use"),
        (Kind::Cooling, "cooling"),
        (Kind::Cold, "cold"),
        (Kind::Aside, "aside"),
        (Kind::Folded, "folded"),
        (Kind::Other, "not managed"),
        (Kind::Own, "memfold's"),
    ];

    /// The letter that stands for it, for eyes and terminals without colours.
    pub fn letter(self) -> char {
        match self {
            Kind::InUse => '#',
            Kind::Cooling => '+',
            Kind::Cold => '-',
            Kind::Aside => 'o',
            Kind::Folded => ':',
            Kind::Other => 'x',
            Kind::Own => 'm',
            Kind::Nothing => ' ',
        }
    }
}

impl Pages {
    fn of(row: &Row, present: Option<u64>, cold_age: Duration) -> Pages {
        let managed = u64::from(row.managed);
        let (aside, folded) = (u64::from(row.aside), u64::from(row.stored));
        let all = present.unwrap_or(u64::from(row.present));
        let resident = all.min(managed.saturating_sub(aside + folded));
        let hot = u64::from(row.hot).min(resident);
        let mut pages = Pages { in_use: hot, aside, folded, other: all - resident, ..Pages::default() };
        let untouched = Duration::from_millis(u64::from(row.untouched_ms));
        let place = match untouched {
            age if age < cold_age / 2 => &mut pages.in_use,
            age if age < cold_age => &mut pages.cooling,
            _ => &mut pages.cold,
        };
        *place += resident - hot;
        pages
    }

    fn add(&mut self, other: &Pages) {
        self.in_use += other.in_use;
        self.cooling += other.cooling;
        self.cold += other.cold;
        self.aside += other.aside;
        self.folded += other.folded;
        self.other += other.other;
        self.own += other.own;
    }

    /// How many are of a kind.
    pub fn of_kind(&self, kind: Kind) -> u64 {
        match kind {
            Kind::InUse => self.in_use,
            Kind::Cooling => self.cooling,
            Kind::Cold => self.cold,
            Kind::Aside => self.aside,
            Kind::Folded => self.folded,
            Kind::Other => self.other,
            Kind::Own => self.own,
            Kind::Nothing => 0,
        }
    }

    /// What most of them are; of two kinds with as many the one that is more in use.
    pub fn kind(&self) -> Kind {
        let kinds = Kind::SHOWN.iter().rev().map(|(kind, _)| (self.of_kind(*kind), *kind));
        kinds
            .filter(|(pages, _)| *pages > 0)
            .max_by_key(|(pages, _)| *pages)
            .map_or(Kind::Nothing, |most| most.1)
    }
}

/// The picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// The extents in which there is anything, by address.
    extents: Vec<(u64, Pages)>,
    /// How long it took to be made, the process's time included.
    pub took: Duration,
    /// CPU time that it took here.
    pub spent: Duration,
}

/// One line of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The address of the first cell.
    pub address: u64,
    /// The cells.
    pub cells: Vec<Kind>,
}

impl Picture {
    /// Asks the process for it, and looks at its page tables.
    ///
    /// # Errors
    /// The process has ended, does not answer in time or cannot tell.
    pub fn take(file: &PageFile, pid: u32, cold_age: Duration, timeout: Duration) -> anyhow::Result<Picture> {
        let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
        let used = || clock_gettime(clock).map(Duration::from).unwrap_or_default();
        let (began, before) = (Instant::now(), used());
        let rows = ask(file, pid, timeout)?;
        let present = present(pid);
        let picture = Picture::of(&rows, present.as_ref(), cold_age);
        Ok(Picture { took: began.elapsed(), spent: used() - before, ..picture })
    }

    fn of(rows: &[Row], present: Option<&BTreeMap<u64, u64>>, cold_age: Duration) -> Picture {
        let mut extents: BTreeMap<u64, Pages> = BTreeMap::new();
        for (base, pages) in present.into_iter().flatten() {
            extents.insert(*base, Pages { other: *pages, ..Pages::default() });
        }
        let own = rows
            .iter()
            .filter(|row| row.own > 0)
            .map(|row| (row.base, row.base.saturating_add(u64::from(row.own) * EXTENT_SIZE as u64)));
        for (start, end) in own {
            for (_, pages) in extents.range_mut(start..end) {
                *pages = Pages { own: pages.other + pages.own, ..Pages::default() };
            }
        }
        for row in rows.iter().filter(|row| row.own == 0) {
            let seen = present.map(|present| present.get(&row.base).copied().unwrap_or(0));
            extents.insert(row.base, Pages::of(row, seen, cold_age));
        }
        extents.retain(|_, pages| pages.kind() != Kind::Nothing);
        Picture { extents: extents.into_iter().collect(), ..Picture::default() }
    }

    /// All pages together.
    pub fn sum(&self) -> Pages {
        let mut sum = Pages::default();
        self.extents.iter().for_each(|(_, pages)| sum.add(pages));
        sum
    }

    /// At most so many cells, each with its address and what most of its pages are, and how many bytes a cell stands for. What lies between two
    /// extents and is empty is one empty cell.
    pub fn cells(&self, room: usize) -> (Vec<(u64, Kind)>, u64) {
        let mut cells: Vec<(u64, Pages)> = Vec::new();
        for (at, (base, pages)) in self.extents.iter().enumerate() {
            let gap = at > 0 && self.extents[at - 1].0 + EXTENT_SIZE as u64 != *base;
            if gap {
                cells.push((self.extents[at - 1].0 + EXTENT_SIZE as u64, Pages::default()));
            }
            cells.push((*base, *pages));
        }
        let each = cells.len().div_ceil(room.max(1)).max(1);
        let together = |cells: &[(u64, Pages)]| {
            let mut sum = Pages::default();
            cells.iter().for_each(|(_, pages)| sum.add(pages));
            (cells[0].0, sum.kind())
        };
        (cells.chunks(each).map(together).collect(), (each * EXTENT_SIZE) as u64)
    }

    /// Lays them out in at most so many lines of so many.
    pub fn lines(&self, lines: usize, width: usize) -> (Vec<Line>, u64) {
        let (cells, each) = self.cells(lines * width);
        let lines = cells
            .chunks(width.max(1))
            .map(|line| Line { address: line[0].0, cells: line.iter().map(|cell| cell.1).collect() });
        (lines.collect(), each)
    }
}

/// What the process says of its extents.
fn ask(file: &PageFile, pid: u32, timeout: Duration) -> anyhow::Result<Vec<Row>> {
    let bytes = answer::ask(file, pid, Command::Heat, PREFIX, timeout)?;
    Ok(Row::all(&bytes)
        .filter(|row| row.base < HIGHEST && row.base.is_multiple_of(EXTENT_SIZE as u64))
        .collect())
}

/// How many pages are in memory, by the address of their extent; `None` where that may not be seen.
fn present(pid: u32) -> Option<BTreeMap<u64, u64>> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    let pagemap = Pagemap::open_at(&CString::new(format!("/proc/{pid}/pagemap")).ok()?).ok()?;
    let query = Query {
        all: Categories::PRESENT,
        none: Categories::ZERO,
        report: Categories::PRESENT,
        protect: false,
    };
    let mut found = BTreeMap::new();
    let mut runs = [Run::EMPTY; 512];
    for line in maps.lines() {
        let (start, end) = line.split_once(' ').and_then(|(range, _)| range.split_once('-'))?;
        let (mut at, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
        while at < end {
            // The kernel's own page at the end of the address space has none.
            let Ok((count, stopped)) = pagemap.scan(at, end, &query, &mut runs) else { break };
            for run in &runs[..count] {
                note(&mut found, run.start, run.end);
            }
            if stopped <= at {
                break;
            }
            at = stopped;
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Adds a run of pages to the extents in which they lie.
fn note(found: &mut BTreeMap<u64, u64>, mut start: u64, end: u64) {
    let size = EXTENT_SIZE as u64;
    while start < end {
        let base = start / size * size;
        let stop = end.min(base + size);
        *found.entry(base).or_default() += (stop - start) / PAGE_SIZE as u64;
        start = stop;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLD: Duration = Duration::from_secs(10);
    const SIZE: u64 = EXTENT_SIZE as u64;

    fn row(number: u64, untouched_ms: u32, stored: u16, aside: u16) -> Row {
        Row {
            base: number * SIZE,
            untouched_ms,
            managed: 512,
            stored,
            aside,
            present: 512 - stored - aside,
            ..Row::default()
        }
    }

    #[test]
    fn a_cell_is_what_most_of_its_pages_are() {
        let kind = |row: Row| Pages::of(&row, None, COLD).kind();
        assert_eq!(kind(row(1, 0, 0, 0)), Kind::InUse);
        assert_eq!(kind(row(1, 6_000, 0, 0)), Kind::Cooling);
        assert_eq!(kind(row(1, 60_000, 100, 0)), Kind::Cold);
        assert_eq!(kind(row(1, 60_000, 100, 300)), Kind::Aside);
        assert_eq!(kind(row(1, 60_000, 300, 100)), Kind::Folded);
        assert_eq!(kind(Row { hot: 512, ..row(1, 60_000, 0, 0) }), Kind::InUse);
        assert_eq!(kind(Row { present: 0, ..row(1, 60_000, 0, 0) }), Kind::Nothing);
    }

    #[test]
    fn what_the_page_tables_have_and_the_pager_does_not_is_not_managed() {
        let present = BTreeMap::from([(SIZE, 200), (9 * SIZE, 3), (21 * SIZE, 7)]);
        let own = Row { base: 20 * SIZE, own: 2, ..Row::default() };
        let picture = Picture::of(&[own, row(1, 0, 312, 0), row(2, 0, 512, 0)], Some(&present), COLD);
        assert_eq!(picture.sum(), Pages { in_use: 200, folded: 824, other: 3, own: 7, ..Pages::default() });
        let (lines, each) = picture.lines(2, 10);
        assert_eq!(each, SIZE);
        assert_eq!(
            lines,
            [Line {
                address: SIZE,
                cells: vec![Kind::Folded, Kind::Folded, Kind::Nothing, Kind::Other, Kind::Nothing, Kind::Own]
            }]
        );
    }

    #[test]
    fn a_large_address_space_fits_into_a_small_room() {
        let rows: Vec<Row> = (0..5000).map(|number| row(number, 0, 512, 0)).collect();
        let (lines, each) = Picture::of(&rows, None, COLD).lines(3, 40);
        assert!(lines.len() <= 3 && lines.iter().all(|line| line.cells.len() <= 40), "{each}");
        assert!(each / SIZE * 120 >= 5000 && lines[1].address > lines[0].address);
        assert_eq!(Picture::default().lines(0, 0).0, []);
    }

    #[test]
    fn runs_are_split_where_extents_meet() {
        let mut found = BTreeMap::new();
        note(&mut found, SIZE - 4096, 2 * SIZE + 8192);
        assert_eq!(found, BTreeMap::from([(0, 1), (SIZE, 512), (2 * SIZE, 2)]));
        assert!(present(std::process::id()).is_none_or(|found| found.values().sum::<u64>() > 10));
    }
}
