//! Observing processes from outside, for those whose access source is told: DAMON and idle page tracking, which need root.
//!
//! Who runs programs, the launcher or the daemon, looks at their control pages for what they want, has one observer see all of them
//! ([`memfold_daemon::observe`]), and writes a report beside each page.
//!
//! What it is not: a promise. A program that gets no report goes by the usual source.
//!
//! Invariants: there is no observer while nobody wants one, so others can use DAMON; a report is whole when it gets its name; the report of a
//! process that is gone, or that wants none any more, is removed.

use crate::directory::Directory;
use crate::pages::{Found, Name, PageFile};
use memfold_daemon::damon::Refusal;
use memfold_daemon::observe::{self, Observer, Places, Untouched};
use memfold_inspect::Snapshot;
use memfold_pager::config::Setting;
use memfold_pager::control::Mode;
use memfold_pager::report::{Report, PREFIX};
use memfold_pager::source::Kind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked for somebody to observe.
const LOOK: Duration = Duration::from_secs(1);
/// How soon an observer that could not be had is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// A process that may want to be observed.
pub struct Subject<'a> {
    /// Its page's file.
    pub file: PageFile,
    /// What it says.
    pub page: &'a Snapshot,
    /// The process, by its id in our PID namespace.
    pub pid: u32,
}

impl<'a> From<&'a Found> for Subject<'a> {
    fn from(found: &'a Found) -> Subject<'a> {
        Subject { file: found.file.clone(), page: &found.page, pid: found.pid }
    }
}

impl Subject<'_> {
    /// What it wants to be observed by.
    fn wish(&self) -> Option<Kind> {
        let wish = self.page.source.asked;
        (self.page.mode == Mode::Embedded && wish.is_told()).then_some(wish)
    }

    fn cold_age(&self) -> Duration {
        Duration::from_nanos(self.page.settings[Setting::ColdAge as usize])
    }
}

/// An observer at work.
struct Running {
    kind: Kind,
    cold_age: Duration,
    /// The process that mattered most when it began.
    first: u32,
    observer: Box<dyn Observer>,
}

/// What is observed now.
pub struct Observing {
    places: Places,
    running: Option<Running>,
    /// The source that could not be had, why, and when it was tried.
    refused: Option<(Kind, String, Instant)>,
    /// Why that was, as it was said last.
    said: Option<String>,
    say: fn(&str),
    sequence: u64,
    next: Instant,
    /// Where reports lie.
    written: BTreeMap<(u64, u64, Name), Arc<Directory>>,
}

impl Observing {
    /// Nothing so far; `say` gets a line when a source cannot be had.
    pub fn new(places: Places, say: fn(&str)) -> Observing {
        let next = Instant::now();
        Observing {
            places,
            running: None,
            refused: None,
            said: None,
            say,
            sequence: memfold_sys::time::now().0,
            next,
            written: BTreeMap::new(),
        }
    }

    /// Says at once why a source that will be wanted cannot be had, if it cannot.
    pub fn expect(&mut self, kind: Kind, cold_age: Duration) {
        if kind.is_told() {
            // Gone again in the same moment: it is not known yet who is to be observed.
            self.start(kind, &[std::process::id()], cold_age);
            self.running = None;
        }
    }

    /// When there is something to do.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Does what is due, for these processes.
    pub fn step(&mut self, subjects: &[Subject<'_>]) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        let mut wanted: Vec<(Kind, &Subject<'_>)> =
            subjects.iter().filter_map(|subject| Some((subject.wish()?, subject))).collect();
        wanted.sort_by_key(|(_, subject)| (std::cmp::Reverse(subject.page.sizes.managed_bytes), subject.pid));
        self.forget_others(&wanted);
        let Some(&(kind, first)) = wanted.first() else {
            self.running = None;
            self.next = now + LOOK;
            return;
        };
        let of_kind = || wanted.iter().filter(|(wish, _)| *wish == kind).map(|(_, subject)| *subject);
        let cold_age = of_kind().map(Subject::cold_age).min().unwrap_or_default();
        let pids: Vec<u32> = of_kind().map(|subject| subject.pid).collect();
        let fits = |running: &Running| {
            // Over addresses it is the first process's alone.
            let whose = kind != Kind::DamonVaddr || pids.contains(&running.first);
            running.kind == kind && running.cold_age == cold_age && whose
        };
        if !self.running.as_ref().is_some_and(fits) {
            self.start(kind, &pids, cold_age);
        }
        let seen: Vec<Result<Vec<Untouched>, Refusal>> = match &mut self.running {
            Some(running) => running.observer.look(&pids),
            None => Vec::new(),
        };
        if !seen.is_empty()
            && seen.iter().all(|seen| matches!(seen, Err(Refusal::Ended(_) | Refusal::File { .. })))
        {
            // Somebody has taken it away.
            self.running = None;
        }
        for (subject, seen) in of_kind().zip(&seen) {
            self.sequence += 1;
            self.write(subject, &observe::report(kind, self.sequence, cold_age, seen));
        }
        let every = observe::pause(cold_age);
        for (wish, subject) in &wanted {
            let why = match &self.refused {
                Some((refused, why, _)) if refused == wish && self.running.is_none() => why.clone(),
                _ if *wish != kind => format!(
                    "programs beside it are observed by {}, and one is observed at a time",
                    kind.name()
                ),
                _ => continue,
            };
            self.sequence += 1;
            self.write(subject, &Report::refusal(*wish, self.sequence, every.as_nanos() as u64, &why));
        }
        self.next = now + if self.running.is_some() { every } else { LOOK };
        debug_assert!(first.wish() == Some(kind));
    }

    /// Starts an observer in place of the one that there is, unless the same was refused lately.
    fn start(&mut self, kind: Kind, pids: &[u32], cold_age: Duration) {
        self.running = None;
        if self.refused.as_ref().is_some_and(|(refused, _, at)| *refused == kind && at.elapsed() < AGAIN) {
            return;
        }
        match observe::start(kind, &self.places, pids, cold_age) {
            Ok(observer) => {
                self.refused = None;
                self.running =
                    Some(Running { kind, cold_age, first: pids.first().copied().unwrap_or(0), observer });
            }
            Err(refusal) => {
                let why = refusal.to_string();
                if self.said.as_ref() != Some(&why) {
                    (self.say)(&format!("source {}: {why}; what is cold is told by `auto`", kind.name()));
                    self.said = Some(why.clone());
                }
                self.refused = Some((kind, why, Instant::now()));
            }
        }
    }

    /// Removes the reports to all but those.
    fn forget_others(&mut self, wanted: &[(Kind, &Subject<'_>)]) {
        let keep: Vec<_> = wanted.iter().map(|(_, subject)| key(subject)).collect();
        self.written.retain(|key, run| {
            keep.contains(key) || {
                run.remove(&format!("{PREFIX}{}", key.2));
                false
            }
        });
    }

    fn write(&mut self, subject: &Subject<'_>, report: &Report) {
        let name = format!("{PREFIX}{}", subject.file.name);
        // A directory that is gone is that of a process that is.
        if subject.file.run.replace(&name, &report.bytes()).is_ok() {
            self.written.insert(key(subject), subject.file.run.clone());
        }
    }
}

fn key(subject: &Subject<'_>) -> (u64, u64, Name) {
    let (device, inode) = subject.file.run.identity();
    (device, inode, subject.file.name)
}

impl Drop for Observing {
    fn drop(&mut self) {
        self.forget_others(&[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages;
    use memfold_inspect::fixture;
    use memfold_pager::report::Header;
    use std::path::Path;
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::Mutex;

    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

    fn said() -> Vec<String> {
        std::mem::take(&mut SAID.lock().unwrap())
    }

    fn say(line: &str) {
        SAID.lock().unwrap().push(line.to_owned());
    }

    /// A page that says that this process wants this source.
    fn page(dir: &Path, name: &str, wish: Kind) -> Found {
        fixture::write(&dir.join(name), |page| {
            page.pid.store(std::process::id(), Relaxed);
            page.mode.store(Mode::Embedded as u32, Relaxed);
            page.settings[Setting::Source as usize].store(wish as u64, Relaxed);
            page.settings[Setting::ColdAge as usize].store(80_000_000, Relaxed);
        });
        let file =
            PageFile { run: Arc::new(Directory::hold(dir).unwrap()), name: Name::parse(name).unwrap() };
        Found { page: pages::snapshot(&dir.join(name)).unwrap(), file, pid: std::process::id() }
    }

    fn step(observing: &mut Observing, found: &[Found]) {
        observing.next = Instant::now();
        let subjects: Vec<_> = found.iter().map(Subject::from).collect();
        observing.step(&subjects);
    }

    fn report(dir: &Path, name: &str) -> Option<Header> {
        let bytes = std::fs::read(dir.join(format!("{PREFIX}{name}"))).ok()?;
        Header::read(bytes.get(..Header::LEN)?.try_into().ok()?)
    }

    #[test]
    fn who_wants_to_be_observed_gets_reports_until_nobody_wants_any() {
        let dir = tempfile::tempdir().unwrap();
        let bitmap = dir.path().join("bitmap");
        // As long as the marks of 16 GiB.
        std::fs::File::create(&bitmap).unwrap().set_len(512 << 10).unwrap();
        let places = Places { idle: bitmap, ..Places::default() };
        let mut observing = Observing::new(places, say);
        let run = tempfile::tempdir().unwrap();
        let found = [
            page(run.path(), "5", Kind::Idle),
            page(run.path(), "6", Kind::Auto),
            page(run.path(), "7", Kind::Writes),
        ];
        step(&mut observing, &found);
        let first = report(run.path(), "5").expect("a report");
        assert_eq!((first.kind, first.refusal.as_str(), first.every_ns), (Kind::Idle, "", 20_000_000));
        assert!(report(run.path(), "6").is_none() && report(run.path(), "7").is_none());
        step(&mut observing, &found);
        assert_ne!(report(run.path(), "5").unwrap().sequence, first.sequence);
        assert!(observing.running.is_some());
        step(&mut observing, &found[1..]);
        assert!(observing.running.is_none() && report(run.path(), "5").is_none());
        // Two sources at a time there are not.
        let both = [page(run.path(), "5", Kind::Idle), page(run.path(), "8", Kind::DamonPaddr)];
        step(&mut observing, &both);
        let refused = [report(run.path(), "5"), report(run.path(), "8")]
            .map(|report| report.unwrap().refusal.as_str().len());
        assert!((refused[0] == 0) != (refused[1] == 0), "{refused:?}");
        drop(observing);
        assert!(report(run.path(), "5").is_none() && report(run.path(), "8").is_none());
    }

    #[test]
    fn what_cannot_be_had_is_said_once_and_reported_as_long_as_it_is_wanted() {
        let dir = tempfile::tempdir().unwrap();
        let nowhere = dir.path().join("none");
        let places =
            Places { damon: nowhere.clone(), note: nowhere.clone(), iomem: nowhere.clone(), idle: nowhere };
        let mut observing = Observing::new(places, say);
        said();
        observing.expect(Kind::Idle, Duration::from_secs(1));
        let line = said().concat();
        assert!(
            line.starts_with("source idle: ") && line.contains("root") && line.ends_with("`auto`"),
            "{line}"
        );
        let run = tempfile::tempdir().unwrap();
        let found = [page(run.path(), "5", Kind::Idle)];
        for _ in 0..2 {
            step(&mut observing, &found);
            assert!(line.contains(report(run.path(), "5").unwrap().refusal.as_str()));
        }
        assert!(said().is_empty());
    }
}
