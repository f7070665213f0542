//! Counts of many pages in little memory: a counting Bloom filter (Fan, Cao, Almeida and Broder, 2000).
//!
//! Invariants: a count is never too low, unless the counts were halved since; it is too high where pages share counters.

use alloc::vec::Vec;

/// Counters of one page.
const HASHES: u32 = 10;
/// Counters for a thousand pages: with ten hashes one count in a thousand is too high, as long as no more are counted.
const COUNTERS: usize = 14_378;

/// The counters.
pub struct Sketch {
    counters: Vec<u32>,
}

impl Sketch {
    /// For so many pages.
    pub fn new(pages: usize) -> Sketch {
        let len = (pages * COUNTERS).div_ceil(1000).max(2 * HASHES as usize);
        Sketch { counters: alloc::vec![0; len] }
    }

    /// Counts a page once more.
    pub fn add(&mut self, page: u32) {
        for place in places(page) {
            let len = self.counters.len();
            let counter = &mut self.counters[place as usize % len];
            *counter = counter.saturating_add(1);
        }
    }

    /// How often the page was counted, or more.
    pub fn count(&self, page: u32) -> u32 {
        let of = |place| self.counters[place as usize % self.counters.len()];
        places(page).map(of).min().unwrap_or(0)
    }

    /// Halves all counts.
    pub fn halve(&mut self) {
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
    }
}

/// Ten hashes from two (Kirsch and Mitzenmacher, 2006), those by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn places(page: u32) -> impl Iterator<Item = u32> {
    let mut z = (u64::from(page) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    let (first, step) = (z as u32, (z >> 32) as u32);
    (0..HASHES).map(move |n| first.wrapping_add(n.wrapping_mul(step)))
}

#[cfg(test)]
mod tests {
    use super::Sketch;
    use std::vec::Vec;

    #[test]
    fn counts_are_never_too_low_and_seldom_too_high_until_the_pages_are_too_many() {
        let mut sketch = Sketch::new(1000);
        for page in 0..1000u32 {
            (0..page % 7).for_each(|_| sketch.add(page));
        }
        assert!((0..1000).all(|page| sketch.count(page) >= page % 7));
        let high = |sketch: &Sketch| (0..1000).filter(|&page| sketch.count(page) > page % 7).count();
        assert!(high(&sketch) < 5, "{}", high(&sketch));
        (1000..5000).for_each(|page| sketch.add(page));
        assert!(high(&sketch) > 500, "{}", high(&sketch));
        let before: Vec<u32> = (0..1000).map(|page| sketch.count(page)).collect();
        sketch.halve();
        assert!((0..1000).all(|page| sketch.count(page) == before[page as usize] / 2));
    }
}
