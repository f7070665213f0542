//! Cold is what the pager has set aside or compressed: what was not written for a while, and then not missed. Where a page is
//! no longer in the program's view, the pager takes it for cold.

use super::{Ground, Source};
use crate::Unsupported;
use anyhow::Result;
use memfold_sys::pagemap::{Entry, Pagemap};
use memfold_sys::time::cpu_of;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

/// The source: an engine in this process.
pub struct Probe {
    base: usize,
    len: usize,
    pagemap: Pagemap,
    entries: Vec<Entry>,
    began_ns: u64,
}

impl Probe {
    /// Has the pager fold the ground. The pager looks for half the cold age before it sets aside, and compresses a whole
    /// one later.
    pub fn new(ground: &Ground, cold: Duration) -> Result<Probe> {
        static STARTED: OnceLock<Result<(), memfold_client::Error>> = OnceLock::new();
        let options =
            memfold_client::Options::default().cold_age(cold).max_stall(1_000_000).max_cpu(1_000_000);
        if let Err(error) = STARTED.get_or_init(|| memfold_client::start(&options)) {
            return Err(Unsupported(error.to_string()).into());
        }
        memfold_client::register(ground.base as *const u8, ground.len())?;
        let entries = vec![Entry::default(); ground.touched.len()];
        let (base, len) = (ground.base, ground.len());
        Ok(Probe { base, len, pagemap: Pagemap::open()?, entries, began_ns: agents_ns() })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        // It is unmapped next, which the engine sees by itself.
        let _ = memfold_client::unregister(self.base as *const u8, self.len);
    }
}

/// CPU time of the pager's threads, ns.
fn agents_ns() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let ours = tasks.filter(|task| {
        fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("memfold-"))
    });
    ours.filter_map(|task| task.file_name().to_str()?.parse().ok()).map(|tid| cpu_of(tid).0).sum()
}

impl Source for Probe {
    fn cold(&mut self, cold: &mut [bool]) -> Result<()> {
        let mut done = 0;
        while done < self.entries.len() {
            done += self
                .pagemap
                .entries(self.base + done * memfold_sys::PAGE_SIZE, &mut self.entries[done..])?
                .max(1);
        }
        for (cold, entry) in cold.iter_mut().zip(&self.entries) {
            *cold = !entry.present();
        }
        Ok(())
    }

    fn background_ns(&self) -> u64 {
        agents_ns().saturating_sub(self.began_ns)
    }
}
