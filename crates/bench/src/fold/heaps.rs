//! The heaps whose pages are folded: made here, taken from a program, or read from a file.

use crate::programs::{self, Kind};
use crate::workload::{Data, Filler};
use anyhow::{ensure, Context, Result};
use memfold_sys::PAGE_SIZE;
use serde::{Serialize, Serializer};
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

/// Where pages come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heap {
    /// Made from the seed.
    Made(Data),
    /// What a program had when its heap was built.
    Of(Kind),
    /// The whole pages of a file.
    File(PathBuf),
}

/// Bytes of made data that belong together, and of what is taken of a heap that is longer than needed.
const BLOCK: usize = 64 << 10;

impl Heap {
    /// What people call it.
    pub fn name(&self) -> String {
        match self {
            Heap::Made(data) => data.name().to_owned(),
            Heap::Of(kind) => kind.name().to_owned(),
            Heap::File(path) => path.display().to_string(),
        }
    }

    /// Its pages, at most `bytes`.
    ///
    /// # Errors
    /// When the program or the file does not give any.
    pub(super) fn pages(&self, bytes: usize, seed: u64) -> Result<Vec<u8>> {
        let pages = match self {
            Heap::Made(data) => {
                let (filler, mut pages) = (Filler::new(*data, seed), vec![0; bytes]);
                pages.chunks_mut(BLOCK).enumerate().for_each(|(n, block)| filler.fill(n as u64, block));
                pages
            }
            Heap::Of(kind) => programs::capture(*kind, bytes as u64)?,
            Heap::File(path) => fs::read(path).with_context(|| format!("cannot read {}", path.display()))?,
        };
        let pages = some_of(pages, bytes);
        ensure!(!pages.is_empty(), "{} has no page", self.name());
        Ok(pages)
    }
}

/// Whole pages, at most `bytes` of them: blocks from all of it where it is longer.
fn some_of(mut pages: Vec<u8>, bytes: usize) -> Vec<u8> {
    pages.truncate(pages.len() / PAGE_SIZE * PAGE_SIZE);
    let (there, wanted) = (pages.len().div_ceil(BLOCK), (bytes / BLOCK).max(1));
    if pages.len() <= bytes || there <= wanted {
        pages.truncate(bytes / PAGE_SIZE * PAGE_SIZE);
        return pages;
    }
    let blocks = (0..wanted).map(|n| n * there / wanted * BLOCK);
    let taken: Vec<u8> =
        blocks.flat_map(|at| pages[at..pages.len().min(at + BLOCK)].iter().copied()).collect();
    taken[..taken.len().min(bytes)].to_vec()
}

impl FromStr for Heap {
    type Err = String;

    fn from_str(text: &str) -> Result<Heap, String> {
        if text.contains('/') {
            return Ok(Heap::File(text.into()));
        }
        if let Ok(data) = text.parse() {
            return Ok(Heap::Made(data));
        }
        let data = Data::ALL.iter().map(|data| data.name());
        let known: Vec<&str> = data.chain(Kind::ALL.iter().map(|kind| kind.name())).collect();
        text.parse().map(Heap::Of).map_err(|_: String| {
            format!("{text:?} is no heap; there are {}, and files, with a / in their paths", known.join(", "))
        })
    }
}

impl Serialize for Heap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_is_named_by_its_kind_its_program_or_its_path() {
        assert_eq!("json".parse(), Ok(Heap::Made(Data::Json)));
        assert_eq!("python3".parse(), Ok(Heap::Of(Kind::Python3)));
        assert_eq!("./pages".parse(), Ok(Heap::File("./pages".into())));
        let error = "jsn".parse::<Heap>().unwrap_err();
        assert!(error.contains("jsn") && error.contains("python3") && error.contains("json"), "{error}");
    }

    #[test]
    fn of_a_longer_heap_blocks_from_all_of_it_are_taken() {
        let heap: Vec<u8> = (0..8u8).flat_map(|n| vec![n; BLOCK]).collect();
        let some = some_of(heap.clone(), 4 * BLOCK);
        assert_eq!(some.len(), 4 * BLOCK);
        let blocks: Vec<u8> = some.chunks(BLOCK).map(|block| block[0]).collect();
        assert_eq!(blocks, [0, 2, 4, 6]);
        assert_eq!(some_of(heap.clone(), 100 * BLOCK), heap);
        assert_eq!(some_of(vec![1; PAGE_SIZE + 7], 1 << 20).len(), PAGE_SIZE);
        assert_eq!(some_of(heap, PAGE_SIZE).len(), PAGE_SIZE);
    }
}
