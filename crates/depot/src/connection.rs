//! A connection to an engine, which has so long to answer a request, of however many commands that is.
//!
//! What it is not: what to do with an engine that has not answered. After an error of the connection itself it is of no use: what comes later on it would be
//! taken for the answer to something else.

use redis::{ConnectionInfo, ConnectionLike, RedisResult, Value};
use std::io;
use std::time::{Duration, Instant};

/// How long an engine may take to answer. A program's own patience is longer.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// A client's connection, which by itself waits as long for each answer of a pipeline when the first has not come.
pub struct Connection(redis::Connection);

impl Connection {
    /// To an engine.
    ///
    /// # Errors
    /// What the client says.
    pub fn to(engine: &ConnectionInfo) -> RedisResult<Connection> {
        plain(engine).map(Connection)
    }
}

/// A connection as the client has it.
///
/// # Errors
/// What the client says.
pub fn plain(engine: &ConnectionInfo) -> RedisResult<redis::Connection> {
    let client = redis::Client::open(engine.clone())?;
    let connection = client.get_connection_with_timeout(PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(connection)
}

impl ConnectionLike for Connection {
    fn req_packed_command(&mut self, command: &[u8]) -> RedisResult<Value> {
        let answers = self.req_packed_commands(command, 0, 1)?;
        Ok(answers.into_iter().next().unwrap_or(Value::Nil))
    }

    fn req_packed_commands(
        &mut self,
        commands: &[u8],
        offset: usize,
        count: usize,
    ) -> RedisResult<Vec<Value>> {
        let until = Instant::now() + PATIENCE;
        self.0.send_packed_command(commands)?;
        let mut answers = Vec::with_capacity(offset + count);
        while answers.len() < offset + count {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.0.set_read_timeout(Some(left))?;
            answers.push(self.0.recv_response()?);
        }
        let asked_for = answers.split_off(offset);
        // The others are a transaction's, to its beginning and to what it was to do.
        answers.into_iter().try_for_each(|answer| answer.extract_error().map(drop))?;
        Ok(asked_for)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }

    fn check_connection(&mut self) -> bool {
        self.0.check_connection()
    }

    fn is_open(&self) -> bool {
        self.0.is_open()
    }
}
