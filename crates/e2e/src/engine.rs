//! Engines in the network for tests of tiers: redis-servers that listen on a port, are killed and come back, and a network of one's own that can be cut.

use crate::command_line::scratch;
use crate::redis::Redis;
use crate::{wait_until, LIMIT};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::AsRawFd;
use tempfile::TempDir;

/// An engine that listens on a port, with its files in a directory.
#[derive(Debug)]
pub struct Engine {
    /// Where it listens on this machine.
    pub port: u16,
    directory: TempDir,
    redis: Option<Redis>,
}

impl Default for Engine {
    fn default() -> Self {
        Engine::new()
    }
}

impl Engine {
    /// One that does not run yet.
    ///
    /// # Panics
    /// Where no port is free.
    pub fn new() -> Engine {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        Engine { port: port.expect("a port is free").port(), directory: scratch(), redis: None }
    }

    /// One that runs with these further options.
    pub fn start(options: &[&str]) -> Engine {
        let mut engine = Engine::new();
        engine.start_again(options);
        engine
    }

    /// So many that are a cluster, each with its part of all keys, and these further options.
    ///
    /// # Panics
    /// If they do not find each other within a minute.
    pub fn start_cluster(count: usize, options: &[&str]) -> Vec<Engine> {
        Engine::start_cluster_by("--port", count, options)
    }

    /// The same, with the option by which they listen at their ports.
    ///
    /// # Panics
    /// As above.
    pub fn start_cluster_by(port: &str, count: usize, options: &[&str]) -> Vec<Engine> {
        const SLOTS: usize = 16384;
        let begin = |number: usize| {
            // What they say to each other goes by a port of its own.
            let (mut engine, bus) = (Engine::new(), Engine::new().port);
            let bus = bus.to_string();
            let own = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-port", &bus];
            engine.start_by(port, &[&own, options].concat());
            let [first, last] = [number * SLOTS / count, (number + 1) * SLOTS / count - 1];
            let epoch = (number + 1).to_string();
            assert_eq!(engine.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]), "OK");
            let slots = ["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()];
            assert_eq!(engine.ask(&slots), "OK");
            (engine, bus)
        };
        let mut begun: Vec<(Engine, String)> = (0..count).map(begin).collect();
        let (first, bus) = (begun[0].0.port.to_string(), begun[0].1.clone());
        for (engine, _) in &mut begun[1..] {
            assert_eq!(engine.ask(&["CLUSTER", "MEET", "127.0.0.1", &first, &bus]), "OK");
        }
        for (engine, _) in &mut begun {
            wait_until(LIMIT, "the nodes find each other", || {
                let info = engine.ask(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.contains(&format!("cluster_known_nodes:{count}"))
            });
        }
        begun.into_iter().map(|(engine, _)| engine).collect()
    }

    /// Starts it, with what it has in its files.
    pub fn start_again(&mut self, options: &[&str]) {
        self.start_by("--port", options);
    }

    fn start_by(&mut self, option: &str, options: &[&str]) {
        let port = self.port.to_string();
        self.redis = Some(Redis::start(self.directory.path(), |command| {
            command.args([option, &port]).args(options);
        }));
    }

    /// `HOST:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// What it answers.
    ///
    /// # Panics
    /// If it does not run.
    pub fn ask(&mut self, words: &[&str]) -> String {
        String::from_utf8_lossy(&self.redis.as_mut().expect("it runs").ask(words)).into_owned()
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// If it does not run.
    pub fn signal(&self, signal: i32) {
        // SAFETY: a child of ours that was not waited for.
        unsafe { libc::kill(self.redis.as_ref().expect("it runs").pid() as i32, signal) };
    }

    /// Ends it as a crash does.
    pub fn kill(&mut self) {
        self.redis = None;
    }

    /// How many keys it has.
    ///
    /// # Panics
    /// If it does not run.
    pub fn keys(&mut self) -> usize {
        self.ask(&["DBSIZE"]).parse().expect("a number")
    }
}

/// Gives this thread, and what it starts from now on, a network of its own, in which only the loopback is. False where that is not permitted.
pub fn enter_own_network() -> bool {
    // SAFETY: the network of this thread alone.
    let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    if entered {
        set_loopback(true);
    }
    entered
}

/// Has the loopback of this thread's network up or down.
///
/// # Panics
/// If the kernel refuses.
pub fn set_loopback(up: bool) {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket can be made");
    // SAFETY: zeros are a request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = if up { libc::IFF_UP as i16 } else { 0 };
    // SAFETY: a socket, and a request that is whole.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}
