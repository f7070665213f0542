//! A page in a real browser: Chromium without a window, told what to do over two pipes (the DevTools protocol,
//! `--remote-debugging-pipe`: messages of JSON, each ended by a zero byte).

use crate::run::{program, Server};
use crate::{scratch, wait_until, LIMIT};
use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use serde_json::{json, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The browser, with one page open.
pub struct Browser {
    orders: File,
    answers: BufReader<File>,
    session: Option<String>,
    asked: u64,
    /// What the page complained about: errors of its script, and what its policy forbade.
    pub complaints: Vec<String>,
    _process: Server,
    _home: TempDir,
}

impl Browser {
    /// Starts it, with an empty page.
    ///
    /// # Panics
    /// If Chromium is not installed, or does not answer.
    pub fn start() -> Browser {
        let home = scratch();
        let (its_orders, orders) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let (answers, its_answers) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
        let mut command = Command::new(program("chromium", "chromium"));
        command
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
            ])
            .args(["--remote-debugging-pipe", "about:blank"])
            .arg(format!("--user-data-dir={}", home.path().display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let (from, to) = (its_orders.as_raw_fd(), its_answers.as_raw_fd());
        // SAFETY: calls nothing but fcntl and dup2, which are safe between fork and exec.
        unsafe {
            command.pre_exec(move || {
                // Beyond both places first, as one of the two may be in the place of the other.
                let (from, to) = (libc::fcntl(from, libc::F_DUPFD, 10), libc::fcntl(to, libc::F_DUPFD, 10));
                let both = from >= 0 && to >= 0 && libc::dup2(from, 3) >= 0 && libc::dup2(to, 4) >= 0;
                both.then_some(()).ok_or_else(std::io::Error::last_os_error)
            });
        }
        let process = Server(command.spawn().expect("chromium can be executed"));
        drop((its_orders, its_answers));
        let mut browser = Browser {
            orders: orders.into(),
            answers: BufReader::new(answers.into()),
            session: None,
            asked: 0,
            complaints: Vec::new(),
            _process: process,
            _home: home,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().expect("a session").to_owned());
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({}));
        }
        browser
    }

    /// Has the browser do something.
    ///
    /// # Panics
    /// If it cannot, or has ended.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.try_to(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// The same; the error is what the browser says.
    fn try_to(&mut self, method: &str, params: Value) -> Result<Value, Value> {
        self.asked += 1;
        let mut order = json!({ "id": self.asked, "method": method, "params": params });
        if let Some(session) = &self.session {
            order["sessionId"] = session.as_str().into();
        }
        let mut bytes = order.to_string().into_bytes();
        bytes.push(0);
        self.orders.write_all(&bytes).expect("the browser reads");
        loop {
            let mut answer = Vec::new();
            self.answers.read_until(0, &mut answer).expect("the browser answers");
            assert_eq!(answer.pop(), Some(0), "the browser has ended");
            let answer: Value = serde_json::from_slice(&answer).expect("JSON");
            match answer["method"].as_str() {
                Some("Runtime.exceptionThrown") => self.complaints.push(answer["params"].to_string()),
                Some("Log.entryAdded") if answer["params"]["entry"]["level"] != "verbose" => {
                    self.complaints.push(answer["params"].to_string());
                }
                _ if answer["id"] == self.asked => {
                    return match &answer["error"] {
                        Value::Null => Ok(answer["result"].clone()),
                        error => Err(error.clone()),
                    };
                }
                _ => {}
            }
        }
    }

    /// Goes to an address, and waits until what is there has been loaded.
    pub fn go(&mut self, url: &str) {
        self.call("Page.navigate", json!({ "url": url }));
        let there = json!({ "expression": format!("document.readyState === 'complete' && location.href === '{url}'") });
        // The page that is left may answer that there is nobody any more.
        wait_until(LIMIT, url, || {
            self.try_to("Runtime.evaluate", there.clone())
                .is_ok_and(|answer| answer["result"]["value"] == true)
        });
    }

    /// The value of an expression in the page.
    ///
    /// # Panics
    /// If it throws.
    pub fn value(&mut self, expression: &str) -> Value {
        let what = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", what);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Waits until an expression in the page is true.
    ///
    /// # Panics
    /// If it never is.
    pub fn wait(&mut self, expression: &str) {
        wait_until(LIMIT, expression, || self.value(&format!("Boolean({expression})")) == Value::Bool(true));
    }

    /// Makes the window so wide, and has the system like dark colours or light ones.
    pub fn look(&mut self, width: u32, dark: bool) {
        let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let colours =
            json!([{ "name": "prefers-color-scheme", "value": if dark { "dark" } else { "light" } }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": colours }));
    }

    /// Presses a key that types nothing.
    ///
    /// # Panics
    /// If its number is not known here.
    pub fn press(&mut self, key: &str) {
        // As browsers number them (UI Events, appendix C).
        let number = match key {
            "Escape" => 27,
            "End" => 35,
            "ArrowLeft" => 37,
            _ => panic!("{key}: its number is not known"),
        };
        for kind in ["rawKeyDown", "keyUp"] {
            let event = json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": number });
            self.call("Input.dispatchKeyEvent", event);
        }
    }
}
