//! The tables of a dictionary: how often each byte, length and distance comes (RFC 8878, section 5).
//!
//! A dictionary has all symbols in its tables, however rare: one that is missing would forbid their use for a page that needs it.

use crate::codec::{Dictionary, Page};
use core::ffi::c_void;
use memfold_sys::PAGE_SIZE;
use zstd_sys::*;

/// Most bytes of everything in a dictionary but its content.
pub(super) const MOST_TABLES: usize = 1024;
/// Room for the library to work in.
pub(super) const CONTEXT_LEN: usize = 1 << 20;

const MAGIC: u32 = 0xEC30_A437;
/// A number of the range for private use; pages do not carry it.
const ID: u32 = 0x6D66;
/// Distances that stand for the last ones used, before there are any (RFC 8878, 3.1.1.5).
const RECENT: [u32; 3] = [1, 4, 8];

/// The first length of each code (RFC 8878, 3.1.1.3.2.1.1); matches are 3 longer.
const LITERALS: [u32; 36] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20, 22, 24, 28, 32, 40, 48, 64, 128, 256,
    512, 1024, 2048, 4096, 8192, 16384, 32768, 65536,
];
const MATCHES: [u32; 53] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
    29, 30, 31, 32, 34, 36, 38, 40, 44, 48, 56, 64, 80, 96, 128, 256, 512, 1024, 2048, 4096, 8192, 16384,
    32768, 65536,
];
/// Codes of distances: as far as the content and 128 KiB more.
const DISTANCES: usize = 18;
/// Logarithms of the sizes of the three tables, the largest that are allowed.
const DISTANCES_LOG: u32 = 8;
const LENGTHS_LOG: u32 = 9;
/// Shortest match, and the logarithm of the number of places that are remembered.
const SHORTEST: usize = 5;
const PLACES_LOG: u32 = 14;
/// Literals that stand for how often each comes.
const LIKENESS: usize = 16 << 10;

/// How often each symbol comes. Zeros are none.
pub(super) struct Statistics {
    bytes: [u32; 256],
    literals: [u32; LITERALS.len()],
    matches: [u32; MATCHES.len()],
    distances: [u32; DISTANCES],
    /// Where what hashes to a number was last, plus one: in the content alone, and with the page.
    content_places: [u16; 1 << PLACES_LOG],
    places: [u16; 1 << PLACES_LOG],
    /// The content and a page behind it.
    window: [u8; Dictionary::MOST_BYTES + PAGE_SIZE],
    /// What the library compresses, and into what.
    likeness: [u8; LIKENESS],
    compressed: [u8; LIKENESS + 1024],
}

impl Statistics {
    /// Parses pages as the library would with this content before each.
    pub(super) fn parse<'a>(&mut self, content: &[u8], pages: impl Iterator<Item = &'a Page>) {
        self.window[..content.len()].copy_from_slice(content);
        for at in 0..content.len().saturating_sub(8) {
            self.content_places[hash(&self.window, at)] = at as u16 + 1;
        }
        for page in pages {
            self.parse_page(content.len(), page);
        }
    }

    fn parse_page(&mut self, start: usize, page: &Page) {
        self.places = self.content_places;
        let end = start + PAGE_SIZE;
        self.window[start..end].copy_from_slice(page);
        let (mut at, mut anchor, mut recent) = (start, start, RECENT[0] as usize);
        while at + 8 < end {
            let place = &mut self.places[hash(&self.window, at)];
            let found = usize::from(core::mem::replace(place, at as u16 + 1));
            // The last distance again costs next to nothing.
            let again = at + 1;
            let (from, to) = if again >= recent && self.alike(again - recent, again, end) >= 4 {
                (again - recent, again)
            } else if found != 0 && self.alike(found - 1, at, end) >= SHORTEST {
                (found - 1, at)
            } else {
                at += 1 + ((at - anchor) >> 7);
                continue;
            };
            let (len, distance) = (self.alike(from, to, end), to - from);
            // One to three are for distances used before.
            let base = if distance == recent { 1 } else { distance + 3 };
            self.distances[(base.ilog2() as usize).min(DISTANCES - 1)] += 1;
            self.literals[code(&LITERALS, (to - anchor) as u32)] += 1;
            self.matches[code(&MATCHES, len as u32 - 3)] += 1;
            self.literals_to(anchor, to);
            recent = distance;
            at = to + len;
            anchor = at;
        }
        self.literals_to(anchor, end);
    }

    fn literals_to(&mut self, from: usize, to: usize) {
        for &byte in &self.window[from..to] {
            self.bytes[usize::from(byte)] += 1;
        }
    }

    /// How many bytes are alike from two places on.
    fn alike(&self, from: usize, to: usize, end: usize) -> usize {
        let pairs = self.window[to..end].iter().zip(&self.window[from..]);
        pairs.take_while(|(a, b)| a == b).count()
    }
}

fn hash(window: &[u8], at: usize) -> usize {
    let mut word = [0; 8];
    word[..SHORTEST].copy_from_slice(&window[at..at + SHORTEST]);
    (u64::from_le_bytes(word).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - PLACES_LOG)) as usize
}

fn code(firsts: &[u32], length: u32) -> usize {
    firsts.partition_point(|&first| first <= length) - 1
}

/// Bits, the first of each byte the lowest.
struct Bits<'a> {
    out: &'a mut [u8],
    len: usize,
}

impl Bits<'_> {
    fn put(&mut self, value: u32, bits: u32) {
        for n in 0..bits {
            self.out[self.len / 8] |= ((value >> n & 1) as u8) << (self.len % 8);
            self.len += 1;
        }
    }
}

/// Writes a table of `1 << log` points, shared out as often as the symbols come, and at least one to each (RFC 8878, 4.1.1). Returns
/// how many bytes; `out` holds zeros.
fn write_table<const N: usize>(counts: &[u32; N], log: u32, out: &mut [u8]) -> usize {
    let size = 1u32 << log;
    let sum: u64 = counts.iter().map(|&n| u64::from(n)).sum::<u64>().max(1);
    let mut points = counts.map(|n| ((u64::from(n) * u64::from(size - N as u32) / sum) as u32) + 1);
    // What rounding has left goes to the most frequent.
    let rest = size - points.iter().sum::<u32>();
    if let Some(most) = points.iter_mut().max() {
        *most += rest;
    }
    let mut bits = Bits { out, len: 0 };
    bits.put(log - 5, 4);
    let mut left = size;
    for points in points {
        if left == 0 {
            break;
        }
        // From 0, which stands for less than one point, to all that are left, plus one. The first of these numbers take a bit less.
        let numbers = left + 2;
        let width = (numbers - 1).ilog2() + 1;
        let short = (1 << width) - numbers;
        let value = points + 1;
        if value < short {
            bits.put(value, width - 1);
        } else if value < 1 << (width - 1) {
            bits.put(value, width);
        } else {
            bits.put(value + short, width);
        }
        left -= points;
    }
    bits.len.div_ceil(8)
}

/// Writes everything of a dictionary but its content. `None` where the literals are too much alike in number for a table to gain
/// anything.
pub(super) fn write<'a>(
    statistics: &mut Statistics,
    context: &mut [u64],
    out: &'a mut [u8; MOST_TABLES],
) -> Option<&'a [u8]> {
    let mut len = 0;
    for word in [MAGIC, ID] {
        out[len..len + 4].copy_from_slice(&word.to_le_bytes());
        len += 4;
    }
    let tree = tree(statistics, context)?;
    out.get_mut(len..len + tree.len())?.copy_from_slice(tree);
    len += tree.len();
    // Three tables of at most 512 points and 53 symbols take 100 bytes each at most.
    out.get(len + 3 * 128..)?;
    len += write_table(&statistics.distances, DISTANCES_LOG, &mut out[len..]);
    len += write_table(&statistics.matches, LENGTHS_LOG, &mut out[len..]);
    len += write_table(&statistics.literals, LENGTHS_LOG, &mut out[len..]);
    for distance in RECENT {
        out[len..len + 4].copy_from_slice(&distance.to_le_bytes());
        len += 4;
    }
    Some(&out[..len])
}

/// The Huffman tree of the literals as the library writes it (RFC 8878, 4.2.1): cut out of a frame of literals that come as often.
fn tree<'a>(statistics: &'a mut Statistics, context: &mut [u64]) -> Option<&'a [u8]> {
    let Statistics { bytes, likeness, compressed, .. } = statistics;
    let sum: u64 = bytes.iter().map(|&n| u64::from(n)).sum::<u64>().max(1);
    let (mut at, mut most) = (0, 0);
    for (byte, &count) in bytes.iter().enumerate() {
        let times = (u64::from(count) * (LIKENESS - 256) as u64 / sum) as usize + 1;
        likeness[at..at + times].fill(byte as u8);
        at += times;
        if count > bytes[most] {
            most = byte;
        }
    }
    likeness[at..].fill(most as u8);
    // In any order but this one, in which there would be matches.
    let mut state = 1u64;
    for n in (1..LIKENESS).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        likeness.swap(n, ((state >> 33) % (n as u64 + 1)) as usize);
    }
    // SAFETY: the context is ours alone, source and destination are valid for the lengths given.
    let len = unsafe {
        let context = ZSTD_initStaticCCtx(context.as_mut_ptr().cast::<c_void>(), CONTEXT_LEN);
        if context.is_null() {
            return None;
        }
        for (parameter, value) in [
            // So negative that next to no matches are looked for.
            (ZSTD_cParameter::ZSTD_c_compressionLevel, -10_000),
            (ZSTD_cParameter::ZSTD_c_experimentalParam2, ZSTD_format_e::ZSTD_f_zstd1_magicless as i32),
            // Literals are compressed at negative levels too.
            (ZSTD_cParameter::ZSTD_c_experimentalParam5, ZSTD_ParamSwitch_e::ZSTD_ps_enable as i32),
            (ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
        ] {
            ZSTD_CCtx_setParameter(context, parameter, value);
        }
        let len = ZSTD_compress2(
            context,
            compressed.as_mut_ptr().cast(),
            compressed.len(),
            likeness.as_ptr().cast(),
            LIKENESS,
        );
        if ZSTD_isError(len) != 0 {
            return None;
        }
        len
    };
    // A frame header of two bytes, a block header of three, and the header of the literals, of which a tree follows (RFC 8878,
    // 3.1.1).
    let block = compressed[..len].get(2..)?;
    let literals = block.get(3..).filter(|_| block[0] >> 1 & 3 == 2)?;
    let header = [3, 3, 4, 5][usize::from(*literals.first()? >> 2 & 3)];
    let tree = literals.get(header..).filter(|_| literals[0] & 3 == 2)?;
    let weights = usize::from(*tree.first()?);
    // More weights than fit in the other form, which has 128 at most.
    tree.get(..1 + weights).filter(|_| weights < 128)
}
