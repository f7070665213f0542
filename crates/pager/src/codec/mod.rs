//! Codecs: how the bytes of a page become fewer.
//!
//! One file a codec, one trait for all. A codec works in memory that it was given, never allocates, and keeps
//! nothing between pages. The number of a codec is written in front of each stored page.

mod dictionaries;
mod dictionary;
mod lz4;
mod zstd;

pub use dictionaries::{Dictionaries, DICTIONARIES};
pub use dictionary::Dictionary;
pub use lz4::Lz4;
pub use zstd::Zstd;

use crate::sabotage::fault_point;
use memfold_policy::effort::Effort;
use memfold_sys::{Result, PAGE_SIZE};

/// The bytes of a page.
pub type Page = [u8; PAGE_SIZE];

/// A compressed page takes at most this much: one that does not shrink by 5 % is not worth the restore.
pub const MAX_STORED: usize = PAGE_SIZE * 95 / 100;

/// Which codec wrote a stored page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodecId {
    /// LZ4, the fastest.
    Lz4,
    /// Zstandard at level 1.
    Zstd,
    /// Zstandard at level -1.
    ZstdFast,
    /// Zstandard at level 1 with a dictionary, of this number, below [`DICTIONARIES`].
    Dictionary(u8),
    /// None: the page as it is, all [`PAGE_SIZE`] bytes of it, on its way below memory.
    Whole,
}

/// The number of the first dictionary, of four bits, in front of a stored page. The last stands for no codec.
const FIRST_DICTIONARY: u64 = 15 - DICTIONARIES as u64;

/// How many numbers a stored page's codec can have.
pub const CODEC_NUMBERS: usize = 16;

impl CodecId {
    /// Those that compress and need no dictionary, the fastest first.
    pub const ALONE: [CodecId; 3] = [CodecId::Lz4, CodecId::ZstdFast, CodecId::Zstd];

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            CodecId::Lz4 => "lz4",
            CodecId::ZstdFast => "zstd -1",
            CodecId::Zstd => "zstd 1",
            CodecId::Dictionary(_) => "zstd 1, dictionary",
            CodecId::Whole => "not compressed",
        }
    }

    /// From the number in front of a stored page.
    pub fn from_bits(bits: u64) -> Option<CodecId> {
        match bits {
            0 => Some(CodecId::Lz4),
            1 => Some(CodecId::Zstd),
            2 => Some(CodecId::ZstdFast),
            3 => Some(CodecId::Whole),
            FIRST_DICTIONARY..15 => Some(CodecId::Dictionary((bits - FIRST_DICTIONARY) as u8)),
            _ => None,
        }
    }

    /// The number in front of a stored page, of four bits.
    pub fn bits(self) -> u64 {
        match self {
            CodecId::Lz4 => 0,
            CodecId::Zstd => 1,
            CodecId::ZstdFast => 2,
            CodecId::Whole => 3,
            CodecId::Dictionary(number) => FIRST_DICTIONARY + u64::from(number),
        }
    }

    /// Whether the page was left as it is.
    pub fn is_whole(self) -> bool {
        self == CodecId::Whole
    }

    /// The number of the dictionary that the page needs.
    pub fn dictionary(self) -> Option<usize> {
        match self {
            CodecId::Dictionary(number) => Some(usize::from(number)),
            _ => None,
        }
    }

    /// The effort that it stands for.
    pub fn effort(self) -> Effort {
        match self {
            CodecId::Lz4 => Effort::Least,
            CodecId::ZstdFast => Effort::Once,
            CodecId::Zstd | CodecId::Dictionary(_) | CodecId::Whole => Effort::Most,
        }
    }
}

/// A way to write a page with fewer bytes, and back.
pub trait Codec {
    /// Its number.
    const ID: CodecId;

    /// Writes the page at the address compressed into `out` and returns how many bytes it took; `None` when it does not fit.
    /// The page may change meanwhile, by the kernel's hands: then what was written is of no use, and the caller finds out.
    ///
    /// # Safety
    /// A page is readable there.
    unsafe fn compress_at(&mut self, page: usize, out: &mut [u8]) -> Option<usize>;

    /// The same for a page that does not change.
    fn compress(&mut self, page: &Page, out: &mut [u8]) -> Option<usize> {
        // SAFETY: it is readable.
        unsafe { self.compress_at(page.as_ptr() as usize, out) }
    }

    /// Writes the page that `data` stands for; false when `data` is no whole page of this codec.
    fn decompress(&mut self, data: &[u8], page: &mut Page) -> bool;
}

/// Every codec, each with its working memory: one set a thread.
pub struct Codecs {
    /// The fast one.
    lz4: Lz4,
    /// The strong one.
    zstd: Zstd,
}

impl Codecs {
    /// Maps the working memory. A set that never compresses touches little of it.
    pub fn new() -> Result<Codecs> {
        Ok(Codecs { lz4: Lz4::new()?, zstd: Zstd::new()? })
    }

    /// Makes the working memory forget the pages that went through it. `spare` is written to, and holds zeros afterwards.
    pub fn wipe(&mut self, spare: &mut Page) {
        // The fast one keeps positions and no bytes.
        self.zstd.wipe(spare);
    }

    /// Compresses the page at the address with the codec for that effort; returns which, and how many bytes it took, as
    /// [`Codec::compress_at`]. Who takes more than the least has the dictionary, which has the number of its place, if there is one.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn compress_at(
        &mut self,
        effort: Effort,
        dictionary: Option<(u8, &Dictionary)>,
        page: usize,
        out: &mut [u8],
    ) -> Option<(CodecId, usize)> {
        // SAFETY: the caller's contract.
        unsafe {
            match (effort, dictionary) {
                (Effort::Least, _) => Some((CodecId::Lz4, self.lz4.compress_at(page, out)?)),
                (_, Some((number, dictionary))) => Some((
                    CodecId::Dictionary(number),
                    self.zstd.compress_with_dictionary_at(dictionary, page, out)?,
                )),
                (Effort::Once, None) => Some((CodecId::ZstdFast, self.zstd.compress_fast_at(page, out)?)),
                (Effort::Most, None) => Some((CodecId::Zstd, self.zstd.compress_at(page, out)?)),
            }
        }
    }

    /// Decompresses with the codec that wrote the data, and the dictionary that it names; false where that is not there.
    pub fn decompress(
        &mut self,
        codec: CodecId,
        dictionaries: &Dictionaries,
        data: &[u8],
        page: &mut Page,
    ) -> bool {
        match codec {
            CodecId::Lz4 => self.lz4.decompress(data, page),
            CodecId::Zstd | CodecId::ZstdFast => self.zstd.decompress(data, page),
            CodecId::Dictionary(number) => {
                // SAFETY: who decompresses has a stored page that names it.
                let dictionary = unsafe { dictionaries.get(number) };
                dictionary.is_some_and(|dictionary| self.zstd.decompress_with(dictionary, data, page))
            }
            CodecId::Whole => data.try_into().map(|whole: &Page| page.copy_from_slice(whole)).is_ok(),
        }
    }
}

/// The word that fills the page, if one does.
pub fn repeated_word(page: &Page) -> Option<u64> {
    // SAFETY: it is readable, and nobody writes to it.
    page.as_ptr().cast::<u64>().is_aligned().then(|| unsafe { repeated_word_at(page.as_ptr() as usize) })?
}

/// The word that fills the page at the address, a multiple of 8, if one does. Where the page changes meanwhile, it may never
/// have been filled with the word, and the caller finds out.
///
/// # Safety
/// A page is readable there. Only the kernel writes to it meanwhile.
pub unsafe fn repeated_word_at(page: usize) -> Option<u64> {
    let words = fault_point!(RepeatedTooSoon: PAGE_SIZE / 8, else 64);
    // SAFETY: the caller's contract.
    let word = |n: usize| unsafe { memfold_sys::racing::word(page + n * 8) };
    let first = word(0);
    // A cache line at a time.
    let differs = |line: usize| (0..8).fold(0, |bits, n| bits | (word(line * 8 + n) ^ first)) != 0;
    (0..words / 8).all(|line| !differs(line)).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn survives(codec: &mut impl Codec, page: &Page) {
        let mut out = [0u8; PAGE_SIZE];
        if let Some(len) = codec.compress(page, &mut out) {
            let mut back = [0u8; PAGE_SIZE];
            assert!(codec.decompress(&out[..len], &mut back));
            assert!(page == &back);
            let mut ruined = [0u8; PAGE_SIZE];
            assert!(!codec.decompress(&out[..len / 2], &mut ruined), "half a page must not pass for one");
        }
    }

    fn page_of(words: &[u8]) -> Page {
        core::array::from_fn(|i| words[i % words.len()] ^ (i / 97 % 3) as u8)
    }

    proptest! {
        #[test]
        fn every_page_survives_every_codec(words in prop::collection::vec(any::<u8>(), 1..4096)) {
            let mut codecs = Codecs::new().unwrap();
            let page = page_of(&words);
            survives(&mut codecs.lz4, &page);
            survives(&mut codecs.zstd, &page);
            let mut out = [0u8; PAGE_SIZE];
            for effort in [Effort::Least, Effort::Once, Effort::Most] {
                // SAFETY: it is readable.
                if let Some((codec, len)) = unsafe { codecs.compress_at(effort, None, page.as_ptr() as usize, &mut out) } {
                    let mut back = [0u8; PAGE_SIZE];
                    prop_assert_eq!(codec.effort(), effort);
                    prop_assert!(codecs.decompress(codec, &Dictionaries::new(), &out[..len], &mut back) && back == page);
                }
            }
        }

        #[test]
        fn random_bytes_never_decompress_out_of_bounds(data in prop::collection::vec(any::<u8>(), 0..4096)) {
            let mut codecs = Codecs::new().unwrap();
            let mut page = [0u8; PAGE_SIZE];
            codecs.decompress(CodecId::Lz4, &Dictionaries::new(), &data, &mut page);
            codecs.decompress(CodecId::Zstd, &Dictionaries::new(), &data, &mut page);
        }
    }

    #[test]
    fn every_number_stands_for_one_codec_and_the_last_for_none() {
        let known = (0..16).filter_map(|bits| Some((bits, CodecId::from_bits(bits)?)));
        assert_eq!(known.clone().filter(|(_, codec)| codec.dictionary().is_some()).count(), DICTIONARIES);
        assert!(known.clone().all(|(bits, codec)| codec.bits() == bits) && known.count() == 4 + DICTIONARIES);
        assert_eq!(CodecId::from_bits(15), None);
    }

    #[test]
    fn a_whole_page_comes_back_as_it_was_and_no_part_of_one_passes_for_it() {
        let mut codecs = Codecs::new().unwrap();
        let page: Page = core::array::from_fn(|n| (n * n) as u8);
        let mut back = [0u8; PAGE_SIZE];
        let mut unpack =
            |data: &[u8]| codecs.decompress(CodecId::Whole, &Dictionaries::new(), data, &mut back);
        assert!(!unpack(&page[1..]) && unpack(&page) && back == page);
    }

    #[test]
    fn text_shrinks_with_both_codecs_and_more_with_the_strong_one() {
        let text = b"{\"id\":1234,\"name\":\"Ada Lovelace\",\"tags\":[\"a\",\"b\"],\"ok\":true},";
        let page: Page =
            core::array::from_fn(|i| text[i % text.len()].wrapping_add((i * i / 4099 % 7) as u8));
        let mut codecs = Codecs::new().unwrap();
        let mut out = [0u8; PAGE_SIZE];
        let fast = codecs.lz4.compress(&page, &mut out).unwrap();
        let strong = codecs.zstd.compress(&page, &mut out).unwrap();
        assert!(strong < fast && fast < MAX_STORED);
    }

    #[test]
    fn a_page_of_one_word_is_recognised_and_any_other_is_not() {
        #[repr(align(8))]
        struct Aligned(Page);
        let mut page = Aligned([7; PAGE_SIZE]);
        assert_eq!(repeated_word(&page.0), Some(0x0707_0707_0707_0707));
        page.0[PAGE_SIZE - 1] = 8;
        assert_eq!(repeated_word(&page.0), None);
    }
}
