//! The daemon's threads: one that lets processes in, one for each process, one that divides the budget, one that answers
//! who asks for the counters.

use crate::budget::{self, Load};
use crate::governed::{Fleet, Governed};
use crate::metrics;
use crate::peer::{Peer, Shared, Trouble};
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

/// Most processes at a time.
pub const MOST_PEERS: usize = 256;
/// How often the budget is divided.
const DIVIDE: Duration = Duration::from_secs(1);
/// How often a thread that waits for connections looks whether it is to end.
const LOOK: Duration = Duration::from_millis(50);

/// Where the counters can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// A Unix socket, 0600.
    Path(PathBuf),
    /// A port of the loopback interface.
    Port(SocketAddr),
}

impl std::str::FromStr for MetricsAt {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAt, String> {
        if text.starts_with('/') {
            return Ok(MetricsAt::Path(text.into()));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(MetricsAt::Port(address)),
            _ => Err(format!(
                "{text:?}: an absolute path or a loopback address such as 127.0.0.1:9273 is needed"
            )),
        }
    }
}

/// What the daemon is to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its socket; processes of the same user find it there.
    pub socket: PathBuf,
    /// Bytes that all processes together may keep in memory; `None` for no limit.
    pub budget: Option<u64>,
    /// Where the counters can be read; nowhere by default.
    pub metrics: Option<MetricsAt>,
}

#[derive(Default)]
struct State {
    peers: Mutex<Vec<(u32, Arc<Shared>)>>,
    governed: Mutex<Vec<Governed>>,
    threads: AtomicUsize,
}

impl State {
    /// The processes that are served now.
    fn peers(&self) -> MutexGuard<'_, Vec<(u32, Arc<Shared>)>> {
        let mut peers = self.peers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        peers.retain(|(_, shared)| shared.connected.load(Acquire));
        peers
    }

    /// The processes that fold themselves under the budget, as last seen.
    fn governed(&self) -> MutexGuard<'_, Vec<Governed>> {
        self.governed.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Runs until `stop` is set. `say` gets a line for each process that comes or goes.
///
/// # Errors
/// The socket cannot be made, or another daemon listens there.
pub fn run(
    options: &Options,
    fleet: Box<dyn Fleet>,
    stop: &'static AtomicBool,
    say: fn(&str),
) -> io::Result<()> {
    let listener = listen(&options.socket)?;
    let state = Arc::new(State::default());
    let mut helpers = Vec::new();
    if let Some(at) = &options.metrics {
        helpers.push(answer(at, options.budget, state.clone(), stop)?);
    }
    if options.budget.is_some() || options.metrics.is_some() {
        let (budget, state) = (options.budget, state.clone());
        helpers.push(thread::spawn(move || govern(budget, &state, fleet, stop)));
    }
    listener.set_nonblocking(true)?;
    while !stop.load(Relaxed) {
        match listener.accept() {
            Ok((socket, _)) => admit(socket, &state, stop, say),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK),
            // Too many descriptors, or a process that left at once.
            Err(_) => thread::sleep(LOOK),
        }
    }
    let _ = fs::remove_file(&options.socket);
    helpers.into_iter().for_each(|helper| drop(helper.join()));
    while state.threads.load(Acquire) != 0 {
        thread::sleep(LOOK);
    }
    Ok(())
}

fn admit(socket: UnixStream, state: &Arc<State>, stop: &'static AtomicBool, say: fn(&str)) {
    let Ok(credentials) = sys::socket::peer(socket.as_raw_fd()) else { return };
    if credentials.pid == 0 {
        return;
    }
    // SAFETY: always succeeds.
    if credentials.uid != unsafe { libc::geteuid() } {
        say(&format!("process {} of user {} was refused", credentials.pid, credentials.uid));
        return;
    }
    if state.threads.fetch_add(1, AcqRel) >= MOST_PEERS {
        state.threads.fetch_sub(1, AcqRel);
        say(&format!("process {} was refused: {MOST_PEERS} are served", credentials.pid));
        return;
    }
    let (pid, state) = (credentials.pid, state.clone());
    // Without blocking: a process that does not greet waits by itself.
    let served = thread::Builder::new().name(format!("peer-{pid}")).spawn({
        let state = state.clone();
        move || {
            match Peer::greet(socket) {
                Ok(peer) => {
                    state.peers().push((pid, peer.shared()));
                    say(&format!("process {pid} is served"));
                    match peer.serve(stop) {
                        Ok(()) => say(&format!("process {pid} has left")),
                        Err(trouble) => say(&format!("process {pid}: {trouble}")),
                    }
                }
                Err(Trouble::Left) => {}
                Err(trouble) => say(&format!("process {pid} was refused: {trouble}")),
            }
            state.threads.fetch_sub(1, AcqRel);
        }
    });
    if served.is_err() {
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
        }
        *state.governed() = governed;
    }
}

/// Sets the limits of the processes that are served, and returns those of the others. `waited` is how long each of them had
/// waited a second ago.
fn divide(
    budget: u64,
    served: &[(u32, Arc<Shared>)],
    governed: &[Governed],
    waited: &mut HashMap<u32, u64>,
) -> Vec<u64> {
    let both = served.iter().map(|(pid, shared)| (*pid, load_of(shared)));
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
    for ((_, shared), limit) in served.iter().zip(limits) {
        shared.channel().header().resident_limit.store(limit, Relaxed);
    }
    rest
}

fn load_of(shared: &Shared) -> Load {
    let header = shared.channel().header();
    let most = (shared.channel().pages() * sys::PAGE_SIZE) as u64;
    Load {
        // Nobody has more than its channel can hold.
        resident_bytes: header.resident_bytes.load(Relaxed).min(most)
            + header.store_bytes.load(Relaxed).min(most),
        evicted_bytes: header.evicted_bytes.load(Relaxed).min(most),
        waited_ns: header.stall_ns.load(Relaxed),
        limit: match header.resident_limit.load(Relaxed) {
            0 => u64::MAX,
            limit => limit,
        },
    }
}

/// Answers every connection with the counters, as a web server would.
fn answer(
    at: &MetricsAt,
    budget: Option<u64>,
    state: Arc<State>,
    stop: &'static AtomicBool,
) -> io::Result<thread::JoinHandle<()>> {
    type Accept = Box<dyn Fn() -> io::Result<Box<dyn Connection>> + Send>;
    let accept: Accept = match at {
        MetricsAt::Path(path) => {
            let listener = listen(path)?;
            listener.set_nonblocking(true)?;
            Box::new(move || Ok(Box::new(listener.accept()?.0)))
        }
        MetricsAt::Port(address) => {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Box::new(move || Ok(Box::new(listener.accept()?.0)))
        }
    };
    let path = if let MetricsAt::Path(path) = at { Some(path.clone()) } else { None };
    Ok(thread::spawn(move || {
        while !stop.load(Relaxed) {
            match accept() {
                // Whoever asks and does not read is forgotten.
                Ok(mut connection) => {
                    let text = metrics::text(budget, &state.peers(), &state.governed());
                    drop(connection.answer(&text));
                }
                Err(_) => thread::sleep(LOOK),
            }
        }
        path.map(fs::remove_file);
    }))
}

/// Somebody who asks for the counters.
trait Connection: Read + Write {
    fn set_patience(&self) -> io::Result<()>;

    fn answer(&mut self, text: &str) -> io::Result<()> {
        self.set_patience()?;
        // The request says nothing that matters.
        let _ = self.read(&mut [0; 1024])?;
        write!(
            self,
            "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n{text}",
            text.len()
        )
    }
}

/// How long somebody who asks for the counters may take.
const PATIENCE: Option<Duration> = Some(Duration::from_millis(500));

impl Connection for UnixStream {
    fn set_patience(&self) -> io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(PATIENCE)?;
        self.set_write_timeout(PATIENCE)
    }
}

impl Connection for std::net::TcpStream {
    fn set_patience(&self) -> io::Result<()> {
        self.set_nonblocking(false)?;
        self.set_read_timeout(PATIENCE)?;
        self.set_write_timeout(PATIENCE)
    }
}
