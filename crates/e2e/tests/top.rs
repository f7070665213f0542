//! `memfold top` in a terminal whose screen is read back, and `memfold metrics`, whose text is read by Prometheus' own tool.
//!
//! Root sees everybody's programs, so those of a test have a name that no other program has.

use memfold_e2e::held::Held;
use memfold_e2e::run::{copy_program, finish, program, Server};
use memfold_e2e::terminal::Terminal;
use memfold_e2e::{memfold, output, scratch, wait_until, LIMIT};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn contrib(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(file)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

fn top(home: &Path, words: &[&str]) -> Command {
    let mut command = memfold(home);
    command
        .arg("top")
        .args(words)
        .env("TERM", "xterm-256color")
        .env("LC_ALL", "C.UTF-8")
        .env_remove("NO_COLOR");
    command
}

#[test]
fn all_programs_are_listed_sorted_filtered_and_summed_up() {
    let home = scratch();
    let (small, large) = (Held::start(home.path(), "both-a", 8), Held::start(home.path(), "both-b", 24));
    let both = format!("{}both", std::process::id());
    let mut terminal = Terminal::run(top(home.path(), &["--every", "200ms", "--sort", "resident"]), 30, 120);
    terminal.press("/");
    terminal.wait_for_text("filter:");
    terminal.press(&both);
    terminal.press("\r");
    let order = |first: &Held, second: &Held| {
        let (first, second) = (first.name.clone(), second.name.clone());
        move |seen: &memfold_e2e::terminal::Seen| {
            let at = |name: &str| seen.find(name).map(|(line, _)| line);
            at(&first).is_some()
                && at(&second) == at(&first).map(|line| line + 1)
                // The line of sums is drawn last.
                && seen.lines().iter().any(|line| line.starts_with("2 programs"))
        }
    };
    let seen = terminal.wait_for("the larger first", order(&large, &small));
    let total = seen.lines().into_iter().rfind(|line| line.starts_with("2 programs")).expect("a total line");
    assert!(total.contains("MiB") && seen.text().contains("RESIDENT"), "{}", seen.text());
    assert!(seen.has_colours(), "no colours");
    // The other way round, and by a click on the head of a column.
    terminal.press("i");
    terminal.wait_for("the smaller first", order(&small, &large));
    let head = terminal.seen().find("NAME").expect("a head");
    terminal.click(head);
    terminal.wait_for("names in order", order(&small, &large));
    terminal.click(head);
    terminal.wait_for("names in the other order", order(&large, &small));
    // What the words mean, and back.
    terminal.press("h");
    assert!(terminal.wait_for_text("set aside").text().contains("Words:"));
    terminal.press("x");
    terminal.wait_for("the list again", |seen| seen.find("Words:").is_none());
    // Narrow and low, and wide again.
    terminal.resize(4, 20);
    terminal.wait_for("a small screen", |seen| seen.find("SAVED").is_some_and(|(line, _)| line == 0));
    terminal.resize(30, 200);
    terminal.wait_for_text("WHY NOT MORE");
    // One that ends leaves the list.
    small.end();
    terminal.wait_for("one program", |seen| seen.find("1 program").is_some());
    terminal.press("q");
    let (status, seen) = terminal.end();
    assert!(status.success() && seen.is_left(), "{status}: {}", seen.text());
    large.end();
}

#[test]
fn one_program_is_looked_at_and_steered_and_its_end_is_told() {
    let home = scratch();
    let held = Held::start(home.path(), "one", 24);
    let mut terminal =
        Terminal::run(top(home.path(), &["--every", "200ms", "--filter", &held.name]), 40, 120);
    terminal.wait_for_text(&held.name);
    terminal.press("\r");
    // The picture is there, with what is in use and what is not managed.
    terminal.wait_for("the picture", |seen| {
        seen.find("2.00 MiB: # in use").is_some() && seen.text().contains("####")
    });
    // What is not confirmed is not done.
    terminal.press("e");
    terminal.wait_for_text("y yes, any other key no");
    terminal.press("n");
    terminal.wait_for("no question", |seen| seen.find("y yes").is_none());
    assert_eq!(held.stat(home.path())["pages"]["evicted"], 0);
    terminal.press("e");
    terminal.wait_for_text("y yes, any other key no");
    terminal.press("y");
    terminal.wait_for_text("done: evict");
    assert!(held.stat(home.path())["pages"]["evicted"].as_u64() > Some(0));
    terminal.press("m");
    terminal.wait_for("folded extents", |seen| seen.text().contains("::::"));
    terminal.press("ry");
    terminal.wait_for_text("done: restore");
    // A setting, a bad value first.
    terminal.press("\rsoon\r");
    terminal.wait_for_text("a time such as 500ms");
    terminal.press("\x7f\x7f\x7f\x7f33m\r");
    terminal.wait_for_text("y yes, any other key no");
    terminal.press("y");
    terminal.wait_for_text("done: set cold_age");
    assert_eq!(held.stat(home.path())["settings"]["cold_age"], 33 * 60 * 1_000_000_000u64);
    terminal.press("py");
    terminal.wait_for("a pause", |seen| seen.find("embedded, paused").is_some());
    // Ended while it is looked at: the last numbers stay, and nothing can be asked any more.
    let (name, pid) = (held.name.clone(), held.pid);
    held.end();
    terminal.wait_for("its end", |seen| {
        seen.find("ended").is_some() && seen.find(&format!("{name} {pid}")).is_some()
    });
    terminal.press("e");
    terminal.wait_for_text("has ended");
    terminal.press("\x1b");
    terminal.wait_for_text("no folded program matches the filter");
    // SAFETY: sends a signal to a program of the test's own.
    unsafe { libc::kill(terminal.pid() as i32, libc::SIGTERM) };
    let (status, seen) = terminal.end();
    assert!(status.success() && seen.is_left(), "{status}: {}", seen.text());
    assert_eq!(left_over(home.path()), Vec::<String>::new());
}

/// The files for pictures that were left behind.
fn left_over(home: &Path) -> Vec<String> {
    let runs = fs::read_dir(home).unwrap().flatten().filter_map(|run| fs::read_dir(run.path()).ok());
    let names =
        runs.flat_map(|files| files.flatten()).map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("heat-")).collect()
}

#[test]
fn without_colours_letters_tell_the_same() {
    let home = scratch();
    let held = Held::start(home.path(), "plain", 8);
    for (name, value) in [("NO_COLOR", "1"), ("TERM", "vt100")] {
        let mut command = top(home.path(), &["--every", "200ms", "--filter", &held.name]);
        command.env(name, value).env("LC_ALL", "C");
        let mut terminal = Terminal::run(command, 40, 100);
        terminal.wait_for_text(&held.name);
        terminal.press("\r");
        let seen = terminal.wait_for("the picture", |seen| seen.find("2.00 MiB: # in use").is_some());
        assert!(!seen.has_colours() && seen.text().is_ascii(), "{name}: {}", seen.text());
        terminal.press("\x03");
        assert!(terminal.end().0.success());
    }
    held.end();
}

#[test]
fn without_a_terminal_there_is_one_table_or_a_word_of_advice() {
    let home = scratch();
    let held = Held::start(home.path(), "once", 8);
    let once = output(top(home.path(), &["--once", "--every", "100ms", "--filter", &held.name]));
    let text = said(&once);
    let lines: Vec<&str> = text.lines().collect();
    assert!(once.status.success() && once.stderr.is_empty() && lines.len() == 3, "{text}");
    assert!(
        lines[0].starts_with("NAME ")
            && lines[1].starts_with(&held.name)
            && lines[2].starts_with("1 program "),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text}");
    let piped = output(top(home.path(), &[]));
    assert!(piped.status.code() == Some(2) && said(&piped).contains("--once"), "{}", said(&piped));
    let mut dumb = top(home.path(), &[]);
    dumb.env("TERM", "dumb");
    let (status, seen) = Terminal::run(dumb, 24, 80).end();
    assert!(status.code() == Some(2) && seen.text().contains("TERM is dumb"), "{}", seen.text());
    for words in [&["--every", "1ms"][..], &["--sort", "colour"]] {
        assert_eq!(output(top(home.path(), words)).status.code(), Some(2), "{words:?}");
    }
    held.end();
}

#[test]
fn hundreds_of_programs_are_scrolled_through() {
    const MANY: usize = 150;
    let home = scratch();
    let name = format!("many{}", std::process::id());
    let copy = home.path().join(&name);
    copy_program(&program("sleep", "coreutils"), &copy);
    let script =
        format!("for n in $(seq {MANY}); do {0} 600 & done; read end; kill $(jobs -p)", copy.display());
    let mut command = memfold(home.path());
    command.args(["run", "--quiet", "--", "bash", "-c", &script]).stdin(Stdio::piped());
    let mut launcher = Server(command.spawn().expect("memfold can be executed"));
    // The screen looks rarely at so many: what is there when it begins is there at once.
    wait_until(LIMIT, "all of them", || {
        let mut command = memfold(home.path());
        command.args(["stat", "--json", &name]);
        serde_json::from_slice::<Vec<Value>>(&output(command).stdout).is_ok_and(|rows| rows.len() == MANY)
    });
    let mut terminal =
        Terminal::run(top(home.path(), &["--every", "200ms", "--filter", &name, "--sort", "pid"]), 30, 100);
    terminal.wait_for_text(&format!("{MANY} programs"));
    let first = terminal.wait_for_text(&name).lines();
    terminal.press("\x1b[F");
    terminal.wait_for("the last of them", |seen| {
        let shown = |lines: &[String]| lines.iter().rfind(|line| line.starts_with(&name)).cloned();
        shown(&seen.lines()).is_some() && shown(&seen.lines()) != shown(&first)
    });
    terminal.press("\x1b[H");
    terminal.wait_for("the first of them", |seen| seen.find(first[5].split("  ").next().unwrap()).is_some());
    terminal.press("q");
    assert!(terminal.end().0.success());
    drop(launcher.0.stdin.take());
    assert!(launcher.0.wait().is_ok());
}

/// What is answered to who asks.
fn ask(mut stream: impl Read + Write, header: &str) -> String {
    stream
        .write_all(format!("GET /metrics HTTP/1.1\r\nHost: here\r\n{header}\r\n").as_bytes())
        .expect("somebody reads");
    let mut said = String::new();
    stream.read_to_string(&mut said).expect("an answer");
    said
}

fn metrics(home: &Path, words: &[&str]) -> Command {
    let mut command = memfold(home);
    command.arg("metrics").args(words);
    command
}

#[test]
fn metrics_are_what_prometheus_reads_and_what_dashboard_and_alerts_ask_for() {
    let home = scratch();
    let held = Held::start(home.path(), "told", 8);
    let printed = output(metrics(home.path(), &[]));
    assert!(printed.status.success(), "{}", said(&printed));
    let text = String::from_utf8(printed.stdout).unwrap();
    let label = format!("pid=\"{}\",program=\"{}\"", held.pid, held.name);
    assert!(text.contains(&format!("memfold_managed_bytes{{{label}")), "{text}");
    let promtool = || Command::new(program("promtool", "prometheus"));
    let mut check = promtool();
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let checked = check.wait_with_output().unwrap();
    assert!(checked.status.success() && said(&checked).is_empty(), "{}", said(&checked));
    for words in [["check", "rules", "memfold.rules.yml"], ["test", "rules", "memfold.rules.test.yml"]] {
        let mut command = promtool();
        command.args(&words[..2]).arg(contrib(words[2]));
        finish(command, LIMIT).expect_success(&words.join(" "));
    }
    // Every name that is asked for is one that there is.
    let names: BTreeSet<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(contrib("grafana-dashboard.json")).unwrap()).unwrap();
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() > 8));
    let files = [fs::read_to_string(contrib("memfold.rules.yml")).unwrap(), dashboard.to_string()];
    let words = files.iter().flat_map(|file| file.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
    let mut asked = 0;
    for word in words.filter(|word| word.starts_with("memfold_")) {
        let base =
            ["_bucket", "_count", "_sum"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
        assert!(names.contains(word) || names.contains(base), "{word}: {names:?}");
        asked += 1;
    }
    assert!(asked > 20, "{asked}");
    held.end();
}

/// `memfold metrics` as it listens.
fn listening(home: &Path, words: &[&str]) -> Server {
    let mut command = metrics(home, words);
    let mut server = Server(command.stderr(Stdio::piped()).spawn().expect("memfold can be executed"));
    let mut line = String::new();
    BufReader::new(server.0.stderr.take().expect("piped")).read_line(&mut line).unwrap();
    assert!(line.contains("the counters are at"), "{line}");
    server
}

#[test]
fn metrics_are_told_to_who_may_know_them() {
    let home = scratch();
    // Nothing is told to everybody unless somebody has said so.
    let careless = output(metrics(home.path(), &["--listen", "9274"]));
    assert!(
        careless.status.code() == Some(2) && said(&careless).contains("--metrics-token"),
        "{}",
        said(&careless)
    );
    assert_eq!(output(metrics(home.path(), &["--listen", "0.0.0.0:9274"])).status.code(), Some(2));
    assert_eq!(output(metrics(home.path(), &["--metrics-open"])).status.code(), Some(2));
    // A port in use.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let refused = output(metrics(home.path(), &["--listen", &port, "--metrics-open"]));
    assert!(
        refused.status.code() == Some(1) && said(&refused).contains("`--listen 0`"),
        "{}",
        said(&refused)
    );
    drop(taken);
    // With a token.
    let token = home.path().join("token");
    fs::write(&token, "0123456789abcdef0123456789abcdef\n").unwrap();
    fs::set_permissions(&token, Permissions::from_mode(0o600)).unwrap();
    let server = listening(home.path(), &["--listen", &port, "--metrics-token", token.to_str().unwrap()]);
    let connect = || TcpStream::connect(format!("127.0.0.1:{port}")).expect("it listens");
    assert!(ask(connect(), "").starts_with("HTTP/1.0 401"));
    let told = ask(connect(), "Authorization: Bearer 0123456789abcdef0123456789abcdef\r\n");
    assert!(told.starts_with("HTTP/1.0 200") && told.contains("\nmemfold_programs "), "{told}");
    drop(server);
    // On a socket of the user's own, which goes with it.
    let socket = home.path().join("metrics.sock");
    let mut server = listening(home.path(), &["--listen", socket.to_str().unwrap()]);
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(ask(UnixStream::connect(&socket).unwrap(), "").contains("\nmemfold_programs "));
    // SAFETY: sends a signal to a program of the test's own.
    unsafe { libc::kill(server.0.id() as i32, libc::SIGTERM) };
    assert!(server.0.wait().unwrap().success() && !socket.exists());
}
