//! The plots of tenants side by side.

use super::{Arm, ArmRun, Fairness, Results, Standing};
use memfold_experiment::runs::of as runs_of;
use memfold_plot::{ccdf, Axis, Bars, Chart, Line, Lines, Panels, Plot, Unit};
use memfold_stats::Histogram;

/// All for which there are runs.
pub(super) fn all(results: &Results) -> Vec<Plot> {
    let mut drawn = vec![
        Plot::new(
            "slowdown",
            "How many times slower each tenant is than alone: 1 is no harm, below 1 it gains. A dash: unsupported here.",
            slowdown(results),
        ),
        Plot::new("jain", "Jain's index of fairness: 1 if all tenants get the same share of what they get alone.", index(results)),
        Plot::new(
            "victim_latency_ccdf",
            "How large a share of the victim's requests takes at least so long.",
            latencies(results),
        ),
        Plot::new(
            "residency",
            "How much of each tenant's file is in the cache, over the first run of each arm.",
            residency(results),
        ),
        Plot::new(
            "dirty",
            "How much of each tenant's file is changed or being written back, over the first run of each arm.",
            dirty(results),
        ),
    ];
    if results.arm(Arm::Evicting).is_some() && results.arm(Arm::Writing).is_some() {
        drawn.push(Plot::new(
            "mechanisms",
            "What the victim suffers from a neighbour that only evicts, and from one that evicts as fast and writes back.",
            mechanisms(results),
        ));
    }
    drawn
}

/// The tenants' names, told apart where one workload is there twice.
fn tenants(results: &Results) -> Vec<String> {
    let neighbors = results.plan.neighbors.iter().enumerate();
    let neighbors = neighbors.map(|(index, one)| format!("neighbor {}: {}", index + 1, one.name));
    std::iter::once(format!("victim: {}", results.plan.victim.name)).chain(neighbors).collect()
}

/// The arms in which all tenants ran, with their names.
fn shared(results: &Results) -> impl Iterator<Item = (&str, &Fairness)> {
    results.shared().map(|arm| (arm.name.as_str(), arm))
}

fn slowdown(results: &Results) -> Bars {
    Bars::of(
        "Slowdown against running alone",
        Axis::ratio("times slower than alone"),
        shared(results),
        tenants(results).into_iter().zip(0..),
        |arm, &tenant| Some(arm.tenants.get::<usize>(tenant)?.slowdown?.into()),
    )
}

fn index(results: &Results) -> Bars {
    let axis = Axis::linear("Jain's index").range(0.0, 1.0).not_negative();
    Bars::of("Fairness", axis, shared(results), [("index", ())], |arm, ()| Some(arm.jain?.into()))
}

fn mechanisms(results: &Results) -> Bars {
    type Figure = fn(&Standing) -> Option<f64>;
    let figures: [(&str, Figure); 2] =
        [("the victim's slowdown", |one| one.slowdown), ("the victim's p99", |one| one.p99_over_alone)];
    let arms = [Arm::Alone { tenant: 0 }, Arm::Evicting, Arm::Writing];
    Bars::of(
        "The mechanisms apart",
        Axis::ratio("times that alone"),
        arms.map(|arm| (arm.name(), arm)),
        figures,
        |arm, figure| Some(figure(results.arm(arm)?.tenants.first()?)?.into()),
    )
}

/// One panel for each remedy: the victim alone, with nothing done, and under it.
fn latencies(results: &Results) -> Panels {
    let (alone, together) = (Arm::Alone { tenant: 0 }, Arm::Together);
    let of = |arm: Arm| {
        let mut all = Histogram::default();
        let victims = runs_of(&results.runs, arm).into_iter().filter_map(|run| run.tenants.first());
        victims.for_each(|victim| all.merge(&victim.outcome.latencies));
        all
    };
    let (before, beside) = (of(alone), of(together));
    let panel = |arm: Arm| {
        let under = of(arm);
        let mut named = vec![(alone.name(), &before), (together.name(), &beside)];
        if arm != together {
            named.push((arm.name(), &under));
        }
        let axis = Axis::logarithmic("time of a request").unit(Unit::Nanos);
        ccdf(format!("the victim under {}", arm.name()), axis, &named).svg()
    };
    let remedies: Vec<Arm> =
        results.shared().filter(|one| one.unsupported.is_none()).map(|one| one.arm).collect();
    let remedies: Vec<Arm> = if remedies.len() > 1 { remedies[1..].to_vec() } else { remedies };
    Panels { panels: remedies.into_iter().map(panel).collect() }
}

fn residency(results: &Results) -> Panels {
    over_time(results, "in the cache", |file| Some(file.resident))
}

fn dirty(results: &Results) -> Panels {
    over_time(results, "dirty or in write-back", |file| Some(file.dirty? + file.writeback?))
}

/// One panel for each arm with several tenants.
fn over_time(results: &Results, what: &str, of: fn(&crate::residency::Residency) -> Option<u64>) -> Panels {
    let panel = |run: &ArmRun| {
        let line = |(tenant, one): (usize, &super::TenantRun)| {
            let points = run.samples.iter().filter_map(|sample| {
                Some((sample.at_ms as f64 * 1e6, of(sample.files.get(tenant)?)? as f64))
            });
            let who = if tenant == 0 { "victim" } else { "neighbor" };
            Line { name: format!("{who}: {}", one.workload), points: points.collect() }
        };
        Lines {
            title: run.arm.name(),
            x: Axis::linear("time").unit(Unit::Nanos),
            y: Axis::linear(what).unit(Unit::Bytes).range(0.0, f64::from(1 << 20)).not_negative(),
            lines: run.tenants.iter().enumerate().map(line).collect(),
        }
        .svg()
    };
    let first = results.runs.iter().filter(|run| run.repeat == 0 && run.tenants.len() > 1);
    Panels { panels: first.map(panel).collect() }
}
