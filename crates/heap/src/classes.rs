//! Size classes: which block size serves a request, and how blocks of it are kept.
//!
//! What it is: pure arithmetic. Blocks are multiples of 16 bytes (the alignment that C asks of `malloc` on
//! 64-bit machines): steps of 16 up to 128, then eight steps to each power of two up to 64 KiB, and sixteen from 1 to 16 KiB, where
//! a class more costs few pages that are used in part. A block so wastes at most 15 bytes up to 128, and less than one ninth of itself beyond, or one
//! seventeenth where steps are fine.

use memfold_sys::PAGE_SIZE;

/// Every block starts at a multiple of this many bytes.
pub const ALIGNMENT: usize = 16;

/// The largest block of a class, bytes; larger requests are served in whole pages.
pub const LARGEST: usize = 64 << 10;

/// How many classes there are.
pub const COUNT: usize = 112;

/// Up to this size in bytes, a table takes the request to its class.
pub const SMALL: usize = 4096;

/// Entries of that table: one for each 16 bytes, and one for 0.
pub const SMALL_STEPS: usize = SMALL / ALIGNMENT + 1;

/// Blocks of more bytes than this are cut one at a time, so that a fresh one is known to be zero.
pub const LINKED: usize = 2048;

/// Sizes between powers of two that have equally many classes.
struct Band {
    /// Its first class.
    class: usize,
    /// The powers of two that it begins with and ends before.
    logs: (usize, usize),
    /// The classes of each are two to this power.
    steps: usize,
}

const BANDS: [Band; 3] = [
    Band { class: 8, logs: (7, 10), steps: 3 },
    Band { class: 32, logs: (10, 14), steps: 4 },
    Band { class: 96, logs: (14, 16), steps: 3 },
];

/// The smallest class whose blocks hold `size` bytes (at most [`LARGEST`]).
#[inline]
pub const fn of(size: usize) -> usize {
    if size <= 128 {
        return if size == 0 { 0 } else { (size - 1) / 16 };
    }
    let last = size - 1;
    let log = last.ilog2() as usize;
    let band = &BANDS[(log >= BANDS[1].logs.0) as usize + (log >= BANDS[2].logs.0) as usize];
    let step = (last >> (log - band.steps)) & ((1 << band.steps) - 1);
    band.class + ((log - band.logs.0) << band.steps) + step
}

/// Bytes in a block of `class`.
pub const fn block_size(class: usize) -> usize {
    if class < 8 {
        return (class + 1) * 16;
    }
    let band = &BANDS[(class >= BANDS[1].class) as usize + (class >= BANDS[2].class) as usize];
    let (log, step) =
        (band.logs.0 + ((class - band.class) >> band.steps), (class - band.class) & ((1 << band.steps) - 1));
    ((1 << band.steps) + 1 + step) << (log - band.steps)
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

/// Pages in a span of `class`: 64 KiB, or up to twice as many where less of its last page is wasted so; or eight blocks, if that is more.
pub const fn span_pages(class: usize) -> usize {
    SPAN_PAGES[class] as usize
}

const SPAN_PAGES: [u8; COUNT] = {
    let mut pages = [0; COUNT];
    let mut class = 0;
    while class < COUNT {
        pages[class] = thrifty_pages(block_size(class)) as u8;
        class += 1;
    }
    pages
};

/// The fewest pages that waste no more than one part in so many of them, or else those that waste least.
const THRIFTY: usize = 128;

const fn thrifty_pages(block: usize) -> usize {
    let least = (8 * block).div_ceil(PAGE_SIZE);
    if least > 32 {
        return least;
    }
    let (mut best, mut pages) = (0, 16);
    while pages <= 32 {
        // Few lengths, so that one class's empty span serves another.
        if pages >= least && (best == 0 || waste(block, pages) * best < waste(block, best) * pages) {
            best = pages;
            if waste(block, pages) * THRIFTY <= pages * PAGE_SIZE {
                return pages;
            }
        }
        pages += 4;
    }
    best
}

/// Bytes behind the last block of a span of so many pages that lie on a page with it.
const fn waste(block: usize, pages: usize) -> usize {
    let used = pages * PAGE_SIZE / block * block;
    used.next_multiple_of(PAGE_SIZE) - used
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
            let parts = if (1025..=16384).contains(&size) { 16 } else { 8 };
            assert!(
                waste < 16 || size > 128 && waste * parts < block_size(of(size)),
                "{size} wastes {waste}"
            );
        }
    }

    #[test]
    fn little_of_a_span_is_behind_its_last_block() {
        for class in 0..COUNT {
            let (block, pages) = (block_size(class), span_pages(class));
            assert!(waste(block, pages) * 40 <= pages * PAGE_SIZE, "{block} in {pages} pages");
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
