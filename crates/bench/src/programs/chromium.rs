//! Chromium without a window, with pages of ours, told what to do over a pipe by the DevTools protocol
//! (<https://chromedevtools.github.io/devtools-protocol/>): JSON messages, each ended by a zero byte.

use super::place::{is_root, Place, Started};
use super::scripted::put;
use super::subject::{Hot, Subject};
use super::Kind;
use anyhow::{bail, ensure, Context, Result};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// So many pages share the heap.
const PAGES: u64 = 10;
/// How long a page may take to be there.
const PATIENCE: Duration = Duration::from_secs(60);
/// The numbers at which the browser finds its pipe: it reads from the first and writes to the second.
const ENDS: [i32; 2] = [3, 4];

const FILES: [(&str, &str); 2] =
    [("heap.js", include_str!("scripts/heap.js")), ("page.html", include_str!("scripts/page.html"))];

/// A running browser.
pub(super) struct Browser {
    started: Started,
    requests: PipeWriter,
    answers: BufReader<PipeReader>,
    sent: u64,
    /// The sessions of its pages.
    pages: Vec<String>,
    url: String,
    bytes: u64,
    together: u64,
}

impl Browser {
    /// Starts it without a page.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn start(place: &Place<'_>) -> Result<Browser> {
        put(place.dir, &FILES)?;
        let profile = format!("--user-data-dir={}", place.dir.join("profile").display());
        let mut arguments = vec![
            "--headless",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-quic",
            "--disable-breakpad",
            "--disable-dev-shm-usage",
            // All pages count as shown, so that their clocks go on.
            "--disable-background-timer-throttling",
            "--disable-renderer-backgrounding",
            &profile,
        ];
        if is_root() {
            // Root's browser refuses to start with one.
            arguments.push("--no-sandbox");
        }
        let mut command = place.command(&Kind::Chromium.path()?, &arguments);
        command.env("HOME", place.dir).stdin(Stdio::null()).stdout(Stdio::null());
        let (theirs, requests) = std::io::pipe()?;
        let (answers, ours) = std::io::pipe()?;
        let ends = [theirs.as_raw_fd(), ours.as_raw_fd()];
        // SAFETY: fcntl, dup2 and close are async-signal-safe, the descriptors are open in the child, and nothing is allocated.
        unsafe {
            command.pre_exec(move || {
                let checked = |result: i32| match result {
                    -1 => Err(std::io::Error::last_os_error()),
                    number => Ok(number),
                };
                // First out of the way of each other.
                let high = [
                    checked(libc::fcntl(ends[0], libc::F_DUPFD, 100))?,
                    checked(libc::fcntl(ends[1], libc::F_DUPFD, 100))?,
                ];
                for (from, to) in high.into_iter().zip(ENDS) {
                    checked(libc::dup2(from, to))?;
                    checked(libc::close(from))?;
                }
                Ok(())
            })
        };
        let started = place.spawn(command)?;
        let url = format!("file://{}", place.dir.join("page.html").display());
        let answers = BufReader::new(answers);
        Ok(Browser {
            started,
            requests,
            answers,
            sent: 0,
            pages: Vec::new(),
            url,
            bytes: place.bytes,
            together: place.together,
        })
    }

    /// Calls a method, of a page or of the browser itself, and waits for its result.
    fn call(&mut self, session: Option<&str>, method: &str, parameters: Value) -> Result<Value> {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": parameters});
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut text = serde_json::to_vec(&message)?;
        text.push(0);
        self.requests.write_all(&text).with_context(|| self.started.last_words())?;
        loop {
            let mut text = Vec::new();
            self.answers.read_until(0, &mut text)?;
            let Some((0, text)) = text.split_last() else {
                bail!("chromium ended: {}", self.started.last_words());
            };
            let mut answer: Value = serde_json::from_slice(text)?;
            if answer["id"] != self.sent {
                // An event, of which there is none that we wait for.
                continue;
            }
            ensure!(answer.get("error").is_none(), "chromium refuses {method}: {}", answer["error"]);
            return Ok(answer["result"].take());
        }
    }

    /// The value of an expression, or what it promises, in a page.
    fn evaluate(&mut self, page: usize, expression: &str) -> Result<Value> {
        let session = self.pages[page].clone();
        let parameters = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut found = self.call(Some(&session), "Runtime.evaluate", parameters)?;
        let wrong = &found["exceptionDetails"];
        ensure!(wrong.is_null(), "a page failed: {}", wrong["exception"]["description"]);
        Ok(found["result"]["value"].take())
    }

    fn count(&mut self, page: usize, expression: &str) -> Result<u64> {
        let value = self.evaluate(page, expression)?;
        value.as_u64().with_context(|| format!("a page answered {value}"))
    }

    /// Opens a page and waits until it is there.
    fn open(&mut self) -> Result<usize> {
        let target = self.call(None, "Target.createTarget", json!({"url": self.url}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = self.call(None, "Target.attachToTarget", attach)?["sessionId"].take();
        self.pages.push(session.as_str().context("chromium names no session")?.to_owned());
        let page = self.pages.len() - 1;
        let end = Instant::now() + PATIENCE;
        while self.evaluate(page, "document.readyState === 'complete' && typeof load === 'function'")? != true
        {
            ensure!(Instant::now() < end, "a page is not there after {} s", PATIENCE.as_secs());
            sleep(Duration::from_millis(10));
        }
        Ok(page)
    }
}

impl Subject for Browser {
    fn started(&mut self) -> &mut Started {
        &mut self.started
    }

    fn load(&mut self) -> Result<u64> {
        let mut items = 0;
        for _ in 0..PAGES {
            let page = self.open()?;
            items += self.count(page, &format!("load({}, {})", self.bytes / PAGES, self.together))?;
        }
        Ok(items)
    }

    fn spoil(&mut self) -> Result<()> {
        self.evaluate(self.pages.len() - 1, "heap.spoil()").map(drop)
    }

    fn hot(&mut self, time: Duration) -> Result<Hot> {
        // The first page; the others are tabs that nobody looks at.
        let hot = self.evaluate(0, &format!("heap.hot({})", time.as_secs_f64() * 1e3))?;
        Ok(serde_json::from_value(hot)?)
    }

    fn verify(&mut self) -> Result<u64> {
        (0..self.pages.len()).map(|page| self.count(page, "verify()")).sum()
    }

    fn leave(&mut self) -> Result<()> {
        self.call(None, "Browser.close", json!({})).map(drop)
    }
}
