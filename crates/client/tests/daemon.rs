//! Processes that the daemon serves: many at once, liars among them, and the daemon killed under load.

mod common;

use common::running::{judge, value, Daemon, Running};
use common::wait_until;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn seven_clients_go_on_beside_a_liar_of_every_kind() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    let clients: Vec<Running> = (1..=7).map(|seed| daemon.client(dir.path(), seed)).collect();
    let socket = daemon.socket.to_str().unwrap();
    let lies = ["garbage", "version", "huge", "short", "unsealed", "descriptors", "few", "silent", "entries"];
    for lie in lies {
        let said = Running::start(dir.path(), &["liar", socket, lie]).finish(lie);
        assert_eq!(said, "caught\n", "{lie}");
    }
    judge(&clients.into_iter().map(|client| client.finish("a client beside liars")).collect::<Vec<_>>());
    // And the daemon is as it was.
    judge(&[daemon.client(dir.path(), 8).finish("a client after liars")]);
}

#[test]
fn clients_go_on_while_the_daemon_is_killed_and_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut daemon = Daemon::start(dir.path(), &[]);
    let clients: Vec<Running> = (1..=3).map(|seed| daemon.client(dir.path(), seed)).collect();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(900));
        daemon.running.signal(libc::SIGKILL);
        std::thread::sleep(Duration::from_millis(400));
        daemon = Daemon::start(dir.path(), &[]);
    }
    judge(
        &clients.into_iter().map(|client| client.finish("a client of a killed daemon")).collect::<Vec<_>>(),
    );
}

#[test]
fn clients_end_well_after_their_daemon_has_left_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = dir.path().join("metrics.sock");
    let daemon = Daemon::start(dir.path(), &["0", metrics.to_str().unwrap()]);
    let client = daemon.client(dir.path(), 1);
    // Without a daemon nothing more is folded, so nothing more would be restored.
    let key = format!("memfold_pages_restored_total{{pid=\"{}\"}} ", client.0.id());
    wait_until("something was restored", || {
        let mut connection = UnixStream::connect(&metrics).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        text.lines().any(|line| line.strip_prefix(&key).is_some_and(|count| count != "0"))
    });
    daemon.running.signal(libc::SIGTERM);
    daemon.running.finish("the daemon");
    judge(&[client.finish("a client without daemon")]);
}

#[test]
fn the_counters_can_be_read_and_a_budget_is_kept_to() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = dir.path().join("metrics.sock");
    let daemon = Daemon::start(dir.path(), &["12582912", metrics.to_str().unwrap()]);
    let client = daemon.client(dir.path(), 1);
    let began = Instant::now();
    loop {
        let mut connection = UnixStream::connect(&metrics).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        connection.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.0 200 OK\r\n") && text.contains("memfold_budget_bytes 12582912"));
        let pid = client.0.id();
        let read = |name: &str| {
            let key = format!("memfold_{name}{{pid=\"{pid}\"}} ");
            text.lines().find_map(|line| line.strip_prefix(&key)?.parse::<u64>().ok())
        };
        if read("resident_bytes").zip(read("stored_bytes")).is_some_and(|(r, s)| s > 0 && r + s < 12 << 20) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "the budget was never kept to: {text}");
        std::thread::sleep(Duration::from_millis(20));
    }
    judge(&[client.finish("a client with a budget")]);
}

#[test]
fn the_daemon_folds_within_the_cpu_budget_of_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    let run = |goal, cpu| {
        let limits = [("MEMFOLD_MAX_CPU", cpu), ("MEMFOLD_MAX_STALL", "100")];
        Running::start_with(dir.path(), &["work", daemon.socket.to_str().unwrap(), goal, "1", "16"], &limits)
    };
    // A tenth of a millisecond in ten seconds: looking alone takes more.
    let starved = run("any", "0.001");
    // More than may wait to be compressed at a time.
    let fed = run("4194304", "100");
    fed.finish("a client with all CPU time");
    assert_eq!(value(&starved.finish("a client without CPU time"), "folded"), 0);
}

#[test]
fn the_daemon_keeps_to_the_stall_budget_of_its_client() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    let run = |goal, stall| {
        let limits = [("MEMFOLD_MAX_CPU", "100"), ("MEMFOLD_MAX_STALL", stall)];
        Running::start_with(dir.path(), &["work", daemon.socket.to_str().unwrap(), goal, "1", "16"], &limits)
    };
    // A tenth of a millisecond in ten seconds, which some touches take; and no limit. What had gone of the first came back as a
    // whole, because it was touched here and there.
    let (little, any) = (run("retreated", "0.001"), run("1", "100"));
    let little = little.finish("a client that may not wait");
    // Of the second nothing did, for as long.
    let any = any.finish("a client that may wait");
    assert_eq!(value(&little, "left"), 0, "{little}");
    assert!(value(&any, "left") > 0, "{any}");
}

#[test]
fn forked_children_find_every_byte_however_often_their_parent_was_folded() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    let limits = [("MEMFOLD_MAX_CPU", "100"), ("MEMFOLD_MAX_STALL", "100")];
    let said = Running::start_with(dir.path(), &["forks", daemon.socket.to_str().unwrap()], &limits)
        .finish("a client that forks");
    assert_eq!(value(&said, "lost"), 0, "{said}");
}

#[test]
fn a_limit_on_the_length_of_files_leaves_a_client_less_to_register_or_a_reason_and_never_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    let arguments = ["work", daemon.socket.to_str().unwrap(), "restored", "1", "16"];
    judge(&[Running::start_limited(dir.path(), &arguments, 1 << 30).finish("a client with 1 GiB")]);
    let mut refused = Running::start_limited(dir.path(), &arguments, 12 << 10);
    let status = refused.0.wait().unwrap();
    let mut said = String::new();
    refused.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    // The program would have gone on, had it not been written to give up.
    assert_eq!(status.code(), Some(101), "{status}: {said}");
    assert!(said.contains("ulimit -f"), "{said}");
}

#[test]
fn a_client_that_ends_leaves_nothing_in_the_runtime_directory() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[]);
    daemon.client(dir.path(), 1).finish("a client");
    let left: Vec<_> = std::fs::read_dir(dir.path().join("runtime")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A user to whom nothing here belongs.
const STRANGER: u32 = 61_301;

/// A process of the stranger's that waits where a daemon should, and what it says of each connection.
fn impostor(dir: &Path, socket: &Path) -> (Running, impl Iterator<Item = String>) {
    let mut command = Running::command(dir, &["impostor", socket.to_str().unwrap()]);
    let mut running = Running(command.uid(STRANGER).gid(STRANGER).current_dir("/").spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert_eq!(lines.next().as_deref(), Some("listening"));
    (running, lines)
}

/// A directory in which everybody may make files.
fn open_dir(mode: u32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    dir
}

/// What a client says that does not start.
fn refusal(dir: &Path, socket: &Path) -> String {
    let mut client = Running::start(dir, &["work", socket.to_str().unwrap(), "any", "1", "16"]);
    assert_eq!(client.0.wait().unwrap().code(), Some(101), "it started");
    let mut said = String::new();
    client.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

fn may_become_another() -> bool {
    // SAFETY: always succeeds.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: only root can start a process of another user's");
    }
    root
}

#[test]
fn who_listens_as_another_user_is_given_nothing() {
    if !may_become_another() {
        return;
    }
    let dir = open_dir(0o1777);
    let socket = dir.path().join("daemon.sock");
    let (_impostor, mut heard) = impostor(dir.path(), &socket);
    let said = refusal(dir.path(), &socket);
    assert!(said.contains(socket.to_str().unwrap()) && said.contains(&format!("user {STRANGER}")), "{said}");
    assert_eq!(heard.next().as_deref(), Some("0 bytes, 0 descriptors"));
}

#[test]
fn who_listens_as_another_user_when_the_daemon_has_gone_is_given_nothing() {
    if !may_become_another() {
        return;
    }
    let dir = open_dir(0o1777);
    let mut daemon = Daemon::start(dir.path(), &[]);
    let client = Running::start(dir.path(), &["work", daemon.socket.to_str().unwrap(), "any", "1", "16"]);
    let mut said = BufReader::new(daemon.running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    said.find(|line| line.ends_with("is served")).expect("the client came");
    daemon.running.signal(libc::SIGTERM);
    assert!(daemon.running.0.wait().unwrap().success());
    let (_impostor, heard) = impostor(dir.path(), &daemon.socket);
    // Again and again, as a client does that looks for its daemon.
    assert!(heard.take(3).all(|line| line == "0 bytes, 0 descriptors"));
    assert_eq!(value(&client.finish("a client that is beset by an impostor"), "lost"), 0);
}

#[test]
fn a_daemon_in_a_directory_that_others_can_change_or_own_is_not_trusted() {
    if !may_become_another() {
        return;
    }
    let dir = open_dir(0o777);
    let daemon = Daemon::start(dir.path(), &[]);
    let said = refusal(dir.path(), &daemon.socket);
    assert!(said.contains("mode 777"), "{said}");
    std::os::unix::fs::chown(dir.path(), Some(STRANGER), None).unwrap();
    let said = refusal(dir.path(), &daemon.socket);
    assert!(said.contains(&format!("belongs to user {STRANGER}")), "{said}");
}

#[test]
fn a_set_user_id_client_makes_no_files_where_the_environment_says() {
    if !may_become_another() {
        return;
    }
    let dir = open_dir(0o755);
    let daemon = Daemon::start(dir.path(), &[]);
    let (program, private) = (dir.path().join("program"), dir.path().join("private"));
    std::fs::copy(env!("CARGO_BIN_EXE_memfold-served"), &program).unwrap();
    std::fs::create_dir(&private).unwrap();
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
    let files = || std::fs::read_dir(&private).unwrap().count();
    let run = |mode: u32, user: u32| {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.args(["work", daemon.socket.to_str().unwrap(), "any", "1", "16"]).uid(user).current_dir("/");
        command.env("MEMFOLD_CONTROL_DIR", &private).stdin(Stdio::piped());
        let running = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert_eq!(value(&running.finish("a client of root's"), "lost"), 0);
    };
    run(0o4755, STRANGER);
    assert_eq!(files(), 0, "it made files of root's where another user said");
    run(0o755, 0);
    assert_eq!(files(), 1);
}

#[test]
fn a_start_without_a_daemon_is_refused_with_the_remedy() {
    let error = memfold_client::start(&memfold_client::Options::default().daemon("/nonexistent/socket"));
    let said = error.unwrap_err().to_string();
    assert!(said.contains("/nonexistent/socket") && said.contains("memfold daemon"), "{said}");
}
