//! Workloads: what a tenant of the page cache does to its file, as a configuration file describes it.
//!
//! What it is not: how a workload is run, which is [`crate::fio`]'s and [`crate::engine`]'s affair.
//!
//! Invariants: a workload that was read can be run: its file holds at least one block, its numbers are in range.

use crate::ini::{self, Entry, Mistake, Section};
use memfold_pager::config::parse_size;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The workloads that come with memfold.
pub const BUILT_IN: &str = include_str!("../fairness_configs.ini");

/// The file that is read instead of [`BUILT_IN`] where it lies in the current directory.
pub const CONFIG_FILE: &str = "fairness_configs.ini";

memfold_experiment::named! {
    /// Which blocks are read and written, in fio's words.
    pub enum Pattern, "pattern" {
        /// Sequential reads.
        Read = "read",
        /// Sequential writes.
        Write = "write",
        /// Reads of random blocks.
        RandRead = "randread",
        /// Writes of random blocks.
        RandWrite = "randwrite",
        /// Sequential reads and writes, mixed.
        Rw = "rw",
        /// Reads and writes of random blocks, mixed.
        RandRw = "randrw",
    }
}

impl Pattern {
    /// Whether blocks come in random order.
    pub fn random(self) -> bool {
        matches!(self, Pattern::RandRead | Pattern::RandWrite | Pattern::RandRw)
    }

    /// Whether it writes at all.
    pub fn writes(self) -> bool {
        !matches!(self, Pattern::Read | Pattern::RandRead)
    }

    /// Whether it both reads and writes.
    pub fn mixed(self) -> bool {
        matches!(self, Pattern::Rw | Pattern::RandRw)
    }
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workload {
    /// Its name: letters, digits, `_`, `-` and `.`; it becomes part of file names.
    pub name: String,
    /// What it is, in one line.
    pub description: String,
    /// Size of its file, bytes.
    pub file_size: u64,
    /// Size of one request, bytes; at least 512 and a multiple of it.
    pub block_size: u64,
    /// How long a run lasts, seconds.
    pub runtime: u64,
    /// Threads that all do the same.
    pub numjobs: u64,
    /// Requests of each thread under way at once.
    pub iodepth: u64,
    /// Which blocks it reads and writes.
    pub pattern: Pattern,
    /// Per cent of reads where it mixes.
    pub rwmixread: u64,
}

/// Makes workloads smaller for small machines: sizes become `numerator / denominator` of themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    /// Above the line, at least 1.
    pub numerator: u64,
    /// Below the line, not less than the numerator.
    pub denominator: u64,
}

impl Scale {
    /// As described.
    pub const FULL: Scale = Scale { numerator: 1, denominator: 1 };

    /// Reads `1/16`, `1`, or a decimal fraction such as `0.25`.
    pub fn parse(text: &str) -> Option<Scale> {
        let whole = |text: &str| text.trim().parse::<u64>().ok().filter(|n| (1..=1 << 20).contains(n));
        let scale = match text.split_once('/') {
            Some((above, below)) => Scale { numerator: whole(above)?, denominator: whole(below)? },
            None => {
                let share: f64 = text.trim().parse().ok().filter(|share| (1e-4..=1.0).contains(share))?;
                Scale { numerator: (share * 10_000.0).round() as u64, denominator: 10_000 }
            }
        };
        (scale.numerator <= scale.denominator).then_some(scale)
    }

    /// That part of `size`.
    pub fn of(self, size: u64) -> u64 {
        (u128::from(size) * u128::from(self.numerator) / u128::from(self.denominator)) as u64
    }

    /// Whether it leaves everything as it is.
    pub fn is_full(self) -> bool {
        self.numerator == self.denominator
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.numerator, self.denominator)
    }
}

/// The shortest run that a scale makes, seconds: below it the warming of the cache is most of what is measured.
const LEAST_SCALED_RUNTIME: u64 = 5;

/// The smallest file that a scale makes, bytes.
const LEAST_SCALED_FILE: u64 = 1 << 20;

impl Workload {
    /// The same on a smaller file and for a shorter time, though never below 5 seconds and 1 MiB for a workload that
    /// had more.
    pub fn scaled(&self, scale: Scale) -> Workload {
        let size = scale.of(self.file_size).max(LEAST_SCALED_FILE.min(self.file_size));
        Workload {
            file_size: (size / self.block_size).max(1) * self.block_size,
            runtime: scale.of(self.runtime).max(LEAST_SCALED_RUNTIME.min(self.runtime)),
            ..self.clone()
        }
    }

    fn read(section: Section) -> Result<Workload, Mistake> {
        let fault = |key: Option<&str>, what: &str| Mistake {
            line: Some(section.line),
            key: key.map(str::to_owned),
            what: what.to_owned(),
        };
        let allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let name = &section.name;
        if name.is_empty() || name == "all" || name.starts_with(['-', '.']) || !name.chars().all(allowed) {
            return Err(fault(
                None,
                &format!("[{name}] is no name for a workload: letters, digits, _ - and . are allowed, \"all\" is taken"),
            ));
        }
        const KEYS: [&str; 8] = [
            "description",
            "file_size",
            "block_size",
            "runtime",
            "numjobs",
            "iodepth",
            "pattern",
            "rwmixread",
        ];
        if let Some(entry) = section.entries.iter().find(|entry| !KEYS.contains(&entry.key.as_str())) {
            return Err(at(entry, format!("there is no such key; there are {}", KEYS.join(", "))));
        }
        let entry = |key: &str| section.entries.iter().find(|entry| entry.key == key);
        let needed = |key: &str| {
            entry(key).ok_or_else(|| fault(Some(key), &format!("it is missing in [{}]", section.name)))
        };
        let number = |key: &str, default: Option<u64>, range: std::ops::RangeInclusive<u64>| {
            let entry = match (entry(key), default) {
                (None, Some(default)) => return Ok(default),
                (found, _) => found.map_or_else(|| needed(key), Ok)?,
            };
            entry.value.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
                at(entry, format!("{:?} is no number from {} to {}", entry.value, range.start(), range.end()))
            })
        };
        let pattern_entry = needed("pattern")?;
        let pattern: Pattern = pattern_entry.value.parse().map_err(|what| at(pattern_entry, what))?;
        if let (Some(entry), false) = (entry("rwmixread"), pattern.mixed()) {
            return Err(at(entry, format!("it means nothing for the pattern {}", pattern.name())));
        }
        let block_size = size(needed("block_size")?, 512..=64 << 20)?;
        if !block_size.is_multiple_of(512) {
            return Err(at(needed("block_size")?, "it must be a multiple of 512, the sector of direct I/O"));
        }
        let file_size = size(needed("file_size")?, block_size..=1 << 44)?;
        Ok(Workload {
            description: entry("description").map_or_else(String::new, |entry| entry.value.clone()),
            file_size: file_size / block_size * block_size,
            block_size,
            runtime: number("runtime", Some(60), 1..=86_400)?,
            numjobs: number("numjobs", Some(1), 1..=256)?,
            iodepth: number("iodepth", Some(1), 1..=1024)?,
            pattern,
            rwmixread: number("rwmixread", Some(50), 0..=100)?,
            name: section.name,
        })
    }
}

fn at(entry: &Entry, what: impl Into<String>) -> Mistake {
    Mistake { line: Some(entry.line), key: Some(entry.key.clone()), what: what.into() }
}

fn size(entry: &Entry, range: std::ops::RangeInclusive<u64>) -> Result<u64, Mistake> {
    match parse_size(&entry.value) {
        Some(bytes) if range.contains(&bytes) => Ok(bytes),
        Some(_) => Err(at(
            entry,
            format!(
                "{} is not between {} and {}",
                entry.value,
                short_size(*range.start()),
                short_size(*range.end())
            ),
        )),
        None => Err(at(entry, format!("{:?} is no size such as 4k, 64M or 1G", entry.value))),
    }
}

/// Reads the workloads of a configuration file.
///
/// # Errors
/// The first mistake, with its line and key; also a file without any workload.
pub fn parse(text: &str) -> Result<Vec<Workload>, Mistake> {
    let workloads: Vec<Workload> =
        ini::parse(text)?.into_iter().map(Workload::read).collect::<Result<_, _>>()?;
    if workloads.is_empty() {
        return Err(Mistake {
            line: None,
            key: None,
            what: "it holds no workload, that is no [name]".into(),
        });
    }
    Ok(workloads)
}

/// A size as configuration files and test files have it: the largest binary unit that leaves a whole number.
pub fn short_size(bytes: u64) -> String {
    let units = [("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    units
        .into_iter()
        .find(|(_, shift)| bytes > 0 && bytes.is_multiple_of(1 << shift))
        .map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONE: &str = "[w]\nfile_size = 1G\nblock_size = 4k\npattern = randrw\n";

    #[test]
    fn the_eight_built_in_workloads_are_those_of_the_benchmark() {
        let workloads = parse(BUILT_IN).unwrap();
        let row = |w: &Workload| {
            let pattern = w.pattern.name().to_owned();
            (w.name.clone(), short_size(w.file_size), pattern, w.iodepth, w.numjobs, w.runtime)
        };
        let rows: Vec<_> = workloads.iter().map(row).collect();
        let mut expected = Vec::new();
        for (kind, size, prefix) in [("steady", "1G", ""), ("bursty", "16G", "rand")] {
            for (who, verb) in [("reader", "read"), ("writer", "write")] {
                for depth in [1, 32] {
                    let (name, pattern) = (format!("{kind}_{who}_d{depth}"), format!("{prefix}{verb}"));
                    expected.push((name, size.to_owned(), pattern, depth, 1, 60));
                }
            }
        }
        assert_eq!(rows, expected);
        assert!(workloads.iter().all(|w| w.block_size == 4096 && !w.description.is_empty()));
    }

    #[test]
    fn keys_that_are_left_out_have_their_defaults() {
        let workload = &parse(ONE).unwrap()[0];
        assert_eq!(
            (workload.runtime, workload.numjobs, workload.iodepth, workload.rwmixread),
            (60, 1, 1, 50)
        );
    }

    #[test]
    fn a_mistake_names_line_key_value_and_remedy() {
        let say = |tail: &str| parse(&format!("{ONE}{tail}")).unwrap_err().to_string();
        assert_eq!(say("iodepth = 0"), "line 5: iodepth: \"0\" is no number from 1 to 1024");
        assert_eq!(say("rwmixread = 101"), "line 5: rwmixread: \"101\" is no number from 0 to 100");
        assert!(
            say("io_depth = 3").starts_with("line 5: io_depth: there is no such key; there are description,")
        );
        assert_eq!(say("[x]\nblock_size=4k\npattern=read"), "line 5: file_size: it is missing in [x]");
        assert!(say("[x]\npattern=seq")
            .starts_with("line 6: pattern: \"seq\" is no pattern; there are read, write"));
        assert!(say("[x]\nblock_size=4q\npattern=read").contains("\"4q\" is no size such as 4k"));
        assert!(say("[x]\nblock_size=1000\npattern=read").contains("a multiple of 512"));
        assert!(
            say("[x]\nblock_size=1M\nfile_size=64k\npattern=read").contains("64k is not between 1M and 16T")
        );
        assert!(say("[all]").contains("\"all\" is taken"));
        assert!(say("[../x]").starts_with("line 5: [../x] is no name"));
        assert!(parse(&ONE.replace("randrw", "read\nrwmixread = 30"))
            .unwrap_err()
            .what
            .contains("means nothing"));
        assert_eq!(parse("# nothing").unwrap_err().to_string(), "it holds no workload, that is no [name]");
    }

    #[test]
    fn a_scale_shrinks_the_file_and_the_time_down_to_a_floor() {
        let workload = &parse(BUILT_IN).unwrap()[4];
        let small = workload.scaled(Scale::parse("1/16").unwrap());
        assert_eq!((small.file_size, small.runtime), (1 << 30, 5));
        let tiny = workload.scaled(Scale { numerator: 1, denominator: 1 << 20 });
        assert_eq!((tiny.file_size, tiny.runtime), (1 << 20, 5));
        assert_eq!(workload.scaled(Scale::FULL), *workload);
        assert_eq!(Scale::parse("0.25").unwrap().of(100), 25);
        assert!(["0", "2", "1/0", "3/2", "x", "1/x", "-1/2", ""]
            .iter()
            .all(|bad| Scale::parse(bad).is_none()));
    }

    proptest! {
        #[test]
        fn any_text_is_workloads_or_a_mistake(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn any_values_of_the_keys_give_a_workload_that_can_run_or_a_mistake_in_their_section(
            values in prop::collection::vec("[0-9]{1,12}[kKmMgGtT]?|read|rw|randwrite|[ -~]{0,6}", 8),
        ) {
            let keys = ["description", "file_size", "block_size", "runtime", "numjobs", "iodepth", "pattern", "rwmixread"];
            let lines: Vec<String> = keys.iter().zip(&values).map(|(k, v)| format!("{k} = {v}")).collect();
            match parse(&format!("[w]\n{}", lines.join("\n"))) {
                Ok(read) => {
                    let w = &read[0];
                    prop_assert!(w.file_size >= w.block_size && w.file_size.is_multiple_of(w.block_size));
                    prop_assert!(w.runtime >= 1 && w.numjobs >= 1 && w.iodepth >= 1 && w.rwmixread <= 100);
                }
                Err(mistake) => prop_assert!((1..=9).contains(&mistake.line.unwrap())),
            }
        }

        #[test]
        fn a_scaled_file_is_whole_blocks_and_not_larger(below in 1u64..1 << 20, size in 1u64..1 << 34) {
            let mut workload = parse(BUILT_IN).unwrap().remove(0);
            workload.file_size = size.max(4096) / 4096 * 4096;
            let scaled = workload.scaled(Scale { numerator: 1, denominator: below });
            prop_assert!(scaled.file_size >= 4096 && scaled.file_size <= workload.file_size);
            prop_assert_eq!(scaled.file_size % 4096, 0);
        }

        #[test]
        fn a_short_size_reads_back(bytes in 1u64..1 << 44) {
            prop_assert_eq!(parse_size(&short_size(bytes)), Some(bytes));
        }
    }
}
