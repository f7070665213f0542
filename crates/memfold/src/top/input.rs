//! What keys and the mouse do.

use super::app::{App, Prompt};
use super::columns::Column;
use crate::options;
use crate::view::job::Action;
use crate::view::process::Process;
use memfold_pager::config::Setting;
use ratatui::crossterm::event::{
    Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use std::time::Instant;

/// Lines that a page is.
const PAGE: isize = 10;
/// The longest filter or value.
const LONGEST: usize = 60;

impl App {
    /// Does what an event asks for.
    pub(super) fn on(&mut self, event: &Event) {
        match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => self.on_key(key),
            Event::Mouse(mouse) => self.on_mouse(mouse),
            _ => {}
        }
    }

    fn on_key(&mut self, key: &KeyEvent) {
        if key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c') {
            self.ends = true;
            return;
        }
        match std::mem::replace(&mut self.prompt, Prompt::Nothing) {
            Prompt::Help => {}
            Prompt::Filter(before) => self.on_filter(key.code, before),
            Prompt::Confirm(action) => {
                if matches!(key.code, KeyCode::Char('y' | 'Y')) {
                    self.ask(action);
                }
            }
            Prompt::Value(text) => self.on_value(key.code, text),
            Prompt::Nothing if self.process.is_some() => self.on_process_key(key.code),
            Prompt::Nothing => self.on_list_key(key.code),
        }
    }

    fn on_list_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => self.ends = true,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.prompt = Prompt::Help,
            KeyCode::Char('/') => self.prompt = Prompt::Filter(self.filter.clone()),
            KeyCode::Char('i') => {
                self.inverse = !self.inverse;
                self.arrange();
            }
            KeyCode::Char('<') | KeyCode::Left => self.sort_by_next(Column::ALL.len() - 1),
            KeyCode::Char('>') | KeyCode::Right => self.sort_by_next(1),
            KeyCode::Enter => self.open(),
            code => self.step(code),
        }
    }

    fn sort_by_next(&mut self, by: usize) {
        let at = Column::ALL.iter().position(|column| *column == self.sort).unwrap_or(0);
        self.sort = Column::ALL[(at + by) % Column::ALL.len()];
        self.arrange();
    }

    /// Chooses another line, of the list or of the settings.
    fn step(&mut self, code: KeyCode) {
        let by = match code {
            KeyCode::Up | KeyCode::Char('k') => -1,
            KeyCode::Down | KeyCode::Char('j') => 1,
            KeyCode::PageUp => -PAGE,
            KeyCode::PageDown => PAGE,
            KeyCode::Home => isize::MIN,
            KeyCode::End => isize::MAX,
            _ => return,
        };
        match self.process {
            Some(_) => self.choose_setting((self.setting as isize).saturating_add(by).max(0) as usize),
            None => {
                let line = (self.chosen_line() as isize).saturating_add(by).max(0) as usize;
                self.choose(line);
            }
        }
    }

    fn choose_setting(&mut self, line: usize) {
        self.setting = line.min(Setting::ALL.len() - 1);
    }

    fn choose(&mut self, line: usize) {
        let line = line.min(self.rows.len().saturating_sub(1));
        self.chosen = self.rows.get(line).map(|row| row.pid);
    }

    /// Opens the program that is chosen.
    fn open(&mut self) {
        let Some(seen) = self.chosen.and_then(|pid| self.watch.get(pid)) else { return };
        self.process = Some(Process::open(seen, &mut self.jobs));
        self.setting = 0;
    }

    fn on_filter(&mut self, code: KeyCode, before: String) {
        match code {
            KeyCode::Enter => return,
            KeyCode::Esc => self.filter = before,
            code => {
                edit(&mut self.filter, code);
                self.prompt = Prompt::Filter(before);
            }
        }
        self.arrange();
    }

    fn on_process_key(&mut self, code: KeyCode) {
        let Some(process) = &mut self.process else { return };
        let (paused, asleep) = (process.page.paused, process.page.asleep);
        let may_ask = process.may_be_asked();
        match code {
            KeyCode::Char('q') | KeyCode::Esc | KeyCode::Left => self.process = None,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.prompt = Prompt::Help,
            KeyCode::Char('m') => process.draw_soon(&mut self.jobs),
            KeyCode::Char('e' | 'r' | 'p' | 's') | KeyCode::Enter if may_ask.is_err() => {
                self.say(may_ask.err().unwrap_or_default())
            }
            KeyCode::Char('e') => self.prompt = Prompt::Confirm(Action::Evict),
            KeyCode::Char('r') => self.prompt = Prompt::Confirm(Action::Restore),
            KeyCode::Char('p') if paused => self.prompt = Prompt::Confirm(Action::Resume),
            KeyCode::Char('p') => self.prompt = Prompt::Confirm(Action::Pause),
            KeyCode::Char('s') if asleep => self.prompt = Prompt::Confirm(Action::Wake),
            KeyCode::Char('s') => self.prompt = Prompt::Confirm(Action::Sleep),
            KeyCode::Enter => self.prompt = Prompt::Value(String::new()),
            code => self.step(code),
        }
    }

    fn on_value(&mut self, code: KeyCode, mut text: String) {
        let Some(process) = &self.process else { return };
        match code {
            KeyCode::Esc => {}
            KeyCode::Enter if text.is_empty() => {}
            KeyCode::Enter => {
                let setting = Setting::ALL[self.setting];
                match options::parse_for(process.pid(), setting, &text) {
                    Ok(value) => self.prompt = Prompt::Confirm(Action::Set(setting, value)),
                    Err(allowed) => {
                        self.say(format!("'{text}' for {}: {allowed}", setting.name()));
                        self.prompt = Prompt::Value(text);
                    }
                }
            }
            code => {
                edit(&mut text, code);
                self.prompt = Prompt::Value(text);
            }
        }
    }

    /// Has the program that is open do something.
    fn ask(&mut self, action: Action) {
        let Some(process) = &self.process else { return };
        match process.may_be_asked() {
            Ok(()) => {
                self.jobs.ask(process.file(), process.pid(), action);
                self.say(format!("asked: {}", action.words()));
            }
            Err(why) => self.say(why),
        }
    }

    fn say(&mut self, words: String) {
        self.said = Some((words, Instant::now()));
    }

    fn on_mouse(&mut self, mouse: &MouseEvent) {
        if self.prompt != Prompt::Nothing {
            return;
        }
        match mouse.kind {
            MouseEventKind::ScrollUp => self.step(KeyCode::Up),
            MouseEventKind::ScrollDown => self.step(KeyCode::Down),
            MouseEventKind::Down(MouseButton::Left) => self.on_click(mouse.column, mouse.row),
            _ => {}
        }
    }

    fn on_click(&mut self, x: u16, y: u16) {
        let lines = self.places.lines;
        let line = usize::from(y.saturating_sub(lines.y));
        if self.process.is_some() {
            if lines.contains((x, y).into()) {
                self.choose_setting(line);
            }
        } else if y == self.places.head_line {
            let clicked = self.places.heads.iter().find(|(from, to, _)| (*from..=*to).contains(&x));
            if let Some((_, _, column)) = clicked {
                self.inverse = *column == self.sort && !self.inverse;
                self.sort = *column;
                self.arrange();
            }
        } else if lines.contains((x, y).into()) && self.first + line < self.rows.len() {
            let before = self.chosen;
            self.choose(self.first + line);
            if self.chosen == before {
                self.open();
            }
        }
    }
}

fn edit(text: &mut String, code: KeyCode) {
    match code {
        KeyCode::Backspace => drop(text.pop()),
        KeyCode::Char(letter) if text.len() < LONGEST => text.push(letter),
        _ => {}
    }
}
