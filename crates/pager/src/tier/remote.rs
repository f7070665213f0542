//! The way to an engine on the network: a process beside the program that speaks its protocol ([`super::wire`]).
//!
//! Nothing of the network is in the program: no resolver, no TLS, no allocator for them. Where that process is gone, it is asked again until it is back:
//! what it alone can reach is away meanwhile, and not lost.
//!
//! What it is not: a judge of what comes. That is sealed, and opened as what comes from a disk.
//!
//! Invariants: an answer is only taken for that to the request before it: after anything else the connection is ended. `calls` is the tier thread's, or
//! of a thread beside which there is none; `tells` is the background thread's.

use super::clusters::Place;
use super::wire::{Answer, Name, Op, Request, ANSWER, SOCKET};
use crate::control_file::FilePath;
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
/// How long the background thread waits for room in the socket.
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
        match self.call(Op::Get, file, place, &[], out) {
            Ok(len) if len == out.len() => Ok(()),
            Ok(_) => Err(Errno(libc::EBADMSG)),
            Err(error) => Err(error),
        }
    }

    fn call(&self, op: Op, file: Name, place: Place, bytes: &[u8], out: &mut [u8]) -> Result<usize> {
        let len = if op == Op::Put { bytes.len() } else { out.len() };
        let request = Request { op, file, segment: place.segment() as u32, number: place.sequence(), len };
        if self.is_over_disk() && time::now().0 < self.rests.load(Relaxed) {
            return Err(AWAY);
        }
        let answer = self.talk(&request, bytes, out);
        if answer.is_err() && !planted(Bug::LateAnswerTaken) {
            self.hang_up();
        }
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
        let mut head = [0; ANSWER];
        hear(socket, &mut head, until)?;
        let answer = Answer::parse(&head).ok_or(Errno::EINVAL)?;
        hear(socket, out.get_mut(..answer.len).ok_or(Errno::EINVAL)?, until)?;
        Ok(answer)
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

    /// Ends the connection by which clusters are put and fetched.
    pub fn hang_up(&self) {
        close(&self.calls);
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
        self.tells.store(0, Relaxed);
    }
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
    socket::poll_all(&mut [libc::pollfd { fd: socket, events, revents: 0 }], left);
    Ok(())
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
