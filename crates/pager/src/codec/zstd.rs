//! Zstandard at levels -1 and 1, and at level 1 with a dictionary, without magic number, size or dictionary identifier, and without a checksum
//! where there is no dictionary. On heaps of real programs it leaves two
//! thirds of what LZ4 leaves at level -1, in little more time, and less still at level 1. To get a page back takes 3 to 9 us.

use super::dictionary::LEVEL;
use super::{Codec, CodecId, Dictionary, Page};
use crate::sabotage::fault_point;
use core::ffi::c_void;
use memfold_sys::{mem, Result, PAGE_SIZE};
use zstd_sys::*;

/// The levels of the two compressors.
const FAST: i32 = -1;
const STRONG: i32 = 1;

/// Room for a compression context and the decompression context of the library, which it builds in memory given to it.
/// Only what a 4 KiB page needs of it is ever touched.
const COMPRESS_LEN: usize = 1 << 20;
const DECOMPRESS_LEN: usize = 256 << 10;
const MEMORY_LEN: usize = 3 * COMPRESS_LEN + DECOMPRESS_LEN;

/// A page of zeros as the library writes none, but reads it: one block of 4096 literals, all of them given by one byte
/// (RFC 8878, 3.1.1.3.1). Reading it puts zeros where the literals of the page before it still lie.
const ZEROS: [u8; 10] = [0x00, 0x10, 0x2D, 0x00, 0x00, 0x0D, 0x00, 0x01, 0x00, 0x00];

// The library calls these where a program defines them (its `zstd_trace.h`). Hidden, they are nobody's: a tracer of the program's own would be called by
// threads that have no thread-local storage.
core::arch::global_asm!(
    ".irp end, compress_begin, compress_end, decompress_begin, decompress_end",
    ".weak ZSTD_trace_\\end",
    ".hidden ZSTD_trace_\\end",
    ".endr",
);

/// The codec and its contexts.
pub struct Zstd {
    memory: usize,
    /// Whether bytes of pages lie in the contexts.
    compressed: bool,
    decompressed: bool,
    fast: *mut ZSTD_CCtx,
    strong: *mut ZSTD_CCtx,
    taught: *mut ZSTD_CCtx,
    decompressor: *mut ZSTD_DCtx,
}

// SAFETY: the contexts are reached only through `&mut self`.
unsafe impl Send for Zstd {}

impl Zstd {
    /// Maps the memory and builds the contexts.
    pub fn new() -> Result<Zstd> {
        let memory = mem::map_scratch(MEMORY_LEN, libc::MAP_NORESERVE)?;
        // SAFETY: the parts of the mapping are as long as said and used for nothing else; the parameters
        // are set before the first use.
        let (fast, strong, taught, decompressor) = unsafe {
            let fast = compressor(memory, FAST, false);
            let strong = compressor(memory + COMPRESS_LEN, STRONG, false);
            let taught = compressor(
                memory + 2 * COMPRESS_LEN,
                LEVEL,
                fault_point!(DictionaryUnchecked: true, else false),
            );
            let place = (memory + 3 * COMPRESS_LEN) as *mut c_void;
            let decompressor = ZSTD_initStaticDCtx(place, DECOMPRESS_LEN);
            if !decompressor.is_null() {
                ZSTD_DCtx_setParameter(decompressor, ZSTD_dParameter::ZSTD_d_experimentalParam1, MAGICLESS);
            }
            (fast, strong, taught, decompressor)
        };
        let codec =
            Zstd { memory, compressed: false, decompressed: false, fast, strong, taught, decompressor };
        if fast.is_null() || strong.is_null() || taught.is_null() || decompressor.is_null() {
            return Err(memfold_sys::Errno::ENOMEM);
        }
        Ok(codec)
    }
}

const MAGICLESS: i32 = ZSTD_format_e::ZSTD_f_zstd1_magicless as i32;

/// Builds a compression context; null if it has no room.
///
/// # Safety
/// [`COMPRESS_LEN`] bytes from `memory` on are mapped, and used for nothing else.
unsafe fn compressor(memory: usize, level: i32, checksum: bool) -> *mut ZSTD_CCtx {
    // SAFETY: the caller's contract.
    unsafe {
        let compressor = ZSTD_initStaticCCtx(memory as *mut c_void, COMPRESS_LEN);
        if !compressor.is_null() {
            for (parameter, value) in [
                (ZSTD_cParameter::ZSTD_c_compressionLevel, level),
                (ZSTD_cParameter::ZSTD_c_experimentalParam2, MAGICLESS),
                (ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
                (ZSTD_cParameter::ZSTD_c_checksumFlag, i32::from(checksum)),
                (ZSTD_cParameter::ZSTD_c_dictIDFlag, 0),
            ] {
                ZSTD_CCtx_setParameter(compressor, parameter, value);
            }
        }
        compressor
    }
}

impl Zstd {
    /// Makes the contexts forget the pages that they worked on: they keep the literals of the last one. What they keep beside those
    /// are numbers of how often which byte came. `spare` is written to.
    pub fn wipe(&mut self, spare: &mut Page) {
        if core::mem::take(&mut self.decompressed) {
            let read = self.decompress(&ZEROS, spare);
            debug_assert!(read, "the page of zeros cannot be read");
            self.decompressed = false;
        }
        if core::mem::take(&mut self.compressed) {
            // Of a page without any likeness all bytes are literals. What comes of it is thrown away.
            let mut word = 1u64;
            for chunk in spare.chunks_exact_mut(8) {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                chunk.copy_from_slice(&(word ^ word >> 29).to_le_bytes());
            }
            let mut out = [0; 64];
            for compressor in [self.fast, self.strong, self.taught] {
                // SAFETY: the page is readable.
                let _ = unsafe { self.compress_with(compressor, spare.as_ptr() as usize, &mut out) };
            }
            self.compressed = false;
        }
        spare.fill(0);
    }
}

impl Zstd {
    /// As [`Codec::compress_at`], at the lower level.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn compress_fast_at(&mut self, page: usize, out: &mut [u8]) -> Option<usize> {
        // SAFETY: the caller's contract.
        unsafe { self.compress_with(self.fast, page, out) }
    }

    /// The same, with a dictionary.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn compress_with_dictionary_at(
        &mut self,
        dictionary: &Dictionary,
        page: usize,
        out: &mut [u8],
    ) -> Option<usize> {
        // SAFETY: the dictionary is there until the context has none any more; and the caller's contract.
        unsafe {
            self.teach(dictionary.for_compression()).then_some(())?;
            let len = self.compress_with(self.taught, page, out);
            // What was compressed with one that the context could not be rid of would need that one.
            self.teach(core::ptr::null()).then_some(len)?
        }
    }

    /// Gives the context a dictionary, or takes it away.
    ///
    /// # Safety
    /// It stays until the context has another, or none.
    unsafe fn teach(&mut self, dictionary: *const ZSTD_CDict) -> bool {
        // SAFETY: the context is ours. A page that did not fit has left it in the middle of a frame, where it takes no dictionary: so it
        // begins anew.
        unsafe {
            fault_point!(DictionaryLeft: ZSTD_CCtx_reset(self.taught, ZSTD_ResetDirective::ZSTD_reset_session_only));
            let used = ZSTD_isError(ZSTD_CCtx_refCDict(self.taught, dictionary)) == 0;
            fault_point!(DictionaryLeft: used, else true)
        }
    }

    /// As [`Codec::decompress`], with the dictionary that the page was compressed with: with another one, or one that was changed, it
    /// is false.
    pub fn decompress_with(&mut self, dictionary: &Dictionary, data: &[u8], page: &mut Page) -> bool {
        // SAFETY: it stays for as long as the call.
        unsafe { self.decompress_by(dictionary.for_decompression(), data, page) }
    }

    /// # Safety
    /// A dictionary, or null for none.
    unsafe fn decompress_by(&mut self, dictionary: *const ZSTD_DDict, data: &[u8], page: &mut Page) -> bool {
        self.decompressed = true;
        // SAFETY: the library reads no further than `data` and writes no further than the page.
        let len = unsafe {
            ZSTD_decompress_usingDDict(
                self.decompressor,
                page.as_mut_ptr().cast(),
                PAGE_SIZE,
                data.as_ptr().cast(),
                data.len(),
                dictionary,
            )
        };
        len == PAGE_SIZE
    }

    /// # Safety
    /// A page is readable there, and the context is one of ours.
    unsafe fn compress_with(
        &mut self,
        compressor: *mut ZSTD_CCtx,
        page: usize,
        out: &mut [u8],
    ) -> Option<usize> {
        self.compressed = true;
        // SAFETY: source and destination are valid for the lengths given.
        let len = unsafe {
            ZSTD_compress2(compressor, out.as_mut_ptr().cast(), out.len(), page as *const c_void, PAGE_SIZE)
        };
        // SAFETY: looks at the number only.
        (unsafe { ZSTD_isError(len) } == 0).then_some(len)
    }
}

impl Drop for Zstd {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the contexts in it die with it.
        let _ = unsafe { mem::munmap(self.memory, MEMORY_LEN) };
    }
}

impl Codec for Zstd {
    const ID: CodecId = CodecId::Zstd;

    unsafe fn compress_at(&mut self, page: usize, out: &mut [u8]) -> Option<usize> {
        // SAFETY: the caller's contract.
        unsafe { self.compress_with(self.strong, page, out) }
    }

    fn decompress(&mut self, data: &[u8], page: &mut Page) -> bool {
        // SAFETY: none.
        unsafe { self.decompress_by(core::ptr::null(), data, page) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that shrinks and holds literals that no other page has, of few enough values to be written with fewer bits each.
    fn page() -> Page {
        let mut page = [b'.'; PAGE_SIZE];
        for (n, chunk) in page.chunks_exact_mut(64).enumerate() {
            let word = (n as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            chunk[..16].copy_from_slice(std::format!("{word:016x}").as_bytes());
        }
        page
    }

    /// How many of the page's literals lie in the contexts.
    fn found(zstd: &Zstd) -> usize {
        // SAFETY: the mapping of both contexts.
        let memory = unsafe { core::slice::from_raw_parts(zstd.memory as *const u8, MEMORY_LEN) };
        let page = page();
        page.chunks_exact(64).filter(|chunk| memory.windows(16).any(|window| window == &chunk[..16])).count()
    }

    #[test]
    fn nothing_of_a_page_stays_in_the_contexts() {
        let mut zstd = Zstd::new().unwrap();
        let (mut out, mut spare) = ([0; PAGE_SIZE], [0; PAGE_SIZE]);
        // SAFETY: it is readable.
        let fast = unsafe { zstd.compress_fast_at(page().as_ptr() as usize, &mut out) }.unwrap();
        assert!(fast < PAGE_SIZE);
        let dictionary = crate::training::tests::dictionary();
        // SAFETY: it is readable.
        unsafe { zstd.compress_with_dictionary_at(&dictionary, page().as_ptr() as usize, &mut out) }.unwrap();
        assert_ne!(found(&zstd), 0, "the compressor with a dictionary keeps nothing, and nothing is tested");
        zstd.wipe(&mut spare);
        assert_eq!(found(&zstd), 0);
        let len = zstd.compress(&page(), &mut out).unwrap();
        assert_ne!(found(&zstd), 0, "the compressor keeps nothing, and nothing is tested");
        zstd.wipe(&mut spare);
        assert_eq!((found(&zstd), spare), (0, [0; PAGE_SIZE]));
        let mut back = [0; PAGE_SIZE];
        assert!(zstd.decompress(&out[..len], &mut back) && back == page());
        assert_ne!(found(&zstd), 0, "the decompressor keeps nothing, and nothing is tested");
        zstd.wipe(&mut spare);
        assert_eq!(found(&zstd), 0);
        // And both go on.
        let again = zstd.compress(&page(), &mut out).unwrap();
        assert!(zstd.decompress(&out[..again], &mut back) && back == page());
    }
}
