//! The plots of an experiment.

use super::figures::label;
use super::{Arm, Kind, Report};
use memfold_plot::{Axis, Bars, Chart, Line, Lines, Panels, Plot, Unit};

/// Every plot.
pub(super) fn all(report: &Report) -> Vec<Plot> {
    let moments = report.options.moments();
    let columns = |begin: &str| -> Vec<(String, String)> {
        moments.iter().map(|m| (format!("after {}", label(*m)), format!("{begin}_{}", label(*m)))).collect()
    };
    let pair = |first: (&str, &str), second: (&str, &str)| {
        [first, second].map(|(name, figure)| (name.to_owned(), figure.to_owned())).to_vec()
    };
    vec![
        Plot::new(
            "memory_ratio",
            "Memory (PSS) of all processes of a program beside the plain run of the same repeat, so long after its heap was built: 0.5 \
             is half of it.",
            ratios(report, "Memory", "PSS, over the plain run's", &columns("pss_bytes")),
        ),
        Plot::new(
            "memory_over_time",
            "Anonymous resident memory (RssAnon) of all processes of a program from the moment on at which its heap was built, in the first \
             repeat.",
            over_time(report),
        ),
        Plot::new(
            "throughput_ratio",
            "What stays in use, by the program's own clock or its client's, in the first and in the last seconds of the idle phase, \
             beside the plain run of the same repeat.",
            ratios(
                report,
                "Throughput of what stays in use",
                "units a second, over the plain run's",
                &pair(("first seconds", "hot_units_per_s_begin"), ("last seconds", "hot_units_per_s_end")),
            ),
        ),
        Plot::new(
            "cost_ratio",
            "CPU time of all processes, the pager's among it, and the time that the exit takes, beside the plain run of the same \
             repeat. Short exits differ by chance.",
            ratios(
                report,
                "CPU and exit",
                "time, over the plain run's",
                &pair(("CPU in all", "cpu_s"), ("exit", "exit_s")),
            ),
        ),
    ]
}

/// A drawing for each arm that is compared, of some figures by program.
fn ratios(report: &Report, title: &str, axis: &str, figures: &[(String, String)]) -> Panels {
    let programs: Vec<Kind> = report.programs().collect();
    let bars = |arm: Arm| {
        Bars::of(
            format!("{title}, arm {}", arm.name()),
            Axis::ratio(axis),
            programs.iter().map(|&program| (program.name(), program)),
            figures.iter().map(|(name, figure)| (name.as_str(), figure)),
            |program, figure| report.beside(program, arm, figure).map(|beside| beside.ratio.into()),
        )
    };
    let others = report.options.arms.iter().copied().filter(|arm| *arm != Arm::Plain);
    Panels { panels: others.map(|arm| bars(arm).svg()).collect() }
}

fn over_time(report: &Report) -> Panels {
    let panel = |program: Kind| {
        let line = |arm: &Arm| {
            let run = report.found.runs.iter().find(|run| (run.program, run.arm) == (program, *arm))?;
            let points = run.moments.iter().map(|m| (m.at_s * 1e9, m.anonymous_bytes as f64)).collect();
            Some(Line { name: arm.name().into(), points })
        };
        Lines {
            title: format!("Anonymous memory: {}", program.name()),
            x: Axis::linear("time since the load").unit(Unit::Nanos),
            y: Axis::linear("RssAnon").unit(Unit::Bytes).not_negative(),
            lines: report.options.arms.iter().filter_map(line).collect(),
        }
        .svg()
    };
    Panels { panels: report.programs().map(panel).collect() }
}
