//! Everything that the page can be told, and how it comes to be known.
//!
//! Invariants: a program whose page is open is looked at once however many browsers have it open, and is forgotten soon after the last
//! has gone. What is known lies ready as text; a browser that reads slowly misses what was true in between, and nobody waits for it.

use super::json::{self, Detail, Heat, Hello, Line, List, Point};
use crate::options;
use crate::view::job::{Action, Done, Jobs};
use crate::view::process::{answers, Process};
use crate::view::row::Row;
use crate::view::used;
use crate::watch::{self, Watch};
use memfold_pager::config::Setting;
use nix::unistd::geteuid;
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};
use tokio::sync::watch::{channel, Receiver, Sender};

/// One look takes at most this part of the time while somebody reads, and while nobody does: 1 to so much.
const SHARE: u32 = 400;
const IDLE_SHARE: u32 = 2000;
/// The time between two looks that nobody reads, which are for the curves of who comes later.
const IDLE: Duration = Duration::from_secs(10);
/// How often it is looked whether a program has answered.
const ANSWER: Duration = Duration::from_millis(50);
/// So many sums are kept for the curves.
const KEPT: usize = 720;

/// A text for the page, and how often it has changed.
#[derive(Clone, Default)]
pub struct News {
    /// Of the list, or of the program.
    pub text: String,
    /// The picture of the program's address space.
    pub heat: Option<(u64, String)>,
}

/// A program whose page is open.
struct Opened {
    process: Process,
    news: Sender<News>,
    pictures: u64,
}

/// All of it.
pub struct Model {
    watch: Watch,
    jobs: Jobs,
    every: Duration,
    may_steer: bool,
    history: VecDeque<(Instant, Point)>,
    list: Sender<News>,
    opened: HashMap<u32, Opened>,
    looked: Option<Instant>,
    spent: Duration,
}

/// What a browser asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Order {
    pid: u32,
    started_ns: String,
    action: Name,
    setting: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Name {
    Evict,
    Restore,
    Pause,
    Resume,
    Sleep,
    Wake,
    Set,
}

/// Something that a program can be asked for.
pub struct Asked {
    /// The program's page.
    pub file: crate::pages::PageFile,
    /// The program.
    pub pid: u32,
    /// What it shall do.
    pub action: Action,
}

/// Why it cannot be asked.
#[derive(Debug, PartialEq, Eq)]
pub enum Unable {
    /// There is no such program, or none that could answer.
    Gone(String),
    /// What is asked for makes no sense.
    Bad(String),
}

impl Model {
    /// Nothing is known yet.
    pub fn new(every: Duration, may_steer: bool) -> Model {
        Model {
            watch: Watch::new(),
            jobs: Jobs::default(),
            every,
            may_steer,
            history: VecDeque::new(),
            list: channel(News::default()).0,
            opened: HashMap::new(),
            looked: None,
            spent: Duration::ZERO,
        }
    }

    /// Does what is due; how long nothing is.
    pub fn step(&mut self) -> Duration {
        self.opened.retain(|_, opened| opened.news.receiver_count() > 0);
        self.hear();
        let due = self.due();
        if due.is_zero() {
            let before = used();
            self.look();
            self.spent = used().saturating_sub(before);
            self.looked = Some(Instant::now());
        }
        match self.jobs.are_waited_for() {
            true => ANSWER.min(self.due()),
            false => self.due(),
        }
    }

    /// How long no look is due.
    fn due(&self) -> Duration {
        let read = self.list.receiver_count() > 0 || !self.opened.is_empty();
        let pause = match read {
            true => self.every.max(self.spent * SHARE),
            false => self.every.max(IDLE).max(self.spent * IDLE_SHARE),
        };
        self.looked.map_or(Duration::ZERO, |at| (at + pause).saturating_duration_since(Instant::now()))
    }

    fn look(&mut self) {
        self.watch.look().for_each(drop);
        let rows: Vec<_> = self.watch.all().map(Row::of).collect();
        let total = Row::total(rows.iter());
        let point = Point {
            ago_s: 0.0,
            saved_bytes: total.saved,
            resident_bytes: total.resident,
            faults_per_s: total.rates.faults,
        };
        self.history.push_back((Instant::now(), point));
        if self.history.len() > KEPT {
            self.history.pop_front();
        }
        if self.list.receiver_count() > 0 {
            let text = self.known();
            self.list.send_replace(News { text, heat: None });
        }
        for (pid, opened) in &mut self.opened {
            opened.process.look(self.watch.get(*pid), &mut self.jobs);
            opened.tell();
        }
    }

    /// Takes in what programs have answered.
    fn hear(&mut self) {
        while let Some(done) = self.jobs.done() {
            let Done::Picture(pid, picture) = done else { continue };
            if let Some(opened) = self.opened.get_mut(&pid) {
                opened.pictures += u64::from(picture.is_ok());
                opened.process.picture(picture);
                opened.tell();
            }
        }
    }

    /// What a browser is told first.
    pub fn hello(&self) -> Hello {
        let ago =
            |(at, point): &(Instant, Point)| Point { ago_s: at.elapsed().as_secs_f64(), ..point.clone() };
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        Hello {
            version: env!("CARGO_PKG_VERSION"),
            host: host.unwrap_or_default(),
            user: watch::user(Some(geteuid().as_raw())),
            every_s: self.every.as_secs_f64(),
            may_steer: self.may_steer,
            history: self.history.iter().map(ago).collect(),
        }
    }

    /// News of the list, of which the first is what is known now.
    pub fn list(&self) -> Receiver<News> {
        let text = self.known();
        self.list.send_replace(News { text, heat: None });
        let mut news = self.list.subscribe();
        news.mark_changed();
        news
    }

    /// What is known of all programs.
    fn known(&self) -> String {
        let rows: Vec<_> = self.watch.all().map(|seen| (seen, Row::of(seen))).collect();
        let total = Row::total(rows.iter().map(|(_, row)| row));
        let programs = rows.iter().map(|(seen, row)| Line::of_seen(seen, row)).collect();
        json::text(&List { programs, total: Line::of(&total) })
    }

    /// News of one program, which is looked at from now on; `None` if it is not there.
    pub fn open(&mut self, pid: u32) -> Option<Receiver<News>> {
        let seen = self.watch.get(pid)?;
        let known = self.opened.remove(&pid).filter(|opened| !opened.process.has_ended);
        let opened = known.unwrap_or_else(|| {
            let process = Process::open(seen, &mut self.jobs);
            let opened = Opened { process, news: channel(News::default()).0, pictures: 0 };
            opened.tell();
            opened
        });
        let mut news = opened.news.subscribe();
        news.mark_changed();
        self.opened.insert(pid, opened);
        Some(news)
    }

    /// Has the picture of a program that is open drawn soon.
    pub fn draw_soon(&mut self, pid: u32) {
        if let Some(opened) = self.opened.get_mut(&pid) {
            opened.process.draw_soon(&mut self.jobs);
        }
    }

    /// What a browser wants a program to do.
    ///
    /// # Errors
    /// The program is not there any more, or it makes no sense.
    pub fn order(&self, order: &Order) -> Result<Asked, Unable> {
        let pid = order.pid;
        let seen = self.watch.get(pid).filter(|seen| seen.page.started_ns.to_string() == order.started_ns);
        let seen = seen.ok_or_else(|| Unable::Gone(format!("process {pid} has ended")))?;
        let action = match order.action {
            Name::Evict => Action::Evict,
            Name::Restore => Action::Restore,
            Name::Pause => Action::Pause,
            Name::Resume => Action::Resume,
            Name::Sleep => Action::Sleep,
            Name::Wake => Action::Wake,
            Name::Set => set(pid, order).map_err(Unable::Bad)?,
        };
        answers(pid, &seen.page).map_err(Unable::Gone)?;
        Ok(Asked { file: seen.file.clone(), pid, action })
    }
}

fn set(pid: u32, order: &Order) -> Result<Action, String> {
    let name = order.setting.as_deref().unwrap_or_default();
    let setting = Setting::ALL.into_iter().find(|setting| setting.name() == name);
    let setting = setting.ok_or_else(|| format!("there is no setting '{name}'"))?;
    let text = order.value.as_deref().unwrap_or_default().trim();
    let value = options::parse_for(pid, setting, text);
    value
        .map(|value| Action::Set(setting, value))
        .map_err(|allowed| format!("'{text}' for {name}: {allowed}"))
}

impl Opened {
    fn tell(&self) {
        let text = json::text(&Detail::of(&self.process));
        let picture = self.process.picture.as_ref();
        self.news.send_modify(|news| {
            news.text = text;
            // A picture is told once.
            if let Some(picture) =
                picture.filter(|_| news.heat.as_ref().is_none_or(|(number, _)| *number != self.pictures))
            {
                news.heat = Some((self.pictures, json::text(&Heat::of(picture))));
            }
        });
    }
}
