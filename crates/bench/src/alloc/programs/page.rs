//! The section of `docs/scorecard.md` that programs have, as Markdown.
//!
//! Invariants: a section says which command made it, of what, and on what machine; writing one leaves the others as they are.

use super::super::scorecard::{command, machine, table};
use super::super::BASE;
use super::{Cell, Failed, Options};
use crate::experiment::Report;
use memfold_experiment::text::{mib, or_dash};
use memfold_stats::Ratio;
use std::fmt::{self, Write};

/// How the headings of such sections begin.
const BEGINS: &str = "## Programs";

/// The heading of the report's section, and the section.
///
/// # Errors
/// None: writing into a string cannot fail; the result is for the `?` of its parts.
pub fn section(report: &Report<Options>) -> Result<(String, String), fmt::Error> {
    let found = &report.found;
    let title = match &found.source {
        Some(source) => format!("{BEGINS} of {}", source.name),
        None => format!("{BEGINS} as they are"),
    };
    let mut page = format!("{title}\n\n");
    let source = found.source.as_ref();
    let source = source
        .map(|source| format!("The programs are of {}, built by {}. ", source.version, source.compiler));
    writeln!(
        page,
        "Written by `{}`; do not edit. What each program is: [benchmarks-alloc.md](benchmarks-alloc.md#programs-that-nobody-here-wrote).\n\n\
         {}\n{}{} runs of each program with each allocator, interleaved; figures are medians. Other work shares the machine: only what stands side by side can be \
         compared, and CPU time says more than time.\n",
        command(&report.manifest),
        machine(&report.manifest, &found.arms),
        source.unwrap_or_default(),
        report.options.suite.rounds,
    )?;
    for Failed { program, arm, reason } in &found.failed {
        writeln!(page, "`{program}` is left out, as it failed under {arm}: {reason}.\n")?;
    }
    standings(&mut page, report)?;
    let figure = |digits: usize, value: f64, cell: &Cell, over: &Ratio| match cell.arm == BASE {
        true => format!("{value:.digits$}"),
        false => format!("{value:.digits$} ({:.2})", over.median),
    };
    writeln!(page, "CPU time of the same work, s; in parentheses over glibc\u{2019}s:\n")?;
    by_program(&mut page, report, |cell| figure(3, cell.work_cpu_s, cell, &cell.work_cpu_over_glibc))?;
    writeln!(page, "Time, s, likewise:\n")?;
    by_program(&mut page, report, |cell| figure(3, cell.time_s, cell, &cell.time_over_glibc))?;
    writeln!(page, "Most resident memory, MiB, likewise:\n")?;
    by_program(&mut page, report, |cell| figure(1, mib(cell.rss_peak_bytes), cell, &cell.rss_over_glibc))?;
    Ok((title, page))
}

fn standings(page: &mut String, report: &Report<Options>) -> fmt::Result {
    writeln!(
        page,
        "Geometric means over the programs, of ratios of runs of the same round; less is better. *The best* is whichever other allocator is fastest, or \
         smallest, on a program.\n"
    )?;
    let rows = report.found.standings.iter().map(|standing| {
        let beside = standing.beside.as_deref().unwrap_or("*the best*");
        let (name, worst) = standing.worst;
        vec![
            format!("{} over {beside}", standing.arm),
            format!("{:.3}", standing.cpu),
            format!("{:.3}", standing.time),
            format!("{worst:.3} ({name})"),
            format!("{:.3}", standing.rss),
        ]
    });
    table(page, &["", "CPU time", "time", "time of its worst program", "most resident memory"], rows)
}

/// A table with a row for each program and a column for each arm.
fn by_program(page: &mut String, report: &Report<Options>, show: impl Fn(&Cell) -> String) -> fmt::Result {
    let found = &report.found;
    let arms: Vec<&str> = found.arms.iter().map(|arm| arm.name.as_str()).collect();
    let mut names: Vec<&str> = found.cells.iter().map(|cell| cell.program).collect();
    names.dedup();
    let rows = names.into_iter().map(|name| {
        let of = |arm: &&str| {
            or_dash(found.cells.iter().find(|cell| (cell.program, cell.arm.as_str()) == (name, *arm)), &show)
        };
        std::iter::once(format!("`{name}`")).chain(arms.iter().map(of)).collect()
    });
    table(page, &[&["program"], arms.as_slice()].concat(), rows)
}

/// The sections of programs that a scorecard ends with.
pub fn sections(page: &str) -> &str {
    // The line's end before the first of them begins what is kept.
    page.find(&format!("\n{BEGINS}")).map_or("", |at| &page[at..])
}

/// A scorecard with a section in place of the one with its title, or behind all.
pub fn replace(page: &str, title: &str, section: &str) -> String {
    let begin = page.find(&format!("\n{title}\n")).map(|at| at + 1);
    let section = section.trim_end();
    match begin {
        Some(begin) => {
            let rest = &page[begin + title.len()..];
            let rest = rest.find("\n## ").map_or("", |end| &rest[end..]);
            format!("{}{section}\n{rest}", &page[..begin])
        }
        None => format!("{}\n\n{section}\n", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_takes_the_place_of_the_one_before_it_and_leaves_the_others() {
        let first = replace("# Card\n\ntext\n", "## Programs of a", "## Programs of a\n\none\n\n");
        assert_eq!(first, "# Card\n\ntext\n\n## Programs of a\n\none\n");
        let both = replace(&first, "## Programs as they are", "## Programs as they are\n\ntwo\n");
        let again = replace(&both, "## Programs of a", "## Programs of a\n\nthree\n");
        assert_eq!(again, "# Card\n\ntext\n\n## Programs of a\n\nthree\n\n## Programs as they are\n\ntwo\n");
        assert_eq!(sections(&again), "\n## Programs of a\n\nthree\n\n## Programs as they are\n\ntwo\n");
        assert_eq!(sections("# Card\n"), "");
    }
}
