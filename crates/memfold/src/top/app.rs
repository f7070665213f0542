//! Everything that the screen of `memfold top` knows, and how it comes to know it.
//!
//! What it is not: what is drawn of it, nor what keys do.

use super::columns::Column;
use super::style::Look;
use crate::view::job::{Action, Done, Jobs};
use crate::view::process::Process;
use crate::view::row::Row;
use crate::watch::Watch;
use ratatui::layout::Rect;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long what a program answered is shown.
const SHOWN: Duration = Duration::from_secs(8);
/// So many looks are kept for the small curves.
const KEPT: usize = 400;

/// What the screen shows at first.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time from one look to the next, at least.
    pub every: Duration,
    /// The column by which programs are sorted.
    pub sort: Column,
    /// Only those that this is a part of.
    pub filter: String,
}

/// What the user is asked.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Prompt {
    Nothing,
    /// The filter, as it was before.
    Filter(String),
    /// Whether that shall be done.
    Confirm(Action),
    /// A new value of the setting that is chosen.
    Value(String),
    Help,
}

/// Where things are on the screen, for the mouse.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// The heads of columns, by their first cell and the one after the last.
    pub heads: Vec<(u16, u16, Column)>,
    pub head_line: u16,
    /// The lines of programs, or of settings.
    pub lines: Rect,
}

/// Everything that is known.
pub(super) struct App {
    pub watch: Watch,
    pub look: Look,
    pub every: Duration,
    pub sort: Column,
    pub inverse: bool,
    pub filter: String,
    pub rows: Vec<Row>,
    pub total: Row,
    pub totals: VecDeque<(Instant, Row)>,
    /// The program that is chosen in the list.
    pub chosen: Option<u32>,
    /// The first line of the list that is seen.
    pub first: usize,
    /// The program that is open.
    pub process: Option<Process>,
    /// The place of its setting that is chosen.
    pub setting: usize,
    pub prompt: Prompt,
    /// What was answered last, and when.
    pub said: Option<(String, Instant)>,
    pub jobs: Jobs,
    pub places: Places,
    pub ends: bool,
}

impl App {
    pub fn new(options: &Options, look: Look) -> App {
        App {
            watch: Watch::new(),
            look,
            every: options.every,
            sort: options.sort,
            inverse: false,
            filter: options.filter.clone(),
            rows: Vec::new(),
            total: Row::default(),
            totals: VecDeque::new(),
            chosen: None,
            first: 0,
            process: None,
            setting: 0,
            prompt: Prompt::Nothing,
            said: None,
            jobs: Jobs::default(),
            places: Places::default(),
            ends: false,
        }
    }

    /// Looks at all programs.
    pub fn look(&mut self) {
        self.watch.look().for_each(drop);
        self.arrange();
        self.totals.push_back((Instant::now(), self.total.clone()));
        if self.totals.len() > KEPT {
            self.totals.pop_front();
        }
        if let Some(process) = &mut self.process {
            process.look(self.watch.get(process.pid()), &mut self.jobs);
        }
    }

    /// Makes the list anew of what is known.
    pub fn arrange(&mut self) {
        let rows = self.watch.all().map(Row::of).filter(|row| row.matches(&self.filter));
        self.rows = rows.collect();
        self.total = Row::total(self.rows.iter());
        let (sort, inverse) = (self.sort, self.inverse);
        self.rows.sort_by(|a, b| if inverse { sort.order(b, a) } else { sort.order(a, b) });
        let there = |pid: &u32| self.rows.iter().any(|row| row.pid == *pid);
        self.chosen = self.chosen.filter(there).or(self.rows.first().map(|row| row.pid));
    }

    /// The line of the list that is chosen.
    pub fn chosen_line(&self) -> usize {
        self.rows.iter().position(|row| Some(row.pid) == self.chosen).unwrap_or(0)
    }

    /// Takes in what programs have answered; whether there was anything.
    pub fn hear(&mut self) -> bool {
        let mut heard = false;
        while let Some(done) = self.jobs.done() {
            heard = true;
            match done {
                Done::Asked(words) => self.said = Some((words, Instant::now())),
                Done::Picture(pid, picture) => {
                    if let Some(process) = self.process.as_mut().filter(|process| process.pid() == pid) {
                        process.picture(picture);
                    }
                }
            }
        }
        heard
    }

    /// What was answered last, for as long as it is shown.
    pub fn said(&self) -> Option<&str> {
        self.said.as_ref().filter(|(_, at)| at.elapsed() < SHOWN).map(|(words, _)| words.as_str())
    }
}
