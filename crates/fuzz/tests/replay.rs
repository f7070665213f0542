//! Every fuzz target over its seeds and damaged copies of them, always the same ones.

use memfold_fuzz::TARGETS;

/// Damaged copies of each seed.
const DAMAGED: u64 = 300;

/// Numbers that look random (splitmix64, Steele, Lea and Flood 2014).
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % limit as u64) as usize
    }
}

/// A copy with one to four places changed.
fn damaged(seed: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.below(256) as u8),
            2 => bytes.extend_from_within(at..),
            3 => bytes.iter_mut().skip(at).take(8).for_each(|byte| *byte = 0xff),
            _ => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << rng.below(8)),
        }
    }
    bytes
}

#[test]
fn every_target_survives_its_seeds_and_damaged_copies_of_them() {
    for target in TARGETS {
        let seeds = (target.seeds)();
        assert!(!seeds.is_empty(), "{} has no seeds", target.name);
        (target.run)(&[]);
        let mut rng = Rng(1);
        for seed in &seeds {
            (target.run)(seed);
            (0..DAMAGED).for_each(|_| (target.run)(&damaged(seed, &mut rng)));
        }
    }
}

#[test]
fn targets_have_names_of_their_own() {
    for target in TARGETS {
        assert!(
            std::ptr::eq(memfold_fuzz::find(target.name).unwrap(), target),
            "{} is there twice",
            target.name
        );
    }
}
