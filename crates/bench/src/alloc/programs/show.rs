//! The results as tables on a terminal.

use super::super::show::{percent, table};
use super::super::BASE;
use super::{Cell, Failed, Options};
use crate::experiment::Report;
use memfold_experiment::text::mib;
use memfold_stats::Ratio;
use std::fmt::{self, Display, Formatter};

const HEAD: [&str; 7] = ["time s", "CV", "over glibc", "CPU s", "peak MiB", "over glibc", "faults"];

fn row(cell: &Cell) -> Vec<String> {
    // A star stands at a difference: an interval that excludes 1.
    let over = |ratio: &Ratio| match cell.arm == BASE {
        true => String::new(),
        false => format!("{:.2}{}", ratio.median, if ratio.differs { "*" } else { "" }),
    };
    vec![
        format!("{:.3}", cell.time_s),
        percent(cell.time_s_moments.cv),
        over(&cell.time_over_glibc),
        format!("{:.2}", cell.cpu_s),
        format!("{:.1}", mib(cell.rss_peak_bytes)),
        over(&cell.rss_over_glibc),
        format!("{:.0}", cell.minor_faults),
    ]
}

impl Display for Report<Options> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let source = self.found.source.as_ref();
        let source = source.map_or(String::new(), |source| format!(" of {} {}", source.name, source.version));
        writeln!(
            f,
            "{} runs of each program{source} with each allocator, interleaved; medians; * a difference from glibc",
            self.options.suite.rounds
        )?;
        let mut names: Vec<&str> = self.found.cells.iter().map(|cell| cell.program).collect();
        names.dedup();
        for name in names {
            writeln!(f, "\n{name}")?;
            let own = self.found.cells.iter().filter(|cell| cell.program == name);
            table(f, HEAD, own.map(|cell| (cell.arm.as_str(), row(cell))))?;
        }
        writeln!(f, "\nover all programs, geometric means; the worst program in parentheses")?;
        for standing in &self.found.standings {
            let beside = standing.beside.as_deref().unwrap_or("the best of each program");
            let (name, worst) = standing.worst;
            writeln!(
                f,
                "  {} over {beside}: time {:.3} ({name} {worst:.3}), peak memory {:.3}",
                standing.arm, standing.time, standing.rss
            )?;
        }
        if !self.found.absent.is_empty() {
            writeln!(f, "\nnot there, and left out: {}", self.found.absent.join(", "))?;
        }
        for Failed { program, arm, reason } in &self.found.failed {
            writeln!(f, "\n{program} is left out, as it failed under {arm}: {reason}")?;
        }
        Ok(())
    }
}
