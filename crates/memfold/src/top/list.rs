//! The screen with all programs: curves of the last minutes, the list, and the sum of it.

use super::app::{App, Places, Prompt};
use super::columns::{cells, pad, Column};
use crate::text::bytes;
use crate::view::row::Row;
use crate::words::words;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};
use ratatui::Frame;
use std::time::Duration;

/// With fewer lines than this there is the list alone.
const ROOM_FOR_CURVES: u16 = 12;
/// More waits than this, in per cent, stand out: the usual stall budget.
const MANY_WAITS: f64 = 0.5;

/// The keys, as the help says them.
const KEYS: &str = "\
Keys:
  Up Down PgUp PgDn Home End  choose a program; the wheel and a click too
  Enter                       open it; a second click too
  < > Left Right              sort by another column; a click on its head too
  i                           the other way round
  /                           filter by name, number, user, policy or reason
  h q                         this help; quit
In a program:
  Up Down Enter               choose a setting and change it
  e r p s                     evict, restore, pause or resume, sleep or wake
  m                           draw the address space now
  Esc q                       back";

pub(super) fn draw(app: &mut App, frame: &mut Frame) {
    let area = frame.area();
    let mut lines = Vec::new();
    if area.height >= ROOM_FOR_CURVES {
        lines.extend(curves(app, usize::from(area.width)));
    }
    let head_line = lines.len() as u16;
    let room = area.height.saturating_sub(head_line + 3);
    let columns =
        Column::fitting(usize::from(area.width), &[&app.rows[..], std::slice::from_ref(&app.total)].concat());
    let chosen = app.chosen_line();
    app.first = app.first.min(chosen).max((chosen + 1).saturating_sub(usize::from(room).max(1)));
    app.first = app.first.min(app.rows.len().saturating_sub(usize::from(room)));
    let mut places =
        Places { head_line, lines: Rect::new(0, head_line + 1, area.width, room), ..Places::default() };
    lines.push(head(app, &columns, usize::from(area.width), &mut places));
    let seen = app.rows.iter().skip(app.first).take(usize::from(room));
    lines.extend(seen.map(|row| line(app, row, &columns, usize::from(area.width))));
    if app.rows.is_empty() {
        lines.push(Line::from(nobody(app)));
    }
    lines.resize_with(usize::from(head_line + 1 + room), Line::default);
    lines.push(sum(app, &columns, usize::from(area.width)));
    lines.push(foot(app));
    app.places = places;
    frame.render_widget(Paragraph::new(lines), area);
}

/// A line of the table's cells, each with its style.
fn of_cells<'l>(columns: &[(Column, usize)], cell: impl Fn(Column) -> Span<'l>, width: usize) -> Line<'l> {
    let mut spans = Vec::new();
    let mut left = width;
    for (column, width) in columns {
        let span = cell(*column);
        spans.push(Span::styled(pad(&span.content, (*width).min(left), column.is_words()), span.style));
        left = left.saturating_sub(width + 1);
        spans.push(Span::raw(" "));
    }
    Line::from(spans)
}

fn head<'l>(app: &App, columns: &[(Column, usize)], width: usize, places: &mut Places) -> Line<'l> {
    let mut at = 0;
    for (column, width) in columns {
        let end = at + *width as u16;
        places.heads.push((at, end, *column));
        at = end + 1;
    }
    let line = of_cells(columns, |column| Span::styled(column.title(), app.look.strong()), width);
    // The column that is sorted by is the one that is not reversed with the others.
    let spans = line.spans.into_iter().enumerate().map(|(n, span)| {
        let sorted = columns.get(n / 2).is_some_and(|(column, _)| n % 2 == 0 && *column == app.sort);
        let style = if sorted { app.look.strong().underlined() } else { app.look.head() };
        span.style(style)
    });
    Line::from(spans.collect::<Vec<_>>())
}

fn line<'l>(app: &App, row: &Row, columns: &[(Column, usize)], width: usize) -> Line<'l> {
    let look = app.look;
    let chosen = Some(row.pid) == app.chosen;
    let line = of_cells(
        columns,
        |column| {
            let style = match column {
                Column::Saved if row.saved > 0 => look.strong(),
                Column::Waits if row.rates.waits > MANY_WAITS => look.alarm(),
                _ => Default::default(),
            };
            Span::styled(column.text(row), style)
        },
        width,
    );
    if chosen {
        line.spans.into_iter().map(|span| span.style(look.chosen())).collect::<Vec<_>>().into()
    } else {
        line
    }
}

fn sum<'l>(app: &App, columns: &[(Column, usize)], width: usize) -> Line<'l> {
    of_cells(columns, |column| Span::styled(column.text(&app.total), app.look.strong()), width)
}

fn nobody(app: &App) -> &'static str {
    match app.filter.is_empty() {
        true => "no folded programs; `memfold run -- COMMAND` starts one",
        false => "no folded program matches the filter",
    }
}

/// What is the sum of all, over the last looks.
fn curves<'l>(app: &App, width: usize) -> Vec<Line<'l>> {
    let look = app.look;
    let total = &app.total;
    let time = app.totals.front().map_or(Duration::ZERO, |(at, _)| at.elapsed());
    let minutes = format!("last {}:{:02} min", time.as_secs() / 60, time.as_secs() % 60);
    type Value = fn(&Row) -> f64;
    let curves: [(&str, String, Value); 3] = [
        ("saved", bytes(total.saved), |row| row.saved as f64),
        ("resident", bytes(total.resident), |row| row.resident as f64),
        ("faults/s", format!("{:.0}", total.rates.faults), |row| row.rates.faults),
    ];
    let mut lines = vec![Line::from(vec![
        Span::styled("memfold top", look.strong()),
        Span::raw(format!("  {}", total.name)),
        Span::styled(format!("  every {:.1} s, {minutes}", app.every.as_secs_f64()), look.faint()),
    ])];
    lines.extend(curves.map(|(name, now, value)| {
        let room = width.saturating_sub(22);
        Line::from(vec![
            Span::raw(format!("{name:<9}{now:>10}  ")),
            Span::styled(look.spark(app.totals.iter().map(|(_, row)| value(row)), room), look.curve()),
        ])
    }));
    lines
}

/// The last line: what the user is asked, what was answered, or what can be done.
fn foot<'l>(app: &App) -> Line<'l> {
    match &app.prompt {
        Prompt::Filter(_) => Line::from(vec![
            Span::styled("filter: ", app.look.strong()),
            Span::raw(app.filter.clone()),
            Span::styled(" ", app.look.chosen()),
            Span::styled("  Enter keep, Esc as before", app.look.faint()),
        ]),
        _ => {
            let filter = match app.filter.as_str() {
                "" => String::new(),
                filter => format!("  (only `{filter}`)"),
            };
            let said = app.said().map_or_else(
                || "Enter open  / filter  < > sort  i inverse  h help  q quit".into(),
                String::from,
            );
            Line::from(vec![Span::styled(said, app.look.faint()), Span::raw(filter)])
        }
    }
}

pub(super) fn draw_help(app: &App, frame: &mut Frame) {
    let area = frame.area();
    let text = format!("{KEYS}\n{}", words!());
    let wanted = text.lines().map(cells).max().unwrap_or(0) as u16 + 2;
    let width = wanted.min(area.width);
    let inner = usize::from(width.saturating_sub(2)).max(1);
    let lines: u16 = text.lines().map(|line| cells(line).div_ceil(inner).max(1) as u16).sum();
    let height = (lines + 2).min(area.height);
    let place = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    frame.render_widget(Clear, place);
    let block = Block::bordered().title("any key goes back").border_set(app.look.border());
    let paragraph = Paragraph::new(text).wrap(ratatui::widgets::Wrap { trim: false }).block(block);
    frame.render_widget(paragraph, place);
}
