//! A process that has as many descriptors as it may, which no test beside this one would do with.

use memfold_depot::Config;
use memfold_pager::tier::choice::Choice;
use memfold_pager::tier::wire::{Answer, Op, Request, ANSWER, SOCKET};
use nix::errno::Errno;
use nix::sys::resource::{getrlimit, setrlimit, Resource};
use nix::sys::socket::{connect, socket, AddressFamily, SockFlag, SockType, UnixAddr};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long something may take that never takes long.
const LIMIT: Duration = Duration::from_secs(60);

/// Descriptors that this process may have.
const MOST: u32 = 64;

/// A socket that is connected later: then it takes no further descriptor.
fn unconnected() -> OwnedFd {
    socket(AddressFamily::Unix, SockType::Stream, SockFlag::empty(), None).unwrap()
}

fn limit(descriptors: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, descriptors, hard).unwrap();
}

/// How many there are of such as are kept in reserve. That takes none.
fn spares() -> usize {
    let is_one = |fd: &u32| {
        std::fs::read_link(format!("/proc/self/fd/{fd}")).is_ok_and(|to| to == Path::new("/dev/null"))
    };
    (3..MOST).filter(is_one).count()
}

/// What comes of it when a cluster is to be kept on an engine where nobody listens.
fn put(stream: &mut UnixStream) -> i32 {
    let request = Request { op: Op::Put, file: [1; 16], segment: 0, number: 0, len: 1 };
    stream.write_all(&request.bytes()).unwrap();
    stream.write_all(&[7]).unwrap();
    let mut answer = [0; ANSWER];
    stream.read_exact(&mut answer).unwrap();
    Answer::parse(&answer).unwrap().error
}

#[test]
fn who_comes_where_no_descriptor_is_left_is_sent_away_and_who_comes_later_is_served() {
    limit(MOST.into());
    let inherited = spares();
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
    assert_eq!(put(&mut first), Errno::EHOSTDOWN as i32, "nobody listens there");
    let come = |socket: OwnedFd| {
        connect(socket.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        let stream = UnixStream::from(socket);
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    };
    let [second, third, fourth, fifth] = [(); 4].map(|()| unconnected());
    // As where others take what was kept in reserve as soon as it is given up.
    limit(3);
    let mut second = come(second);
    while spares() > inherited {
        std::thread::yield_now();
    }
    limit(MOST.into());
    put(&mut second);
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // They keep theirs, or the next had that.
    let _away = [third, fourth].map(|socket| {
        let mut stream = come(socket);
        assert_eq!(stream.read(&mut [0]).ok(), Some(0), "it would wait");
        stream
    });
    // The engine is asked no sooner than it is left alone no more.
    let until = Instant::now() + LIMIT;
    while put(&mut first) != Errno::EMFILE as i32 {
        assert!(Instant::now() < until, "it says something else");
    }
    drop(taken);
    assert_eq!(put(&mut come(fifth)), Errno::EHOSTDOWN as i32, "there is room again");
    launcher.set_nonblocking(true).unwrap();
    let lines: Vec<String> = BufReader::new(launcher).lines().map_while(Result::ok).collect();
    assert!(lines.len() == 1 && lines[0].contains("as many files open as it may"), "{lines:?}");
}
