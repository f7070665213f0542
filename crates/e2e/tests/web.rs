//! `memfold web`: its page in a real browser, and what it answers to who is not its reader.

use memfold_e2e::browser::Browser;
use memfold_e2e::forged;
use memfold_e2e::held::Held;
use memfold_e2e::run::{copy_program, program, Server};
use memfold_e2e::{is_root, memfold, output, scratch, wait_until, LIMIT};
use memfold_inspect::Snapshot;
use memfold_pager::control::Mode;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{PoisonError, RwLock};

/// Who has many processes started has the machine for itself: memfold looks the more rarely the longer that takes.
static MANY_PROCESSES: RwLock<()> = RwLock::new(());

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn token(home: &Path) -> PathBuf {
    let path = home.join("token");
    fs::write(&path, TOKEN).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    path
}

fn web(home: &Path, words: &[&str]) -> Command {
    let mut command = memfold(home);
    command.arg("web").args(words).env_remove("SUDO_UID");
    command
}

/// The server, at a port that was free.
struct Web {
    server: Server,
    at: String,
}

impl Web {
    fn start(home: &Path, words: &[&str]) -> Web {
        Web::of(web(home, &[&["--listen", "0", "--every", "250ms"], words].concat()))
    }

    /// A command that says where its page is.
    fn of(mut command: Command) -> Web {
        let mut server = Server(command.stderr(Stdio::piped()).spawn().expect("memfold can be executed"));
        let (mut lines, mut said) = (BufReader::new(server.0.stderr.take().expect("piped")), String::new());
        while !said.contains("http://") {
            assert!(lines.read_line(&mut said).unwrap() > 0, "{said}");
        }
        // Who says more is heard to its end.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        let at = said.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        Web { server, at: at.unwrap_or_else(|| panic!("{said}")).to_owned() }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.at).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// What is answered to a request of these lines.
    fn ask(&self, request: &str) -> String {
        self.ask_on(self.connect(), request)
    }

    fn ask_on(&self, mut stream: TcpStream, request: &str) -> String {
        stream.write_all(request.as_bytes()).expect("somebody reads");
        let mut said = Vec::new();
        // One that is refused may be closed before all of it was read.
        let _ = stream.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    }

    fn get(&self, path: &str, headers: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}\r\n", self.at))
    }

    fn order(&self, token: &str, body: &str) -> String {
        self.ask(&format!(
            "POST /order HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{body}",
            self.at,
            body.len()
        ))
    }
}

/// The least contrast of a text that is seen with what is behind it (WCAG 2.1, 1.4.3), and which text that is.
const CONTRAST: &str = "(() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255).map((c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, n) => sum + c * [.2126, .7152, .0722][n], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour[3] !== 0) return colour;
    }
    return numbers(getComputedStyle(document.documentElement).backgroundColor);
  };
  let least = [99, ''];
  for (const e of document.body.querySelectorAll('*')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own && !/INPUT|SELECT/.test(e.tagName) || !e.checkVisibility() || !e.getClientRects().length) continue;
    const [a, b] = [light(numbers(getComputedStyle(e).color)), light(behind(e))];
    const contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (contrast < least[0]) least = [contrast, e.outerHTML.slice(0, 200)];
  }
  return least;
})()";

/// At every width, in both colours: nothing hangs over the side, and every text can be read.
fn looks_well(browser: &mut Browser, what: &str) {
    for dark in [false, true] {
        for width in [360, 480, 800, 1200, 2000] {
            browser.look(width, dark);
            browser.wait(&format!(
                "innerWidth === {width} && document.documentElement.hasAttribute('data-dark') === {dark}"
            ));
            let over =
                browser.value("document.documentElement.scrollWidth - document.documentElement.clientWidth");
            assert_eq!(over, 0, "{what} at {width}, dark {dark}");
            let contrast = browser.value(CONTRAST);
            assert!(contrast[0].as_f64() >= Some(4.5), "{what} at {width}, dark {dark}: {contrast}");
        }
    }
    browser.look(1200, false);
}

/// Names in the table, from above.
fn names(browser: &mut Browser) -> Vec<String> {
    let names = browser
        .value("[...document.querySelectorAll('#list tbody td.name')].map((cell) => cell.textContent)");
    names.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_browser_shows_programs_and_steers_one_and_tells_its_end() {
    let _few = MANY_PROCESSES.read().unwrap_or_else(PoisonError::into_inner);
    let home = scratch();
    let (small, large) = (Held::start(home.path(), "both-a", 8), Held::start(home.path(), "both-b", 24));
    let web = Web::start(home.path(), &["--token-file", token(home.path()).to_str().unwrap()]);
    let mut browser = Browser::start();
    browser.look(1200, false);
    browser.go(&format!("http://{}/", web.at));
    // The list: sorted, filtered, summed up.
    browser.wait(&format!("document.querySelector('tbody').textContent.includes('{}')", large.name));
    let both = format!("{}both", std::process::id());
    browser.value(&format!("document.getElementById('filter').value = '{both}'; document.getElementById('filter').dispatchEvent(new Event('input'))"));
    browser.value("[...document.querySelectorAll('#list thead button')].find((b) => b.textContent === 'RESIDENT').click()");
    browser.wait(&format!("document.querySelectorAll('#list tbody tr').length === 2 && document.querySelector('td.name').textContent === '{}'", large.name));
    browser.value("document.querySelector('#list thead .name button').click()");
    assert_eq!(names(&mut browser), [small.name.clone(), large.name.clone()]);
    assert_eq!(
        browser.value("document.querySelector('#list thead .name').getAttribute('aria-sort')"),
        "ascending"
    );
    browser.wait("document.querySelector('#list tfoot .name').textContent === '2 programs'");
    looks_well(&mut browser, "the list");
    // A choice of colours holds, whatever the system likes.
    browser.value(
        "const t = document.getElementById('theme'); t.value = 'dark'; t.dispatchEvent(new Event('change'))",
    );
    browser.go(&format!("http://{}/#/{}", web.at, large.pid));
    browser.wait("document.documentElement.hasAttribute('data-dark')");
    browser.value("t.value = ''; t.dispatchEvent(new Event('change'))");
    // One program: its address space, gone through by keys.
    browser.wait("!document.getElementById('heat').hidden");
    browser.value("document.getElementById('heat').focus()");
    browser.press("End");
    browser.press("ArrowLeft");
    browser.wait("/^0x[0-9a-f]+: [a-z']+/.test(document.getElementById('cell').textContent)");
    assert_eq!(browser.value("document.getElementById('actions').hidden"), true);
    // A wrong token, then the right one.
    let click =
        |browser: &mut Browser, id: &str| browser.value(&format!("document.getElementById('{id}').click()"));
    let answer = |browser: &mut Browser, text: &str| {
        browser.wait("document.getElementById('ask').open");
        browser.value(&format!("document.getElementById('ask-value').value = '{text}'"));
        browser.value("document.getElementById('ask-yes').click()");
    };
    click(&mut browser, "steer");
    answer(&mut browser, "fedcba9876543210fedcba9876543210");
    browser.wait("document.getElementById('ask-error').textContent.includes('not the token')");
    let refused = std::mem::take(&mut browser.complaints);
    assert!(refused.iter().all(|line| line.contains("401")), "{refused:?}");
    looks_well(&mut browser, "a question");
    answer(&mut browser, TOKEN);
    browser.wait("!document.getElementById('ask').open && !document.getElementById('actions').hidden");
    looks_well(&mut browser, "a program");
    // What is not confirmed is not done.
    let act = |browser: &mut Browser, name: &str| {
        browser.wait(&format!(
            "[...document.querySelectorAll('#actions button')].some((b) => b.textContent === '{name}')"
        ));
        browser.value(&format!("[...document.querySelectorAll('#actions button')].find((b) => b.textContent === '{name}').click()"));
        browser.wait("document.getElementById('ask').open");
    };
    act(&mut browser, "Evict");
    browser.press("Escape");
    browser.wait("!document.getElementById('ask').open");
    assert_eq!(large.stat(home.path())["pages"]["evicted"], 0);
    act(&mut browser, "Evict");
    click(&mut browser, "ask-yes");
    browser.wait("document.getElementById('said').textContent.includes('done: evict')");
    assert!(large.stat(home.path())["pages"]["evicted"].as_u64() > Some(0));
    browser.wait(
        "[...document.querySelectorAll('#legend li')].some((li) => /^folded .* MiB/.test(li.textContent))",
    );
    // A setting, a bad value first.
    browser.value("[...document.querySelectorAll('#settings tr')].find((r) => r.cells[0].textContent === 'cold_age').querySelector('button').click()");
    answer(&mut browser, "soon");
    browser.wait("document.getElementById('ask-error').textContent.includes('a time such as 500ms')");
    answer(&mut browser, "33m");
    browser.wait("!document.getElementById('ask').open");
    assert_eq!(large.stat(home.path())["settings"]["cold_age"], 33 * 60 * 1_000_000_000u64);
    for (action, state) in [
        ("Pause", "paused"),
        ("Resume", "embedded"),
        ("Sleep", "asleep"),
        ("Wake", "embedded"),
        ("Restore", "embedded"),
    ] {
        act(&mut browser, action);
        click(&mut browser, "ask-yes");
        browser.wait(&format!("!document.getElementById('ask').open && document.getElementById('state').textContent.endsWith('{state}')"));
    }
    // Ended while it is looked at: the last numbers stay, and nothing can be asked any more.
    let (pid, name) = (large.pid, large.name.clone());
    large.end();
    browser.wait("document.getElementById('state').textContent === 'ended' && document.getElementById('actions').hidden");
    assert_eq!(browser.value("document.getElementById('name').textContent"), format!("{name} {pid}"));
    browser.value("location.hash = '#/'");
    browser.wait(&format!("document.querySelector('tbody').textContent.includes('{}') && !document.querySelector('tbody').textContent.includes('{name}')", small.name));
    browser.value("location.hash = '#/999999999'");
    browser.wait("document.getElementById('about').textContent === 'There is no folded process 999999999.'");
    let others: Vec<_> =
        browser.complaints.iter().filter(|line| !line.contains("404") && !line.contains("400")).collect();
    assert!(others.is_empty(), "{others:?}");
    small.end();
    // The server ends as it is told to.
    let mut server = web.server;
    // SAFETY: sends a signal to a program of the test's own.
    unsafe { libc::kill(server.0.id() as i32, libc::SIGTERM) };
    assert!(server.0.wait().unwrap().success());
    let left = fs::read_dir(home.path()).unwrap().flatten().filter_map(|run| fs::read_dir(run.path()).ok());
    let left: Vec<_> = left.flat_map(|files| files.flatten()).map(|file| file.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().starts_with("heat-")), "{left:?}");
}

#[test]
fn only_the_page_of_this_machine_and_who_has_the_token_get_answers() {
    let _few = MANY_PROCESSES.read().unwrap_or_else(PoisonError::into_inner);
    let home = scratch();
    let held = Held::start(home.path(), "web-c", 8);
    let reading = Web::start(home.path(), &[]);
    let said = reading.get("/", "");
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("<title>memfold"), "{said}");
    for header in [
        "content-security-policy: default-src 'none'",
        "x-content-type-options: nosniff",
        "cache-control: no-store",
        "x-frame-options: DENY",
    ] {
        assert!(said.contains(header), "{header}: {said}");
    }
    assert!(!said.to_lowercase().contains("access-control-"), "{said}");
    let status = |said: String, expected: &str| {
        assert!(said.starts_with(&format!("HTTP/1.1 {expected}")), "{expected}: {said}")
    };
    // Another host by name (DNS rebinding), a page of another site, what is not there.
    for path in ["/", "/events"] {
        status(
            reading
                .ask(&format!("GET {path} HTTP/1.1\r\nHost: evil.example:9275\r\nConnection: close\r\n\r\n")),
            "421",
        );
        status(reading.ask(&format!("GET {path} HTTP/1.0\r\n\r\n")).replace("HTTP/1.0", "HTTP/1.1"), "421");
        status(reading.get(path, "Origin: http://evil.example\r\n"), "403");
        status(reading.get(path, "Sec-Fetch-Site: cross-site\r\n"), "403");
    }
    status(reading.get("/etc/passwd", ""), "404");
    status(reading.get("/order", ""), "405");
    status(reading.get("/events?pid=x", ""), "400");
    status(reading.get("/events?pid=999999999", ""), "404");
    // Too much of a head, and none at all.
    status(reading.get("/", &"X-Line: 1\r\n".repeat(100)), "431");
    assert!(!reading.get("/", &format!("X-Long: {}\r\n", "x".repeat(64 << 10))).contains("200 OK"));
    status(reading.ask("\x16\x03\x01 hello\r\n\r\n"), "400");
    // Nobody changes anything where there is no token, and without it.
    status(reading.order(TOKEN, ""), "403");
    let steering = Web::start(home.path(), &["--token-file", token(home.path()).to_str().unwrap()]);
    for wrong in ["", "fedcba9876543210fedcba9876543210", &TOKEN[1..]] {
        status(steering.order(wrong, ""), "401");
    }
    status(steering.order(TOKEN, ""), "200");
    wait_until(LIMIT, "the program is known", || {
        !steering
            .order(TOKEN, &format!("{{\"pid\":{},\"started_ns\":\"1\",\"action\":\"evict\"}}", held.pid))
            .is_empty()
    });
    // Another process by the same number, nonsense, and too much of it.
    status(
        steering.order(TOKEN, &format!("{{\"pid\":{},\"started_ns\":\"1\",\"action\":\"evict\"}}", held.pid)),
        "409",
    );
    status(steering.order(TOKEN, "{\"pid\":1,\"started_ns\":\"1\",\"action\":\"stop\"}"), "400");
    status(steering.order(TOKEN, &" ".repeat(100 << 10)), "400");
    assert_eq!(held.stat(home.path())["pages"]["evicted"], 0);
    held.end();
    if is_root() {
        // A connection of another user's, unless everybody may look.
        status(
            reading.ask_on(as_nobody(&reading), &format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", reading.at)),
            "403",
        );
        let open = Web::start(home.path(), &["--open"]);
        status(
            open.ask_on(
                as_nobody(&open),
                &format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", open.at),
            ),
            "200",
        );
    }
}

/// A connection that is the user nobody's to the kernel.
fn as_nobody(web: &Web) -> TcpStream {
    let at = web.at.clone();
    // A thread's own user for files is that of its sockets, too (setfsuid(2)).
    let connect = std::thread::spawn(move || {
        // SAFETY: no memory involved.
        unsafe { libc::setfsuid(65_534) };
        TcpStream::connect(at).expect("it listens")
    });
    connect.join().unwrap()
}

#[test]
fn the_daemon_serves_the_same_page_and_takes_it_along_however_it_ends() {
    let _few = MANY_PROCESSES.read().unwrap_or_else(PoisonError::into_inner);
    let home = scratch();
    let held = Held::start(home.path(), "web-d", 8);
    let (token, socket) = (token(home.path()), home.path().join("daemon.sock"));
    let daemon = |port: &str| {
        let mut command = memfold(home.path());
        command.args(["daemon", "--budget", "1G", "--http", port, "--http-token"]).arg(&token);
        command.arg("--socket").arg(&socket).env_remove("SUDO_UID");
        command
    };
    let web = Web::of(daemon("0"));
    let said = web.get("/", "");
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("<title>memfold"), "{said}");
    let mut events = web.connect();
    events.write_all(format!("GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", web.at).as_bytes()).unwrap();
    let mut told = String::new();
    wait_until(LIMIT, "the program is in the news", || {
        let mut bytes = [0; 4096];
        let length = events.read(&mut bytes).unwrap();
        told += &String::from_utf8_lossy(&bytes[..length]);
        told.contains(&held.name)
    });
    // What needs the token.
    let order = format!("{{\"pid\":{},\"started_ns\":\"0\",\"action\":\"evict\"}}", held.pid);
    assert!(web.order("wrong", &order).starts_with("HTTP/1.1 401"));
    assert!(web.order(TOKEN, &order).contains("has ended"), "another program of that number");
    // Killed, it leaves the port to the next one.
    let at = web.at.clone();
    drop(web);
    let port = at.rsplit(':').next().unwrap();
    wait_until(LIMIT, "the port is free", || TcpListener::bind(&at).is_ok());
    let mut next = Web::of(daemon(port));
    assert_eq!(next.at, at);
    wait_until(LIMIT, "it listens", || socket.exists());
    // SAFETY: sends a signal to a program of the test's own.
    unsafe { libc::kill(next.server.0.id() as i32, libc::SIGTERM) };
    assert!(next.server.0.wait().unwrap().success() && !socket.exists());
    wait_until(LIMIT, "the page is gone", || TcpStream::connect(&at).is_err());
    held.end();
}

#[test]
fn what_cannot_be_served_is_told_with_the_remedy() {
    let home = scratch();
    let fails = |words: &[&str], code: i32, part: &str| {
        let output = output(web(home.path(), words));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(code) && said.contains(part),
            "{words:?}: {}: {said}",
            output.status
        );
    };
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    fails(&["--listen", &at], 1, "another program does; `--listen");
    for place in ["0.0.0.0:9275", "192.0.2.1:80", "here", "99999", "[::]:9275"] {
        fails(&["--listen", place], 2, "is needed");
    }
    let file = token(home.path());
    let path = file.to_str().unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    fails(&["--listen", "0", "--token-file", path], 2, "chmod 600");
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    fs::write(&file, "short").unwrap();
    fails(&["--listen", "0", "--token-file", path], 2, "openssl rand");
    fails(&["--listen", "0", "--token-file", "/nowhere/token"], 2, "/nowhere/token");
    fails(&["--every", "1ms"], 2, "between 250ms and 1h");
}

#[test]
fn who_says_nothing_or_reads_nothing_keeps_nobody_waiting() {
    let _few = MANY_PROCESSES.read().unwrap_or_else(PoisonError::into_inner);
    let home = scratch();
    let held = Held::start(home.path(), "web-d", 8);
    let web = Web::start(home.path(), &[]);
    // Some say nothing, some say half of it, some ask and do not read.
    let silent: Vec<_> = (0..16).map(|_| web.connect()).collect();
    let half: Vec<_> = (0..16)
        .map(|_| {
            let mut stream = web.connect();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: local").unwrap();
            stream
        })
        .collect();
    let deaf: Vec<_> = (0..16)
        .map(|_| {
            let mut stream = web.connect();
            write!(stream, "GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", web.at).unwrap();
            stream
        })
        .collect();
    let mut reader = BufReader::new(web.connect());
    write!(reader.get_mut(), "GET /events HTTP/1.1\r\nHost: {}\r\n\r\n", web.at).unwrap();
    let mut news = 0;
    let mut line = String::new();
    while news < 5 {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the news have ended");
        news += usize::from(line.starts_with("data: {\"programs\"") && line.contains(&held.name));
    }
    // Of more than there may be the last are turned away; those that say nothing make room after a while.
    let more: Vec<_> = (0..64).map(|_| web.connect()).collect();
    drop(more);
    wait_until(LIMIT, "room for another", || web.get("/", "").starts_with("HTTP/1.1 200"));
    for mut stream in silent.into_iter().chain(half) {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said);
    }
    drop(deaf);
    held.end();
}

#[test]
fn a_thousand_programs_are_shown() {
    const MANY: usize = 1000;
    let _alone = MANY_PROCESSES.write().unwrap_or_else(PoisonError::into_inner);
    let home = scratch();
    // Processes that are there until their input ends, and pages that say anything of them.
    let name = format!("many{}", std::process::id());
    let copy = home.path().join(&name);
    copy_program(&program("cat", "coreutils"), &copy);
    let script = format!(
        "exec 3<&0; for n in $(seq {MANY}); do {} <&3 >/dev/null & echo $!; done; wait",
        copy.display()
    );
    let mut command = Command::new("/bin/bash");
    command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut readers = Server(command.spawn().expect("bash can be executed"));
    let lines = BufReader::new(readers.0.stdout.take().expect("piped")).lines();
    let pids: Vec<u32> = lines.take(MANY).map(|line| line.unwrap().parse().unwrap()).collect();
    let run = forged::run_dir(home.path());
    let pages: Vec<File> = pids
        .iter()
        .map(|pid| {
            let path = run.join(pid.to_string());
            forged::write(&path, |page| {
                page.pid.store(*pid, Relaxed);
                page.mode.store(Mode::Embedded as u32, Relaxed);
                page.started_ns.store(memfold_sys::time::now().0, Relaxed);
                page.evicted_bytes.store(u64::from(*pid) << 20, Relaxed);
            });
            let file = File::open(path).unwrap();
            assert!(Snapshot::of_file(&file).is_ok());
            // SAFETY: no memory involved.
            assert_eq!(unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH) }, 0);
            file
        })
        .collect();
    let web = Web::start(home.path(), &[]);
    let mut browser = Browser::start();
    browser.look(1200, false);
    browser.go(&format!("http://{}/", web.at));
    browser.value(&format!("document.getElementById('filter').value = '{name}'; document.getElementById('filter').dispatchEvent(new Event('input'))"));
    browser.wait(&format!("document.querySelectorAll('#list tbody tr').length === {MANY}"));
    browser.value("[...document.querySelectorAll('#list thead button')].find((b) => b.textContent === 'FOLDED').click()");
    let largest = pids.iter().max().unwrap().to_string();
    browser.wait(&format!("document.querySelector('#list tbody td.pid').textContent === '{largest}'"));
    assert_eq!(
        browser.value("document.querySelector('#list tfoot .name').textContent"),
        format!("{MANY} programs")
    );
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
    drop((pages, readers.0.stdin.take()));
    assert!(readers.0.wait().is_ok());
}
