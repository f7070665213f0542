//! Making a dictionary of pages, in memory that is given back when it is done and without an allocator.
//!
//! The content is pieces that many pages have in common, the best last. No byte enters that fewer than [`ENOUGH`] pages share, with the
//! seven around it: what a program erases in all its pages but a few must not live on here. The tables of how often each byte,
//! length and distance comes are of a parse of the samples behind that content ([`entropy`]).

mod entropy;

use crate::codec::{Codecs, Dictionary, Page, MAX_STORED};
use crate::store::Store;
use core::mem::size_of;
use entropy::Statistics;
use memfold_policy::effort::Effort;
use memfold_policy::learning::SAMPLES;
use memfold_sys::{mem, racing, Result, PAGE_SIZE};

/// Bytes that are compared to tell whether pages have something in common.
const STRING: usize = 8;
/// So many pages have a string before it counts as common.
const ENOUGH: u8 = 4;
/// Fewest samples that are worth a try.
const FEWEST: usize = 64;
/// One sample in so many is for judging, and no part of what is judged.
const JUDGES_ONE_IN: usize = 4;
/// Bytes of a piece, between two pieces that are looked at, and of all that are taken.
const PIECE: usize = 256;
const STEP: usize = 128;
const PIECES: usize = 96;
/// Most bytes of content.
const CONTENT: usize = 16 << 10;
/// Places in a page where a piece may begin.
const PLACES: usize = (PAGE_SIZE - PIECE) / STEP + 1;
/// Each piece is chosen from one group of samples of so many.
const GROUPS: usize = 47;
const COUNTERS: usize = 1 << 18;
const CHAINS: usize = 1 << 14;
/// No string.
const NONE: u16 = u16::MAX;

/// Pages to learn from, and room to do it in.
pub struct Samples {
    room: usize,
    count: usize,
}

/// What was learnt.
pub struct Trained {
    /// The dictionary.
    pub dictionary: Dictionary,
    /// Bytes in the store of pages that it was not made of, as they are compressed now.
    pub now: u64,
    /// The same with it.
    pub with: u64,
}

/// How many pages have a string, roughly: strings that share a counter are counted together.
#[derive(Clone, Copy)]
struct Counter {
    /// The page that it was seen in last, plus one.
    last: u16,
    pages: u8,
}

struct Room {
    pages: [Page; SAMPLES],
    counters: [Counter; COUNTERS],
    /// The pieces taken: what each gains, and where it begins, as sample times bytes of a page, plus its place.
    taken: [(u32, u32); PIECES],
    /// The strings of the pieces taken: the first of those that share a chain, the next of each, the first that is the same, and
    /// how many pages have it.
    chains: [u16; CHAINS],
    next: [u16; PIECES * PIECE],
    same: [u16; PIECES * PIECE],
    pages_with: [Counter; PIECES * PIECE],
    statistics: Statistics,
    bytes: [u8; Dictionary::MOST_BYTES],
    context: [u64; entropy::CONTEXT_LEN / 8],
}

impl Samples {
    /// What they take while there are any, in one mapping.
    pub const BYTES: usize = size_of::<Room>();

    /// No samples yet. `ENOMEM` where there is no memory.
    pub fn new() -> Result<Samples> {
        let room = mem::map_own(size_of::<Room>(), 0)?;
        mem::name_range(room, size_of::<Room>(), c"memfold samples");
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP] {
            // SAFETY: our own mapping, of which this changes no bytes.
            if let Err(error) = unsafe { mem::madvise(room, size_of::<Room>(), advice) } {
                // SAFETY: our own mapping.
                let _ = unsafe { mem::munmap(room, size_of::<Room>()) };
                return Err(error);
            }
        }
        Ok(Samples { room, count: 0 })
    }

    fn room(&mut self) -> &mut Room {
        // SAFETY: our own mapping, of zeros at first, which are a room; borrowed as we are.
        unsafe { &mut *(self.room as *mut Room) }
    }

    /// Copies the page at the address; false when there is room for no more. It may change meanwhile, by the kernel's hands: then
    /// something is learnt from, that was never there as a whole.
    ///
    /// # Safety
    /// A page is readable there.
    pub unsafe fn add_at(&mut self, page: usize) -> bool {
        let count = self.count;
        let Some(place) = self.room().pages.get_mut(count) else { return false };
        // SAFETY: the caller's contract.
        unsafe { racing::copy(page, place) };
        self.count += 1;
        true
    }

    /// Makes a dictionary and judges it beside the one that is in use, or none. `None` where the pages have too little in common, or there
    /// is no memory.
    pub fn train(&mut self, codecs: &mut Codecs, current: Option<&Dictionary>) -> Option<Trained> {
        let count = self.count;
        if count < FEWEST {
            return None;
        }
        let room = self.room();
        room.count_strings(count);
        let pieces = room.take_pieces(count);
        room.count_exactly(count, pieces);
        let Room { taken, pages, same, pages_with, bytes, statistics, context, .. } = room;
        let enough = |id: usize| pages_with[usize::from(same[id])].pages >= ENOUGH;
        let content = put_content(pages, &taken[..pieces], enough, &mut bytes[entropy::MOST_TABLES..]);
        if content < STRING * 8 {
            return None;
        }
        let content = &bytes[entropy::MOST_TABLES..entropy::MOST_TABLES + content];
        let learners = (0..count).filter(|&n| !is_judge(n)).step_by(2);
        statistics.parse(content, learners.map(|n| &pages[n]));
        let mut tables = [0; entropy::MOST_TABLES];
        let tables = entropy::write(statistics, context, &mut tables)?;
        let (len, start) = (content.len(), entropy::MOST_TABLES - tables.len());
        bytes[start..entropy::MOST_TABLES].copy_from_slice(tables);
        let dictionary = Dictionary::build(&bytes[start..entropy::MOST_TABLES + len]).ok()?;
        let (mut now, mut with) = (0, 0);
        for page in pages[..count].iter().enumerate().filter(|(n, _)| is_judge(*n)).map(|(_, page)| page) {
            let at = page.as_ptr() as usize;
            let mut out = [0; MAX_STORED];
            let mut size = |dictionary: Option<&Dictionary>| {
                // Only how long it becomes matters: the number that it would be found by may be any.
                let dictionary = dictionary.map(|dictionary| (0, dictionary));
                // SAFETY: our own page.
                let packed = unsafe { codecs.compress_at(Effort::Most, dictionary, at, &mut out) };
                packed.map_or(PAGE_SIZE, |(_, len)| Store::size_of(len)) as u64
            };
            now += size(current);
            with += size(Some(&dictionary));
        }
        Some(Trained { dictionary, now, with })
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody has its address.
        let _ = unsafe { mem::munmap(self.room, size_of::<Room>()) };
    }
}

fn is_judge(sample: usize) -> bool {
    sample % JUDGES_ONE_IN == JUDGES_ONE_IN - 1
}

/// The string at a place of a page, or of a piece.
fn string(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; STRING];
    word.copy_from_slice(&bytes[at..at + STRING]);
    u64::from_le_bytes(word)
}

/// A number below `1 << bits` for a string.
fn spread(string: u64, bits: u32) -> usize {
    (string.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - bits)) as usize
}

fn counter(string: u64) -> usize {
    spread(string, COUNTERS.trailing_zeros())
}

impl Room {
    /// Counts in how many of the samples each string is.
    fn count_strings(&mut self, count: usize) {
        let Room { pages, counters, .. } = self;
        for (n, page) in pages[..count].iter().enumerate().filter(|(n, _)| !is_judge(*n)) {
            for at in 0..=PAGE_SIZE - STRING {
                counters[counter(string(page, at))].see(n);
            }
        }
        // One word repeated would gain everywhere, and needs no dictionary.
        counters[counter(0)].pages = 0;
    }

    /// Takes pieces, each the one that gains the most of those of a few samples, for what those before it do not have; in the end by what
    /// they gain. Returns how many.
    fn take_pieces(&mut self, count: usize) -> usize {
        let mut taken = 0;
        for round in 0..PIECES {
            let samples = (round % GROUPS..count).step_by(GROUPS).filter(|n| !is_judge(*n));
            let places = samples.flat_map(|n| (0..PLACES).map(move |place| (n, place * STEP)));
            let gains = places.map(|(n, start)| (self.gain(n, start), (n * PAGE_SIZE + start) as u32));
            let Some(best) = gains.max().filter(|best| best.0 != 0) else { continue };
            let (page, start) = (best.1 as usize / PAGE_SIZE, best.1 as usize % PAGE_SIZE);
            let Room { pages, counters, .. } = self;
            for at in start..=start + PIECE - STRING {
                counters[counter(string(&pages[page], at))].pages = 0;
            }
            self.taken[taken] = best;
            taken += 1;
        }
        self.taken[..taken].sort_unstable_by(|a, b| b.cmp(a));
        taken
    }

    fn gain(&self, n: usize, start: usize) -> u32 {
        let strings = (start..=start + PIECE - STRING).map(|at| string(&self.pages[n], at));
        let pages = strings.map(|string| self.counters[counter(string)].pages);
        pages.filter(|&pages| pages >= ENOUGH).map(u32::from).sum()
    }

    /// Counts in how many of the samples each string of the pieces really is.
    fn count_exactly(&mut self, count: usize, pieces: usize) {
        let Room { pages, taken, chains, next, same, pages_with, .. } = self;
        chains.fill(NONE);
        let bits = CHAINS.trailing_zeros();
        let string_of = |id: usize| {
            let place = taken[id / PIECE].1 as usize;
            string(&pages[place / PAGE_SIZE], place % PAGE_SIZE + id % PIECE)
        };
        for id in (0..pieces * PIECE).filter(|id| id % PIECE <= PIECE - STRING) {
            let wanted = string_of(id);
            let chain = spread(wanted, bits);
            let mut other = chains[chain];
            while other != NONE && string_of(usize::from(other)) != wanted {
                other = next[usize::from(other)];
            }
            same[id] = if other == NONE { id as u16 } else { other };
            if usize::from(same[id]) == id {
                next[id] = chains[chain];
                chains[chain] = id as u16;
            }
        }
        for (n, page) in pages[..count].iter().enumerate().filter(|(n, _)| !is_judge(*n)) {
            for at in 0..=PAGE_SIZE - STRING {
                let wanted = string(page, at);
                let mut id = chains[spread(wanted, bits)];
                while id != NONE && string_of(usize::from(id)) != wanted {
                    id = next[usize::from(id)];
                }
                if id != NONE {
                    pages_with[usize::from(id)].see(n);
                }
            }
        }
    }
}

impl Counter {
    /// The string is in sample `n`.
    fn see(&mut self, n: usize) {
        if usize::from(self.last) != n + 1 {
            self.last = n as u16 + 1;
            self.pages = self.pages.saturating_add(1);
        }
    }
}

/// Writes what the pieces have in common with enough pages, the best last; returns how many bytes.
fn put_content(
    pages: &[Page; SAMPLES],
    taken: &[(u32, u32)],
    enough: impl Fn(usize) -> bool,
    out: &mut [u8],
) -> usize {
    // From the end of the room to its beginning, so that the best are there if not all fit.
    let most = out.len().min(CONTENT);
    let mut start = most;
    'pieces: for (n, &(_, place)) in taken.iter().enumerate() {
        let (page, first) = (&pages[place as usize / PAGE_SIZE], place as usize % PAGE_SIZE);
        let common = |at: usize| {
            let strings = at.saturating_sub(STRING - 1)..=at.min(PIECE - STRING);
            strings.into_iter().any(|at| enough(n * PIECE + at))
        };
        for at in (0..PIECE).rev().filter(|&at| common(at)) {
            let Some(next) = start.checked_sub(1) else { break 'pieces };
            start = next;
            out[start] = page[first + at];
        }
    }
    out.copy_within(start..most, 0);
    most - start
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::codec::{Codec, Zstd};
    use proptest::prelude::*;
    use std::vec::Vec;

    /// A page of records with words in common; what is in no other page is a number in each.
    fn records(page: usize) -> Page {
        const WORDS: [&str; 8] =
            ["alpha", "customer", "delivery", "exchange", "invoice", "neighbour", "opened", "shipment"];
        let mut state = page as u64 + 1;
        let mut text = Vec::new();
        while text.len() < PAGE_SIZE {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let word = |shift: u32| WORDS[(state >> shift) as usize % 8];
            let record =
                std::format!("{{\"id\":{},\"{}\":\"{} {}\"}},", state >> 44, word(33), word(37), word(41));
            text.extend_from_slice(record.as_bytes());
        }
        text[..PAGE_SIZE].try_into().unwrap()
    }

    fn samples(pages: impl IntoIterator<Item = Page>) -> Samples {
        let mut samples = Samples::new().unwrap();
        for page in pages {
            // SAFETY: it is readable.
            assert!(unsafe { samples.add_at(page.as_ptr() as usize) });
        }
        samples
    }

    fn trained(pages: impl IntoIterator<Item = Page>) -> Option<Trained> {
        samples(pages).train(&mut Codecs::new().unwrap(), None)
    }

    /// One of pages with words in common.
    pub(crate) fn dictionary() -> Dictionary {
        trained((0..SAMPLES).map(records)).unwrap().dictionary
    }

    fn packed(zstd: &mut Zstd, dictionary: &Dictionary, page: &Page) -> Option<Vec<u8>> {
        let mut out = [0; MAX_STORED];
        // SAFETY: it is readable.
        let len = unsafe { zstd.compress_with_dictionary_at(dictionary, page.as_ptr() as usize, &mut out) };
        len.map(|len| out[..len].to_vec())
    }

    /// Whether the page comes back; other bytes never do.
    fn comes_back(zstd: &mut Zstd, dictionary: &Dictionary, data: &[u8], page: &Page) -> bool {
        let mut back = [0; PAGE_SIZE];
        let known = zstd.decompress_with(dictionary, data, &mut back);
        assert!(!known || &back == page, "another page came back");
        known
    }

    #[test]
    fn pages_with_words_in_common_shrink_more_and_come_back() {
        let made = trained((0..SAMPLES).map(records)).unwrap();
        assert!(made.with * 10 < made.now * 9, "{} with it, {} without", made.with, made.now);
        let mut zstd = Zstd::new().unwrap();
        for page in (1000..1100).map(records) {
            let data = packed(&mut zstd, &made.dictionary, &page).unwrap();
            assert!(comes_back(&mut zstd, &made.dictionary, &data, &page));
        }
        // It is better than itself by nothing.
        let again = samples((0..SAMPLES).map(records))
            .train(&mut Codecs::new().unwrap(), Some(&made.dictionary))
            .unwrap();
        assert_eq!(again.now, again.with);
    }

    #[test]
    fn nothing_of_a_dictionary_is_used_once_another_is_though_a_page_did_not_fit() {
        // Otherwise an engine does it.
        crate::sabotage::choose(None);
        let mut zstd = Zstd::new().unwrap();
        let mut state = 7u64;
        let noise: Page = core::array::from_fn(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        });
        let first = dictionary();
        assert_eq!(packed(&mut zstd, &first, &noise), None);
        drop(first);
        // Not at the place of the first.
        let between = samples([]);
        let second =
            trained((0..SAMPLES).map(|n| records(n).map(|byte| byte.rotate_left(1)))).unwrap().dictionary;
        drop(between);
        let page = records(900).map(|byte| byte.rotate_left(1));
        let data = packed(&mut zstd, &second, &page).unwrap();
        assert!(comes_back(&mut zstd, &second, &data, &page), "it was compressed with another");
    }

    #[test]
    fn with_a_dictionary_that_was_damaged_or_is_another_no_other_page_comes_back() {
        // Otherwise an engine does it.
        crate::sabotage::choose(None);
        let made = trained((0..SAMPLES).map(records)).unwrap();
        let mut zstd = Zstd::new().unwrap();
        let page = records(5000);
        let data = packed(&mut zstd, &made.dictionary, &page).unwrap();
        let (mut unread, mut bytes) = (0, made.dictionary.bytes().to_vec());
        for at in 0..bytes.len() {
            bytes[at] ^= 1 << (at % 8);
            // Some are no dictionary any more.
            if let Ok(damaged) = Dictionary::build(&bytes) {
                unread += usize::from(!comes_back(&mut zstd, &damaged, &data, &page));
            }
            bytes[at] ^= 1 << (at % 8);
        }
        assert!(unread > 10, "only {unread} kinds of damage mattered");
        let other = trained((0..SAMPLES).map(|n| records(n).map(|byte| byte.rotate_left(1)))).unwrap();
        assert!(!comes_back(&mut zstd, &other.dictionary, &data, &page));
        let mut back = [0; PAGE_SIZE];
        assert!(!zstd.decompress(&data, &mut back), "it came back without any");
    }

    #[test]
    fn what_only_a_few_pages_hold_does_not_enter() {
        let secret = |n: usize| std::format!("SECRET-{n}-KEY!");
        let has = |made: &Trained, what: &str| {
            made.dictionary.bytes().windows(what.len()).any(|window| window == what.as_bytes())
        };
        let pages = (0..SAMPLES).map(|n| {
            let mut page = records(n);
            let mut put = |at: usize, number: usize| {
                page[at..at + 13].copy_from_slice(&secret(number).as_bytes()[..13]);
            };
            // One that is often in one page, one that is in three pages, and one that is in many.
            if n == 4 {
                (0..200).for_each(|times| put(16 * times, 1));
            }
            if matches!(n, 5 | 8 | 12) {
                put(2048, 2);
            }
            if n % 2 == 0 && n != 4 {
                put(1024, 3);
            }
            page
        });
        let made = trained(pages).unwrap();
        // All begin and end alike: what tells them apart is in the middle.
        assert!(!has(&made, &secret(1)[3..13]) && !has(&made, &secret(2)[3..13]));
        assert!(has(&made, &secret(3)[3..13]), "nothing that many pages hold was found");
    }

    #[test]
    fn of_noise_of_zeros_and_of_few_pages_there_is_none_or_one_that_works() {
        let mut state = 7u64;
        let mut noise = || {
            core::array::from_fn(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
        };
        assert!(trained((0..SAMPLES).map(|_| noise())).is_none());
        assert!(trained((0..SAMPLES).map(|_| [0; PAGE_SIZE])).is_none());
        assert!(trained((0..FEWEST - 1).map(records)).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn any_page_survives_a_dictionary_of_any_pages(
            seeds in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..600), 1..12),
            page in prop::collection::vec(any::<u8>(), 1..4096),
            alike in 1usize..64,
        ) {
            let of = |words: &[u8], n: usize| -> Page {
                core::array::from_fn(|i| words[i % words.len()] ^ (i / 61 * (n / alike)) as u8)
            };
            let made = trained((0..SAMPLES).map(|n| of(&seeds[n % seeds.len()], n)));
            let Some(made) = made else { return Ok(()) };
            let mut zstd = Zstd::new().unwrap();
            for page in [of(&page, 0), of(&seeds[0], 1), records(1), [0; PAGE_SIZE]] {
                if let Some(data) = packed(&mut zstd, &made.dictionary, &page) {
                    prop_assert!(comes_back(&mut zstd, &made.dictionary, &data, &page));
                }
            }
        }
    }
}
