//! The life of pages in a real engine on real memory: evicted, touched, dropped, moved, forked.

use pager::config::{Config, Setting};
use pager::{Engine, Phase};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use sys::{mem, PAGE_SIZE};

const MIB: usize = 1 << 20;

fn engine(cold_age_ms: u64) -> &'static Engine {
    let engine: &'static Engine = Box::leak(Box::new(Engine::new(|line| eprintln!("{line}"))));
    let mut config = Config::default();
    config.set(Setting::ColdAge, cold_age_ms * 1_000_000);
    config.set(Setting::RecompressAge, cold_age_ms * 1_000_000);
    config.set(Setting::StartAt, 0);
    config.set(Setting::MaxStall, 1_000_000);
    engine.prepare(&config).unwrap();
    engine.enable();
    engine
}

fn content(seed: u64, page: usize) -> [u64; PAGE_SIZE / 8] {
    let mut state = seed ^ (page as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    std::array::from_fn(|i| {
        if i % 4 != 0 {
            return (i as u64) << 3;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state & 0xFFFF
    })
}

/// A mapping that the engine manages, and what it should hold.
struct Memory {
    base: usize,
    pages: usize,
}

impl Memory {
    fn new(engine: &'static Engine, len: usize) -> Memory {
        let base = mem::map_anonymous(0, len, 0).unwrap();
        engine.mapped(base, len);
        Memory { base, pages: len / PAGE_SIZE }
    }

    fn fill(&self, seed: u64) {
        for page in 0..self.pages {
            unsafe { *((self.base + page * PAGE_SIZE) as *mut [u64; PAGE_SIZE / 8]) = content(seed, page) };
        }
    }

    fn check_page(&self, seed: u64, page: usize) {
        let found = unsafe { *((self.base + page * PAGE_SIZE) as *const [u64; PAGE_SIZE / 8]) };
        assert!(found == content(seed, page), "page {page} changed");
    }

    fn check(&self, seed: u64) {
        (0..self.pages).for_each(|page| self.check_page(seed, page));
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn evicted(engine: &'static Engine) -> u64 {
    engine.control().evicted_bytes.load(Relaxed)
}

#[test]
fn untouched_pages_are_evicted_and_come_back_unchanged() {
    let engine = engine(40);
    let memory = Memory::new(engine, 64 * MIB);
    memory.fill(1);
    wait_until("everything is evicted", || evicted(engine) >= 63 * MIB as u64);
    let control = engine.control();
    assert!(control.saved_bytes.load(Relaxed) > 30 * MIB as u64);
    memory.check(1);
    wait_until("everything is evicted again", || evicted(engine) >= 60 * MIB as u64);
    memory.check(1);
    assert_eq!(control.pages_lost.load(Relaxed), 0);
    engine.stop();
    assert_eq!(engine.phase(), Phase::Off);
    memory.check(1);
}
