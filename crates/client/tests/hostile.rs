//! Clients that mean harm, as processes of the daemon's own user: neither it nor anybody else suffers it. The attacks themselves are
//! in `programs/attacks.rs`.

mod common;

use common::running::{judge, Daemon, Running};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// Nothing here takes nearly as long, but a test that hangs should end.
const BOUND: Duration = Duration::from_secs(120);

/// A program that attacks.
struct Attack {
    /// Ends it when the test does.
    running: Running,
    lines: Receiver<String>,
}

impl Attack {
    /// Begins, and returns once it has done its worst.
    fn on(daemon: &Daemon, dir: &Path, what: &str) -> Attack {
        let mut running = Running::start(dir, &["attack", daemon.socket.to_str().unwrap(), what]);
        let (out, lines) = (BufReader::new(running.0.stdout.take().unwrap()).lines(), channel());
        std::thread::spawn(move || out.map_while(Result::ok).try_for_each(|line| lines.0.send(line)));
        let attack = Attack { running, lines: lines.1 };
        attack.says("ready");
        attack
    }

    /// Waits for a line.
    fn says(&self, wanted: &str) {
        while self.lines.recv_timeout(BOUND).unwrap_or_else(|error| panic!("never {wanted}: {error}"))
            != wanted
        {}
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < BOUND, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An honest program starts, is folded and has its bytes back.
fn serves_an_honest_client(daemon: &Daemon, dir: &Path) {
    judge(&[daemon.client(dir, 7).finish("an honest client")]);
}

/// The daemon ends when it is told to.
fn ends(mut daemon: Daemon) {
    daemon.running.signal(libc::SIGTERM);
    wait_until("the daemon ends", || daemon.running.0.try_wait().unwrap().is_some());
    assert!(daemon.running.0.wait().unwrap().success());
    assert!(!daemon.socket.exists());
}

fn descriptors(daemon: &Daemon) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", daemon.running.0.id())).unwrap().count()
}

/// Begins an attack and sees that nobody else suffers, and that the daemon can be ended.
fn endures(what: &str) {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    let _attack = Attack::on(&daemon, dir.path(), what);
    serves_an_honest_client(&daemon, dir.path());
    ends(daemon);
}

/// The same, and the attacker is left to itself.
fn endures_and_drops(what: &str) {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    let attack = Attack::on(&daemon, dir.path(), what);
    attack.says("dropped");
    serves_an_honest_client(&daemon, dir.path());
    ends(daemon);
}

#[test]
fn two_thousand_silent_connections_keep_no_honest_client_waiting() {
    endures("crowd");
}

#[test]
fn one_process_with_hundreds_of_connections_takes_the_place_of_nobody() {
    endures("hoard");
}

#[test]
fn a_client_that_makes_reads_of_its_userfaultfd_block_is_dropped() {
    endures_and_drops("unblocked");
}

#[test]
fn a_client_that_is_stopped_keeps_nobody_waiting() {
    endures("stopped");
}

#[test]
fn a_client_that_rings_for_ever_and_never_hears_keeps_nobody_waiting() {
    endures("ringing");
}

#[test]
fn a_client_whose_memory_changes_for_ever_is_dropped() {
    endures_and_drops("again");
}

#[test]
fn a_client_whose_memory_changes_while_it_is_read_harms_nobody() {
    endures("flipping");
}

#[test]
fn a_client_that_forks_leaves_no_descriptors_behind() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    serves_an_honest_client(&daemon, dir.path());
    let before = descriptors(&daemon);
    let attack = Attack::on(&daemon, dir.path(), "forking");
    attack.says("dropped");
    wait_until("none of them is left", || descriptors(&daemon) <= before);
    ends(daemon);
}

#[test]
fn nothing_of_a_client_that_has_left_stays_with_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    // The connection by which the daemon's start was waited for may be one of them. What each of two clients leaves is more.
    let before = descriptors(&daemon);
    judge(
        &[1, 2].map(|seed| daemon.client(dir.path(), seed)).map(|client| client.finish("an honest client")),
    );
    let maps = || fs::read_to_string(format!("/proc/{}/maps", daemon.running.0.id())).unwrap();
    wait_until("its memory has gone", || {
        !maps().contains("memfold channel") && descriptors(&daemon) <= before
    });
}

#[test]
fn a_channel_in_huge_pages_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    let said =
        Running::start(dir.path(), &["attack", daemon.socket.to_str().unwrap(), "hugetlb"]).finish("hugetlb");
    if said == "skipped\n" {
        return eprintln!("skipped: this kernel has no huge pages");
    }
    assert_eq!(said, "refused\n");
    serves_an_honest_client(&daemon, dir.path());
    ends(daemon);
}

/// What a stream says to whoever asks for the counters.
fn ask(mut stream: impl Read + Write, header: &str) -> String {
    let _ = stream.write_all(format!("GET /metrics HTTP/1.1\r\nHost: here\r\n{header}\r\n").as_bytes());
    let mut said = String::new();
    let _ = stream.read_to_string(&mut said);
    said
}

/// A counter, of a process if it is of one.
fn counter(text: &str, name: &str, pid: Option<u32>) -> Option<u64> {
    let key = pid.map_or(format!("memfold_{name} "), |pid| format!("memfold_{name}{{pid=\"{pid}\"}} "));
    text.lines().find_map(|line| line.strip_prefix(&key)?.parse().ok())
}

#[test]
fn a_client_that_says_it_has_a_hundred_gibibytes_takes_nothing_from_an_honest_one() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = dir.path().join("metrics.sock");
    let budget = 1u64 << 30;
    let daemon = Daemon::start(dir.path(), &[&budget.to_string(), metrics.to_str().unwrap()]);
    let client = daemon.client(dir.path(), 7);
    let attack = Attack::on(&daemon, dir.path(), "sizes");
    let (honest, liar) = (Some(client.0.id()), Some(attack.running.0.id()));
    let look = || ask(UnixStream::connect(&metrics).unwrap(), "");
    let mut first = None;
    wait_until("the budget is divided six times with both", || {
        let text = look();
        let both = counter(&text, "managed_bytes", honest).is_some_and(|bytes| bytes > 0)
            && counter(&text, "managed_bytes", liar).is_some();
        let divisions = counter(&text, "divisions_total", None).unwrap();
        both && divisions >= *first.get_or_insert(divisions) + 6
    });
    let text = look();
    // Together they have a small part of the budget, so nobody has to give anything up.
    assert_eq!(counter(&text, "share_bytes", honest), None, "{text}");
    assert_eq!(counter(&text, "share_bytes", liar), None, "{text}");
    for name in ["resident_bytes", "stored_bytes", "stall_nanoseconds_total", "pages_restored_total"] {
        assert!(counter(&text, name, liar).unwrap() < budget, "{name}: {text}");
    }
    judge(&[client.finish("an honest client")]);
    ends(daemon);
}

#[test]
fn the_counters_are_told_while_sixty_connections_are_open_and_silent() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = dir.path().join("metrics.sock");
    let daemon = Daemon::start(dir.path(), &["0", metrics.to_str().unwrap()]);
    // Where so much else runs that two seconds go by meanwhile, it is tried again.
    wait_until("the counters are told beside silent connections", || {
        let silent: Vec<_> = (0..60).map(|_| UnixStream::connect(&metrics).unwrap()).collect();
        let said = ask(UnixStream::connect(&metrics).unwrap(), "");
        let open = silent.iter().all(|one| memfold_sys::socket::has_bytes(one.as_raw_fd()) == Some(false));
        assert!(said.contains("memfold_processes"), "{said}");
        open
    });
    // And they are left in the end.
    let mut silent = UnixStream::connect(&metrics).unwrap();
    assert_eq!(silent.read_to_end(&mut Vec::new()).unwrap(), 0);
    ends(daemon);
    assert!(!metrics.exists());
}

#[test]
fn over_tcp_the_counters_are_told_to_who_has_the_token_and_to_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let (word, file) = ("0123456789abcdef0123456789abcdef", dir.path().join("token"));
    fs::write(&file, word).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let daemon = Daemon::start(dir.path(), &["0", &port, file.to_str().unwrap()]);
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
    ends(daemon);
}

#[test]
fn a_daemon_that_serves_has_no_capabilities_and_is_confined() {
    let dir = tempfile::tempdir().unwrap();
    let daemon =
        Daemon::start(dir.path(), &["1073741824", dir.path().join("metrics.sock").to_str().unwrap()]);
    let client = daemon.client(dir.path(), 7);
    judge(&[client.finish("a client of a confined daemon")]);
    let _client = Attack::on(&daemon, dir.path(), "stopped");
    let status =
        |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.unwrap().path().join("status")).ok();
    let mut tasks: Vec<String> = Vec::new();
    // One that lets in, one that answers, one that divides, one that serves; another one may be on its way out.
    wait_until("there are four threads", || {
        let all = fs::read_dir(format!("/proc/{}/task", daemon.running.0.id())).unwrap();
        tasks = all.filter_map(status).collect();
        tasks.len() == 4
    });
    for status in tasks {
        let field =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t")).unwrap();
        assert_eq!((field("NoNewPrivs"), field("Seccomp")), ("1", "2"), "{status}");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(u64::from_str_radix(field(set), 16), Ok(0), "{status}");
        }
        // SAFETY: always succeeds.
        if unsafe { libc::geteuid() } == 0 {
            assert_eq!(u64::from_str_radix(field("CapBnd"), 16), Ok(0), "{status}");
        }
    }
    ends(daemon);
}
