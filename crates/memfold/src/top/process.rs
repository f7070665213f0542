//! The program that is open on a screen of its own: what was seen of it, its address space as a picture, and its settings. What was seen last
//! stays when the program has ended.

use super::columns::Row;
use super::heat::Picture;
use super::job::Jobs;
use crate::pages::PageFile;
use crate::watch::Seen;
use memfold_inspect::{Latency, Snapshot};
use memfold_pager::config::Setting;
use memfold_pager::control::Mode;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How often the picture is drawn anew, at most.
const REDRAW: Duration = Duration::from_secs(5);
/// It takes at most this part of the time of the CPU, and the program's answer this part of all time: 1 to so much.
const CPU_SHARE: u32 = 1000;
const TIME_SHARE: u32 = 20;
/// For how long past waits are shown by themselves.
const RECENT: Duration = Duration::from_secs(60);

/// The program that is open.
pub(super) struct Process {
    file: PageFile,
    pub row: Row,
    pub page: Snapshot,
    /// Its waits, folded bytes and resident bytes at the last looks.
    pub past: VecDeque<(Instant, Latency, u64, u64)>,
    chosen: usize,
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
            chosen: 0,
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

    pub fn is_paused(&self) -> bool {
        self.page.paused
    }

    /// The setting that is chosen.
    pub fn setting(&self) -> Setting {
        Setting::ALL[self.chosen]
    }

    /// Whether there is anybody who could answer; the error says why not.
    pub fn may_be_asked(&self) -> Result<(), String> {
        match self.page.mode {
            _ if self.has_ended => Err(format!("process {} has ended", self.row.pid)),
            Mode::Off => Err(format!("process {} is not folded: {}", self.row.pid, self.page.reason)),
            Mode::Idle => {
                Err(format!("process {} is not folded yet, and nobody in it could answer", self.row.pid))
            }
            Mode::Embedded => Ok(()),
        }
    }

    pub fn step(&mut self, by: isize) {
        self.choose((self.chosen as isize).saturating_add(by).max(0) as usize);
    }

    pub fn choose(&mut self, line: usize) {
        self.chosen = line.min(Setting::ALL.len() - 1);
    }
}
