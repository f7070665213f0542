//! One engine: a connection to it while that works, and for how long it is left alone while it does not.
//!
//! What it is not: what is kept there, or a choice among several.

use crate::config;
use crate::connection::Connection;
use crate::spare;
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, ServerError};
use std::time::{Duration, Instant};

/// For how long an engine that did not answer is left alone.
pub const REST: Duration = Duration::from_millis(500);

/// Where one is: host and port.
pub type Place = (String, u16);

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

/// It, and a connection to it while that works.
pub struct Node {
    pub info: ConnectionInfo,
    connection: Option<Connection>,
    /// It has not answered since it was asked last.
    pub away: Option<Away>,
    /// Which one it has named last as where something of its is on its way to.
    pub moving_to: Option<Place>,
}

/// Since when it is, and how that is borne.
pub struct Away {
    pub since: Instant,
    /// For so long it is asked only for what no other one has.
    pub rest: Duration,
}

impl Node {
    /// No connection is made yet.
    pub fn new(info: ConnectionInfo) -> Node {
        Node { info, connection: None, away: None, moving_to: None }
    }

    /// Whether it is to be asked only for what no other one has.
    pub fn rests(&self) -> bool {
        self.away.as_ref().is_some_and(|away| away.since.elapsed() < away.rest)
    }

    /// Asks it, where it is not left alone. One that lets us wait, and goes on so, is left alone for up to `longest`.
    ///
    /// # Errors
    /// What it says, or that it is away.
    pub fn ask<T>(
        &mut self,
        longest: Duration,
        ask: impl Fn(&mut Connection) -> redis::RedisResult<T>,
    ) -> Result<T, Failure> {
        let Node { info, connection, away, moving_to } = self;
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
                *moving_to = named.map(|(host, port)| match host.is_empty() {
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
                let rest = match away {
                    Some(away) if began.elapsed() > REST => (away.rest * 2).min(longest),
                    _ => REST,
                };
                *away = Some(Away { since: Instant::now(), rest });
            }
            failure
        })
    }
}

/// Where one is that is reached so.
pub fn place_of(info: &ConnectionInfo) -> Place {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => (host.clone(), *port),
        _ => (String::new(), 0),
    }
}

/// Whether it is there.
pub fn is_at(info: &ConnectionInfo, at: &Place) -> bool {
    place_of(info) == *at
}

/// The same at another place.
pub fn moved_to(info: &ConnectionInfo, (host, port): &Place) -> ConnectionInfo {
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
fn place_in(said: &ServerError) -> Option<Place> {
    config::split(said.details()?.split_whitespace().nth(1)?).ok()
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
