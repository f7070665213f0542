//! The daemon's threads: one that lets processes in, one for each process, one that divides the budget, one that answers
//! who asks for the counters.
//!
//! Invariants: none of them waits for another, nor for a process; when the daemon is to end it ends, whatever they do.

use crate::account::Account;
use crate::budget::{self, Load};
use crate::channel::Channel;
use crate::door::Door;
use crate::governed::{Fleet, Governed};
use crate::peer::{Peer, Shared, Trouble};
use crate::quota::{self, Ledger};
use crate::scrape::{Listener, Scraper};
use crate::token::Token;
use crate::wire::{Reply, VERSION};
use crate::{guard, metrics, sandbox};
use memfold_sys::socket::{self, Credentials};
use memfold_sys::time::{self, Nanos};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

pub use crate::scrape::MetricsAt;

/// How often the budget is divided.
const DIVIDE: Duration = Duration::from_secs(1);
/// How often a thread that waits for connections looks whether it is to end.
const LOOK: Nanos = Nanos::from_millis(50);
/// How long the threads have to leave their processes in order when the daemon is to end. Those that do not are left behind.
const LEAVE: Nanos = Nanos::from_millis(300);
/// What a thread that serves a process needs of a stack, bytes.
const STACK: usize = 256 << 10;

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
    /// Where the counters can be read; nowhere by default.
    pub metrics: Option<Metrics>,
}

struct State {
    ledger: Arc<Ledger>,
    peers: Mutex<Vec<Arc<Shared>>>,
    governed: Mutex<Vec<Governed>>,
    divisions: AtomicU64,
    /// Threads that greet or serve.
    threads: AtomicUsize,
    /// Of them those that greet.
    greeting: AtomicUsize,
}

impl State {
    fn new() -> State {
        State {
            ledger: Ledger::new(quota::make_room_for_descriptors()),
            peers: Mutex::default(),
            governed: Mutex::default(),
            divisions: AtomicU64::new(0),
            threads: AtomicUsize::new(0),
            greeting: AtomicUsize::new(0),
        }
    }

    /// The processes that are served now.
    fn peers(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        let mut peers = self.peers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        peers.retain(|shared| shared.connected.load(Acquire));
        peers
    }

    /// The processes that fold themselves under the budget, as last seen.
    fn governed(&self) -> MutexGuard<'_, Vec<Governed>> {
        self.governed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Runs until `stop` is set, then within moments leaves every process to itself and returns; the threads of processes that keep theirs
/// from ending are left behind, so the caller's process should end. `say` gets a line for each process that comes or goes.
///
/// The process is confined from then on ([`sandbox`]): it should do nothing else, and have no other threads.
///
/// # Errors
/// The socket cannot be made, another daemon listens there, or the kernel does not let the daemon confine itself.
pub fn run(
    options: &Options,
    fleet: Box<dyn Fleet>,
    stop: &'static AtomicBool,
    say: fn(&str),
) -> io::Result<()> {
    // Before the door, so that who finds the daemon there can also ask for its counters.
    let scraper = options.metrics.as_ref().map(scraper).transpose()?;
    let mut door = Door::new(listen(&options.socket)?)?;
    let state = Arc::new(State::new());
    guard::install()?;
    sandbox::enter()
        .map_err(|error| io::Error::new(error.kind(), format!("cannot confine itself: {error}")))?;
    if let Some(mut scraper) = scraper {
        let (budget, state) = (options.budget, state.clone());
        thread::spawn(move || {
            while !stop.load(Relaxed) {
                scraper.step(LOOK, || counters(budget, &state));
            }
        });
    }
    if options.budget.is_some() || options.metrics.is_some() {
        let (budget, state) = (options.budget, state.clone());
        thread::spawn(move || govern(budget, &state, fleet, stop));
    }
    while !stop.load(Relaxed) {
        let room = quota::GREETINGS - state.greeting.load(Acquire).min(quota::GREETINGS);
        for (socket, who) in door.wait(LOOK, room, |socket, who| is_own(socket, who, say)) {
            admit(socket, who, &state, stop, say);
        }
    }
    let paths = options.metrics.iter().filter_map(|metrics| match &metrics.at {
        MetricsAt::Path(path) => Some(path),
        MetricsAt::Port(_) => None,
    });
    paths.chain([&options.socket]).for_each(|path| drop(fs::remove_file(path)));
    let until = time::now() + LEAVE;
    while state.threads.load(Acquire) != 0 && time::now() < until {
        time::sleep(Nanos::from_millis(5));
    }
    Ok(())
}

/// Whether a connection is one of the daemon's own user; who is not is told.
fn is_own(socket: &UnixStream, who: Credentials, say: fn(&str)) -> bool {
    // In another PID namespace: nothing could be known of it.
    let own = who.pid != 0 && who.uid == memfold_sys::thread::effective_user();
    if !own {
        say(&format!("process {} of user {} was refused", who.pid, who.uid));
        let _ = socket::send(
            socket.as_raw_fd(),
            &Reply { version: VERSION, error: libc::EACCES as u32 }.bytes(),
            &[],
        );
    }
    own
}

/// Has a thread of its own greet and serve a process.
fn admit(socket: UnixStream, who: Credentials, state: &Arc<State>, stop: &'static AtomicBool, say: fn(&str)) {
    state.threads.fetch_add(1, AcqRel);
    state.greeting.fetch_add(1, AcqRel);
    let pid = who.pid;
    let thread = thread::Builder::new().name(format!("peer-{pid}")).stack_size(STACK);
    let served = thread.spawn({
        let state = state.clone();
        move || {
            let peer = Peer::greet(socket, who, &state.ledger);
            state.greeting.fetch_sub(1, AcqRel);
            match peer {
                Ok(peer) => {
                    state.peers().push(peer.shared());
                    say(&format!("process {pid} is served"));
                    match peer.serve(stop) {
                        Ok(()) => say(&format!("process {pid} has left")),
                        Err(trouble) => say(&format!("process {pid}: {trouble}")),
                    }
                    // Its channel, and all that it has in memory, goes with the last who knows of it.
                    drop(state.peers());
                }
                Err(Trouble::Left) => {}
                Err(trouble) => say(&format!("process {pid} was refused: {trouble}")),
            }
            state.threads.fetch_sub(1, AcqRel);
        }
    });
    if served.is_err() {
        state.greeting.fetch_sub(1, AcqRel);
        state.threads.fetch_sub(1, AcqRel);
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

fn counters(budget: Option<u64>, state: &State) -> String {
    let divisions = state.divisions.load(Relaxed);
    let budget = budget.map(|bytes| metrics::Budget { bytes, divisions });
    metrics::text(budget, &state.peers(), &state.governed())
}

/// Looks at all processes once a second, and says what each may keep if there is a budget.
fn govern(budget: Option<u64>, state: &State, mut fleet: Box<dyn Fleet>, stop: &AtomicBool) {
    let mut waited = HashMap::new();
    while !stop.load(Relaxed) {
        thread::sleep(DIVIDE);
        let mut governed = fleet.look();
        if let Some(budget) = budget {
            let limits = divide(budget, &state.peers(), &governed, &mut waited);
            for (one, limit) in governed.iter_mut().zip(limits) {
                one.load.limit = limit;
                fleet.grant(one.pid, limit);
            }
            state.divisions.fetch_add(1, Relaxed);
        }
        *state.governed() = governed;
    }
}

/// Sets the limits of the processes that are served, and returns those of the others. `waited` is how long each of them had
/// waited a second ago.
fn divide(
    budget: u64,
    served: &[Arc<Shared>],
    governed: &[Governed],
    waited: &mut HashMap<u32, u64>,
) -> Vec<u64> {
    let both = served.iter().map(|shared| (shared.pid, load_of(&shared.account, shared.channel())));
    let (pids, mut loads): (Vec<u32>, Vec<Load>) =
        both.chain(governed.iter().map(|one| (one.pid, one.load))).unzip();
    waited.retain(|pid, _| pids.contains(pid));
    for (pid, load) in pids.iter().zip(&mut loads) {
        let total = load.waited_ns;
        load.waited_ns = total.saturating_sub(waited.insert(*pid, total).unwrap_or(total));
    }
    let budget = budget::under_pressure(budget, budget::pressure().unwrap_or(0.0));
    let mut limits = budget::divide(budget, &loads);
    let rest = limits.split_off(served.len());
    for (shared, limit) in served.iter().zip(limits) {
        shared.account.set_limit(shared.channel().header(), limit);
    }
    rest
}

fn load_of(account: &Account, channel: &Channel) -> Load {
    let sizes = account.sizes(channel);
    Load {
        resident_bytes: sizes.resident + sizes.stored,
        evicted_bytes: sizes.evicted,
        waited_ns: account.waited_ns(channel.header()),
        limit: account.limit(),
    }
}
