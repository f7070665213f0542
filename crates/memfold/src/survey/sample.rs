//! How far a process's cold memory shrinks: some of its pages, compressed as the pager would.
//!
//! Pages are drawn from stretches by how much is cold in each, and read from `/proc/PID/mem`. Half of them teach a dictionary, as far as
//! they have something in common, and the other half is compressed with it.

use super::memory::Memory;
use anyhow::{Context, Result};
use memfold_pager::codec::{repeated_word, Codecs, Dictionaries, Page, MAX_STORED};
use memfold_pager::training::Samples;
use memfold_policy::effort::Effort;
use memfold_stats::Rng;
use memfold_sys::{time, PAGE_SIZE};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Pages that are read of a process.
const PAGES: usize = 1024;
/// How often a page is drawn that may turn out not to be there.
const DRAWS: usize = 8 * PAGES;

/// What was found.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Found {
    /// Pages that were compressed.
    pub pages: usize,
    /// Of all cold memory the part that can be folded; the rest does not shrink by 5 %, and stays. 0 to 1.
    pub shrinks: f64,
    /// What the part that can be folded is folded into, over what it takes now. 0 to 1.
    pub into: f64,
    /// CPU time to fold a page, us: of the codec alone.
    pub fold_us: f64,
}

/// Reads and compresses pages of the process. `None` where it has no cold page that is still there.
///
/// # Errors
/// Its memory may not be read.
pub fn of(pid: u32, memory: &Memory, rng: &mut Rng) -> Result<Option<Found>> {
    let pages = draw(pid, memory, rng)?;
    if pages.len() < 2 {
        return Ok(None);
    }
    measure(&pages).map(Some)
}

fn draw(pid: u32, memory: &Memory, rng: &mut Rng) -> Result<Vec<Box<Page>>> {
    let open = |name: &str| File::open(format!("/proc/{pid}/{name}"));
    let (bytes, pagemap) = (open("mem")?, open("pagemap")?);
    let cold = memory.cold_bytes();
    let mut pages: Vec<Box<Page>> = Vec::new();
    for _ in 0..DRAWS {
        if pages.len() == PAGES || cold == 0 {
            break;
        }
        let mut at = rng.below(cold);
        let Some(stretch) = memory.foldable.iter().find(|stretch| {
            let here = at < stretch.cold;
            if !here {
                at -= stretch.cold;
            }
            here
        }) else {
            break;
        };
        let count = (stretch.addresses.end - stretch.addresses.start) / PAGE_SIZE as u64;
        let address = stretch.addresses.start + rng.below(count) * PAGE_SIZE as u64;
        let mut entry = [0; 8];
        // Bit 63: in memory (Documentation/admin-guide/mm/pagemap.rst).
        let there =
            pagemap.read_exact_at(&mut entry, address / PAGE_SIZE as u64 * 8).is_ok() && entry[7] & 0x80 != 0;
        let mut page = Box::new([0; PAGE_SIZE]);
        // It may go meanwhile.
        if there && bytes.read_exact_at(&mut page[..], address).is_ok() {
            pages.push(page);
        }
    }
    Ok(pages)
}

fn measure(pages: &[Box<Page>]) -> Result<Found> {
    let mut codecs = Codecs::new().context("no memory for the codecs")?;
    let (taught, tried): (Vec<_>, Vec<_>) = pages.iter().enumerate().partition(|(number, _)| number % 2 == 0);
    let mut samples = Samples::new().context("no memory for samples")?;
    for (_, page) in &taught {
        if repeated_word(page).is_none() {
            // SAFETY: it is readable.
            unsafe { samples.add_at(page.as_ptr() as usize) };
        }
    }
    let dictionaries = Dictionaries::new();
    let made = samples.train(&mut codecs, None).map(|made| made.dictionary);
    // SAFETY: nobody else has the dictionaries.
    let number = made.and_then(|dictionary| unsafe { dictionaries.add(dictionary) });
    // SAFETY: it is not removed while we have it.
    let dictionary = number.and_then(|number| Some((number, unsafe { dictionaries.get(number) }?)));
    let mut packed = [0; MAX_STORED];
    let (mut shrunk, mut into) = (0usize, 0usize);
    let before = time::thread_cpu();
    for (_, page) in &tried {
        if repeated_word(page).is_some() {
            shrunk += 1;
            continue;
        }
        // SAFETY: it is readable.
        let done =
            unsafe { codecs.compress_at(Effort::Most, dictionary, page.as_ptr() as usize, &mut packed) };
        if let Some((_, len)) = done {
            shrunk += 1;
            into += len;
        }
    }
    let took = time::thread_cpu().since(before).0 as f64 / 1e3;
    let count = tried.len().max(1) as f64;
    Ok(Found {
        pages: tried.len(),
        shrinks: shrunk as f64 / count,
        into: into as f64 / (shrunk.max(1) * PAGE_SIZE) as f64,
        fold_us: took / count,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(fill: impl Fn(usize) -> u8) -> Box<Page> {
        Box::new(std::array::from_fn(fill))
    }

    #[test]
    fn pages_of_one_word_take_nothing_and_noise_stays() {
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        let noisy: Vec<_> = (0..32).map(|_| Box::new(std::array::from_fn(|_| noise()))).collect();
        let found = measure(&noisy).unwrap();
        assert!(found.shrinks < 0.01, "{found:?}");
        let same: Vec<_> = (0..32).map(|_| page(|_| 0)).collect();
        let found = measure(&same).unwrap();
        assert_eq!((found.shrinks, found.into, found.pages), (1.0, 0.0, 16));
        let text: Vec<_> = (0..64).map(|n| page(|at| b"cold memory shrinks "[(at + n) % 20])).collect();
        let found = measure(&text).unwrap();
        assert!(found.shrinks == 1.0 && found.into < 0.2, "{found:?}");
    }
}
