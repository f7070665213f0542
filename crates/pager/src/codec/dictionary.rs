//! A dictionary: what many pages of a program have in common, in the form in which Zstandard works with it.
//!
//! Invariants: nothing of it is written once it is built. A page compressed with it carries a checksum, so that with other bytes than
//! those it was compressed with, it is not read at all.

use core::ffi::c_void;
use memfold_sys::{mem, Errno, Result, PAGE_SIZE};
use zstd_sys::*;

/// The level at which pages are compressed with a dictionary.
pub(super) const LEVEL: i32 = 1;

/// A dictionary in memory of its own, which it gives back when it is dropped.
#[derive(Debug)]
pub struct Dictionary {
    base: usize,
    mapped: usize,
    /// Its bytes lie at the beginning.
    len: usize,
    compress: *const ZSTD_CDict,
    decompress: *const ZSTD_DDict,
}

// SAFETY: nobody writes to it.
unsafe impl Send for Dictionary {}
// SAFETY: as above.
unsafe impl Sync for Dictionary {}

impl Dictionary {
    /// The most bytes of one.
    pub const MOST_BYTES: usize = 20 << 10;

    /// Builds one of its bytes (RFC 8878, section 5). `EINVAL` where these are no dictionary, `ENOMEM` where there is no memory.
    pub fn build(bytes: &[u8]) -> Result<Dictionary> {
        if bytes.len() > Dictionary::MOST_BYTES {
            return Err(Errno::EINVAL);
        }
        let method = ZSTD_dictLoadMethod_e::ZSTD_dlm_byRef;
        let kind = ZSTD_dictContentType_e::ZSTD_dct_fullDict;
        // SAFETY: these look at numbers only.
        let (parameters, compress_len, decompress_len) = unsafe {
            let parameters = ZSTD_getCParams(LEVEL, PAGE_SIZE as u64, bytes.len());
            let compress = ZSTD_estimateCDictSize_advanced(bytes.len(), parameters, method);
            (parameters, compress, ZSTD_estimateDDictSize(bytes.len(), method))
        };
        let compress_at = bytes.len().next_multiple_of(64);
        let decompress_at = (compress_at + compress_len).next_multiple_of(64);
        let mapped = (decompress_at + decompress_len).next_multiple_of(PAGE_SIZE);
        let base = mem::map_own(mapped, 0)?;
        let mut made = Dictionary {
            base,
            mapped,
            len: bytes.len(),
            compress: core::ptr::null(),
            decompress: core::ptr::null(),
        };
        mem::name_range(base, mapped, c"memfold dictionary");
        // SAFETY: the parts of the mapping are as long as said, nobody else has it, and it stays for as long as what is built in it.
        unsafe {
            core::slice::from_raw_parts_mut(base as *mut u8, bytes.len()).copy_from_slice(bytes);
            let (dictionary, len) = (base as *const c_void, bytes.len());
            let place = (base + compress_at) as *mut c_void;
            made.compress =
                ZSTD_initStaticCDict(place, compress_len, dictionary, len, method, kind, parameters);
            let place = (base + decompress_at) as *mut c_void;
            made.decompress = ZSTD_initStaticDDict(place, decompress_len, dictionary, len, method, kind);
            if made.compress.is_null() || made.decompress.is_null() {
                return Err(Errno::EINVAL);
            }
            mem::mprotect(base, mapped, libc::PROT_READ)?;
        }
        Ok(made)
    }

    /// Bytes of memory that it takes.
    pub fn used_bytes(&self) -> usize {
        self.mapped
    }

    /// What it was built of.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: they lie at the beginning of the mapping, which stays as long as this.
        unsafe { core::slice::from_raw_parts(self.base as *const u8, self.len) }
    }

    pub(super) fn for_compression(&self) -> *const ZSTD_CDict {
        self.compress
    }

    pub(super) fn for_decompression(&self) -> *const ZSTD_DDict {
        self.decompress
    }
}

impl Drop for Dictionary {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and nobody else has its address any more.
        let _ = unsafe { mem::munmap(self.base, self.mapped) };
    }
}
