//! The plots of an experiment.

use super::figures::label;
use super::measured::{Below, Moment};
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
    let mut plots = vec![
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
    ];
    if programs_below(report).next().is_some() {
        plots.push(Plot::new(
            "tier_over_time",
            "Where the memory of a folded program is, in the first repeat, from the moment on at which its heap was built: in RAM (anonymous \
             resident memory, what is compressed in it too), what of that is the compressed pages, and what the tier's files take on the disk. \
             What goes to the files leaves RAM.",
            below_over_time(report),
        ));
        plots.push(Plot::new(
            "tier_reads_over_time",
            "How often something was read from the tier in each second of that run: a cluster of up to sixteen pages each time. Each is a wait, \
             or was read ahead of one. The last seconds of the idle phase should have few.",
            reads_over_time(report),
        ));
    }
    plots
}

/// The programs whose pagers said something of their tier, with what they said in the first repeat.
fn programs_below(report: &Report) -> impl Iterator<Item = (Kind, Vec<(&Moment, Below)>)> + '_ {
    report.programs().filter_map(|program| {
        let run = report.found.runs.iter().find(|run| (run.program, run.arm) == (program, Arm::Folded))?;
        let said: Vec<_> = run.moments.iter().filter_map(|moment| Some((moment, moment.below?))).collect();
        (said.len() > 1).then_some((program, said))
    })
}

fn below_over_time(report: &Report) -> Panels {
    type Part = fn(&Moment, &Below) -> u64;
    const PARTS: [(&str, Part); 3] = [
        ("in RAM, all", |moment, _| moment.anonymous_bytes),
        ("of that, compressed pages", |_, below| below.stored_bytes),
        ("on the tier", |_, below| below.tier_file_bytes),
    ];
    let panel = |(program, said): (Kind, Vec<(&Moment, Below)>)| {
        let line = |(name, part): (&str, Part)| Line {
            name: name.into(),
            points: said
                .iter()
                .map(|(moment, below)| (moment.at_s * 1e9, part(moment, below) as f64))
                .collect(),
        };
        Lines {
            title: format!("Memory and its tier: {}", program.name()),
            x: Axis::linear("time since the load").unit(Unit::Nanos),
            y: Axis::linear("bytes").unit(Unit::Bytes).not_negative(),
            lines: PARTS.map(line).into(),
        }
        .svg()
    };
    Panels { panels: programs_below(report).map(panel).collect() }
}

fn reads_over_time(report: &Report) -> Panels {
    let panel = |(program, said): (Kind, Vec<(&Moment, Below)>)| {
        let rate = |pair: &[(&Moment, Below)]| {
            let [(earlier, before), (later, after)] = pair else { return None };
            let reads = after.tier_reads.saturating_sub(before.tier_reads) as f64;
            let seconds = later.at_s - earlier.at_s;
            (seconds > 0.0).then(|| (later.at_s * 1e9, reads / seconds))
        };
        Lines {
            title: format!("Reads from the tier: {}", program.name()),
            x: Axis::linear("time since the load").unit(Unit::Nanos),
            y: Axis::linear("reads a second").not_negative(),
            lines: vec![Line { name: "reads".into(), points: said.windows(2).filter_map(rate).collect() }],
        }
        .svg()
    };
    Panels { panels: programs_below(report).map(panel).collect() }
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
