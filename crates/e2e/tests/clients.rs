//! Programs that use the library under a daemon: its budget, its comings and goings, their forks and their own limits. Every program
//! verifies every byte.

use memfold_e2e::command_line::{memfold, scratch};
use memfold_e2e::daemon::{judge, value, Daemon, Running};
use memfold_e2e::run::copy_program;
use memfold_e2e::{wait_until, LIMIT};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_memfold-e2e");

/// Nothing goes by its age: what is folded is folded for the budget, whatever that costs.
const FOR_THE_BUDGET: [(&str, &str); 3] =
    [("MEMFOLD_COLD_AGE", "1h"), ("MEMFOLD_MAX_STALL", "100"), ("MEMFOLD_MAX_CPU", "100")];

fn start(home: &Path, words: &[&str], variables: &[(&str, &str)]) -> Running {
    Running::start(PROGRAM, home, words, variables)
}

/// A program that works until it is to finish, and until it had pages folded and brought back.
fn client(home: &Path, daemon: &Daemon, seed: u64) -> Running {
    start(home, &["client", daemon.at(), "restored", &seed.to_string(), "16"], &[])
}

/// What `memfold stat` says of a process.
fn stat(home: &Path, pid: u32) -> Option<serde_json::Value> {
    let output = memfold(home).args(["stat", "--json"]).output().unwrap();
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).ok()?;
    rows.into_iter().find(|row| row["pid"] == pid)
}

#[test]
fn a_client_comes_below_the_budget_and_everybody_can_see_it() {
    let home = scratch();
    let mut daemon = Daemon::start(home.path(), &["--budget", "12M"]);
    // However its path is written, it is the same socket.
    symlink(home.path(), home.path().join("link")).unwrap();
    let socket = home.path().join("link/daemon.sock");
    let client =
        start(home.path(), &["client", socket.to_str().unwrap(), "restored", "1", "16"], &FOR_THE_BUDGET);
    let pid = client.id();
    wait_until(LIMIT, "the budget is kept to", || {
        let [resident, stored] =
            ["resident_bytes", "stored_bytes"].map(|name| daemon.counter(name, Some(pid)));
        resident.zip(stored).is_some_and(|(resident, stored)| stored > 0 && resident + stored < 12 << 20)
    });
    assert_eq!(daemon.counter("budget_bytes", None), Some(12 << 20));
    wait_until(LIMIT, "it is told its share", || {
        let row = stat(home.path(), pid).unwrap();
        // It folds itself, whoever grants it how much.
        assert_eq!((row["mode"].as_str(), row["daemon"].as_str()), (Some("embedded"), Some(daemon.at())));
        row["share_bytes"].as_u64().is_some_and(|bytes| bytes < 24 << 20)
    });
    judge(&client.finish("a client with a budget"));
    let mut said = BufReader::new(daemon.running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    for what in ["has come", "has left"] {
        said.find(|line| line.ends_with(&format!("process {pid} {what}"))).expect(what);
    }
    daemon.end();
}

#[test]
fn clients_go_on_while_the_daemon_is_killed_and_started_again() {
    let home = scratch();
    let mut daemon = Daemon::start(home.path(), &["--quiet", "--budget", "24M"]);
    let clients = ["1", "2", "3"]
        .map(|seed| start(home.path(), &["client", daemon.at(), "restored", seed, "16"], &FOR_THE_BUDGET));
    for round in 0..3 {
        wait_until(LIMIT, "all of them are folded under it", || {
            let folded = |one: &Running| {
                daemon.counter("evicted_bytes", Some(one.id())).is_some_and(|bytes| bytes > 0)
            };
            clients.iter().all(folded) && daemon.counter("divisions_total", None) > Some(0)
        });
        daemon.running.kill();
        // A moment without any, or none.
        std::thread::sleep(std::time::Duration::from_millis(300 * round));
        daemon = Daemon::start(home.path(), &["--quiet", "--budget", "24M"]);
    }
    clients.into_iter().for_each(|client| judge(&client.finish("a client of a killed daemon")));
    daemon.end();
}

#[test]
fn clients_are_folded_as_before_when_their_daemon_has_left_for_good() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", "12M"]);
    let client = client(home.path(), &daemon, 1);
    wait_until(LIMIT, "something was restored", || {
        daemon.counter("pages_restored_total", Some(client.id())).is_some_and(|count| count > 0)
    });
    daemon.end();
    let folded = || stat(home.path(), client.id()).unwrap()["pages"]["evicted"].as_u64().unwrap();
    let before = folded();
    wait_until(LIMIT, "more is folded", || folded() > before);
    wait_until(LIMIT, "its share has lapsed", || {
        stat(home.path(), client.id()).unwrap()["share_bytes"].is_null()
    });
    judge(&client.finish("a client without daemon"));
}

#[test]
fn a_client_without_a_daemon_says_so_in_one_line_and_comes_under_the_next_one() {
    let home = scratch();
    let socket = home.path().join("daemon.sock");
    let words = ["client", socket.to_str().unwrap(), "restored", "1", "16"];
    let client = start(home.path(), &words, &FOR_THE_BUDGET);
    let quiet = start(home.path(), &words, &[&FOR_THE_BUDGET[..], &[("MEMFOLD_QUIET", "1")]].concat());
    wait_until(LIMIT, "both have their pages", || {
        [&client, &quiet]
            .iter()
            .all(|one| stat(home.path(), one.id()).is_some_and(|row| row["mode"] == "embedded"))
    });
    let daemon = Daemon::start(home.path(), &["--quiet", "--budget", "16M"]);
    wait_until(LIMIT, "one of them has a share", || {
        [&client, &quiet].iter().any(|one| daemon.counter("share_bytes", Some(one.id())).is_some())
    });
    let said = client.finish("a client without daemon");
    judge(&said);
    let lines: Vec<&str> = said.1.lines().collect();
    assert_eq!(lines.len(), 1, "{said:?}");
    assert!(lines[0].contains("no daemon listens at") && lines[0].contains(words[1]), "{said:?}");
    let said = quiet.finish("a client that is quiet");
    judge(&said);
    assert_eq!(said.1, "");
    daemon.end();
}

#[test]
fn the_path_of_a_socket_that_cannot_be_one_is_named() {
    let home = scratch();
    let long = "x".repeat(200);
    let mut client = start(home.path(), &["client", &long, "any", "1", "16"], &[]);
    let mut said = String::new();
    client.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(client.0.wait().unwrap().code(), Some(101), "it started");
    assert!(said.contains("BadSocket") && said.contains(&long), "{said}");
}

#[test]
fn a_client_under_a_daemon_folds_within_its_cpu_budget() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet"]);
    let run = |goal, cpu| {
        let limits = [("MEMFOLD_MAX_CPU", cpu), ("MEMFOLD_MAX_STALL", "100")];
        start(home.path(), &["client", daemon.at(), goal, "1", "16"], &limits)
    };
    // A tenth of a millisecond in ten seconds: looking alone takes more.
    let starved = run("any", "0.001");
    let fed = run("4194304", "100");
    fed.finish("a client with all CPU time");
    assert_eq!(value(&starved.finish("a client without CPU time").0, "folded"), 0);
}

#[test]
fn a_client_under_a_daemon_keeps_to_its_stall_budget() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet"]);
    let run = |goal| {
        let limits = [("MEMFOLD_MAX_CPU", "100"), ("MEMFOLD_MAX_STALL", "100")];
        start(home.path(), &["client", daemon.at(), goal, "1", "16"], &limits)
    };
    let (little, any) = (run("retreated"), run("1"));
    wait_until(LIMIT, "it is folded", || {
        stat(home.path(), little.id()).is_some_and(|row| row["evicted_bytes"].as_u64() > Some(0))
    });
    // A tenth of a millisecond in ten seconds, which some touches take.
    let pid = little.id().to_string();
    let set = memfold(home.path()).args(["ctl", &pid, "set", "max_stall", "0.001"]).output().unwrap();
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stderr));
    // What had gone of it comes back as a whole, because it is touched here and there.
    let little = little.finish("a client that may not wait").0;
    // Of the other nothing does, for as long.
    let any = any.finish("a client that may wait").0;
    assert_eq!(value(&little, "left"), 0, "{little}");
    assert!(value(&any, "left") > 0, "{any}");
}

#[test]
fn forked_children_of_a_client_find_every_byte_and_are_folded_themselves() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet"]);
    let limits = [("MEMFOLD_MAX_CPU", "100"), ("MEMFOLD_MAX_STALL", "100")];
    let said = start(home.path(), &["client-forks", daemon.at()], &limits).finish("a client that forks");
    assert_eq!((value(&said.0, "children"), value(&said.0, "lost")), (6, 0), "{said:?}");
}

#[test]
fn a_limit_on_the_length_of_files_neither_ends_a_client_nor_keeps_it_from_being_folded() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet"]);
    for bytes in [1 << 30, 4 << 10, 0] {
        let mut command =
            Running::command(PROGRAM, home.path(), &["client", daemon.at(), "restored", "1", "16"]);
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: a system call, and the closure allocates nothing.
        unsafe {
            command.pre_exec(move || match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            })
        };
        judge(&Running(command.spawn().unwrap()).finish("a client with a limit"));
    }
}

#[test]
fn a_client_that_ends_leaves_nothing_in_the_runtime_directory() {
    let home = scratch();
    let daemon = Daemon::start(home.path(), &["--quiet"]);
    client(home.path(), &daemon, 1).finish("a client");
    daemon.end();
    let left: Vec<_> = std::fs::read_dir(home.path()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A user to whom nothing here belongs.
const STRANGER: u32 = 61_301;

fn may_become_another() -> bool {
    // SAFETY: always succeeds.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        eprintln!("skipped: only root can start a process of another user's");
    }
    root
}

#[test]
fn who_listens_where_a_daemon_should_is_given_nothing() {
    let home = scratch();
    let socket = home.path().join("daemon.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    if may_become_another() {
        std::os::unix::fs::chown(&socket, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    let words = ["client", socket.to_str().unwrap(), "restored", "1", "16"];
    let client = start(home.path(), &words, &[]);
    // It looks whether somebody listens, and has nothing to say.
    let (mut heard, _) = listener.accept().unwrap();
    let mut bytes = [0; 64];
    assert_eq!(heard.read(&mut bytes).unwrap(), 0);
    judge(&client.finish("a client beside an impostor"));
    // Once was enough.
    listener.set_nonblocking(true).unwrap();
    assert!(listener.accept().is_err());
}

#[test]
fn a_set_user_id_client_makes_no_files_where_the_environment_says() {
    if !may_become_another() {
        return;
    }
    let home = scratch();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (program, private) = (home.path().join("program"), home.path().join("private"));
    copy_program(PROGRAM.as_ref(), &program);
    std::fs::create_dir(&private).unwrap();
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
    let files = || std::fs::read_dir(&private).unwrap().count();
    let run = |mode: u32, user: u32| {
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.args(["client", "/nonexistent/socket", "any", "1", "16"]).uid(user).current_dir("/");
        command.env("MEMFOLD_CONTROL_DIR", &private).stdin(Stdio::piped());
        let running = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        assert_eq!(value(&running.finish("a client of root's").0, "lost"), 0);
    };
    run(0o4755, STRANGER);
    assert_eq!(files(), 0, "it made files of root's where another user said");
    run(0o755, 0);
    assert_eq!(files(), 1);
}
