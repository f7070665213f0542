//! `memfold top`: all folded programs on one screen, and one of them on another.
//!
//! What is known stands in [`app`], of one program in [`crate::view::process`]; what is drawn of it in [`list`] and [`detail`], and what keys and the mouse do in
//! [`input`]. What a program is asked for is asked by a thread of its own ([`crate::view::job`]), so the screen never waits.
//!
//! Invariants: the screen takes less than half a per cent of a CPU as long as nobody presses keys, however many programs there are: what one look
//! and one picture of it cost says when the next one is taken. The terminal is left as it was found, however it ends.

mod app;
pub mod columns;
mod detail;
mod input;
mod list;
mod style;

use crate::text;
use crate::view::used;
use anyhow::Context;
use app::App;
pub use app::Options;
use app::Prompt;
use columns::Column;
use ratatui::crossterm::event::{self, DisableMouseCapture, EnableMouseCapture};
use ratatui::crossterm::execute;
use ratatui::{DefaultTerminal, Frame};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use style::Look;

/// One look takes at most this part of the time: 1 to so much.
const SHARE: u32 = 400;
/// How long a wait for a key may be, so that a signal is noticed.
const NOTICE: Duration = Duration::from_millis(500);
/// How often it is looked whether a program has answered.
const ANSWER: Duration = Duration::from_millis(50);

static STOP: AtomicBool = AtomicBool::new(false);

/// Shows the screen until the user has enough of it.
///
/// # Errors
/// The terminal cannot be used.
pub fn show(options: &Options) -> anyhow::Result<()> {
    ctrlc::set_handler(|| STOP.store(true, Relaxed)).context("cannot watch for signals")?;
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let _ = execute!(std::io::stdout(), DisableMouseCapture);
        before(info);
    }));
    // Its own hook, called first, leaves the screen.
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let result = execute!(std::io::stdout(), EnableMouseCapture)
        .context("cannot use the mouse")
        .and_then(|()| run(options, &mut terminal));
    let _ = execute!(std::io::stdout(), DisableMouseCapture);
    let left = ratatui::try_restore();
    // Of a terminal that is gone there is nobody to tell.
    result.and(
        left.or_else(|error| if STOP.load(Relaxed) { Ok(()) } else { Err(error) })
            .context("cannot leave the terminal as it was"),
    )
}

fn run(options: &Options, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    let mut app = App::new(options, Look::of_environment());
    let mut next = Instant::now();
    while !app.ends && !STOP.load(Relaxed) {
        let mut new = app.hear();
        if Instant::now() >= next {
            let before = used();
            app.look();
            terminal.draw(|frame| draw(&mut app, frame))?;
            new = false;
            let spent = used().saturating_sub(before);
            next = Instant::now() + app.every.max(spent * SHARE);
        }
        if new {
            terminal.draw(|frame| draw(&mut app, frame))?;
        }
        let limit = if app.jobs.are_waited_for() { ANSWER } else { NOTICE };
        let wait = next.saturating_duration_since(Instant::now()).min(limit);
        if event::poll(wait).unwrap_or_else(|_| {
            STOP.store(true, Relaxed);
            false
        }) {
            while !app.ends && event::poll(Duration::ZERO)? {
                app.on(&event::read()?);
            }
            terminal.draw(|frame| draw(&mut app, frame))?;
        }
    }
    Ok(())
}

fn draw(app: &mut App, frame: &mut Frame) {
    if app.process.is_some() {
        detail::draw(app, frame);
    } else {
        list::draw(app, frame);
    }
    if app.prompt == Prompt::Help {
        list::draw_help(app, frame);
    }
}

/// All folded programs as one table of text, with rates over the time from one look to the next.
pub fn once(options: &Options) -> String {
    let mut app = App::new(options, Look { colours: false, unicode: false });
    app.watch.look().for_each(drop);
    std::thread::sleep(options.every);
    app.look();
    let rows = app.rows.iter().chain([&app.total]);
    let mut table = vec![Column::ALL.map(|column| column.title().to_owned()).to_vec()];
    table.extend(rows.map(|row| Column::ALL.map(|column| column.text(row)).to_vec()));
    text::table(&table)
}
