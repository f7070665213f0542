//! Who asks for the counters, over a Unix socket or the loopback interface, by HTTP: many at a time, in one thread.
//!
//! Invariants: nobody is waited for. Who does not ask, or does not take the answer, is left after [`TIME_TO_SCRAPE`], and
//! before that if too many others come. What is asked for does not matter, but the token does where there is one.

use crate::token::Token;
use memfold_sys::time::Nanos;
use memfold_sys::{socket, Errno};
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Where the counters can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsAt {
    /// A Unix socket, 0600.
    Path(PathBuf),
    /// A port of the loopback interface.
    Port(SocketAddr),
}

impl FromStr for MetricsAt {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAt, String> {
        if text.starts_with('/') {
            return Ok(MetricsAt::Path(text.into()));
        }
        if let Ok(port) = text.parse::<u16>() {
            return Ok(MetricsAt::Port(SocketAddr::from(([127, 0, 0, 1], port))));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.ip().is_loopback() => Ok(MetricsAt::Port(address)),
            _ => Err(format!(
                "{text:?}: an absolute path, a port, or a loopback address such as 127.0.0.1:9273 is needed"
            )),
        }
    }
}

/// Connections at a time; of more, the oldest are ended.
const SCRAPES: usize = 64;
/// How long one of them may take to ask, and to take the answer.
const TIME_TO_SCRAPE: Nanos = Nanos::from_secs(2);
/// The longest question, bytes.
const LONGEST: usize = 8 << 10;
/// Connections that are accepted before the others are looked at again.
const AT_ONCE: usize = 16;

/// Where somebody may connect.
pub enum Listener {
    /// On a Unix socket.
    Unix(UnixListener),
    /// On a port.
    Tcp(TcpListener),
}

impl Listener {
    fn fd(&self) -> i32 {
        match self {
            Listener::Unix(listener) => listener.as_raw_fd(),
            Listener::Tcp(listener) => listener.as_raw_fd(),
        }
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            Listener::Unix(listener) => listener.accept()?.0.into(),
            Listener::Tcp(listener) => listener.accept()?.0.into(),
        })
    }
}

/// Somebody who asks.
struct Asker {
    socket: OwnedFd,
    since: Instant,
    question: Vec<u8>,
    /// What is still to be sent, once there is an answer.
    answer: Option<Vec<u8>>,
}

/// Everybody who asks.
pub struct Scraper {
    listener: Listener,
    token: Option<Token>,
    askers: VecDeque<Asker>,
}

impl Scraper {
    /// Nobody yet. With a token, who does not say it is told nothing.
    ///
    /// # Errors
    /// The listener cannot be made one that waits for nobody.
    pub fn new(listener: Listener, token: Option<Token>) -> io::Result<Scraper> {
        match &listener {
            Listener::Unix(listener) => listener.set_nonblocking(true)?,
            Listener::Tcp(listener) => listener.set_nonblocking(true)?,
        }
        Ok(Scraper { listener, token, askers: VecDeque::new() })
    }

    /// Waits for news, at most `timeout`, and does what is to be done for everybody. `text` makes the counters.
    pub fn step(&mut self, timeout: Nanos, text: impl Fn() -> String) {
        let entry = |fd, events| libc::pollfd { fd, events, revents: 0 };
        let mut polls = vec![entry(self.listener.fd(), libc::POLLIN)];
        polls.extend(self.askers.iter().map(|asker| {
            entry(asker.socket.as_raw_fd(), if asker.answer.is_some() { libc::POLLOUT } else { libc::POLLIN })
        }));
        socket::poll_all(&mut polls, timeout);
        let now = Instant::now();
        let (token, mut polled) = (&self.token, polls[1..].iter());
        self.askers.retain_mut(|asker| {
            let ready = polled.next().is_some_and(|poll| poll.revents != 0);
            let left = !ready || asker.go_on(token.as_ref(), &text);
            left && now.duration_since(asker.since) < Duration::from_nanos(TIME_TO_SCRAPE.0)
        });
        if polls[0].revents != 0 {
            self.accept(now);
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..AT_ONCE {
            match self.listener.accept() {
                Ok(socket) => {
                    self.askers.push_back(Asker { socket, since: now, question: Vec::new(), answer: None })
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Too many descriptors, or one that left at once: the next look is not at once.
                Err(_) => return memfold_sys::time::sleep(Nanos::from_millis(10)),
            }
        }
        // Who has asked is answered before others that came later are counted.
        while self.askers.len() > SCRAPES + AT_ONCE {
            self.askers.pop_front();
        }
    }
}

impl Asker {
    /// Reads or writes what can be. Whether there is more to be done.
    fn go_on(&mut self, token: Option<&Token>, text: impl Fn() -> String) -> bool {
        let fd = self.socket.as_raw_fd();
        if self.answer.is_none() {
            let mut bytes = [0; 1024];
            match socket::hear(fd, &mut bytes) {
                Ok(0) => return false,
                Ok(len) => self.question.extend(&bytes[..len]),
                Err(Errno::EAGAIN | Errno::EINTR) => return true,
                Err(_) => return false,
            }
            self.answer = match head(&self.question) {
                Some(head) if token.is_none_or(|token| bearer(head).is_some_and(|guess| token.is(guess))) => {
                    Some(reply("200 OK", "Content-Type: text/plain; version=0.0.4\r\n", &text()))
                }
                Some(_) => {
                    Some(reply("401 Unauthorized", "WWW-Authenticate: Bearer\r\n", "a token is needed\n"))
                }
                None if self.question.len() > LONGEST => return false,
                None => return true,
            };
        }
        let Some(answer) = &mut self.answer else { return true };
        match socket::send(fd, answer) {
            Ok(len) => {
                answer.drain(..len);
                !answer.is_empty()
            }
            Err(Errno::EAGAIN | Errno::EINTR) => true,
            Err(_) => false,
        }
    }
}

fn reply(status: &str, headers: &str, text: &str) -> Vec<u8> {
    let head =
        format!("HTTP/1.0 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", text.len());
    [head.as_bytes(), text.as_bytes()].concat()
}

/// The lines of a question up to the empty one, once that has come.
fn head(question: &[u8]) -> Option<&[u8]> {
    let end = |mark: &[u8]| question.windows(mark.len()).position(|window| window == mark);
    Some(&question[..end(b"\r\n\r\n").or_else(|| end(b"\n\n"))?])
}

/// What a question offers as token (RFC 6750, 2.1).
fn bearer(head: &[u8]) -> Option<&[u8]> {
    let mut lines = head.split(|&byte| byte == b'\n').map(|line| line.trim_ascii());
    lines.find_map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let space = value.iter().position(|&byte| byte == b' ')?;
        let is_ours =
            name.eq_ignore_ascii_case(b"authorization") && value[..space].eq_ignore_ascii_case(b"bearer");
        is_ours.then(|| value[space..].trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    #[test]
    fn a_path_a_port_and_a_loopback_address_are_places_and_nothing_else_is() {
        let port = |text: &str| Ok(MetricsAt::Port(text.parse().unwrap()));
        assert_eq!("/run/m.sock".parse(), Ok(MetricsAt::Path("/run/m.sock".into())));
        assert_eq!("9273".parse(), port("127.0.0.1:9273"));
        assert_eq!("[::1]:9273".parse(), port("[::1]:9273"));
        for other in ["0.0.0.0:9273", "192.0.2.1:80", "localhost:80", "m.sock", "", "99999"] {
            assert!(other.parse::<MetricsAt>().is_err(), "{other}");
        }
    }

    #[test]
    fn a_token_is_found_however_its_line_is_written() {
        let token = |text: &str| head(text.as_bytes()).and_then(bearer).map(|token| token.to_vec());
        assert_eq!(token("GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer abc\r\n\r\n").unwrap(), b"abc");
        assert_eq!(token("GET /\nauthorization:bearer  abc \n\n").unwrap(), b"abc");
        for none in ["GET /\r\n\r\n", "Authorization: Basic abc\r\n\r\n", "Authorization: Bearer abc\r\n", ""]
        {
            assert_eq!(token(none), None, "{none:?}");
        }
    }

    #[test]
    fn more_than_there_may_be_push_out_the_oldest_and_who_asks_is_answered() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut scraper = Scraper::new(Listener::Tcp(listener), None).unwrap();
        let silent: Vec<_> = (0..2 * SCRAPES)
            .map(|_| {
                let one = TcpStream::connect(address).unwrap();
                scraper.step(Nanos(0), String::new);
                one
            })
            .collect();
        scraper.step(Nanos(0), String::new);
        assert_eq!(scraper.askers.len(), SCRAPES + AT_ONCE);
        // That it was closed may arrive a moment later.
        while socket::has_bytes(silent[0].as_raw_fd()).is_some() {
            std::thread::yield_now();
        }
        let mut asker = TcpStream::connect(address).unwrap();
        asker.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut said = String::new();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| asker.read_to_string(&mut said));
            while !reader.is_finished() {
                scraper.step(Nanos::from_millis(1), || "counters".into());
            }
        });
        assert!(said.starts_with("HTTP/1.0 200 OK\r\n") && said.ends_with("\r\n\r\ncounters"), "{said}");
        // And who says nothing for too long is left.
        scraper.askers.iter_mut().for_each(|asker| asker.since -= Duration::from_secs(60));
        scraper.step(Nanos(0), String::new);
        assert!(scraper.askers.is_empty());
    }
}
