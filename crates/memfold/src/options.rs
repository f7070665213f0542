//! The pager's settings as options of a command line.
//!
//! Names, units, ranges and the reading of values are those of `memfold_pager::config`; this file only turns them
//! into options and into the message for a bad value.

use crate::text;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use memfold_pager::config::{self, parse_duration, parse_size, BadValue, Setting, Unit, BY_GROUP, SWITCH};
use memfold_pager::source::Kind;
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::time::Duration;

/// An option of `memfold run` that has a variable of the environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its name, without the dashes in front.
    pub option: &'static str,
    /// The variable.
    pub variable: &'static str,
    /// What the variable is where an option without a value is given; `None` for those with one.
    pub flag: Option<&'static str>,
}

impl Named {
    const fn text(option: &'static str, variable: &'static str) -> Named {
        Named { option, variable, flag: None }
    }

    const fn flag(option: &'static str, variable: &'static str, flag: &'static str) -> Named {
        Named { option, variable, flag: Some(flag) }
    }
}

/// What is evicted.
pub const POLICY: Named = Named::text("policy", "MEMFOLD_POLICY");
/// The allocator's profile.
pub const PROFILE: Named = Named::text("profile", "MEMFOLD_PROFILE");
/// The file that passes of the page daemon are logged to.
pub const POLICY_LOG: Named = Named::text("policy-log", "MEMFOLD_POLICY_LOG");
/// The socket of the daemon under whose budget the program is to be.
pub const DAEMON: Named = Named::text("daemon", "MEMFOLD_BUDGET_OF");
/// The tier below memory.
pub const TIER: Named = Named::text("tier", "MEMFOLD_TIER");
/// The file of the summary.
pub const SUMMARY: Named = Named::text("summary", "MEMFOLD_SUMMARY");
/// The allocator only.
pub const NO_PAGER: Named = Named::flag("no-pager", "MEMFOLD_PAGER", "off");
/// Copies are overwritten at once.
pub const WIPE: Named = Named::flag("wipe", "MEMFOLD_WIPE", "on");
/// Programs that the program starts run plainly.
pub const NO_FOLLOW: Named = Named::flag("no-follow", "MEMFOLD_FOLLOW", "off");
/// Nothing of memfold's own is printed.
pub const QUIET: Named = Named::flag("quiet", "MEMFOLD_QUIET", "1");

/// What a variable of the environment says, if it says anything.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// What the variable of a switch says; `None` where that is neither on nor off.
pub fn switch(value: &OsStr) -> Option<bool> {
    value.to_str().and_then(config::switch)
}

/// The pager's settings.
pub fn settings() -> impl Iterator<Item = Named> {
    Setting::ALL.map(|setting| Named::text(setting.option(), setting.variable())).into_iter()
}

/// All of them, the pager's settings first.
pub fn named() -> impl Iterator<Item = Named> {
    let others = [POLICY, PROFILE, TIER, DAEMON, POLICY_LOG, SUMMARY, NO_PAGER, WIPE, NO_FOLLOW, QUIET];
    settings().chain(others)
}

/// Options that steer the pager, the same for every command that starts a program: one for each [`Setting`]. An option that is given
/// overrides its environment variable; a variable that is set stays in force otherwise.
#[derive(Clone, Debug, Default)]
pub struct PagerOptions([Option<String>; Setting::COUNT]);

impl PagerOptions {
    /// Gives a setting a value, as text that `Setting::parse` accepts.
    pub fn with(mut self, setting: Setting, value: impl Into<String>) -> PagerOptions {
        self.set(setting, value);
        self
    }

    /// The same in place.
    pub fn set(&mut self, setting: Setting, value: impl Into<String>) {
        self.0[setting as usize] = Some(value.into());
    }

    /// Folds what is not in use at once, as far as nothing else was given.
    pub fn hurry(&mut self) {
        for (setting, hurried) in
            [(Setting::ColdAge, "1s"), (Setting::RecompressAge, "1s"), (Setting::MaxCpu, "100")]
        {
            self.0[setting as usize].get_or_insert_with(|| hurried.into());
        }
    }

    /// The value that was given.
    pub fn get(&self, setting: Setting) -> Option<&str> {
        self.0[setting as usize].as_deref()
    }

    /// The settings that were given, each with its value as text.
    pub fn given(&self) -> impl Iterator<Item = (Setting, &str)> {
        Setting::ALL.into_iter().filter_map(|setting| Some((setting, self.get(setting)?)))
    }
}

impl clap::Args for PagerOptions {
    fn augment_args(command: Command) -> Command {
        command.args(Setting::ALL.map(|setting| {
            let (default, variable) = (setting.default_text(), setting.variable());
            Arg::new(setting.name())
                .long(setting.option())
                .value_name(match setting.unit() {
                    Unit::Duration | Unit::Patience => "TIME",
                    Unit::Percent => "PERCENT",
                    Unit::Size => "BYTES",
                    Unit::Limit => "SIZE",
                    Unit::Source => "SOURCE",
                    Unit::Switch => "SWITCH",
                })
                // A negative number is a bad value, and no unknown option.
                .allow_negative_numbers(true)
                .value_parser(value_of(setting))
                .help(format!("{} [default: {default}]", first_words(setting.help())))
                .long_help(format!(
                    "{} [default: {default}]{} [env: {variable}]",
                    setting.help(),
                    range(setting)
                ))
                .hide_short_help(!matches!(
                    setting,
                    Setting::ColdAge | Setting::MaxStall | Setting::ResidentLimit
                ))
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Between which values a setting lies, for those that are an amount of something.
fn range(setting: Setting) -> String {
    match (setting.unit(), setting.range()) {
        (Unit::Source | Unit::Switch, _) => String::new(),
        (unit, (least, u64::MAX)) => format!(" [at least {}]", show_unit(unit, least)),
        (unit, (least, most)) => format!(" [{} to {}]", show_unit(unit, least), show_unit(unit, most)),
    }
}

/// As much of a help text as a line has room for: up to where it goes into detail.
fn first_words(help: &str) -> &str {
    help.split([':', ';']).next().unwrap_or(help)
}

impl FromArgMatches for PagerOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let value = |setting: Setting| matches.get_one::<String>(setting.name()).cloned();
        Ok(PagerOptions(Setting::ALL.map(value)))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A parser for clap that accepts what the setting accepts and keeps the text.
pub fn value_of(setting: Setting) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| parse(setting, text).map(|_| text.to_owned())
}

/// A parser of times within bounds, for options that are no settings. Of any other time the error is what is `needed`.
pub fn time_in(
    bounds: RangeInclusive<Duration>,
    needed: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    move |text| {
        let time = parse_duration(text).map(Duration::from_nanos);
        time.filter(|time| bounds.contains(time)).ok_or_else(|| needed.to_owned())
    }
}

/// Reads a value of a setting.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse(setting: Setting, text: &str) -> Result<u64, String> {
    setting.parse(text).map_err(allowed)
}

/// Reads a size of memory.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn size(text: &str) -> Result<u64, String> {
    parse_size(text).ok_or_else(|| "a size such as 64K, 16M or 1G is needed".into())
}

/// Reads a value of a setting for a process that runs.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse_for(pid: u32, setting: Setting, text: &str) -> Result<u64, String> {
    setting.parse_for(Some(pid), text).map_err(allowed)
}

/// A value in its own unit, such as `10s`, `256 MiB` or `0.5 %`; a limit that is not set reads `none`, and the control group's `group`.
pub fn show(setting: Setting, value: u64) -> String {
    match value {
        u64::MAX if matches!(setting.unit(), Unit::Limit | Unit::Patience) => return "none".into(),
        BY_GROUP if setting == Setting::ResidentLimit => return "group".into(),
        _ => {}
    }
    show_unit(setting.unit(), value)
}

/// A value for JSON, in its own unit (ns, bytes or millionths); a limit that is not set, or the control group's, is `null`, a source its
/// name, and a switch true or false.
pub fn json(setting: Setting, value: u64) -> Value {
    match setting.unit() {
        Unit::Limit if value >= BY_GROUP => Value::Null,
        Unit::Patience if value == u64::MAX => Value::Null,
        Unit::Source => Kind::from_number(value).name().into(),
        Unit::Switch => (value != 0).into(),
        _ => value.into(),
    }
}

fn show_unit(unit: Unit, value: u64) -> String {
    const DAY: u64 = 86_400_000_000_000;
    match unit {
        Unit::Duration | Unit::Patience if value >= DAY && value.is_multiple_of(DAY) => {
            format!("{} days", value / DAY)
        }
        Unit::Duration | Unit::Patience => text::nanos(value),
        Unit::Size | Unit::Limit => text::bytes(value),
        Unit::Percent => format!("{} %", value as f64 / 10_000.0),
        Unit::Source => Kind::from_number(value).name().into(),
        Unit::Switch => SWITCH[usize::from(value != 0)].into(),
    }
}

fn allowed(bad: BadValue) -> String {
    match bad {
        BadValue::Syntax(Unit::Duration) => "a time such as 500ms, 10s or 5m is needed".into(),
        BadValue::Syntax(Unit::Patience) => "a time such as 30m, or `none`, is needed".into(),
        BadValue::Syntax(Unit::Size) => "a size such as 64K, 256M or 2G is needed".into(),
        BadValue::Syntax(Unit::Limit) => {
            "a size such as 256M, `none`, `group`, or of the control group's limit `auto` or a part such as 60% is needed".into()
        }
        BadValue::NoGroupLimit => {
            "no control group that can be seen here limits the memory of the program; a size such as 256M is needed".into()
        }
        BadValue::Syntax(Unit::Percent) => "a share in per cent such as 0.5 is needed".into(),
        BadValue::Syntax(Unit::Switch) => "on or off is needed".into(),
        BadValue::Syntax(Unit::Source) => format!("one of {} is needed", Kind::ALL.map(Kind::name).join(", ")),
        BadValue::Range { unit, least, most: u64::MAX } => {
            format!("at least {} is needed", show_unit(unit, least))
        }
        BadValue::Range { unit, least, most } => {
            format!("it must lie between {} and {}", show_unit(unit, least), show_unit(unit, most))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Args;

    #[test]
    fn every_setting_has_an_option_of_its_own() {
        let command = || PagerOptions::augment_args(Command::new("memfold"));
        for setting in Setting::ALL {
            let value = setting.default_text();
            let matches = command().get_matches_from(["memfold", &format!("--{}", setting.option()), value]);
            let mut options = PagerOptions::from_arg_matches(&matches).unwrap();
            assert_eq!(options.given().collect::<Vec<_>>(), [(setting, value)]);
            // What was given stays.
            options.hurry();
            assert!(options.given().any(|given| given == (setting, value)));
        }
        let help = command().render_long_help().to_string();
        assert!(help.contains("--cold-age <TIME>") && help.contains("MEMFOLD_COLD_AGE"), "{help}");
    }

    #[test]
    fn a_bad_value_is_answered_with_what_is_allowed() {
        assert_eq!(parse(Setting::ColdAge, "soon").unwrap_err(), "a time such as 500ms, 10s or 5m is needed");
        assert_eq!(parse(Setting::ColdAge, "0").unwrap_err(), "it must lie between 10.0 ms and 365 days");
        assert_eq!(parse(Setting::ResidentLimit, "1").unwrap_err(), "at least 1.00 MiB is needed");
        let error = parse(Setting::Source, "damon").unwrap_err();
        assert_eq!(error, "one of auto, writes, probe, damon-vaddr, damon-paddr, idle is needed");
        assert_eq!(json(Setting::Source, parse(Setting::Source, "idle").unwrap()), "idle");
        assert_eq!(json(Setting::ResidentLimit, u64::MAX), Value::Null);
        assert_eq!(parse(Setting::MaxStall, "500").unwrap_err(), "it must lie between 0.001 % and 100 %");
    }
}
