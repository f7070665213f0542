//! Sealing what leaves memory: nobody else can read it, and what comes back changed, cut, swapped or out of date is found out.
//!
//! Each file has a random key of its own, each cluster that is written to it a number that no other has: the nonce. The cluster's own number
//! is authenticated with it. AES-256-GCM where the processor has instructions for it (RFC 5116), else ChaCha20-Poly1305 (RFC 8439).
//!
//! Invariants: a key lies in one page that is locked in memory as far as the process may lock any, and in no core dump; while a thread seals or
//! opens with it, it is in that one's registers too, which a core dump has. It is overwritten when its file is closed; its page stays. A forked
//! child has the keys of the files that it reads, and writes nothing with them.

use aes_gcm::aead::{AeadInOut, KeyInit};
use aes_gcm::Aes256Gcm;
use chacha20poly1305::ChaCha20Poly1305;
use memfold_sys::{mem, Errno, Result, PAGE_SIZE};

/// Bytes by which a sealed cluster is longer.
pub const TAG: usize = 16;
const KEY: usize = 32;

/// A page for a key, where nobody else finds it; it stays for ever, as somebody may look for a key that is gone. `ENOMEM` when the kernel has none.
pub fn make_page() -> Result<usize> {
    let page = mem::map_own(PAGE_SIZE, 0)?;
    // SAFETY: our own page. Without the right to lock memory it is swapped like any other, if it ever is.
    unsafe {
        mem::madvise(page, PAGE_SIZE, libc::MADV_DONTDUMP)?;
        let _ = memfold_sys::syscall!(mlock, page, PAGE_SIZE);
    }
    Ok(page)
}

/// Makes a new random key. What getrandom(2) answers.
///
/// # Safety
/// It is such a page, and nobody uses the key that was there.
pub unsafe fn make_key(page: usize) -> Result<()> {
    // SAFETY: the caller's contract: the page is ours, and as long.
    memfold_sys::random::fill(unsafe { core::slice::from_raw_parts_mut(page as *mut u8, KEY) })
}

/// The random number in this page, where it is no key: what tells the file from others ([`super::checksum`]).
///
/// # Safety
/// The page has one, which stays there meanwhile.
pub unsafe fn own_number(page: usize) -> [u8; KEY] {
    // SAFETY: the caller's contract.
    unsafe { (page as *const [u8; KEY]).read_volatile() }
}

/// Overwrites a key.
///
/// # Safety
/// It is such a page. Whoever uses the key meanwhile opens nothing.
pub unsafe fn forget_key(page: usize) {
    for byte in 0..KEY {
        // SAFETY: the caller's contract.
        unsafe { ((page + byte) as *mut u8).write_volatile(0) };
    }
}

/// Leaves nothing of a key in the registers of this thread: a core dump has those of all threads.
fn clear_registers() {
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::asm;
        cpufeatures::new!(vectors, "avx");
        cpufeatures::new!(wide, "avx512f");
        // SAFETY: all vector registers are named as overwritten: none is kept by a function that is called.
        unsafe {
            if vectors::get() {
                asm!("vzeroall", clobber_abi("sysv64"), options(nomem, nostack));
            } else {
                asm!(
                    "pxor xmm0, xmm0",
                    "pxor xmm1, xmm1",
                    "pxor xmm2, xmm2",
                    "pxor xmm3, xmm3",
                    "pxor xmm4, xmm4",
                    "pxor xmm5, xmm5",
                    "pxor xmm6, xmm6",
                    "pxor xmm7, xmm7",
                    "pxor xmm8, xmm8",
                    "pxor xmm9, xmm9",
                    "pxor xmm10, xmm10",
                    "pxor xmm11, xmm11",
                    "pxor xmm12, xmm12",
                    "pxor xmm13, xmm13",
                    "pxor xmm14, xmm14",
                    "pxor xmm15, xmm15",
                    clobber_abi("sysv64"),
                    options(nomem, nostack)
                );
            }
            if wide::get() {
                asm!(
                    "vpxord zmm16, zmm16, zmm16",
                    "vpxord zmm17, zmm17, zmm17",
                    "vpxord zmm18, zmm18, zmm18",
                    "vpxord zmm19, zmm19, zmm19",
                    "vpxord zmm20, zmm20, zmm20",
                    "vpxord zmm21, zmm21, zmm21",
                    "vpxord zmm22, zmm22, zmm22",
                    "vpxord zmm23, zmm23, zmm23",
                    "vpxord zmm24, zmm24, zmm24",
                    "vpxord zmm25, zmm25, zmm25",
                    "vpxord zmm26, zmm26, zmm26",
                    "vpxord zmm27, zmm27, zmm27",
                    "vpxord zmm28, zmm28, zmm28",
                    "vpxord zmm29, zmm29, zmm29",
                    "vpxord zmm30, zmm30, zmm30",
                    "vpxord zmm31, zmm31, zmm31",
                    clobber_abi("sysv64"),
                    options(nomem, nostack)
                );
            }
        }
    }
}

/// Whether the processor has instructions for AES and for carry-less multiplication, and the crate uses them.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        cpufeatures::new!(cpu, "aes", "pclmulqdq");
        cpu::get()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Seals `bytes` with the key in this page, under a number that was never used with it; the last [`TAG`] of them are the tag's.
///
/// # Safety
/// The page has a key, which stays there meanwhile.
pub unsafe fn seal(page: usize, sequence: u32, cluster: u32, bytes: &mut [u8]) -> Result<()> {
    // SAFETY: the caller's contract.
    let key = unsafe { (page as *const [u8; KEY]).read_volatile() };
    let (body, tag) = bytes.split_last_chunk_mut::<TAG>().ok_or(Errno::EINVAL)?;
    let (nonce, associated) = (nonce(sequence), cluster.to_le_bytes());
    let sealed = if has_aes() {
        Aes256Gcm::new(&key.into()).encrypt_inout_detached(&nonce.into(), &associated, body.into())
    } else {
        ChaCha20Poly1305::new(&key.into()).encrypt_inout_detached(&nonce.into(), &associated, body.into())
    };
    clear_registers();
    tag.copy_from_slice(&sealed.map_err(|_| Errno::EINVAL)?);
    Ok(())
}

/// Opens what [`seal`] made with the same key, number and cluster. False, and the bytes are of no use, where it is something else.
///
/// # Safety
/// As there.
pub unsafe fn open(page: usize, sequence: u32, cluster: u32, bytes: &mut [u8]) -> bool {
    // SAFETY: the caller's contract.
    let key = unsafe { (page as *const [u8; KEY]).read_volatile() };
    let Some((body, tag)) = bytes.split_last_chunk_mut::<TAG>() else { return false };
    let (nonce, associated, tag) = (nonce(sequence), cluster.to_le_bytes(), (*tag).into());
    let opened = if has_aes() {
        Aes256Gcm::new(&key.into())
            .decrypt_inout_detached(&nonce.into(), &associated, body.into(), &tag)
            .is_ok()
    } else {
        ChaCha20Poly1305::new(&key.into())
            .decrypt_inout_detached(&nonce.into(), &associated, body.into(), &tag)
            .is_ok()
    };
    clear_registers();
    opened
}

fn nonce(sequence: u32) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..4].copy_from_slice(&sequence.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_was_sealed_is_opened_by_the_same_key_number_and_cluster_alone() {
        let [key, other] = [(); 2].map(|()| make_page().unwrap());
        let plain: Vec<u8> = (0..9000).map(|i| (i * 7) as u8).collect();
        let mut sealed = plain.clone();
        sealed.resize(plain.len() + TAG, 0);
        // SAFETY: pages that have keys.
        unsafe {
            make_key(key).unwrap();
            make_key(other).unwrap();
            seal(key, 7, 3, &mut sealed).unwrap();
            assert!(sealed
                .windows(32)
                .all(|window| !plain.windows(32).step_by(64).any(|part| part == window)));
            let mut back = sealed.clone();
            assert!(open(key, 7, 3, &mut back));
            assert_eq!(back[..plain.len()], plain[..]);
            for (key, number, cluster) in [(other, 7, 3), (key, 8, 3), (key, 7, 4)] {
                assert!(!open(key, number, cluster, &mut sealed.clone()));
            }
            for at in [0, 5000, plain.len(), plain.len() + TAG - 1] {
                let mut changed = sealed.clone();
                changed[at] ^= 1;
                assert!(!open(key, 7, 3, &mut changed));
            }
            assert!(!open(key, 7, 3, &mut sealed.clone()[..plain.len()]), "cut short");
            forget_key(key);
            assert!(!open(key, 7, 3, &mut sealed.clone()));
        }
    }
}
