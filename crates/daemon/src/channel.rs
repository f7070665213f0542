//! The memory that a process and the daemon share: where each page of the process's ranges is, the store, and the pages on
//! their way to be compressed.
//!
//! One sealed file in memory. The process makes it and alone decides what is in the store; the daemon reads the store,
//! compresses what is handed over, and swaps the entry of a page that it restores. Each side maps it where it likes: nothing in it is an address
//! of the daemon's.
//!
//! ```text
//!   | Header: counters, limits, regions, jobs | an entry for each page | two pages for each job | store |
//! ```
//!
//! Invariants: all shared words are atomic. The daemon believes nothing: an entry, a region, a slot that makes no sense
//! harms the process that wrote it. A region's entries are all `Resident` when its place is given to another one.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use memfold_pager::codec::{CodecId, Page, MAX_STORED};
use memfold_pager::control::Histogram;
use memfold_pager::store::{parse_header, GRAIN, HEADER, SEGMENT};
use memfold_sys::{Errno, Result, PAGE_SIZE};

/// Ranges that a process may have registered at a time.
pub const REGIONS: usize = 64;
/// Pages that may be on their way to be compressed.
pub const JOBS: usize = 64;
/// Pages in the agent's hands that may be asked for at a time; of more, the agent has to look for them.
pub const WANTED: usize = 64;
/// Most pages that a process may register: 64 GiB.
pub const MOST_PAGES: usize = 1 << 24;
/// Room for the header.
const HEADER_LEN: usize = 16 * PAGE_SIZE;

/// A registered range.
#[repr(C)]
#[derive(Debug)]
pub struct Region {
    /// Changes with every change of the rest; odd while it is being changed.
    pub generation: AtomicU64,
    /// Address in the process; 0 for none.
    pub base: AtomicU64,
    /// Pages.
    pub pages: AtomicU64,
    /// Its first entry.
    pub first: AtomicU64,
}

/// What became of a page that was handed over.
pub mod job {
    /// Nothing in it.
    pub const FREE: u32 = 0;
    /// The first page holds bytes to compress.
    pub const ASKED: u32 = 1;
    /// `result` tells.
    pub const DONE: u32 = 2;
    /// `result`: all words are the one in `word`.
    pub const SAME: u32 = 1 << 30;
    /// `result`: it does not shrink.
    pub const INCOMPRESSIBLE: u32 = 1 << 31;
}

/// A page on its way to be compressed.
#[repr(C)]
#[derive(Debug)]
pub struct Job {
    /// Of [`job`].
    pub state: AtomicU32,
    /// Bytes in the second page, which is compressed, or one of [`job`].
    pub result: AtomicU32,
    /// The repeated word, or the number of the codec ([`CodecId::bits`]).
    pub word: AtomicU64,
}

/// What stands at the start.
#[repr(C)]
pub struct Header {
    /// Written by the process: what it has, bytes.
    pub managed_bytes: AtomicU64,
    /// Bytes of them in its view or set aside.
    pub resident_bytes: AtomicU64,
    /// Bytes of them in the store.
    pub evicted_bytes: AtomicU64,
    /// What the store takes.
    pub store_bytes: AtomicU64,
    /// Written by the daemon: bytes that may stay resident.
    pub resident_limit: AtomicU64,
    /// Pages that the daemon has restored.
    pub restored: AtomicU64,
    /// First touches that it has served.
    pub zeroed: AtomicU64,
    /// Pages that it has compressed.
    pub compressed: AtomicU64,
    /// Time that threads of the process have waited for folded memory, ns. The agent adds to it, too.
    pub stall_ns: AtomicU64,
    /// CPU time of the threads that have served the process, ns: what follows, together.
    pub cpu_ns: AtomicU64,
    /// Of it what compressing took, ns.
    pub compress_cpu_ns: AtomicU64,
    /// Of it all else, which is serving touches and looking for them, ns.
    pub fault_cpu_ns: AtomicU64,
    /// How many entries of the daemon's were put into `wanted`.
    pub wanted_count: AtomicU64,
    /// Numbers of entries that became [`State::HeldWanted`]; the oldest are overwritten.
    pub wanted: [AtomicU64; WANTED],
    /// When the messages of their touches had been read, by the monotonic clock, ns.
    pub wanted_at: [AtomicU64; WANTED],
    /// The waits for restored pages that the daemon ended, each from the reading of the message to the wake-up.
    pub fault_ns: Histogram,
    /// The work on the same restores: look-up, decompression and mapping.
    pub restore_ns: Histogram,
    /// Written by the process: the waits that its agent ended.
    pub held_ns: Histogram,
    /// Written by the process: the work on the same pages.
    pub held_restore_ns: Histogram,
    /// The ranges.
    pub regions: [Region; REGIONS],
    /// What is to be compressed.
    pub jobs: [Job; JOBS],
}

const _: () = assert!(core::mem::size_of::<Header>() <= HEADER_LEN);

/// Where a page is, by the low bits of its entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum State {
    /// In the program's view, or never touched.
    Resident = 0,
    /// In the hands of the process's agent, which wakes who touches it.
    Held = 1,
    /// The same, and somebody waits for it.
    HeldWanted = 2,
    /// Compressed; the payload is the slot's place in the store, in units of 16 bytes.
    Stored = 3,
    /// One word repeated, which is the payload.
    Same = 4,
    /// In the program's view; the slot in the payload is free.
    Returned = 5,
}

const STATE: u64 = 7;
const BUSY: u64 = 8;
const SHIFT: u32 = 4;
/// Largest payload.
pub const MOST_PAYLOAD: u64 = u64::MAX >> SHIFT;

/// The value of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry(pub u64);

impl Entry {
    /// In the program's view.
    pub const RESIDENT: Entry = Entry(0);

    /// With a payload of at most [`MOST_PAYLOAD`].
    pub fn new(state: State, payload: u64) -> Entry {
        Entry(payload << SHIFT | state as u64)
    }

    /// Where the page is; what makes no sense counts as resident, and reads as zeros where nothing is.
    pub fn state(self) -> State {
        match self.0 & STATE {
            1 => State::Held,
            2 => State::HeldWanted,
            3 => State::Stored,
            4 => State::Same,
            5 => State::Returned,
            _ => State::Resident,
        }
    }

    /// The number that goes with it.
    pub fn payload(self) -> u64 {
        self.0 >> SHIFT
    }

    /// Whether somebody is restoring the page.
    pub fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    /// Marked as being restored.
    pub fn busy(self) -> Entry {
        Entry(self.0 | BUSY)
    }

    /// Not marked.
    pub fn idle(self) -> Entry {
        Entry(self.0 & !BUSY)
    }
}

/// The number of bytes of a channel for `pages` pages.
pub fn len_for(pages: usize) -> usize {
    store_at(pages) + store_len(pages)
}

fn jobs_at(pages: usize) -> usize {
    HEADER_LEN + (pages * 8).next_multiple_of(PAGE_SIZE)
}

fn store_at(pages: usize) -> usize {
    (jobs_at(pages) + JOBS * 2 * PAGE_SIZE).next_multiple_of(SEGMENT)
}

/// As much as all pages uncompressed, and a segment for the gaps.
fn store_len(pages: usize) -> usize {
    (pages * PAGE_SIZE).next_multiple_of(SEGMENT) + SEGMENT
}

fn populate(start: usize, len: usize) -> Result<()> {
    // SAFETY: changes no contents.
    unsafe { memfold_sys::mem::madvise(start, len, libc::MADV_POPULATE_WRITE) }.map_err(|_| Errno::ENOMEM)
}

/// A mapped channel.
#[derive(Clone, Copy, Debug)]
pub struct Channel {
    base: usize,
    pages: usize,
}

impl Channel {
    /// The channel for `pages` pages that is mapped at `base`.
    ///
    /// # Safety
    /// A shared file of [`len_for`] bytes is mapped there, aligned to 8, for as long as this is used; readable, and
    /// writable up to the store.
    pub unsafe fn at(base: usize, pages: usize) -> Channel {
        Channel { base, pages }
    }

    /// Pages that it has entries for.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: by the contract of `at`; every field is atomic, so any bytes are valid.
        unsafe { &*(self.base as *const Header) }
    }

    /// The entry with this number, if there is one.
    pub fn entry(&self, number: usize) -> Option<&AtomicU64> {
        // SAFETY: by the contract of `at`, and within the entries.
        (number < self.pages)
            .then(|| unsafe { &*((self.base + HEADER_LEN + number * 8) as *const AtomicU64) })
    }

    /// Has the kernel put memory behind what stands in front of the store, but the entries. `ENOMEM` where there is none; a write
    /// would end the process by SIGBUS.
    pub fn populate_head(&self) -> Result<()> {
        populate(self.base, HEADER_LEN)?;
        populate(self.base + jobs_at(self.pages), JOBS * 2 * PAGE_SIZE)
    }

    /// The same behind so many entries from `first` on.
    pub fn populate_entries(&self, first: usize, pages: usize) -> Result<()> {
        let start = (self.base + HEADER_LEN + first * 8) / PAGE_SIZE * PAGE_SIZE;
        let end = (self.base + HEADER_LEN + (first + pages) * 8).next_multiple_of(PAGE_SIZE);
        populate(start, end - start)
    }

    /// The address of the first page of a job: what is to be compressed. The second follows: what comes of it.
    pub fn job_page(&self, job: usize) -> usize {
        self.base + jobs_at(self.pages) + job % JOBS * 2 * PAGE_SIZE
    }

    /// Where the store begins and ends.
    pub fn store(&self) -> (usize, usize) {
        let start = self.base + store_at(self.pages);
        (start, start + store_len(self.pages))
    }

    /// The region that holds the page at `addr`, its generation, and the number of the page's entry.
    pub fn find(&self, addr: usize) -> Option<(usize, u64, usize)> {
        self.header().regions.iter().enumerate().find_map(|(n, region)| {
            let generation = region.generation.load(SeqCst);
            let base = region.base.load(SeqCst) as usize;
            let page = addr.checked_sub(base).filter(|_| base != 0)? / PAGE_SIZE;
            let inside = (page as u64) < region.pages.load(SeqCst) && generation % 2 == 0;
            let number = usize::try_from(region.first.load(SeqCst)).ok()?.checked_add(page)?;
            (inside && number < self.pages).then_some((n, generation, number))
        })
    }

    /// Whether a region is as it was.
    pub fn is_still(&self, region: usize, generation: u64) -> bool {
        self.header().regions[region].generation.load(SeqCst) == generation
    }

    /// Copies the compressed bytes of the page at `addr` out of its slot. `None` when the slot lies elsewhere than in the
    /// store, or holds another page or nothing that makes sense.
    pub fn read_slot(&self, payload: u64, addr: usize, out: &mut Page) -> Option<(CodecId, usize)> {
        let (start, end) = self.store();
        let offset = usize::try_from(payload).ok()?.checked_mul(GRAIN)?;
        let room = (end - start).checked_sub(offset)?.checked_sub(HEADER)?;
        let word = |at: usize| {
            // SAFETY: within the store, aligned to 8, as every slot is.
            unsafe { &*((start + offset + at) as *const AtomicU64) }.load(Relaxed)
        };
        let (page, codec, len) = parse_header(word(0))?;
        if page != addr || len.next_multiple_of(8) > room {
            return None;
        }
        for (n, chunk) in out[..len.next_multiple_of(8)].chunks_exact_mut(8).enumerate() {
            chunk.copy_from_slice(&word(HEADER + n * 8).to_ne_bytes());
        }
        Some((codec, len))
    }

    /// Copies page `n` (0 or 1) of a job out.
    pub fn read_job(&self, job: usize, n: usize, out: &mut Page) {
        let at = self.job_page(job) + n % 2 * PAGE_SIZE;
        for (i, chunk) in out.chunks_exact_mut(8).enumerate() {
            // SAFETY: within the job's pages, aligned to 8.
            let word = unsafe { &*((at + i * 8) as *const AtomicU64) }.load(Relaxed);
            chunk.copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// Copies bytes into page `n` (0 or 1) of a job; at most a page of them.
    pub fn write_job(&self, job: usize, n: usize, bytes: &[u8]) {
        let at = self.job_page(job) + n % 2 * PAGE_SIZE;
        for (i, chunk) in bytes.chunks(8).take(PAGE_SIZE / 8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            // SAFETY: within the job's pages, aligned to 8.
            unsafe { &*((at + i * 8) as *const AtomicU64) }.store(u64::from_ne_bytes(word), Relaxed);
        }
    }
}

const _: () = assert!(MAX_STORED.next_multiple_of(8) <= PAGE_SIZE);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGES: usize = 16;

    /// A channel in memory of this process's own.
    fn channel() -> Channel {
        let base = memfold_sys::mem::map_anonymous(0, len_for(PAGES), libc::MAP_NORESERVE).unwrap();
        // SAFETY: a mapping of that length, never unmapped.
        unsafe { Channel::at(base, PAGES) }
    }

    #[test]
    fn a_page_is_found_in_its_region_only() {
        let channel = channel();
        let region = &channel.header().regions[3];
        region.base.store(0x10_0000, SeqCst);
        region.pages.store(4, SeqCst);
        region.first.store(2, SeqCst);
        assert_eq!(channel.find(0x10_3000), Some((3, 0, 5)));
        assert_eq!(channel.find(0x10_4000), None);
        assert_eq!(channel.find(0xF_F000), None);
        region.generation.store(1, SeqCst);
        assert_eq!(channel.find(0x10_3000), None);
    }

    proptest! {
        #[test]
        fn nothing_that_a_process_writes_leads_out_of_the_channel(
            addr: usize, base: u64, pages: u64, first: u64, payload: u64, word: u64,
        ) {
            let channel = channel();
            let region = &channel.header().regions[0];
            region.base.store(base, SeqCst);
            region.pages.store(pages, SeqCst);
            region.first.store(first, SeqCst);
            if let Some((_, _, number)) = channel.find(addr) {
                prop_assert!(channel.entry(number).is_some());
            }
            let (start, end) = channel.store();
            let offset = payload as usize % (end - start) / GRAIN * GRAIN;
            // SAFETY: within the store of the mapping.
            unsafe { *((start + offset) as *mut u64) = word };
            let mut out = [0; PAGE_SIZE];
            for payload in [payload, (offset / GRAIN) as u64, ((end - start) / GRAIN) as u64 - 1] {
                for addr in [addr, (word >> 16) as usize * PAGE_SIZE] {
                    if let Some((_, len)) = channel.read_slot(payload, addr, &mut out) {
                        prop_assert!(len <= MAX_STORED);
                    }
                }
            }
            let _ = (Entry(word).state(), Entry(word).payload());
        }
    }
}
