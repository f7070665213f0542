//! The program that is open on a screen of its own: what was seen of it, its address space as a picture, and its settings. What was seen last
//! stays when the program has ended.

use super::heat::{Kind, Picture};
use super::job::Jobs;
use super::row::Row;
use crate::pages::PageFile;
use crate::watch::Seen;
use memfold_inspect::{Latency, Snapshot};
use memfold_pager::config::Setting;
use memfold_pager::control::Mode;
use memfold_sys::PAGE_SIZE;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often the picture is drawn anew, at most.
const REDRAW: Duration = Duration::from_secs(5);
/// It takes at most this part of the time of the CPU, and the program's answer this part of all time: 1 to so much.
const CPU_SHARE: u32 = 1000;
const TIME_SHARE: u32 = 20;
/// For how long past waits are shown by themselves.
const RECENT: Duration = Duration::from_secs(60);

/// How much of a program's memory is at one place on the way from use to the store.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What the place is called.
    pub name: &'static str,
    /// What is there.
    pub bytes: u64,
    /// What it looks like in the picture.
    pub kind: Kind,
    /// Bytes that come there, and that go back from there, a second.
    pub speeds: Option<(f64, f64)>,
}

/// The program that is open.
pub struct Process {
    file: PageFile,
    pub row: Row,
    pub page: Snapshot,
    /// Its waits, folded bytes and resident bytes at the last looks.
    pub past: VecDeque<(Instant, Latency, u64, u64)>,
    pub picture: Option<Picture>,
    /// Why there is no new picture.
    pub refused: Option<String>,
    is_asked: bool,
    next: Instant,
    pub has_ended: bool,
}

impl Process {
    pub fn open(seen: &Seen, jobs: &mut Jobs) -> Process {
        let mut process = Process {
            file: seen.file.clone(),
            row: Row::of(seen),
            page: seen.page.clone(),
            past: VecDeque::new(),
            picture: None,
            refused: None,
            is_asked: false,
            next: Instant::now(),
            has_ended: false,
        };
        process.look(Some(seen), jobs);
        process
    }

    /// Takes in what was seen of it at the last look; nothing once it has ended.
    pub fn look(&mut self, seen: Option<&Seen>, jobs: &mut Jobs) {
        let Some(seen) = seen.filter(|seen| seen.page.started_ns == self.page.started_ns) else {
            self.has_ended = true;
            return;
        };
        (self.row, self.page) = (Row::of(seen), seen.page.clone());
        let now = Instant::now();
        self.past.push_back((now, self.page.fault.clone(), self.row.folded, self.row.resident));
        while self.past.front().is_some_and(|(at, ..)| now - *at > RECENT) {
            self.past.pop_front();
        }
        if now >= self.next {
            self.draw_soon(jobs);
        }
    }

    /// Asks for a new picture, unless one is on its way.
    pub fn draw_soon(&mut self, jobs: &mut Jobs) {
        if self.is_asked || self.may_be_asked().is_err() {
            return;
        }
        self.is_asked = true;
        let cold_age = Duration::from_nanos(self.page.settings[Setting::ColdAge as usize]);
        jobs.look_at(self.file.clone(), self.row.pid, cold_age);
    }

    /// A picture has come, or why there is none.
    pub fn picture(&mut self, picture: Result<Picture, String>) {
        self.is_asked = false;
        let mut pause = REDRAW;
        match picture {
            Ok(picture) => {
                pause = pause.max(picture.spent * CPU_SHARE).max(picture.took * TIME_SHARE);
                (self.picture, self.refused) = (Some(picture), None);
            }
            Err(error) => self.refused = Some(error),
        }
        self.next = Instant::now() + pause;
    }

    pub fn pid(&self) -> u32 {
        self.row.pid
    }

    pub fn file(&self) -> PageFile {
        self.file.clone()
    }

    /// Whether there is anybody who could answer; the error says why not.
    pub fn may_be_asked(&self) -> Result<(), String> {
        match self.has_ended {
            true => Err(format!("process {} has ended", self.row.pid)),
            false => answers(self.row.pid, &self.page),
        }
    }

    /// What it is doing, in words.
    pub fn state(&self) -> String {
        match self.page.mode {
            _ if self.has_ended => "ended".to_owned(),
            mode if self.page.paused => format!("{}, paused", mode.name()),
            mode if self.page.asleep => format!("{}, asleep", mode.name()),
            mode => mode.name().to_owned(),
        }
    }

    /// Its waits in the last minute, or for as long as it has been looked at.
    pub fn recent_waits(&self) -> Latency {
        self.past.front().map(|(_, earlier, ..)| self.page.fault.since(earlier)).unwrap_or_default()
    }

    /// What is where on the way from use to the store.
    pub fn flow(&self) -> Vec<Step> {
        let (row, sizes, rates) = (&self.row, &self.page.sizes, &self.row.rates);
        // What is in memory is told apart by the picture; before there is one it counts as active.
        let (active, inactive) = self.picture.as_ref().map_or((sizes.resident_bytes, 0), |picture| {
            let sum = picture.sum();
            ((sum.in_use + sum.cooling) * PAGE_SIZE as u64, sum.cold * PAGE_SIZE as u64)
        });
        let step = |name, bytes, kind| Step { name, bytes, kind, speeds: None };
        let mut steps = vec![
            step("active", active, Kind::InUse),
            step("inactive", inactive, Kind::Cold),
            Step {
                speeds: Some((rates.aside, rates.second_chance)),
                ..step("aside", sizes.aside_bytes, Kind::Aside)
            },
            Step {
                speeds: Some((rates.folded, rates.restored)),
                ..step("stored", row.folded - row.tier.min(row.folded), Kind::Folded)
            },
        ];
        if row.tier > 0 {
            steps.push(step("tier", row.tier, Kind::Folded));
        }
        steps
    }
}

/// Whether there is anybody in a process who could answer; the error says why not.
pub fn answers(pid: u32, page: &Snapshot) -> Result<(), String> {
    match page.mode {
        Mode::Off => Err(format!("process {pid} is not folded: {}", page.reason)),
        Mode::Idle => Err(format!("process {pid} is not folded yet, and nobody in it could answer")),
        Mode::Embedded => Ok(()),
    }
}
