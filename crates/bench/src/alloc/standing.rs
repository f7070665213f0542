//! Where our allocator stands beside each other one, over the whole suite.

use super::arm::Arm;
use anyhow::{ensure, Context, Result};
use memfold_experiment::runs::{self, Ran};
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

/// What of a run is compared: how fast it was, whatever the unit, and how much memory it took.
#[derive(Clone, Copy)]
pub(super) struct Figures<R> {
    pub(super) speed: fn(&R) -> f64,
    pub(super) rss: fn(&R) -> f64,
}

/// Every arm of ours beside every other arm and beside the best, over cases with these names.
pub(super) fn of<R>(
    names: &[&'static str],
    arms: &[Arm],
    runs: &[R],
    figures: Figures<R>,
) -> Result<Vec<Standing>>
where
    R: for<'a> Ran<Place<'a> = (&'a str, &'a str)> + 'static,
{
    let (ours, others): (Vec<&Arm>, Vec<&Arm>) = arms.iter().partition(|arm| arm.is_ours());
    let column = |name: &str, arm: &str, figure: fn(&R) -> f64| -> Result<Vec<f64>> {
        let column = runs::column(runs, (name, arm), figure);
        ensure!(!column.is_empty(), "there are no runs of {name}");
        Ok(column)
    };
    let median = |name: &str, arm: &str, figure: fn(&R) -> f64| -> Result<f64> {
        memfold_stats::median(&column(name, arm, figure)?).context("there are no runs")
    };
    let mut standings = Vec::new();
    for our in ours.iter().map(|arm| arm.name.as_str()) {
        for other in others.iter().map(|arm| arm.name.as_str()) {
            let ratio = |name: &str, figure: fn(&R) -> f64| -> Result<f64> {
                let (above, below) = (column(name, our, figure)?, column(name, other, figure)?);
                let ratios: Vec<f64> = above.iter().zip(&below).map(|(a, b)| a / b).collect();
                memfold_stats::median(&ratios).context("there are no runs")
            };
            let of_case = |name: &'static str| Ok((ratio(name, figures.speed)?, ratio(name, figures.rss)?));
            standings.push(standing(names, our, Some(other), of_case)?);
        }
        standings.push(standing(names, our, None, |name| {
            let (mut fastest, mut smallest) = (0.0f64, f64::INFINITY);
            for other in &others {
                fastest = fastest.max(median(name, &other.name, figures.speed)?);
                smallest = smallest.min(median(name, &other.name, figures.rss)?);
            }
            Ok((median(name, our, figures.speed)? / fastest, median(name, our, figures.rss)? / smallest))
        })?);
    }
    Ok(standings)
}

fn standing(
    names: &[&'static str],
    our: &str,
    other: Option<&str>,
    ratios: impl Fn(&'static str) -> Result<(f64, f64)>,
) -> Result<Standing> {
    let (mut log_speed, mut log_rss, mut least) = (0.0, 0.0, ("", f64::INFINITY));
    for name in names {
        let (speed, rss) = ratios(name)?;
        log_speed += speed.ln();
        log_rss += rss.ln();
        if speed < least.1 {
            least = (name, speed);
        }
    }
    let mean = |sum: f64| (sum / names.len() as f64).exp();
    Ok(Standing {
        arm: our.to_owned(),
        beside: other.map(str::to_owned),
        calls: mean(log_speed),
        least,
        rss: mean(log_rss),
    })
}

#[cfg(test)]
mod tests {
    use super::super::arm::{Peer, Profile, BASE};
    use super::super::summary::tests::run;
    use super::super::Run;
    use super::*;

    #[test]
    fn the_geometric_mean_and_the_worst_case_are_those_of_a_worked_example() {
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
        let figures =
            Figures { speed: |run: &Run| run.calls_per_s, rss: |run: &Run| run.rss_peak_bytes as f64 };
        let standings = of(&["mid", "larson"], &arms, &runs, figures).unwrap();
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
