//! The checksum of what leaves memory unsealed: what comes back flipped, cut, swapped or out of date by accident is found out.
//!
//! It takes in the bytes, how many they are, and which they are: the cluster's number and the one under which it was written, which no other in
//! the file has, and a random number of the file's own, where a sealed file has its key. So another cluster in its place, an older one, and one of
//! another file are as wrong as a changed bit. Each step can be undone, so that what differs in one word alone differs in the sum with certainty, and
//! else but for one case in 2^128.
//!
//! What it is not: a protection against who means it ([`super::seal`] is). It is no cryptographic function, and nobody has shown that its random
//! number cannot be told from its sums. And whoever can read the file reads all of it.

use super::seal::TAG;

/// Bytes of a file's own number.
pub const OWN: usize = 32;

/// Odd, of about as many ones as zeros: the digits of pi, e, and the roots of 2, 3, 5, 7 and 11.
const FACTORS: [u64; LANES] =
    [0x243F_6A88_85A3_08D3, 0xB7E1_5162_8AED_2A6B, 0x6A09_E667_F3BC_C909, 0xBB67_AE85_84CA_A73B];
const LAST: [u64; 2] = [0x3C6E_F372_FE94_F82B, 0xA54F_F53A_5F1D_36F1];
const LANES: usize = 4;
const SECOND: u64 = 0x510E_527F_ADE6_82D1;
const TURN: u32 = 29;

/// Puts the sum of `bytes` into the last [`TAG`] of them. Whether there was room.
#[must_use]
pub fn mark(own: &[u8; OWN], sequence: u32, cluster: u32, bytes: &mut [u8]) -> bool {
    let Some((body, tag)) = bytes.split_last_chunk_mut::<TAG>() else { return false };
    *tag = sum(own, sequence, cluster, body);
    true
}

/// Whether they are what [`mark`] was given, with the same numbers.
pub fn holds(own: &[u8; OWN], sequence: u32, cluster: u32, bytes: &[u8]) -> bool {
    bytes.split_last_chunk::<TAG>().is_some_and(|(body, tag)| *tag == sum(own, sequence, cluster, body))
}

fn sum(own: &[u8; OWN], sequence: u32, cluster: u32, body: &[u8]) -> [u8; TAG] {
    let which = u64::from(sequence) << 32 | u64::from(cluster);
    let mut lanes = FACTORS;
    for ((lane, word), factor) in lanes.iter_mut().zip(words(own)).zip(FACTORS) {
        *lane = step(*lane ^ which, word, factor);
    }
    let (rows, rest) = body.as_chunks::<{ LANES * 8 }>();
    for row in rows {
        for ((lane, word), factor) in lanes.iter_mut().zip(words(row)).zip(FACTORS) {
            *lane = step(*lane, word, factor);
        }
    }
    let (whole, part) = rest.as_chunks::<8>();
    let mut end = [0; 8];
    end[..part.len()].copy_from_slice(part);
    let tail = whole.iter().chain([&end]).map(|word| u64::from_le_bytes(*word));
    for ((lane, word), factor) in lanes.iter_mut().zip(tail).zip(FACTORS) {
        *lane = step(*lane, word, factor);
    }
    let mut sum = [0; TAG];
    for (half, factor) in sum.as_chunks_mut::<8>().0.iter_mut().zip(LAST) {
        let mixed = lanes.iter().fold(factor ^ body.len() as u64, |mixed, lane| step(mixed, *lane, factor));
        *half = spread(mixed, factor).to_le_bytes();
    }
    sum
}

/// What differs in one bit differs in many afterwards, so that no few bits make up for it in the next step. Multiplied twice: once spreads a bit to
/// those above it alone, and the highest to none.
fn step(state: u64, word: u64, factor: u64) -> u64 {
    (state ^ word).wrapping_mul(factor).rotate_left(TURN).wrapping_mul(SECOND)
}

/// The high bits depend on all, the low ones on few until here.
fn spread(mixed: u64, factor: u64) -> u64 {
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(factor);
    mixed ^ mixed >> 29
}

fn words(bytes: &[u8; LANES * 8]) -> impl Iterator<Item = u64> + '_ {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    fn marked(own: &[u8; OWN], len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len + TAG).map(|i| (i * 7 % 251) as u8).collect();
        assert!(mark(own, 7, 3, &mut bytes));
        bytes
    }

    #[test]
    fn what_was_marked_holds_under_the_same_numbers_alone() {
        let (own, other) = ([9; OWN], [8; OWN]);
        let bytes = marked(&own, 9000);
        assert!(holds(&own, 7, 3, &bytes));
        for (own, sequence, cluster) in [(&other, 7, 3), (&own, 8, 3), (&own, 7, 4), (&own, 3, 7)] {
            assert!(!holds(own, sequence, cluster, &bytes));
        }
        assert!(!holds(&own, 7, 3, &bytes[..bytes.len() - 1]), "cut short");
        assert!(!holds(&own, 7, 3, &bytes[..4096]), "cut short");
        assert!(!holds(&own, 7, 3, &[]) && !mark(&own, 7, 3, &mut [0; TAG - 1]));
    }

    #[test]
    fn a_hole_in_a_file_is_taken_for_no_cluster() {
        for len in [0, TAG, 4096, 40960] {
            assert!(!holds(&[0; OWN], 0, 0, &vec![0; len]), "{len}");
            assert!(!holds(&[0xA5; OWN], 0, 1, &vec![0; len]), "{len}");
        }
    }

    #[test]
    fn any_bit_that_is_flipped_is_found_in_any_length() {
        for len in [0, 1, 8, 16, 31, 32, 63, 4080] {
            let bytes = marked(&[1; OWN], len);
            for bit in 0..8 * bytes.len() {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(!holds(&[1; OWN], 7, 3, &changed), "bit {bit} of {len} bytes");
            }
        }
    }

    #[test]
    fn any_two_bits_that_are_flipped_are_found() {
        // Several rows, and a part of one: bits of the same lane and of others.
        let bytes = marked(&[2; OWN], 112);
        for one in 0..8 * bytes.len() {
            let mut changed = bytes.clone();
            changed[one / 8] ^= 1 << (one % 8);
            for other in 0..one {
                changed[other / 8] ^= 1 << (other % 8);
                assert!(!holds(&[2; OWN], 7, 3, &changed), "bits {one} and {other}");
                changed[other / 8] ^= 1 << (other % 8);
            }
        }
    }

    proptest! {
        #[test]
        fn blocks_that_change_places_or_come_from_elsewhere_are_found(
            own: [u8; OWN], blocks in proptest::collection::vec(any::<[u8; 64]>(), 2..40), from: usize, to: usize
        ) {
            let mut bytes = blocks.concat();
            bytes.resize(bytes.len() + TAG, 0);
            prop_assert!(mark(&own, 1, 2, &mut bytes));
            let (from, to) = (from % blocks.len(), to % blocks.len());
            let mut changed = bytes.clone();
            changed[64 * to..][..64].copy_from_slice(&blocks[from]);
            prop_assert_eq!(holds(&own, 1, 2, &changed), changed == bytes);
            let mut swapped = changed;
            swapped[64 * from..][..64].copy_from_slice(&blocks[to]);
            prop_assert_eq!(holds(&own, 1, 2, &swapped), swapped == bytes);
        }
    }
}
