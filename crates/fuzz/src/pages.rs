//! Control pages, as `memfold stat` and `ctl` read and write them: another user's, where root looks.

use memfold_inspect::{Mailbox, Snapshot};
use memfold_pager::control::{Command, CONTROL_LEN, MAGIC, VERSION};
use nix::sys::memfd::{memfd_create, MFdFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// The input is a list of writes to a page that is in order: where, how much, and what; then what shall be the length of the file, if
/// not that of a page.
pub(crate) fn page(bytes: &[u8]) {
    let file = made(bytes);
    read(&file);
}

/// The same, while another thread writes the same again and again, and zeros.
pub(crate) fn changing_page(bytes: &[u8]) {
    let (file, over) = (made(bytes), AtomicBool::new(false));
    let other = file.try_clone().expect("a descriptor can be had");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                for (at, bytes) in writes(bytes) {
                    let _ = other.write_all_at(bytes, at);
                    let _ = other.write_all_at(&[0; 64][..bytes.len()], at);
                }
                std::thread::yield_now();
            }
        });
        let _over = Over(&over);
        for _ in 0..10 {
            read(&file);
        }
        // Nobody answers, or an answer was there before.
        if let Ok(mailbox) = Mailbox::open(file, std::process::id()) {
            let _ = mailbox.ask(Command::Policy, 0, 0, "age", Duration::ZERO);
        }
    });
}

/// Ends what goes on until then, also in a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub(crate) fn pages() -> Vec<Vec<u8>> {
    let write =
        |at: usize, bytes: &[u8]| [&(at as u16).to_le_bytes()[..], &[bytes.len() as u8], bytes].concat();
    vec![
        Vec::new(),
        // A mode, and counters beyond all measure.
        [write(20, &[2]), write(48, &[0xFF; 63]), write(600, &[0xFF; 63])].concat(),
        // Control characters wherever a text may be.
        (0..CONTROL_LEN / 512).flat_map(|n| write(n * 512, &[0x1B; 63])).collect(),
        // Buckets that overflow when they are added.
        (0..30).flat_map(|n| write(CONTROL_LEN - 64 * (n + 1), &[0xFF; 63])).collect(),
    ]
}

/// The writes of an input, each within a page.
fn writes(mut bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = bytes.split_at_checked(3)?;
        let at = usize::from(u16::from_le_bytes([head[0], head[1]])) % CONTROL_LEN;
        let len = usize::from(head[2] % 64).min(rest.len()).min(CONTROL_LEN - at);
        let (data, rest) = rest.split_at(len);
        bytes = rest;
        Some((at as u64, data))
    })
}

fn made(bytes: &[u8]) -> File {
    let file = File::from(memfd_create(c"fuzz", MFdFlags::MFD_CLOEXEC).expect("a file in memory can be had"));
    let mut page = vec![0; CONTROL_LEN];
    page[..8].copy_from_slice(&MAGIC.to_le_bytes());
    page[8..12].copy_from_slice(&VERSION.to_le_bytes());
    for (at, data) in writes(bytes) {
        page[at as usize..at as usize + data.len()].copy_from_slice(data);
    }
    // One that is cut short.
    let len = if bytes.last() == Some(&0xC7) { bytes.len().min(CONTROL_LEN) } else { CONTROL_LEN };
    file.write_all_at(&page[..len], 0).expect("a file in memory can be written");
    file
}

fn read(file: &File) {
    let Ok(page) = Snapshot::of_file(file) else { return };
    for text in [&page.reason, &page.policy, &page.log, &page.daemon] {
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    let mut all = page.fault.clone();
    all.add(&page.restore);
    for percentiles in [page.fault.percentiles(), all.percentiles()] {
        assert!(
            percentiles.p50 <= percentiles.p99 && percentiles.p999 <= percentiles.max.max(percentiles.p50)
        );
    }
    if let Some(inventory) = &page.inventory {
        let largest = inventory.reasons.largest();
        assert!(largest.windows(2).all(|pair| pair[0].1 >= pair[1].1));
    }
    page.alloc.kernel_calls();
}
