//! A small client for redis-server: pipelined GET and SET over a Unix socket (the RESP protocol,
//! version 2).

use anyhow::{bail, Context};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long a server may take for one answer before its user gives up.
const PATIENCE: Duration = Duration::from_secs(20);

/// Most bytes of a value, which redis itself bounds so (`proto-max-bulk-len`).
const LONGEST: usize = 512 << 20;

/// A connection.
#[derive(Debug)]
pub struct Client {
    reader: BufReader<UnixStream>,
    requests: Vec<u8>,
    line: Vec<u8>,
}

impl Client {
    /// Connects to the socket.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(socket: &Path) -> anyhow::Result<Client> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client {
            reader: BufReader::with_capacity(256 << 10, stream),
            requests: Vec::new(),
            line: Vec::new(),
        })
    }

    /// Adds a request to those that wait to be sent.
    pub fn queue(&mut self, words: &[&[u8]]) {
        // Writing to a vector cannot fail.
        let _ = write!(self.requests, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.requests, "${}\r\n", word.len());
            self.requests.extend_from_slice(word);
            self.requests.extend_from_slice(b"\r\n");
        }
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// The server is gone.
    pub fn flush(&mut self) -> anyhow::Result<()> {
        self.reader.get_mut().write_all(&self.requests).context("redis-server does not listen any more")?;
        self.requests.clear();
        Ok(())
    }

    /// Reads one answer; its bytes are appended to `out`.
    ///
    /// # Errors
    /// The server is gone, refuses, or has no such key.
    pub fn answer(&mut self, out: &mut Vec<u8>) -> anyhow::Result<()> {
        self.line.clear();
        self.reader.read_until(b'\n', &mut self.line).context("redis-server does not answer")?;
        let line = self.line.trim_ascii_end();
        match line.split_first() {
            Some((b'+' | b':', text)) => out.extend_from_slice(text),
            Some((b'$', digits)) => {
                let len: i64 = std::str::from_utf8(digits)?.parse()?;
                let Ok(len) = usize::try_from(len) else { bail!("redis-server has lost a key") };
                if len > LONGEST {
                    bail!("redis-server announces a value of {len} bytes, and none can have more than {LONGEST}");
                }
                let start = out.len();
                out.resize(start + len + 2, 0);
                self.reader.read_exact(&mut out[start..])?;
                out.truncate(start + len);
            }
            Some((b'-', text)) => bail!("redis-server refuses: {}", String::from_utf8_lossy(text)),
            _ => bail!("redis-server closed the connection"),
        }
        Ok(())
    }

    /// Sends one request and reads its answer.
    ///
    /// # Errors
    /// As for [`Client::answer`].
    pub fn ask(&mut self, words: &[&[u8]]) -> anyhow::Result<Vec<u8>> {
        let mut out = Vec::new();
        self.queue(words);
        self.flush()?;
        self.answer(&mut out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// A client of a server that says `answers` and closes.
    fn served(answers: &'static [u8]) -> (Client, std::thread::JoinHandle<Vec<u8>>) {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let client = Client::connect(&socket).unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(answers).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut seen = Vec::new();
            stream.read_to_end(&mut seen).unwrap();
            seen
        });
        (client, server)
    }

    #[test]
    fn requests_go_out_and_answers_come_back_as_the_protocol_has_them() {
        let (mut client, server) = served(b"+OK\r\n$5\r\na\r\nbc\r\n");
        client.queue(&[b"SET", b"k", b"a\r\nbc"]);
        client.queue(&[b"GET", b"k"]);
        client.flush().unwrap();
        let mut out = Vec::new();
        client.answer(&mut out).unwrap();
        client.answer(&mut out).unwrap();
        assert_eq!(out, b"OKa\r\nbc");
        drop(client);
        assert_eq!(
            server.join().unwrap(),
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$5\r\na\r\nbc\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"
        );
    }

    #[test]
    fn a_missing_key_a_refusal_and_a_closed_connection_are_errors() {
        let (mut client, _server) = served(b"$-1\r\n$99999999999999\r\n-ERR no\r\n");
        let mut out = Vec::new();
        assert!(client.answer(&mut out).unwrap_err().to_string().contains("lost a key"));
        assert!(client.answer(&mut out).unwrap_err().to_string().contains("99999999999999 bytes"));
        assert!(client.answer(&mut out).unwrap_err().to_string().contains("ERR no"));
        assert!(client.answer(&mut out).unwrap_err().to_string().contains("closed"));
    }
}
