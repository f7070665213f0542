//! The sources that the pager asks by itself: cold is what an engine in this process has set aside or compressed. Where a page is no longer in the
//! program's view, the pager takes it for cold.

use super::{Ground, Source};
use crate::Unsupported;
use anyhow::Result;
use memfold_pager::config::{Config, Setting};
use memfold_pager::source::Kind;
use memfold_pager::{Engine, Host, Phase};
use memfold_sys::pagemap::{Entry, Pagemap};
use memfold_sys::time::cpu_of;
use memfold_sys::{file, PAGE_SIZE};
use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;

/// The engine of this process; it forks no more.
static ENGINE: Engine = Engine::new(Host {
    notice,
    open_control: |_| None,
    own_heap: || false,
    thread_cpu: |_, _| None,
    went_away: |_, _| {},
    sampler: None,
    decay: || (),
});
/// How often it is looked whether the engine has come as far as it should.
const POLL: Duration = Duration::from_millis(1);

fn notice(line: &str) {
    file::say(2, line.as_bytes());
    file::say(2, b"\n");
}

/// The source, in the engine.
pub struct Inside {
    base: usize,
    len: usize,
    pagemap: Pagemap,
    entries: Vec<Entry>,
    began_ns: u64,
}

impl Inside {
    /// Has the engine fold the ground by this source, with no bound on what that costs.
    pub fn new(ground: &Ground, cold: Duration, kind: Kind) -> Result<Inside> {
        static PREPARED: OnceLock<memfold_sys::Result<()>> = OnceLock::new();
        (*PREPARED.get_or_init(|| {
            let mut config = Config::default();
            config.set(Setting::StartAt, 0);
            config.set(Setting::MaxStall, 1_000_000);
            config.set(Setting::MaxCpu, 1_000_000);
            config.set(Setting::ResidentLimit, u64::MAX);
            ENGINE.prepare(&config).map(|()| ENGINE.enable())
        }))?;
        ENGINE.set_setting(Setting::ColdAge, cold.as_nanos() as u64);
        ENGINE.set_setting(Setting::Source, kind as u64);
        ENGINE.offer(ground.base, ground.len())?;
        let control = ENGINE.control();
        while ENGINE.phase() != Phase::Running || control.source.load(Relaxed) != kind as u64 {
            let mut text = [0; 256];
            if ENGINE.phase() == Phase::Off {
                return Err(Unsupported(control.reason.read(&mut text).to_owned()).into());
            }
            match control.source_why.read(&mut text) {
                "" => sleep(POLL),
                why => return Err(Unsupported(why.to_owned()).into()),
            }
        }
        let entries = vec![Entry::default(); ground.touched.len()];
        let (base, len) = (ground.base, ground.len());
        Ok(Inside { base, len, pagemap: Pagemap::open()?, entries, began_ns: agents_ns() })
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // It is unmapped next, which the engine sees by itself.
        let _ = ENGINE.withdraw(self.base, self.len);
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

impl Source for Inside {
    fn cold(&mut self, cold: &mut [bool]) -> Result<()> {
        let mut done = 0;
        while done < self.entries.len() {
            let read = self.pagemap.entries(self.base + done * PAGE_SIZE, &mut self.entries[done..])?;
            done += read.max(1);
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
