//! Codecs in a model: a page is its first two words, read one after the other with others between.

use crate::world::{enter, Content};
use memfold_policy::effort::Effort;
use memfold_sys::{Result, PAGE_SIZE};

/// As in the pager.
pub type Page = [u8; PAGE_SIZE];

/// As in the pager.
pub const MAX_STORED: usize = PAGE_SIZE * 95 / 100;

/// A page with this first word does not shrink.
pub const DENSE: u64 = 0xDE5E;

/// As in the pager.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum CodecId {
    Lz4 = 0,
    Zstd = 1,
    Whole = 3,
}

impl CodecId {
    pub fn from_bits(bits: u64) -> Option<CodecId> {
        match bits {
            0 => Some(CodecId::Lz4),
            1 => Some(CodecId::Zstd),
            3 => Some(CodecId::Whole),
            _ => None,
        }
    }

    pub fn bits(self) -> u64 {
        self as u64
    }

    pub fn is_whole(self) -> bool {
        self == CodecId::Whole
    }

    pub fn dictionary(self) -> Option<usize> {
        None
    }

    pub fn effort(self) -> Effort {
        match self {
            CodecId::Lz4 => Effort::Least,
            CodecId::Zstd | CodecId::Whole => Effort::Most,
        }
    }
}

/// As in the pager.
pub const DICTIONARIES: usize = 1;

/// Codecs of a model need none.
#[derive(Default)]
pub struct Dictionaries;

/// There is none.
pub enum Dictionary {}

/// As in the pager.
pub trait Codec {
    unsafe fn compress_at(&mut self, page: usize, out: &mut [u8]) -> Option<usize>;
    fn decompress(&mut self, data: &[u8], page: &mut Page) -> bool;
}

/// A codec whose result always has the same length. Eight of the fast one's fill a block of the store.
pub struct Fixed(usize);

impl Codec for Fixed {
    unsafe fn compress_at(&mut self, page: usize, out: &mut [u8]) -> Option<usize> {
        let [first, second] = words(page);
        if first == DENSE {
            return None;
        }
        out[..8].copy_from_slice(&first.to_ne_bytes());
        out[8..16].copy_from_slice(&second.to_ne_bytes());
        Some(self.0)
    }

    fn decompress(&mut self, data: &[u8], page: &mut Page) -> bool {
        if data.len() != self.0 {
            return false;
        }
        page[..8].copy_from_slice(&data[..8]);
        // Whoever may change the slot meanwhile comes in here.
        enter(|_| ());
        page[8..16].copy_from_slice(&data[8..16]);
        true
    }
}

/// As in the pager.
pub struct Codecs {
    pub lz4: Fixed,
    pub zstd: Fixed,
}

impl Codecs {
    pub fn new() -> Result<Codecs> {
        Ok(Codecs { lz4: Fixed(3800), zstd: Fixed(100) })
    }

    /// Nothing is kept.
    pub fn wipe(&mut self, _: &mut Page) {}

    pub unsafe fn compress_at(
        &mut self,
        effort: Effort,
        _dictionary: Option<(u8, &Dictionary)>,
        page: usize,
        out: &mut [u8],
    ) -> Option<(CodecId, usize)> {
        // SAFETY: the caller's contract.
        unsafe {
            match effort {
                Effort::Most => Some((CodecId::Zstd, self.zstd.compress_at(page, out)?)),
                _ => Some((CodecId::Lz4, self.lz4.compress_at(page, out)?)),
            }
        }
    }

    pub fn decompress(&mut self, codec: CodecId, _: &Dictionaries, data: &[u8], page: &mut Page) -> bool {
        match codec {
            CodecId::Lz4 => self.lz4.decompress(data, page),
            CodecId::Zstd => self.zstd.decompress(data, page),
            CodecId::Whole => false,
        }
    }
}

/// The word that fills the page, if one does.
pub unsafe fn repeated_word_at(page: usize) -> Option<u64> {
    let [first, second] = words(page);
    (first == second).then_some(first)
}

fn words(page: usize) -> Content {
    let word = |at: usize| {
        // Read anew each time: another thread of the model may write the page between the two.
        // SAFETY: within the page, which is aligned.
        unsafe { ((page + at) as *const u64).read_volatile() }
    };
    let first = word(0);
    enter(|_| ());
    [first, word(8)]
}
