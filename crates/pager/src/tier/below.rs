//! What the pager's threads share of the tier below memory.
//!
//! The fault thread leaves pages that are wanted; a thread that may wait asks for a cluster; the background thread hands clusters over to be
//! written. The tier's own thread ([`super::thread`]) does all that, one thing at a time, and what is wanted first.
//!
//! Invariants: `keeper` and the free jobs are the background thread's; a job that was handed over, and an ask, belong to the tier's thread
//! until it says so.

use super::arrived::Arrived;
use super::clusters::{Clusters, Place, STALE};
use super::early::{Early, Lent};
use super::files::Files;
use super::keeper::Keeper;
use super::location::Location;
use super::order::Order;
use super::{checksum, seal, Tier, BLOCK, CLUSTER, CLUSTER_BYTES};
use crate::fault::children::Children;
use crate::fault::prefetch::PrefetchQueue;
use crate::sabotage::{linger, planted, Bug};
use crate::tables::entry::Entry;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use memfold_sys::inject::{self, Point};
use memfold_sys::{futex, mem, Errno, Result};

/// Clusters that can be on their way down at once.
pub const JOBS: usize = 8;

/// A thread that asks for a cluster and can wait for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Asker {
    /// The fault thread, which goes on reading messages meanwhile.
    Fault = 0,
    /// The background thread.
    Background = 1,
    /// The proxy.
    Proxy = 2,
}

const ASKERS: usize = 3;

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const DONE: u32 = 2;

/// Somebody waits until the tier's thread has no entries in hand.
const AWAITED: u32 = 2;

/// No page is wanted of the cluster that moves.
const GONE: u32 = 1 << 31;

/// A cluster on its way down, or from one place of the tier to another.
pub struct Job {
    state: AtomicU32,
    /// The error that it came to; 0 for none.
    error: AtomicU32,
    /// The cluster that moves, 0 for none; and [`GONE`], with its dictionaries, once no page of it is wanted any more. The background thread's.
    moves: AtomicU32,
    gone: AtomicU32,
    inner: UnsafeCell<JobInner>,
}

/// What there is of it.
pub struct JobInner {
    /// Where its bytes are, [`CLUSTER_BYTES`]; 0 before any were.
    base: usize,
    /// How many of them are written: whole blocks.
    len: usize,
    /// Its number.
    pub cluster: u32,
    /// Where it lies, if it comes from another place of the tier.
    pub from: Option<Place>,
    /// Where it goes, once that was reserved.
    pub place: Option<Place>,
    /// Of each page its index in the extent, and the word of the entry that it had.
    pub pages: [(u16, u64); CLUSTER],
    /// How many there are.
    pub count: usize,
    /// The dictionaries that they need, a bit each.
    pub dictionaries: u16,
}

// SAFETY: `inner` is reached by one thread at a time, by `state`.
unsafe impl Sync for Job {}

impl Job {
    /// Whether it can be used. Background thread only.
    pub fn is_free(&self) -> bool {
        self.state.load(Acquire) == IDLE
    }

    /// Whether it was carried out, and the error that it came to. Background thread only, which frees it then.
    pub fn outcome(&self) -> Option<Result<()>> {
        (self.state.load(Acquire) == DONE).then(|| match self.error.load(Relaxed) {
            0 => Ok(()),
            error => Err(Errno(error as i32)),
        })
    }

    /// What there is of it.
    ///
    /// # Safety
    /// It is the caller's: the background thread's while it is free or done, else the tier thread's.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn inner(&self) -> &mut JobInner {
        // SAFETY: the caller's contract.
        unsafe { &mut *self.inner.get() }
    }

    /// It can be used again. Background thread only.
    pub fn free(&self) {
        self.moves.store(0, Relaxed);
        self.gone.store(0, Relaxed);
        self.state.store(IDLE, Release);
    }

    /// Whether a cluster moves. Background thread only.
    pub fn is_move(&self) -> bool {
        self.moves.load(Relaxed) != 0
    }

    /// The dictionaries that the moving cluster needed, once no page of it is wanted. Background thread only.
    pub fn gone(&self) -> Option<u16> {
        Some(self.gone.load(Relaxed)).filter(|gone| gone & GONE != 0).map(|gone| gone as u16)
    }
}

impl JobInner {
    /// The bytes of the cluster. `ENOMEM` when the kernel has none.
    pub fn bytes(&mut self) -> Result<&mut [u8]> {
        if self.base == 0 {
            self.base = mem::map_own(CLUSTER_BYTES, 0)?;
        }
        // SAFETY: our own mapping, which is whoever's the job is.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.base as *mut u8, CLUSTER_BYTES) })
    }

    /// So many bytes are written, with room for the seal or the checksum: how many blocks that makes.
    pub fn set_len(&mut self, len: usize) -> usize {
        let blocks = (len + seal::TAG).div_ceil(BLOCK);
        self.len = blocks * BLOCK;
        let end = self.len;
        if let Ok(bytes) = self.bytes() {
            // What was there before, which the program may have erased since, is no part of it.
            bytes[len..end].fill(0);
        }
        blocks
    }
}

/// Somebody who can wait asks for a cluster.
#[derive(Default)]
pub struct Ask {
    state: AtomicU32,
    /// The address of a page of it.
    page: AtomicUsize,
    /// The [`Arrived`] that it is fetched to.
    to: AtomicUsize,
}

impl Ask {
    /// Asks for the cluster of the page at this address, which is to be put into `to`.
    fn put(&self, page: usize, to: &mut Arrived) {
        self.page.store(page, Relaxed);
        self.to.store(&raw mut *to as usize, Relaxed);
        self.state.store(ASKED, Release);
    }

    /// The address of a page whose cluster is asked for, and where to put it: whoever asks keeps that, and leaves it alone until it is
    /// answered. By the tier's thread.
    pub(super) fn taken(&self) -> Option<(usize, *mut Arrived)> {
        let asked = self.state.load(Acquire) == ASKED;
        asked.then(|| (self.page.load(Relaxed), self.to.load(Relaxed) as *mut Arrived))
    }

    /// It is there, or the page is no longer in the tier.
    pub(super) fn answer(&self) {
        self.state.store(DONE, Release);
        futex::wake(&self.state, 1);
    }
}

/// What is shared. Made from zeros, with a keeper.
pub struct Below {
    pub(crate) clusters: Clusters,
    pub(crate) files: Files,
    wanted: PrefetchQueue,
    /// With what the fault thread asks for what it finds pending, before it says that it is wanted.
    pub(super) early: Early,
    pub(super) asks: [Ask; ASKERS],
    pub(crate) jobs: [Job; JOBS],
    /// In which order pages come back ahead of touches when the program wakes.
    pub(super) order: Order,
    /// Incremented to wake the tier's thread.
    pub(super) bell: AtomicU32,
    pub(super) ending: AtomicU32,
    /// 1 while the tier's thread has entries in hand, and [`AWAITED`] once somebody waits for its end.
    restoring: AtomicU32,
    /// Pages that are in the tier.
    pub(crate) pages: AtomicU64,
    /// 1 once there are files: before, and where none can be made, nothing goes down.
    open: AtomicU32,
    keeper: UnsafeCell<MaybeUninit<Keeper>>,
}

// SAFETY: `keeper` is the background thread's.
unsafe impl Sync for Below {}

impl Below {
    /// Gives it its keeper. Once, before anybody else has it.
    ///
    /// # Safety
    /// As said.
    pub unsafe fn begin(&self, keeper: Keeper) {
        // SAFETY: the caller's contract.
        unsafe { (*self.keeper.get()).write(keeper) };
    }

    /// The keeper.
    ///
    /// # Safety
    /// Background thread only, or where there is no other.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn keeper(&self) -> &mut Keeper {
        // SAFETY: `begin` was called; the caller's contract.
        unsafe { (*self.keeper.get()).assume_init_mut() }
    }

    /// Whether something can go down.
    pub fn is_open(&self) -> bool {
        self.open.load(Relaxed) != 0
    }

    /// Something can, or nothing.
    pub fn set_open(&self, open: bool) {
        self.open.store(open.into(), Relaxed);
    }

    /// A thread waits for the page at this address. Fault thread only. False where too many do already.
    pub fn want(&self, page: usize) -> bool {
        let put = planted(Bug::WantedForgotten) || self.wanted.put(page, 1);
        self.ring();
        put
    }

    /// Asks for the cluster that the entry names, if that takes no wait. What comes of it the tier's thread finds when it is told what is wanted. Fault thread only.
    pub fn ask_early(&self, entry: Entry) {
        let Some(berth) = Location::below(entry).filter(|_| !entry.is_busy()) else { return };
        let Some(place) = self.clusters.place(berth.cluster) else { return };
        self.early.ask(berth.cluster, place, |lent| self.ask_at_once(place, lent));
    }

    fn ask_at_once(&self, place: Place, lent: Lent) -> bool {
        let file = self.files.get(place.file());
        // A failure that is planted meets who reads as ever.
        if inject::error(Point::TierRead).is_some() {
            return false;
        }
        if self.files.remote.is_on() {
            return file.is_there() && self.files.remote.ask_at_once(file.name(), place);
        }
        let (Some(context), Some(fd)) = (lent.context, file.descriptor()) else { return false };
        let len = place.bytes().min(CLUSTER_BYTES);
        // SAFETY: room for a cluster, and a context, that were lent to us.
        unsafe {
            let to = core::slice::from_raw_parts_mut(lent.to as *mut u8, len);
            context.read_at_once(fd, to, place.offset()).is_ok()
        }
    }

    /// The page that somebody has waited for longest. The tier's thread only.
    pub(super) fn take_wanted(&self) -> Option<usize> {
        Some(self.wanted.take()?.0)
    }

    /// Asks for the cluster of a page, without waiting. Returns whether it was fetched, or was
    /// found to be no longer there: until then `arrived` must be left alone, and stay where it is.
    pub fn ask(&self, asker: Asker, page: usize, arrived: &mut Arrived) -> bool {
        let ask = &self.asks[asker as usize];
        match ask.state.load(Acquire) {
            IDLE => {
                ask.put(page, arrived);
                self.ring();
                false
            }
            ASKED => false,
            _ => {
                ask.state.store(IDLE, Relaxed);
                true
            }
        }
    }

    /// Waits until nothing is asked for: what it was to be put into may go then.
    pub fn end_ask(&self, asker: Asker) {
        let ask = &self.asks[asker as usize];
        while ask.state.load(Acquire) == ASKED {
            let _ = futex::wait(&ask.state, ASKED, None);
        }
        ask.state.store(IDLE, Relaxed);
    }

    /// Fetches the cluster of a page, and waits for it.
    pub fn await_cluster(&self, asker: Asker, page: usize, arrived: &mut Arrived) {
        while !self.ask(asker, page, arrived) {
            let _ = futex::wait(&self.asks[asker as usize].state, ASKED, None);
        }
    }

    /// The program sleeps.
    pub fn sleep(&self) {
        self.order.sleep();
        self.ring();
    }

    /// The program wakes: what it wanted when it last woke comes back.
    pub fn wake(&self) {
        self.order.wake();
        self.ring();
    }

    /// Hands a job over. Background thread only.
    pub fn hand_over(&self, job: &Job) {
        job.state.store(ASKED, Release);
        self.ring();
    }

    /// Whether a thread waits for a page.
    pub(super) fn is_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    /// Whether nothing is on its way down. Background thread only.
    pub fn is_idle(&self) -> bool {
        self.jobs.iter().all(Job::is_free)
    }

    /// Whether the cluster is on its way to another place. Background thread only.
    pub fn is_moving(&self, cluster: u32) -> bool {
        self.mover(cluster).is_some()
    }

    fn mover(&self, cluster: u32) -> Option<&Job> {
        self.jobs.iter().find(|job| job.moves.load(Relaxed) == cluster)
    }

    /// Has a cluster move from one reserved place to another. Background thread only; the job is free.
    pub fn move_over(&self, job: &Job, cluster: u32, from: Place, to: Place) {
        // SAFETY: as said.
        let inner = unsafe { job.inner() };
        (inner.cluster, inner.from, inner.place) = (cluster, Some(from), Some(to));
        inner.len = from.bytes();
        job.moves.store(cluster, Relaxed);
        self.hand_over(job);
    }

    /// Takes back clusters of which no page is wanted any more, with their places.
    ///
    /// # Safety
    /// Background thread only.
    pub unsafe fn take_done(&self) {
        self.clusters.take_done(|cluster, place, dictionaries| match self.mover(cluster) {
            // Its number and its place are being used.
            Some(job) if !planted(Bug::MovedGivenBack) => {
                job.gone.store(GONE | u32::from(dictionaries), Relaxed)
            }
            // SAFETY: the caller's contract.
            _ => unsafe { self.give_back(cluster, place, dictionaries) },
        });
    }

    /// The next cluster that is to be written. The tier's thread only.
    pub(super) fn next_job(&self) -> Option<&Job> {
        self.jobs.iter().find(|job| job.state.load(Acquire) == ASKED)
    }

    /// Seals a cluster, or puts a checksum behind it, and writes it. The tier's thread only.
    pub(super) fn carry_out(&self, job: &Job) -> Result<()> {
        // SAFETY: the job is ours.
        let inner = unsafe { job.inner() };
        let (cluster, place, len) = (inner.cluster, inner.place.ok_or(Errno::EINVAL)?, inner.len);
        let from = inner.from;
        let bytes = &mut inner.bytes()?[..len];
        if from.is_some() {
            linger(Bug::MovedGivenBack);
        }
        let result = from.map_or(Ok(()), |from| self.fetch_sealed(from, cluster, bytes)).and_then(|()| {
            self.close_seal(place, cluster, bytes)?;
            self.files.put(place, bytes)
        });
        job.error.store(result.err().map_or(0, |error| error.0 as u32), Relaxed);
        job.state.store(DONE, Release);
        result
    }

    /// Fetches a cluster, unless it was. Returns whether it had to. `ESTALE` where it is none any more, `EBADMSG` where it is not what was written there, and what the tier answers.
    pub(super) fn fetch(&self, cluster: u32, arrived: &mut Arrived) -> Result<bool> {
        if arrived.is(cluster, &self.clusters) {
            return Ok(false);
        }
        let (place, len) = self.clusters.read(cluster, |place| {
            let bytes = arrived.room(place)?;
            self.fetch_sealed(place, cluster, bytes)?;
            Ok(bytes.len() - seal::TAG)
        })?;
        arrived.accept(cluster, place, len).then_some(true).ok_or(Errno(libc::EBADMSG))
    }

    /// Fetches what lies there, and opens its seal. The tier's thread only.
    fn fetch_sealed(&self, place: Place, cluster: u32, bytes: &mut [u8]) -> Result<()> {
        let opened = |bytes: &mut [u8]| self.open_seal(place, cluster, bytes);
        let fetched = self.files.fetch(place, bytes).and_then(|()| opened(bytes));
        if fetched.is_ok() || !self.files.remote.is_over_disk() || planted(Bug::DiskNotBeneath) {
            return fetched;
        }
        self.files.fetch_from_disk(place, bytes).and_then(|()| opened(bytes))
    }

    /// Seals what is to be put there, or puts a checksum behind it.
    fn close_seal(&self, place: Place, cluster: u32, bytes: &mut [u8]) -> Result<()> {
        let file = self.files.get(place.file());
        let key = file.key().ok_or(Errno::EINVAL)?;
        if file.is_sealed() {
            // SAFETY: the page of a key, under which no two clusters have the same number.
            return unsafe { seal::seal(key, number_of(place), cluster, bytes) };
        }
        // SAFETY: the page of a number.
        let own = unsafe { seal::own_number(key) };
        checksum::mark(&own, number_of(place), cluster, bytes).then_some(()).ok_or(Errno::EINVAL)
    }

    /// Opens the seal of what was fetched from there, or looks at its checksum. `EBADMSG` where it is not what was written.
    pub(super) fn open_seal(&self, place: Place, cluster: u32, bytes: &mut [u8]) -> Result<()> {
        let file = self.files.get(place.file());
        let key = file.key().ok_or(STALE)?;
        let is_whole = if file.is_sealed() {
            // SAFETY: the page of a key.
            unsafe { seal::open(key, number_of(place), cluster, bytes) }
        } else {
            // SAFETY: the page of a number.
            checksum::holds(&unsafe { seal::own_number(key) }, number_of(place), cluster, bytes)
        };
        if is_whole {
            return Ok(());
        }
        bytes.fill(0);
        Err(Errno(libc::EBADMSG))
    }

    /// Has the tier's thread put pages in place, if it may: not while forked children are owed what was away.
    pub(super) fn restoring<R>(&self, children: &Children, restore: impl FnOnce() -> R) -> Option<R> {
        if !planted(Bug::TierNotAwaited) {
            self.restoring.store(1, SeqCst);
        }
        let may = !children.have_it_alone() || planted(Bug::BroughtBesideChildren);
        let result = may.then(restore);
        if self.restoring.swap(0, SeqCst) == AWAITED {
            futex::wake(&self.restoring, u32::MAX);
        }
        result
    }

    /// Waits until the tier's thread has no entries in hand that it took before the caller said what holds from now on.
    pub fn wait_for_restore(&self) {
        while self.restoring.load(SeqCst) != 0 {
            // Whoever changes it first: it is over, or it is known that somebody waits.
            let _ = self.restoring.compare_exchange(1, AWAITED, SeqCst, SeqCst);
            let _ = futex::wait(&self.restoring, AWAITED, None);
        }
    }

    /// A cluster that was handed over is wanted by nobody: its place, its number and what it needed are free again.
    ///
    /// # Safety
    /// Background thread only, or where there is no other.
    pub unsafe fn give_back(&self, cluster: u32, place: Place, dictionaries: u16) {
        // SAFETY: the caller's contract.
        let keeper = unsafe { self.keeper() };
        keeper.note_dictionaries(dictionaries, false);
        keeper.give_up(&self.files, place);
        self.clusters.give_back(cluster);
    }

    /// What a job was to bring about does not come about.
    ///
    /// # Safety
    /// Background thread only, or where there is no other; the job is not handed over.
    pub unsafe fn undo(&self, job: &Job) {
        // SAFETY: the caller's contract.
        let (inner, keeper) = unsafe { (job.inner(), self.keeper()) };
        let Some(place) = inner.place.take() else { return };
        match inner.from.take() {
            Some(from) => {
                keeper.give_up(&self.files, place);
                if let Some(dictionaries) = job.gone() {
                    // SAFETY: the caller's contract.
                    unsafe { self.give_back(inner.cluster, from, dictionaries) };
                }
            }
            // SAFETY: the caller's contract.
            None => unsafe { self.give_back(inner.cluster, place, inner.dictionaries) },
        }
    }

    /// Wakes the tier's thread.
    fn ring(&self) {
        self.bell.fetch_add(1, Release);
        futex::wake(&self.bell, 1);
    }

    /// Has the tier's thread end once nothing is wanted.
    pub fn end(&self) {
        self.ending.store(1, Release);
        self.ring();
    }

    /// A fork is over, in the parent: a child may have what is in the files. Before anything else goes down.
    pub fn share(&self) {
        if !planted(Bug::FilesNotShared) {
            self.files.share();
        }
    }

    /// In a forked child, where neither the tier's thread nor the background thread exists.
    pub fn reset_in_child(&self) {
        self.files.inherit();
        // SAFETY: the only thread of the process.
        unsafe { self.keeper() }.inherit(&self.files);
        self.wanted.reset_in_child();
        self.early.reset_in_child();
        // SAFETY: as above.
        unsafe { self.order.forget() };
        self.set_open(false);
        self.ending.store(0, Relaxed);
        self.restoring.store(0, Relaxed);
        for ask in &self.asks {
            ask.state.store(IDLE, Relaxed);
        }
        for job in &self.jobs {
            if !job.is_free() {
                // What was on its way lies in memory, and the cluster is nobody's.
                // SAFETY: the only thread of the process.
                unsafe { self.undo(job) };
                job.free();
            }
        }
    }
}

/// The number under which what lies there is sealed.
fn number_of(place: Place) -> u32 {
    if planted(Bug::SealedAlike) {
        return 0;
    }
    place.sequence()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::pool::Pool;
    use core::sync::atomic::AtomicBool;
    use memfold_sys::time::{sleep, Nanos};
    use std::thread;

    #[test]
    fn who_forks_waits_for_what_the_tiers_thread_has_in_hand() {
        crate::sabotage::choose(None);
        let pool = Pool::new();
        // SAFETY: zeros are what is shared, but for the keeper, which nobody asks for.
        let below: &'static Below = unsafe { pool.make_sparse() }.unwrap();
        static BEGUN: AtomicBool = AtomicBool::new(false);
        static ENDED: AtomicBool = AtomicBool::new(false);
        let restoring = thread::spawn(|| {
            below.restoring(&Children::new(), || {
                BEGUN.store(true, SeqCst);
                sleep(Nanos::from_millis(50));
                ENDED.store(true, SeqCst);
            });
        });
        while !BEGUN.load(SeqCst) {
            thread::yield_now();
        }
        below.wait_for_restore();
        assert!(ENDED.load(SeqCst), "it was not waited for");
        restoring.join().unwrap();
    }
}
