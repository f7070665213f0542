//! A tier on a real engine in the network, under a real program: whatever becomes of the engine, of the process beside the program and of the launcher, the
//! program reads what it wrote, or ends and says why.

use memfold_e2e::engine::{self, Engine};
use memfold_e2e::run::{program, Server};
use memfold_e2e::{memfold, scratch, wait_until, LIMIT};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Objects whose every byte is known. It looks at them when it is told to, and so does a child.
const SCRIPT: &str = r#"
import os, sys
def make(i): return {'number': i, 'text': ('%d,' % i) * 40}
heap = [make(i) for i in range(100000)]
print('made', os.getpid(), flush=True)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(0 if all(heap[i] == make(i) for i in range(0, len(heap), 13)) else 1)
    assert all(thing == make(i) for i, thing in enumerate(heap)), 'changed'
    assert os.waitpid(child, 0)[1] == 0, 'the child lost something'
    print('kept', flush=True)
"#;

/// A folded program with its launcher.
struct Folded {
    launcher: Server,
    stdin: Option<std::process::ChildStdin>,
    stdout: BufReader<std::process::ChildStdout>,
    pid: u32,
    _home: TempDir,
}

fn launch(home: &Path, tier: &str) -> Command {
    launch_script(home, tier, SCRIPT)
}

fn launch_script(home: &Path, tier: &str, script: &str) -> Command {
    let mut command = memfold(home);
    command.args([
        "run",
        "--cold-age",
        "100ms",
        "--max-stall",
        "100%",
        "--max-cpu",
        "100%",
        "--tier",
        tier,
        "--",
    ]);
    command.arg(program("python3", "python3")).args(["-c", script]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

impl Folded {
    fn start(tier: &str) -> Folded {
        Folded::begin(|home| launch(home, tier))
    }

    fn begin(launch: impl FnOnce(&Path) -> Command) -> Folded {
        let home = scratch();
        let mut launcher = Server(launch(home.path()).spawn().unwrap());
        let stdin = launcher.0.stdin.take();
        let mut stdout = BufReader::new(launcher.0.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let pid = line.trim().strip_prefix("made ").unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
        Folded { launcher, stdin, stdout, pid, _home: home }
    }

    /// Has it look at all that it has.
    fn tell_to_look(&mut self) {
        self.stdin.as_mut().unwrap().write_all(b"look\n").unwrap();
    }

    fn expect_kept(&mut self) {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "kept\n", "{}", self.said());
    }

    /// What it said when it had ended.
    fn said(&mut self) -> String {
        let mut text = String::new();
        drop(self.stdin.take());
        let _ = self.launcher.0.stderr.as_mut().map(|stderr| stderr.read_to_string(&mut text));
        text
    }

    fn end(mut self) -> (ExitStatus, String) {
        let said = self.said();
        (self.launcher.0.wait().unwrap(), said)
    }

    /// The process that keeps its tier.
    fn depot(&self) -> u32 {
        let parent = self.launcher.0.id();
        let of = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let is_child = |pid: &u32| {
            let stat = of(*pid);
            let after = stat.rsplit_once(") ").map_or("", |(_, after)| after);
            after.split_whitespace().nth(1).and_then(|parent| parent.parse().ok()) == Some(parent)
        };
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let mut all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        all.find(|pid| is_child(pid) && *pid != self.pid).expect("there is a process for the tier")
    }
}

fn tier(engines: &[&Engine], more: &str) -> String {
    let addresses: Vec<String> = engines.iter().map(|engine| engine.address()).collect();
    format!("redis://{},after=50ms,size=1G{more}", addresses.join(","))
}

/// Waits until most of the program is on the engine.
fn await_below(engine: &mut Engine) {
    wait_until(LIMIT, "it goes to the engine", || engine.keys() >= 4);
}

#[test]
fn an_engine_that_is_killed_and_comes_back_or_stands_still_is_waited_for() {
    let lasting = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut engine = Engine::start(&lasting);
    let mut folded = Folded::start(&tier(&[&engine], ""));
    await_below(&mut engine);
    engine.kill();
    folded.tell_to_look();
    std::thread::sleep(Duration::from_secs(1));
    engine.start_again(&lasting);
    folded.expect_kept();
    await_below(&mut engine);
    engine.signal(libc::SIGSTOP);
    folded.tell_to_look();
    std::thread::sleep(Duration::from_secs(5));
    engine.signal(libc::SIGCONT);
    folded.expect_kept();
    let (status, said) = folded.end();
    assert!(status.success(), "{status}: {said}");
    wait_until(LIMIT, "nothing of it is left there", || engine.keys() == 0);
}

#[test]
fn a_network_that_is_cut_for_five_seconds_is_waited_for() {
    if !engine::enter_own_network() {
        eprintln!("not tried: a network of one's own takes root");
        return;
    }
    let mut engine = Engine::start(&[]);
    let mut folded = Folded::start(&tier(&[&engine], ""));
    await_below(&mut engine);
    engine::set_loopback(false);
    folded.tell_to_look();
    // Half-open connections, refused ones, and programs that are asked meanwhile: what a cut of that length brings.
    std::thread::sleep(Duration::from_secs(5));
    engine::set_loopback(true);
    folded.expect_kept();
    let (status, said) = folded.end();
    assert!(status.success(), "{status}: {said}");
    wait_until(LIMIT, "nothing of it is left there", || engine.keys() == 0);
}

#[test]
fn an_engine_that_changes_what_it_has_ends_the_program_with_a_message() {
    let mut engine = Engine::start(&[]);
    let mut folded = Folded::start(&tier(&[&engine], ""));
    await_below(&mut engine);
    let flip = "for _, key in ipairs(redis.call('KEYS', '*')) do for _, field in ipairs(redis.call('HKEYS', key)) do \
                local was = redis.call('HGET', key, field) \
                redis.call('HSET', key, field, string.char(bit.bxor(was:byte(1), 4)) .. was:sub(2)) end end return 1";
    assert_eq!(engine.ask(&["EVAL", flip, "0"]), "1");
    folded.tell_to_look();
    let (status, said) = folded.end();
    // The launcher ends as a shell reports it.
    assert!(
        status.code() == Some(128 + libc::SIGABRT) || status.signal() == Some(libc::SIGABRT),
        "{status}: {said}"
    );
    assert!(said.contains("is not what was put there"), "{said}");
}

#[test]
fn an_engine_that_is_full_leaves_the_rest_in_memory_and_that_is_said_once() {
    let mut engine = Engine::start(&["--maxmemory", "4mb", "--maxmemory-policy", "noeviction"]);
    let mut folded = Folded::start(&tier(&[&engine], ""));
    for _ in 0..2 {
        wait_until(LIMIT, "it is full", || engine.ask(&["INFO", "errorstats"]).contains("errorstat_OOM"));
        folded.tell_to_look();
        folded.expect_kept();
    }
    let (status, said) = folded.end();
    assert!(status.success(), "{status}: {said}");
    assert_eq!(said.matches("is full: what is folded stays in memory").count(), 1, "{said}");
}

#[test]
fn who_keeps_the_tier_may_be_killed_and_the_launcher_too() {
    let mut engine = Engine::start(&[]);
    let mut folded = Folded::start(&tier(&[&engine], ""));
    await_below(&mut engine);
    let depot = folded.depot();
    // SAFETY: signals to processes of ours: a child of our child, and our child.
    unsafe { libc::kill(depot as i32, libc::SIGKILL) };
    folded.tell_to_look();
    folded.expect_kept();
    assert_ne!(folded.depot(), depot);
    await_below(&mut engine);
    folded.launcher.0.kill().unwrap();
    folded.launcher.0.wait().unwrap();
    // The program goes on, and the process with it.
    folded.tell_to_look();
    let mut line = String::new();
    folded.stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "kept\n");
    drop(folded.stdin.take());
    wait_until(LIMIT, "nothing of it is left there", || engine.keys() == 0);
}

#[test]
fn who_keeps_the_tier_may_open_as_much_as_it_can_however_little_the_program_does_with() {
    let mut engine = Engine::start(&[]);
    let folded = Folded::begin(|home| {
        let plain = launch(home, &tier(&[&engine], ""));
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "ulimit -Sn 256; exec \"$@\"", "sh"])
            .arg(plain.get_program())
            .args(plain.get_args());
        command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    });
    let limits = |pid: u32| {
        let all = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = all.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap().to_owned();
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    };
    let (soft, hard) = limits(folded.depot());
    assert_eq!(soft, hard);
    assert_eq!(limits(folded.pid).0, "256", "the program has what it was given");
    await_below(&mut engine);
    assert!(folded.end().0.success());
}

#[test]
fn a_program_that_leaves_its_work_to_a_child_before_it_has_much_memory_has_its_tier() {
    let mut engine = Engine::start(&[]);
    let home = scratch();
    let go_on = home.path().join("go on");
    // The child has nothing to fold until the launcher is gone.
    let script = format!(
        "import os, time\n\
         if os.fork(): os._exit(0)\n\
         while not os.path.exists({go_on:?}): time.sleep(0.01)\n{SCRIPT}"
    );
    let mut command = launch_script(home.path(), &tier(&[&engine], ""), &script);
    let mut launcher = Server(command.spawn().unwrap());
    let stdin = launcher.0.stdin.take();
    let mut stdout = BufReader::new(launcher.0.stdout.take().unwrap());
    assert!(launcher.0.wait().unwrap().success());
    // It looked for processes that are left more than once before it would go.
    std::thread::sleep(Duration::from_secs(2));
    std::fs::write(&go_on, "").unwrap();
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(line.starts_with("made "), "{line:?}");
    await_below(&mut engine);
    let mut stdin = stdin.unwrap();
    stdin.write_all(b"look\n").unwrap();
    line.clear();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "kept\n");
    drop(stdin);
    wait_until(LIMIT, "nothing of it is left there", || engine.keys() == 0);
}

#[test]
fn a_launcher_whose_whole_service_is_ended_has_nothing_left_on_the_engine() {
    let mut engine = Engine::start(&[]);
    let mut folded = Folded::start(&tier(&[&engine], ""));
    await_below(&mut engine);
    let depot = folded.depot();
    // As systemd(1) does: all of them are asked to end.
    for pid in [depot, folded.pid, folded.launcher.0.id()] {
        // SAFETY: signals to our child, and to children of it.
        unsafe { libc::kill(pid as i32, libc::SIGTERM) };
    }
    folded.launcher.0.wait().unwrap();
    assert_eq!(engine.keys(), 0);
}

/// Waits until two of three have what goes there, and puts the one that has most first. By chance the third has nothing: there are few segments.
fn await_copies(engines: &mut [Engine]) {
    wait_until(LIMIT, "something goes to two of them", || {
        engines.iter_mut().map(Engine::keys).filter(|&keys| keys > 0).count() > 1
    });
    let keys: Vec<usize> = engines.iter_mut().map(Engine::keys).collect();
    let most = (0..engines.len()).max_by_key(|&number| keys[number]).unwrap_or(0);
    engines.swap(0, most);
}

/// The program goes on without an engine that dies, and leaves nothing on the others, which have so many keys.
fn outlives(mut folded: Folded, dying: &mut Engine, mut keys_left: impl FnMut() -> usize) {
    dying.kill();
    folded.tell_to_look();
    folded.expect_kept();
    let (status, said) = folded.end();
    assert!(status.success(), "{status}: {said}");
    wait_until(LIMIT, "nothing of it is left there", || keys_left() == 0);
}

#[test]
fn of_three_engines_one_may_die_whichever_has_what() {
    let mut engines = [(); 3].map(|()| Engine::start(&[]));
    let folded = Folded::start(&tier(&engines.each_ref(), ""));
    await_copies(&mut engines);
    let [one, other, third] = &mut engines;
    outlives(folded, one, || other.keys() + third.keys());
}

#[test]
fn of_a_cluster_of_three_one_may_die_and_keys_may_move() {
    let mut engines = Engine::start_cluster(3, &["--cluster-require-full-coverage", "yes"]);
    let home = scratch();
    let all = |engines: &[Engine]| tier(&engines.iter().collect::<Vec<_>>(), "");
    let output = launch(home.path(), &all(&engines)).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("cluster-require-full-coverage no"), "{said}");
    for engine in &mut engines {
        engine.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let mut folded = Folded::start(&all(&engines));
    await_copies(&mut engines);
    // A key moves from the first to the second, as when a cluster is made larger.
    let [one, other, third] = &mut engines[..] else { panic!("there are three") };
    let key = one.ask(&["RANDOMKEY"]);
    let slot = one.ask(&["CLUSTER", "KEYSLOT", &key]);
    let [from, to] = [&mut *one, &mut *other].map(|engine| engine.ask(&["CLUSTER", "MYID"]));
    assert_eq!(other.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from]), "OK");
    assert_eq!(one.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to]), "OK");
    let port = other.port.to_string();
    // All of that slot, if there are more.
    while one.ask(&["CLUSTER", "COUNTKEYSINSLOT", &slot]) != "0" {
        assert_eq!(one.ask(&["MIGRATE", "127.0.0.1", &port, &key, "0", "10000"]), "OK");
    }
    // It is still on its way: the first names the second, which answers who says that it was sent.
    folded.tell_to_look();
    folded.expect_kept();
    for engine in [&mut *other, &mut *one] {
        assert_eq!(engine.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to]), "OK");
    }
    folded.tell_to_look();
    folded.expect_kept();
    outlives(folded, one, || other.keys() + third.keys());
}

#[test]
fn an_engine_that_dies_with_a_disk_beneath_it_is_not_missed() {
    let mut engine = Engine::start(&[]);
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let beneath = format!(",disk={}", directory.path().display());
    let mut folded = Folded::start(&tier(&[&engine], &beneath));
    await_below(&mut engine);
    engine.kill();
    folded.tell_to_look();
    folded.expect_kept();
    // It comes back with nothing, and is given what goes down from then on.
    engine.start_again(&[]);
    let is_given_some = |engine: &mut Engine| {
        (0..300).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            engine.keys() > 0
        })
    };
    // What goes down while it is still left alone is on the disk only, until it was touched again.
    while !is_given_some(&mut engine) {
        folded.tell_to_look();
        folded.expect_kept();
    }
    let (status, said) = folded.end();
    assert!(status.success() && !said.contains("alone"), "{status}: {said}");
    wait_until(LIMIT, "nothing of it is left there", || engine.keys() == 0);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn an_engine_that_will_not_do_is_refused_with_the_remedy_and_a_password_comes_from_a_file() {
    let mut engine = Engine::start(&["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"]);
    let home = scratch();
    let refused = |tier: &str| {
        let output = launch(home.path(), tier).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{tier}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refused(&tier(&[&engine], ""));
    assert!(said.contains("maxmemory-policy noeviction"), "{said}");
    let said = refused("redis://127.0.0.1:1");
    assert!(said.contains("127.0.0.1:1") && said.contains("refused"), "{said}");
    engine.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    engine.ask(&["ACL", "SETUSER", "fold", "on", ">secret", "~memfold:*", "+@all"]);
    engine.ask(&["ACL", "SETUSER", "default", "nopass", "-@all", "+ping", "+dbsize", "+acl"]);
    let said = refused(&tier(&[&engine], ""));
    assert!(said.contains("permissions") || said.contains("NOPERM"), "{said}");
    let auth = home.path().join("auth");
    let with = |text: &str| {
        std::fs::write(&auth, text).unwrap();
        std::fs::set_permissions(&auth, std::fs::Permissions::from_mode(0o600)).unwrap();
        tier(&[&engine], &format!(",auth={}", auth.display()))
    };
    let said = refused(&with("fold wrong\n"));
    assert!(!said.contains("wrong\n"), "{said}");
    let good = with("fold secret\n");
    let mut folded = Folded::start(&good);
    wait_until(LIMIT, "it goes there", || engine.keys() >= 4);
    folded.tell_to_look();
    folded.expect_kept();
    assert!(folded.end().0.success());
}

#[test]
fn a_process_for_the_tier_that_cannot_begin_is_told_and_leaves_no_directory() {
    let engine = Engine::start(&[]);
    let home = scratch();
    // No socket can be in a directory with a name that long (unix(7)).
    let directory = home.path().join("long".repeat(25));
    std::fs::create_dir(&directory).unwrap();
    let mut command = launch(home.path(), &tier(&[&engine], ""));
    let output = command.env("TMPDIR", &directory).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("does not begin"), "{said}");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}

#[test]
fn what_is_on_an_engine_is_kept_there_for_as_long_as_the_program_lives() {
    let mut engine = Engine::start(&[]);
    let mut folded = Folded::start(&tier(&[&engine], ",expire=10s"));
    await_below(&mut engine);
    // What is written renews it too: that does not count.
    let calls = |engine: &mut Engine| {
        let all = engine.ask(&["INFO", "commandstats"]);
        let line = all.lines().find(|line| line.starts_with("cmdstat_hset:")).unwrap().to_owned();
        line.split(',').next().unwrap().to_owned()
    };
    let left = |engine: &mut Engine, key: &str| engine.ask(&["PTTL", key]).parse::<i64>().unwrap();
    wait_until(LIMIT, "an expiry is renewed by itself", || {
        let key = engine.ask(&["RANDOMKEY"]);
        let (written, first) = (calls(&mut engine), left(&mut engine, &key));
        std::thread::sleep(Duration::from_millis(100));
        let later = left(&mut engine, &key);
        assert!(later <= 10_000 && later != -1, "{later}");
        later > first && written == calls(&mut engine)
    });
    folded.tell_to_look();
    folded.expect_kept();
    assert!(folded.end().0.success());
}

/// A certificate authority in the directory, and a certificate of it for this machine.
fn certify(directory: &Path) {
    let openssl = |words: &str| {
        let mut command = Command::new(program("openssl", "openssl"));
        command.args(words.split_whitespace()).current_dir(directory).stderr(Stdio::null());
        assert!(command.status().unwrap().success(), "openssl {words}");
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2";
    openssl(&format!("req -x509 {key} -keyout ca.key -out ca.pem -subj /CN=authority"));
    openssl(&format!(
        "req -x509 {key} -keyout key.pem -out cert.pem -subj /CN=engine -CA ca.pem -CAkey ca.key \
         -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=IP:127.0.0.1"
    ));
}

/// Options of an engine that is spoken with by TLS, with the certificate in the directory.
fn secretly(directory: &Path) -> Vec<String> {
    let file = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    let words =
        [("auth-clients", "no".to_owned()), ("cert-file", file("cert.pem")), ("key-file", file("key.pem"))];
    let words = words.into_iter().chain([("ca-cert-file", file("ca.pem"))]);
    words.flat_map(|(name, text)| [format!("--tls-{name}"), text]).collect()
}

#[test]
fn the_nodes_of_a_cluster_are_spoken_with_by_tls_those_that_were_not_named_too() {
    let directory = scratch();
    certify(directory.path());
    let secret = secretly(directory.path());
    let secret: Vec<&str> = secret.iter().map(String::as_str).collect();
    let more = ["--tls-cluster", "yes", "--cluster-require-full-coverage", "no"];
    let mut engines =
        Engine::start_cluster_by("--tls-port", 3, &[&["--port", "0"][..], &more, &secret].concat());
    let text = format!("rediss://127.0.0.1:{},after=50ms,size=1G", engines[0].port);
    let folded = Folded::begin(|home| {
        let mut command = launch(home, &text);
        command.env("SSL_CERT_FILE", directory.path().join("ca.pem"));
        command
    });
    await_copies(&mut engines);
    let [one, other, third] = &mut engines[..] else { panic!("there are three") };
    outlives(folded, one, || other.keys() + third.keys());
}

#[test]
fn an_engine_is_spoken_with_by_tls_with_user_and_password_from_a_file() {
    let directory = scratch();
    certify(directory.path());
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let mut engine = Engine::new();
    let port = engine.port;
    let secret = secretly(directory.path());
    let secret: Vec<&str> = secret.iter().map(String::as_str).collect();
    engine.start_again(&[&["--port", "0", "--tls-port", &port.to_string()], &secret[..]].concat());
    engine.ask(&["ACL", "SETUSER", "fold", "on", ">secret", "~memfold:*", "+@all"]);
    let auth = directory.path().join("auth");
    std::fs::write(&auth, "fold secret\n").unwrap();
    std::fs::set_permissions(&auth, std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!("rediss://127.0.0.1:{port},after=50ms,auth={}", auth.display());
    // Nobody has vouched for it.
    let output = launch(directory.path(), &text).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("certificate"), "{said}");
    let mut folded = Folded::begin(|home| {
        let mut command = launch(home, &text);
        command.env("SSL_CERT_FILE", file("ca.pem"));
        command
    });
    await_below(&mut engine);
    folded.tell_to_look();
    folded.expect_kept();
    let (status, said) = folded.end();
    assert!(status.success(), "{status}: {said}");
    wait_until(LIMIT, "nothing of it is left there", || engine.keys() == 0);
}
