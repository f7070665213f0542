//! A copy of one control page as plain numbers.
//!
//! The file is read, not mapped: a page whose process is remaking it is then a short read and no SIGBUS.

use crate::{plain, Alloc, Counters, Inventory, Latency, Source};
use anyhow::{bail, Context};
use memfold_pager::activity::Activity;
use memfold_pager::codec::CODEC_NUMBERS;
use memfold_pager::config::Setting;
use memfold_pager::control::{ControlPage, Costs, Mode, Pages, Sizes, CONTROL_LEN, MAGIC, VERSION};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What a control page said at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The process.
    pub pid: u32,
    /// The process that forked or started it.
    pub parent_pid: u32,
    /// Whether it is folded.
    pub mode: Mode,
    /// Why not, where the mode is `Off`.
    pub reason: String,
    /// Whether it was told to stop evicting.
    pub paused: bool,
    /// Whether the program sleeps: its memory is in the lowest tier until it wants much of it.
    pub asleep: bool,
    /// When the page was made, `CLOCK_MONOTONIC`.
    pub started_ns: u64,
    /// When the counters were last brought up to date, `CLOCK_MONOTONIC`.
    pub updated_ns: u64,
    /// Bytes now and at their peaks.
    pub sizes: Sizes,
    /// Integral of the saved bytes over time, byte-milliseconds.
    pub saved_byte_millis: u64,
    /// Pages.
    pub pages: Pages,
    /// Costs.
    pub costs: Costs,
    /// Pages evicted by the number of the codec that compressed them ([`memfold_pager::codec::CodecId::bits`]).
    pub pages_by_codec: [u64; CODEC_NUMBERS],
    /// What the background thread's time went to, by [`Activity`], ns.
    pub activity_ns: [u64; Activity::COUNT],
    /// Why what is resident is not folded, as counted last.
    pub inventory: Option<Inventory>,
    /// The settings now, by `Setting`.
    pub settings: [u64; Setting::COUNT],
    /// What tells which memory is cold.
    pub source: Source,
    /// The allocator's counters.
    pub alloc: Alloc,
    /// The policy that evicts.
    pub policy: String,
    /// The file that passes of the page daemon are logged to; empty for none.
    pub log: String,
    /// The socket of the daemon under whose budget the process wants to be; empty for none.
    pub daemon: String,
    /// Bytes that the daemon granted last; 0 for none so far.
    pub share: u64,
    /// Bytes of the share in force; 0 for none.
    pub share_in_force: u64,
    /// The tier below memory that is open; empty for none.
    pub tier: String,
    /// Bytes that the process may take of one that a daemon shares out, by the process's own word; 0 for one of its own.
    pub tier_share: u64,
    /// The same as the daemon granted last; 0 for nothing so far.
    pub tier_granted: u64,
    /// Waits of the program on faults.
    pub fault: Latency,
    /// Work on restores.
    pub restore: Latency,
    /// Reading of clusters from the tier below memory.
    pub tier_read: Latency,
}

impl Snapshot {
    /// Reads the page in a file.
    ///
    /// # Errors
    /// It is incomplete, or of another version of memfold.
    pub fn of_file(file: &File) -> anyhow::Result<Snapshot> {
        copy(file, |page| check_copy(page).map(|()| Snapshot::of(page)))?
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        Counters { sizes: self.sizes, pages: self.pages, costs: self.costs }
    }

    fn of(page: &ControlPage) -> Snapshot {
        // Relaxed: the page is a copy that nobody writes to.
        let word = |w: &AtomicU64| w.load(Relaxed);
        let Counters { sizes, pages, costs } = Counters::of(page);
        let mut buffer = [0; 512];
        // Another user's, where root looks: what it says is shown, and is not to steer a terminal.
        let reason = plain(page.reason.read(&mut buffer));
        Snapshot {
            pid: page.pid.load(Relaxed),
            parent_pid: page.parent_pid.load(Relaxed),
            mode: Mode::from_u32(page.mode.load(Relaxed)),
            reason,
            paused: page.paused.load(Relaxed) != 0,
            asleep: page.asleep.load(Relaxed) != 0,
            started_ns: word(&page.started_ns),
            updated_ns: word(&page.updated_ns),
            sizes,
            pages,
            costs,
            saved_byte_millis: word(&page.saved_byte_millis),
            pages_by_codec: page.pages_by_codec.each_ref().map(word),
            activity_ns: page.activity_ns.each_ref().map(word),
            inventory: Inventory::copy(page),
            settings: std::array::from_fn(|i| word(&page.settings[i])),
            source: Source::of(page),
            alloc: Alloc::copy(&page.alloc),
            policy: match page.policy.read(&mut buffer) {
                "" => "age".into(),
                policy => plain(policy),
            },
            log: plain(page.log.read(&mut buffer)),
            daemon: plain(page.daemon.read(&mut buffer)),
            share: word(&page.share.bytes),
            share_in_force: word(&page.share_in_force),
            tier: plain(page.tier.read(&mut buffer)),
            tier_share: word(&page.tier_share),
            tier_granted: word(&page.share.tier_bytes),
            fault: Latency::copy(&page.fault_ns),
            restore: Latency::copy(&page.restore_ns),
            tier_read: Latency::copy(&page.tier_read_ns),
        }
    }
}

/// Copies the page in a file, for `look`.
fn copy<R>(file: &File, look: impl FnOnce(&ControlPage) -> R) -> anyhow::Result<R> {
    let mut words = vec![0u64; CONTROL_LEN / 8];
    // SAFETY: the words are valid for as many bytes, and any bytes are valid words.
    let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), CONTROL_LEN) };
    file.read_exact_at(bytes, 0).context("not a whole control page")?;
    // SAFETY: the buffer is aligned to 8 and as long as a page; every field is an integer, so any bytes are a valid page.
    Ok(look(unsafe { &*words.as_ptr().cast::<ControlPage>() }))
}

/// Whether the page in a file is whole and of this version.
pub fn check(file: &File) -> anyhow::Result<()> {
    copy(file, check_copy)?
}

fn check_copy(page: &ControlPage) -> anyhow::Result<()> {
    let version = page.version.load(Relaxed);
    if page.magic.load(Relaxed) != MAGIC {
        bail!("not a control page, or not complete yet");
    }
    if version != VERSION {
        bail!("a control page of layout {version}; this memfold reads layout {VERSION}");
    }
    Ok(())
}

/// Makes control pages for tests.
#[cfg(any(test, feature = "fixture"))]
pub mod fixture {
    use super::*;
    use std::path::Path;

    /// Writes a page that `fill` has filled in to `path`.
    pub fn write(path: &Path, fill: impl FnOnce(&ControlPage)) {
        let mut words = vec![0u64; CONTROL_LEN / 8];
        // SAFETY: as in `copy`; nothing else uses the words while the page is borrowed.
        let page = unsafe { &*words.as_mut_ptr().cast::<ControlPage>() };
        page.magic.store(MAGIC, Relaxed);
        page.version.store(VERSION, Relaxed);
        fill(page);
        // SAFETY: the words are valid for as many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), CONTROL_LEN) };
        std::fs::write(path, bytes).expect("a page can be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn read(path: &Path) -> anyhow::Result<Snapshot> {
        Snapshot::of_file(&File::open(path).unwrap())
    }

    #[test]
    fn a_page_reads_back_as_it_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        fixture::write(&path, |page| {
            page.pid.store(7, Relaxed);
            page.mode.store(Mode::Off as u32, Relaxed);
            page.reason.set("no userfaultfd");
            page.pages_lost.store(3, Relaxed);
            page.settings[Setting::StartAt as usize].store(99, Relaxed);
            page.fault_ns.record(12_000);
        });
        let page = read(&path).unwrap();
        assert_eq!((page.pid, page.mode, page.reason.as_str()), (7, Mode::Off, "no userfaultfd"));
        assert_eq!((page.pages.lost, page.settings[4], page.fault.percentiles().count), (3, 99, 1));
    }

    #[test]
    fn another_layout_and_a_half_made_page_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        fixture::write(&path, |page| page.version.store(VERSION + 1, Relaxed));
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("layout"));
        fixture::write(&path, |page| page.magic.store(0, Relaxed));
        assert!(format!("{:#}", read(&path).unwrap_err()).contains("not complete"));
        std::fs::write(&path, b"short").unwrap();
        assert!(read(&path).is_err());
    }
}
