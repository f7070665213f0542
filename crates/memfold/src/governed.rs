//! The programs that want to be under a daemon's budget, started by `memfold run --daemon` or by themselves with the crate `client`, as
//! `memfold daemon` sees and limits them: by their control pages.
//!
//! A program folds itself; the daemon reads what it keeps, and writes to its page how much that may be. A program takes that
//! for five seconds, so nothing needs to be undone.
//!
//! What it is not: a promise. A program above its share folds more eagerly and is not slowed.
//!
//! Invariants: a page may hold anything. One is believed only where its file is this user's own, has the number of a running
//! process of this user, and its process began before it; no number on it counts for more than the kernel says of the
//! process. The page is written, not mapped: one that is cut short meanwhile is an error and no SIGBUS.

use crate::pages::{self, Found, PageFile};
use crate::process;
use anyhow::{ensure, Context};
use memfold_daemon::budget::{Load, LEAST};
use memfold_daemon::counters::Counters;
use memfold_daemon::governed::{Fleet, Governed};
use memfold_daemon::tier::Part;
use memfold_pager::control::{ControlPage, Mode, CONTROL_LEN};
use memfold_pager::share::Share;
use memfold_pager::tier::choice::Choice;
use memfold_pager::SharedText;
use std::collections::HashMap;
use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// No process has more address space than this: 2^47 bytes, the kernel's limit on x86-64.
const MOST: u64 = 1 << 47;

/// The programs that want to be under the budget of the daemon at one socket.
pub struct Programs {
    socket: String,
    /// The tier that they share; empty for none.
    tier: String,
    pages: HashMap<u32, PageFile>,
    /// Renewals so far, by this daemon.
    renewals: u64,
}

impl Programs {
    /// Those of the daemon at `socket`, which is named as [`crate::runtime::socket`] does.
    pub fn of(socket: &Path) -> Programs {
        // Not to be taken for a renewal by the daemon before, whatever it had come to.
        let renewals = memfold_sys::time::now().0;
        Programs {
            socket: socket.to_string_lossy().into_owned(),
            tier: String::new(),
            pages: HashMap::new(),
            renewals,
        }
    }

    /// The same, which share this tier.
    pub fn with_tier(self, tier: Option<&str>) -> Programs {
        Programs { tier: tier.unwrap_or("").to_owned(), ..self }
    }

    /// Those that there are now.
    pub fn found(&self) -> Vec<Found> {
        pages::present().into_iter().filter(|found| self.is_ours(found)).collect()
    }

    fn is_ours(&self, found: &Found) -> bool {
        let page = &found.page;
        page.mode == Mode::Embedded
            && page.daemon == self.socket
            && found.file.name.pid == page.pid
            && process::made_page(found.pid, page.started_ns)
            && process::is_own(found.pid)
    }
}

impl Fleet for Programs {
    fn look(&mut self) -> Vec<Governed> {
        self.renewals += 1;
        let found = self.found();
        let governed = found.iter().filter_map(|found| governed(found, &self.tier)).collect();
        self.pages = found.into_iter().map(|found| (found.pid, found.file)).collect();
        governed
    }

    fn grant(&mut self, pid: u32, bytes: u64, tier_bytes: u64) {
        if let Some(Ok(file)) = self.pages.get(&pid).map(PageFile::open) {
            // A program that has ended meanwhile needs none, and a page that cannot be written is its owner's doing.
            let _ = write_share(&file, bytes, (&self.tier, tier_bytes), self.renewals);
        }
    }
}

/// What a page says, no more of it than the kernel knows of the process; `None` if that has ended.
fn governed(found: &Found, tier: &str) -> Option<Governed> {
    let page = &found.page;
    let most = process::field_bytes(&format!("/proc/{}/status", found.pid), "VmRSS")?;
    // What is set aside is out of the program's view, and in memory as it is.
    let resident = page.sizes.resident_bytes.saturating_add(page.sizes.aside_bytes).min(most);
    let load = Load {
        resident_bytes: resident.saturating_add(page.sizes.overhead_bytes).min(most),
        evicted_bytes: page.sizes.evicted_bytes.min(MOST),
        waited_ns: page.costs.stall_ns,
        limit: match page.share {
            0 => u64::MAX,
            bytes => bytes.max(LEAST),
        },
    };
    let counters = Counters {
        managed_bytes: page.sizes.managed_bytes.min(MOST),
        resident_bytes: resident,
        evicted_bytes: load.evicted_bytes,
        stored_bytes: page.sizes.stored_bytes.min(most),
        compressed: page.pages.evicted.saturating_add(page.pages.incompressible),
        restored: page.pages.restored,
        zeroed: page.costs.faults_zero,
        stall_ns: page.costs.stall_ns,
        cpu_ns: page.costs.cpu_ns(),
    };
    // One of the program's own goes before it, as does one of another daemon's at another place: that cannot be left.
    let shares = page.tier.is_empty() || page.tier_share != 0 && is_at_same_place(&page.tier, tier);
    let tier = (!tier.is_empty() && shares).then_some(Part {
        cold_bytes: load.evicted_bytes,
        held_bytes: page.sizes.tier_file_bytes.min(MOST),
        // It may not have heard of the last word yet, or have taken up one before that.
        limit: page.tier_granted.max(page.tier_share).min(MOST),
    });
    Some(Governed { pid: found.pid, load, tier, counters })
}

fn is_at_same_place(one: &str, other: &str) -> bool {
    match (Choice::parse(one), Choice::parse(other)) {
        (Ok(one), Ok(other)) => one.is_at_same_place(&other),
        _ => false,
    }
}

/// Writes a share, of memory and of the tier of that name, then its renewal.
fn write_share(file: &File, bytes: u64, tier: (&str, u64), renewals: u64) -> anyhow::Result<()> {
    ensure!(file.metadata()?.len() == CONTROL_LEN as u64, "not as long as a page");
    let share = offset_of!(ControlPage, share);
    let at = |field| (share + field) as u64;
    file.write_all_at(&bytes.to_ne_bytes(), at(offset_of!(Share, bytes))).context("the share")?;
    let mut text = [0; SharedText::<64>::MOST + 1];
    text[..tier.0.len()].copy_from_slice(tier.0.as_bytes());
    file.write_all_at(&text, at(offset_of!(Share, tier))).context("the tier")?;
    file.write_all_at(&tier.1.to_ne_bytes(), at(offset_of!(Share, tier_bytes))).context("its share")?;
    file.write_all_at(&renewals.to_ne_bytes(), at(offset_of!(Share, renewals))).context("its renewal")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Directory;
    use crate::pages::Name;
    use memfold_inspect::fixture;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::Arc;

    const SOCKET: &str = "/run/memfold/daemon.sock";

    /// A page that this process could have made, changed by `lie`.
    fn found(dir: &Path, lie: impl FnOnce(&ControlPage)) -> Found {
        let path = dir.join(std::process::id().to_string());
        fixture::write(&path, |page| {
            page.pid.store(std::process::id(), Relaxed);
            page.mode.store(Mode::Embedded as u32, Relaxed);
            page.started_ns.store(memfold_sys::time::now().0, Relaxed);
            page.daemon.set(SOCKET);
            lie(page);
        });
        let page = pages::snapshot(&path).unwrap();
        let file = PageFile { run: Arc::new(Directory::hold(dir).unwrap()), name: Name::of(&path).unwrap() };
        Found { file, page, pid: std::process::id() }
    }

    #[test]
    fn only_a_page_of_the_process_that_it_names_and_of_this_daemon_is_governed() {
        let dir = tempfile::tempdir().unwrap();
        let programs = Programs::of(Path::new(SOCKET));
        assert!(programs.is_ours(&found(dir.path(), |_| {})));
        type Lie = fn(&ControlPage);
        let lies: [(&str, Lie); 5] = [
            ("another process", |page| page.pid.store(1, Relaxed)),
            ("before the process began", |page| page.started_ns.store(0, Relaxed)),
            ("another daemon's", |page| page.daemon.set("/run/other.sock")),
            ("nobody's", |page| page.daemon.set("")),
            ("not folding", |page| page.mode.store(Mode::Off as u32, Relaxed)),
        ];
        for (what, lie) in lies {
            assert!(!programs.is_ours(&found(dir.path(), lie)), "{what}");
        }
    }

    #[test]
    fn no_number_counts_for_more_than_the_kernel_says_of_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let found = found(dir.path(), |page| {
            for word in [
                &page.resident_bytes,
                &page.aside_bytes,
                &page.overhead_bytes,
                &page.evicted_bytes,
                &page.stall_ns,
            ] {
                word.store(u64::MAX, Relaxed);
            }
            page.share.bytes.store(1, Relaxed);
        });
        let load = governed(&found, "").unwrap().load;
        assert!(load.resident_bytes < 1 << 40 && load.evicted_bytes <= MOST, "{load:?}");
        assert_eq!(load.limit, LEAST);
    }

    #[test]
    fn a_part_of_the_tier_counts_with_what_the_process_goes_by_and_with_what_it_was_told() {
        let dir = tempfile::tempdir().unwrap();
        let tier = "disk=/var/tmp";
        for (taken_up, told) in [(7, 9), (9, 7)] {
            let found = found(dir.path(), |page| {
                page.tier.set(tier);
                page.tier_share.store(taken_up, Relaxed);
                page.share.tier_bytes.store(told, Relaxed);
            });
            assert_eq!(governed(&found, tier).unwrap().tier.unwrap().limit, 9);
        }
    }

    #[test]
    fn a_share_arrives_on_a_page_and_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let found = found(dir.path(), |_| {});
        write_share(&found.file.open().unwrap(), 50 << 20, ("disk=/x", 7 << 20), 9).unwrap();
        let page = pages::snapshot(&found.file.path()).unwrap();
        assert_eq!((page.share, page.tier_granted), (50 << 20, 7 << 20));
        let instead = |make: &dyn Fn(&Path)| {
            let path = found.file.path();
            std::fs::remove_file(&path).unwrap();
            make(&path);
            found.file.open()
        };
        std::fs::write(dir.path().join("target"), vec![0; CONTROL_LEN]).unwrap();
        assert!(instead(&|path| std::os::unix::fs::symlink("target", path).unwrap()).is_err());
        assert!(instead(&|path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap()).is_err());
        let short = instead(&|path| std::fs::write(path, b"short").unwrap()).unwrap();
        assert!(write_share(&short, 1, ("", 0), 1).is_err());
        assert_eq!(std::fs::read(found.file.path()).unwrap(), b"short");
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(pages::snapshot(&pipe).is_err());
    }
}
