//! The pager's settings as options of a command line.
//!
//! Names, units, ranges and the reading of values are those of `pager::config`; this file only turns them
//! into options and into the message for a bad value.

use crate::text;
use pager::config::{BadValue, Setting, Unit, BY_GROUP};

/// Options that steer the pager, the same for every command that starts a program. An option that is
/// given overrides its environment variable; a variable that is set stays in force otherwise.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct PagerOptions {
    /// How long memory must go untouched before it is folded, such as 500ms, 10s or 5m [default: 10s]
    /// [env: MEMFOLD_COLD_AGE].
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = value_of(Setting::ColdAge))]
    pub cold_age: Option<String>,
    /// How long folded memory keeps the fast codec before the strong one [default: 10s]
    /// [env: MEMFOLD_RECOMPRESS_AGE].
    #[arg(long, value_name = "TIME", allow_negative_numbers = true, value_parser = value_of(Setting::RecompressAge))]
    pub recompress_age: Option<String>,
    /// The highest share of time, in per cent, that the program may wait for the pager [default: 0.5]
    /// [env: MEMFOLD_MAX_STALL].
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = value_of(Setting::MaxStall))]
    pub max_stall: Option<String>,
    /// Keep resident memory at this: the program waits while it would take more. A size such as 256M; 60% of what its
    /// control group may use, or `auto`, three quarters of that; `group`, which is `auto` once half of it is in use; or `none`
    /// [default: group] [env: MEMFOLD_RESIDENT_LIMIT].
    #[arg(long, value_name = "SIZE", allow_negative_numbers = true, value_parser = value_of(Setting::ResidentLimit))]
    pub resident_limit: Option<String>,
    /// Leave programs alone that manage less memory than this [default: 16M] [env: MEMFOLD_START_AT].
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true, value_parser = value_of(Setting::StartAt))]
    pub start_at: Option<String>,
    /// The highest share of one CPU, in per cent, that folding may take while no limit presses; above 3, and below 100, only while CPUs
    /// have nothing else to do [default: 25] [env: MEMFOLD_MAX_CPU].
    #[arg(long, value_name = "PERCENT", allow_negative_numbers = true, value_parser = value_of(Setting::MaxCpu))]
    pub max_cpu: Option<String>,
}

impl PagerOptions {
    /// Folds what is not in use at once, as far as nothing else was given.
    pub fn hurry(&mut self) {
        for (value, hurried) in
            [(&mut self.cold_age, "1s"), (&mut self.recompress_age, "1s"), (&mut self.max_cpu, "100")]
        {
            value.get_or_insert_with(|| hurried.into());
        }
    }

    /// The settings that were given, each with its value as text that `Setting::parse` accepts.
    pub fn given(&self) -> impl Iterator<Item = (Setting, &str)> {
        let values = [
            &self.cold_age,
            &self.recompress_age,
            &self.max_stall,
            &self.resident_limit,
            &self.start_at,
            &self.max_cpu,
        ];
        Setting::ALL.into_iter().zip(values).filter_map(|(s, v)| Some((s, v.as_deref()?)))
    }
}

/// A parser for clap that accepts what the setting accepts and keeps the text.
pub fn value_of(setting: Setting) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| parse(setting, text).map(|_| text.to_owned())
}

/// Reads a value of a setting.
///
/// # Errors
/// A sentence that says what is allowed.
pub fn parse(setting: Setting, text: &str) -> Result<u64, String> {
    setting.parse(text).map_err(allowed)
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
        u64::MAX if setting == Setting::ResidentLimit => return "none".into(),
        BY_GROUP if setting == Setting::ResidentLimit => return "group".into(),
        _ => {}
    }
    show_unit(setting.unit(), value)
}

/// A value for JSON, in its own unit (ns, bytes or millionths); a limit that is not set, or the control group's, is `null`.
pub fn json(setting: Setting, value: u64) -> Option<u64> {
    (setting != Setting::ResidentLimit || value < BY_GROUP).then_some(value)
}

fn show_unit(unit: Unit, value: u64) -> String {
    const DAY: u64 = 86_400_000_000_000;
    match unit {
        Unit::Duration if value >= DAY && value.is_multiple_of(DAY) => format!("{} days", value / DAY),
        Unit::Duration => text::nanos(value),
        Unit::Size | Unit::Limit => text::bytes(value),
        Unit::Percent => format!("{} %", value as f64 / 10_000.0),
    }
}

fn allowed(bad: BadValue) -> String {
    match bad {
        BadValue::Syntax(Unit::Duration) => "a time such as 500ms, 10s or 5m is needed".into(),
        BadValue::Syntax(Unit::Size) => "a size such as 64K, 256M or 2G is needed".into(),
        BadValue::Syntax(Unit::Limit) => {
            "a size such as 256M, `none`, `group`, or of the control group's limit `auto` or a part such as 60% is needed".into()
        }
        BadValue::NoGroupLimit => {
            "no control group that can be seen here limits the memory of the program; a size such as 256M is needed".into()
        }
        BadValue::Syntax(Unit::Percent) => "a share in per cent such as 0.5 is needed".into(),
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

    #[test]
    fn every_setting_has_an_option_in_the_same_place() {
        let all = |text: &str| Some(text.to_owned());
        let options = PagerOptions {
            cold_age: all("1s"),
            recompress_age: all("2s"),
            max_stall: all("3"),
            resident_limit: all("4M"),
            start_at: all("5M"),
            max_cpu: all("6"),
        };
        let given: Vec<_> = options.given().collect();
        assert_eq!(given.len(), Setting::COUNT);
        assert_eq!(given[2], (Setting::MaxStall, "3"));
        assert_eq!(given[4], (Setting::StartAt, "5M"));
        assert_eq!(given[5], (Setting::MaxCpu, "6"));
    }

    #[test]
    fn a_bad_value_is_answered_with_what_is_allowed() {
        assert_eq!(parse(Setting::ColdAge, "soon").unwrap_err(), "a time such as 500ms, 10s or 5m is needed");
        assert_eq!(parse(Setting::ColdAge, "0").unwrap_err(), "it must lie between 10.0 ms and 365 days");
        assert_eq!(parse(Setting::ResidentLimit, "1").unwrap_err(), "at least 1.00 MiB is needed");
        assert_eq!(parse(Setting::MaxStall, "500").unwrap_err(), "it must lie between 0.001 % and 100 %");
    }
}
