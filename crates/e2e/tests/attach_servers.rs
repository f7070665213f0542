//! Servers are attached to and detached from while clients work: of many processes and other users', postgres under pgbench and nginx with a reload between, and
//! redis under redis-benchmark. Each answer is checked, and each process is left as it was.

use memfold_e2e::agent::{may_attach, memfold_with_agent, rounds, HARSH};
use memfold_e2e::redis::Redis;
use memfold_e2e::run::{children, program, Server};
use memfold_e2e::{scratch, wait_until, LIMIT};
use std::collections::HashSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{chown, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

const NOBODY: u32 = 65534;

/// Attaches to a server and its processes while `work` goes on, and detaches: what was attached to, and what was folded of all.
fn attach_meanwhile(home: &Path, root: u32, usual: usize, work: &AtomicBool) -> (HashSet<u32>, u64) {
    let (mut all, mut folded, mut rounds) = (HashSet::new(), 0, rounds(usual));
    let memfold = |arguments: &[&str]| memfold_with_agent(home).args(arguments).output().unwrap();
    while work.load(Relaxed) || rounds > 0 {
        rounds = rounds.saturating_sub(1);
        let pids: Vec<u32> = std::iter::once(root).chain(children(root)).collect();
        let attached: Vec<u32> = pids
            .into_iter()
            .filter(|pid| {
                memfold(&[&["attach", "--quiet"], &HARSH[..], &[&pid.to_string()]].concat()).status.success()
            })
            .collect();
        assert!(attached.contains(&root), "the server itself is attached to");
        all.extend(&attached);
        wait_until(LIMIT, "something of the server is folded", || evicted(home, root) > 0);
        for pid in attached {
            folded += evicted(home, pid);
            let detached = memfold(&["detach", "--quiet", &pid.to_string()]);
            let ended = !Path::new(&format!("/proc/{pid}")).exists();
            assert!(detached.status.success() || ended, "{}", String::from_utf8_lossy(&detached.stderr));
        }
    }
    (all, folded)
}

fn evicted(home: &Path, pid: u32) -> u64 {
    let output = memfold_with_agent(home).args(["stat", "--json", &pid.to_string()]).output().unwrap();
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let pages = &rows[0]["pages"];
    assert_eq!(pages["lost"].as_u64().unwrap_or(0), 0);
    ["evicted", "second_chance", "set_aside"].iter().filter_map(|name| pages[name].as_u64()).sum()
}

#[test]
fn postgres_answers_pgbench_and_loses_no_transaction() {
    if !may_attach() {
        return;
    }
    let (home, dir) = (scratch(), scratch());
    chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let client = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(program(name, "postgresql"));
        command.args(arguments).current_dir(dir.path()).uid(NOBODY).gid(NOBODY).stdin(Stdio::null());
        command
            .env("PGHOST", dir.path())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", "postgres")
            .env("LC_ALL", "C");
        command
    };
    let done = |mut command: Command| {
        let output = command.output().expect("postgres's programs can be executed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    };
    done(client("initdb", &["-D", "data", "-U", "postgres", "--no-sync", "-A", "trust"]));
    let folder = dir.path().to_str().unwrap();
    let mut start =
        client("postgres", &["-D", "data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"]);
    let server = Server(start.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let root = server.0.id();
    let psql = |sql: &str| client("psql", &["-qAtX", "-v", "ON_ERROR_STOP=1", "-c", sql]);
    wait_until(LIMIT, "postgres answers", || psql("select 1").output().unwrap().status.success());
    done(client("pgbench", &["-i", "-q", "-s", "1"]));
    let works = AtomicBool::new(true);
    let (attached, folded) = std::thread::scope(|scope| {
        let attaching = scope.spawn(|| attach_meanwhile(home.path(), root, 2, &works));
        // A connection each, so that the server forks under it; and one that stays.
        for arguments in [["-n", "-C", "-c", "2", "-t", "60"], ["-n", "-S", "-c", "2", "-t", "500"]] {
            done(client("pgbench", &arguments));
        }
        works.store(false, Relaxed);
        attaching.join().unwrap()
    });
    assert!(attached.len() > 3 && folded > 0, "{attached:?}, {folded}");
    let sums =
        "select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history), \
                (select count(*) from pgbench_history)";
    assert_eq!(done(psql(sums)), "t|120");
    // SAFETY: our own child, which was not waited for. A fast shutdown.
    unsafe { libc::kill(root as i32, libc::SIGINT) };
    let mut server = server;
    wait_until(LIMIT, "postgres ends", || server.0.try_wait().unwrap().is_some());
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn nginx_serves_the_same_bytes_while_its_workers_are_attached_to() {
    if !may_attach() {
        return;
    }
    let (home, dir) = (scratch(), scratch());
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let page: String = (0..40_000).map(|n| format!("{n} ")).collect();
    fs::write(dir.path().join("page.txt"), &page).unwrap();
    let conf = format!(
        "daemon off; master_process on; worker_processes 2; pid nginx.pid; error_log stderr; user nobody nogroup;
         events {{ worker_connections 64; }}
         http {{ access_log off; gzip on; gzip_types text/plain; types {{ text/plain txt; }} client_body_temp_path b; proxy_temp_path p;
         fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
         server {{ listen unix:{0}/socket; root {0}; }} }}",
        dir.path().display()
    );
    fs::write(dir.path().join("conf"), conf).unwrap();
    let mut command = Command::new(program("nginx", "nginx-light"));
    command.arg("-p").arg(dir.path()).args(["-c", "conf", "-e", "stderr"]).stderr(Stdio::null());
    let mut server = Server(command.spawn().unwrap());
    let root = server.0.id();
    let socket = dir.path().join("socket");
    let ask = |encoding: &str| -> Vec<u8> {
        let mut stream = UnixStream::connect(&socket).unwrap();
        write!(
            stream,
            "GET /page.txt HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept-Encoding: {encoding}\r\n\r\n"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let body = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("a head") + 4;
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer[..body]));
        answer.split_off(body)
    };
    wait_until(LIMIT, "nginx answers", || UnixStream::connect(&socket).is_ok() && children(root).len() == 2);
    let packed = ask("gzip");
    assert!(packed.len() < page.len());
    let works = AtomicBool::new(true);
    let (attached, folded) = std::thread::scope(|scope| {
        let attaching = scope.spawn(|| attach_meanwhile(home.path(), root, 2, &works));
        for round in 0..300 {
            assert_eq!(ask("identity"), page.as_bytes());
            assert_eq!(ask("gzip"), packed);
            if round == 150 {
                // New workers, forked by the one that is attached to.
                // SAFETY: our own child, which was not waited for.
                unsafe { libc::kill(root as i32, libc::SIGHUP) };
            }
        }
        works.store(false, Relaxed);
        attaching.join().unwrap()
    });
    assert!(attached.len() >= 3 && folded > 0, "{attached:?}, {folded}");
    // SAFETY: as above.
    unsafe { libc::kill(root as i32, libc::SIGQUIT) };
    wait_until(LIMIT, "nginx ends", || server.0.try_wait().unwrap().is_some());
    assert!(server.0.wait().unwrap().success());
}

/// Each request looks at what the one before it has left there, in the server: redis-benchmark itself reads no value.
const LOOKS: &str = "local is, right = redis.call('GET', KEYS[1]), string.rep(KEYS[1], 12) \
                     if is and is ~= right then return redis.error_reply('WRONG ' .. KEYS[1]) end \
                     redis.call('SET', KEYS[1], right) return redis.call('INCR', 'requests')";

#[test]
fn redis_keeps_every_value_under_redis_benchmark() {
    if !may_attach() {
        return;
    }
    const KEYS: usize = 20_000;
    const REQUESTS: usize = 20_000;
    let (home, dir) = (scratch(), scratch());
    let mut redis = Redis::start(dir.path(), |_| {});
    let cold = |number: usize| format!("nobody asks for number {number}; ").repeat(8);
    let set = |number: usize| vec!["SET".into(), format!("cold:{number}"), cold(number)];
    redis.pipeline(KEYS, set, |_, reply| assert_eq!(reply, b"OK"));
    let root = redis.pid();
    let benchmark = || {
        let mut command = Command::new(program("redis-benchmark", "redis-tools"));
        command.arg("-s").arg(dir.path().join("socket")).args(["-c", "8", "-P", "4", "-q"]);
        command.args(["-n", &REQUESTS.to_string(), "-r", &KEYS.to_string()]);
        command.args(["EVAL", LOOKS, "1", "key:__rand_int__"]).stdin(Stdio::null());
        let output = command.output().expect("redis-benchmark can be executed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let mut times = 0;
    let (attached, folded) = std::thread::scope(|scope| {
        let attaching = scope.spawn(|| attach_meanwhile(home.path(), root, 8, &AtomicBool::new(false)));
        while !attaching.is_finished() {
            benchmark();
            times += 1;
        }
        attaching.join().unwrap()
    });
    assert!(attached == HashSet::from([root]) && folded > 0, "{attached:?}, {folded}");
    // What is wrong is not counted, whatever redis-benchmark makes of it.
    assert_eq!(redis.ask(&["GET", "requests"]), (times * REQUESTS).to_string().as_bytes());
    let get = |number: usize| vec!["GET".into(), format!("cold:{number}")];
    redis.pipeline(KEYS, get, |number, reply| assert_eq!(reply, cold(number).as_bytes()));
    let mut there = 0;
    let get = |number: usize| vec!["GET".into(), format!("key:{number:012}")];
    redis.pipeline(KEYS, get, |number, reply| {
        if reply != b"(nil)" {
            there += 1;
            assert_eq!(reply, format!("key:{number:012}").repeat(12).as_bytes());
        }
    });
    assert!(there > KEYS / 4, "{there} values");
    redis.shut_down();
}
