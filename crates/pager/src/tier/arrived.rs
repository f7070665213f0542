//! A cluster that was fetched: the compressed bytes of its pages, for one thread that brings them back.
//!
//! The bytes begin with a header: how many pages there are, and for each the codec and how many bytes it takes, in the order in which they
//! lie behind it. What comes from a tier was sealed, and is looked at like any foreign input all the same.

use super::clusters::{Clusters, Place};
use super::location::Berth;
use super::{CLUSTER, CLUSTER_BYTES, UNSEALED_BYTES};
use crate::codec::CodecId;
use crate::slot::may_take;
use memfold_sys::{mem, Result, PAGE_SIZE};

/// Bytes of the header.
pub const HEADER: usize = 4 + CLUSTER * RECORD;
const RECORD: usize = 4;

/// Writes a cluster's bytes, page by page.
pub struct Writer<'a> {
    bytes: &'a mut [u8],
    pages: usize,
    len: usize,
}

impl<'a> Writer<'a> {
    /// An empty cluster in `bytes`, [`CLUSTER_BYTES`] of them.
    pub fn new(bytes: &'a mut [u8]) -> Writer<'a> {
        debug_assert_eq!(bytes.len(), CLUSTER_BYTES);
        bytes[..HEADER].fill(0);
        Writer { bytes, pages: 0, len: HEADER }
    }

    /// Whether there may be no room for another page.
    pub fn is_full(&self) -> bool {
        self.pages == CLUSTER || self.len + PAGE_SIZE > UNSEALED_BYTES
    }

    /// Room for the bytes of the next page, where it is not full.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.len..self.len + PAGE_SIZE]
    }

    /// The next page is what was put into the first `len` bytes of the room. Returns which page of the cluster it is.
    pub fn add(&mut self, codec: CodecId, len: usize) -> usize {
        let record = &mut self.bytes[4 + self.pages * RECORD..][..RECORD];
        record[0] = codec.bits() as u8;
        record[2..].copy_from_slice(&(len as u16).to_le_bytes());
        self.pages += 1;
        self.bytes[0] = self.pages as u8;
        self.len += len;
        self.pages - 1
    }

    /// How many pages there are, and their bytes with the header.
    pub fn size(&self) -> (usize, usize) {
        (self.pages, self.len)
    }
}

/// One page of it.
#[derive(Clone, Copy)]
struct Record {
    codec: CodecId,
    at: usize,
    len: usize,
}

/// What was fetched last.
pub struct Arrived {
    /// Where the bytes are; 0 before any were.
    base: usize,
    /// Which cluster that is, and where it lay.
    from: Option<(u32, Place)>,
    records: [Option<Record>; CLUSTER],
    /// Whether a cluster may lie there unsealed, also one that was forgotten.
    dirty: bool,
}

impl Default for Arrived {
    fn default() -> Self {
        Arrived::new()
    }
}

impl Arrived {
    /// Nothing; takes no memory.
    pub const fn new() -> Arrived {
        Arrived { base: 0, from: None, records: [None; CLUSTER], dirty: false }
    }

    /// Room for the bytes of a cluster that lies there, on the boundary of a page. What was fetched before is forgotten. `ENOMEM` when the
    /// kernel has no memory for it.
    pub fn room(&mut self, place: Place) -> Result<&mut [u8]> {
        let base = self.empty_room()?;
        let len = (place.bytes()).min(CLUSTER_BYTES);
        // SAFETY: our own mapping, of which nobody else has a reference.
        Ok(unsafe { core::slice::from_raw_parts_mut(base as *mut u8, len) })
    }

    /// The address of room for the bytes of any cluster. What was fetched before is forgotten. `ENOMEM` as above.
    pub fn empty_room(&mut self) -> Result<usize> {
        self.from = None;
        if self.base == 0 {
            // In place before it is read to, as far as there is memory.
            self.base = mem::map_own(CLUSTER_BYTES, libc::MAP_POPULATE)?;
            // A child that is forked while a read goes on has no part of what the disk writes there. Without that it has a copy.
            // SAFETY: advice on our own mapping.
            let _ = unsafe { mem::madvise(self.base, CLUSTER_BYTES, libc::MADV_DONTFORK) };
        }
        Ok(self.base)
    }

    /// The room now holds the cluster, unsealed, `len` bytes with its header. False where that makes no sense.
    pub fn accept(&mut self, number: u32, place: Place, len: usize) -> bool {
        self.dirty = true;
        let len = len.min(CLUSTER_BYTES);
        if self.base == 0 || len < HEADER {
            return false;
        }
        // SAFETY: our own mapping.
        let bytes = unsafe { core::slice::from_raw_parts(self.base as *const u8, len) };
        let Some(records) = parse(bytes) else { return false };
        (self.records, self.from) = (records, Some((number, place)));
        true
    }

    /// The cluster that was fetched.
    pub fn cluster(&self) -> Option<u32> {
        self.from.map(|(cluster, _)| cluster)
    }

    /// Whether the cluster was fetched from where it lies now.
    pub fn is(&self, number: u32, clusters: &Clusters) -> bool {
        self.from.is_some_and(|(from, place)| from == number && clusters.place(number) == Some(place))
    }

    /// Bytes of the cluster as it lies in its tier; 0 where there is none.
    pub fn bytes(&self) -> u64 {
        self.from.map_or(0, |(_, place)| place.bytes() as u64)
    }

    /// The codec and the bytes of a page of the cluster that was fetched. The caller has taken the entry that names it, and found since that it [is](Self::is)
    /// that cluster: it may move from then on, and its bytes are the same.
    pub fn page(&self, berth: Berth) -> Option<(CodecId, &[u8])> {
        let is = self.from.is_some_and(|(from, _)| from == berth.cluster);
        let record = self.records.get(berth.page).copied().flatten().filter(|_| is)?;
        // SAFETY: our own mapping, which `accept` has found to be so long.
        let data = unsafe { core::slice::from_raw_parts((self.base + record.at) as *const u8, record.len) };
        Some((record.codec, data))
    }

    /// The room again, as long as it was asked for, with whatever was put there.
    ///
    /// # Safety
    /// It was asked for, and nobody writes there any more.
    pub unsafe fn filled(&mut self, place: Place) -> &mut [u8] {
        let len = (place.bytes()).min(CLUSTER_BYTES);
        // SAFETY: our own mapping; the caller's contract.
        unsafe { core::slice::from_raw_parts_mut(self.base as *mut u8, len) }
    }

    /// Overwrites and forgets it, and what was forgotten before.
    pub fn wipe(&mut self) {
        self.from = None;
        if core::mem::take(&mut self.dirty) && self.base != 0 {
            // SAFETY: our own mapping.
            unsafe { core::ptr::write_bytes(self.base as *mut u8, 0, CLUSTER_BYTES) };
        }
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        if self.base != 0 {
            // SAFETY: our own mapping, and nobody has its address.
            let _ = unsafe { mem::munmap(self.base, CLUSTER_BYTES) };
        }
    }
}

/// What the header says; `None` where it makes no sense.
fn parse(bytes: &[u8]) -> Option<[Option<Record>; CLUSTER]> {
    let count = usize::from(*bytes.first()?);
    let mut records = [None; CLUSTER];
    let mut at = HEADER;
    for (n, place) in records.iter_mut().take(count).enumerate() {
        let record = bytes.get(4 + n * RECORD..)?.get(..RECORD)?;
        let codec = CodecId::from_bits(u64::from(record[0]))?;
        let len = usize::from(u16::from_le_bytes([record[2], record[3]]));
        if !may_take(codec, len) || at + len > bytes.len() {
            return None;
        }
        *place = Some(Record { codec, at, len });
        at += len;
    }
    (1..=CLUSTER).contains(&count).then_some(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::MAX_STORED;
    use proptest::prelude::*;
    use std::vec;

    #[test]
    fn pages_that_were_written_are_found_again() {
        let mut bytes = vec![0xEE; CLUSTER_BYTES];
        let mut writer = Writer::new(&mut bytes);
        for n in 0..CLUSTER {
            let (codec, len) = match n {
                3 => (CodecId::Zstd, MAX_STORED),
                4 => (CodecId::Whole, PAGE_SIZE),
                n => (CodecId::Zstd, n * 7),
            };
            assert!(!writer.is_full());
            writer.room()[..len].fill(n as u8);
            assert_eq!(writer.add(codec, len), n);
        }
        assert!(writer.is_full());
        let (pages, len) = writer.size();
        assert_eq!(pages, CLUSTER);
        let records = parse(&bytes[..len]).unwrap();
        for (n, record) in records.iter().enumerate() {
            let record = record.unwrap();
            assert!(bytes[record.at..][..record.len].iter().all(|&byte| byte == n as u8));
        }
        assert!(parse(&bytes[..len - 1]).is_none(), "cut short");
    }

    #[test]
    fn of_whole_pages_it_is_full_before_one_has_no_room() {
        let mut bytes = vec![0; CLUSTER_BYTES];
        let mut writer = Writer::new(&mut bytes);
        while !writer.is_full() {
            writer.room().fill(1);
            writer.add(CodecId::Whole, PAGE_SIZE);
        }
        let (pages, len) = writer.size();
        assert!(pages == CLUSTER - 1 && len <= UNSEALED_BYTES);
        assert!(parse(&bytes[..len]).is_some());
    }

    proptest! {
        #[test]
        fn whatever_comes_is_refused_or_lies_within(bytes in proptest::collection::vec(any::<u8>(), 0..5000)) {
            for record in parse(&bytes).into_iter().flatten().flatten() {
                prop_assert!(record.at + record.len <= bytes.len());
            }
        }
    }
}
