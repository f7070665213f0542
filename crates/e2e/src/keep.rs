//! A program that keeps memory, touches it now and then, and knows every byte: `memfold-e2e keep MIB SEED`.
//!
//! It prints `ready` when its memory is filled, goes on until its standard input ends, then reads everything once more and
//! prints `kept PAGES`. Where `MEMFOLD_DAEMON` names a daemon, the memory is registered by the crate `client`, under that daemon's budget.
//!
//! What it is not: a measurement. It panics at the first byte that is not what was written.

use memfold_client::Options;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

const WORDS: usize = 512;
/// No page is folded by its age while a test runs: what is folded is folded for a limit.
const COLD_AGE: Duration = Duration::from_secs(3600);

/// Every fourth word is the page's own, so that pages shrink and none is like another.
fn word(page: usize, n: usize, seed: u64) -> u64 {
    let own = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (page as u64).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    if n.is_multiple_of(4) {
        own.wrapping_add(n as u64)
    } else {
        n as u64
    }
}

fn write(memory: &mut [u64], page: usize, seed: u64) {
    let words = memory[page * WORDS..][..WORDS].iter_mut().enumerate();
    words.for_each(|(n, at)| *at = word(page, n, seed));
}

fn check(memory: &[u64], page: usize, seed: u64) {
    let wrong =
        memory[page * WORDS..][..WORDS].iter().enumerate().find(|(n, at)| **at != word(page, *n, seed));
    assert!(wrong.is_none(), "page {page} changed: {wrong:?}");
}

/// The program. `mib` is how much it keeps, `seed` what its contents begin with.
///
/// # Panics
/// A byte is not what was written, or the memory cannot be folded.
pub fn main(mib: usize, seed: u64) {
    let len = mib << 20;
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // By libc's function, which the preload library sees.
    // SAFETY: a new mapping that the kernel places.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    assert_ne!(base, libc::MAP_FAILED, "no address space");
    // SAFETY: a new mapping of this length, which stays until the end; nothing else refers to it.
    let memory = unsafe { std::slice::from_raw_parts_mut(base.cast::<u64>(), len / 8) };
    let pages = len / memfold_sys::PAGE_SIZE;
    (0..pages).for_each(|page| write(memory, page, seed));
    if let Some(socket) = std::env::var_os("MEMFOLD_DAEMON") {
        memfold_client::start(&Options::default().daemon(socket).cold_age(COLD_AGE))
            .expect("memory can be folded");
        memfold_client::register(base.cast(), len).expect("memory to register");
    }
    println!("ready");
    static DONE: AtomicBool = AtomicBool::new(false);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        DONE.store(true, Relaxed);
    });
    let mut seeds = vec![seed; pages];
    let mut random = seed;
    while !DONE.load(Relaxed) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // One touch in sixteen goes anywhere, the others to the first 64 pages.
        let page = (random >> 33) as usize % if (random >> 20).is_multiple_of(16) { pages } else { 64 };
        check(memory, page, seeds[page]);
        if (random >> 24).is_multiple_of(4) {
            seeds[page] = random;
            write(memory, page, random);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    (0..pages).for_each(|page| check(memory, page, seeds[page]));
    println!("kept {pages}");
}
