//! Who means harm to a daemon or through it to another program, as processes of its own user: neither it nor anybody else suffers it.

use memfold_e2e::command_line::{memfold, scratch};
use memfold_e2e::daemon::{judge, Daemon, Running};
use memfold_e2e::forged::{greatest_page, page_file, run_dir};
use memfold_e2e::{is_root, wait_until, LIMIT};
use memfold_pager::control::{ControlPage, CONTROL_LEN};
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{symlink, FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

const PROGRAM: &str = env!("CARGO_BIN_EXE_memfold-e2e");

fn client(home: &Path, daemon: &Daemon, seed: u64) -> Running {
    let words = ["client", daemon.at(), "restored", &seed.to_string(), "16"];
    Running::start(PROGRAM, home, &words, &[("MEMFOLD_MAX_STALL", "100"), ("MEMFOLD_MAX_CPU", "100")])
}

/// An honest program starts, comes under the daemon, is folded and has its bytes back.
fn is_there_for_an_honest_client(daemon: &Daemon, home: &Path) {
    let client = client(home, daemon, 7);
    wait_until(LIMIT, "the daemon has seen the client", || {
        daemon.counter("evicted_bytes", Some(client.id())).is_some_and(|bytes| bytes > 0)
    });
    judge(&client.finish("an honest client"));
}

#[test]
fn seven_clients_go_on_beside_a_page_of_every_kind_of_lie() {
    let home = scratch();
    let socket = home.path().join("daemon.sock");
    let page = greatest_page(&socket);
    let changed = |at: usize, bytes: &[u8]| {
        let mut page = page.clone();
        page[at..at + bytes.len()].copy_from_slice(bytes);
        page
    };
    let mut kept = vec![
        page_file(home.path(), &page),
        // Cut short, of no length, much too long; garbage, of another version, of another process.
        page_file(home.path(), &page[..8]),
        page_file(home.path(), &[]),
        page_file(home.path(), &[0x5A; CONTROL_LEN]),
        page_file(home.path(), &changed(8, &99u32.to_ne_bytes())),
        page_file(home.path(), &changed(std::mem::offset_of!(ControlPage, pid), &1u32.to_ne_bytes())),
    ];
    let long = page_file(home.path(), &page);
    long.set_len(1 << 40).unwrap();
    kept.push(long);
    // No file at all where one should be.
    let name = std::process::id().to_string();
    symlink("/proc/self/mem", run_dir(home.path()).join(&name)).unwrap();
    fs::create_dir(run_dir(home.path()).join(&name)).unwrap();
    let fifo = std::ffi::CString::new(run_dir(home.path()).join(&name).to_str().unwrap()).unwrap();
    // SAFETY: a valid path.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", "1G"]);
    let clients: Vec<Running> = (1..=7).map(|seed| client(home.path(), &daemon, seed)).collect();
    wait_until(LIMIT, "the daemon sees all clients beside the lies", || {
        clients
            .iter()
            .all(|client| daemon.counter("managed_bytes", Some(client.id())).is_some_and(|bytes| bytes > 0))
    });
    clients.into_iter().for_each(|client| judge(&client.finish("a client beside liars")));
    // And the daemon is as it was.
    is_there_for_an_honest_client(&daemon, home.path());
    daemon.end();
}

#[test]
fn a_page_that_changes_while_it_is_read_harms_nobody() {
    let home = scratch();
    let socket = home.path().join("daemon.sock");
    let page = greatest_page(&socket);
    let file = page_file(home.path(), &page);
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", "1G"]);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1u64;
            while !over.load(Relaxed) {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (random >> 33) as usize % (CONTROL_LEN / 8) * 8;
                let _ = file.write_all_at(&random.to_ne_bytes(), at as u64);
                // In order again, a word at a time, and now and then cut short and made long again.
                let _ = file.write_all_at(&page[at..at + 8], at as u64);
                if random >> 52 == 0 {
                    let _ = file.set_len(100).and_then(|()| file.write_all_at(&page, 0));
                }
            }
        });
        let honest = std::panic::catch_unwind(|| is_there_for_an_honest_client(&daemon, home.path()));
        over.store(true, Relaxed);
        honest.unwrap();
    });
    daemon.end();
}

#[test]
fn a_page_that_says_it_keeps_a_hundred_gibibytes_takes_nothing_from_an_honest_client() {
    let home = scratch();
    let _liar = page_file(home.path(), &greatest_page(&home.path().join("daemon.sock")));
    let budget = 1u64 << 30;
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", &budget.to_string()]);
    let client = client(home.path(), &daemon, 7);
    let (honest, liar) = (Some(client.id()), Some(std::process::id()));
    let mut first = None;
    wait_until(LIMIT, "the budget is divided six times with both", || {
        let both = daemon.counter("managed_bytes", honest).is_some_and(|bytes| bytes > 0)
            && daemon.counter("managed_bytes", liar).is_some();
        let divisions = daemon.counter("divisions_total", None).unwrap();
        both && divisions >= *first.get_or_insert(divisions) + 6
    });
    // Together they have a small part of the budget, so nobody has to give anything up.
    assert_eq!(daemon.counter("share_bytes", honest), None);
    for name in ["resident_bytes", "stored_bytes"] {
        assert!(daemon.counter(name, liar).unwrap() < budget, "{name}: {}", daemon.counters());
    }
    judge(&client.finish("an honest client"));
    daemon.end();
}

#[test]
fn two_thousand_connections_keep_no_honest_client_waiting() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", "8M"]);
    let (over, made, socket) = (AtomicBool::new(false), AtomicUsize::new(0), daemon.socket.clone());
    std::thread::scope(|scope| {
        // Silent ones, and ones that say whatever comes to their mind and never hear.
        for talks in [false, true] {
            let (over, made, socket) = (&over, &made, &socket);
            scope.spawn(move || {
                let mut held = std::collections::VecDeque::new();
                while !over.load(Relaxed) {
                    if let Ok(mut stream) = UnixStream::connect(socket) {
                        if talks {
                            let _ = stream.write_all(&[0x5A; 512]);
                        }
                        held.push_back(stream);
                        made.fetch_add(1, Relaxed);
                    }
                    if held.len() == 200 {
                        held.pop_front();
                    }
                }
            });
        }
        let honest = std::panic::catch_unwind(|| {
            wait_until(LIMIT, "there were two thousand", || made.load(Relaxed) >= 2000);
            is_there_for_an_honest_client(&daemon, home.path());
        });
        // It is ended while they go on.
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| daemon.end()));
        over.store(true, Relaxed);
        honest.and(ended).unwrap();
    });
}

#[test]
fn a_client_that_is_stopped_keeps_nobody_waiting() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", "16M"]);
    let stopped = client(home.path(), &daemon, 1);
    wait_until(LIMIT, "it was seen", || {
        daemon.counter("managed_bytes", Some(stopped.id())).is_some_and(|b| b > 0)
    });
    stopped.signal(libc::SIGSTOP);
    let other = client(home.path(), &daemon, 2);
    // What the one keeps to itself, the other gives up.
    wait_until(LIMIT, "the other one comes down", || {
        daemon.counter("share_bytes", Some(other.id())).is_some_and(|bytes| bytes < 16 << 20)
    });
    judge(&other.finish("a client beside one that is stopped"));
    daemon.end();
    stopped.signal(libc::SIGCONT);
    judge(&stopped.finish("a client that was stopped"));
}

#[test]
fn nothing_of_a_client_that_has_left_stays_with_the_daemon() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", "8M"]);
    is_there_for_an_honest_client(&daemon, home.path());
    wait_until(LIMIT, "it is forgotten", || daemon.counter("processes", None) == Some(0));
    let before = daemon.descriptors();
    let both = [1, 2].map(|seed| client(home.path(), &daemon, seed));
    wait_until(LIMIT, "both were seen", || daemon.counter("processes", None) == Some(2));
    let pids = both.each_ref().map(Running::id);
    both.into_iter().for_each(|client| judge(&client.finish("an honest client")));
    wait_until(LIMIT, "nothing is left of them", || {
        let text = daemon.counters();
        pids.iter().all(|pid| !text.contains(&format!("pid=\"{pid}\""))) && daemon.descriptors() <= before
    });
    daemon.end();
}

/// What a stream says to whoever asks for the counters.
fn ask(mut stream: impl Read + Write, header: &str) -> String {
    let _ = stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: here\r\n{header}\r\n").as_bytes());
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said);
    said
}

#[test]
fn the_counters_are_told_while_sixty_connections_are_open_and_silent() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet"]);
    let metrics = home.path().join("metrics.sock");
    // Where so much else runs that two seconds go by meanwhile, it is tried again.
    wait_until(LIMIT, "the counters are told beside silent connections", || {
        let silent: Vec<_> = (0..60).map(|_| UnixStream::connect(&metrics).unwrap()).collect();
        let said = ask(UnixStream::connect(&metrics).unwrap(), "");
        let open = silent.iter().all(|one| memfold_sys::socket::has_bytes(one.as_raw_fd()) == Some(false));
        assert!(said.contains("memfold_processes"), "{said}");
        open
    });
    // And they are left in the end.
    let mut silent = UnixStream::connect(&metrics).unwrap();
    assert_eq!(silent.read_to_end(&mut Vec::new()).unwrap(), 0);
    daemon.end();
}

#[test]
fn over_tcp_the_counters_are_told_to_who_has_the_token_and_to_nobody_else() {
    let home = scratch();
    let (word, file) = ("0123456789abcdef0123456789abcdef", home.path().join("token"));
    fs::write(&file, word).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let mut command = memfold(home.path());
    command.args(["daemon", "--quiet", "--metrics", &port, "--metrics-token"]).arg(&file);
    let socket = home.path().join("daemon.sock");
    let mut daemon = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
    wait_until(LIMIT, "it listens", || UnixStream::connect(&socket).is_ok());
    let say = |header: &str| ask(TcpStream::connect(&port).unwrap(), header);
    let told = say(&format!("Authorization: Bearer {word}\r\n"));
    assert!(told.starts_with("HTTP/1.0 200 OK\r\n") && told.contains("memfold_processes 0\n"), "{told}");
    for header in
        ["", "Authorization: Bearer 0123456789abcdef0123456789abcdeX\r\n", "Authorization: Basic x\r\n"]
    {
        let told = say(header);
        assert!(
            told.starts_with("HTTP/1.0 401 Unauthorized\r\n") && !told.contains("memfold_"),
            "{header}{told}"
        );
    }
    daemon.signal(libc::SIGTERM);
    assert!(daemon.0.wait().unwrap().success());
    assert!(!socket.exists());
}

#[test]
fn a_daemon_at_work_has_no_capabilities_and_is_confined() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", "1G"]);
    is_there_for_an_honest_client(&daemon, home.path());
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.running.id())).unwrap();
    let read = |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.unwrap().path().join("status"));
    let tasks: Vec<String> = tasks.map(|task| read(task).unwrap()).collect();
    // One that keeps the socket, one that divides, one that answers.
    assert_eq!(tasks.len(), 3, "{tasks:?}");
    for status in tasks {
        let field =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t")).unwrap();
        assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1", "2"), "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(u64::from_str_radix(field(set), 16), Ok(0), "{status}");
        }
        if is_root() {
            assert_eq!(u64::from_str_radix(field("CapBnd"), 16), Ok(0), "{status}");
        }
    }
    daemon.end();
}
