//! What the tests of the explicit API share: memory of known contents, and a look at what is in memory.

// Every address here lies in a mapping that the test itself made. Not every test uses everything.
#![allow(clippy::undocumented_unsafe_blocks, dead_code)]

use memfold_client::Options;
use memfold_sys::pagemap::{Entry, Pagemap};
use memfold_sys::{mem, PAGE_SIZE};
use std::sync::Once;
use std::time::{Duration, Instant};

pub const MIB: usize = 1 << 20;

/// Starts memfold, once in a test program.
pub fn started(cold_age: Duration) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        std::env::set_var("MEMFOLD_RUNTIME_DIR", std::env::temp_dir().join("memfold-client-tests"));
        memfold_client::start(&Options::default().cold_age(cold_age).max_stall(1_000_000).max_cpu(1_000_000))
            .unwrap();
    });
}

pub fn content(seed: u64, page: usize) -> [u64; PAGE_SIZE / 8] {
    let first = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ page as u64;
    std::array::from_fn(|n| if n % 4 == 0 { first.wrapping_add(n as u64) } else { n as u64 })
}

/// What lies unused behind each [`Memory`]: who reads one through has what comes next brought back ahead, and that is not another's.
const GAP: usize = 2 * MIB;

/// A mapping of known contents.
pub struct Memory {
    pub base: usize,
    pub len: usize,
    seed: u64,
}

impl Memory {
    pub fn new(len: usize, seed: u64) -> Memory {
        let memory = Memory { base: mem::map_anonymous(0, len + GAP, 0).unwrap(), len, seed };
        // Parts of a huge page are not moved.
        let _ = unsafe { mem::madvise(memory.base, len, libc::MADV_NOHUGEPAGE) };
        for page in 0..memory.pages() {
            unsafe { *((memory.base + page * PAGE_SIZE) as *mut _) = content(seed, page) };
        }
        memory
    }

    pub fn pointer(&self) -> *const u8 {
        self.base as *const u8
    }

    pub fn pages(&self) -> usize {
        self.len / PAGE_SIZE
    }

    pub fn is_right(&self) -> bool {
        (0..self.pages()).all(|page| {
            let found = unsafe { *((self.base + page * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
            found == content(self.seed, page)
        })
    }

    /// Pages in memory, which looking does not change.
    pub fn present(&self) -> usize {
        let mut entries = vec![Entry::default(); self.pages()];
        assert_eq!(Pagemap::open().unwrap().entries(self.base, &mut entries).unwrap(), self.pages());
        entries.iter().filter(|entry| entry.present()).count()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        unsafe { mem::munmap(self.base, self.len + GAP) }.unwrap();
    }
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(600), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
