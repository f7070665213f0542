//! A process that has as many descriptors as it may, which no test beside this one would do with.

use memfold_depot::engines::Config;
use memfold_pager::tier::choice::Choice;
use memfold_pager::tier::wire::{Answer, Op, Request, ANSWER, SOCKET};
use nix::errno::Errno;
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::socket::{connect, socket, AddressFamily, SockFlag, SockType, UnixAddr};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long something may take that never takes long.
const LIMIT: Duration = Duration::from_secs(60);

/// A socket that is connected later: then it takes no further descriptor.
fn unconnected() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap()
}

#[test]
fn who_comes_where_no_descriptor_is_left_is_sent_away_and_that_is_said_once() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let choice = Choice::parse("redis://127.0.0.1:1").unwrap();
    let config = Config::new(&choice.engines().unwrap(), false).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let (launcher, theirs) = UnixStream::pair().unwrap();
    let served = directory.path().to_owned();
    std::thread::spawn(move || memfold_depot::serve(&served, config, theirs, || false).unwrap());
    let path = directory.path().join(SOCKET);
    let mut first = loop {
        match UnixStream::connect(&path) {
            Ok(stream) => break stream,
            Err(_) => std::thread::yield_now(),
        }
    };
    let request = Request { op: Op::Put, file: [1; 16], segment: 0, number: 0, len: 1 };
    let mut put = || {
        first.write_all(&request.bytes()).unwrap();
        first.write_all(&[7]).unwrap();
        let mut answer = [0; ANSWER];
        first.read_exact(&mut answer).unwrap();
        Answer::parse(&answer).unwrap().error
    };
    assert_eq!(put(), Errno::EHOSTDOWN as i32, "nobody listens there");
    let come = |socket: OwnedFd| {
        connect(socket.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        UnixStream::from(socket)
    };
    let [second, third, fourth] = [(); 3].map(|()| unconnected());
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // The kernel has set one aside for who comes next (accept(2)).
    let _served = come(second);
    // They keep theirs, or the next had that.
    let _away = [third, fourth].map(|socket| {
        let mut stream = come(socket);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(stream.read(&mut [0]).ok(), Some(0), "it would wait");
        stream
    });
    // The engine is asked no sooner than it is left alone no more.
    let until = Instant::now() + LIMIT;
    while put() != Errno::EMFILE as i32 {
        assert!(Instant::now() < until, "it says something else");
    }
    drop(taken);
    launcher.set_nonblocking(true).unwrap();
    let lines: Vec<String> = BufReader::new(launcher).lines().map_while(Result::ok).collect();
    assert!(lines.len() == 1 && lines[0].contains("as many files open as it may"), "{lines:?}");
}
