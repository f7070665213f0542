//! Connections from their first moment until they have greeted: nothing is read of them here, and nobody waits for one.
//!
//! Each greeting is read by a thread of its own, because what comes with it may be anything, and the kernel may take its time with it.
//!
//! Invariants: a connection of which something was not read yet is not closed here; there are never more of them than
//! [`quota::UNFINISHED`] and what is accepted at a time.

use crate::quota;
use memfold_sys::socket::{self, Credentials};
use memfold_sys::time::Nanos;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Connections that are accepted before the others are looked at again.
const AT_ONCE: usize = 64;

/// A connection that has not greeted.
struct Unfinished {
    socket: UnixStream,
    who: Credentials,
    since: Instant,
    /// Nothing more can come.
    over: bool,
}

/// The connections that have not greeted.
pub(crate) struct Door {
    listener: UnixListener,
    unfinished: VecDeque<Unfinished>,
}

impl Door {
    /// Nobody yet.
    pub fn new(listener: UnixListener) -> io::Result<Door> {
        listener.set_nonblocking(true)?;
        Ok(Door { listener, unfinished: VecDeque::new() })
    }

    /// Waits for news, at most `timeout`, and returns who has greeted. `may` says whether a connection is of any interest;
    /// of those that have greeted no more than `room` are returned.
    pub fn wait(
        &mut self,
        timeout: Nanos,
        room: usize,
        may: impl Fn(&UnixStream, Credentials) -> bool,
    ) -> Vec<(UnixStream, Credentials)> {
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let listens = self.unfinished.len() < quota::UNFINISHED + AT_ONCE;
        let listener = if listens { self.listener.as_raw_fd() } else { -1 };
        let mut polls = vec![entry(listener)];
        // Without room there is nothing to be done for one that is ready, and it would end the wait at once.
        let ready = |one: &Unfinished| if room == 0 { -1 } else { one.socket.as_raw_fd() };
        polls.extend(self.unfinished.iter().map(|one| entry(ready(one))));
        socket::poll_all(&mut polls, timeout);
        let greeted = self.take_greeted(&polls[1..], room);
        self.end_surplus();
        if polls[0].revents != 0 {
            self.accept(may);
        }
        greeted
    }

    fn take_greeted(&mut self, polls: &[libc::pollfd], room: usize) -> Vec<(UnixStream, Credentials)> {
        let mut greeted = Vec::new();
        let mut left = VecDeque::with_capacity(self.unfinished.len());
        for (one, poll) in self.unfinished.drain(..).zip(polls) {
            let has_bytes =
                if poll.revents == 0 { Some(false) } else { socket::has_bytes(one.socket.as_raw_fd()) };
            match has_bytes {
                Some(true) if greeted.len() < room => greeted.push((one.socket, one.who)),
                Some(_) => left.push_back(one),
                // Nothing was ever sent.
                None => {}
            }
        }
        self.unfinished = left;
        greeted
    }

    /// Ends who has taken too long, and the oldest of too many.
    fn end_surplus(&mut self) {
        let now = Instant::now();
        let surplus = self.unfinished.len().saturating_sub(quota::UNFINISHED);
        let mut at = 0;
        self.unfinished.retain_mut(|one| {
            at += 1;
            let late = now.duration_since(one.since) > Duration::from_nanos(quota::TIME_TO_GREET.0);
            if one.over || at <= surplus || late {
                one.over = true;
                // After this nothing more can come; what came in the last moment is a greeting after all.
                let _ = one.socket.shutdown(std::net::Shutdown::Read);
                return socket::has_bytes(one.socket.as_raw_fd()) == Some(true);
            }
            true
        });
    }

    fn accept(&mut self, may: impl Fn(&UnixStream, Credentials) -> bool) {
        for _ in 0..AT_ONCE {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Too many descriptors, or one that left at once: the next look is not at once.
                    return memfold_sys::time::sleep(Nanos::from_millis(10));
                }
            };
            let Ok(who) = socket::peer(socket.as_raw_fd()) else { continue };
            if may(&socket, who) {
                self.unfinished.push_back(Unfinished { socket, who, since: Instant::now(), over: false });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> (tempfile::TempDir, Door) {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("s")).unwrap();
        (dir, Door::new(listener).unwrap())
    }

    fn greeted(door: &mut Door, room: usize) -> usize {
        door.wait(Nanos(0), room, |_, _| true).len()
    }

    #[test]
    fn who_greets_is_found_among_many_that_do_not_and_the_oldest_of_those_are_ended() {
        let (dir, mut door) = door();
        let connect = || UnixStream::connect(dir.path().join("s")).unwrap();
        let silent: Vec<_> = (0..quota::UNFINISHED + 10)
            .map(|_| {
                let one = connect();
                greeted(&mut door, 1);
                one
            })
            .collect();
        greeted(&mut door, 1);
        assert_eq!(door.unfinished.len(), quota::UNFINISHED);
        // The first were ended, the last not.
        let ended = |n: usize| socket::has_bytes(silent[n].as_raw_fd()).is_none();
        assert!(ended(0) && ended(9) && !ended(10));
        let honest = connect();
        socket::send(honest.as_raw_fd(), b"hello", &[]).unwrap();
        assert_eq!((greeted(&mut door, 1), greeted(&mut door, 1)), (0, 1));
    }

    #[test]
    fn a_greeting_waits_for_room_and_is_not_thrown_away_unread() {
        let (dir, mut door) = door();
        let honest = UnixStream::connect(dir.path().join("s")).unwrap();
        socket::send(honest.as_raw_fd(), b"hello", &[]).unwrap();
        assert_eq!((greeted(&mut door, 0), greeted(&mut door, 0)), (0, 0));
        door.unfinished[0].since -= Duration::from_secs(60);
        assert_eq!((greeted(&mut door, 0), greeted(&mut door, 1)), (0, 1));
    }

    #[test]
    fn who_says_nothing_for_too_long_is_ended() {
        let (dir, mut door) = door();
        let silent = UnixStream::connect(dir.path().join("s")).unwrap();
        greeted(&mut door, 1);
        door.unfinished[0].since -= Duration::from_secs(60);
        greeted(&mut door, 1);
        assert!(door.unfinished.is_empty() && socket::has_bytes(silent.as_raw_fd()).is_none());
    }
}
