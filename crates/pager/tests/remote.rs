//! A tier on the network: whatever the process beside and the engines behind it do, what comes back is what went, or the process ends.

// Every address here lies in a mapping that the test itself made and holds.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::*;
use memfold_pager::config::Setting;
use memfold_pager::control::Command;
use memfold_pager::tier::wire::{Answer, Name, NameText, Op, Request, REQUEST, SOCKET};
use memfold_pager::Engine;
use memfold_sys::{mem, PAGE_SIZE};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What the process beside does otherwise than it should.
#[derive(Default)]
struct Mischief {
    /// The engines cannot be reached.
    away: AtomicBool,
    /// They take no more.
    full: AtomicBool,
    /// One bit of what they give is another.
    lies: AtomicBool,
    /// Something senseless is answered first to whatever is put, and later clusters of that connection are not taken.
    confused: AtomicBool,
    /// Every third cluster that is asked for is given late.
    late: AtomicBool,
    /// What is to be forgotten is when the test says so.
    forgets_late: AtomicBool,
    /// What is put is answered when the test says so.
    hesitates: AtomicBool,
    /// Puts that have come.
    puts: AtomicUsize,
}

/// The process beside, and its engines: a map.
struct Depot {
    directory: tempfile::TempDir,
    mischief: Arc<Mischief>,
    kept: Arc<Kept>,
    connections: Arc<Mutex<Vec<UnixStream>>>,
    over: Arc<AtomicBool>,
}

#[derive(Default)]
struct Kept {
    clusters: Mutex<BTreeMap<(Name, u32, u32), Vec<u8>>>,
    /// What it was told of since it last began.
    told: Mutex<BTreeSet<(Name, u32)>>,
    to_forget: Mutex<Vec<(Name, u32)>>,
    /// Files whose owner needs them no more.
    left: Mutex<Vec<Name>>,
}

impl Kept {
    fn forget(&self) {
        for forgotten in self.to_forget.lock().unwrap().drain(..) {
            self.clusters.lock().unwrap().retain(|&(file, segment, _), _| (file, segment) != forgotten);
        }
    }
}

impl Depot {
    fn start() -> Depot {
        let depot = Depot {
            directory: tempfile::tempdir().unwrap(),
            mischief: Arc::default(),
            kept: Arc::default(),
            connections: Arc::default(),
            over: Arc::default(),
        };
        depot.listen();
        depot
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join(SOCKET)
    }

    fn listen(&self) {
        let listener = UnixListener::bind(self.socket()).unwrap();
        let (mischief, kept) = (self.mischief.clone(), self.kept.clone());
        let (connections, over) = (self.connections.clone(), self.over.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(SeqCst) {
                    return;
                }
                let stream = stream.unwrap();
                connections.lock().unwrap().push(stream.try_clone().unwrap());
                let (mischief, kept) = (mischief.clone(), kept.clone());
                thread::spawn(move || while serve(&stream, &mischief, &kept).is_ok() {});
            }
        });
    }

    /// Ends as one that is killed does: nobody is told, and it knows nothing any more.
    fn end(&self) {
        self.over.store(true, SeqCst);
        let _ = UnixStream::connect(self.socket());
        std::fs::remove_file(self.socket()).unwrap();
        for connection in self.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.kept.told.lock().unwrap().clear();
    }

    fn begin_anew(&self) {
        self.over.store(false, SeqCst);
        self.listen();
    }

    /// The segments that hold something. What was left, and nobody can read any more, holds nothing.
    fn segments(&self) -> BTreeSet<(Name, u32)> {
        let mut clusters = self.kept.clusters.lock().unwrap();
        self.kept.left.lock().unwrap().retain(|&file| {
            let is_wanted = is_locked(&self.directory.path().join(NameText(file).to_string()));
            if !is_wanted {
                clusters.retain(|&(other, _, _), _| other != file);
            }
            is_wanted
        });
        clusters.keys().map(|&(file, segment, _)| (file, segment)).collect()
    }

    /// The files that hold something.
    fn files(&self) -> BTreeSet<Name> {
        self.segments().into_iter().map(|(file, _)| file).collect()
    }

    fn engine(&self, more: &str) -> &'static Engine {
        let tier = format!("redis://nowhere,after=10ms,size=1G{more}");
        engine_beside(20, u64::MAX, &tier, self.directory.path().to_str().unwrap())
    }
}

/// Whether a process has the file locked.
fn is_locked(path: &Path) -> bool {
    let file = File::open(path).unwrap();
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) != 0 }
}

fn serve(mut stream: &UnixStream, mischief: &Mischief, kept: &Kept) -> std::io::Result<()> {
    let mut head = [0; REQUEST];
    stream.read_exact(&mut head)?;
    let Request { op, file, segment, number, len } = Request::parse(&head).unwrap();
    let answer = |error: i32, bytes: &[u8]| {
        (&*stream).write_all(&Answer { error, len: bytes.len() }.bytes())?;
        (&*stream).write_all(bytes)
    };
    let at = (file, segment, number);
    let away = mischief.away.load(SeqCst);
    match op {
        Op::Own => {}
        Op::Leave => kept.left.lock().unwrap().push(file),
        Op::Keep => {
            kept.told.lock().unwrap().extend((segment..segment + number).map(|segment| (file, segment)))
        }
        Op::Forget => {
            kept.told.lock().unwrap().remove(&(file, segment));
            kept.to_forget.lock().unwrap().push((file, segment));
            if !mischief.forgets_late.load(SeqCst) {
                kept.forget();
            }
        }
        Op::Put => {
            let mut bytes = vec![0; len];
            stream.read_exact(&mut bytes)?;
            mischief.puts.fetch_add(1, SeqCst);
            while mischief.hesitates.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            if mischief.confused.load(SeqCst) {
                // First nonsense, then that it was kept, and that of everything else.
                stream.write_all(&[0xFF; 8])?;
                loop {
                    answer(0, &[])?;
                    stream.read_exact(&mut head)?;
                    let Request { op, len, .. } = Request::parse(&head).unwrap();
                    if op == Op::Put {
                        stream.read_exact(&mut vec![0; len])?;
                    }
                }
            }
            if away || mischief.full.load(SeqCst) {
                return answer(if away { libc::EHOSTDOWN } else { libc::ENOSPC }, &[]);
            }
            kept.told.lock().unwrap().insert((file, segment));
            kept.clusters.lock().unwrap().insert(at, bytes);
            answer(0, &[])?;
        }
        Op::Get if away => answer(libc::EHOSTDOWN, &[])?,
        Op::Get => match kept.clusters.lock().unwrap().get(&at).cloned() {
            Some(mut bytes) => {
                if mischief.late.load(SeqCst) && number.is_multiple_of(3) {
                    thread::sleep(Duration::from_millis(u64::from(number % 7)));
                }
                if mischief.lies.load(SeqCst) {
                    bytes[number as usize % 1000] ^= 4;
                }
                answer(0, &bytes)?;
            }
            None => answer(libc::ENOENT, &[])?,
        },
    }
    Ok(())
}

fn below(engine: &Engine) -> u64 {
    engine.control().tier_bytes.load(Relaxed)
}

fn memory_below(depot: &Depot, len: usize, seed: u64, more: &str) -> (&'static Engine, Memory) {
    let engine = depot.engine(more);
    let memory = Memory::new(engine, len);
    memory.fill(seed);
    wait_until("everything went to the engine", || below(engine) == len as u64);
    (engine, memory)
}

/// Ends the child as it should end where it cannot go on.
fn expect_abort(status: i32) {
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGABRT, "{status:#x}");
}

/// In a child: touches all of the memory. Not to be survived.
fn touch_all(memory: &Memory) -> ! {
    // No core, please.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    memory.check(3);
    unsafe { libc::_exit(0) }
}

#[test]
fn what_went_to_an_engine_comes_back_to_the_program_and_to_its_children() {
    let depot = Depot::start();
    let (engine, memory) = memory_below(&depot, 16 * MIB, 3, "");
    let before = depot.files();
    let child = fork(engine);
    if child == 0 {
        thread::sleep(Duration::from_millis(100));
        memory.check(3);
        memory.fill(4);
        memory.check(4);
        unsafe { libc::_exit(0) };
    }
    // What the child is to read is not forgotten, whatever the parent does with it.
    memory.fill(5);
    wait_until("all of it went anew", || below(engine) == 16 * MIB as u64);
    let drop_half = |half: usize| {
        let at = memory.base + half * 8 * MIB;
        let drop = || unsafe { mem::madvise(at, 8 * MIB, libc::MADV_DONTNEED) };
        engine.drop_contents(at, 8 * MIB, drop).unwrap();
    };
    drop_half(0);
    assert_eq!(wait(child), 0, "the child lost something");
    (memory.pages / 2..memory.pages).for_each(|page| memory.check_page(5, page));
    wait_until("what the child needed is forgotten", || depot.files().is_disjoint(&before));
    drop_half(1);
    // The last segment of a file goes with the file.
    wait_until("what nobody wants is forgotten", || depot.segments().len() <= depot.files().len());
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn who_touches_what_lies_on_an_engine_that_is_away_waits_for_it() {
    let depot = Depot::start();
    let (engine, memory) = memory_below(&depot, 8 * MIB, 3, "");
    depot.mischief.away.store(true, SeqCst);
    let (base, pages) = (memory.base, memory.pages);
    let toucher = thread::spawn(move || Memory { base, pages }.check(3));
    wait_until("it waits", || engine.control().tier_wait_ns.load(Relaxed) > 1_000_000_000);
    assert!(!toucher.is_finished());
    depot.mischief.away.store(false, SeqCst);
    toucher.join().unwrap();
    assert!(engine.control().tier_waits.load(Relaxed) >= 1);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn an_answer_that_comes_late_is_never_taken_for_another() {
    let depot = Depot::start();
    let (engine, memory) = memory_below(&depot, 16 * MIB, 3, "");
    depot.mischief.late.store(true, SeqCst);
    let (base, pages) = (memory.base, memory.pages);
    // One goes on in order, and is read ahead for; the others want something else meanwhile.
    let touchers = [1, 701, 1009].map(|step| {
        thread::spawn(move || (0..pages).for_each(|n| Memory { base, pages }.check_page(3, n * step % pages)))
    });
    touchers.into_iter().for_each(|toucher| toucher.join().unwrap());
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn a_process_beside_that_is_killed_loses_nothing_and_the_next_is_told_what_to_keep() {
    let depot = Depot::start();
    let (engine, memory) = memory_below(&depot, 16 * MIB, 3, "");
    depot.end();
    let (base, pages) = (memory.base, memory.pages);
    let toucher =
        thread::spawn(move || (0..pages / 2).for_each(|page| Memory { base, pages }.check_page(3, page)));
    wait_until("it waits", || engine.control().tier_wait_ns.load(Relaxed) > 0);
    depot.begin_anew();
    toucher.join().unwrap();
    let held = || engine.control().tier_file_bytes.load(Relaxed) as usize / MIB;
    wait_until("it knows of all that lies there", || depot.kept.told.lock().unwrap().len() >= held());
    // What it does not know of expires.
    let told = depot.kept.told.lock().unwrap().clone();
    depot.kept.clusters.lock().unwrap().retain(|&(file, segment, _), _| told.contains(&(file, segment)));
    memory.check(3);
}

#[test]
fn an_engine_that_stays_away_or_lies_or_has_lost_something_ends_the_process() {
    let depot = Depot::start();
    let (engine, memory) = memory_below(&depot, 4 * MIB, 3, ",wait=1s");
    let in_child = |memory: &Memory| {
        let child = fork(engine);
        if child == 0 {
            touch_all(memory);
        }
        wait(child)
    };
    depot.mischief.lies.store(true, SeqCst);
    expect_abort(in_child(&memory));
    depot.mischief.lies.store(false, SeqCst);
    depot.mischief.away.store(true, SeqCst);
    expect_abort(in_child(&memory));
    depot.mischief.away.store(false, SeqCst);
    let clusters = std::mem::take(&mut *depot.kept.clusters.lock().unwrap());
    expect_abort(in_child(&memory));
    depot.kept.clusters.lock().unwrap().extend(clusters);
    assert_eq!(in_child(&memory), 0);
    memory.check(3);
}

#[test]
fn an_engine_that_takes_no_more_leaves_what_is_folded_in_memory() {
    let depot = Depot::start();
    depot.mischief.full.store(true, SeqCst);
    let engine = depot.engine("");
    let memory = Memory::new(engine, 8 * MIB);
    memory.fill(3);
    wait_until("it was tried", || engine.control().tier_errors.load(Relaxed) > 0);
    wait_until("all is folded", || evicted(engine) == 8 * MIB as u64);
    assert_eq!(below(engine), 0);
    memory.check(3);
}

#[test]
fn what_an_engine_does_not_take_or_give_lies_on_the_disk_beneath_it() {
    let depot = Depot::start();
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let beneath = format!(",wait=1s,disk={}", directory.path().display());
    let (engine, memory) = memory_below(&depot, 8 * MIB, 3, &beneath);
    assert!(!depot.kept.clusters.lock().unwrap().is_empty(), "the engine has none of it");
    let in_child = |memory: &Memory| {
        let child = fork(engine);
        if child == 0 {
            touch_all(memory);
        }
        wait(child)
    };
    for mischief in [&depot.mischief.lies, &depot.mischief.away, &depot.mischief.full] {
        mischief.store(true, SeqCst);
        assert_eq!(in_child(&memory), 0);
        memory.check(3);
        memory.fill(3);
        wait_until("all of it goes down again", || below(engine) == 8 * MIB as u64);
        mischief.store(false, SeqCst);
    }
    depot.kept.clusters.lock().unwrap().clear();
    assert_eq!(in_child(&memory), 0);
    memory.check(3);
    depot.end();
    assert_eq!(in_child(&memory), 0);
    memory.check(3);
    assert_eq!(engine.control().tier_waits.load(Relaxed), 0);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn what_was_not_acknowledged_stays_in_memory_whatever_comes_later() {
    let depot = Depot::start();
    depot.mischief.confused.store(true, SeqCst);
    let engine = depot.engine("");
    let memory = Memory::new(engine, 8 * MIB);
    memory.fill(3);
    wait_until("it was tried", || engine.control().tier_errors.load(Relaxed) >= 2 || below(engine) > 0);
    depot.mischief.confused.store(false, SeqCst);
    memory.check(3);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn what_is_to_be_forgotten_late_takes_nothing_with_it_that_was_put_since() {
    let depot = Depot::start();
    depot.mischief.forgets_late.store(true, SeqCst);
    let (engine, memory) = memory_below(&depot, 8 * MIB, 0, "");
    for round in 1..5 {
        // All that lies there is forgotten, and put anew.
        memory.fill(round);
        wait_until("everything went to the engine", || below(engine) == 8 * MIB as u64);
    }
    wait_until("something is to be forgotten", || !depot.kept.to_forget.lock().unwrap().is_empty());
    depot.kept.forget();
    memory.check(4);
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}

#[test]
fn everything_is_back_when_the_pager_has_stopped() {
    let depot = Depot::start();
    let (engine, memory) = memory_below(&depot, 4 * MIB, 3, "");
    have(engine, Command::Restore);
    memory.check(3);
    wait_until("everything went again", || below(engine) == 4 * MIB as u64);
    let ticket = ask(engine, Command::Stop);
    wait_until("it has stopped", || answered(engine, ticket) && engine.phase() == memfold_pager::Phase::Off);
    depot.end();
    memory.check(3);
}

#[test]
fn what_is_written_anew_while_it_is_on_its_way_is_not_taken_for_what_went() {
    let depot = Depot::start();
    let (engine, memory) = memory_below(&depot, 2 * MIB, 3, "");
    // By now it is known how these pages are best compressed, and they are not twice.
    let hour = 3_600_000_000_000;
    assert_eq!(request(engine, Command::Set, Setting::RecompressAge as u64, hour, ""), 0);
    // The first pages that go. Each changes by a bit, and is stored again, as long as it was, in the place that it has just given up.
    let changed = [14, 3, 10, 7, 12, 5];
    let change = |page: usize| unsafe { *((memory.base + page * PAGE_SIZE) as *mut u64) ^= 1 };
    let (went, puts) = (|| engine.control().pages_evicted.load(Relaxed), || depot.mischief.puts.load(SeqCst));
    let shown = || {
        depot.mischief.hesitates.store(true, SeqCst);
        let before = puts();
        memory.fill(3);
        wait_until("something is on its way", || puts() > before);
        wait_until_evicted(engine, 2 * MIB);
        for page in changed {
            let before = went();
            change(page);
            wait_until("it is stored again", || went() > before);
        }
        let is_on_its_way = puts() == before + 1;
        depot.mischief.hesitates.store(false, SeqCst);
        wait_until("everything went to the engine", || below(engine) == 2 * MIB as u64);
        changed.into_iter().for_each(change);
        memory.check(3);
        is_on_its_way
    };
    // What takes too long is given up and put again, and then shows nothing.
    assert!((0..10).any(|_| shown()), "it never stayed on its way");
    assert_eq!(engine.control().pages_lost.load(Relaxed), 0);
}
