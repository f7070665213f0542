//! The daemon's threads: one that keeps the socket, one that divides the budget, one that answers who asks for the counters.
//!
//! The socket says that there is a daemon, and that there is one alone: nothing is read from it. Programs are found by their control pages.
//!
//! Invariants: none of the threads waits for another, nor for a process; when the daemon is to end it ends, whatever they do.

use crate::budget::{self, Load};
use crate::governed::{Fleet, Governed};
use crate::scrape::{Listener, Scraper};
use crate::tier;
use crate::token::Token;
use crate::{metrics, sandbox};
use memfold_sys::socket;
use memfold_sys::time::{self, Nanos};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

pub use crate::scrape::MetricsAt;

/// How often the budget is divided.
const DIVIDE: Duration = Duration::from_secs(1);
/// How often a thread that waits for connections looks whether it is to end.
const LOOK: Nanos = Nanos::from_millis(50);
/// Connections that are taken before it looks again.
const AT_ONCE: usize = 64;

/// Who may read the counters, and where.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Where.
    pub at: MetricsAt,
    /// What they have to say; `None` for whoever can connect.
    pub token: Option<Token>,
}

/// What the daemon is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its socket; processes of the same user find it there.
    pub socket: PathBuf,
    /// Bytes that all processes together may keep in memory; `None` for no limit.
    pub budget: Option<u64>,
    /// Bytes of the tier that all processes share; `None` for none.
    pub tier: Option<u64>,
}

/// What there is to divide.
#[derive(Clone, Copy)]
struct Given {
    budget: Option<u64>,
    tier: Option<u64>,
}

#[derive(Default)]
struct State {
    /// The processes, as last seen.
    processes: Mutex<Vec<Governed>>,
    divisions: AtomicU64,
}

impl State {
    fn processes(&self) -> MutexGuard<'_, Vec<Governed>> {
        self.processes.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Runs until `stop` is set, and returns within moments. `say` gets a line when the daemon listens, and for each process that comes or goes; `scraper` answers who asks
/// for the counters.
///
/// The process is confined from then on ([`sandbox`]): it should do nothing else, and have no other threads. One of those that are started here
/// may still be about to end when this returns.
///
/// # Errors
/// The socket cannot be made, another daemon listens there, or the kernel does not let the daemon confine itself.
pub fn run(
    options: &Options,
    scraper: Option<Scraper>,
    fleet: Box<dyn Fleet>,
    stop: &'static AtomicBool,
    say: fn(&str),
) -> io::Result<()> {
    let door = listen(&options.socket)?;
    door.set_nonblocking(true)?;
    say(&format!("listening at {}", options.socket.display()));
    sandbox::enter()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot confine itself: {error}")))?;
    let (given, state) = (Given { budget: options.budget, tier: options.tier }, Arc::new(State::default()));
    if let Some(mut scraper) = scraper {
        let state = state.clone();
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                scraper.step(LOOK, || counters(given, &state));
            }
        });
    }
    thread::spawn(move || govern(given, &state, fleet, stop, say));
    while !stop.load(Relaxed) {
        be_seen(&door);
    }
    let _ = fs::remove_file(&options.socket);
    Ok(())
}

/// Lets whoever looks whether there is a daemon see it. Nobody is kept: of a connection that is there is nothing to come.
fn be_seen(door: &UnixListener) {
    let mut poll = [libc::pollfd { fd: door.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    socket::poll_all(&mut poll, LOOK);
    if poll[0].revents == 0 {
        return;
    }
    for _ in 0..AT_ONCE {
        match door.accept() {
            Ok(seen) => drop(seen),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            // Too many descriptors, or one that left at once: the next look is not at once.
            Err(_) => return time::sleep(Nanos::from_millis(10)),
        }
    }
}

/// Makes the socket, 0600. One that nobody listens at any more is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    if let Ok(meta) = fs::symlink_metadata(path) {
        if !meta.file_type().is_socket() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is something that is no socket"));
        }
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, "another daemon listens there"));
        }
        fs::remove_file(path)?;
    }
    // Closed to others from the start: between making it and changing its mode somebody could connect.
    // SAFETY: changes the mask of this process only.
    let mask = unsafe { libc::umask(0o177) };
    let listener = UnixListener::bind(path);
    // SAFETY: as above.
    unsafe { libc::umask(mask) };
    let listener = listener?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Who answers those who ask for counters at that place.
///
/// # Errors
/// Somebody listens there, or nobody may.
pub fn scraper(metrics: &Metrics) -> io::Result<Scraper> {
    let listener = match &metrics.at {
        MetricsAt::Path(path) => Listener::Unix(listen(path)?),
        MetricsAt::Port(address) => Listener::Tcp(TcpListener::bind(address)?),
    };
    Scraper::new(listener, metrics.token.clone())
}

fn counters(given: Given, state: &State) -> String {
    let divisions = state.divisions.load(Relaxed);
    let budget = given.budget.map(|bytes| metrics::Budget { bytes, divisions });
    metrics::text(budget, given.tier, &state.processes())
}

/// Looks at all processes once a second, and says what each may keep, and have in the tier, if there is one of them to divide.
fn govern(given: Given, state: &State, mut fleet: Box<dyn Fleet>, stop: &AtomicBool, say: impl Fn(&str)) {
    let (mut waited, mut known) = (HashMap::new(), HashSet::new());
    while !stop.load(Relaxed) {
        thread::sleep(DIVIDE);
        let mut processes = fleet.look();
        known = told_apart(known, &processes, &say);
        let unlimited = || vec![u64::MAX; processes.len()];
        let limits = given.budget.map_or_else(unlimited, |budget| divide(budget, &processes, &mut waited));
        for (one, limit) in processes.iter_mut().zip(limits) {
            one.load.limit = limit;
        }
        if let Some(size) = given.tier {
            divide_tier(size, &mut processes);
        }
        if given.budget.is_some() || given.tier.is_some() {
            for one in &processes {
                fleet.grant(one.pid, one.load.limit, one.tier.map_or(0, |part| part.limit));
            }
            state.divisions.fetch_add(1, Relaxed);
        }
        *state.processes() = processes;
    }
}

/// Says who came and who left since those that were known, and returns who is known now.
fn told_apart(known: HashSet<u32>, processes: &[Governed], say: impl Fn(&str)) -> HashSet<u32> {
    let now: HashSet<u32> = processes.iter().map(|one| one.pid).collect();
    let sorted = |pids: Vec<u32>| -> Vec<u32> {
        let mut pids = pids;
        pids.sort_unstable();
        pids
    };
    for pid in sorted(now.difference(&known).copied().collect()) {
        say(&format!("process {pid} has come"));
    }
    for pid in sorted(known.difference(&now).copied().collect()) {
        say(&format!("process {pid} has left"));
    }
    now
}

/// New limits, in the order of the processes. `waited` is how long each of them had waited a second ago.
fn divide(budget: u64, processes: &[Governed], waited: &mut HashMap<u32, u64>) -> Vec<u64> {
    let pids: HashSet<u32> = processes.iter().map(|one| one.pid).collect();
    waited.retain(|pid, _| pids.contains(pid));
    let loads: Vec<Load> = processes
        .iter()
        .map(|one| {
            let total = one.load.waited_ns;
            let before = waited.insert(one.pid, total).unwrap_or(total);
            Load { waited_ns: total.saturating_sub(before), ..one.load }
        })
        .collect();
    let budget = budget::under_pressure(budget, budget::pressure().unwrap_or(0.0));
    budget::divide(budget, &loads)
}

/// Says what each may have in the tier.
fn divide_tier(size: u64, processes: &mut [Governed]) {
    let parts: Vec<_> = processes.iter().filter_map(|one| one.tier).collect();
    let limits = tier::divide(size, &parts);
    for (part, limit) in processes.iter_mut().filter_map(|one| one.tier.as_mut()).zip(limits) {
        part.limit = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counters;
    use std::cell::RefCell;

    fn process(pid: u32, resident: u64, waited_ns: u64) -> Governed {
        let load = Load { resident_bytes: resident, evicted_bytes: 1 << 20, waited_ns, limit: u64::MAX };
        Governed { pid, load, tier: None, counters: Counters::default() }
    }

    #[test]
    fn who_comes_and_who_goes_is_said_once() {
        let said = RefCell::new(Vec::new());
        let say = |line: &str| said.borrow_mut().push(line.to_owned());
        let known = told_apart(HashSet::new(), &[process(7, 0, 0), process(5, 0, 0)], say);
        let known = told_apart(known, &[process(7, 0, 0)], say);
        told_apart(known, &[process(7, 0, 0)], say);
        let wanted = ["process 5 has come", "process 7 has come", "process 5 has left"];
        assert_eq!(said.take(), wanted);
    }

    #[test]
    fn what_was_waited_before_the_last_second_does_not_count() {
        let mut waited = HashMap::new();
        let (resident, budget) = (100 << 20, 150 << 20);
        // At first sight nothing is known of either, and of two alike it is the first that gives.
        let old = [process(1, resident, 1 << 40), process(2, resident, 0)];
        divide(budget, &old, &mut waited);
        // In this second it is the second that waits.
        let limits =
            divide(budget, &[process(1, resident, 1 << 40), process(2, resident, 1 << 30)], &mut waited);
        assert!(limits[0] < resident && limits[1] == u64::MAX, "{limits:?}");
        // Who has gone is forgotten: a later process with its number waited for nothing yet.
        divide(budget, &[process(2, resident, 1 << 30)], &mut waited);
        assert_eq!(waited.len(), 1);
    }

    #[test]
    fn connections_are_taken_and_ended_whatever_they_say() {
        use std::io::{Read, Write};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let door = listen(&path).unwrap();
        door.set_nonblocking(true).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // The connection by which the second one found the first is taken too.
        let mut all: Vec<_> = (0..AT_ONCE).map(|_| UnixStream::connect(&path).unwrap()).collect();
        let _ = all[0].write_all(&[0x5A; 100]);
        be_seen(&door);
        be_seen(&door);
        for stream in &mut all {
            assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
        }
        // One that nobody listens at any more is no hindrance, and what is no socket is.
        drop(door);
        drop(listen(&path).unwrap());
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }
}
