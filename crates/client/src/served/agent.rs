//! The agent of a process that the daemon serves: one thread, which alone decides what is where.
//!
//! It sets pages aside, keeps the store, hands pages over to be compressed, and carries out what the program's threads ask
//! for. While there is no daemon it serves the faults itself, so that nothing depends on the daemon's life: it learns of its
//! end by the end of the connection, within moments, and asks for a new one four times a second.
//!
//! It is a thread that libc does not know of (`sys::thread`): no `std` that allocates or locks, and nothing that may be folded.

use super::mail::{Mail, Op};
use super::region::{set, Region};
use daemon::channel::{job, Channel, Entry, State, JOBS, REGIONS, WANTED};
use daemon::serve::{Outcome, Server};
use daemon::wire::{Hello, Reply, REPLY_LEN, VERSION};
use pager::codec::Page;
use pager::config::{Config, Setting};
use pager::control::{Command, ControlPage, Histogram, Mode};
use pager::store::Store;
use std::sync::atomic::Ordering::*;
use sys::file::{self, Fd};
use sys::pagemap::Pagemap;
use sys::socket::{self, MOST_FDS};
use sys::thread::{self, Backoff};
use sys::time::{self, Nanos};
use sys::uffd::Userfaultfd;
use sys::{Errno, Result, EXTENT_PAGES, PAGE_SIZE};

/// How often the counters are brought up to date, and a daemon is looked for.
const TICK: Nanos = Nanos::from_millis(250);
/// Cold age while more is resident than the limit allows, ns.
const COLD_AGE_OVER_LIMIT: u64 = 200_000_000;
/// Touches served before anything else is looked at.
const BATCH: usize = 32;
/// Length of the daemon's path.
pub const PATH_LEN: usize = 108;

/// The connection to the daemon.
enum Link {
    /// There is none; the next attempt is due then.
    Alone(Nanos),
    /// It was greeted and has not answered.
    Asked(Fd),
    /// It serves us.
    Served(Fd),
}

/// What the agent counts.
#[derive(Default)]
pub struct Counts {
    pub evicted: u64,
    pub same: u64,
    pub incompressible: u64,
    pub second_chance: u64,
}

/// The agent. Everything in it is the agent thread's own once that runs.
pub struct Agent {
    pub channel: Channel,
    pub uffd: Userfaultfd,
    pub staging: Userfaultfd,
    pub pagemap: Pagemap,
    pub store: Store,
    pub regions: [Region; REGIONS],
    pub out: [Option<(usize, usize)>; JOBS],
    pub jobs_out: usize,
    pub buffer: Page,
    pub counts: Counts,
    pub now: u64,
    pub ring_daemon: bool,
    server: Server,
    link: Link,
    memory: Fd,
    bell: Fd,
    daemon_bell: Fd,
    path: [u8; PATH_LEN],
    control: &'static ControlPage,
    config: Config,
    mail: &'static Mail,
    /// A fork is under way: nothing may leave.
    frozen: bool,
    ended: bool,
    /// Requests of the daemon's that were carried out.
    wanted_seen: u64,
    /// The next piece to look at.
    cursor: (usize, usize),
    pass_began: u64,
    counted_at: u64,
}

/// What an agent is made of.
pub struct Parts {
    pub channel: Channel,
    pub memory: Fd,
    pub uffd: Userfaultfd,
    pub staging: Userfaultfd,
    pub bell: Fd,
    pub path: [u8; PATH_LEN],
    pub control: &'static ControlPage,
    pub config: Config,
    pub mail: &'static Mail,
}

impl Agent {
    /// Puts one together, in the calling thread.
    pub fn new(parts: Parts) -> Result<Agent> {
        let Parts { channel, memory, uffd, staging, bell, path, control, config, mail } = parts;
        let (start, end) = channel.store();
        Ok(Agent {
            pagemap: Pagemap::open()?,
            // SAFETY: the store's part of the channel, which stays mapped for ever and only the agent writes to.
            store: unsafe { Store::within(start, end) },
            // SAFETY: zeros are no region.
            regions: unsafe { core::mem::zeroed() },
            out: [None; JOBS],
            jobs_out: 0,
            buffer: [0; PAGE_SIZE],
            counts: Counts::default(),
            now: 0,
            ring_daemon: false,
            server: Server::new()?,
            link: Link::Alone(Nanos(0)),
            daemon_bell: socket::event_counter()?,
            frozen: false,
            ended: false,
            wanted_seen: 0,
            cursor: (0, 0),
            pass_began: 0,
            counted_at: 0,
            channel,
            uffd,
            staging,
            memory,
            bell,
            path,
            control,
            config,
            mail,
        })
    }

    /// The thread.
    pub fn run(&mut self) {
        thread::set_name(c"memfold-agent");
        let _ = thread::drop_capabilities(0);
        let mut busy = false;
        while !self.ended {
            let pause = if busy { Nanos(0) } else { self.tick() };
            self.look(pause);
            self.now = time::now().0;
            self.meet_the_daemon();
            self.bring_wanted();
            self.collect();
            self.answer_program();
            self.answer_mailbox();
            busy = self.is_served() && !self.frozen && self.control.paused.load(Relaxed) == 0 && self.pass();
            if core::mem::take(&mut self.ring_daemon) {
                socket::ring(self.daemon_bell.raw());
            }
            if self.now.saturating_sub(self.counted_at) >= TICK.0 {
                self.counted_at = self.now;
                self.pack();
                self.count();
            }
        }
    }

    /// Waits for news and takes note of it.
    fn look(&mut self, pause: Nanos) {
        let (socket, served) = match &self.link {
            Link::Alone(_) => (-1, false),
            Link::Asked(fd) => (fd.raw(), false),
            Link::Served(fd) => (fd.raw(), true),
        };
        let uffd = if served { -1 } else { self.uffd.raw_fd() };
        let ready = socket::wait_for([self.bell.raw(), socket, uffd], pause);
        if ready & 1 != 0 {
            socket::silence(self.bell.raw());
        }
        if ready & 2 != 0 {
            self.hear();
        }
        if ready & 4 != 0 {
            if let Err(error) = self.server.serve(&self.channel, &self.uffd, BATCH) {
                self.fail(error);
            }
        }
    }

    fn tick(&self) -> Nanos {
        Nanos(self.cold_age() / 8).clamp(Nanos::from_millis(5), TICK)
    }

    fn cold_age(&self) -> u64 {
        let cold_age = self.config.get(Setting::ColdAge);
        let header = self.channel.header();
        let limit = match header.resident_limit.load(Relaxed) {
            0 => u64::MAX,
            limit => limit,
        };
        let limit = limit.min(self.config.get(Setting::ResidentLimit));
        let kept = header.resident_bytes.load(Relaxed) + header.store_bytes.load(Relaxed);
        if kept > limit {
            cold_age.min(COLD_AGE_OVER_LIMIT)
        } else {
            cold_age
        }
    }

    /// Whether the daemon serves us.
    pub fn is_served(&self) -> bool {
        matches!(self.link, Link::Served(_))
    }

    /// Greets the daemon when that is due.
    fn meet_the_daemon(&mut self) {
        let Link::Alone(due) = self.link else { return };
        if self.now < due.0 {
            return;
        }
        self.link = Link::Alone(Nanos(self.now) + TICK);
        let len = self.path.iter().position(|&byte| byte == 0).unwrap_or(PATH_LEN);
        let Ok(fd) = socket::connect(&self.path[..len]) else { return };
        let hello = Hello { version: VERSION, pages: self.channel.pages() as u64 };
        let fds = [self.memory.raw(), self.uffd.raw_fd(), self.daemon_bell.raw(), self.bell.raw()];
        if socket::send(fd.raw(), &hello.bytes(), &fds).is_ok() {
            self.link = Link::Asked(fd);
        }
    }

    /// The socket has news: an answer, or the end.
    fn hear(&mut self) {
        let (asked, fd) = match &self.link {
            Link::Asked(fd) => (true, fd.raw()),
            Link::Served(fd) => (false, fd.raw()),
            Link::Alone(_) => return,
        };
        let mut bytes = [0; REPLY_LEN];
        let reply = match socket::receive(fd, &mut bytes, &mut [const { None }; MOST_FDS]) {
            Ok(len) => Reply::parse(&bytes[..len]),
            Err(_) => None,
        };
        match (asked, reply) {
            (true, Some(Reply { error: 0, version: VERSION })) => {
                if let Link::Asked(fd) = core::mem::replace(&mut self.link, Link::Alone(Nanos(0))) {
                    self.link = Link::Served(fd);
                }
                self.control.mode.store(Mode::Daemon as u32, Release);
                self.mail.set_served(0);
                // What arrived before the daemon looked is there to be found.
                self.ring_daemon = true;
            }
            (asked, reply) => {
                let refusal = reply.map_or(libc::EPIPE as u32, |reply| reply.error.max(1));
                self.link = Link::Alone(time::now() + TICK);
                if asked {
                    self.mail.set_served(refusal);
                } else {
                    self.take_over();
                }
            }
        }
    }

    /// The daemon has gone: what it had in hand is nobody's, and who waited for it touches again.
    fn take_over(&mut self) {
        for job in &self.channel.header().jobs {
            job.state.store(job::FREE, Relaxed);
        }
        self.out = [None; JOBS];
        self.jobs_out = 0;
        for region in self.regions.iter().filter(|region| region.exists()) {
            for page in 0..region.pages {
                let cell = region.cell(&self.channel, page);
                let entry = Entry(cell.load(SeqCst));
                if entry.is_busy() {
                    // Where the page is the entry still says; if it is in the program's view already, nobody will miss it.
                    cell.store(entry.idle().0, SeqCst);
                }
            }
            self.uffd.wake(region.base, region.pages * PAGE_SIZE);
        }
    }

    /// Brings back what threads wait for.
    fn bring_wanted(&mut self) {
        let count = self.channel.header().wanted_count.load(Acquire);
        if count.wrapping_sub(self.wanted_seen) > WANTED as u64 {
            self.wanted_seen = count;
            for region in 0..REGIONS {
                for page in 0..self.regions[region].pages {
                    self.bring_if_wanted(region, page);
                }
            }
        }
        while self.wanted_seen != count {
            let number =
                self.channel.header().wanted[self.wanted_seen as usize % WANTED].load(Relaxed) as usize;
            self.wanted_seen = self.wanted_seen.wrapping_add(1);
            let place = self.regions.iter().enumerate().find_map(|(n, region)| {
                let page = number.checked_sub(region.first)?;
                (region.exists() && page < region.pages).then_some((n, page))
            });
            if let Some((region, page)) = place {
                self.bring_if_wanted(region, page);
            }
        }
    }

    fn bring_if_wanted(&mut self, region: usize, page: usize) {
        let entry = self.regions[region].entry(&self.channel, page);
        if entry.state() == State::HeldWanted && self.is_staged(region, page) {
            self.bring_back(region, page);
            self.counts.second_chance += 1;
        }
    }

    /// Looks at some pieces. Whether there is more to do at once.
    fn pass(&mut self) -> bool {
        let cold_age = self.cold_age();
        if self.cursor == (0, 0) {
            if self.now.saturating_sub(self.pass_began) < self.tick().0 && self.pass_began != 0 {
                return false;
            }
            self.pass_began = self.now;
        }
        let (mut region, mut piece) = self.cursor;
        for _ in 0..super::fold::PIECES_A_PASS {
            while region < REGIONS && piece >= self.regions[region].pieces() {
                (region, piece) = (region + 1, 0);
            }
            if region == REGIONS {
                self.cursor = (0, 0);
                return false;
            }
            self.step(region, piece, cold_age);
            piece += 1;
        }
        self.cursor = (region, piece);
        true
    }

    /// Brings back pages of a range, and waits until whoever is restoring one of them is done.
    fn bring_range(&mut self, region: usize, lo: usize, hi: usize) {
        for page in lo..hi {
            let mut backoff = Backoff::new();
            loop {
                let entry = self.regions[region].entry(&self.channel, page);
                match entry.state() {
                    _ if entry.is_busy() => {
                        backoff.wait();
                        self.look(Nanos(0));
                    }
                    State::Resident | State::Returned => break,
                    State::Held | State::HeldWanted if self.is_staged(region, page) => {
                        self.bring_back(region, page)
                    }
                    _ => {
                        let addr = self.regions[region].addr(page);
                        if self.server.touch(&self.channel, &self.uffd, addr, true) == Outcome::Broken {
                            self.fail(Errno::EINVAL);
                        }
                    }
                }
            }
        }
    }

    /// Does what a thread of the program waits for.
    fn answer_program(&mut self) {
        let mail = self.mail;
        let Some((op, addr, len)) = mail.request() else { return };
        let result = match op {
            Op::Register => self.register(addr, len / PAGE_SIZE),
            Op::Freeze => {
                self.frozen = true;
                self.bring_all();
                Ok(())
            }
            Op::Thaw => {
                self.frozen = false;
                Ok(())
            }
            Op::Stop => {
                self.stop();
                Ok(())
            }
            Op::Unregister | Op::Normal | Op::WillNeed | Op::DontNeedSoon | Op::Keep => {
                self.on_range(op, addr, len)
            }
        };
        self.count();
        mail.answer(result.err().map_or(0, |errno| errno.0 as u32));
    }

    fn register(&mut self, base: usize, pages: usize) -> Result<()> {
        let end = base + pages * PAGE_SIZE;
        if self.regions.iter().any(|r| r.exists() && r.base <= base && end <= r.addr(r.pages)) {
            return self.on_range(Op::Normal, base, pages * PAGE_SIZE);
        }
        if self.regions.iter().any(|r| r.exists() && r.base < end && base < r.addr(r.pages)) {
            return Err(Errno::EEXIST);
        }
        let n = self.regions.iter().position(|r| !r.exists()).ok_or(Errno(libc::ENOSPC))?;
        let first = self.free_entries(pages).ok_or(Errno(libc::ENOSPC))?;
        self.regions[n].make(base, pages, first, &self.staging)?;
        let shared = &self.channel.header().regions[n];
        shared.generation.fetch_add(1, SeqCst);
        shared.base.store(base as u64, SeqCst);
        shared.pages.store(pages as u64, SeqCst);
        shared.first.store(first as u64, SeqCst);
        shared.generation.fetch_add(1, SeqCst);
        self.control.ranges_added.fetch_add(1, Relaxed);
        Ok(())
    }

    /// The first of so many entries in a row that no region has.
    fn free_entries(&self, pages: usize) -> Option<usize> {
        let mut at = 0;
        while at + pages <= self.channel.pages() {
            let taken =
                self.regions.iter().filter(|r| r.exists() && r.first < at + pages && at < r.first + r.pages);
            match taken.map(|r| r.first + r.pages).max() {
                Some(end) => at = end,
                None => return Some(at),
            }
        }
        None
    }

    fn on_range(&mut self, op: Op, addr: usize, len: usize) -> Result<()> {
        let mut known = false;
        for n in 0..REGIONS {
            let (base, pages) = (self.regions[n].base, self.regions[n].pages);
            let (lo, hi) = (addr.max(base), (addr + len).min(base + pages * PAGE_SIZE));
            if base == 0 || lo >= hi {
                continue;
            }
            known = true;
            let (lo, hi) = ((lo - base) / PAGE_SIZE, (hi - base) / PAGE_SIZE);
            match op {
                Op::Unregister if lo == 0 && hi == pages => self.forget(n),
                _ => self.tell(op, n, lo, hi),
            }
        }
        known.then_some(()).ok_or(Errno::ENOENT)
    }

    fn tell(&mut self, op: Op, region: usize, lo: usize, hi: usize) {
        let now = self.now;
        for page in lo..hi {
            let piece = self.regions[region].piece(page / EXTENT_PAGES);
            let n = page % EXTENT_PAGES;
            match op {
                Op::DontNeedSoon => set(&mut piece.soon, n, true),
                Op::WillNeed => piece.age.watched(now),
                Op::Normal => set(&mut piece.kept, n, false),
                _ => set(&mut piece.kept, n, true),
            }
            if !matches!(op, Op::DontNeedSoon) {
                set(&mut piece.soon, n, false);
            }
        }
        if matches!(op, Op::WillNeed | Op::Keep | Op::Unregister) {
            self.bring_range(region, lo, hi);
        }
        if op == Op::Unregister {
            // It may be unmapped now, and something else be mapped there.
            let _ = self.uffd.unregister(self.regions[region].addr(lo), (hi - lo) * PAGE_SIZE);
        }
    }

    /// Gives a region up.
    fn forget(&mut self, region: usize) {
        let pages = self.regions[region].pages;
        self.bring_range(region, 0, pages);
        let shared = &self.channel.header().regions[region];
        shared.generation.fetch_add(1, SeqCst);
        shared.base.store(0, SeqCst);
        shared.pages.store(0, SeqCst);
        shared.generation.fetch_add(1, SeqCst);
        // Whoever found the region before is done with the entry, or sees that it is gone.
        for page in 0..pages {
            let mut backoff = Backoff::new();
            while self.regions[region].entry(&self.channel, page).is_busy() {
                backoff.wait();
                self.look(Nanos(0));
            }
            self.take_back_slot(region, page);
        }
        let _ = self.uffd.unregister(self.regions[region].base, pages * PAGE_SIZE);
        self.regions[region].end();
        self.control.ranges_removed.fetch_add(1, Relaxed);
    }

    fn bring_all(&mut self) {
        for region in 0..REGIONS {
            self.bring_range(region, 0, self.regions[region].pages);
        }
    }

    fn stop(&mut self) {
        for region in 0..REGIONS {
            if self.regions[region].exists() {
                self.forget(region);
            }
        }
        self.control.mode.store(Mode::Off as u32, Release);
        self.control.reason.set("stopped by the program");
        self.link = Link::Alone(Nanos(u64::MAX));
        self.ended = true;
    }

    fn answer_mailbox(&mut self) {
        let mailbox = &self.control.mailbox;
        let asked = mailbox.asked.load(Acquire);
        if asked == mailbox.answered.load(Relaxed) {
            return;
        }
        let (argument, value) = (mailbox.argument.load(Relaxed), mailbox.value.load(Relaxed));
        let error = match mailbox.command.load(Relaxed) {
            c if c == Command::Set as u32 => self.change_setting(argument, value),
            c if c == Command::Pause as u32 => {
                self.control.paused.store(1, Relaxed);
                0
            }
            c if c == Command::Resume as u32 => {
                self.control.paused.store(0, Relaxed);
                0
            }
            c if c == Command::Restore as u32 => {
                self.bring_all();
                0
            }
            c if c == Command::Evict as u32 => {
                for n in 0..REGIONS {
                    self.tell(Op::DontNeedSoon, n, 0, self.regions[n].pages);
                }
                0
            }
            c if c == Command::Stop as u32 => {
                self.stop();
                0
            }
            _ => libc::EINVAL as u32,
        };
        self.count();
        mailbox.error.store(error, Relaxed);
        mailbox.answered.store(asked, Release);
    }

    fn change_setting(&mut self, index: u64, value: u64) -> u32 {
        let Some(setting) = Setting::from_index(index) else { return libc::EINVAL as u32 };
        let (least, most) = setting.range();
        if value < least || value > most {
            return libc::ERANGE as u32;
        }
        self.config.set(setting, value);
        self.control.settings[setting as usize].store(value, Relaxed);
        0
    }

    /// Brings the counters up to date, and takes back the slots of what was restored.
    fn count(&mut self) {
        let page = PAGE_SIZE as u64;
        let (mut managed, mut evicted, mut aside) = (0, 0, 0);
        for region in 0..REGIONS {
            managed += self.regions[region].pages as u64;
            for n in 0..self.regions[region].pages {
                match self.regions[region].entry(&self.channel, n).state() {
                    State::Stored | State::Same => evicted += 1,
                    State::Held | State::HeldWanted => aside += 1,
                    State::Returned => self.take_back_slot(region, n),
                    State::Resident => {}
                }
            }
        }
        let (usage, header, control) = (self.store.usage(), self.channel.header(), self.control);
        header.managed_bytes.store(managed * page, Relaxed);
        header.resident_bytes.store((managed - evicted) * page, Relaxed);
        header.evicted_bytes.store(evicted * page, Relaxed);
        header.store_bytes.store(usage.memory, Relaxed);
        let saved = (evicted * page).saturating_sub(usage.memory);
        for (gauge, peak, value) in [
            (&control.managed_bytes, &control.managed_bytes_peak, managed * page),
            (&control.evicted_bytes, &control.evicted_bytes_peak, evicted * page),
            (&control.stored_bytes, &control.stored_bytes_peak, usage.data),
            (&control.saved_bytes, &control.saved_bytes_peak, saved),
        ] {
            gauge.store(value, Relaxed);
            peak.fetch_max(value, Relaxed);
        }
        for (to, value) in [
            (&control.resident_bytes, (managed - evicted) * page),
            (&control.aside_bytes, aside * page),
            (&control.overhead_bytes, usage.memory),
            (&control.pages_evicted, self.counts.evicted),
            (&control.pages_same_value, self.counts.same),
            (&control.pages_incompressible, self.counts.incompressible),
            (&control.pages_second_chance, self.counts.second_chance),
            (&control.pages_restored, header.restored.load(Relaxed)),
            (&control.faults_zero, header.zeroed.load(Relaxed)),
            (&control.stall_ns, header.stall_ns.load(Relaxed)),
            (&control.cpu_fault_ns, header.cpu_ns.load(Relaxed)),
            (&control.cpu_background_ns, time::thread_cpu().0),
            (&control.updated_ns, self.now),
        ] {
            to.store(value, Relaxed);
        }
        // Of both the daemon knows the same: from the reading of a message to the wake-up.
        for to in [&control.fault_ns, &control.restore_ns] {
            copy(&header.fault_ns, to);
        }
    }

    /// Ends the process: to go on would lose bytes.
    fn fail(&self, error: Errno) -> ! {
        let _ = file::write_all(2, b"memfold: a page cannot be read back; the program must not go on: ");
        let _ = file::write_all(2, error.name().as_bytes());
        let _ = file::write_all(2, b"\n");
        thread::abort_process()
    }
}

fn copy(from: &Histogram, to: &Histogram) {
    for (from, to) in [(&from.count, &to.count), (&from.sum, &to.sum), (&from.max, &to.max)] {
        to.store(from.load(Relaxed), Relaxed);
    }
    for (from, to) in from.buckets.iter().zip(&to.buckets) {
        to.store(from.load(Relaxed), Relaxed);
    }
}
