//! Folded processes, looked at again and again: what each says, and how fast that changes.
//!
//! To find processes takes a look at all of them ([`pages::visible`]); to look at known ones again takes two reads for each. So the first is done
//! ever more rarely the longer it takes, and the second each time.
//!
//! Invariants: a process that is shown ran at the last look; one that has ended is gone from the next.

use crate::pages::{self, Found, PageFile};
use crate::process;
use memfold_inspect::{Latency, Snapshot};
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::time::{clock_gettime, ClockId};
use nix::unistd::{Uid, User};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::time::{Duration, Instant};

/// How soon processes that have come are found, at best and at worst.
const FIND: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(20));
/// Between the two, finding them takes this part of a CPU: 1 to so much.
const FIND_SHARE: u32 = 600;

/// How fast the counters of a process change, from one look to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Waits on faults, a second.
    pub faults: f64,
    /// Part of the time that threads waited, in per cent.
    pub waits: f64,
    /// CPU time of folding, in per cent of one CPU.
    pub cpu: f64,
    /// Bytes set aside, a second.
    pub aside: f64,
    /// Bytes that came back from there, a second.
    pub second_chance: f64,
    /// Bytes folded, a second.
    pub folded: f64,
    /// Bytes restored, a second.
    pub restored: f64,
}

impl Rates {
    fn between(before: &Snapshot, after: &Snapshot) -> Rates {
        let ns = after.updated_ns.saturating_sub(before.updated_ns);
        if ns == 0 {
            return Rates::default();
        }
        // A page may say anything: a counter that goes back is no rate.
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / (ns as f64 / 1e9);
        let page = memfold_sys::PAGE_SIZE as f64;
        Rates {
            faults: rate(before.fault.count(), after.fault.count()),
            waits: rate(before.costs.stall_ns, after.costs.stall_ns) / 1e7,
            cpu: rate(before.costs.cpu_ns(), after.costs.cpu_ns()) / 1e7,
            aside: rate(before.pages.set_aside, after.pages.set_aside) * page,
            second_chance: rate(before.pages.second_chance, after.pages.second_chance) * page,
            folded: rate(before.pages.evicted, after.pages.evicted) * page,
            restored: rate(before.pages.restored, after.pages.restored) * page,
        }
    }
}

/// A folded process, as seen at the last look.
pub struct Seen {
    /// The process, by the id that it has in our PID namespace.
    pub pid: u32,
    /// Its name.
    pub name: String,
    /// Its user.
    pub user: String,
    /// Where its page is.
    pub file: PageFile,
    /// What its page says.
    pub page: Snapshot,
    /// Resident bytes of all its memory, as the kernel counts them.
    pub resident: u64,
    /// How fast its counters change.
    pub rates: Rates,
    /// The waits since the look before.
    pub waits: Latency,
    open: File,
}

impl Seen {
    /// Reads what there is to see now; false if the process has ended.
    fn look(&mut self) -> bool {
        let Some(stat) = process::stat(self.pid).filter(|stat| stat.made_page(self.page.started_ns)) else {
            return false;
        };
        let Ok(page) = Snapshot::of_file(&self.open) else { return false };
        if page.started_ns != self.page.started_ns {
            return false;
        }
        self.resident = stat.resident;
        // A page that was not brought up to date meanwhile says nothing of the time since.
        if page.updated_ns != self.page.updated_ns {
            self.rates = Rates::between(&self.page, &page);
            self.waits = page.fault.since(&self.page.fault);
        }
        self.page = page;
        true
    }
}

/// All of them.
#[derive(Default)]
pub struct Watch {
    seen: BTreeMap<u32, Seen>,
    users: HashMap<Option<u32>, String>,
    find_at: Option<Instant>,
}

impl Watch {
    /// Nobody yet. Lets this process have as many descriptors as it may: each process that is watched takes two.
    pub fn new() -> Watch {
        if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
            let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
        }
        Watch::default()
    }

    /// Looks at all of them, by process id.
    pub fn look(&mut self) -> impl Iterator<Item = &Seen> {
        self.seen.retain(|_, seen| seen.look());
        let now = Instant::now();
        if self.find_at.is_none_or(|at| now >= at) {
            let before = used();
            self.find();
            self.find_at = Some(now + (used().saturating_sub(before) * FIND_SHARE).clamp(FIND.0, FIND.1));
        }
        self.seen.values()
    }

    /// Those of the last look, by process id.
    pub fn all(&self) -> impl Iterator<Item = &Seen> {
        self.seen.values()
    }

    /// One of them.
    pub fn get(&self, pid: u32) -> Option<&Seen> {
        self.seen.get(&pid)
    }

    /// Adds those that have come, and drops those that are no longer folded though they run.
    fn find(&mut self) {
        let mut before = std::mem::take(&mut self.seen);
        for found in pages::visible() {
            let pid = found.pid;
            let known = before.remove(&pid).filter(|seen| seen.page.started_ns == found.page.started_ns);
            if let Some(mut seen) = known.or_else(|| self.meet(found)) {
                seen.name = process::name(pid);
                self.seen.insert(pid, seen);
            }
        }
    }

    fn meet(&mut self, found: Found) -> Option<Seen> {
        let Found { file, page, pid } = found;
        let uid = process::users(pid).get(1).copied();
        let user = self.users.entry(uid).or_insert_with(|| user(uid)).clone();
        let open = file.run.open(&file.name.to_string(), libc::O_RDONLY).ok()?;
        let resident = process::stat(pid)?.resident;
        let (rates, waits) = (Rates::default(), Latency::default());
        Some(Seen { pid, name: String::new(), user, file, page, resident, rates, waits, open })
    }
}

/// CPU time of this thread so far.
fn used() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default()
}

/// The name of a user, or the number where there is none.
pub fn user(uid: Option<u32>) -> String {
    let name = uid.and_then(|uid| User::from_uid(Uid::from_raw(uid)).ok().flatten()).map(|user| user.name);
    name.or(uid.map(|uid| uid.to_string())).unwrap_or("?".into())
}
