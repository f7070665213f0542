//! Bringing a page back from below memory, for whoever waits for it.
//!
//! Before the page's entry is taken its cluster has been read: an entry is held for no longer than it takes to decompress a page, so that whoever
//! changes a mapping or forks waits for no disk.
//!
//! Invariants: a page that was wanted is in place, or whoever waits for it is woken to ask again. A cluster that cannot be read, or is not what
//! was written, ends the process: going on would lose bytes.

use super::arrived::Arrived;
use super::below::Below;
use super::location::{Berth, Location};
use super::lost::fail;
use super::remote::AWAY;
use crate::control::bump;
use crate::engine::Engine;
use crate::fault::reason::{Outcome, Reason};
use crate::fault::restore::Restorer;
use crate::kernel::Kernel;
use crate::sabotage::{planted, Bug};
use crate::sync::Ordering::Relaxed;
use crate::tables::bitmap::PageRange;
use crate::tables::entry::Entry;
use crate::tables::extent::Extent;
use memfold_sys::thread::Backoff;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{Errno, PAGE_SIZE};

/// How often a cluster that cannot be read is tried, and how far apart at first; each pause is twice the last.
const TRIES: u32 = 7;
const PAUSE: Nanos = Nanos::from_millis(5);
const LONGEST_PAUSE: Nanos = Nanos::from_millis(160);

/// Brings back the page at this address, with up to `most` in all of its cluster that follow one another, and wakes who waits for them. Lets `others` have their way while somebody changes mappings. Returns its
/// extent and its cluster, of which the other pages may come too. The tier's thread only.
pub fn bring(
    engine: &'static Engine,
    kernel: &Kernel,
    below: &Below,
    restorer: &mut Restorer,
    page: usize,
    most: usize,
    others: impl Fn(),
) -> Option<(&'static Extent, u32)> {
    let wake = || {
        if !planted(Bug::TierWakeLost) {
            kernel.uffd.wake(page, PAGE_SIZE);
        }
    };
    let mut backoff = Backoff::new();
    let Some(extent) = engine.space().find(page) else {
        wake();
        return None;
    };
    let index = (page - extent.base()) / PAGE_SIZE;
    loop {
        let Some((_, berth)) = fetch(engine, below, page, &mut restorer.arrived) else {
            // Somebody was quicker, or dropped it: a touch tells what it is now. Who has the entry still wakes who waits.
            if !extent.entry(index).is_busy() {
                wake();
            }
            return None;
        };
        let pages = PageRange::from(index, most);
        let Some(outcome) =
            below.restoring(&engine.children, || restorer.restore(extent, pages, Reason::Late))
        else {
            // Who touches it again is served by the fault thread.
            wake();
            return None;
        };
        match outcome {
            Outcome::Done { pages, .. } => {
                wake();
                if pages > 1 {
                    kernel.uffd.wake(page + PAGE_SIZE, (pages - 1) * PAGE_SIZE);
                }
                let now = time::now().0;
                extent.last_restore.store(now, Relaxed);
                extent.last_return.store(now, Relaxed);
                return Some((extent, berth.cluster));
            }
            Outcome::TryAgain => {
                others();
                backoff.wait();
            }
            // It lies elsewhere by now.
            Outcome::Pending => {}
            // Whoever has it, or changes its mapping, wakes who waits when that is over.
            Outcome::InOtherHands => return None,
            Outcome::Resident | Outcome::Gone => {
                wake();
                return None;
            }
        }
    }
}

/// Fetches the cluster of the page at this address, for as long as its entry names one. Returns the entry and the berth that it named. The
/// tier's thread, or one beside which there is none.
pub fn fetch(engine: &Engine, below: &Below, page: usize, arrived: &mut Arrived) -> Option<(Entry, Berth)> {
    let extent = engine.space().find(page)?;
    let index = (page - extent.base()) / PAGE_SIZE;
    let (mut tries, mut pause, mut away) = (0, PAUSE, Away::default());
    loop {
        let entry = extent.entry(index);
        let berth = Location::below(entry).filter(|_| !entry.is_busy())?;
        let began = time::now();
        let error = match below.fetch(berth.cluster, arrived) {
            Ok(fetched) => {
                if fetched {
                    engine.control().tier_read_ns.record(time::now().since(began).0);
                    bump(&engine.control().tier_read_bytes, arrived.bytes());
                }
                return Some((entry, berth));
            }
            Err(error) => error,
        };
        if extent.entry(index) != entry {
            continue;
        }
        if error == AWAY && !below.files.are_on_disk() && !planted(Bug::AwayTakenForLost) {
            if away.goes_on(engine) >= below.files.remote.wait().0 {
                fail(engine, below, berth, error);
            }
        } else if error != Errno::ENOMEM {
            bump(&engine.control().tier_errors, 1);
            tries += 1;
        }
        if tries == TRIES {
            fail(engine, below, berth, error);
        }
        time::sleep(pause);
        pause = (pause + pause).min(LONGEST_PAUSE);
    }
}

/// For how long a tier has been away, as far as it was asked for a cluster.
#[derive(Default)]
struct Away {
    since: Option<Nanos>,
    counted: u64,
}

impl Away {
    /// It is away still. Returns for how long, ns; what was not counted yet is.
    fn goes_on(&mut self, engine: &Engine) -> u64 {
        let (control, now) = (engine.control(), time::now());
        let since = *self.since.get_or_insert_with(|| {
            bump(&control.tier_waits, 1);
            now
        });
        let away = now.since(since).0;
        bump(&control.tier_wait_ns, away - core::mem::replace(&mut self.counted, away));
        away
    }
}
