//! Zstandard at level 1, without magic number, size, checksum or dictionary identifier: 7 us to get a page back,
//! half as large again as what LZ4 leaves.

use super::{Codec, CodecId, Page};
use core::ffi::c_void;
use sys::{mem, Result, PAGE_SIZE};
use zstd_sys::*;

const LEVEL: i32 = 1;

/// Room for the library's compression and decompression contexts, which it builds in memory given to it.
/// Only what a 4 KiB page needs of it is ever touched.
const COMPRESS_LEN: usize = 1 << 20;
const DECOMPRESS_LEN: usize = 256 << 10;

/// The codec and its contexts.
pub struct Zstd {
    memory: usize,
    compressor: *mut ZSTD_CCtx,
    decompressor: *mut ZSTD_DCtx,
}

// SAFETY: the contexts are reached only through `&mut self`.
unsafe impl Send for Zstd {}

impl Zstd {
    /// Maps the memory and builds both contexts.
    pub fn new() -> Result<Zstd> {
        let memory = mem::map_anonymous(0, COMPRESS_LEN + DECOMPRESS_LEN, libc::MAP_NORESERVE)?;
        // SAFETY: both parts of the mapping are as long as said and used for nothing else; the parameters
        // are set before the first use.
        let (compressor, decompressor) = unsafe {
            let compressor = ZSTD_initStaticCCtx(memory as *mut c_void, COMPRESS_LEN);
            let decompressor = ZSTD_initStaticDCtx((memory + COMPRESS_LEN) as *mut c_void, DECOMPRESS_LEN);
            if !compressor.is_null() && !decompressor.is_null() {
                let magicless = ZSTD_format_e::ZSTD_f_zstd1_magicless as i32;
                for (parameter, value) in [
                    (ZSTD_cParameter::ZSTD_c_compressionLevel, LEVEL),
                    (ZSTD_cParameter::ZSTD_c_experimentalParam2, magicless),
                    (ZSTD_cParameter::ZSTD_c_contentSizeFlag, 0),
                    (ZSTD_cParameter::ZSTD_c_checksumFlag, 0),
                    (ZSTD_cParameter::ZSTD_c_dictIDFlag, 0),
                ] {
                    ZSTD_CCtx_setParameter(compressor, parameter, value);
                }
                ZSTD_DCtx_setParameter(decompressor, ZSTD_dParameter::ZSTD_d_experimentalParam1, magicless);
            }
            (compressor, decompressor)
        };
        let codec = Zstd { memory, compressor, decompressor };
        if compressor.is_null() || decompressor.is_null() {
            return Err(sys::Errno::ENOMEM);
        }
        Ok(codec)
    }
}

impl Drop for Zstd {
    fn drop(&mut self) {
        // SAFETY: our own mapping; the contexts in it die with it.
        let _ = unsafe { mem::munmap(self.memory, COMPRESS_LEN + DECOMPRESS_LEN) };
    }
}

impl Codec for Zstd {
    const ID: CodecId = CodecId::Zstd;

    unsafe fn compress_at(&mut self, page: usize, out: &mut [u8]) -> Option<usize> {
        // SAFETY: source and destination are valid for the lengths given.
        let len = unsafe {
            ZSTD_compress2(
                self.compressor,
                out.as_mut_ptr().cast(),
                out.len(),
                page as *const c_void,
                PAGE_SIZE,
            )
        };
        // SAFETY: looks at the number only.
        (unsafe { ZSTD_isError(len) } == 0).then_some(len)
    }

    fn decompress(&mut self, data: &[u8], page: &mut Page) -> bool {
        // SAFETY: the library reads no further than `data` and writes no further than the page.
        let len = unsafe {
            ZSTD_decompressDCtx(
                self.decompressor,
                page.as_mut_ptr().cast(),
                PAGE_SIZE,
                data.as_ptr().cast(),
                data.len(),
            )
        };
        len == PAGE_SIZE
    }
}
