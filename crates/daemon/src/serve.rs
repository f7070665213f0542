//! Restoring and compressing pages of a channel: what the daemon does for a process, and the process's agent does while
//! there is no daemon.
//!
//! Invariants: nothing here allocates, locks or touches the program's memory but through the userfaultfd. A page's entry is
//! taken before its bytes are looked at, and says `Resident` or `Returned` only after the page is in the program's view.

use crate::channel::{job, Channel, Entry, State, JOBS, WANTED};
use core::sync::atomic::Ordering::*;
use pager::codec::{repeated_word, Codec, Codecs, Page, MAX_STORED};
use sys::time::{self, Nanos};
use sys::uffd::{Event, Userfaultfd};
use sys::{Errno, Result, PAGE_SIZE};

/// What became of a touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The page came back, which took so much work, and who waited was woken.
    Restored(Nanos),
    /// Nothing was away: zeros were put in place, or the page was there already. Who waited was woken.
    Served,
    /// The page is in the hands of the process's agent, whom it was told.
    Theirs,
    /// Somebody else is restoring it, and wakes who waits.
    InOtherHands,
    /// The entry leads nowhere: the process has broken its own memory.
    Broken,
}

/// Working memory for one process.
pub struct Server {
    /// CPU time that compressing has taken.
    compressing: Nanos,
    codecs: Codecs,
    page: Aligned,
    packed: Aligned,
}

/// A page on the boundary that word-wise comparison wants.
#[repr(align(64))]
struct Aligned(Page);

impl Server {
    /// Maps it. `ENOMEM` when there is none.
    pub fn new() -> Result<Server> {
        Ok(Server {
            compressing: Nanos(0),
            codecs: Codecs::new()?,
            page: Aligned([0; PAGE_SIZE]),
            packed: Aligned([0; PAGE_SIZE]),
        })
    }

    /// CPU time of the calling threads that [`Server::compress_one`] has taken so far.
    pub fn compressing(&self) -> Nanos {
        self.compressing
    }

    /// Serves the touches that wait at the userfaultfd, up to `most`. Counts them in the channel. Returns how many pages the
    /// agent was told of; `Err` when an entry led nowhere or the userfaultfd is of no use.
    pub fn serve(&mut self, channel: &Channel, uffd: &Userfaultfd, most: usize) -> Result<usize> {
        let mut theirs = 0;
        for _ in 0..most {
            let message = match uffd.read() {
                Ok(message) => message.event(),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(error) => return Err(error),
            };
            let Event::Fault { page, write, .. } = message else { continue };
            let read_at = time::now();
            match self.touch(channel, uffd, page, write) {
                Outcome::Restored(work) => {
                    let waited = time::now().since(read_at).0;
                    let header = channel.header();
                    header.fault_ns.record(waited);
                    header.restore_ns.record(work.0);
                    header.stall_ns.fetch_add(waited, Relaxed);
                }
                Outcome::Served => {}
                Outcome::Theirs => theirs += 1,
                Outcome::InOtherHands => {}
                Outcome::Broken => return Err(Errno::EINVAL),
            }
        }
        Ok(theirs)
    }

    /// Serves a touch of the page at `addr`.
    pub fn touch(&mut self, channel: &Channel, uffd: &Userfaultfd, addr: usize, write: bool) -> Outcome {
        let began = time::now();
        let Some((region, generation, number)) = channel.find(addr) else {
            // Nothing of ours any more: who touches it is told by the kernel.
            uffd.wake(addr, PAGE_SIZE);
            return Outcome::Served;
        };
        let Some(cell) = channel.entry(number) else { return Outcome::Broken };
        loop {
            let entry = Entry(cell.load(SeqCst));
            if entry.is_busy() {
                return Outcome::InOtherHands;
            }
            if matches!(entry.state(), State::Held | State::HeldWanted) {
                let wanted = Entry::new(State::HeldWanted, 0);
                if cell.compare_exchange(entry.0, wanted.0, SeqCst, SeqCst).is_err() {
                    continue;
                }
                let header = channel.header();
                let at = header.wanted_count.load(Relaxed);
                header.wanted[at as usize % WANTED].store(number as u64, Relaxed);
                header.wanted_at[at as usize % WANTED].store(time::now().0, Relaxed);
                // Release: who sees the count sees the number.
                header.wanted_count.store(at.wrapping_add(1), Release);
                return Outcome::Theirs;
            }
            if cell.compare_exchange(entry.0, entry.busy().0, SeqCst, SeqCst).is_err() {
                continue;
            }
            // From here on the region cannot be taken away; was it, before?
            if !channel.is_still(region, generation) {
                cell.store(entry.0, SeqCst);
                uffd.wake(addr, PAGE_SIZE);
                return Outcome::Served;
            }
            let Some(then) = self.put(channel, uffd, addr, entry, write) else {
                cell.store(entry.0, SeqCst);
                return Outcome::Broken;
            };
            cell.store(then.0, SeqCst);
            // Before the wake-up: the program's thread may run in our place from then on.
            let work = time::now().since(began);
            uffd.wake(addr, PAGE_SIZE);
            return if then == entry { Outcome::Served } else { Outcome::Restored(work) };
        }
    }

    /// Puts the page of a taken entry in place. Returns what the entry says then; `None` when it leads nowhere.
    fn put(
        &mut self,
        channel: &Channel,
        uffd: &Userfaultfd,
        addr: usize,
        entry: Entry,
        write: bool,
    ) -> Option<Entry> {
        let header = channel.header();
        let page = &mut self.page.0;
        let then = match entry.state() {
            State::Stored => {
                let (codec, len) = channel.read_slot(entry.payload(), addr, &mut self.packed.0)?;
                if !self.codecs.decompress(codec, &self.packed.0[..len], page) {
                    return None;
                }
                Entry::new(State::Returned, entry.payload())
            }
            State::Same => {
                page.chunks_exact_mut(8)
                    .for_each(|word| word.copy_from_slice(&entry.payload().to_ne_bytes()));
                Entry::RESIDENT
            }
            _ => {
                page.fill(0);
                entry
            }
        };
        let untouched = then == entry;
        loop {
            let progress = if untouched && !write {
                uffd.zero(addr, PAGE_SIZE)
            } else {
                // SAFETY: the bytes that belong at this page, whose entry was taken.
                unsafe { uffd.copy(addr, self.page.0.as_ptr() as usize, PAGE_SIZE) }
            };
            match progress.error {
                None => {
                    let count = if untouched { &header.zeroed } else { &header.restored };
                    count.fetch_add(1, Relaxed);
                    return Some(then);
                }
                Some(Errno::EEXIST) => return Some(then),
                Some(Errno::EAGAIN | Errno::ENOMEM) => time::sleep(Nanos::from_millis(1)),
                // No mapping that is registered, or no process: the kernel tells who touches it.
                Some(_) => return Some(entry),
            }
        }
    }

    /// Compresses one page that was handed over, if there is one, beginning the search at job `from`. Returns the job.
    pub fn compress_one(&mut self, channel: &Channel, from: usize) -> Option<usize> {
        let jobs = &channel.header().jobs;
        let n = (0..JOBS).map(|i| (from + i) % JOBS).find(|&n| jobs[n].state.load(Acquire) == job::ASKED)?;
        let began = time::thread_cpu();
        channel.read_job(n, 0, &mut self.page.0);
        let result = match repeated_word(&self.page.0) {
            Some(word) if word <= crate::channel::MOST_PAYLOAD => {
                jobs[n].word.store(word, Relaxed);
                job::SAME
            }
            _ => match self.codecs.lz4.compress(&self.page.0, &mut self.packed.0[..MAX_STORED]) {
                Some(len) => {
                    channel.write_job(n, 1, &self.packed.0[..len]);
                    len as u32
                }
                None => job::INCOMPRESSIBLE,
            },
        };
        jobs[n].result.store(result, Relaxed);
        channel.header().compressed.fetch_add(1, Relaxed);
        // Release: who sees it done sees the result.
        jobs[n].state.store(job::DONE, Release);
        self.compressing = self.compressing + time::thread_cpu().since(began);
        Some(n)
    }
}
