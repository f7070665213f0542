//! The programs of mimalloc-bench: how each is called, and what of it is measured; and any others, which are called without arguments, and whose time is
//! that of their run.
//!
//! What it is not: the programs themselves, which `scripts/peers` builds. The calls and the meaning of each time are those of mimalloc-bench's
//! own `bench.sh` (v1.0.0-399-gce5784f), so that figures can be compared.

use anyhow::{ensure, Context, Result};
use std::num::NonZeroUsize;
use std::path::Path;

/// What stands for the number of processors in a program's words.
const PROCESSORS: &str = "N";

/// `alloc-test` takes no more threads.
const MOST_OF_ALLOC_TEST: usize = 16;

/// What a program's time is.
#[derive(Clone, Copy, Debug)]
enum Time {
    /// From its start to its end, as its work is always the same.
    OfRun,
    /// It runs for a time, and says behind these words how many seconds its usual work would have taken.
    Said(&'static str),
    /// It runs for a time, and says before these words how many units it did; so many are the work.
    Counted { before: &'static str, work: f64 },
}

/// A program with its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Listed {
    /// Its name in results.
    pub name: &'static str,
    /// The file and the arguments.
    words: &'static [&'static str],
    /// The file that it reads as standard input.
    pub(super) input: Option<&'static str>,
    time: Time,
}

const fn listed(name: &'static str, words: &'static [&'static str]) -> Listed {
    Listed { name, words, input: None, time: Time::OfRun }
}

/// All of them. Names that end in N are of programs with a thread, or two, for each processor.
pub const PROGRAMS: [Listed; 19] = [
    listed("cfrac", &["cfrac", "17545186520507317056371138836327483792789528"]),
    listed("espresso", &["espresso", "largest.espresso"]),
    Listed { input: Some("input"), ..listed("barnes", &["barnes"]) },
    listed("alloc-test1", &["alloc-test", "1"]),
    listed("alloc-testN", &["alloc-test", PROCESSORS]),
    Listed {
        time: Time::Said("relative time: "),
        ..listed("larsonN", &["larson", "5", "8", "1000", "5000", "100", "4141", PROCESSORS])
    },
    Listed {
        time: Time::Said("relative time: "),
        ..listed("larsonN-sized", &["larson-sized", "5", "8", "1000", "5000", "100", "4141", PROCESSORS])
    },
    listed("mstressN", &["mstress", PROCESSORS, "50", "25"]),
    Listed {
        time: Time::Counted { before: " memory ops", work: 2e6 },
        ..listed("rptestN", &["rptest", PROCESSORS, "0", "1", "2", "500", "1000", "100", "8", "16000"])
    },
    Listed {
        time: Time::Said("rtime: "),
        ..listed("xmalloc-testN", &["xmalloc-test", "-w", PROCESSORS, "-t", "5", "-s", "64"])
    },
    listed("glibc-simple", &["glibc-simple"]),
    Listed {
        time: Time::Counted { before: " iterations", work: 1e9 },
        ..listed("glibc-thread", &["glibc-thread", PROCESSORS])
    },
    listed("malloc-large", &["malloc-large"]),
    listed("cache-scratch1", &["cache-scratch", "1", "1000", "1", "2000000", PROCESSORS]),
    listed("cache-scratchN", &["cache-scratch", PROCESSORS, "1000", "1", "2000000", PROCESSORS]),
    listed("cache-thrash1", &["cache-thrash", "1", "1000", "1", "2000000", PROCESSORS]),
    listed("cache-thrashN", &["cache-thrash", PROCESSORS, "1000", "1", "2000000", PROCESSORS]),
    listed("mleak10", &["mleak", "5"]),
    listed("mleak100", &["mleak", "50"]),
];

impl Listed {
    /// Whether a file of this name belongs to programs of mimalloc-bench.
    pub(super) fn is_known_file(name: &str) -> bool {
        PROGRAMS.iter().any(|program| program.file() == name)
    }

    /// A program that is called by the name of its file, and nothing else.
    pub(super) fn other(file: String) -> Listed {
        // There are a few, named once.
        let name: &'static str = file.leak();
        listed(name, Vec::from([name]).leak())
    }

    /// The name of its file.
    pub(super) fn file(&self) -> &'static str {
        self.words[0]
    }

    /// Its arguments on a machine with so many processors, where its files lie in `directory`.
    pub(super) fn arguments(&self, directory: &Path, processors: NonZeroUsize) -> Vec<String> {
        let processors = match self.file() {
            "alloc-test" => processors.get().min(MOST_OF_ALLOC_TEST),
            _ => processors.get(),
        };
        let word = |word: &&str| match *word {
            PROCESSORS => processors.to_string(),
            word if word.contains('.') => directory.join(word).display().to_string(),
            word => word.to_owned(),
        };
        self.words[1..].iter().map(word).collect()
    }

    /// Its time in seconds: what it says of it, or `elapsed_s` of its run.
    ///
    /// # Errors
    /// When it does not say what it should.
    pub(super) fn time_s(&self, elapsed_s: f64, said: &str) -> Result<f64> {
        let time = match self.time {
            Time::OfRun => Some(elapsed_s),
            Time::Said(words) => said.split_once(words).and_then(|(_, rest)| leading_number(rest)),
            Time::Counted { before, work } => {
                said.split_once(before).and_then(|(done, _)| trailing_count(done)).map(|done| work / done)
            }
        };
        let end: String = said.chars().rev().take(200).collect::<Vec<_>>().into_iter().rev().collect();
        let time =
            time.with_context(|| format!("{} does not say how fast it was; it says {end:?}", self.name))?;
        ensure!(time.is_finite() && time > 0.0, "{} says that it took {time} s", self.name);
        Ok(time)
    }
}

/// The number that a text begins with.
fn leading_number(text: &str) -> Option<f64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].parse().ok()
}

/// The whole number that a text ends with.
fn trailing_count(text: &str) -> Option<f64> {
    let begin = text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    text[begin..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str) -> Listed {
        PROGRAMS.into_iter().find(|program| program.name == name).unwrap()
    }

    #[test]
    fn the_time_of_a_program_that_runs_for_a_time_is_what_it_says() {
        let said = |name: &str, said: &str| program(name).time_s(7.0, said).unwrap();
        assert_eq!(said("cfrac", "1 = 1"), 7.0);
        assert_eq!(
            said("larsonN", "Throughput = 20 operations per second, relative time: 49.519s.\n"),
            49.519
        );
        assert_eq!(said("xmalloc-testN", "rtime: 4.250, free/sec: 23.5 M\n"), 4.25);
        assert_eq!(said("rptestN", "100 ops: ........4000000 memory ops/CPU second (36MiB peak)\n"), 0.5);
        assert_eq!(said("glibc-thread", "50000000 iterations\n"), 20.0);
    }

    #[test]
    fn a_program_that_does_not_say_it_is_named_with_what_it_says() {
        for said in ["", "nothing", "rtime: , free", "rtime: 0.000, free/sec: inf"] {
            let refused = program("xmalloc-testN").time_s(5.0, said).unwrap_err().to_string();
            assert!(refused.contains("xmalloc-testN"), "{refused}");
        }
    }

    #[test]
    fn arguments_have_the_number_of_processors_and_the_place_of_files() {
        let at = |name: &str, processors| {
            program(name).arguments(Path::new("/p"), NonZeroUsize::new(processors).unwrap())
        };
        assert_eq!(at("mstressN", 2), ["2", "50", "25"]);
        assert_eq!(at("alloc-testN", 64), ["16"]);
        assert_eq!(at("cache-scratch1", 4), ["1", "1000", "1", "2000000", "4"]);
        assert_eq!(at("espresso", 4), ["/p/largest.espresso"]);
    }
}
