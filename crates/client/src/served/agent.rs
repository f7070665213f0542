//! The agent of a process that the daemon serves: one thread, which alone decides what is where.
//!
//! It sets pages aside, keeps the store, hands pages over to be compressed, and carries out what the program's threads ask
//! for. While there is no daemon it serves the faults itself, so that nothing depends on the daemon's life: it learns of its
//! end by the end of the connection, within moments, and asks for a new one four times a second.
//!
//! It is a thread that libc does not know of (`memfold_sys::thread`): no `std` that allocates or locks, and nothing that may be folded.

use super::door;
use super::mail::Mail;
use super::region::Region;
use memfold_daemon::channel::{job, Channel, Entry, State, JOBS, REGIONS, WANTED};
use memfold_daemon::serve::{Outcome, Server};
use memfold_daemon::wire::{self, Hello, Reply, REPLY_LEN, VERSION};
use memfold_pager::codec::Page;
use memfold_pager::config::{Config, Setting};
use memfold_pager::contention::Contention;
use memfold_pager::control::{ControlPage, Mode};
use memfold_pager::mirror::Mirror;
use memfold_pager::source::Kind;
use memfold_pager::store::Store;
use memfold_policy::budget::{Budget, BROKEN, NO_LIMIT};
use memfold_policy::pace::{self, Pace};
use memfold_policy::returns::Returns;
use memfold_sys::file::{self, Fd};
use memfold_sys::life::Life;
use memfold_sys::pagemap::Pagemap;
use memfold_sys::socket;
use memfold_sys::thread::{self, Backoff};
use memfold_sys::time::{self, Nanos};
use memfold_sys::uffd::Userfaultfd;
use memfold_sys::{Errno, Result, EXTENT_PAGES, PAGE_SIZE};
use std::sync::atomic::Ordering::*;

/// How often the counters are brought up to date, and a daemon is looked for.
const TICK: Nanos = Nanos::from_millis(250);
/// Cold age while more is resident than the limit allows, ns.
const COLD_AGE_OVER_LIMIT: u64 = 200_000_000;
/// Bells that are heard as one.
const BELLS: usize = 512;
/// Touches served before anything else is looked at.
const BATCH: usize = 32;
/// What a page that is set aside will yet cost the agent and the daemon, ns.
const HANDING_OVER_COST: u64 = 20_000;
/// Longest time that one wait is believed to have taken.
const LONGEST_WAIT: Nanos = Nanos::from_secs(1);
/// Length of the daemon's path.
pub const PATH_LEN: usize = 108;

/// The connection to the daemon.
pub enum Link {
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
    /// Stored pages that came back before they had been away for long.
    pub soon_back: u64,
    /// Passes in which something was not set aside because the program had waited enough.
    pub holds: u64,
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
    /// Pages wait for room to be handed over.
    pub backlog: bool,
    /// Pages in staging.
    pub held: u64,
    /// CPU time of the agent, and of the daemon's thread that serves it.
    pace: Pace,
    crowd: Contention,
    /// CPU time of the agent that went into what threads of the program waited for.
    pub serving: Nanos,
    /// Waits of the program's threads for folded memory.
    stall: Budget,
    /// The program has waited twice as long as it should.
    pub broken: bool,
    /// In this pass, something was not set aside because the program had waited enough.
    pub withheld: bool,
    returns: Returns,
    server: Server,
    pub link: Link,
    memory: Fd,
    bell: Fd,
    /// Tells when the program has ended.
    life: Life,
    path: [u8; PATH_LEN],
    pub control: &'static ControlPage,
    pub mirror: &'static Mirror,
    pub config: Config,
    pub mail: &'static Mail,
    /// A fork is under way: nothing may leave.
    pub frozen: bool,
    pub ended: bool,
    /// Requests of the daemon's that were carried out.
    wanted_seen: u64,
    /// The next piece to look at.
    pub cursor: (usize, usize),
    pub pass_began: u64,
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
    pub mirror: &'static Mirror,
    pub config: Config,
    pub mail: &'static Mail,
}

impl Agent {
    /// Puts one together, in the calling thread.
    pub fn new(parts: Parts) -> Result<Agent> {
        let Parts { channel, memory, uffd, staging, bell, path, control, mirror, config, mail } = parts;
        let (start, end) = channel.store();
        Ok(Agent {
            pagemap: Pagemap::open()?,
            life: Life::watch()?,
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
            backlog: false,
            held: 0,
            pace: Pace::new(time::now().0, 0),
            crowd: Contention::new(),
            serving: Nanos(0),
            stall: Budget::new(0),
            broken: false,
            withheld: false,
            returns: Returns::new(0, 0),
            server: Server::new()?,
            link: Link::Alone(Nanos(0)),
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
            mirror,
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
            if self.life.is_over(&thread::agents()) {
                thread::exit(self.life.status(0));
            }
            self.crowd.look(Nanos(self.now));
            self.charge();
            self.meet_the_daemon();
            self.bring_wanted();
            self.collect();
            self.answer_program();
            self.answer_mailbox();
            busy = self.is_served() && !self.frozen && self.control.paused.load(Relaxed) == 0 && self.pass();
            if let (Link::Served(fd), true) = (&self.link, core::mem::take(&mut self.ring_daemon)) {
                wire::ring(fd.raw());
            }
            if self.now.saturating_sub(self.counted_at) >= TICK.0 {
                self.counted_at = self.now;
                self.pack();
                self.count();
                self.mirror.show(self.control);
            }
        }
    }

    /// Waits for news and takes note of it.
    pub fn look(&mut self, pause: Nanos) {
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
            let began = time::thread_cpu();
            if let Err(error) = self.server.serve(&self.channel, &self.uffd, BATCH) {
                self.fail(error);
            }
            self.serving = self.serving + time::thread_cpu().since(began);
        }
    }

    pub fn tick(&self) -> Nanos {
        Nanos(self.cold_age() / 8).clamp(Nanos::from_millis(5), TICK)
    }

    fn charge(&mut self) {
        let header = self.channel.header();
        let cpu = time::thread_cpu().0.saturating_add(header.cpu_ns.load(Relaxed));
        let share = self.cpu_share();
        self.pace.charge(self.now, cpu, share);
        self.stall.charge(self.now, header.stall_ns.load(Relaxed));
        let limit = self.config.get(Setting::MaxStall).saturating_mul(BROKEN);
        self.broken = self.stall.headroom(self.now, limit) == 0;
        self.returns.note(self.now, self.counts.evicted, self.counts.soon_back);
    }

    /// Whether more may be set aside: the program has not waited for too long, and there is CPU time to compress it when it
    /// is cold, or in the second after that.
    pub fn may_set_aside(&mut self) -> bool {
        if self.stall.headroom(self.now, self.config.get(Setting::MaxStall)) == 0 {
            self.withheld = true;
            return false;
        }
        let committed = self.held * HANDING_OVER_COST;
        let time = self.cold_age().saturating_add(Nanos::from_secs(1).0);
        self.is_free_of_budget() || self.pace.left() > 0 && committed <= pace::worth(time, self.cpu_share())
    }

    /// Whether there is CPU time to have pages compressed with now.
    pub fn may_hand_over(&self) -> bool {
        self.pace.left() > 0 || self.is_free_of_budget()
    }

    fn is_free_of_budget(&self) -> bool {
        self.is_over_limit() || self.config.get(Setting::MaxCpu) >= NO_LIMIT
    }

    /// The share of a CPU that folding may take, the daemon's part included, in millionths.
    fn cpu_share(&self) -> u64 {
        let limit = self.config.get(Setting::MaxCpu);
        self.returns.allowed(pace::share(limit, self.crowd.has_spare(), self.pace.total()))
    }

    /// What tells which pages are cold, of those that were chosen the ones that an agent can ask.
    pub fn source(&self) -> Kind {
        match Kind::from_number(self.config.get(Setting::Source)) {
            Kind::Writes => Kind::Writes,
            _ => Kind::Probe,
        }
    }

    /// How long pages stay untouched before they are cold, ns.
    pub fn cold_age(&self) -> u64 {
        let cold_age = self.config.get(Setting::ColdAge);
        if self.is_over_limit() {
            cold_age.min(COLD_AGE_OVER_LIMIT)
        } else {
            cold_age
        }
    }

    fn is_over_limit(&self) -> bool {
        let header = self.channel.header();
        let limit = match header.resident_limit.load(Relaxed) {
            0 => u64::MAX,
            limit => limit,
        };
        let limit = limit.min(self.config.get(Setting::ResidentLimit));
        header.resident_bytes.load(Relaxed) + header.store_bytes.load(Relaxed) > limit
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
        let Ok(fd) = door::connect(&self.path[..len]) else { return };
        let hello = Hello { version: VERSION, pages: self.channel.pages() as u64 };
        let fds = [self.memory.raw(), self.uffd.raw_fd()];
        if socket::send(fd.raw(), &hello.bytes(), &fds).is_ok() {
            self.link = Link::Asked(fd);
        }
    }

    /// The socket has news: an answer, a bell, or the end.
    fn hear(&mut self) {
        let (asked, fd) = match &self.link {
            Link::Asked(fd) => (true, fd.raw()),
            Link::Served(fd) => (false, fd.raw()),
            Link::Alone(_) => return,
        };
        // The answer is read by itself: bells may follow it.
        let mut bytes = [0; BELLS];
        let heard = socket::hear(fd, if asked { &mut bytes[..REPLY_LEN] } else { &mut bytes });
        if matches!(heard, Err(Errno::EAGAIN | Errno::EINTR)) || !asked && heard.is_ok_and(|len| len != 0) {
            return;
        }
        let reply = heard.ok().and_then(|len| Reply::parse(&bytes[..len]));
        match (asked, reply) {
            (true, Some(Reply { error: 0, version: VERSION })) => {
                if let Link::Asked(fd) = core::mem::replace(&mut self.link, Link::Alone(Nanos(0))) {
                    self.link = Link::Served(fd);
                }
                self.control.mode.store(Mode::Daemon as u32, Release);
                self.mirror.show(self.control);
                self.mail.set_served(0);
                // What arrived before the daemon looked is there to be found.
                self.ring_daemon = true;
            }
            (asked, reply) => {
                self.link = Link::Alone(time::now() + TICK);
                if !asked {
                    self.take_over();
                } else if let Some(reply) = reply {
                    // Without a reply there was no room for us: we come again.
                    self.mail.set_served(reply.error.max(1));
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
        if self.wanted_seen == count {
            return;
        }
        let began = time::thread_cpu();
        if count.wrapping_sub(self.wanted_seen) > WANTED as u64 {
            self.wanted_seen = count;
            for region in 0..REGIONS {
                for page in 0..self.regions[region].pages {
                    self.bring_if_wanted(region, page);
                }
            }
        }
        while self.wanted_seen != count {
            let at = self.wanted_seen as usize % WANTED;
            let number = self.channel.header().wanted[at].load(Relaxed) as usize;
            let since = Nanos(self.channel.header().wanted_at[at].load(Relaxed));
            self.wanted_seen = self.wanted_seen.wrapping_add(1);
            let place = self.regions.iter().enumerate().find_map(|(n, region)| {
                let page = number.checked_sub(region.first)?;
                (region.exists() && page < region.pages).then_some((n, page))
            });
            if let Some((region, page)) = place {
                if self.bring_if_wanted(region, page) {
                    self.waited(time::now().since(since));
                }
            }
        }
        self.serving = self.serving + time::thread_cpu().since(began);
    }

    /// A thread of the program has waited for so long. A daemon that is broken says anything.
    fn waited(&self, time: Nanos) {
        let header = self.channel.header();
        let time = time.0.min(LONGEST_WAIT.0);
        header.held_ns.record(time);
        header.stall_ns.fetch_add(time, Relaxed);
    }

    /// Whether the page was wanted.
    fn bring_if_wanted(&mut self, region: usize, page: usize) -> bool {
        let entry = self.regions[region].entry(&self.channel, page);
        let wanted = entry.state() == State::HeldWanted && self.is_staged(region, page);
        if wanted {
            let began = time::now();
            let there = self.bring_back(region, page);
            self.channel.header().held_restore_ns.record(there.since(began).0);
            self.counts.second_chance += 1;
            self.regions[region].piece(page / EXTENT_PAGES).wanted_at = self.now;
        }
        wanted
    }

    /// Brings back pages of a range, and waits until whoever is restoring one of them is done.
    pub fn bring_range(&mut self, region: usize, lo: usize, hi: usize) {
        let mut at = lo;
        while at < hi {
            let piece = at / EXTENT_PAGES;
            let (first, last) = self.regions[region].span(piece);
            let end = last.min(hi);
            if self.regions[region].piece(piece).away {
                self.bring_pages(region, at, end);
                // Only this thread has pages leave.
                self.regions[region].piece(piece).away = at != first || end != last;
            }
            at = end;
        }
    }

    fn bring_pages(&mut self, region: usize, lo: usize, hi: usize) {
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
                        self.bring_back(region, page);
                    }
                    _ => {
                        let addr = self.regions[region].addr(page);
                        if let Outcome::Broken(error) =
                            self.server.touch(&self.channel, &self.uffd, addr, true)
                        {
                            self.fail(error);
                        }
                    }
                }
            }
        }
    }

    /// Ends the process: to go on would lose bytes.
    fn fail(&self, error: Errno) -> ! {
        file::say(2, b"memfold: a page cannot be read back; the program must not go on: ");
        file::say(2, error.name().as_bytes());
        file::say(2, b"\n");
        thread::abort_process()
    }
}
