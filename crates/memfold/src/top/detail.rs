//! The screen with one program: what became of its memory, the flow from use to the store, waits, settings, and its address space as a
//! picture.

use super::app::{App, Places, Prompt};
use super::columns::{cells, pad};
use super::style::Look;
use crate::options;
use crate::reasons;
use crate::text::{bytes, count, nanos};
use crate::view::heat::Kind;
use crate::view::process::Process;
use memfold_inspect::Latency;
use memfold_pager::config::Setting;
use memfold_pager::control::Mode;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use ratatui::Frame;

/// From this width on flow and settings stand beside each other.
const WIDE: u16 = 76;
/// From this width on the picture has the right half of the screen.
const VERY_WIDE: u16 = 160;

pub(super) fn draw(app: &mut App, frame: &mut Frame) {
    let area = frame.area();
    let Some(process) = &app.process else { return };
    let look = app.look;
    let title = title(process, look, usize::from(area.width));
    let head = Constraint::Length((title.len() as u16).min(area.height / 3));
    let [head, body, foot] = Layout::vertical([head, Constraint::Min(0), Constraint::Length(1)]).areas(area);
    frame.render_widget(Paragraph::new(title), head);
    let settings = Setting::ALL.len() as u16 + 1;
    let (texts, heat) = if area.width >= VERY_WIDE {
        let [texts, heat] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2).areas(body);
        (texts, heat)
    } else {
        let flow = flow_lines(process);
        let lines = if area.width >= WIDE { flow.max(settings) } else { flow + settings };
        let [texts, heat] = Layout::vertical([Constraint::Length(lines), Constraint::Min(0)]).areas(body);
        (texts, heat)
    };
    let (left, right) = if area.width >= WIDE && area.width < VERY_WIDE {
        let [left, right] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Length(30)]).spacing(2).areas(texts);
        (left, right)
    } else {
        let [left, right] =
            Layout::vertical([Constraint::Length(flow_lines(process)), Constraint::Length(settings)])
                .areas(texts);
        (left, right)
    };
    frame.render_widget(Paragraph::new(flow(process, look, usize::from(left.width))), left);
    let lines = settings_lines(app, process, usize::from(right.width));
    frame.render_widget(Paragraph::new(lines), right);
    frame.render_widget(Paragraph::new(heat_lines(process, look, heat)), heat);
    frame.render_widget(Paragraph::new(last_line(app, process)), foot);
    let lines = Rect { y: right.y + 1, height: right.height.saturating_sub(1), ..right };
    app.places = Places { lines, ..Places::default() };
}

fn title<'l>(process: &Process, look: Look, width: usize) -> Vec<Line<'l>> {
    let Process { row, page, .. } = process;
    let state = process.state();
    let style = if process.has_ended { look.alarm() } else { look.strong() };
    let sizes = [
        ("resident", row.resident),
        ("managed", row.managed),
        ("set aside", page.sizes.aside_bytes),
        ("folded", row.folded),
        ("into", row.into),
        ("cost", row.cost),
        ("saved", row.saved),
    ];
    let sizes = sizes.iter().map(|(name, n)| format!("{name} {}", bytes(*n)));
    let all = sizes.chain([format!("saved of all {:.1} %", row.saved_pct())]);
    let mut lines = vec![Line::from(vec![
        Span::styled(format!("{} {}", row.name, row.pid), look.strong()),
        Span::raw(format!("  {}  ", row.user)),
        Span::styled(state, style),
        Span::raw(format!("  policy {}  source {}", row.policy, page.source.words())),
    ])];
    lines.extend(flowed(all, width).into_iter().map(Line::from));
    lines
}

/// Texts one after the other, as many on a line as fit.
fn flowed(texts: impl Iterator<Item = String>, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for text in texts {
        let line = lines.last_mut().expect("there is one");
        if line.is_empty() {
            *line = text;
        } else if cells(line) + 2 + cells(&text) <= width {
            *line += &format!("  {text}");
        } else {
            lines.push(text);
        }
    }
    lines
}

fn flow_lines(process: &Process) -> u16 {
    8 + u16::from(process.row.tier > 0)
}

/// What is where on the way from use to the store, how fast it goes on, and for how long the program has waited.
fn flow<'l>(process: &Process, look: Look, width: usize) -> Vec<Line<'l>> {
    let Process { row, page, .. } = process;
    let speed = |bytes_a_second: f64| format!("{}/s", bytes(bytes_a_second as u64));
    let rates = &row.rates;
    let steps = process.flow().into_iter().map(|step| {
        let speed = step.speeds.map(|(to, back)| format!("in {}, back {}", speed(to), speed(back)));
        (step.name, step.bytes, step.kind, speed.unwrap_or_default())
    });
    let steps: Vec<_> = steps.collect();
    let whole = steps.iter().map(|step| step.1).max().unwrap_or(0);
    let speeds = steps.iter().map(|step| cells(&step.3) + 2).max().unwrap_or(0);
    let with_rates = width >= 20 + speeds + 12;
    let room = width.saturating_sub(20 + if with_rates { speeds } else { 0 }).clamp(4, 60);
    let mut lines: Vec<Line> = steps
        .into_iter()
        .map(|(name, bytes_there, kind, speed)| {
            let mut spans = vec![
                Span::raw(format!("{name:<9}")),
                Span::styled(look.bar(bytes_there as f64, whole as f64, room), look.bar_of(kind)),
                Span::raw(format!("{:>10}", bytes(bytes_there))),
            ];
            if with_rates {
                spans.push(Span::styled(format!("  {speed}"), look.faint()));
            }
            Line::from(spans)
        })
        .collect();
    let recent = process.recent_waits();
    let waits = |name: &str, latency: &Latency| {
        let p = latency.percentiles();
        let all = [("p50", p.p50), ("p95", p.p95), ("p99", p.p99), ("p99.9", p.p999)];
        let line = |parts: &[(&str, u64)]| {
            let parts = parts.iter().map(|(name, ns)| format!("  {name} {}", nanos(*ns)));
            format!("{name} {}{}", count(p.count), parts.collect::<String>())
        };
        let lines = [line(&all), line(&[all[0], all[2]])];
        lines.into_iter().find(|line| cells(line) <= width).unwrap_or_else(|| line(&all[..1]))
    };
    lines.push(Line::from(waits("waits", &page.fault)));
    lines.push(Line::from(waits("last min", &recent)));
    lines.push(Line::from(format!(
        "waiting {:.3} %, folding {:.2} % CPU, {:.0} faults/s",
        rates.waits, rates.cpu, rates.faults
    )));
    let curve =
        look.spark(process.past.iter().map(|(_, _, folded, _)| *folded as f64), width.saturating_sub(9));
    lines.push(Line::from(vec![Span::raw("folded   "), Span::styled(curve, look.curve())]));
    lines
}

/// Each setting with its value, which is seen whole where there is not room for both.
fn settings_lines<'l>(app: &App, process: &Process, width: usize) -> Vec<Line<'l>> {
    let mut lines = vec![Line::styled("settings", app.look.strong())];
    lines.extend(Setting::ALL.into_iter().map(|setting| {
        let chosen = setting as usize == app.setting;
        let value = match &app.prompt {
            Prompt::Value(text) if chosen => format!("{text}_"),
            _ => options::show(setting, process.page.settings[setting as usize]),
        };
        let name = if width < 28 { width.saturating_sub(cells(&value) + 1) } else { 15 };
        let room = width.min(28).saturating_sub(name + 1);
        let line = Line::from(format!("{} {value:>room$}", pad(setting.name(), name, true)));
        if chosen {
            line.style(app.look.chosen())
        } else {
            line
        }
    }));
    lines
}

fn heat_lines<'l>(process: &Process, look: Look, area: Rect) -> Vec<Line<'l>> {
    const LABEL: usize = 15;
    let mut lines = Vec::new();
    lines.extend(reasons(process, usize::from(area.width)).into_iter().take(2).map(Line::from));
    let Some(picture) = &process.picture else {
        lines.push(Line::from(match &process.refused {
            Some(why) => format!("no picture of the address space: {why}"),
            None if process.may_be_asked().is_ok() => "the address space is on its way".into(),
            None => "no picture of the address space".into(),
        }));
        return lines;
    };
    let room = usize::from(area.height).saturating_sub(lines.len() + 1);
    let width = usize::from(area.width).saturating_sub(LABEL);
    let (drawn, each) = picture.lines(room, width);
    let mut legend = vec![Span::styled(format!("{}: ", bytes(each)), look.strong())];
    for (kind, name) in Kind::SHOWN {
        legend.push(Span::styled(kind.letter().to_string(), look.cell(kind)));
        legend.push(Span::raw(format!(" {name} ")));
    }
    lines.push(Line::from(legend));
    lines.extend(drawn.into_iter().map(|line| {
        let mut spans = vec![Span::styled(format!("{:>12x}  ", line.address), look.faint())];
        spans.extend(line.cells.chunk_by(|a, b| a == b).map(|run| {
            let letters: String = run.iter().map(|kind| kind.letter()).collect();
            Span::styled(letters, look.cell(run[0]))
        }));
        Line::from(spans)
    }));
    lines
}

/// Why what is resident is not folded: the reasons that there are, the most first, and when they were counted.
fn reasons(process: &Process, width: usize) -> Vec<String> {
    let Some(inventory) = process.page.inventory.as_ref().filter(|_| process.page.mode != Mode::Off) else {
        return vec![process.row.why.clone()];
    };
    let now = process.page.updated_ns.saturating_sub(process.page.started_ns);
    let ago = nanos(now.saturating_sub(inventory.taken_at_ns));
    let parts = reasons::short(inventory).map(|(name, part)| format!("{name} {}", bytes(part)));
    flowed([format!("not folded, {ago} ago:")].into_iter().chain(parts), width)
}

fn last_line<'l>(app: &App, process: &Process) -> Line<'l> {
    let look = app.look;
    match &app.prompt {
        Prompt::Confirm(action) => Line::from(vec![
            Span::styled(format!("{}, process {}? ", action.words(), process.pid()), look.strong()),
            Span::raw("y yes, any other key no"),
        ]),
        Prompt::Value(_) if app.said().is_none() => Line::styled(
            format!("a new value for {}; Enter takes it, Esc leaves it", Setting::ALL[app.setting].name()),
            look.faint(),
        ),
        _ => {
            let pause = if process.page.paused { "p resume" } else { "p pause" };
            let sleep = if process.page.asleep { "s wake" } else { "s sleep" };
            let keys =
                || format!("e evict  r restore  {pause}  {sleep}  Enter set  m draw  Esc back  h help");
            Line::styled(app.said().map_or_else(keys, String::from), look.faint())
        }
    }
}
