//! Which access source is asked, and what observers outside of the process report.
//!
//! The source that was chosen is asked as far as it can be had. One that is told from outside needs a report that is not older than what
//! it says of itself allows; until there is one, and when there is none any more, the usual source is asked, and the control page says why.
//!
//! What it is not: who observes. That is the launcher or the daemon.
//!
//! Background thread only.

use crate::config::Setting;
use crate::evict::worker::Worker;
use crate::report::{NOT_YET, PREFIX};
use crate::source::{Choice, Kind};
use crate::text::Line;
use core::fmt::Write;
use core::sync::atomic::Ordering::*;
use memfold_sys::time::Nanos;

/// How often it is looked for a new report, at most and at least.
const HEAR: (Nanos, Nanos) = (Nanos::from_millis(50), Nanos::from_secs(1));
/// How long the first report may take before the program is told that there is none: an observer looks for processes once a second.
const FIRST: Nanos = Nanos::from_secs(5);
/// A report is believed until there should have been so many others, but for no less and no more than this.
const MISSED: u64 = 4;
const BELIEVED: (Nanos, Nanos) = (Nanos::from_secs(2), Nanos::from_secs(600));

impl Worker {
    /// Sees to it that the source is asked that was chosen, or the usual one.
    pub(crate) fn look_at_source(&mut self) {
        let asked = Kind::from_number(self.engine.setting(Setting::Source));
        let new = self.choice.asked.replace(asked) != Some(asked);
        if new {
            let now = self.now;
            self.choice = Choice { asked_at: now, ..Choice { asked: Some(asked), ..Choice::new() } };
            self.sources.told.forget();
        }
        let mut why = Line::new();
        let kind = match asked {
            Kind::Auto | Kind::Probe => Kind::Probe,
            _ if self.eviction.daemon.is_some() => {
                why.push("a policy goes by writes, and by touches of what it has set aside");
                Kind::Probe
            }
            _ if asked.is_told() => {
                self.hear_report(asked);
                self.why_not_told(asked, &mut why);
                if why.as_str().is_empty() {
                    asked
                } else {
                    Kind::Probe
                }
            }
            Kind::Writes if !self.kernel.tracks_writes => {
                why.push("this kernel does not track writes (Linux 6.7 or later does)");
                Kind::Probe
            }
            _ => asked,
        };
        if self.sources.choose(kind) {
            // Who rests was told until when by the source before.
            self.eviction.paced_by = 0;
        }
        let control = self.engine.control();
        control.source.store(kind as u64, Relaxed);
        let mut before = [0; 256];
        if control.source_why.read(&mut before) != why.as_str() {
            control.source_why.set(why.as_str());
        }
    }

    /// Takes in what was reported since the last look.
    fn hear_report(&mut self, asked: Kind) {
        let pause = Nanos(self.cold_age() / 16).clamp(HEAR.0, HEAR.1);
        if self.now.since(self.choice.looked_at) < pause {
            return;
        }
        self.choice.looked_at = self.now;
        let Some(dir) = self.engine.display.reports() else { return };
        if let Ok(report) = dir.open_beside(PREFIX, libc::O_RDONLY) {
            if self.sources.told.hear(report) {
                self.choice.heard_at = self.now;
            }
        }
        // What another source has told before this one was chosen.
        if self.sources.told.header().is_some_and(|header| header.kind != asked) {
            self.sources.told.forget();
        }
    }

    /// Why a source that is told from outside cannot be asked now; nothing where it can.
    fn why_not_told(&mut self, asked: Kind, why: &mut Line) {
        let Some(header) = self.sources.told.header() else {
            let told = self.now.since(self.choice.asked_at) >= FIRST;
            why.push(if told { "nobody outside of the process reports what it touches" } else { NOT_YET });
            if told && !core::mem::replace(&mut self.choice.told, true) {
                let mut line = Line::new();
                let _ = write!(
                    line,
                    "memfold: source {}: nobody reports what this program touches (`memfold run` does as root, and `memfold daemon \
                     --source`); it goes by `auto`",
                    asked.name()
                );
                self.engine.notify(line.as_str());
            }
            return;
        };
        // Who refuses has told the user.
        why.push(header.refusal.as_str());
        let believed = Nanos(header.every_ns.saturating_mul(MISSED)).clamp(BELIEVED.0, BELIEVED.1);
        if why.as_str().is_empty() && self.now.since(self.choice.heard_at) > believed {
            let _ = write!(why, "no report for {} s", self.now.since(self.choice.heard_at).0 / 1_000_000_000);
        }
    }
}
