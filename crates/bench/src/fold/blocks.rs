//! What zstd takes on several pages at once, with the dictionary that the pager makes of them and without: whether larger blocks would pay
//! where pages have been cold for long.
//!
//! What it is not: a part of the pager, which compresses page by page. Blocks are of pages that lie one behind the other, whatever lay
//! between them that is one word repeated.

use super::alone::dictionary;
use anyhow::{ensure, Context, Result};
use memfold_pager::codec::Page;
use memfold_sys::{time, PAGE_SIZE};
use serde::Serialize;
use zstd::bulk::{Compressor, Decompressor};

/// One size of blocks on all pages of a heap that are not one word repeated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Blocks {
    /// Length of a block, bytes.
    pub block_bytes: usize,
    /// Whether with a dictionary.
    pub dictionary: bool,
    /// CPU time to compress a page as a part of its block, us.
    pub there_us: f64,
    /// CPU time to bring a page back as a part of its block, us.
    pub back_us: f64,
    /// The same of a whole block, which a touch of any of its pages costs.
    pub back_block_us: f64,
    /// Of the pages' memory what is free then, per cent; a block that does not shrink by 5 % counts as it is.
    pub saved_percent: f64,
}

/// zstd's level, the pager's for what stays cold.
const LEVEL: i32 = 1;

/// Blocks of each size, without a dictionary and, if there is one, with it.
///
/// # Errors
/// When there is no memory, or a block does not come back.
pub(super) fn measure(pages: &[&Page], sizes: &[usize]) -> Result<Vec<Blocks>> {
    if sizes.is_empty() {
        return Ok(Vec::new());
    }
    let taught = dictionary(pages)?;
    let mut found = Vec::new();
    for &size in sizes {
        found.push(one(pages, size, None)?);
        if let Some(taught) = &taught {
            found.push(one(pages, size, Some(taught.bytes()))?);
        }
    }
    Ok(found)
}

fn one(pages: &[&Page], block_bytes: usize, dictionary: Option<&[u8]>) -> Result<Blocks> {
    let each = block_bytes / PAGE_SIZE;
    ensure!(each > 0 && block_bytes.is_multiple_of(PAGE_SIZE), "a block has whole pages, at least one");
    let mut there = Compressor::with_dictionary(LEVEL, dictionary.unwrap_or_default())?;
    let mut back = Decompressor::with_dictionary(dictionary.unwrap_or_default())?;
    // Nor do the pager's pages have either.
    there.include_checksum(false)?;
    there.include_dictid(false)?;
    let (mut packed, mut whole) =
        (vec![0; zstd::zstd_safe::compress_bound(block_bytes)], vec![0; block_bytes]);
    let (mut there_ns, mut back_ns, mut bytes, mut blocks, mut shrunk) = (0, 0, 0, 0, 0);
    for block in pages.chunks_exact(each) {
        let block: Vec<u8> = block.iter().flat_map(|page| page.iter().copied()).collect();
        let before = time::thread_cpu();
        let len = there.compress_to_buffer(&block, &mut packed).context("compressing a block")?;
        let between = time::thread_cpu();
        there_ns += between.since(before).0;
        blocks += 1;
        if len > block_bytes * 95 / 100 {
            bytes += block_bytes;
            continue;
        }
        bytes += len;
        shrunk += 1;
        let between = time::thread_cpu();
        let got =
            back.decompress_to_buffer(&packed[..len], &mut whole).context("a block does not come back")?;
        back_ns += time::thread_cpu().since(between).0;
        ensure!(whole[..got] == block, "a block comes back as another");
    }
    let micros = |ns: u64, count: usize| ns as f64 / 1e3 / count.max(1) as f64;
    Ok(Blocks {
        block_bytes,
        dictionary: dictionary.is_some(),
        there_us: micros(there_ns, blocks * each),
        back_us: micros(back_ns, shrunk * each),
        back_block_us: micros(back_ns, shrunk),
        saved_percent: 100.0 * (1.0 - bytes as f64 / (blocks * block_bytes).max(1) as f64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_pages_have_in_common_larger_blocks_save() {
        let mut rng = memfold_stats::Rng::new(5);
        // Each page has bytes of its own that come in the next three too.
        let mut pages: Vec<Page> = Vec::new();
        for n in 0..64 {
            pages.push(if n % 4 == 0 { std::array::from_fn(|_| rng.next_u64() as u8) } else { pages[n - 1] });
        }
        let pages: Vec<&Page> = pages.iter().collect();
        let found = measure(&pages, &[PAGE_SIZE, 4 * PAGE_SIZE]).unwrap();
        let saved = |bytes: usize| {
            let blocks =
                found.iter().find(|blocks| (blocks.block_bytes, blocks.dictionary) == (bytes, false));
            blocks.map(|blocks| blocks.saved_percent).unwrap()
        };
        assert_eq!(saved(PAGE_SIZE), 0.0);
        assert!((70.0..75.0).contains(&saved(4 * PAGE_SIZE)), "{found:?}");
        assert!(measure(&pages, &[]).unwrap().is_empty());
    }
}
