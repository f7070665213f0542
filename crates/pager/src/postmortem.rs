//! What a core dump tells of folded memory: the pager's tables, read in the memory of a process that has died.
//!
//! What it is not: for a process that lives, whose tables change while they are read.
//!
//! Invariants: nothing is followed by reference; everything is copied, and believed as far as it agrees with the rest. A core may
//! be cut short, or be of a moment in which a table was being written. A stored page tells its own address, so bytes that
//! belong elsewhere are never taken for a page's.

use crate::blocks::GRAIN;
use crate::codec::{Codecs, Dictionaries, Dictionary, Page, DICTIONARIES};
use crate::slot::{parse_header, Slot, HEADER};
use crate::sync::{AtomicU64, Ordering::*};
use crate::tables::entries::{Entries, GROUP, GROUPS};
use crate::tables::entry::{Entry, State};
use crate::tables::extent::Extent;
use crate::tables::space::{Space, LEAF, ROOT};
use crate::tier::location::Location;
use core::mem::size_of;
use memfold_sys::{EXTENT_PAGES, EXTENT_SIZE, PAGE_SIZE};

/// What a page begins with at which an engine's tables begin.
const MAGIC: [u64; 2] = [u64::from_le_bytes(*b"memfold\0"), u64::from_le_bytes(*b"tables\0\0")];
/// To be raised when what the tables mean changes, and not the size or the place of anything in them.
const MEANING: u64 = 1;
/// Words of which tables are read at a time.
const WORDS: usize = PAGE_SIZE / 8;

/// What an engine leaves in memory for who looks at a core. All-zero bytes are none.
#[repr(C)]
pub struct Anchor {
    magic: [AtomicU64; 2],
    layout: AtomicU64,
    version: [AtomicU64; 2],
    space: AtomicU64,
    staging: AtomicU64,
    /// Address and length of the bytes of each dictionary.
    dictionaries: [[AtomicU64; 2]; DICTIONARIES],
}

/// Bytes at the beginning of a page that [`Tables::at`] looks at.
pub const ANCHOR_LEN: usize = size_of::<Anchor>();

/// A number that two builds share whose tables are alike.
const LAYOUT: u64 = {
    let facts = [
        MEANING,
        size_of::<Space>() as u64,
        size_of::<Extent>() as u64,
        size_of::<Entries>() as u64,
        Extent::BASE_AT as u64,
        Extent::ENTRIES_AT as u64,
        Extent::STAGING_AT as u64,
        Entries::GROUPS_AT as u64,
        (LEAF * GROUP * HEADER * GRAIN) as u64,
        DICTIONARIES as u64,
    ];
    // FNV-1a, by words.
    let (mut hash, mut n) = (0xCBF2_9CE4_8422_2325u64, 0);
    while n < facts.len() {
        hash = (hash ^ facts[n]).wrapping_mul(0x0000_0100_0000_01B3);
        n += 1;
    }
    hash
};

/// The version, of 16 characters at most.
const VERSION: [u64; 2] = {
    let (mut words, text) = ([0; 2], env!("CARGO_PKG_VERSION").as_bytes());
    let mut n = 0;
    while n < text.len() && n < 16 {
        words[n / 8] |= (text[n] as u64) << (n % 8 * 8);
        n += 1;
    }
    words
};

impl Anchor {
    /// Says where the tables are. By the one thread that knows the anchor.
    pub(crate) fn begin(&self, space: &Space) {
        self.layout.store(LAYOUT, Relaxed);
        self.space.store(space as *const Space as u64, Relaxed);
        for n in 0..2 {
            self.version[n].store(VERSION[n], Relaxed);
            // A core is made when all threads have stopped.
            self.magic[n].store(MAGIC[n], Release);
        }
    }

    /// Says where staging is.
    pub(crate) fn set_staging(&self, base: usize) {
        self.staging.store(base as u64, Release);
    }

    /// Says where the bytes of a dictionary are; none of them, if there is none of the number.
    pub(crate) fn set_dictionary(&self, number: usize, bytes: &[u8]) {
        let [at, len] = &self.dictionaries[number];
        at.store(bytes.as_ptr() as u64, Release);
        len.store(bytes.len() as u64, Release);
    }
}

/// The memory of a process that has died.
pub trait Memory {
    /// Fills `out` with what was at the address; false where not all of it is known.
    fn read(&self, addr: usize, out: &mut [u8]) -> bool;
}

/// The tables of an engine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tables {
    space: usize,
    staging: usize,
    /// Address and length of each dictionary's bytes.
    dictionaries: [(usize, usize); DICTIONARIES],
}

/// Why tables cannot be read: another version wrote them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Foreign {
    version: [u8; 16],
}

impl Foreign {
    /// That version.
    pub fn version(&self) -> &str {
        let len = self.version.iter().position(|&byte| byte == 0).unwrap_or(16);
        core::str::from_utf8(&self.version[..len]).unwrap_or("?")
    }
}

impl Tables {
    /// The tables that begin with the page of which these are the first [`ANCHOR_LEN`] bytes, if any do.
    pub fn at(bytes: &[u8]) -> Option<Result<Tables, Foreign>> {
        let word = |n: usize| Some(u64::from_ne_bytes(bytes.get(n * 8..n * 8 + 8)?.try_into().ok()?));
        if [word(0)?, word(1)?] != MAGIC {
            return None;
        }
        if word(2)? != LAYOUT {
            let mut version = [0; 16];
            version.copy_from_slice(bytes.get(24..40)?);
            return Some(Err(Foreign { version }));
        }
        let mut dictionaries = [(0, 0); DICTIONARIES];
        for (n, dictionary) in dictionaries.iter_mut().enumerate() {
            *dictionary = (word(7 + 2 * n)? as usize, word(8 + 2 * n)? as usize);
        }
        Some(Ok(Tables { space: word(5)? as usize, staging: word(6)? as usize, dictionaries }))
    }

    /// The dictionaries, as far as they can be read.
    fn dictionaries(&self, memory: &impl Memory) -> Dictionaries {
        let mut known = Dictionaries::new();
        for (number, &(at, len)) in self.dictionaries.iter().enumerate() {
            let mut bytes = [0; Dictionary::MOST_BYTES];
            let Some(bytes) = bytes.get_mut(..len).filter(|bytes| !bytes.is_empty()) else { continue };
            if memory.read(at, bytes) {
                known.set(number, Dictionary::build(bytes).ok());
            }
        }
        known
    }

    /// Calls `found` for each page that was away or on its way, with its address and its bytes; `None` where these cannot be told.
    /// A page may be in the program's view in spite of that, and what is there counts then. Returns how many tables could not
    /// be read; of what these tell nothing is known.
    pub fn pages(
        &self,
        memory: &impl Memory,
        codecs: &mut Codecs,
        mut found: impl FnMut(usize, Option<&Page>),
    ) -> u64 {
        let mut unread = 0;
        let dictionaries = self.dictionaries(memory);
        for_pointers(memory, self.space, ROOT, &mut unread, |root, leaf, unread| {
            for_pointers(memory, leaf, LEAF, unread, |n, extent, unread| {
                let base = (root * LEAF + n) * EXTENT_SIZE;
                let Some((entries, staged)) = self.extent(memory, extent, base) else {
                    *unread += 1;
                    return;
                };
                if entries == 0 {
                    return;
                }
                for_pointers(
                    memory,
                    entries.wrapping_add(Entries::GROUPS_AT),
                    GROUPS,
                    unread,
                    |n, group, unread| {
                        let mut words = [0; GROUP * 8];
                        if !memory.read(group, &mut words) {
                            *unread += 1;
                            return;
                        }
                        for (entry, index) in words.chunks_exact(8).zip(n * GROUP..) {
                            let entry = Entry::from_word(word_of(entry));
                            let offset = index * PAGE_SIZE;
                            if entry.state() != State::Resident {
                                let mut page = [0; PAGE_SIZE];
                                let staged = staged.map(|staged| staged.wrapping_add(offset));
                                let place = (base + offset, staged);
                                let known = bring(memory, (codecs, &dictionaries), entry, place, &mut page);
                                found(base + offset, known.then_some(&page));
                            }
                        }
                    },
                );
            });
        });
        unread
    }

    /// Where the entries of an extent are, and its pages in staging; `None` if that is not the extent that begins at `base`.
    fn extent(&self, memory: &impl Memory, at: usize, base: usize) -> Option<(usize, Option<usize>)> {
        let mut bytes = [0; size_of::<Extent>()];
        if !memory.read(at, &mut bytes) || word_of(&bytes[Extent::BASE_AT..]) != base as u64 {
            return None;
        }
        let slot = u32::from_ne_bytes(bytes[Extent::STAGING_AT..][..4].try_into().ok()?);
        let staged = (slot as usize).checked_sub(1).map(|slot| self.staging.wrapping_add(slot * EXTENT_SIZE));
        Some((word_of(&bytes[Extent::ENTRIES_AT..]) as usize, staged))
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[..8]);
    u64::from_ne_bytes(word)
}

/// Calls `each` for the pointers of a table that point somewhere.
fn for_pointers(
    memory: &impl Memory,
    table: usize,
    len: usize,
    unread: &mut u64,
    mut each: impl FnMut(usize, usize, &mut u64),
) {
    let mut bytes = [0; WORDS * 8];
    for first in (0..len).step_by(WORDS) {
        let part = &mut bytes[..(len - first).min(WORDS) * 8];
        if !memory.read(table.wrapping_add(first * 8), part) {
            *unread += 1;
            continue;
        }
        for (n, pointer) in part.chunks_exact(8).map(word_of).enumerate() {
            if pointer != 0 {
                each(first + n, pointer as usize, unread);
            }
        }
    }
}

/// Fills `page` with the bytes of a page that is away by its entry. Whether they are known.
fn bring(
    memory: &impl Memory,
    (codecs, dictionaries): (&mut Codecs, &Dictionaries),
    entry: Entry,
    (addr, staged): (usize, Option<usize>),
    page: &mut Page,
) -> bool {
    match entry.state() {
        State::Resident => false,
        State::Leaving | State::LeavingWanted | State::Aside => {
            staged.is_some_and(|staged| memory.read(staged, page))
        }
        State::Same => {
            let word = entry.same_word().to_ne_bytes();
            page.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
            true
        }
        State::Stored => {
            // What lies below memory is not in a core.
            let Some(at) = Location::memory(entry).map(Slot::addr) else { return false };
            let (mut header, mut data) = ([0; HEADER], [0; PAGE_SIZE]);
            if !memory.read(at, &mut header) {
                return false;
            }
            match parse_header(u64::from_ne_bytes(header)) {
                Some((page_of, codec, len)) if page_of == addr => {
                    memory.read(at.wrapping_add(HEADER), &mut data[..len])
                        && codecs.decompress(codec, dictionaries, &data[..len], page)
                }
                _ => false,
            }
        }
    }
}

const _: () = assert!(GROUPS * GROUP == EXTENT_PAGES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::CodecId;
    use crate::store::Store;
    use crate::tables::bitmap::PageSet;
    use crate::tables::pool::Pool;
    use core::cell::Cell;
    use core::ops::Range;
    use memfold_policy::effort::Effort;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::vec::Vec;

    /// This process's own, but for a range, and damaged at random if there is a seed.
    struct Own {
        memory: File,
        hole: Range<usize>,
        damage: Cell<u64>,
    }

    impl Own {
        fn but(hole: Range<usize>, damage: u64) -> Own {
            Own { memory: File::open("/proc/self/mem").unwrap(), hole, damage: Cell::new(damage) }
        }

        /// A number that looks random (splitmix64, Steele, Lea and Flood 2014).
        fn random(&self) -> usize {
            self.damage.set(self.damage.get().wrapping_add(0x9E37_79B9_7F4A_7C15));
            let mut z = self.damage.get();
            z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            (z ^ z >> 31) as usize
        }
    }

    impl Memory for Own {
        fn read(&self, addr: usize, out: &mut [u8]) -> bool {
            let unknown = addr < self.hole.end && self.hole.start < addr + out.len();
            if unknown || self.memory.read_exact_at(out, addr as u64).is_err() {
                return false;
            }
            if self.damage.get() != 0 && self.random().is_multiple_of(4) {
                let (at, kind) = (self.random() % out.len(), self.random() % 3);
                match kind {
                    0 => out[at] ^= 1 << (self.random() % 8),
                    1 => out[at..].iter_mut().take(8).for_each(|byte| *byte = 0xFF),
                    _ => out[at..].iter_mut().take(64).for_each(|byte| *byte = self.random() as u8),
                }
            }
            true
        }
    }

    fn page(seed: u64) -> Page {
        core::array::from_fn(|n| (n / 100) as u8 ^ seed as u8)
    }

    #[test]
    fn every_page_that_is_away_is_found_with_its_bytes_or_as_lost() {
        let pool = Pool::new();
        // SAFETY: zeros are an anchor of nothing, and an empty space.
        let (anchor, space) = unsafe { (pool.make::<Anchor>().unwrap(), pool.make::<Space>().unwrap()) };
        // SAFETY: all of it was made.
        let bytes =
            || unsafe { core::slice::from_raw_parts(anchor as *const Anchor as *const u8, ANCHOR_LEN) };
        assert!(Tables::at(bytes()).is_none());
        anchor.begin(space);
        let staging = Vec::from_iter((0..2 * EXTENT_PAGES).map(|n| page(n as u64)));
        anchor.set_staging(staging.as_ptr() as usize);
        let taught = crate::training::tests::dictionary();
        anchor.set_dictionary(3, taught.bytes());
        let tables = Tables::at(bytes()).unwrap().unwrap();
        assert!(Tables::at(&bytes()[..ANCHOR_LEN - 1]).is_none());

        let (mut store, mut codecs) = (Store::new(), Codecs::new().unwrap());
        let base = 0x5555_5540_0000usize;
        let extent = space.find_or_make(base, &pool).unwrap();
        let entries = extent.lock().make_entries(&PageSet::range(0, 200), &pool).unwrap();
        let set = |index: usize, entry: Entry| {
            let way = [Entry::RESIDENT, Entry::new(State::Leaving), Entry::new(State::Aside)];
            assert!(way.windows(2).all(|step| entries[index].transition(step[0], step[1])));
            assert!(entry == way[2] || entries[index].transition(way[2], entry));
        };
        let mut out = [0; PAGE_SIZE];
        let mut put = |addr: usize, seed: u64| {
            let page = page(seed);
            // SAFETY: it is readable.
            let (codec, len) =
                unsafe { codecs.compress_at(Effort::Least, None, page.as_ptr() as usize, &mut out).unwrap() };
            let slot = store.put(addr, codec, &out[..len]).unwrap();
            Entry::with_payload(State::Stored, slot.payload())
        };
        set(3, put(base + 3 * PAGE_SIZE, 77));
        // One whose slot is another page's by now.
        set(4, put(base + 90 * PAGE_SIZE, 78));
        set(5, Entry::same(0x0101_0101_0101_0101).unwrap());
        set(6, Entry::new(State::Aside));
        // With a dictionary, and with one that is not there.
        let of_dictionary = page(79);
        // SAFETY: it is readable.
        let packed = unsafe {
            let at = of_dictionary.as_ptr() as usize;
            codecs.compress_at(Effort::Most, Some((3, &taught)), at, &mut out).unwrap()
        };
        for (index, codec) in [(7, packed.0), (8, CodecId::Dictionary(4))] {
            let slot = store.put(base + index * PAGE_SIZE, codec, &out[..packed.1]).unwrap();
            set(index, Entry::with_payload(State::Stored, slot.payload()));
        }
        // In the second slot.
        extent.staging.store(2, Relaxed);

        let look = |hole: Range<usize>| {
            let mut pages = Vec::new();
            let unread = tables.pages(&Own::but(hole, 0), &mut Codecs::new().unwrap(), |addr, page| {
                pages.push(((addr - base) / PAGE_SIZE, page.copied()));
            });
            (pages, unread)
        };
        let (pages, unread) = look(0..0);
        assert_eq!(unread, 0);
        let staged = page((EXTENT_PAGES + 6) as u64);
        let before = [(3, Some(page(77))), (4, None), (5, Some([1; PAGE_SIZE])), (6, Some(staged))];
        assert!(pages[..4] == before && pages[4..] == [(7, Some(page(79))), (8, None)]);
        // What a core does not have is neither made up nor the end of everything.
        let group = &entries[0] as *const _ as usize;
        let at = staging.as_ptr() as usize;
        assert_eq!(look(group..group + 8), (Vec::new(), 1));
        let (pages, unread) = look(at..at + staging.len() * PAGE_SIZE);
        assert!(unread == 0 && pages[3] == (6, None) && pages[0] == (3, Some(page(77))));
        let of_extent = extent as *const Extent as usize;
        assert_eq!(look(of_extent..of_extent + 1), (Vec::new(), 1));
        // And of damage something may come, but no page where none can be.
        for seed in 1..1000 {
            tables.pages(&Own::but(0..0, seed), &mut codecs, |addr, _| {
                assert!(
                    addr % PAGE_SIZE == 0 && (base..base + EXTENT_SIZE).contains(&addr),
                    "{seed}: {addr:#x}"
                );
            });
        }
    }

    #[test]
    fn tables_of_another_version_are_told_by_its_name() {
        let mut bytes = [0; ANCHOR_LEN];
        for (n, word) in MAGIC.iter().chain([&(LAYOUT ^ 1)]).enumerate() {
            bytes[n * 8..n * 8 + 8].copy_from_slice(&word.to_ne_bytes());
        }
        bytes[24..29].copy_from_slice(b"9.8.7");
        assert_eq!(Tables::at(&bytes).unwrap().unwrap_err().version(), "9.8.7");
    }
}
