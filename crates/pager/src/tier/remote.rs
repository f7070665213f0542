//! The way to an engine on the network: a process beside the program that speaks its protocol ([`super::wire`]).
//!
//! Nothing of the network is in the program: no resolver, no TLS, no allocator for them. Where that process is gone, it is asked again until it is back:
//! what it alone can reach is away meanwhile, and not lost.
//!
//! What it is not: a judge of what comes. That is sealed, and opened as what comes from a disk.
//!
//! A cluster can be asked for without waiting for it, on a connection of its own: what is put or fetched meanwhile does not wait for that answer.
//!
//! Invariants: an answer is only taken for that to the request before it: after anything else the connection is ended. `calls` and `asks` are the tier
//! thread's, or of a thread beside which there is none; `tells` is the background thread's.

use super::clusters::Place;
use super::wire::{Answer, Name, Op, Request, ANSWER, REQUEST, SOCKET};
use crate::file_path::FilePath;
use crate::sabotage::{planted, Bug};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use memfold_sys::file::Fd;
use memfold_sys::socket;
use memfold_sys::time::{self, Nanos};
use memfold_sys::{Errno, Result};

/// The engine, or the process that speaks with it, cannot be reached now.
pub const AWAY: Errno = Errno(libc::EHOSTDOWN);

/// How long an answer may take. The process beside gives up an engine that does not answer before that.
const PATIENCE: Nanos = Nanos::from_secs(30);
/// How long is waited for room in the socket where nobody waits for an answer.
const MOMENT: Nanos = Nanos::from_millis(20);
/// How long an engine beneath which there is a disk is not asked after it could not be reached.
const REST: Nanos = Nanos::from_secs(2);

/// Made from zeros, which is none.
pub struct Remote {
    /// Where its socket is, and the files' marks; no path for none.
    directory: UnsafeCell<FilePath>,
    on: AtomicU32,
    /// How long somebody may wait for a cluster, ns.
    wait: AtomicU64,
    /// 1 where a disk beneath has all that is there.
    over_disk: AtomicU32,
    /// It is not asked before then, where that is so; ns.
    rests: AtomicU64,
    /// Descriptors in the table of the agents, and one; 0 for none.
    calls: AtomicU32,
    asks: AtomicU32,
    tells: AtomicU32,
}

// SAFETY: `directory` is written once, before anybody else looks.
unsafe impl Sync for Remote {}

impl Remote {
    /// The tier is one on the network from now on, whose process has its socket in this directory.
    ///
    /// # Safety
    /// Once, before anybody else has it.
    pub unsafe fn begin(&self, directory: FilePath, wait: Nanos, over_disk: bool) {
        // SAFETY: the caller's contract.
        unsafe { *self.directory.get() = directory };
        self.wait.store(wait.0, Relaxed);
        self.over_disk.store(over_disk.into(), Relaxed);
        self.on.store(1, Release);
    }

    /// Whether the tier is one on the network.
    pub fn is_on(&self) -> bool {
        self.on.load(Acquire) != 0
    }

    /// Whether a disk beneath has all that is there.
    pub fn is_over_disk(&self) -> bool {
        self.over_disk.load(Relaxed) != 0
    }

    /// How long somebody may wait for a cluster.
    pub fn wait(&self) -> Nanos {
        Nanos(self.wait.load(Relaxed))
    }

    /// Where the marks of files are.
    pub fn directory(&self) -> &FilePath {
        // SAFETY: written once, before.
        unsafe { &*self.directory.get() }
    }

    /// Keeps a cluster there.
    pub fn put(&self, file: Name, place: Place, bytes: &[u8]) -> Result<()> {
        self.call(Op::Put, file, place, bytes, &mut []).map(drop)
    }

    /// Fetches it. [`AWAY`] where that is to be tried again, `ENOENT` where the engine has it no more.
    pub fn fetch(&self, file: Name, place: Place, out: &mut [u8]) -> Result<()> {
        self.call(Op::Get, file, place, &[], out).and_then(|len| all_of(out, len))
    }

    /// Asks for a cluster, and does not wait for it. Whether it was asked for: nothing else is then until there was an [`answer`](Self::answer), or it was
    /// [given up](Self::hang_up_asks).
    pub fn ask(&self, file: Name, place: Place) -> bool {
        let request = request(Op::Get, file, place, place.bytes());
        let asked = !self.rests() && {
            let until = time::now() + MOMENT;
            self.connected(&self.asks).and_then(|socket| send(socket, &request.bytes(), until)).is_ok()
        };
        if !asked {
            close(&self.asks);
        }
        asked
    }

    /// The same where that takes no wait: there is a connection already, with room. Of the fault thread's too, while the tier's thread leaves it that connection.
    pub fn ask_at_once(&self, file: Name, place: Place) -> bool {
        let request = request(Op::Get, file, place, place.bytes());
        let socket = self.asks.load(Relaxed).checked_sub(1).filter(|_| !self.rests());
        // A part of a request makes no sense to who reads it, and that ends the connection.
        socket.is_some_and(|socket| socket::send(socket as i32, &request.bytes()) == Ok(REQUEST))
    }

    /// What came of that, with the cluster in `out`. `None` where nothing has when the time is over.
    pub fn answer(&self, out: &mut [u8], timeout: Nanos) -> Option<Result<()>> {
        let Some(socket) = self.asks.load(Relaxed).checked_sub(1) else { return Some(Err(AWAY)) };
        let until = time::now() + PATIENCE;
        let mut answer = hear_at_once(socket as i32, out, until);
        if answer == Err(Errno::EAGAIN) && timeout.0 > 0 {
            poll(socket as i32, libc::POLLIN, timeout);
            answer = hear_at_once(socket as i32, out, until);
        }
        if answer == Err(Errno::EAGAIN) {
            return None;
        }
        if answer.is_err() {
            close(&self.asks);
        }
        Some(self.judge(answer).and_then(|len| all_of(out, len)))
    }

    /// What was asked for is wanted no more.
    pub fn hang_up_asks(&self) {
        close(&self.asks);
    }

    /// Whether the engine is not asked now, since it could not be reached.
    fn rests(&self) -> bool {
        self.is_over_disk() && time::now().0 < self.rests.load(Relaxed)
    }

    fn call(&self, op: Op, file: Name, place: Place, bytes: &[u8], out: &mut [u8]) -> Result<usize> {
        let request = request(op, file, place, if op == Op::Put { bytes.len() } else { out.len() });
        if self.rests() {
            return Err(AWAY);
        }
        let answer = self.talk(&request, bytes, out);
        if answer.is_err() && !planted(Bug::LateAnswerTaken) {
            close(&self.calls);
        }
        self.judge(answer)
    }

    /// What an answer says: so many bytes came, or an error.
    fn judge(&self, answer: Result<Answer>) -> Result<usize> {
        let result = match answer {
            Ok(Answer { error: 0, len }) => Ok(len),
            Ok(Answer { error, .. }) => Err(Errno(error)),
            Err(_) => Err(AWAY),
        };
        if result == Err(AWAY) {
            self.rests.store((time::now() + REST).0, Relaxed);
        }
        result
    }

    /// Any error ends the connection.
    fn talk(&self, request: &Request, bytes: &[u8], out: &mut [u8]) -> Result<Answer> {
        let socket = self.connected(&self.calls)?;
        let until = time::now() + PATIENCE;
        send(socket, &request.bytes(), until)?;
        send(socket, bytes, until)?;
        hear_answer(socket, out, until)
    }

    fn connected(&self, to: &AtomicU32) -> Result<i32> {
        match to.load(Relaxed) {
            0 => {
                let path = FilePath::joined(self.directory().as_str(), SOCKET).ok_or(Errno::EINVAL)?;
                let socket = socket::connect(path.as_str().as_bytes())?.into_raw();
                to.store(socket as u32 + 1, Relaxed);
                Ok(socket)
            }
            socket => Ok(socket as i32 - 1),
        }
    }

    /// Ends the connections by which clusters are put and fetched.
    pub fn hang_up(&self) {
        close(&self.calls);
        close(&self.asks);
    }

    /// Says something of a file to which there is no answer. Whether it was said: it is not while the process beside is gone, and what it should know is
    /// said again when it is back. Background thread only.
    pub fn tell(&self, op: Op, file: Name, segment: usize, number: usize) -> bool {
        let request = Request { op, file, segment: segment as u32, number: number as u32, len: 0 };
        let socket = self.tells.load(Relaxed);
        if socket == 0 {
            return false;
        }
        let said = send(socket as i32 - 1, &request.bytes(), time::now() + MOMENT).is_ok();
        if !said {
            close(&self.tells);
        }
        said
    }

    /// Makes the connection for [`Remote::tell`] if there is none. Whether it was made just now: then everything is to be said again. Background
    /// thread only.
    pub fn tend(&self) -> bool {
        let socket = self.tells.load(Relaxed);
        if socket != 0 && socket::has_bytes(socket as i32 - 1).is_none() {
            close(&self.tells);
        }
        self.tells.load(Relaxed) == 0 && self.connected(&self.tells).is_ok()
    }

    /// In a forked child, whose descriptors are not these.
    pub fn reset_in_child(&self) {
        self.calls.store(0, Relaxed);
        self.asks.store(0, Relaxed);
        self.tells.store(0, Relaxed);
    }
}

fn request(op: Op, file: Name, place: Place, len: usize) -> Request {
    Request { op, file, segment: place.segment() as u32, number: place.sequence(), len }
}

/// Whether as much came as was asked for.
fn all_of(out: &[u8], len: usize) -> Result<()> {
    (len == out.len()).then_some(()).ok_or(Errno(libc::EBADMSG))
}

fn close(which: &AtomicU32) {
    if let Some(socket) = which.swap(0, Relaxed).checked_sub(1) {
        // SAFETY: opened by us, and nobody else closes it.
        drop(unsafe { Fd::from_raw(socket as i32) });
    }
}

/// Waits until the socket is ready for these events, or the time is over.
fn wait(socket: i32, events: i16, until: Nanos) -> Result<()> {
    let left = until.since(time::now());
    if left.0 == 0 {
        return Err(Errno(libc::ETIMEDOUT));
    }
    poll(socket, events, left);
    Ok(())
}

fn poll(socket: i32, events: i16, timeout: Nanos) {
    socket::poll_all(&mut [libc::pollfd { fd: socket, events, revents: 0 }], timeout);
}

fn send(socket: i32, mut bytes: &[u8], until: Nanos) -> Result<()> {
    while !bytes.is_empty() {
        match socket::send(socket, bytes) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(Errno::EAGAIN) => wait(socket, libc::POLLOUT, until)?,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// An answer, with what came behind it in `out`, of which the first bytes must be there: else `EAGAIN`.
fn hear_at_once(socket: i32, out: &mut [u8], until: Nanos) -> Result<Answer> {
    let mut head = [0; ANSWER];
    let heard = loop {
        match socket::hear_both(socket, &mut head, out) {
            Ok(0) => return Err(Errno(libc::EPIPE)),
            Err(Errno::EINTR) => {}
            heard => break heard?,
        }
    };
    hear(socket, head.get_mut(heard..).unwrap_or_default(), until)?;
    let answer = Answer::parse(&head).ok_or(Errno::EINVAL)?;
    let came = heard.saturating_sub(ANSWER);
    // More than it says makes no sense.
    hear(socket, out.get_mut(came..answer.len).ok_or(Errno::EINVAL)?, until)?;
    Ok(answer)
}

/// The same, waited for.
fn hear_answer(socket: i32, out: &mut [u8], until: Nanos) -> Result<Answer> {
    loop {
        match hear_at_once(socket, out, until) {
            Err(Errno::EAGAIN) => wait(socket, libc::POLLIN, until)?,
            answer => return answer,
        }
    }
}

fn hear(socket: i32, mut bytes: &mut [u8], until: Nanos) -> Result<()> {
    while !bytes.is_empty() {
        match socket::hear(socket, bytes) {
            Ok(0) => return Err(Errno(libc::EPIPE)),
            Ok(heard) => bytes = &mut bytes[heard..],
            Err(Errno::EAGAIN) => wait(socket, libc::POLLIN, until)?,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
