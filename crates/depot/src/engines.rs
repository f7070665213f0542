//! Engines: where a cluster is put, and where it is looked for.
//!
//! A segment of a file is a hash on the engine, `memfold:FILE:SEGMENT`, whose fields are the numbers of clusters. `FILE` is 128 random bits, and no two
//! clusters of a file have one number, so what an engine that was away has kept is never taken for something newer. Each hash has an expiry, which is
//! renewed while it is wanted.
//!
//! Of several engines each segment has its own order; its copies are on the first of them that could be reached. To read, all are asked in that order.

use anyhow::{bail, Context, Result};
use memfold_pager::tier::choice::Engines as Choice;
use memfold_pager::tier::wire::Name;
use redis::{
    Connection, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, RedisConnectionInfo,
    RedisError, ServerErrorKind,
};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long an engine may take to answer. A program's own patience is longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// For how long an engine that did not answer is left alone.
const REST: Duration = Duration::from_millis(500);
const DEFAULT_PORT: u16 = 6379;

/// Which engines, and how they are used. Shared by all connections.
#[derive(Clone, Debug)]
pub struct Config {
    nodes: Vec<ConnectionInfo>,
    copies: usize,
    expire: Duration,
}

/// What an engine could not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// Too few of them could be reached: it is worth trying again.
    Away,
    /// They take no more.
    Full,
    /// They do not let us.
    Refused,
}

impl Config {
    /// From what a user chose. Reads the file with the password.
    ///
    /// # Errors
    /// An address or that file makes no sense, or others may read it.
    pub fn new(choice: &Choice<'_>) -> Result<Config> {
        let (user, password) =
            choice.auth.map(|file| read_auth(Path::new(file))).transpose()?.unwrap_or_default();
        let node = |address: &str| -> Result<ConnectionInfo> {
            let (host, port) = split(address)?;
            let address = match choice.by_tls() {
                false => ConnectionAddr::Tcp(host, port),
                true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            };
            let mut how = RedisConnectionInfo::default();
            if let Some(password) = &password {
                how = how.set_password(password);
            }
            if let Some(user) = &user {
                how = how.set_username(user);
            }
            Ok(address.into_connection_info()?.set_redis_settings(how))
        };
        let nodes = choice.addresses().map(node).collect::<Result<_>>()?;
        Ok(Config { nodes, copies: choice.copies, expire: Duration::from_nanos(choice.expire.0) })
    }

    /// For how long an engine keeps what nobody says is wanted.
    pub fn expire(&self) -> Duration {
        self.expire
    }

    /// Whether one engine's end would lose what is kept.
    pub fn is_single(&self) -> bool {
        self.copies < 2
    }

    /// Looks whether every engine is there, lets us in, and will not drop what it keeps.
    ///
    /// # Errors
    /// What hinders that, with the remedy.
    pub fn check(&self) -> Result<()> {
        for node in &self.nodes {
            let name = node.addr().to_string();
            let mut connection = connect(node).with_context(|| format!("cannot use the engine at {name}"))?;
            let info: String = redis::cmd("INFO")
                .query(&mut connection)
                .with_context(|| format!("cannot use the engine at {name}"))?;
            let value = |key: &str| {
                info.lines()
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
                    .unwrap_or("")
                    .trim()
                    .to_owned()
            };
            if value("cluster_enabled") == "1" {
                bail!("the engine at {name} is one of a cluster, which moves keys about: name engines that are not");
            }
            let policy = value("maxmemory_policy");
            if value("maxmemory") != "0" && !policy.is_empty() && policy != "noeviction" {
                bail!(
                    "the engine at {name} drops keys when it is full ({policy}), and with them the program's memory: \
                     CONFIG SET maxmemory-policy noeviction there"
                );
            }
        }
        Ok(())
    }
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

fn connect(node: &ConnectionInfo) -> redis::RedisResult<Connection> {
    let client = redis::Client::open(node.clone())?;
    let connection = client.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}

/// Connections to all engines, of one thread.
pub struct Engines {
    config: Config,
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    connection: Option<Connection>,
    /// It is left alone until then.
    rests: Option<Instant>,
}

impl Engines {
    /// None is made yet.
    pub fn new(config: Config) -> Engines {
        let nodes = config.nodes.iter().map(|_| Node::default()).collect();
        Engines { config, nodes }
    }

    /// Keeps a cluster on as many engines as were asked for.
    ///
    /// # Errors
    /// Fewer have it.
    pub fn put(&mut self, file: Name, segment: u32, number: u32, bytes: &[u8]) -> Result<(), Failure> {
        let key = key(file, segment);
        let expire = self.config.expire.as_millis() as i64;
        let (mut kept, mut failure) = (0, Failure::Away);
        for node in self.order(file, segment) {
            let mut pipe = redis::pipe();
            pipe.atomic().hset(&key, number, bytes).ignore().pexpire(&key, expire).ignore();
            match self.ask(node, |connection| pipe.query::<()>(connection)) {
                Ok(()) => kept += 1,
                // Full is more worth telling than away.
                Err(Failure::Away) => {}
                Err(other) => failure = other,
            }
            if kept == self.config.copies {
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
        let key = key(file, segment);
        let mut failure = None;
        for node in self.order(file, segment) {
            let mut ask = redis::cmd("HGET");
            ask.arg(&key).arg(number);
            match self.ask(node, |connection| ask.query::<Option<Vec<u8>>>(connection)) {
                Ok(Some(bytes)) => return Ok(Some(bytes)),
                Ok(None) => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(None), Err)
    }

    /// Has all engines drop segments of a file. What cannot be asked drops them when they expire. Whether all could.
    pub fn forget(&mut self, file: Name, segments: &[u32]) -> bool {
        self.all(segments, |pipe, segment| {
            pipe.unlink(key(file, segment)).ignore();
        })
    }

    /// Has all engines keep segments of a file for longer. Whether all could be asked.
    pub fn renew(&mut self, file: Name, segments: &[u32]) -> bool {
        let expire = self.config.expire.as_millis() as i64;
        self.all(segments, |pipe, segment| {
            pipe.pexpire(key(file, segment), expire).ignore();
        })
    }

    fn all(&mut self, segments: &[u32], each: impl Fn(&mut redis::Pipeline, u32)) -> bool {
        let mut all = true;
        for node in 0..self.nodes.len() {
            for some in segments.chunks(500) {
                let mut pipe = redis::pipe();
                some.iter().for_each(|&segment| each(&mut pipe, segment));
                all &= self.ask(node, |connection| pipe.query::<()>(connection)).is_ok();
            }
        }
        all
    }

    /// The numbers of the engines, in the order of a segment.
    fn order(&self, file: Name, segment: u32) -> impl Iterator<Item = usize> {
        let count = self.nodes.len();
        let first = (usize::from(file[0]) + segment as usize) % count;
        (0..count).map(move |n| (first + n) % count)
    }

    fn ask<T>(
        &mut self,
        node: usize,
        ask: impl FnOnce(&mut Connection) -> redis::RedisResult<T>,
    ) -> Result<T, Failure> {
        let Node { connection, rests } = &mut self.nodes[node];
        if rests.is_some_and(|until| Instant::now() < until) {
            return Err(Failure::Away);
        }
        let result = match connection {
            Some(connection) => ask(connection),
            None => connect(&self.config.nodes[node]).and_then(|new| ask(connection.insert(new))),
        };
        result.map_err(|error| {
            let failure = failure_of(&error);
            if failure == Failure::Away {
                // What comes later on it would be taken for the answer to something else.
                (*connection, *rests) = (None, Some(Instant::now() + REST));
            }
            failure
        })
    }
}

fn key(file: Name, segment: u32) -> String {
    format!("memfold:{:032x}:{segment}", u128::from_be_bytes(file))
}

fn failure_of(error: &RedisError) -> Failure {
    match error.kind() {
        ErrorKind::AuthenticationFailed => Failure::Refused,
        _ => match error.code() {
            Some("OOM") => Failure::Full,
            Some("NOAUTH" | "NOPERM" | "WRONGPASS" | "WRONGTYPE" | "MOVED") => Failure::Refused,
            _ => match error.kind() {
                ErrorKind::Server(ServerErrorKind::ExecAbort) => Failure::Full,
                _ => Failure::Away,
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
