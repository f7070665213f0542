//! Bugs that are planted in atomics without touching the code: a weaker ordering, or an exchange in two steps.
//!
//! What it is: the reading of `MEMFOLD_WEAKEN`, a list of `FILE:OPERATION:HOW` separated by commas. `FILE` is the name of a
//! modelled file, `OPERATION` the method (`compare_exchange` stands for the weak one too); `OPERATION@TEXT` means only the
//! accesses whose source line contains the text. `HOW` is `relaxed`, `acqrel` (no single order of all accesses), or `split`:
//! a load and a store, between which others come in. What is listed and never reached ends the model as unknown.

use core::sync::atomic::Ordering;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{LazyLock, Mutex};

/// The place in the source at which an atomic is accessed.
#[derive(Clone, Copy)]
pub(crate) struct Site(pub(crate) &'static Location<'static>);

#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Relaxed,
    AcqRel,
    Split,
}

struct Bug {
    file: String,
    op: String,
    text: Option<String>,
    how: How,
    reached: AtomicBool,
}

static BUGS: LazyLock<Vec<Bug>> = LazyLock::new(|| {
    let listed = std::env::var("MEMFOLD_WEAKEN").unwrap_or_default();
    listed.split(',').filter(|bug| !bug.is_empty()).map(parse).collect()
});

fn parse(bug: &str) -> Bug {
    let parts: Vec<&str> = bug.split(':').collect();
    let [file, access, how] = parts[..] else {
        panic!("MEMFOLD_WEAKEN: {bug:?} is not FILE:OPERATION:HOW");
    };
    let how = match how {
        "relaxed" => How::Relaxed,
        "acqrel" => How::AcqRel,
        "split" => How::Split,
        _ => panic!("MEMFOLD_WEAKEN: {how:?} is none of relaxed, acqrel, split"),
    };
    let (op, text) = access.split_once('@').map_or((access, None), |(op, text)| (op, Some(text)));
    Bug { file: file.into(), op: op.into(), text: text.map(Into::into), how, reached: AtomicBool::new(false) }
}

/// Ends the model if a bug of the list was never reached: a spelling error must not pass for a bug that nobody catches.
pub(crate) fn all_reached() {
    if let Some(bug) = BUGS.iter().find(|bug| !bug.reached.load(Relaxed)) {
        eprintln!("MEMFOLD_WEAKEN: no access {}:{} in this model", bug.file, bug.op);
        std::process::exit(2);
    }
}

/// What a planted bug does to an access.
pub(crate) trait Weakened {
    /// The ordering that the access is made with.
    fn ordering(self, op: &str, asked: Ordering) -> Ordering;
    /// Whether it is made in two steps.
    fn in_two_steps(self, op: &str) -> bool;
}

impl Weakened for Site {
    fn ordering(self, op: &str, asked: Ordering) -> Ordering {
        match (planted(self, op), asked, op) {
            (Some(How::Relaxed), ..) => Ordering::Relaxed,
            (Some(How::AcqRel), Ordering::SeqCst, "load") => Ordering::Acquire,
            (Some(How::AcqRel), Ordering::SeqCst, "store") => Ordering::Release,
            (Some(How::AcqRel), Ordering::SeqCst, _) => Ordering::AcqRel,
            _ => asked,
        }
    }

    fn in_two_steps(self, op: &str) -> bool {
        planted(self, op) == Some(How::Split)
    }
}

fn planted(site: Site, op: &str) -> Option<How> {
    let bug = BUGS.iter().find(|bug| {
        let file = site.0.file().rsplit('/').next().unwrap_or_default();
        bug.op == op && bug.file == file && bug.text.as_ref().is_none_or(|text| line(site.0).contains(text))
    })?;
    bug.reached.store(true, Relaxed);
    Some(bug.how)
}

/// The text of the source line.
fn line(location: &Location<'static>) -> String {
    static LINES: LazyLock<Mutex<HashMap<(&'static str, u32), String>>> = LazyLock::new(Mutex::default);
    let mut lines = LINES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    lines.entry((location.file(), location.line())).or_insert_with(|| read_line(location)).clone()
}

fn read_line(location: &Location<'static>) -> String {
    // Paths of the compiler are relative to the workspace.
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(location.file());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().nth(location.line() as usize - 1).unwrap_or_default().into()
}
