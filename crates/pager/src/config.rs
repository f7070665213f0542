//! The pager's settings: their names, units, ranges, defaults, and how a text becomes a value.
//!
//! One vocabulary for the option of `memfold run`, the environment variable, the key of `memfold ctl` and
//! the JSON: `cold-age`, `MEMFOLD_COLD_AGE`, `cold_age`.

use crate::source::Kind;
use memfold_sys::time::Nanos;

/// Kind of value a setting takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unit {
    /// `500ms`, `10s`, `2m`, `5d`; a bare number is seconds.
    Duration,
    /// The same, or `none`.
    Patience,
    /// `64K`, `256M`, `2G`; a bare number is bytes.
    Size,
    /// A size, `none`, `group` for [`BY_GROUP`], or a part of what control groups leave the process: `60%`, or `auto` for [`AUTO`] of it.
    Limit,
    /// A share such as `0.5` or `0.5%`, in per cent.
    Percent,
    /// The name of an access source ([`Kind`]).
    Source,
    /// `on` or `off`.
    Switch,
}

/// Declares the settings: what they are called, which values they take, and what people are told of them.
macro_rules! settings {
    ($(
        $(#[$doc:meta])*
        $Setting:ident {
            name: $name:literal,
            option: $option:literal,
            variable: $variable:literal,
            unit: $unit:expr,
            range: $range:expr,
            default: $default:literal,
            help: $help:literal,
        }
    )*) => {
        /// A number that steers the pager. The discriminant is its place in [`Config`] and on the control page.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum Setting {
            $( $(#[$doc])* $Setting, )*
        }

        impl Setting {
            /// All of them, in order.
            pub const ALL: [Setting; Setting::COUNT] = [$( Setting::$Setting, )*];

            /// How many there are.
            pub const COUNT: usize = [$( $name, )*].len();

            /// The name, as `memfold ctl` and JSON have it.
            pub fn name(self) -> &'static str {
                match self { $( Setting::$Setting => $name, )* }
            }

            /// The option of commands that start a program, without the dashes in front.
            pub fn option(self) -> &'static str {
                match self { $( Setting::$Setting => $option, )* }
            }

            /// The environment variable.
            pub fn variable(self) -> &'static str {
                match self { $( Setting::$Setting => $variable, )* }
            }

            /// What kind of value it takes.
            pub fn unit(self) -> Unit {
                match self { $( Setting::$Setting => $unit, )* }
            }

            /// The smallest and the largest value, in the setting's own unit (ns, bytes or millionths).
            pub fn range(self) -> (u64, u64) {
                match self { $( Setting::$Setting => $range, )* }
            }

            /// What it is where nobody says, as text.
            pub fn default_text(self) -> &'static str {
                match self { $( Setting::$Setting => $default, )* }
            }

            /// What a person is told of it.
            pub fn help(self) -> &'static str {
                match self { $( Setting::$Setting => $help, )* }
            }
        }
    };
}

/// The least and the most that ages may be.
const AGES: (u64, u64) = (Nanos::from_millis(10).0, Nanos::from_secs(365 * 86_400).0);
/// The same of shares.
const SHARES: (u64, u64) = (10, 1_000_000);

settings! {
    /// How long a page must go untouched before it is folded, ns.
    ColdAge {
        name: "cold_age",
        option: "cold-age",
        variable: "MEMFOLD_COLD_AGE",
        unit: Unit::Duration,
        range: AGES,
        default: "10s",
        help: "How long memory must go untouched before it is folded, such as 500ms, 10s or 5m",
    }
    /// How long a folded page stays with the fast codec before the strong one, ns.
    RecompressAge {
        name: "recompress_age",
        option: "recompress-age",
        variable: "MEMFOLD_RECOMPRESS_AGE",
        unit: Unit::Duration,
        range: AGES,
        default: "10s",
        help: "How long folded memory keeps the fast codec before the strong one",
    }
    /// Highest share of time that the program may wait for the pager, in millionths.
    MaxStall {
        name: "max_stall",
        option: "max-stall",
        variable: "MEMFOLD_MAX_STALL",
        unit: Unit::Percent,
        range: SHARES,
        default: "0.5",
        help: "The highest share of time, in per cent, that the program may wait for the pager",
    }
    /// Anonymous memory of the process that may be resident, bytes; `u64::MAX` for no limit, [`BY_GROUP`] for what control groups leave it.
    ResidentLimit {
        name: "resident_limit",
        option: "resident-limit",
        variable: "MEMFOLD_RESIDENT_LIMIT",
        unit: Unit::Limit,
        range: (1 << 20, u64::MAX),
        default: "group",
        help: "Keep resident memory at this: the program waits while it would take more. A size such as 256M; 60% of what its \
               control group may use, or `auto`, three quarters of that; `group`, which is next to all of it once half of it is in use; or `none`",
    }
    /// Managed bytes below which no agent is started.
    StartAt {
        name: "start_at",
        option: "start-at",
        variable: "MEMFOLD_START_AT",
        unit: Unit::Size,
        range: (0, u64::MAX),
        default: "16M",
        help: "Leave programs alone that manage less memory than this",
    }
    /// Highest share of one CPU that folding may take, in millionths; less where CPUs have nothing to spare (`memfold_policy::pace`). Restoring and
    /// keeping a limit are not bounded.
    MaxCpu {
        name: "max_cpu",
        option: "max-cpu",
        variable: "MEMFOLD_MAX_CPU",
        unit: Unit::Percent,
        range: SHARES,
        default: "25",
        help: "The highest share of one CPU, in per cent, that folding may take while no limit presses; above 3, and below 100, only \
               while CPUs have nothing else to do",
    }
    /// How long nothing but housekeeping must have run before the program sleeps, ns; `u64::MAX` for never.
    SleepAfter {
        name: "sleep_after",
        option: "sleep-after",
        variable: "MEMFOLD_SLEEP_AFTER",
        unit: Unit::Patience,
        range: (Nanos::from_secs(1).0, u64::MAX),
        default: "none",
        help: "Put the program to sleep when it has been idle for so long, such as 30m: all of its memory goes to the lowest tier; or \
               `none`",
    }
    /// What tells which memory is cold, a [`Kind`].
    Source {
        name: "source",
        option: "source",
        variable: "MEMFOLD_SOURCE",
        unit: Unit::Source,
        range: (0, Kind::ALL.len() as u64 - 1),
        default: "auto",
        help: "What tells which memory is cold: writes, probe, or where root starts the program damon-vaddr, damon-paddr or idle; one that \
               cannot be had says so and leaves it to `auto`, which is probe",
    }
    /// Whether pages are brought because others came back with which they came back before: 1 or 0.
    Foresight {
        name: "foresight",
        option: "foresight",
        variable: "MEMFOLD_FORESIGHT",
        unit: Unit::Switch,
        range: (0, 1),
        default: "on",
        help: "Bring what came back together before at the first touch of it, or shortly before its time if it recurs: on or off",
    }
    /// Bytes that the program allocates between two samples of its heap in the mean; 0 for none.
    HeapSample {
        name: "heap_sample",
        option: "heap-sample",
        variable: "MEMFOLD_HEAP_SAMPLE",
        unit: Unit::Size,
        range: (0, 1 << 40),
        default: "0",
        help: "Sample one allocation in so many bytes for `memfold heap`, such as 512K; 0 samples none, and costs nothing",
    }
}

impl Setting {
    /// The setting with this number.
    pub fn from_index(index: u64) -> Option<Setting> {
        Setting::ALL.get(usize::try_from(index).ok()?).copied()
    }

    /// What it is where nobody says.
    pub fn default_value(self) -> u64 {
        // A test sees to it that it can be read.
        self.parse(self.default_text()).unwrap_or(self.range().0)
    }

    /// Reads a value from text, within the range of the setting. Parts of the limit of control groups are those of the calling
    /// process's.
    pub fn parse(self, text: &str) -> Result<u64, BadValue> {
        self.parse_for(None, text)
    }

    /// The same for another process.
    pub fn parse_for(self, pid: Option<u32>, text: &str) -> Result<u64, BadValue> {
        let value = match self.unit() {
            Unit::Patience if text.trim() == "none" => Some(u64::MAX),
            Unit::Duration | Unit::Patience => parse_duration(text),
            Unit::Size => parse_size(text),
            Unit::Percent => parse_percent(text),
            Unit::Source => Kind::parse(text.trim()).map(|kind| kind as u64),
            Unit::Switch => switch(text.trim()).map(u64::from),
            Unit::Limit => match parse_part(text) {
                None if text.trim() == "none" => Some(u64::MAX),
                None if text.trim() == "group" => Some(BY_GROUP),
                None => parse_size(text),
                Some(part) => {
                    let limit = memfold_sys::cgroup::memory_limit(pid).map_err(|_| BadValue::NoGroupLimit)?;
                    Some(
                        (u128::from(limit) * u128::from(part) / 1_000_000) as u64
                            & !(memfold_sys::PAGE_SIZE as u64 - 1),
                    )
                }
            },
        }
        .ok_or(BadValue::Syntax(self.unit()))?;
        let (least, most) = self.range();
        if value < least || value > most {
            return Err(BadValue::Range { unit: self.unit(), least, most });
        }
        Ok(value)
    }
}

/// What the variable of a switch says, in any of its spellings; `None` where that is neither on nor off.
pub fn switch(text: &str) -> Option<bool> {
    let is = |words: [&str; 2]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
    match (is(["on", "1"]), is(["off", "0"])) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    }
}

/// Whether `MEMFOLD_QUIET` with this text asks for no lines.
pub fn is_quiet(text: &str) -> bool {
    !text.is_empty() && switch(text) != Some(false)
}

/// Why a text is not a value of a setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadValue {
    /// It cannot be read as such a value.
    Syntax(Unit),
    /// It is a part of what control groups leave the process, and they set no limit, or none that can be seen from here.
    NoGroupLimit,
    /// It is outside the range, both ends included.
    Range {
        /// What kind of value.
        unit: Unit,
        /// Smallest.
        least: u64,
        /// Largest.
        most: u64,
    },
}

/// The value of every setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    values: [u64; Setting::COUNT],
}

impl Default for Config {
    fn default() -> Self {
        Config { values: Setting::ALL.map(Setting::default_value) }
    }
}

impl Config {
    /// The value of one setting, in its own unit.
    pub fn get(&self, setting: Setting) -> u64 {
        self.values[setting as usize]
    }

    /// Changes one setting.
    pub fn set(&mut self, setting: Setting, value: u64) {
        self.values[setting as usize] = value;
    }
}

/// `digits[.digits]` scaled by `scale`, rounded down; the number must be finite and fit.
fn parse_scaled(text: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    if fraction.len() > 18 {
        return None;
    }
    let (mut digits, mut unit) = (0u128, 1u128);
    for digit in fraction.bytes() {
        digits = digits * 10 + u128::from(digit - b'0');
        unit *= 10;
    }
    let part = (digits * u128::from(scale) / unit) as u64;
    whole.checked_add(part)
}

/// Bytes, from `4096`, `64K`, `256M`, `1.5G`, `2T` (powers of 1024; an `iB` or `B` may follow).
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let text = text.strip_suffix("iB").or_else(|| text.strip_suffix('B')).unwrap_or(text);
    let (number, scale) = match text.as_bytes().last()? {
        b'K' | b'k' => (&text[..text.len() - 1], 1 << 10),
        b'M' | b'm' => (&text[..text.len() - 1], 1 << 20),
        b'G' | b'g' => (&text[..text.len() - 1], 1 << 30),
        b'T' | b't' => (&text[..text.len() - 1], 1 << 40),
        _ => (text, 1),
    };
    parse_scaled(number, scale)
}

/// Nanoseconds, from `250us`, `500ms`, `10s`, `2m`, `1h`, `5d`; a bare number is seconds.
pub fn parse_duration(text: &str) -> Option<u64> {
    const SECOND: u64 = 1_000_000_000;
    let text = text.trim();
    let units: [(&str, u64); 7] = [
        ("ns", 1),
        ("us", 1_000),
        ("ms", 1_000_000),
        ("s", SECOND),
        ("m", 60 * SECOND),
        ("h", 3_600 * SECOND),
        ("d", 86_400 * SECOND),
    ];
    for (suffix, scale) in units {
        if let Some(number) = text.strip_suffix(suffix) {
            return parse_scaled(number, scale);
        }
    }
    parse_scaled(text, SECOND)
}

/// What a switch may be, by its value.
pub const SWITCH: [&str; 2] = ["off", "on"];

/// A resident limit that is none until the limit of the control groups comes near.
pub const BY_GROUP: u64 = u64::MAX - 1;

/// What `auto` is of the tightest limit of control groups, millionths: the rest is for what a limit on anonymous memory does not
/// count and the group does, which is page tables, other memory of the kernel's, the files in use, and the 5 % by which
/// the limit may be exceeded.
pub const AUTO: u64 = 750_000;

/// Millionths of a group's limit, from `auto` or a number of per cent up to 100 with its sign.
fn parse_part(text: &str) -> Option<u64> {
    match text.trim() {
        "auto" => Some(AUTO),
        text => parse_percent(text.strip_suffix('%')?).filter(|&part| part > 0 && part <= 1_000_000),
    }
}

/// Millionths, from a number of per cent: `0.5` or `0.5%` is 5 000.
pub fn parse_percent(text: &str) -> Option<u64> {
    let text = text.trim();
    parse_scaled(text.strip_suffix('%').unwrap_or(text), 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_can_be_read_and_has_names_of_its_own() {
        for setting in Setting::ALL {
            assert_eq!(setting.parse(setting.default_text()), Ok(setting.default_value()), "{setting:?}");
            assert_eq!(setting.option().replace('-', "_"), setting.name());
            assert_eq!(setting.variable(), std::format!("MEMFOLD_{}", setting.name().to_uppercase()));
        }
        assert_eq!(Setting::ColdAge.default_value(), Nanos::from_secs(10).0);
        assert_eq!(Setting::ResidentLimit.default_value(), BY_GROUP);
    }

    #[test]
    fn sizes_take_a_unit_and_reject_everything_else() {
        assert_eq!(parse_size("4096"), Some(4096));
        assert_eq!(parse_size("64K"), Some(64 << 10));
        assert_eq!(parse_size("1.5G"), Some(3 << 29));
        assert_eq!(parse_size("2GiB"), Some(2 << 30));
        for bad in
            ["", "K", "-1", "1e3", "12Q", "1..2", ".5", "99999999999999999999", "18446744073709551615K"]
        {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn durations_take_a_unit_and_a_bare_number_is_seconds() {
        assert_eq!(parse_duration("500ms"), Some(500_000_000));
        assert_eq!(parse_duration("10"), Some(10_000_000_000));
        assert_eq!(parse_duration("5d"), Some(5 * 86_400 * 1_000_000_000));
        assert_eq!(parse_duration("10 parsecs"), None);
    }

    #[test]
    fn shares_are_per_cent_in_millionths() {
        assert_eq!(parse_percent("0.5"), Some(5_000));
        assert_eq!(parse_percent("100%"), Some(1_000_000));
        assert_eq!(parse_percent("half"), None);
    }

    #[test]
    fn a_limit_is_a_size_or_a_part_of_what_the_group_has() {
        assert_eq!(Setting::ResidentLimit.parse("64M"), Ok(64 << 20));
        assert_eq!(Setting::ResidentLimit.parse("none"), Ok(u64::MAX));
        assert_eq!(Setting::ResidentLimit.parse("group"), Ok(BY_GROUP));
        assert_eq!((parse_part("auto"), parse_part(" 12.5% ")), (Some(AUTO), Some(125_000)));
        for bad in ["0%", "100.1%", "%", "auto%", "64M"] {
            assert_eq!(parse_part(bad), None, "{bad}");
        }
        assert_eq!(Setting::ResidentLimit.parse("101%"), Err(BadValue::Syntax(Unit::Limit)));
        match memfold_sys::cgroup::memory_limit(None) {
            Ok(limit) => assert_eq!(Setting::ResidentLimit.parse("100%"), Ok(limit & !4095)),
            Err(_) => assert_eq!(Setting::ResidentLimit.parse("auto"), Err(BadValue::NoGroupLimit)),
        }
        assert_eq!(Setting::StartAt.parse("auto"), Err(BadValue::Syntax(Unit::Size)));
    }

    #[test]
    fn a_value_outside_its_range_is_refused() {
        assert!(matches!(Setting::ColdAge.parse("0"), Err(BadValue::Range { .. })));
        assert!(matches!(Setting::MaxStall.parse("101"), Err(BadValue::Range { .. })));
        assert!(matches!(Setting::ColdAge.parse("soon"), Err(BadValue::Syntax(Unit::Duration))));
        assert_eq!(Setting::Source.parse("damon-paddr"), Ok(Kind::DamonPaddr as u64));
        assert_eq!(Setting::Source.parse("damon"), Err(BadValue::Syntax(Unit::Source)));
        assert_eq!(Setting::ColdAge.parse("5d"), Ok(5 * 86_400 * 1_000_000_000));
    }
}
