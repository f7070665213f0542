//! What a user chose for the engine, by the names of the environment variables that say so: the same in every program that the engine is in.
//!
//! What it is not: the environment. A host looks a name up where it may, and says what it thinks of a text that makes no sense.
//!
//! Invariants: what makes no sense changes nothing.

use crate::config::{switch, BadValue, Config, Setting, Unit};
use crate::engine::Engine;
use crate::evict::page_daemon::Choice;
use crate::tier::choice::Choice as Below;

/// Says whether copies are overwritten at once.
const WIPE: &str = "MEMFOLD_WIPE";
/// Names the tier below memory.
const TIER: &str = "MEMFOLD_TIER";
/// Names the directory of the process that knows the network.
pub const TIER_DIRECTORY: &str = "MEMFOLD_TIER_DIR";

/// A variable whose text makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense<'a> {
    /// Its name.
    pub variable: &'static str,
    /// What it says.
    pub text: &'a str,
    /// What it takes, as it follows on "it takes".
    pub allowed: &'static str,
}

impl Engine {
    /// Takes in what was chosen, before the engine is prepared, and returns the settings. `text_of` knows the text of a variable that is
    /// set; `complain` hears of what makes no sense, which is left out.
    pub fn be_told<'a>(
        &self,
        text_of: impl Fn(&str) -> Option<&'a str>,
        mut complain: impl FnMut(Nonsense<'a>),
    ) -> Config {
        let mut config = Config::default();
        for setting in Setting::ALL {
            let variable = setting.variable();
            let Some(text) = text_of(variable) else { continue };
            match setting.parse(text) {
                Ok(value) => config.set(setting, value),
                Err(bad) => complain(Nonsense { variable, text, allowed: allowed(bad) }),
            }
        }
        let (variable, allowed) =
            ("MEMFOLD_POLICY", "`age`, or a page daemon such as freebsd, bonchance or s3fifo:small=0.1");
        if let Some(text) = text_of(variable) {
            let known = Choice::parse(text);
            if matches!(known, Some(Choice::Daemon(_))) && !self.has_own_heap() {
                complain(Nonsense {
                    variable,
                    text,
                    allowed: "`age` in a program without a heap for the pager",
                });
            } else if !self.choose_policy(text) {
                complain(Nonsense { variable, text, allowed });
            }
        }
        if let Some(path) = text_of("MEMFOLD_POLICY_LOG") {
            self.log_to(path);
        }
        let wipes = text_of(WIPE).filter(|text| !text.is_empty()).and_then(|text| {
            let wipes = switch(text);
            if wipes.is_none() {
                complain(Nonsense { variable: WIPE, text, allowed: "`on` or `off`" });
            }
            wipes
        });
        if wipes.unwrap_or_else(|| text_of("MEMFOLD_PROFILE") == Some("secure")) {
            self.wipe_at_once();
        }
        if let Some(text) = text_of(TIER).filter(|text| !text.is_empty()) {
            let mut refuse = |allowed| complain(Nonsense { variable: TIER, text, allowed });
            match Below::parse(text) {
                Ok(tier) if self.would_leave_erased(&tier) => {
                    refuse("no `seal=no` beside MEMFOLD_WIPE=on or the profile `secure`");
                }
                Ok(_) => {}
                Err(_) => refuse(
                    "`disk=DIR` or `redis://HOST:PORT`, with `,size=20G` and `,after=10m` or other values",
                ),
            }
        }
        config
    }

    /// Takes in what was chosen of a tier below memory, once the engine is prepared and before it starts. What makes no sense was complained of.
    pub fn be_told_of_tier<'a>(&self, text_of: impl Fn(&str) -> Option<&'a str>) {
        if let Some(text) = text_of(TIER).filter(|text| !text.is_empty()) {
            let _ = self.use_tier(text, text_of(TIER_DIRECTORY).unwrap_or(""));
        }
    }
}

/// What a variable of that kind takes.
fn allowed(bad: BadValue) -> &'static str {
    match bad {
        BadValue::Syntax(Unit::Duration) => "a time such as 500ms, 10s or 2m",
        BadValue::Syntax(Unit::Patience) => "a time such as 30m, or none",
        BadValue::Syntax(Unit::Size) => "a size such as 64K, 256M or 2G",
        BadValue::Syntax(Unit::Limit) => {
            "a size such as 256M, `none`, `group`, or of the control group's limit `auto` or a part such as 60%"
        }
        BadValue::NoGroupLimit => {
            "a size such as 256M here, as no control group limits the memory of this process"
        }
        BadValue::Syntax(Unit::Percent) => "a share in per cent such as 0.5",
        BadValue::Syntax(Unit::Switch) => "on or off",
        BadValue::Syntax(Unit::Source) => "auto, writes, probe, damon-vaddr, damon-paddr or idle",
        BadValue::Range { .. } => "a value within the range that `memfold help run` gives",
    }
}
