//! Size classes: which block size serves a request, and how blocks of it are kept.
//!
//! What it is: pure arithmetic. Blocks are multiples of 16 bytes (the alignment that C asks of `malloc` on
//! 64-bit machines): steps of 16 up to 128, then eight steps to each power of two up to 64 KiB. A block so
//! wastes at most 15 bytes up to 128, and less than one ninth of itself beyond.

use memfold_sys::PAGE_SIZE;

/// Every block starts at a multiple of this many bytes.
pub const ALIGNMENT: usize = 16;

/// The largest block of a class, bytes; larger requests are served in whole pages.
pub const LARGEST: usize = 64 << 10;

/// How many classes there are.
pub const COUNT: usize = 80;

/// Up to this size in bytes, a table takes the request to its class.
pub const SMALL: usize = 4096;

/// Entries of that table: one for each 16 bytes, and one for 0.
pub const SMALL_STEPS: usize = SMALL / ALIGNMENT + 1;

/// Blocks of more bytes than this are cut one at a time, so that a fresh one is known to be zero.
pub const LINKED: usize = 2048;

/// The smallest class whose blocks hold `size` bytes (at most [`LARGEST`]).
#[inline]
pub const fn of(size: usize) -> usize {
    if size <= 128 {
        return if size == 0 { 0 } else { (size - 1) / 16 };
    }
    let last = size - 1;
    let log = last.ilog2() as usize;
    8 + (log - 7) * 8 + ((last >> (log - 3)) & 7)
}

/// Bytes in a block of `class`.
pub const fn block_size(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * 16;
    }
    let log = (class - 8) / 8 + 7;
    (9 + (class - 8) % 8) << (log - 3)
}

/// For each class, 2^40 over its block size, rounded up.
const INVERSES: [u64; COUNT] = {
    let mut inverses = [0; COUNT];
    let mut class = 0;
    while class < COUNT {
        inverses[class] = (1 << 40) / block_size(class) as u64 + 1;
        class += 1;
    }
    inverses
};

/// How many blocks of `class` lie before an offset of at most 16 MiB: a division, without the time that one takes.
#[inline]
pub fn blocks_before(class: usize, offset: usize) -> usize {
    ((offset as u64 * INVERSES[class]) >> 40) as usize
}

/// Pages in a span of `class`: 64 KiB, or eight blocks.
pub const fn span_pages(class: usize) -> usize {
    let pages = (8 * block_size(class)).div_ceil(PAGE_SIZE);
    if pages < 16 {
        16
    } else {
        pages
    }
}

/// How many free blocks of `class` a heap keeps at hand at first: 32 KiB of them, from 24 to 64, but no more than 1 MiB. A program that
/// has some dozen blocks of a class frees and takes a few of them in a row; with half as many at hand, it takes the slow path
/// four times as often, and comes by more of its memory, as what was freed last is not what it gets next.
pub const fn limit(class: usize) -> i32 {
    let count = (32 << 10) / block_size(class);
    let most = (1 << 20) / block_size(class);
    if count > 64 {
        64
    } else if count > 24 {
        count as i32
    } else if most < 24 {
        most as i32
    } else {
        24
    }
}

/// How many it keeps at most where a program takes and frees many in a row: 64 KiB of them, up to 2048.
pub const fn most(class: usize) -> i32 {
    let (count, least) = ((64 << 10) / block_size(class), limit(class));
    if count > 2048 {
        2048
    } else if count as i32 > least {
        count as i32
    } else {
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_block_that_holds_it() {
        for size in 0..=LARGEST {
            let class = of(size);
            assert!(block_size(class) >= size, "{size}");
            assert!(class == 0 || block_size(class - 1) < size, "{size}");
        }
        assert_eq!(of(LARGEST), COUNT - 1);
    }

    #[test]
    fn an_offset_in_a_span_is_divided_as_it_should_be() {
        for class in 0..COUNT {
            let (size, end) = (block_size(class), span_pages(class) * PAGE_SIZE);
            for block in 0..end / size {
                let start = block * size;
                let offsets = [start, start + 1, start + size / 2, start + size - 1];
                assert!(
                    offsets.iter().all(|offset| blocks_before(class, *offset) == block),
                    "{size} {block}"
                );
            }
        }
    }

    #[test]
    fn a_multiple_of_an_alignment_gets_blocks_of_a_multiple_of_it() {
        for align in (4..=12).map(|log| 1usize << log) {
            for size in (align..=LARGEST).step_by(align) {
                assert!(block_size(of(size)).is_multiple_of(align), "{size} aligned to {align}");
            }
        }
    }

    #[test]
    fn waste_stays_below_an_eighth_above_128_bytes_and_below_16_bytes_up_to_there() {
        for size in 1..=LARGEST {
            let waste = block_size(of(size)) - size;
            assert!(waste < 16 || size > 128 && waste * 8 < block_size(of(size)), "{size} wastes {waste}");
        }
    }

    #[test]
    fn blocks_are_multiples_of_the_alignment_and_eight_or_more_fit_a_span() {
        for class in 0..COUNT {
            assert_eq!(block_size(class) % ALIGNMENT, 0);
            assert!(span_pages(class) * PAGE_SIZE / block_size(class) >= 8);
        }
    }
}
