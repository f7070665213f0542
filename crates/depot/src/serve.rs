//! Serving programs: a socket, a thread for each connection, and one that renews and deletes.

use crate::config::{Config, RENEWALS};
use crate::ending::{Ending, Next, LOOK, PARTING};
use crate::engines::{Copies, Engines};
use crate::kept::Kept;
use crate::node::Failure;
use crate::spare;
use anyhow::{Context, Result};
use memfold_pager::tier::wire::{Answer, Name, Op, Request, REQUEST, SOCKET};
use memfold_pager::tier::CLUSTER_BYTES;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The line that people are told where no descriptor is left for a program that comes.
const CROWDED: &str = "the process for the tier has as many files open as it may: what is started from now on finds the tier away \
                       until some of the program's processes end (a higher hard limit, ulimit -Hn, prevents that)\n";

struct Shared {
    config: Config,
    kept: Mutex<Kept>,
    connections: AtomicUsize,
    launcher: UnixStream,
}

impl Shared {
    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves the programs that come to the socket in this directory, until `launcher` is closed at its other end and none of them is left: none that was
/// served, and none that may come yet, as `others` says. What people should know goes to the launcher, a line each; and the end of that, when it is gone and
/// need not wait for what is still to be deleted.
///
/// # Errors
/// The socket cannot be made.
pub fn serve(
    directory: &Path,
    config: Config,
    launcher: UnixStream,
    others: impl Fn() -> bool,
) -> Result<()> {
    let path = directory.join(SOCKET);
    // Of one before us, which has ended.
    let _ = std::fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("cannot listen at {}", path.display()))?;
    let spare = spare::open().context("cannot begin")?;
    let shared = Arc::new(Shared {
        config,
        kept: Mutex::new(Kept::new(directory)),
        connections: AtomicUsize::new(0),
        launcher,
    });
    let (gone, launcher_is_gone) = mpsc::channel();
    std::thread::spawn({
        let shared = shared.clone();
        move || watch(&shared, gone)
    });
    std::thread::spawn({
        let shared = shared.clone();
        move || accept(&listener, spare, &shared)
    });
    look_after(&shared, &launcher_is_gone, others);
    let _ = std::fs::remove_file(&path);
    // Children that go on without the pager may have left marks.
    let _ = std::fs::remove_dir(directory);
    Ok(())
}

/// Drops what it is given when the launcher is gone.
fn watch(shared: &Shared, _gone: Sender<()>) {
    let mut byte = [0];
    loop {
        match (&shared.launcher).read(&mut byte) {
            Ok(1..) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
        }
    }
}

fn accept(listener: &UnixListener, spare: File, shared: &Arc<Shared>) {
    let (mut spare, mut told) = (Some(spare), false);
    loop {
        // accept(2) takes a descriptor before it waits: that none is left says nothing of who comes later.
        let mut came = await_bytes(listener).and_then(|()| listener.accept());
        if came.as_ref().is_err_and(spare::is_crowded) {
            drop(spare.take());
            came = listener.accept();
        }
        // A thread may have been quicker.
        spare = spare.or_else(|| spare::open().ok());
        match came {
            Ok((stream, _)) if spare.is_some() => converse(stream, shared),
            Ok((stream, _)) => {
                // Who comes is sent away, and knows it: it would wait for an answer.
                drop(stream);
                spare = spare::open().ok();
                if !std::mem::replace(&mut told, true) {
                    let _ = (&shared.launcher).write_all(CROWDED.as_bytes());
                }
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// Serves who came, on a thread of its own.
fn converse(stream: UnixStream, shared: &Arc<Shared>) {
    shared.connections.fetch_add(1, SeqCst);
    let of_thread = shared.clone();
    let thread = std::thread::Builder::new().stack_size(512 << 10).spawn(move || {
        let mut connection = Connection::new(&of_thread, stream);
        while connection.step().is_ok() {}
        drop(connection);
        of_thread.connections.fetch_sub(1, SeqCst);
    });
    if thread.is_err() {
        shared.connections.fetch_sub(1, SeqCst);
    }
}

/// Renews what is wanted and deletes what is not, until nobody is left to want anything.
fn look_after(shared: &Shared, launcher_is_gone: &Receiver<()>, others: impl Fn() -> bool) {
    let mut engines = Engines::new(shared.config.clone());
    let every = shared.config.expire() / RENEWALS;
    // What could not be renewed yet since it was time for all of it, and what could not be deleted: an engine may be away, and others have them too.
    let (mut renewed, mut due): (Instant, Vec<Copies>) = (Instant::now(), Vec::new());
    let mut left: Vec<(Instant, Copies)> = Vec::new();
    let mut ending: Option<Ending> = None;
    loop {
        match &ending {
            Some(ending) => std::thread::sleep(ending.pause()),
            None => {
                let gone = launcher_is_gone.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected);
                ending = gone.then(|| Ending::begin(Instant::now()));
            }
        }
        let now = Instant::now();
        if now.duration_since(renewed) >= every {
            renewed = now;
            let all = shared.kept().all();
            due = all.iter().map(|(file, segments)| engines.copies_of(*file, segments)).collect();
        }
        due.retain_mut(|copies| !engines.renew(copies));
        let ended = shared.kept().ended();
        left.extend(ended.iter().map(|(file, segments)| (now, engines.copies_of(*file, segments))));
        // By itself it goes when it expires, and nobody stays for an hour for that.
        let patience = if ending.is_some() { PARTING } else { shared.config.expire() };
        left.retain_mut(|(since, copies)| now.duration_since(*since) < patience && !engines.forget(copies));
        let Some(ending) = &mut ending else { continue };
        let is_idle = || shared.connections.load(SeqCst) == 0 && shared.kept().is_empty() && left.is_empty();
        match ending.look(now, &others, is_idle) {
            Next::Stay => {}
            Next::Release => {
                let _ = shared.launcher.shutdown(Shutdown::Write);
            }
            Next::End => return,
        }
    }
}

/// A program's connection.
struct Connection<'a> {
    shared: &'a Shared,
    stream: UnixStream,
    engines: Engines,
    owned: BTreeSet<Name>,
    bytes: Vec<u8>,
}

impl<'a> Connection<'a> {
    fn new(shared: &'a Shared, stream: UnixStream) -> Connection<'a> {
        let engines = Engines::new(shared.config.clone());
        Connection { shared, stream, engines, owned: BTreeSet::new(), bytes: vec![0; CLUSTER_BYTES] }
    }

    /// Does what is asked for next. Any error ends the connection.
    fn step(&mut self) -> io::Result<()> {
        let mut head = [0; REQUEST];
        await_bytes(&self.stream)?;
        self.stream.read_exact(&mut head)?;
        let request = Request::parse(&head).ok_or(io::ErrorKind::InvalidData)?;
        let Request { op, file, segment, number, len } = request;
        match op {
            Op::Own => {
                if self.owned.insert(file) {
                    self.shared.kept().own(file, true);
                }
            }
            Op::Leave => {
                if self.owned.remove(&file) {
                    self.shared.kept().own(file, false);
                }
            }
            Op::Keep => self.shared.kept().keep(file, segment..segment.saturating_add(number)),
            Op::Forget => {
                self.shared.kept().forget(file, segment);
                let mut copies = self.engines.copies_of(file, &[segment]);
                self.engines.forget(&mut copies);
            }
            Op::Put => {
                self.stream.read_exact(&mut self.bytes[..len])?;
                // Before it is there: then it is deleted in any case.
                self.shared.kept().keep(file, segment..segment.saturating_add(1));
                let result = self.engines.put(file, segment, number, &self.bytes[..len]);
                self.answer(result.err().map_or(0, error_of), &[])?;
            }
            Op::Get => match self.engines.get(file, segment, number) {
                Ok(Some(bytes)) if bytes.len() <= len => self.answer(0, &bytes)?,
                // Longer than it ever was: the program finds that it is something else.
                Ok(Some(_)) => self.answer(libc_error(nix::errno::Errno::EBADMSG), &[])?,
                Ok(None) => self.answer(libc_error(nix::errno::Errno::ENOENT), &[])?,
                // Whatever hinders it, it may be put right while the program waits.
                Err(_) => self.answer(error_of(Failure::Away), &[])?,
            },
        }
        Ok(())
    }

    fn answer(&mut self, error: i32, bytes: &[u8]) -> io::Result<()> {
        let head = Answer { error, len: bytes.len() }.bytes();
        let sent = self.stream.write_vectored(&[IoSlice::new(&head), IoSlice::new(bytes)])?;
        let (head, rest) = (&head[sent.min(head.len())..], &bytes[sent.saturating_sub(head.len())..]);
        self.stream.write_all(head)?;
        self.stream.write_all(rest)
    }
}

/// Waits until there is something to read, or somebody to accept. A thread that waits in reading itself is woken by each answer that is taken, too.
fn await_bytes(socket: &impl AsFd) -> io::Result<()> {
    let mut poll = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
    match nix::poll::poll(&mut poll, PollTimeout::NONE) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        let mut kept = self.shared.kept();
        self.owned.iter().for_each(|&file| kept.own(file, false));
    }
}

fn libc_error(error: nix::errno::Errno) -> i32 {
    error as i32
}

/// How a failure is told to a program.
fn error_of(failure: Failure) -> i32 {
    use nix::errno::Errno;
    libc_error(match failure {
        Failure::Away | Failure::Moved | Failure::Moving => Errno::EHOSTDOWN,
        Failure::Full => Errno::ENOSPC,
        Failure::Crowded => Errno::EMFILE,
        Failure::Refused => Errno::EACCES,
    })
}
