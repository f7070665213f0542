//! Where our allocator stands beside each other one, over the whole suite.

use super::arm::Arm;
use super::case::Case;
use super::Run;
use anyhow::{Context, Result};
use memfold_experiment::runs::{self, column};
use serde::Serialize;

/// One of our arms beside one other, or beside the best of all others on each case.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Standing {
    /// Our arm.
    pub arm: String,
    /// The other; `None` for the best of glibc and the peers on each case.
    pub beside: Option<String>,
    /// Geometric mean over the cases of calls a second, ours over the other's; each case's is the median over pairs of runs of
    /// the same round (beside the best, the ratio of the medians).
    pub calls: f64,
    /// The case on which ours is least, and the ratio there.
    pub least: (&'static str, f64),
    /// Geometric mean over the cases of the most resident memory, ours over the other's.
    pub rss: f64,
}

/// Every arm of ours beside every other arm and beside the best.
pub(super) fn of(cases: &[Case], arms: &[Arm], runs: &[Run]) -> Result<Vec<Standing>> {
    let (ours, others): (Vec<&Arm>, Vec<&Arm>) = arms.iter().partition(|arm| arm.is_ours());
    let mut standings = Vec::new();
    for our in ours {
        for other in &others {
            standings.push(beside(cases, &our.name, &other.name, runs)?);
        }
        standings.push(beside_best(cases, &our.name, &others, runs)?);
    }
    Ok(standings)
}

fn calls(run: &Run) -> f64 {
    run.calls_per_s
}

fn rss(run: &Run) -> f64 {
    run.rss_peak_bytes as f64
}

fn beside(cases: &[Case], our: &str, other: &str, runs: &[Run]) -> Result<Standing> {
    let ratio = |case: &Case, figure: fn(&Run) -> f64| -> Result<f64> {
        let (above, below) =
            (column(runs, (case.name, our), figure), column(runs, (case.name, other), figure));
        let ratios: Vec<f64> = above.iter().zip(&below).map(|(a, b)| a / b).collect();
        memfold_stats::median(&ratios).with_context(|| format!("there are no runs of {}", case.name))
    };
    standing(cases, our, Some(other), |case| Ok((ratio(case, calls)?, ratio(case, rss)?)))
}

fn beside_best(cases: &[Case], our: &str, others: &[&Arm], runs: &[Run]) -> Result<Standing> {
    let median = |case: &Case, arm: &str, figure: fn(&Run) -> f64| -> Result<f64> {
        runs::median(runs, (case.name, arm), figure)
            .with_context(|| format!("there are no runs of {}", case.name))
    };
    standing(cases, our, None, |case| {
        let (mut fastest, mut smallest) = (0.0f64, f64::INFINITY);
        for other in others {
            fastest = fastest.max(median(case, &other.name, calls)?);
            smallest = smallest.min(median(case, &other.name, rss)?);
        }
        Ok((median(case, our, calls)? / fastest, median(case, our, rss)? / smallest))
    })
}

fn standing(
    cases: &[Case],
    our: &str,
    other: Option<&str>,
    ratios: impl Fn(&Case) -> Result<(f64, f64)>,
) -> Result<Standing> {
    let (mut log_calls, mut log_rss, mut least) = (0.0, 0.0, ("", f64::INFINITY));
    for case in cases {
        let (calls, rss) = ratios(case)?;
        log_calls += calls.ln();
        log_rss += rss.ln();
        if calls < least.1 {
            least = (case.name, calls);
        }
    }
    let mean = |sum: f64| (sum / cases.len() as f64).exp();
    Ok(Standing {
        arm: our.to_owned(),
        beside: other.map(str::to_owned),
        calls: mean(log_calls),
        least,
        rss: mean(log_rss),
    })
}

#[cfg(test)]
mod tests {
    use super::super::arm::{Peer, Profile, BASE};
    use super::super::summary::tests::run;
    use super::*;

    #[test]
    fn the_geometric_mean_and_the_worst_case_are_those_of_a_worked_example() {
        let cases: Vec<Case> = ["mid", "larson"].map(|name| name.parse().unwrap()).to_vec();
        let peer = Peer { name: "other".into(), library: "/lib/other.so".into() };
        let arms = [Arm::base(), Arm::ours("/lib/x.so".as_ref(), Profile::Balanced), Arm::peer(&peer)];
        let runs: Vec<Run> = (0..3)
            .flat_map(|round| {
                [
                    run("mid", BASE, round, 10.0),
                    run("mid", "memfold", round, 40.0),
                    run("mid", "other", round, 20.0),
                    run("larson", BASE, round, 10.0),
                    run("larson", "memfold", round, 10.0),
                    run("larson", "other", round, 5.0),
                ]
            })
            .collect();
        let standings = of(&cases, &arms, &runs).unwrap();
        let found = |beside: Option<&str>| {
            let standing = standings.iter().find(|s| s.beside.as_deref() == beside).unwrap();
            // The square of a mean of two.
            ((standing.calls.powi(2) * 1e6).round() / 1e6, standing.least)
        };
        assert_eq!(found(Some(BASE)), (4.0, ("larson", 1.0)));
        assert_eq!(found(Some("other")), (4.0, ("mid", 2.0)));
        assert_eq!(found(None), (2.0, ("larson", 1.0)));
        assert!(standings.iter().all(|standing| (standing.rss - 1.0).abs() < 1e-12));
    }
}
