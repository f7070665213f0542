//! Numbers as people read them, tables, and printing that ends and changes nothing.
//!
//! Invariants: a message that cannot be written is lost, and that is all. Of a result that cannot be written the command says so and
//! fails at its end, but not before; where its reader has gone, it goes on in silence. (The macros of the standard library, which
//! panic instead, are denied in this crate.)

use nix::errno::Errno;
use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// No error of the kernel's has a number as high (errno(3)).
const LAST: i32 = 256;

/// What became of standard output: [`HEARD`], or why nothing more is written to it.
static OUTPUT: AtomicU8 = AtomicU8::new(HEARD);
const HEARD: u8 = 0;
const CLOSED: u8 = 1;
const FAILED: u8 = 2;

/// Bytes with a binary unit and three significant digits: `0 B`, `1.50 MiB`, `302 MiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (n as f64, 0);
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        return format!("{n} B");
    }
    format!("{} {}", digits(value), UNITS[unit])
}

/// Nanoseconds with a fitting unit: `870 ns`, `11.2 us`, `3.40 ms`, `12.0 s`.
pub fn nanos(ns: u64) -> String {
    match ns {
        0..=999 => format!("{ns} ns"),
        1_000..=999_999 => format!("{} us", digits(ns as f64 / 1e3)),
        1_000_000..=999_999_999 => format!("{} ms", digits(ns as f64 / 1e6)),
        _ => format!("{} s", digits(ns as f64 / 1e9)),
    }
}

/// A count with a thin gap every three digits: `1 234 567`.
pub fn count(n: u64) -> String {
    let raw = n.to_string();
    let mut out = String::with_capacity(raw.len() + raw.len() / 3);
    for (i, digit) in raw.chars().enumerate() {
        if i > 0 && (raw.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

/// Part of a whole in per cent, 0 where the whole is 0.
pub fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 * 100.0 / whole as f64
    }
}

/// How often one number is in another; `None` where the other is 0.
pub fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| part as f64 / whole as f64)
}

fn digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Lays rows out in columns: the first column to the left, the others to the right.
pub fn table(rows: &[Vec<String>]) -> String {
    columns(rows, 1)
}

/// Lays out names with what they stand for, which may be words: both to the left.
pub fn list(rows: &[Vec<String>]) -> String {
    columns(rows, 2)
}

fn columns(rows: &[Vec<String>], left: usize) -> String {
    let plain = |row: &Vec<String>| row.iter().map(|cell| memfold_inspect::plain(cell)).collect();
    memfold_experiment::text::columns(&rows.iter().map(plain).collect::<Vec<_>>(), left)
}

/// Writes a message to standard error, with our name before it and a newline behind it, in words alone ([`plain`]).
pub fn say(message: impl Display) {
    let lines: Vec<_> = plain(&message.to_string()).lines().map(memfold_inspect::plain).collect();
    note(&format!("memfold: {}\n", lines.join("\n")));
}

/// A text without the numbers and the symbols of errors: who reads `Permission denied (os error 13)`, `EACCES: Permission denied` or
/// `EACCES (13)` is told by the words alone.
pub fn plain(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| {
        text + part.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(')').unwrap_or(part)
    });
    let (mut told, mut rest) = (String::with_capacity(text.len()), text.as_str());
    while let Some(at) = symbol(rest) {
        told += &rest[..at];
        let (name, behind) = rest[at..].split_at(rest[at..].find([':', ' ']).unwrap_or(rest.len() - at));
        // "EACCES: " has its words behind it, "EACCES (13)" has none.
        rest = match (
            behind.strip_prefix(": "),
            behind.strip_prefix(" (").and_then(|number| number.split_once(')')),
        ) {
            (Some(words), _) => words,
            (None, Some((_, behind))) => {
                told += errno(name).map_or("", Errno::desc);
                behind
            }
            (None, None) => behind,
        };
    }
    told + rest
}

/// Where the symbol of an error stands, such as `EACCES`, with `: ` or a number in parentheses behind it.
fn symbol(text: &str) -> Option<usize> {
    text.match_indices('E').map(|(at, _)| at).find(|&at| {
        let begins = text[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric());
        let length = text[at..].find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit());
        let (name, behind) = text[at..].split_at(length.unwrap_or(text.len() - at));
        let number = behind.strip_prefix(" (").and_then(|number| number.split_once(')'));
        let is_said =
            behind.starts_with(": ") || number.is_some_and(|(number, _)| number.parse::<i32>().is_ok());
        begins && is_said && errno(name).is_some()
    })
}

/// The error with this symbol.
fn errno(name: &str) -> Option<Errno> {
    (1..LAST).map(Errno::from_raw).find(|error| *error != Errno::UnknownErrno && format!("{error:?}") == name)
}

/// Writes to standard error as it is.
pub fn note(text: &str) {
    // At once: others write there too.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Writes to standard output. Never fails; see [`is_heard`] and [`failed`] for what became of it.
pub fn print(text: &str) -> anyhow::Result<()> {
    if !is_heard() {
        return Ok(());
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        // A reader that went away has what it wanted.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => OUTPUT.store(CLOSED, Relaxed),
        Err(error) => {
            OUTPUT.store(FAILED, Relaxed);
            say(format_args!("cannot write to standard output: {error}"));
        }
    }
    Ok(())
}

/// Whether what is printed may still arrive. A command that prints again and again ends when it does not.
pub fn is_heard() -> bool {
    OUTPUT.load(Relaxed) == HEARD
}

/// Whether something could not be printed that somebody waits for.
pub fn failed() -> bool {
    OUTPUT.load(Relaxed) == FAILED
}

/// Prints a value as indented JSON with a newline at the end.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_carry_three_digits_and_a_unit() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1 << 20), "1.00 MiB");
        assert_eq!(bytes(302 << 20), "302 MiB");
        assert_eq!(bytes(1023 << 20), "1.00 GiB");
        assert_eq!(nanos(870), "870 ns");
        assert_eq!(nanos(11_234), "11.2 us");
        assert_eq!(nanos(1_500_000_000), "1.50 s");
        assert_eq!(count(1_234_567), "1 234 567");
        assert_eq!(count(12), "12");
    }

    #[test]
    fn errors_are_told_in_words_alone() {
        for (said, told) in [
            (
                "cannot listen at 127.0.0.1:1: Permission denied (os error 13)",
                "cannot listen at 127.0.0.1:1: Permission denied",
            ),
            ("none (No such file (os error 2)); root", "none (No such file); root"),
            ("process 7 could not: EINVAL: Invalid argument", "process 7 could not: Invalid argument"),
            (
                "not permitted: EPERM (1), says the kernel",
                "not permitted: Operation not permitted, says the kernel",
            ),
            (
                "two: EIO (5) and ENOENT: No such file or directory",
                "two: I/O error and No such file or directory",
            ),
            (
                "ELF: a file; E (1), EXAMPLE: x, /EPERMIT: y, EINVAL",
                "ELF: a file; E (1), EXAMPLE: x, /EPERMIT: y, EINVAL",
            ),
            ("fine", "fine"),
            ("", ""),
        ] {
            assert_eq!(plain(said), told);
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "1".into()], vec!["long".into(), "100".into()]];
        assert_eq!(table(&rows), "a       1\nlong  100\n");
    }
}
