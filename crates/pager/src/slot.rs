//! A place in the compressed store, and what it holds: a header, which tells the page, the codec and the length, and the bytes behind it.
//!
//! Invariants: a slot's bytes do not change from the moment a page entry names it until the slot is given up; then the
//! word behind its header links it in the free queue, and everything else stays until the background thread has taken it
//! from there. So who has taken the entry may look at the bytes ([`Slot::read`]), and the background thread, which takes none, copies them
//! ([`Slot::copy`]).

use crate::blocks::GRAIN;
use crate::codec::{CodecId, MAX_STORED};
use crate::sync::AtomicUsize;
use memfold_sys::{racing, PAGE_SIZE};

/// Bytes in front of the compressed data.
pub const HEADER: usize = 8;

/// Who has no part of what is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Apart {
    /// Forked children (`MADV_DONTFORK`).
    pub unforked: bool,
    /// Core dumps (`MADV_DONTDUMP`).
    pub undumped: bool,
}

/// A place in the store: its address divided by [`GRAIN`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot(u64);

impl Slot {
    /// No place.
    pub const NONE: Slot = Slot(0);

    /// From the payload of a page entry.
    pub fn from_payload(payload: u64) -> Slot {
        Slot(payload)
    }

    /// That at an address.
    pub(crate) fn at(addr: usize) -> Slot {
        Slot((addr / GRAIN) as u64)
    }

    /// For the payload of a page entry.
    pub fn payload(self) -> u64 {
        self.0
    }

    /// Where it lies: a word, which [`parse_header`] reads, and the bytes stored.
    pub fn addr(self) -> usize {
        (self.0 as usize).wrapping_mul(GRAIN)
    }

    /// The codec and the bytes stored; `None` when the header makes no sense.
    ///
    /// # Safety
    /// A page entry taken by the caller names this slot, and the caller drops the slice before it gives the
    /// slot to the free queue.
    pub unsafe fn read<'a>(self) -> Option<(CodecId, &'a [u8])> {
        // SAFETY: the slot is allocated, by the caller's contract; a header was written when it was filled.
        let (_, codec, len) = parse_header(unsafe { *(self.addr() as *const u64) })?;
        // SAFETY: a slot is as long as its header says at least.
        let data = unsafe { core::slice::from_raw_parts((self.addr() + HEADER) as *const u8, len) };
        Some((codec, data))
    }

    /// Copies the bytes stored to the beginning of `out`, and returns the codec and how many they are; `None` when the
    /// header makes no sense. Others may give the slot up meanwhile: then no entry names it any more, and the copy is of
    /// no use.
    ///
    /// # Safety
    /// Only the background thread may call this, for a slot that is allocated.
    pub unsafe fn copy(self, out: &mut [u8]) -> Option<(CodecId, usize)> {
        // SAFETY: the slot stays allocated, as this thread alone frees, and its header as it is.
        let (_, codec, len) = parse_header(unsafe { *(self.addr() as *const u64) })?;
        let out = out.get_mut(..len)?;
        // SAFETY: a slot has whole words; the only one that is written meanwhile is the link, by an atomic.
        unsafe { racing::copy(self.addr() + HEADER, out) };
        Some((codec, len))
    }

    /// Whether what is stored is a page as it was.
    ///
    /// # Safety
    /// Only the background thread may call this, for a slot that is allocated.
    pub unsafe fn is_whole(self) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.header() }.is_whole()
    }

    /// Overwrites the bytes stored, before the slot is given up.
    ///
    /// # Safety
    /// The slot is allocated and no page entry names it; the caller took the one that did.
    pub unsafe fn wipe(self) {
        // SAFETY: the slot is allocated, and keeps its header.
        let header = unsafe { self.header() };
        // SAFETY: a slot has whole words, as many as its header says at least. The background thread may be copying them.
        unsafe { racing::clear(self.addr() + HEADER, header.len()) };
    }

    /// What it starts with.
    ///
    /// # Safety
    /// The slot is allocated.
    pub(crate) unsafe fn header(self) -> Header {
        // SAFETY: the caller's contract; a header was written when it was filled.
        Header(unsafe { *(self.addr() as *const u64) })
    }

    /// The word behind the header, which links the free queue.
    ///
    /// # Safety
    /// The slot is allocated, and no page entry names it.
    pub(crate) unsafe fn link<'a>(self) -> &'a AtomicUsize {
        // SAFETY: slots are aligned and longer than two words, and stay mapped while they are allocated. Who may read the
        // word meanwhile reads it as an atomic.
        unsafe { &*((self.addr() + HEADER) as *const AtomicUsize) }
    }
}

/// Whether so many bytes may be what a codec made of a page.
pub fn may_take(codec: CodecId, len: usize) -> bool {
    if codec.is_whole() {
        len == PAGE_SIZE
    } else {
        len <= MAX_STORED
    }
}

/// Page address, codec and length that the first word of a slot tells; `None` when it makes no sense.
pub fn parse_header(word: u64) -> Option<(usize, CodecId, usize)> {
    let header = Header(word);
    let codec = header.codec()?;
    may_take(codec, header.len()).then_some((header.page(), codec, header.len()))
}

/// Length (12 bits, 0 for a whole page), codec (4 bits) and page number (36 bits) of a stored page, and in the last two bits who has it not.
#[derive(Clone, Copy)]
pub(crate) struct Header(u64);

impl Header {
    pub(crate) fn new(page: usize, codec: CodecId, len: usize, apart: Apart) -> Header {
        Header(
            (apart.unforked as u64) << 63
                | (apart.undumped as u64) << 62
                | ((page / PAGE_SIZE) as u64) << 16
                | codec.bits() << 12
                | (len % PAGE_SIZE) as u64,
        )
    }

    /// The word that a slot begins with.
    pub(crate) fn word(self) -> u64 {
        self.0
    }

    pub(crate) fn apart(self) -> Apart {
        Apart { unforked: self.0 >> 63 & 1 != 0, undumped: self.0 >> 62 & 1 != 0 }
    }

    pub(crate) fn is_whole(self) -> bool {
        self.codec().is_some_and(CodecId::is_whole)
    }

    pub(crate) fn len(self) -> usize {
        if self.is_whole() {
            PAGE_SIZE
        } else {
            (self.0 & 0xFFF) as usize
        }
    }

    pub(crate) fn codec(self) -> Option<CodecId> {
        CodecId::from_bits(self.0 >> 12 & 0xF)
    }

    pub(crate) fn page(self) -> usize {
        (self.0 >> 16 & ((1 << 36) - 1)) as usize * PAGE_SIZE
    }
}
