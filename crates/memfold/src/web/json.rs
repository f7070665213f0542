//! What the page is told, as JSON. Names are those of `memfold stat --json` where there is one.

use crate::options;
use crate::reasons;
use crate::view::heat::{Kind, Picture};
use crate::view::process::Process;
use crate::view::row::Row;
use crate::watch::Seen;
use memfold_inspect::Percentiles;
use memfold_pager::config::Setting;
use memfold_pager::control::Mode;
use serde::Serialize;

/// Cells of a picture, at most.
const CELLS: usize = 4096;

/// What the page is told first.
#[derive(Serialize)]
pub struct Hello {
    /// Of memfold.
    pub version: &'static str,
    /// Of this machine.
    pub host: String,
    /// Who runs the server.
    pub user: String,
    /// Seconds between two looks, at least.
    pub every_s: f64,
    /// Whether the token lets anybody change anything.
    pub may_steer: bool,
    /// The sums so far.
    pub history: Vec<Point>,
}

/// The sum of all programs at one time.
#[derive(Clone, Serialize)]
pub struct Point {
    /// Seconds ago; when it was, in the model.
    pub ago_s: f64,
    /// See [`Line`].
    pub saved_bytes: u64,
    /// See [`Line`].
    pub resident_bytes: u64,
    /// See [`Line`].
    pub faults_per_s: f64,
}

/// All programs.
#[derive(Serialize)]
pub struct List {
    /// Each of them.
    pub programs: Vec<Line>,
    /// All of them together.
    pub total: Line,
}

/// A line of the table.
#[derive(Serialize)]
pub struct Line {
    pid: u32,
    /// What tells a process from a later one with its number; text, as a number it is too long for a browser.
    started_ns: String,
    name: String,
    user: String,
    resident_bytes: u64,
    managed_bytes: u64,
    evicted_bytes: u64,
    stored_bytes: u64,
    overhead_bytes: u64,
    saved_bytes: u64,
    saved_pct: f64,
    tier_bytes: u64,
    faults_per_s: f64,
    waits_pct: f64,
    cpu_pct: f64,
    policy: String,
    why: String,
}

impl Line {
    /// Of a row that is no process's.
    pub fn of(row: &Row) -> Line {
        Line {
            pid: row.pid,
            started_ns: String::new(),
            name: row.name.clone(),
            user: row.user.clone(),
            resident_bytes: row.resident,
            managed_bytes: row.managed,
            evicted_bytes: row.folded,
            stored_bytes: row.into,
            overhead_bytes: row.cost,
            saved_bytes: row.saved,
            saved_pct: row.saved_pct(),
            tier_bytes: row.tier,
            faults_per_s: row.rates.faults,
            waits_pct: row.rates.waits,
            cpu_pct: row.rates.cpu,
            policy: row.policy.clone(),
            why: row.why.clone(),
        }
    }

    /// Of a process.
    pub fn of_seen(seen: &Seen, row: &Row) -> Line {
        Line { started_ns: seen.page.started_ns.to_string(), ..Line::of(row) }
    }
}

/// One program.
#[derive(Serialize)]
pub struct Detail {
    #[serde(flatten)]
    line: Line,
    state: String,
    has_ended: bool,
    is_paused: bool,
    is_asleep: bool,
    /// Why it cannot be asked for anything, if so.
    deaf: Option<String>,
    source: String,
    aside_bytes: u64,
    flow: Vec<Flow>,
    waits: Waits,
    reasons: Option<Reasons>,
    settings: Vec<SettingNow>,
    /// Seconds ago, bytes folded, bytes resident; for the last minute.
    past: Vec<(f64, u64, u64)>,
    /// Why there is no picture of the address space, if so.
    refused: Option<String>,
}

#[derive(Serialize)]
struct Flow {
    name: &'static str,
    kind: char,
    bytes: u64,
    in_bytes_per_s: Option<f64>,
    back_bytes_per_s: Option<f64>,
}

#[derive(Serialize)]
struct Waits {
    all: Percentiles,
    last_minute: Percentiles,
}

#[derive(Serialize)]
struct Reasons {
    ago_s: f64,
    bytes: Vec<(String, u64)>,
}

#[derive(Serialize)]
struct SettingNow {
    name: &'static str,
    help: &'static str,
    value: String,
}

impl Detail {
    /// What is known of it.
    pub fn of(process: &Process) -> Detail {
        let page = &process.page;
        let now = page.updated_ns.saturating_sub(page.started_ns);
        let reasons = page.inventory.as_ref().filter(|_| page.mode != Mode::Off).map(|inventory| Reasons {
            ago_s: now.saturating_sub(inventory.taken_at_ns) as f64 / 1e9,
            bytes: reasons::short(inventory).collect(),
        });
        let flow = process.flow().into_iter().map(|step| Flow {
            name: step.name,
            kind: step.kind.letter(),
            bytes: step.bytes,
            in_bytes_per_s: step.speeds.map(|(to, _)| to),
            back_bytes_per_s: step.speeds.map(|(_, back)| back),
        });
        let settings = Setting::ALL.into_iter().map(|setting| SettingNow {
            name: setting.name(),
            help: setting.help(),
            value: options::show(setting, page.settings[setting as usize]),
        });
        let past = process
            .past
            .iter()
            .map(|(at, _, folded, resident)| (at.elapsed().as_secs_f64(), *folded, *resident));
        Detail {
            line: Line { started_ns: page.started_ns.to_string(), ..Line::of(&process.row) },
            state: process.state(),
            has_ended: process.has_ended,
            is_paused: page.paused,
            is_asleep: page.asleep,
            deaf: process.may_be_asked().err(),
            source: page.source.words(),
            aside_bytes: page.sizes.aside_bytes,
            flow: flow.collect(),
            waits: Waits { all: page.fault.percentiles(), last_minute: process.recent_waits().percentiles() },
            reasons,
            settings: settings.collect(),
            past: past.collect(),
            refused: process.refused.clone(),
        }
    }
}

/// The picture of an address space.
#[derive(Serialize)]
pub struct Heat {
    /// What a cell stands for.
    each_bytes: u64,
    /// Cells one behind the other, each a letter: from the address, in hexadecimal digits, of the first.
    runs: Vec<(String, String)>,
    /// What the letters mean, and how many bytes there are of each.
    legend: Vec<(char, &'static str, u64)>,
}

impl Heat {
    /// Of a picture.
    pub fn of(picture: &Picture) -> Heat {
        let (cells, each_bytes) = picture.cells(CELLS);
        let mut runs: Vec<(u64, String)> = Vec::new();
        for (address, kind) in cells {
            match runs.last_mut() {
                Some((start, letters)) if *start + letters.len() as u64 * each_bytes == address => {
                    letters.push(kind.letter());
                }
                _ => runs.push((address, kind.letter().into())),
            }
        }
        let sum = picture.sum();
        let bytes = |kind| sum.of_kind(kind) * memfold_sys::PAGE_SIZE as u64;
        Heat {
            each_bytes,
            runs: runs.into_iter().map(|(start, letters)| (format!("{start:x}"), letters)).collect(),
            legend: Kind::SHOWN.iter().map(|(kind, name)| (kind.letter(), *name, bytes(*kind))).collect(),
        }
    }
}

/// What the server answers where there is nothing else to say.
#[derive(Serialize)]
pub struct Said<'s> {
    /// What was done, or why it was not.
    pub said: &'s str,
}

/// As text.
pub fn text(value: &impl Serialize) -> String {
    // Nothing here can fail: every key is text.
    serde_json::to_string(value).unwrap_or_default()
}
