//! A redis-server of our own on a private socket, and as much of its protocol as the tests speak.
//!
//! What it is not: a client library. Replies are simple, bulk or integers; anything else fails the test.

use crate::run::{program, Server};
use crate::LIMIT;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::{Deref, DerefMut};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A running server and a connection to it; it dereferences to the connection.
#[derive(Debug)]
pub struct Redis {
    server: Server,
    socket: PathBuf,
    client: Client,
}

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

impl Redis {
    /// Starts a server that keeps its files in `directory` and reads `dump.rdb` there, if there is one. Arguments
    /// that `environment` adds stand behind ours, and win.
    ///
    /// # Panics
    /// If it does not answer within a minute.
    pub fn start(directory: &Path, environment: impl FnOnce(&mut Command)) -> Redis {
        let socket = directory.join("socket");
        let mut command = Command::new(program("redis-server", "redis-server"));
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--enable-debug-command", "yes"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(directory);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        environment(&mut command);
        let server = Server(command.spawn().expect("redis-server starts"));
        let end = Instant::now() + LIMIT;
        let mut client = Client::connect(&socket, end);
        while client.ask(&["PING"]) != b"PONG" {
            assert!(Instant::now() < end, "redis-server does not finish loading");
            sleep(Duration::from_millis(50));
        }
        Redis { server, socket, client }
    }

    /// The server's process id.
    pub fn pid(&self) -> u32 {
        self.server.0.id()
    }

    /// A further connection.
    ///
    /// # Panics
    /// If the server is gone.
    pub fn another_client(&self) -> Client {
        Client::connect(&self.socket, Instant::now())
    }

    /// Ends the server as an administrator does: its log is complete then, and no snapshot is written.
    ///
    /// # Panics
    /// If it ends otherwise than by itself with 0, or not within [`LIMIT`].
    pub fn shut_down(mut self) {
        self.client.send(&["SHUTDOWN", "NOSAVE"]);
        let end = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.server.0.try_wait().expect("the server is our child") {
                break status;
            }
            assert!(Instant::now() < end, "redis-server does not end");
            sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "redis-server ended with {status}");
    }
}

impl Deref for Redis {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Redis {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

impl Client {
    fn connect(socket: &Path, end: Instant) -> Client {
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < end, "redis-server does not listen: {error}"),
            }
            sleep(Duration::from_millis(10));
        };
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout can be set");
        Client { stream: BufReader::new(stream) }
    }

    /// Sends a command without reading its reply.
    ///
    /// # Panics
    /// If the server is gone.
    pub fn send(&mut self, words: &[&str]) {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.stream.get_mut().write_all(text.as_bytes()).expect("redis-server reads");
    }

    /// The next reply. An error reply is returned as its text; a missing value as `(nil)`.
    ///
    /// # Panics
    /// If there is none within a minute, or it is of a kind that is not spoken here.
    pub fn receive(&mut self) -> Vec<u8> {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("redis-server answers");
        let line = line.trim_end();
        assert!(!line.is_empty(), "redis-server closed the connection");
        let (kind, rest) = line.split_at(1);
        match (kind, rest.parse::<i64>()) {
            ("$", Ok(-1)) => b"(nil)".to_vec(),
            ("$", Ok(len)) => {
                let mut value = vec![0; len as usize + 2];
                self.stream.read_exact(&mut value).expect("redis-server answers in full");
                value.truncate(len as usize);
                value
            }
            ("+" | "-" | ":", _) => rest.as_bytes().to_vec(),
            _ => panic!("redis-server answered {line:?}"),
        }
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Panics
    /// As `send` and `receive`.
    pub fn ask(&mut self, words: &[&str]) -> Vec<u8> {
        self.send(words);
        self.receive()
    }

    /// Sends many commands, some at a time, and hands each reply to `check` with the number of its command.
    ///
    /// # Panics
    /// As `ask`.
    pub fn pipeline(
        &mut self,
        count: usize,
        command: impl Fn(usize) -> Vec<String>,
        mut check: impl FnMut(usize, &[u8]),
    ) {
        const BATCH: usize = 32;
        for start in (0..count).step_by(BATCH) {
            let batch = start..(start + BATCH).min(count);
            for number in batch.clone() {
                let words = command(number);
                self.send(&words.iter().map(String::as_str).collect::<Vec<_>>());
            }
            for number in batch {
                let reply = self.receive();
                check(number, &reply);
            }
        }
    }

    /// Saves everything to `dump.rdb` in a forked child of the server, and waits for that.
    ///
    /// # Panics
    /// If it fails or takes more than a minute.
    pub fn save_in_background(&mut self) {
        self.ask(&["BGSAVE"]);
        self.wait_for_save();
    }

    /// Waits for a save in the background that has begun.
    ///
    /// # Panics
    /// If it fails or takes more than a minute.
    pub fn wait_for_save(&mut self) {
        self.wait_for_child("rdb_bgsave_in_progress", "rdb_last_bgsave_status");
    }

    /// Rewrites the log of all changes in a forked child of the server, and waits for that.
    ///
    /// # Panics
    /// If it fails or takes more than a minute.
    pub fn rewrite_log(&mut self) {
        self.ask(&["BGREWRITEAOF"]);
        self.wait_for_child("aof_rewrite_in_progress", "aof_last_bgrewrite_status");
    }

    fn wait_for_child(&mut self, busy: &str, status: &str) {
        let end = Instant::now() + LIMIT;
        loop {
            let info = String::from_utf8_lossy(&self.ask(&["INFO", "persistence"])).into_owned();
            if info.contains(&format!("{busy}:0")) {
                assert!(info.contains(&format!("{status}:ok")), "the forked child failed: {info}");
                return;
            }
            assert!(Instant::now() < end, "the forked child is not done: {info}");
            sleep(Duration::from_millis(50));
        }
    }
}
