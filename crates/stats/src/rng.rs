//! Seeded pseudo-random numbers, the same on every machine.
//!
//! What it is not: for secrets. SplitMix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
//! Generators", OOPSLA 2014): eight bytes of state, any seed is a good one.

/// A generator; equal seeds give equal sequences.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// A generator whose sequence is unrelated to this one's, for a part of the work with its own number.
    pub fn fork(&self, part: u64) -> Rng {
        Rng(mix(self.0 ^ mix(part.wrapping_add(0x5851_f42d_4c95_7f2d))))
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`, which must not be 0. The bias is below `bound` / 2^64 (Lemire, "Fast Random
    /// Integer Generation in an Interval", 2019, without the rejection).
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0, "no number is below 0");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Puts `items` into a random order, each order equally likely (Fisher and Yates; Durstenfeld, 1964).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::Rng;
    use proptest::prelude::*;

    #[test]
    fn the_sequence_is_the_published_one() {
        let mut rng = Rng::new(1234567);
        assert_eq!(rng.next_u64(), 6457827717110365317);
        assert_eq!(rng.next_u64(), 3203168211198807973);
    }

    proptest! {
        #[test]
        fn a_shuffle_keeps_every_item_and_depends_on_the_seed_alone(seed: u64, len in 0usize..200) {
            let mut first: Vec<usize> = (0..len).collect();
            let mut second = first.clone();
            Rng::new(seed).shuffle(&mut first);
            Rng::new(seed).shuffle(&mut second);
            prop_assert_eq!(&first, &second);
            first.sort_unstable();
            prop_assert_eq!(first, (0..len).collect::<Vec<_>>());
        }

        #[test]
        fn a_number_below_a_bound_is_below_it(seed: u64, bound in 1u64..) {
            prop_assert!(Rng::new(seed).below(bound) < bound);
        }
    }
}
