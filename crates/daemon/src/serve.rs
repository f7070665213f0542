//! Restoring and compressing pages of a channel: what the daemon does for a process, and the process's agent does while
//! there is no daemon.
//!
//! Invariants: nothing here allocates, locks or touches the program's memory but through the userfaultfd. A page's entry is
//! taken before its bytes are looked at, and says `Resident` or `Returned` only after the page is in the program's view. What the
//! process writes is read once, into memory of the daemon's own. A server that is *wary* waits for nothing that a process can hold
//! back, and does nothing over and over because of one.

use crate::breaker::Breaker;
use crate::channel::{job, Channel, Entry, State, JOBS, WANTED};
use core::sync::atomic::Ordering::*;
use memfold_pager::codec::{repeated_word, Codecs, Dictionaries, Page, MAX_STORED};
use memfold_policy::effort::Effort;
use memfold_sys::time::{self, Nanos};
use memfold_sys::uffd::{Event, RawMessage, Userfaultfd};
use memfold_sys::{Errno, Result, PAGE_SIZE};

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
    /// The entry leads nowhere (`EINVAL`), or cannot be carried out (`ETIMEDOUT`): the process has broken its own memory.
    Broken(Errno),
}

/// What a server has done since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Done {
    /// Pages restored.
    pub restored: u64,
    /// First touches served.
    pub zeroed: u64,
    /// Pages tried to be compressed.
    pub compressed: u64,
    /// Touches that the agent was told of.
    pub told: u64,
    /// Waits for restored pages, each from the reading of the message to the wake-up, ns.
    pub waited_ns: u64,
}

/// How often a wary server tries to put a page in place, a millisecond apart.
const TRIES: u32 = 1000;
/// How often it tries to take an entry that changes under it.
const GRABS: u32 = 1000;

/// Working memory for one process.
pub struct Server {
    /// Whether who is served may mean harm.
    wary: bool,
    /// Ends reads that wait, on kernels where a wary server needs it.
    breaker: Option<Breaker>,
    done: Done,
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
    /// For a process that serves itself: it tries for as long as it takes. `ENOMEM` when there is no memory.
    pub fn new() -> Result<Server> {
        Ok(Server {
            wary: false,
            breaker: None,
            done: Done::default(),
            compressing: Nanos(0),
            codecs: Codecs::new()?,
            page: Aligned([0; PAGE_SIZE]),
            packed: Aligned([0; PAGE_SIZE]),
        })
    }

    /// For a process that may mean harm.
    pub fn wary() -> Result<Server> {
        Ok(Server { wary: true, ..Server::new()? })
    }

    /// What it has done.
    pub fn done(&self) -> Done {
        self.done
    }

    /// CPU time of the calling threads that [`Server::compress_one`] has taken so far.
    pub fn compressing(&self) -> Nanos {
        self.compressing
    }

    /// Serves the touches that wait at the userfaultfd, up to `most`. Counts them in the channel. Returns how many pages the
    /// agent was told of; `Err` when an entry led nowhere or the userfaultfd is of no use, and, if wary, when it has other news than
    /// touches: nobody was to ask for those.
    pub fn serve(&mut self, channel: &Channel, uffd: &Userfaultfd, most: usize) -> Result<usize> {
        let mut theirs = 0;
        for _ in 0..most {
            let message = match self.read(uffd) {
                Ok(message) => message.event(),
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(error) => return Err(error),
            };
            let Event::Fault { page, write, .. } = message else {
                if self.wary {
                    return Err(Errno::EINVAL);
                }
                continue;
            };
            let read_at = time::now();
            match self.touch(channel, uffd, page, write) {
                Outcome::Restored(work) => {
                    let waited = time::now().since(read_at).0;
                    let header = channel.header();
                    header.fault_ns.record(waited);
                    header.restore_ns.record(work.0);
                    header.stall_ns.fetch_add(waited, Relaxed);
                    self.done.waited_ns += waited;
                }
                Outcome::Served => {}
                Outcome::Theirs => theirs += 1,
                Outcome::InOtherHands => {}
                Outcome::Broken(error) => return Err(error),
            }
        }
        self.done.told += theirs as u64;
        Ok(theirs)
    }

    /// Reads a message, without waiting for one where somebody else may have made reads wait.
    fn read(&mut self, uffd: &Userfaultfd) -> Result<RawMessage> {
        if !self.wary {
            return uffd.read();
        }
        match uffd.read_now() {
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                if self.breaker.is_none() {
                    self.breaker = Some(Breaker::start()?);
                }
                uffd.read()
            }
            message => message,
        }
    }

    /// Serves a touch of the page at `addr`.
    pub fn touch(&mut self, channel: &Channel, uffd: &Userfaultfd, addr: usize, write: bool) -> Outcome {
        let began = time::now();
        let Some((region, generation, number)) = channel.find(addr) else {
            // Nothing of ours any more: who touches it is told by the kernel.
            uffd.wake(addr, PAGE_SIZE);
            return Outcome::Served;
        };
        let Some(cell) = channel.entry(number) else { return Outcome::Broken(Errno::EINVAL) };
        let mut grabs = 0;
        loop {
            grabs += 1;
            if self.wary && grabs > GRABS {
                return Outcome::Broken(Errno::ETIMEDOUT);
            }
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
            let then = match self.put(channel, uffd, addr, entry, write) {
                Ok(then) => then,
                Err(error) => {
                    cell.store(entry.0, SeqCst);
                    return Outcome::Broken(error);
                }
            };
            cell.store(then.0, SeqCst);
            // Before the wake-up: the program's thread may run in our place from then on.
            let work = time::now().since(began);
            uffd.wake(addr, PAGE_SIZE);
            return if then == entry { Outcome::Served } else { Outcome::Restored(work) };
        }
    }

    /// Puts the page of a taken entry in place. Returns what the entry says then; `EINVAL` when it leads nowhere, `ETIMEDOUT` when a
    /// wary server has tried for long enough.
    fn put(
        &mut self,
        channel: &Channel,
        uffd: &Userfaultfd,
        addr: usize,
        entry: Entry,
        write: bool,
    ) -> Result<Entry> {
        let header = channel.header();
        let page = &mut self.page.0;
        let then = match entry.state() {
            State::Stored => {
                let (codec, len) =
                    channel.read_slot(entry.payload(), addr, &mut self.packed.0).ok_or(Errno::EINVAL)?;
                if !self.codecs.decompress(codec, &Dictionaries::new(), &self.packed.0[..len], page) {
                    return Err(Errno::EINVAL);
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
        let mut tries = 0;
        loop {
            let progress = if untouched && !write {
                uffd.zero(addr, PAGE_SIZE)
            } else {
                // SAFETY: the bytes that belong at this page, whose entry was taken.
                unsafe { uffd.copy(addr, self.page.0.as_ptr() as usize, PAGE_SIZE) }
            };
            match progress.error {
                None => {
                    let (count, done) = match untouched {
                        true => (&header.zeroed, &mut self.done.zeroed),
                        false => (&header.restored, &mut self.done.restored),
                    };
                    count.fetch_add(1, Relaxed);
                    *done += 1;
                    return Ok(then);
                }
                Some(Errno::EEXIST) => return Ok(then),
                // Its memory is changing, or it has none left: for a moment, or for as long as it likes.
                Some(Errno::EAGAIN | Errno::ENOMEM) => {
                    tries += 1;
                    if self.wary && tries == TRIES {
                        return Err(Errno::ETIMEDOUT);
                    }
                    time::sleep(Nanos::from_millis(1));
                }
                // No mapping that is registered, or no process: the kernel tells who touches it.
                Some(_) => return Ok(entry),
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
            _ => {
                let (page, out) = (self.page.0.as_ptr() as usize, &mut self.packed.0[..MAX_STORED]);
                // SAFETY: our own page, which nobody else writes.
                match unsafe { self.codecs.compress_at(Effort::Once, None, page, out) } {
                    Some((codec, len)) => {
                        channel.write_job(n, 1, &self.packed.0[..len]);
                        jobs[n].word.store(codec.bits(), Relaxed);
                        len as u32
                    }
                    None => job::INCOMPRESSIBLE,
                }
            }
        };
        jobs[n].result.store(result, Relaxed);
        channel.header().compressed.fetch_add(1, Relaxed);
        self.done.compressed += 1;
        // Release: who sees it done sees the result.
        jobs[n].state.store(job::DONE, Release);
        self.compressing = self.compressing + time::thread_cpu().since(began);
        Some(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::len_for;
    use memfold_sys::mem;
    use memfold_sys::uffd::{Features, Modes};
    use std::thread;

    /// A channel in memory of this process's own, and a range that it is to serve.
    fn scene(features: Features) -> (Channel, &'static Userfaultfd, usize) {
        const PAGES: usize = 4;
        let uffd = Userfaultfd::open().expect("userfaultfd is permitted to root");
        uffd.handshake(features).unwrap();
        let base = mem::map_anonymous(0, PAGES * PAGE_SIZE, 0).unwrap();
        uffd.register(base, PAGES * PAGE_SIZE, Modes::MISSING).unwrap();
        let place = mem::map_anonymous(0, len_for(PAGES), libc::MAP_NORESERVE).unwrap();
        // SAFETY: a mapping of that length, never unmapped.
        let channel = unsafe { Channel::at(place, PAGES) };
        let region = &channel.header().regions[0];
        region.pages.store(PAGES as u64, SeqCst);
        region.base.store(base as u64, SeqCst);
        // Stays for the threads that sleep for ever.
        (channel, Box::leak(Box::new(uffd)), base)
    }

    /// What comes of something that must not take for ever.
    fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = std::sync::mpsc::channel();
        thread::spawn(move || done.send(act()));
        result.recv_timeout(std::time::Duration::from_secs(60)).expect("it waits for ever")
    }

    #[test]
    fn a_page_whose_memory_changes_for_ever_is_given_up_and_its_entry_given_back() {
        let (channel, uffd, base) = scene(Features::MOVE | Features::EVENT_REMOVE);
        // Sleeps until somebody reads of it, which nobody does.
        // SAFETY: a range of the test's own, which nobody touches.
        thread::spawn(move || unsafe { mem::madvise(base, PAGE_SIZE, libc::MADV_DONTNEED) });
        while !uffd.is_changing() {
            thread::yield_now();
        }
        let outcome = in_time(move || Server::wary().unwrap().touch(&channel, uffd, base, true));
        assert_eq!(outcome, Outcome::Broken(Errno::ETIMEDOUT));
        assert_eq!(channel.entry(0).unwrap().load(SeqCst), Entry::RESIDENT.0);
    }

    #[test]
    fn whoever_asked_for_other_news_than_touches_is_not_served() {
        let (channel, uffd, base) = scene(Features::MOVE | Features::EVENT_REMOVE);
        // SAFETY: as above.
        thread::spawn(move || unsafe { mem::madvise(base, PAGE_SIZE, libc::MADV_DONTNEED) });
        while !uffd.has_message() {
            thread::yield_now();
        }
        assert_eq!(Server::wary().unwrap().serve(&channel, uffd, 8), Err(Errno::EINVAL));
    }

    #[test]
    fn a_read_never_waits_whatever_the_client_has_made_of_its_userfaultfd() {
        let (channel, uffd, _) = scene(Features::MOVE);
        // SAFETY: no memory involved.
        assert_eq!(unsafe { libc::fcntl(uffd.raw_fd(), libc::F_SETFL, 0) }, 0);
        assert_eq!(in_time(move || Server::wary().unwrap().serve(&channel, uffd, 8)), Ok(0));
    }
}
