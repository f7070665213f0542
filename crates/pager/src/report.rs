//! What an observer outside of a process has seen of its touches, as a file: for how long each page was not touched.
//!
//! The file lies beside the process's control page, named as that with [`PREFIX`] in front. Little-endian: a [`Header`], then for
//! each extent of which anything is to be said its [`Ages`], by address. It is written whole under another name and renamed, so that who
//! has it open reads one report to its end.
//!
//! What it is not: to be trusted with anything. It says what is tried ([`crate::source`]).

use crate::source::kind::Kind;
use crate::text::Line;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use memfold_sys::{EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// What the name of the file begins with.
pub const PREFIX: &str = "report-";

/// Why a source is not asked of which there is no report, and may be one soon.
pub const NOT_YET: &str = "no report yet";

/// First word of the file, little end first.
const MAGIC: u64 = u64::from_le_bytes(*b"touches\0");
/// Layout.
const VERSION: u32 = 1;
/// Bytes of the refusal.
const TEXT: usize = 256;

/// The head of a report.
pub struct Header {
    /// Who has seen it.
    pub kind: Kind,
    /// Another number in each report.
    pub sequence: u64,
    /// How often there is one, ns.
    pub every_ns: u64,
    /// What an age of 1 is, ns.
    pub unit_ns: u64,
    /// How many extents follow.
    pub extents: u64,
    /// Why nothing is observed; empty where something is.
    pub refusal: Line,
}

impl Header {
    /// Bytes in the file.
    pub const LEN: usize = 48 + TEXT;

    /// Where the ages of the extent with this number begin.
    pub fn offset_of(extent: u64) -> u64 {
        Header::LEN as u64 + extent.saturating_mul(Ages::LEN as u64)
    }

    /// From the beginning of a file; `None` for what is no report of this layout.
    pub fn read(bytes: &[u8; Header::LEN]) -> Option<Header> {
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (version, kind) = (word(8)? as u32, word(8)? >> 32);
        if word(0)? != MAGIC || version != VERSION {
            return None;
        }
        let text = bytes[48..].split(|&byte| byte == 0).next()?;
        let mut refusal = Line::new();
        refusal.push(core::str::from_utf8(text).ok()?);
        Some(Header {
            kind: Kind::from_number(kind),
            sequence: word(16)?,
            every_ns: word(24)?,
            unit_ns: word(32)?,
            extents: word(40)?,
            refusal,
        })
    }

    fn bytes(&self) -> [u8; Header::LEN] {
        let mut bytes = [0; Header::LEN];
        let second = u64::from(self.kind as u32) << 32 | u64::from(VERSION);
        let words = [MAGIC, second, self.sequence, self.every_ns, self.unit_ns, self.extents];
        for (word, raw) in words.iter().zip(bytes.chunks_exact_mut(8)) {
            raw.copy_from_slice(&word.to_le_bytes());
        }
        let text = self.refusal.as_str().as_bytes();
        bytes[48..48 + text.len()].copy_from_slice(text);
        bytes
    }
}

/// For how long each page of an extent was not touched.
pub struct Ages {
    /// The extent's address.
    pub base: u64,
    /// In units of the header, rounded down; 0 for pages of which that is not known, 255 for as much or more.
    pub ages: [u8; EXTENT_PAGES],
}

impl Ages {
    /// Bytes in the file.
    pub const LEN: usize = 8 + EXTENT_PAGES;

    /// From a file.
    pub fn read(bytes: &[u8; Ages::LEN]) -> Ages {
        let (base, ages) = bytes.split_at(8);
        let mut read = Ages { base: 0, ages: [0; EXTENT_PAGES] };
        read.ages.copy_from_slice(ages);
        read.base = base.iter().rev().fold(0, |base, &byte| base << 8 | u64::from(byte));
        read
    }
}

/// A report while it is put together.
pub struct Report {
    header: Header,
    extents: BTreeMap<usize, [u8; EXTENT_PAGES]>,
}

impl Report {
    /// Of nothing so far, by `kind`; there is one every `every_ns`, and ages are counted in `unit_ns`.
    pub fn new(kind: Kind, sequence: u64, every_ns: u64, unit_ns: u64) -> Report {
        let refusal = Line::new();
        let header = Header { kind, sequence, every_ns, unit_ns: unit_ns.max(1), extents: 0, refusal };
        Report { header, extents: BTreeMap::new() }
    }

    /// That nothing is observed, and why; what is longer than 255 bytes is cut.
    pub fn refusal(kind: Kind, sequence: u64, every_ns: u64, why: &str) -> Report {
        let mut report = Report::new(kind, sequence, every_ns, 1);
        report.header.refusal.push(why);
        report
    }

    /// The pages of `start..end` were not touched for so long, ns.
    pub fn note(&mut self, start: usize, end: usize, for_ns: u64) {
        let age = (for_ns / self.header.unit_ns).min(255) as u8;
        if age == 0 {
            return;
        }
        let mut at = start;
        while at < end {
            let base = at & !(EXTENT_SIZE - 1);
            let stop = end.min(base.saturating_add(EXTENT_SIZE));
            let ages = self.extents.entry(base).or_insert([0; EXTENT_PAGES]);
            ages[(at - base) / PAGE_SIZE..(stop - base).div_ceil(PAGE_SIZE)].fill(age);
            at = stop;
        }
    }

    /// The file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Header::LEN + self.extents.len() * Ages::LEN);
        let extents = self.extents.len() as u64;
        let refusal = &self.header.refusal;
        let mut header = Header { extents, refusal: Line::new(), ..self.header };
        header.refusal.push(refusal.as_str());
        bytes.extend_from_slice(&header.bytes());
        for (base, ages) in &self.extents {
            bytes.extend_from_slice(&(*base as u64).to_le_bytes());
            bytes.extend_from_slice(ages);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(bytes: &[u8]) -> Option<Header> {
        Header::read(bytes.get(..Header::LEN)?.try_into().ok()?)
    }

    #[test]
    fn a_report_says_what_was_noted() {
        let mut report = Report::new(Kind::DamonPaddr, 9, 70, 10);
        let base = 5 * EXTENT_SIZE;
        report.note(base + EXTENT_SIZE - PAGE_SIZE, base + EXTENT_SIZE + 2 * PAGE_SIZE, 29);
        report.note(base, base + PAGE_SIZE, 1 << 60);
        report.note(base + PAGE_SIZE, base + 2 * PAGE_SIZE, 9);
        let bytes = report.bytes();
        let head = header(&bytes).unwrap();
        assert_eq!((head.kind, head.sequence, head.every_ns, head.unit_ns), (Kind::DamonPaddr, 9, 70, 10));
        assert_eq!((head.extents, head.refusal.as_str()), (2, ""));
        assert_eq!(bytes.len() as u64, Header::offset_of(2));
        let ages = |n| Ages::read(bytes[Header::offset_of(n) as usize..][..Ages::LEN].try_into().unwrap());
        let (first, second) = (ages(0), ages(1));
        assert_eq!((first.base, second.base), (base as u64, (base + EXTENT_SIZE) as u64));
        assert_eq!((first.ages[0], first.ages[1], first.ages[EXTENT_PAGES - 1]), (255, 0, 2));
        assert_eq!(second.ages[..3], [2, 2, 0]);
    }

    #[test]
    fn a_refusal_says_why_and_another_layout_is_none() {
        let mut bytes = Report::refusal(Kind::Idle, 1, 2, &"no".repeat(300)).bytes();
        assert_eq!(header(&bytes).unwrap().refusal.as_str(), &"no".repeat(300)[..255]);
        bytes[8] += 1;
        assert!(header(&bytes).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_report_or_none(bytes in prop::collection::vec(any::<u8>(), Header::LEN), begins in any::<bool>()) {
            let mut bytes = bytes;
            if begins {
                bytes[..16].copy_from_slice(&Report::new(Kind::Idle, 0, 0, 0).bytes()[..16]);
            }
            if let Some(header) = header(&bytes) {
                prop_assert!(begins && header.refusal.as_str().len() < TEXT);
            }
        }
    }
}
