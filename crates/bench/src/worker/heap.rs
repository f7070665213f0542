//! A program that is idle and holds the pages of a file: it reads them into a region, has the kernel swap them out if it is to, and
//! compares every page in the end.

use super::mapping::{Mapping, Presence};
use super::{answer, request};
use anyhow::{Context, Result};
use memfold_sys::PAGE_SIZE;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heap {
    /// A file of whole pages.
    pub file: PathBuf,
}

/// What the experiment may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeapRequest {
    /// Have the kernel swap the region out. Answered by [`PagedOut`].
    PageOut,
    /// Look where the pages are. Answered by [`Presence`].
    Look,
    /// Read every page. Answered by how many differ from the file; anything but 0 is a defect.
    Verify,
}

/// What it took to swap the region out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagedOut {
    /// Where the pages are now.
    pub presence: Presence,
    /// CPU time of the thread that asked for it, ns.
    pub cpu_ns: u64,
}

/// Answers the number of pages when the region is filled, then serves requests until the experiment closes the pipe.
pub(super) fn serve(heap: &Heap) -> Result<()> {
    let file = File::open(&heap.file).with_context(|| format!("cannot open {}", heap.file.display()))?;
    let mapping = Mapping::new(file.metadata()?.len() as usize / PAGE_SIZE)?;
    let mut page = [0; PAGE_SIZE];
    for number in 0..mapping.pages() {
        file.read_exact_at(&mut page, (number * PAGE_SIZE) as u64)?;
        // SAFETY: within the mapping, which nobody else uses.
        unsafe { (mapping.address(number) as *mut [u8; PAGE_SIZE]).write(page) };
    }
    answer(&mapping.pages())?;
    while let Some(next) = request()? {
        match next {
            HeapRequest::PageOut => answer(&page_out(&mapping)?)?,
            HeapRequest::Look => answer(&mapping.look()?)?,
            HeapRequest::Verify => answer(&verify(&mapping, &file)?)?,
        }
    }
    Ok(())
}

fn page_out(mapping: &Mapping) -> Result<PagedOut> {
    let before = memfold_sys::time::thread_cpu();
    let presence = mapping.page_out()?;
    Ok(PagedOut { presence, cpu_ns: memfold_sys::time::thread_cpu().since(before).0 })
}

/// How many pages are not as they are in the file.
fn verify(mapping: &Mapping, file: &File) -> Result<usize> {
    let (mut page, mut wrong) = ([0; PAGE_SIZE], 0);
    for number in 0..mapping.pages() {
        file.read_exact_at(&mut page, (number * PAGE_SIZE) as u64)?;
        // SAFETY: within the mapping, and initialised; nobody writes to it.
        let held = unsafe { &*(mapping.address(number) as *const [u8; PAGE_SIZE]) };
        wrong += usize::from(held != &page);
    }
    Ok(wrong)
}
