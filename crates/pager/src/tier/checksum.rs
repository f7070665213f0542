//! The checksum of what leaves memory unsealed: what comes back flipped, cut, swapped or out of date by accident is found out.
//!
//! It takes in the bytes, how many they are, and which they are: the cluster's number and the one under which it was written, which no other in
//! the file has, and a random number of the file's own, where a sealed file has its key. So another cluster in its place, an older one, and one of
//! another file are as wrong as a changed bit.
//!
//! What it is not: a protection against who means it ([`super::seal`] is), as XXH3 is no cryptographic function. And whoever can read the file reads all
//! of it.

use super::seal::TAG;
use xxhash_rust::xxh3::{xxh3_128_with_seed, xxh3_64_with_seed};

/// Bytes of a file's own number.
pub const OWN: usize = 32;

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
    let which = xxh3_64_with_seed(own, u64::from(sequence) << 32 | u64::from(cluster));
    xxh3_128_with_seed(body, which).to_le_bytes()
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
