//! What is where, extent by extent, for who looks at a heat map of the program: one row of plain numbers for each extent that the
//! tables know.
//!
//! The rows go to a file that who asks has made beside the control page, named as that with [`PREFIX`] and the number of the request in
//! front. So a program that nobody looks at spends nothing on it, neither time nor room on its page.
//!
//! What it is not: an inventory ([`crate::inventory`]). No page table is read; what is in memory is as of the last scan of each extent.
//!
//! Background thread only. It tries the locks of extents, and lets others go on between two pieces.

use crate::evict::worker::Worker;
use crate::tables::extent::Extent;
use crate::text::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_sys::signal::quietly;
use memfold_sys::{file, mem, Errno, Result, EXTENT_SIZE};

/// What the name of the file begins with.
pub const PREFIX: &str = "heat-";

/// Rows that are written by one call.
const PIECE: usize = 64;

/// What is known of one extent. In the file it is [`Row::LEN`] bytes, little end first, in the order of the fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Its address.
    pub base: u64,
    /// For how long nothing of it was seen to be touched, ms; a lower bound.
    pub untouched_ms: u32,
    /// So many extents from here on are memfold's own, or a part of them is; nothing else is said in such a row. 0 in all others.
    pub own: u32,
    /// Pages that may be evicted.
    pub managed: u16,
    /// Pages that are evicted: compressed, one word repeated, or in the tier below memory.
    pub stored: u16,
    /// Pages that are set aside.
    pub aside: u16,
    /// Pages that were touched while they were away, and are left alone for a while.
    pub hot: u16,
    /// Pages in memory at the last scan.
    pub present: u16,
    /// Pages that are the program's and are never evicted.
    pub excluded: u16,
}

impl Row {
    /// Bytes of a row in the file.
    pub const LEN: usize = 28;

    /// The rows in a file's bytes; what is left over at the end is none.
    pub fn all(bytes: &[u8]) -> impl Iterator<Item = Row> + '_ {
        bytes.chunks_exact(Row::LEN).map(|row| {
            let half = |n: usize| u16::from_le_bytes([row[16 + 2 * n], row[17 + 2 * n]]);
            let word =
                |at: usize| row[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            Row {
                base: u64::from(word(4)) << 32 | u64::from(word(0)),
                untouched_ms: word(8),
                own: word(12),
                managed: half(0),
                stored: half(1),
                aside: half(2),
                hot: half(3),
                present: half(4),
                excluded: half(5),
            }
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; Row::LEN] {
        let mut bytes = [0; Row::LEN];
        bytes[..8].copy_from_slice(&self.base.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.untouched_ms.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.own.to_le_bytes());
        let halves = [self.managed, self.stored, self.aside, self.hot, self.present, self.excluded];
        for (place, half) in bytes[16..].chunks_exact_mut(2).zip(halves) {
            place.copy_from_slice(&half.to_le_bytes());
        }
        bytes
    }
}

impl Worker {
    /// Writes a row for each extent of which there is anything to say to the file of that number. An error where there is no such file.
    pub(crate) fn write_heat(&mut self, number: u64) -> Result<()> {
        let mut prefix = Line::new();
        let _ = write!(prefix, "{PREFIX}{number}-");
        let engine = self.engine;
        let dir = engine.display.reports().ok_or(Errno::ENOENT)?;
        let file = dir.open_beside(prefix.as_str(), libc::O_WRONLY | libc::O_APPEND)?;
        let (mut piece, mut len) = ([0; PIECE * Row::LEN], 0);
        let now = self.now.0;
        let own = mem::own_ranges().filter(|(start, end)| start < end).map(|(start, end)| {
            let base = start / EXTENT_SIZE * EXTENT_SIZE;
            Row { base: base as u64, own: (end - base).div_ceil(EXTENT_SIZE) as u32, ..Row::default() }
        });
        let known = engine.space().all().map(|extent| row_of(extent, now));
        // First, as what is known of an extent counts for more.
        for row in own.chain(known) {
            if row.managed | row.stored | row.aside | row.excluded == 0 && row.own == 0 {
                continue;
            }
            piece[len..len + Row::LEN].copy_from_slice(&row.bytes());
            len += Row::LEN;
            if len == piece.len() {
                quietly(|| file::write_all(file.raw(), &piece))?;
                len = 0;
                self.stay_responsive();
            }
        }
        quietly(|| file::write_all(file.raw(), &piece[..len]))
    }
}

fn row_of(extent: &Extent, now: u64) -> Row {
    let half = |pages: usize| pages as u16;
    let managed = extent.managed.load();
    let (aside, away) = (extent.aside_pages(), extent.away_pages());
    let since = untouched_since(extent, now);
    Row {
        base: extent.base() as u64,
        untouched_ms: u32::try_from(now.saturating_sub(since) / 1_000_000).unwrap_or(u32::MAX),
        managed: half(managed.len()),
        stored: half(away.minus(&aside).len()),
        aside: half(aside.len()),
        hot: half(managed.and(&extent.hot.load()).len()),
        present: half(managed.len().min(extent.present.load(Relaxed) as usize)),
        own: 0,
        excluded: half(extent.anonymous.load().or(&extent.left_alone.load()).minus(&managed).len()),
    }
}

/// Since when nothing of an extent was seen to be touched, ns.
pub(crate) fn untouched_since(extent: &Extent, now: u64) -> u64 {
    // Without its lock nothing is known of its age.
    let since = extent.try_lock().map(|mut locked| locked.age().since(now));
    match extent.away_pages().is_empty() {
        true => since.unwrap_or(now),
        false => extent.last_restore.load(Relaxed).max(extent.last_aside.load(Relaxed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn rows_read_back_as_they_were_written_and_half_a_row_is_none() {
        let row = |base| Row {
            base,
            untouched_ms: 70_000,
            own: 0,
            managed: 512,
            stored: 300,
            aside: 7,
            hot: 9,
            present: 200,
            excluded: 1,
        };
        let rows = [
            row(2 << 20),
            row(0x7fff_ffe0_0000),
            Row { untouched_ms: u32::MAX, own: 1 << 20, ..Row::default() },
        ];
        let mut bytes: Vec<u8> = rows.iter().flat_map(Row::bytes).collect();
        bytes.extend([1; Row::LEN - 1]);
        assert_eq!(Row::all(&bytes).collect::<Vec<_>>(), rows);
    }
}
