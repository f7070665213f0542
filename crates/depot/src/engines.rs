//! Engines: where a cluster is put, and where it is looked for.
//!
//! A segment of a file is a hash on the engine, `memfold:FILE:SEGMENT`, whose fields are the numbers of clusters. `FILE` is 128 random bits, and no two
//! clusters of a file have one number, so what an engine that was away has kept is never taken for something newer. Each hash has an expiry, which is
//! renewed while it is wanted.
//!
//! Of several engines each segment has its own order; its copies are on the first of them that could be reached. To read, all are asked in that order.
//!
//! In a cluster the key says which node has it. So a segment has several keys there, `memfold:FILE:SEGMENT:WAY`, and its copies are under the first of them that
//! lie on different nodes which could be reached. To read, all keys are asked for in their order.

use crate::connection::{self, Connection};
use crate::slots::{self, Range};
use crate::spare;
use anyhow::{bail, Context, Result};
use memfold_pager::tier::choice::Engines as Choice;
use memfold_pager::tier::wire::{Name, NameText};
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisConnectionInfo, RedisError,
    ServerError, Value,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// For how long an engine that did not answer is left alone.
const REST: Duration = Duration::from_millis(500);
/// For how long at most one that goes on so is given nothing, where others have what it has.
const LONGEST_REST: Duration = Duration::from_secs(30);
/// Each expiry is renewed so many times before it comes.
pub const RENEWALS: u32 = 4;
const DEFAULT_PORT: u16 = 6379;
/// Keys that a segment can have in a cluster: of nodes that have as much each, one in two to the fifteenth of these is all on one.
const WAYS: usize = 16;

/// Which engines, and how they are used. Shared by all connections.
#[derive(Clone, Debug)]
pub struct Config {
    nodes: Vec<ConnectionInfo>,
    /// Where nobody has said, it is two where there are two of them, of a cluster also where one is named.
    copies: Option<usize>,
    expire: Duration,
    /// Whether the engines are nodes of a cluster, of which there may be more.
    cluster: bool,
}

/// What an engine could not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Too few of them could be reached, or do it now: it is worth trying again.
    Away,
    /// They take no more.
    Full,
    /// This process has as many descriptors as it may have, or the system has.
    Crowded,
    /// They do not let us.
    Refused,
    /// Another node of the cluster has it by now.
    Moved,
    /// It is on its way to another node of the cluster, which is to be asked, as long as it is, for each key.
    Moving,
}

impl Config {
    /// From what a user chose. Reads the file with the password. Whether the engines are a cluster's is what [`Config::check`] has found.
    ///
    /// # Errors
    /// An address or that file makes no sense, or others may read it.
    pub fn new(choice: &Choice<'_>, cluster: bool) -> Result<Config> {
        let (user, password) =
            choice.auth.map(|file| read_auth(Path::new(file))).transpose()?.unwrap_or_default();
        let node = |address: &str| -> Result<ConnectionInfo> {
            let (host, port) = split(address)?;
            let address = match choice.by_tls() {
                false => ConnectionAddr::Tcp(host, port),
                true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            };
            // It has nothing to say of itself, and one question fewer to wait for.
            let mut how = RedisConnectionInfo::default().set_skip_set_lib_name();
            if let Some(password) = &password {
                how = how.set_password(password);
            }
            if let Some(user) = &user {
                how = how.set_username(user);
            }
            Ok(address.into_connection_info()?.set_redis_settings(how))
        };
        let nodes = choice.addresses().map(node).collect::<Result<_>>()?;
        let expire = Duration::from_nanos(choice.expire.0);
        Ok(Config { nodes, copies: choice.copies, expire, cluster })
    }

    /// For how long an engine keeps what nobody says is wanted.
    pub fn expire(&self) -> Duration {
        self.expire
    }

    /// Whether one engine's end would lose what is kept.
    pub fn is_single(&self) -> bool {
        self.copies() < 2
    }

    /// On how many engines everything is kept.
    pub fn copies(&self) -> usize {
        self.copies.unwrap_or(self.nodes.len().min(2))
    }

    /// The same, as [`Config::check`] has found it.
    #[must_use]
    pub fn with_copies(self, copies: usize) -> Config {
        Config { copies: Some(copies), ..self }
    }

    /// A client's connection to the first of them, made as all are.
    ///
    /// # Errors
    /// What the client says.
    pub fn connect_to_first(&self) -> redis::RedisResult<redis::Connection> {
        connection::plain(&self.nodes[0])
    }

    /// Whether the engines are nodes of a cluster.
    pub fn is_cluster(&self) -> bool {
        self.cluster
    }

    /// Looks whether every engine is there, lets us in, and will not drop what it keeps; and whether they are a cluster's, whose other nodes are looked at too.
    ///
    /// # Errors
    /// What hinders that, with the remedy.
    pub fn check(&mut self) -> Result<()> {
        let in_cluster = self.nodes.iter().map(look_at).collect::<Result<Vec<_>>>()?;
        self.cluster = in_cluster.contains(&true);
        if self.cluster && in_cluster.contains(&false) {
            bail!("some of these engines are nodes of a cluster, and others stand alone: name those of one kind");
        }
        if self.cluster {
            return self.check_cluster();
        }
        if self.nodes.len() < self.copies() {
            bail!("copies={}: so many engines are named: {}", self.copies(), self.nodes.len());
        }
        Ok(())
    }

    fn check_cluster(&mut self) -> Result<()> {
        let mut engines = Engines::new(self.clone());
        engines.find_nodes();
        let name = self.nodes[0].addr();
        let nodes: Vec<&ConnectionInfo> = engines.nodes.iter().map(|node| &node.info).collect();
        if engines.ranges.is_empty() {
            bail!("the cluster at {name} has given no slots to its nodes: redis-cli --cluster create");
        }
        for node in &nodes {
            look_at(node)?;
        }
        let copies = *self.copies.get_or_insert(nodes.len().min(2));
        if nodes.len() < copies {
            bail!("copies={copies}: the cluster at {name} has {} nodes that keep keys", nodes.len());
        }
        let alone = engines.ranges.iter().any(|range| !range.has_replica);
        if copies > 1 && alone && engines.all_stop_with_one() {
            bail!(
                "the cluster at {name} stops when one of its nodes does, and a copy would be of no use: \
                 CONFIG SET cluster-require-full-coverage no on each, or give each a replica"
            );
        }
        Ok(())
    }
}

/// Whether the engine is a node of a cluster, if it will do.
fn look_at(node: &ConnectionInfo) -> Result<bool> {
    let name = node.addr().to_string();
    let mut connection = Connection::to(node).with_context(|| format!("cannot use the engine at {name}"))?;
    let info: String = redis::cmd("INFO")
        .query(&mut connection)
        .with_context(|| format!("cannot use the engine at {name}"))?;
    let value = |key: &str| {
        let of = |line: &str| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(of).unwrap_or_default()
    };
    let policy = value("maxmemory_policy");
    if value("maxmemory") != "0" && !policy.is_empty() && policy != "noeviction" {
        bail!(
            "the engine at {name} drops keys when it is full ({policy}), and with them the program's memory: \
             CONFIG SET maxmemory-policy noeviction there"
        );
    }
    Ok(value("cluster_enabled") == "1")
}

/// User and password from a file: `PASSWORD`, or `USER PASSWORD`, in its first line.
fn read_auth(file: &Path) -> Result<(Option<String>, Option<String>)> {
    use std::os::unix::fs::MetadataExt;
    let shown = file.display();
    let mode = std::fs::metadata(file).with_context(|| format!("cannot read {shown}"))?.mode();
    if mode & 0o077 != 0 {
        bail!("{shown} has a password, and others may read it: chmod 600 {shown}");
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {shown}"))?;
    let mut words = text.lines().next().unwrap_or("").split_whitespace().map(str::to_owned);
    match (words.next(), words.next(), words.next()) {
        (Some(password), None, None) => Ok((None, Some(password))),
        (Some(user), Some(password), None) => Ok((Some(user), Some(password))),
        _ => bail!("{shown}: a line `PASSWORD` or `USER PASSWORD` is needed"),
    }
}

fn split(address: &str) -> Result<(String, u16)> {
    let (host, port) = match address.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().with_context(|| format!("{address}: no such port"))?)
        }
        _ => (address, DEFAULT_PORT),
    };
    Ok((host.trim_matches(['[', ']']).to_owned(), port))
}

/// Connections to all engines, of one thread.
pub struct Engines {
    config: Config,
    nodes: Vec<Node>,
    /// Which node of a cluster has what, and when that was asked last.
    ranges: Vec<Range>,
    asked: Option<Instant>,
    /// Which node was named last by one that something is on its way from.
    moving_to: Option<(String, u16)>,
}

struct Node {
    info: ConnectionInfo,
    connection: Option<Connection>,
    /// It has not answered since it was asked last.
    away: Option<Away>,
}

struct Away {
    since: Instant,
    /// For so long it is asked only for what no other one has.
    rest: Duration,
}

impl Node {
    fn new(info: ConnectionInfo) -> Node {
        Node { info, connection: None, away: None }
    }

    fn rests(&self) -> bool {
        self.away.as_ref().is_some_and(|away| away.since.elapsed() < away.rest)
    }
}

impl Engines {
    /// None is made yet.
    pub fn new(config: Config) -> Engines {
        let nodes = config.nodes.iter().cloned().map(Node::new).collect();
        Engines { config, nodes, ranges: Vec::new(), asked: None, moving_to: None }
    }

    /// Keeps a cluster on as many engines as were asked for.
    ///
    /// # Errors
    /// Fewer have it.
    pub fn put(&mut self, file: Name, segment: u32, number: u32, bytes: &[u8]) -> Result<(), Failure> {
        let expire = self.config.expire.as_millis() as i64;
        let (mut kept, mut failure) = (Vec::new(), Failure::Away);
        self.know_nodes();
        for way in self.ways(file, segment) {
            let Some(key) = self.key(file, segment, way) else { continue };
            if self.nodes[key.node].rests() {
                continue;
            }
            if kept.contains(&place_of(&self.nodes[key.node].info)) {
                continue;
            }
            let (text, is_cluster) = (key.text.clone(), self.config.cluster);
            let hset = |connection: &mut Connection, moving: bool| {
                let mut pipe = redis::pipe();
                if !is_cluster {
                    // A node that has it no more says so before anything is done, and of a transaction says less.
                    pipe.atomic();
                }
                permit(&mut pipe, moving).hset(&text, number, bytes).ignore();
                permit(&mut pipe, moving).pexpire(&text, expire).ignore();
                pipe.query::<()>(connection)
            };
            match self.ask_for(key, hset) {
                Ok(((), place)) if kept.contains(&place) => {}
                Ok(((), place)) => kept.push(place),
                // Full is more worth telling than away.
                Err(Failure::Away) => {}
                Err(other) => failure = other,
            }
            if kept.len() == self.config.copies() {
                return Ok(());
            }
        }
        Err(failure)
    }

    /// Fetches a cluster; `None` where no engine has it, and all were asked.
    ///
    /// # Errors
    /// One that could not be asked may have it.
    pub fn get(&mut self, file: Name, segment: u32, number: u32) -> Result<Option<Vec<u8>>, Failure> {
        let mut failure = None;
        self.know_nodes();
        let mut ways: Vec<usize> = self.ways(file, segment).collect();
        // Who has answered is asked first.
        let is_away = |key: Option<Key>| key.is_none_or(|key| self.nodes[key.node].away.is_some());
        if self.nodes.iter().any(|node| node.away.is_some()) {
            ways.sort_by_cached_key(|&way| is_away(self.key(file, segment, way)));
        }
        for way in ways {
            let Some(key) = self.key(file, segment, way) else {
                failure = Some(Failure::Away);
                continue;
            };
            let text = key.text.clone();
            let hget = |connection: &mut Connection, moving: bool| {
                let mut pipe = redis::pipe();
                permit(&mut pipe, moving).hget(&text, number);
                pipe.query::<(Option<Vec<u8>>,)>(connection)
            };
            match self.ask_for(key, hget) {
                Ok(((Some(bytes),), _)) => return Ok(Some(bytes)),
                Ok(((None,), _)) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// All copies that there may be of segments of a file.
    pub fn copies_of(&self, file: Name, segments: &[u32]) -> Copies {
        let ways = |&segment: &u32| self.ways(file, segment).map(move |way| (segment, way));
        Copies { file, ways: segments.iter().flat_map(ways).collect() }
    }

    /// Has engines drop copies, and leaves those that it could not ask for, which are dropped when they expire. Whether there are none.
    pub fn forget(&mut self, copies: &mut Copies) -> bool {
        self.all(copies, |pipe, key| {
            pipe.unlink(key).ignore();
        })
    }

    /// Has engines keep copies for longer, and leaves those that it could not ask for. Whether there are none.
    pub fn renew(&mut self, copies: &mut Copies) -> bool {
        let expire = self.config.expire.as_millis() as i64;
        self.all(copies, |pipe, key| {
            pipe.pexpire(key, expire).ignore();
        })
    }

    fn all(&mut self, copies: &mut Copies, each: impl Fn(&mut redis::Pipeline, &str)) -> bool {
        self.know_nodes();
        let mut left = Vec::new();
        // What each node is asked for.
        let mut asked: Vec<Vec<(u32, usize, String)>> = self.nodes.iter().map(|_| Vec::new()).collect();
        for (segment, way) in copies.ways.drain(..) {
            match self.key(copies.file, segment, way) {
                Some(key) if !self.nodes[key.node].rests() => asked[key.node].push((segment, way, key.text)),
                _ => left.push((segment, way)),
            }
        }
        for (node, asked) in asked.iter().enumerate() {
            for some in asked.chunks(500) {
                let mut pipe = redis::pipe();
                some.iter().for_each(|(.., key)| each(&mut pipe, key));
                if self.ask(node, |connection| pipe.query::<()>(connection)).is_err() {
                    left.extend(some.iter().map(|&(segment, way, _)| (segment, way)));
                }
            }
        }
        copies.ways = left;
        if !copies.ways.is_empty() && self.config.cluster {
            self.find_nodes();
        }
        copies.ways.is_empty()
    }

    /// The ways in which a segment can be kept, in its order: by which engine, or in a cluster by which key.
    fn ways(&self, file: Name, segment: u32) -> impl Iterator<Item = usize> + use<> {
        let count = if self.config.cluster { WAYS } else { self.nodes.len() };
        let first = (usize::from(file[0]) + segment as usize) % count;
        (0..count).map(move |n| (first + n) % count)
    }

    /// What it is called that way, and who has it. `None` where that cannot be said now.
    fn key(&self, file: Name, segment: u32, way: usize) -> Option<Key> {
        let text = format!("memfold:{}:{segment}", NameText(file));
        if !self.config.cluster {
            return Some(Key { text, node: way });
        }
        let text = format!("{text}:{way}");
        let node = self.owner(&text)?;
        Some(Key { text, node })
    }

    /// Finds the nodes of a cluster if none of them is known to have anything. Nodes have other numbers afterwards.
    fn know_nodes(&mut self) {
        if self.config.cluster && self.ranges.is_empty() {
            self.find_nodes();
        }
    }

    /// The node of a cluster that has a key, as far as is known.
    fn owner(&self, key: &str) -> Option<usize> {
        let slot = slots::of(key);
        let range = self.ranges.iter().find(|range| (range.slots.0..=range.slots.1).contains(&slot))?;
        self.nodes.iter().position(|node| is_at(&node.info, &range.at))
    }

    /// Asks the nodes of a cluster that are known, and those that were named, which there are and what each has. Not again within a moment.
    fn find_nodes(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < REST) {
            return;
        }
        self.asked = Some(Instant::now());
        for named in self.config.nodes.clone() {
            if !self.nodes.iter().any(|node| node.info.addr() == named.addr()) {
                self.nodes.push(Node::new(named));
            }
        }
        let mut numbers: Vec<usize> = (0..self.nodes.len()).collect();
        numbers.sort_by_key(|&number| self.nodes[number].away.is_some());
        for number in numbers {
            let mut ask = redis::cmd("CLUSTER");
            ask.arg("SLOTS");
            let Ok(answer) = self.ask(number, |connection| ask.query::<Value>(connection)) else { continue };
            let ranges = slots::parse(&answer, &place_of(&self.nodes[number].info).0);
            if !ranges.is_empty() {
                self.take_ranges(ranges);
                return;
            }
        }
    }

    /// From now on the nodes are those that have these.
    fn take_ranges(&mut self, ranges: Vec<Range>) {
        let mut before = std::mem::take(&mut self.nodes);
        for range in &ranges {
            if self.nodes.iter().any(|node| is_at(&node.info, &range.at)) {
                continue;
            }
            let known = before.iter().position(|node| is_at(&node.info, &range.at));
            self.nodes.push(match known {
                Some(known) => before.swap_remove(known),
                None => Node::new(moved_to(&self.config.nodes[0], &range.at)),
            });
        }
        self.ranges = ranges;
    }

    /// Whether any node says that the cluster stops as a whole when a part of it does.
    fn all_stop_with_one(&mut self) -> bool {
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg("cluster-require-full-coverage");
        let says = |engines: &mut Engines, node: usize| {
            let answer = engines.ask(node, |connection| ask.query::<Vec<String>>(connection));
            answer.is_ok_and(|words| words.get(1).is_some_and(|word| word == "yes"))
        };
        (0..self.nodes.len()).any(|node| says(self, node))
    }

    /// Asks the engine that has a key, and the one that has it now where it has moved to another node, or is on its way. Who that was. `ask` is told
    /// whether it is on its way.
    fn ask_for<T>(
        &mut self,
        key: Key,
        ask: impl Fn(&mut Connection, bool) -> redis::RedisResult<T>,
    ) -> Result<(T, (String, u16)), Failure> {
        let (mut node, mut answer) = (key.node, self.ask(key.node, |connection| ask(connection, false)));
        let is_elsewhere =
            |answer: &Result<T, Failure>| matches!(answer, Err(Failure::Moved | Failure::Away));
        if self.config.cluster && is_elsewhere(&answer) {
            // Another has taken its place, or will have in a moment.
            self.find_nodes();
            node = self.owner(&key.text).ok_or(Failure::Away)?;
            answer = self.ask(node, |connection| ask(connection, false));
        }
        if let (Err(Failure::Moving), Some(at)) = (&answer, self.moving_to.take()) {
            node = self.node_at(&at);
            answer = self.ask(node, |connection| ask(connection, true));
        }
        match answer {
            Err(Failure::Moved | Failure::Moving) => Err(Failure::Away),
            answer => Ok((answer?, place_of(&self.nodes[node].info))),
        }
    }

    /// The node there, which may be one that has nothing yet.
    fn node_at(&mut self, at: &(String, u16)) -> usize {
        self.nodes.iter().position(|node| is_at(&node.info, at)).unwrap_or_else(|| {
            self.nodes.push(Node::new(moved_to(&self.config.nodes[0], at)));
            self.nodes.len() - 1
        })
    }

    fn ask<T>(
        &mut self,
        node: usize,
        ask: impl Fn(&mut Connection) -> redis::RedisResult<T>,
    ) -> Result<T, Failure> {
        let grows = self.config.copies() > 1;
        let most = LONGEST_REST.min(self.config.expire / RENEWALS);
        let Node { info, connection, away } = &mut self.nodes[node];
        if away.as_ref().is_some_and(|away| away.since.elapsed() < REST) {
            return Err(Failure::Away);
        }
        let began = Instant::now();
        let had_worked = connection.is_some();
        let mut result = match connection {
            Some(connection) => ask(connection),
            None => Connection::to(info).and_then(|new| ask(connection.insert(new))),
        };
        // It was closed while nobody used it: then it is found so at once.
        let is_closed = |error: &RedisError| said_by(error).is_none() && !error.is_timeout();
        if had_worked && result.as_ref().is_err_and(is_closed) {
            *connection = None;
            result = Connection::to(info).and_then(|new| ask(connection.insert(new)));
        }
        if result.is_ok() {
            *away = None;
        }
        result.map_err(|error| {
            let said = said_by(&error);
            let failure = failure_of(&error, said.as_ref());
            if failure == Failure::Moving {
                let named = said.as_ref().and_then(place_in);
                // Who does not know its own name is where the other one is.
                self.moving_to = named.map(|(host, port)| match host.is_empty() {
                    true => (place_of(info).0, port),
                    false => (host, port),
                });
            }
            if said.is_none() {
                // What comes later on it would be taken for the answer to something else.
                *connection = None;
            }
            if failure == Failure::Away && connection.is_none() {
                if spare::is_none_left() {
                    return Failure::Crowded;
                }
                // One that lets us wait is asked ever more seldom, where others have what it has.
                let rest = match away {
                    Some(away) if grows && began.elapsed() > REST => (away.rest * 2).min(most),
                    _ => REST,
                };
                *away = Some(Away { since: Instant::now(), rest });
            }
            failure
        })
    }
}

/// Copies of segments of a file, wherever they are.
pub struct Copies {
    file: Name,
    /// Each by its segment, and the way in which that is kept.
    ways: Vec<(u32, usize)>,
}

/// What a segment is called, and the number of the engine that has it.
struct Key {
    text: String,
    node: usize,
}

/// Before a command on a key that is on its way there, which a node executes only if it is told so just before.
fn permit(pipe: &mut redis::Pipeline, moving: bool) -> &mut redis::Pipeline {
    if moving {
        pipe.cmd("ASKING").ignore();
    }
    pipe
}

fn place_of(info: &ConnectionInfo) -> (String, u16) {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
        _ => (String::new(), 0),
    }
}

fn is_at(info: &ConnectionInfo, at: &(String, u16)) -> bool {
    place_of(info) == *at
}

/// The same at another place.
fn moved_to(info: &ConnectionInfo, (host, port): &(String, u16)) -> ConnectionInfo {
    let mut address = info.addr().clone();
    if let ConnectionAddr::Tcp(to, at) | ConnectionAddr::TcpTls { host: to, port: at, .. } = &mut address {
        (*to, *at) = (host.clone(), *port);
    }
    info.clone().set_addr(address)
}

/// What an engine has answered that did not do what it was asked to; `None` where it has not answered. Of several commands it is that to the first that
/// it did not execute: a transaction then says less, and only that it was given up.
fn said_by(error: &RedisError) -> Option<ServerError> {
    error.clone().into_server_errors().and_then(|all| all.first().map(|(_, said)| said.clone()))
}

/// The place that it names: `SLOT HOST:PORT`.
fn place_in(said: &ServerError) -> Option<(String, u16)> {
    split(said.details()?.split_whitespace().nth(1)?).ok()
}

fn failure_of(error: &RedisError, said: Option<&ServerError>) -> Failure {
    match said.map(ServerError::code) {
        Some("OOM") => Failure::Full,
        Some("NOAUTH" | "NOPERM" | "WRONGPASS" | "WRONGTYPE") => Failure::Refused,
        Some("MOVED") => Failure::Moved,
        Some("ASK" | "TRYAGAIN") => Failure::Moving,
        None if error.kind() == ErrorKind::AuthenticationFailed => Failure::Refused,
        // It starts, follows another one, or cannot write what it has to its disk: none of that lasts.
        _ => Failure::Away,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{self, config, Fake};
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, OnceLock};

    const FILE: Name = [1; 16];
    const OK: &str = "+OK\r\n";

    fn said(text: &str) -> Option<String> {
        Some(format!("{text}\r\n"))
    }

    /// Two nodes that have a half each, and answer anything else in this way; with their ports.
    fn halves(answer: impl Fn(usize, &str, [u16; 2]) -> fake::Answer + Clone + Send + 'static) -> [Fake; 2] {
        let ports = Arc::new(OnceLock::<[u16; 2]>::new());
        let nodes = [0, 1].map(|number| {
            let (ports, answer) = (ports.clone(), answer.clone());
            Fake::start(move |words| match &words[0][..] {
                "CLUSTER" => Some(fake::halves(*ports.get().unwrap())),
                word => answer(number, word, *ports.get().unwrap()),
            })
        });
        ports.set(nodes.each_ref().map(|node| node.port)).unwrap();
        nodes
    }

    #[test]
    fn a_cluster_that_is_found_late_has_as_many_nodes_as_it_says() {
        let ports = Arc::new(OnceLock::new());
        let (known, mut asked) = (ports.clone(), 0);
        let first = Fake::start(move |words| {
            asked += usize::from(words[0] == "CLUSTER");
            match &words[0][..] {
                // It takes so long that it may be asked again at once.
                "CLUSTER" if asked == 1 => {
                    std::thread::sleep(REST);
                    said("-LOADING not yet")
                }
                "CLUSTER" => Some(fake::halves(*known.get().unwrap())),
                _ => said(":1"),
            }
        });
        let second = Fake::start(|_| said(":1"));
        ports.set([first.port, second.port]).unwrap();
        let mut engines = Engines::new(config(&[&first], true, ""));
        let mut copies = engines.copies_of(FILE, &[0, 1]);
        assert!(!engines.forget(&mut copies), "nobody could be asked");
        assert!(engines.forget(&mut copies));
        assert!(second.asked().contains(&"UNLINK".to_owned()));
    }

    #[test]
    fn a_key_that_is_on_its_way_is_asked_for_where_it_goes() {
        let nodes = halves(|number, word, ports| match (number, word) {
            (0, "ASKING") => said("+OK"),
            (0, "HGET") => said("$1\r\nx"),
            (0, _) => said(":1"),
            _ => said(&format!("-ASK 9000 127.0.0.1:{}", ports[0])),
        });
        let mut engines = Engines::new(config(&[&nodes[0]], true, ",copies=1"));
        let of_second = (0..).find(|&segment| {
            engines.know_nodes();
            let way = engines.ways(FILE, segment).next().unwrap();
            engines.key(FILE, segment, way).unwrap().node == 1
        });
        let segment = of_second.unwrap();
        engines.put(FILE, segment, 0, b"x").unwrap();
        assert_eq!(nodes[0].asked(), ["CLUSTER", "ASKING", "HSET", "ASKING", "PEXPIRE"]);
        assert_eq!(engines.get(FILE, segment, 0), Ok(Some(b"x".to_vec())));
        assert_eq!(nodes[0].asked(), ["ASKING", "HGET"]);
    }

    #[test]
    fn a_connection_that_was_closed_while_it_was_idle_is_made_anew_at_once() {
        let mut count = 0;
        let engine = Fake::start(move |_| {
            count += 1;
            // As an engine with `timeout`, after every two answers.
            (count % 3 != 0).then(|| "$1\r\nx\r\n".into())
        });
        let mut engines = Engines::new(config(&[&engine], false, ""));
        for _ in 0..6 {
            assert_eq!(engines.get(FILE, 0, 0), Ok(Some(b"x".to_vec())));
        }
    }

    #[test]
    fn an_engine_that_lets_us_wait_is_asked_ever_more_seldom_where_another_has_what_it_has() {
        let [silent, other] = [false, true].map(|answers| {
            Fake::start(move |words| match (answers, &words[0][..]) {
                (false, _) => loop {
                    std::thread::park();
                },
                (true, "HGET") => said("$1\r\nx"),
                (true, "MULTI") => said("+OK"),
                (true, "EXEC") => said("*2\r\n:1\r\n:1"),
                (true, _) => said("+QUEUED"),
            })
        });
        let mut engines = Engines::new(config(&[&silent, &other], false, ""));
        // In whose order the silent one is the first.
        let segment = (0..).find(|&segment| engines.ways(FILE, segment).next() == Some(0)).unwrap();
        let is_kept = Ok(Some(b"x".to_vec()));
        let later = |engines: &mut Engines| {
            let away = engines.nodes[0].away.as_mut().unwrap();
            away.since -= REST;
            away.rest
        };
        assert_eq!(engines.get(FILE, segment, 0), is_kept);
        assert_eq!(silent.asked(), ["HGET"]);
        assert_eq!(later(&mut engines), REST);
        assert_eq!(engines.get(FILE, segment, 0), is_kept);
        assert_eq!(engines.put(FILE, segment, 0, b"x"), Err(Failure::Away), "there are no two");
        assert_eq!(silent.asked(), ["MULTI"], "a touch has not asked it");
        assert_eq!(later(&mut engines), 2 * REST);
        assert_eq!(engines.put(FILE, segment, 0, b"x"), Err(Failure::Away));
        assert_eq!(silent.asked(), [""; 0], "it is left alone for longer");
    }

    #[test]
    fn an_engine_that_falls_silent_is_waited_for_once_and_not_for_each_answer() {
        let mut asked = 0;
        let engine = Fake::start(move |_| {
            asked += 1;
            // As one that is stopped, or that is behind a network that is cut.
            match asked {
                1 => said(":1"),
                _ => loop {
                    std::thread::park();
                },
            }
        });
        let mut engines = Engines::new(config(&[&engine], false, ""));
        let [mut one, mut ten] = [1, 10].map(|count| engines.copies_of(FILE, &Vec::from_iter(0..count)));
        assert!(engines.renew(&mut one));
        let began = Instant::now();
        assert!(!engines.renew(&mut ten));
        assert!(began.elapsed() < 5 * connection::PATIENCE, "it has waited for each");
    }

    #[test]
    fn what_one_engine_has_done_it_is_not_asked_for_again_while_another_is_away() {
        let is_back = Arc::new(AtomicBool::new(false));
        let [here, away] = [Arc::new(AtomicBool::new(true)), is_back.clone()]
            .map(|answers| Fake::start(move |_| answers.load(SeqCst).then(|| ":1\r\n".into())));
        let mut engines = Engines::new(config(&[&here, &away], false, ""));
        let mut copies = engines.copies_of(FILE, &[0, 1]);
        assert!(!engines.renew(&mut copies));
        assert_eq!(here.asked(), ["PEXPIRE", "PEXPIRE"]);
        assert!(!engines.renew(&mut copies));
        is_back.store(true, SeqCst);
        engines.nodes[1].away = None;
        away.asked();
        assert!(engines.renew(&mut copies));
        assert_eq!(away.asked(), ["PEXPIRE", "PEXPIRE"]);
        assert_eq!(here.asked(), [""; 0], "it has done that");
    }

    #[test]
    fn what_an_engine_says_is_told_as_what_it_is_of_a_cluster_and_of_one_alone() {
        let put = |cluster: bool, says: &'static str| {
            let answer = move |word: &str| match word {
                "MULTI" => Some(OK.into()),
                "EXEC" => said("-EXECABORT Transaction discarded because of previous errors."),
                "HSET" => said(says),
                _ => said("+QUEUED"),
            };
            let nodes = halves(move |_, word, _| answer(word));
            let mut engines = Engines::new(config(&[&nodes[0]], cluster, ",copies=1"));
            let failure = engines.put(FILE, 0, 0, b"x").unwrap_err();
            assert_eq!(
                engines.put(FILE, 0, 0, b"x"),
                Err(failure),
                "it has answered, and can be asked again"
            );
            failure
        };
        for cluster in [false, true] {
            assert_eq!(put(cluster, "-OOM command not allowed"), Failure::Full);
            assert_eq!(put(cluster, "-NOPERM no"), Failure::Refused);
            assert_eq!(put(cluster, "-LOADING a dump"), Failure::Away);
            assert_eq!(put(cluster, "-READONLY a replica"), Failure::Away);
            assert_eq!(put(cluster, "-MISCONF no disk"), Failure::Away);
        }
    }

    #[test]
    fn an_address_has_a_host_and_a_port_or_the_usual_one() {
        assert_eq!(split("a:1").unwrap(), ("a".into(), 1));
        assert_eq!(split("a").unwrap(), ("a".into(), DEFAULT_PORT));
        assert_eq!(split("[::1]:7").unwrap(), ("::1".into(), 7));
        assert_eq!(split("[::1]").unwrap(), ("::1".into(), DEFAULT_PORT));
        assert!(split("a:x").is_err());
    }

    #[test]
    fn a_password_comes_from_a_file_that_others_cannot_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("auth");
        let with = |text: &str, mode: u32| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            read_auth(&file)
        };
        assert_eq!(with("secret\n", 0o600).unwrap(), (None, Some("secret".into())));
        assert_eq!(with("me secret\nmore", 0o400).unwrap(), (Some("me".into()), Some("secret".into())));
        assert!(with("", 0o600).unwrap_err().to_string().contains("USER PASSWORD"));
        assert!(with("secret", 0o644).unwrap_err().to_string().contains("chmod 600"));
        assert!(read_auth(Path::new("/nowhere")).is_err());
    }
}
