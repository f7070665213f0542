//! redis-server with JSON values, alone and with snapshots.

use super::place::{Place, Started};
use super::subject::{bursts, Hot, Subject};
use super::Kind;
use crate::redis::resp::Client;
use crate::redis::{self, values};
use anyhow::{ensure, Context, Result};
use memfold_stats::Rng;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Bytes that a record takes in the server, about.
const EACH: u64 = 1900;
/// One key in so many stays in use.
const HOT_ONE_IN: u64 = 20;
/// With snapshots, one request in so many writes; the value stays what it was.
const WRITE_ONE_IN: u64 = 20;
/// How long the server may take to answer for the first time, and a snapshot to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// The keys that stay in use: runs of keys that were set one after another.
#[derive(Clone, Copy)]
struct InUse {
    count: u64,
    run: u64,
}

impl InUse {
    fn of(records: u64, run: u64) -> InUse {
        let run = run.clamp(1, (records / HOT_ONE_IN).max(1));
        InUse { count: (records / (HOT_ONE_IN * run)).max(1) * run, run }
    }

    /// The number of the `at`th of them.
    fn number(self, at: u64) -> u64 {
        at / self.run * self.run * HOT_ONE_IN + at % self.run
    }
}

/// A running server.
pub(super) struct Server {
    started: Started,
    socket: PathBuf,
    records: u64,
    in_use: InUse,
    saves: bool,
    rng: Rng,
}

impl Server {
    /// Starts it on a private socket.
    ///
    /// # Errors
    /// When it does not answer.
    pub(super) fn start(place: &Place<'_>, saves: bool) -> Result<Server> {
        let socket = place.dir.join("socket");
        let (path, dir) = (text(&socket)?, text(place.dir)?);
        let save = if saves { "60 1000" } else { "" };
        let program = Kind::Redis.path()?;
        let arguments = [
            ["--port", "0"],
            ["--save", save],
            ["--appendonly", "no"],
            ["--daemonize", "no"],
            ["--unixsocket", path],
            ["--unixsocketperm", "700"],
            ["--dir", dir],
        ];
        let mut command = place.command(&program, arguments.as_flattened());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let started = place.spawn(command)?;
        let records = (place.bytes / EACH).max(HOT_ONE_IN);
        let in_use = InUse::of(records, place.together);
        let mut server = Server { started, socket, records, in_use, saves, rng: Rng::new(1) };
        let end = Instant::now() + PATIENCE;
        while server.ask(&[b"PING"]).is_err() {
            ensure!(
                server.started.runs()? && Instant::now() < end,
                "redis-server does not answer: {}",
                server.started.last_words()
            );
            sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    fn client(&self) -> Result<Client> {
        Client::connect(&self.socket).context("redis-server does not listen")
    }

    fn ask(&self, words: &[&[u8]]) -> Result<Vec<u8>> {
        self.client()?.ask(words)
    }

    /// Waits until the snapshot that is being written is, and finds it good.
    fn saved(&self) -> Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            let info = self.ask(&[b"INFO", b"persistence"])?;
            let info = String::from_utf8_lossy(&info);
            if info.contains("rdb_bgsave_in_progress:0") {
                ensure!(info.contains("rdb_last_bgsave_status:ok"), "the snapshot failed");
                return Ok(());
            }
            ensure!(Instant::now() < end, "the snapshot is not done after {} s", PATIENCE.as_secs());
            sleep(Duration::from_millis(2));
        }
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is not UTF-8: set TMPDIR", path.display()))
}

impl Subject for Server {
    fn started(&mut self) -> &mut Started {
        &mut self.started
    }

    fn load(&mut self) -> Result<u64> {
        redis::fill(&mut self.client()?, self.records, |_| Ok(()))?;
        if self.saves {
            // One that began by itself while the records came may be under way.
            self.saved()?;
            self.ask(&[b"BGSAVE"])?;
        }
        Ok(self.records)
    }

    fn spoil(&mut self) -> Result<()> {
        self.ask(&[b"SET", values::key(self.records / 2).as_bytes(), b"{}"]).map(drop)
    }

    fn hot(&mut self, time: Duration) -> Result<Hot> {
        let (mut client, mut value) = (self.client()?, Vec::new());
        bursts(time, |until, times| {
            while Instant::now() < until {
                let number = self.in_use.number(self.rng.below(self.in_use.count));
                let key = values::key(number);
                let writes = self.saves && self.rng.below(WRITE_ONE_IN) == 0;
                if writes {
                    value.clear();
                    values::append(number, &mut value);
                }
                let sent = Instant::now();
                if writes {
                    client.ask(&[b"SET", key.as_bytes(), &value])?;
                } else {
                    client.ask(&[b"GET", key.as_bytes()])?;
                }
                times.push(sent.elapsed().as_nanos() as u64);
            }
            Ok(())
        })
    }

    /// A snapshot, until it is written.
    fn collect(&mut self) -> Result<Option<Duration>> {
        // One that began by itself may be under way, and is another.
        self.saved()?;
        let began = Instant::now();
        self.ask(&[b"BGSAVE"])?;
        self.saved()?;
        Ok(Some(began.elapsed()))
    }

    fn verify(&mut self) -> Result<u64> {
        if self.saves {
            self.saved()?;
        }
        redis::verify(&mut self.client()?, self.records, |_| Ok(()))
    }

    fn leave(&mut self) -> Result<()> {
        let mut client = self.client()?;
        client.queue(&[b"SHUTDOWN", b"NOSAVE"]);
        client.flush()
    }
}
