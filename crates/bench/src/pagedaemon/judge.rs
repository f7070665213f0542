//! What can be said of the difference between policies.

use super::quantity::{Quantity, QUANTITIES};
use super::run::Run;
use super::Options;
use memfold_stats::{mean_interval, Difference, Interval, Moments};
use serde::Serialize;

/// A policy's values of a quantity.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The policy.
    pub policy: String,
    /// One value a run.
    pub values: Vec<f64>,
    /// Their mean.
    pub mean: f64,
    /// Its 95 % confidence interval, from two runs on.
    pub interval: Option<Interval>,
    /// What separates it from the first policy; `None` for that one itself.
    pub difference: Option<Difference>,
}

/// A quantity, policy by policy.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Which.
    pub quantity: Quantity,
    /// The policies, the first of the experiment first.
    pub samples: Vec<Sample>,
}

/// A row of `aggregate.csv`.
#[derive(Serialize)]
pub struct Flat {
    quantity: &'static str,
    policy: String,
    runs: usize,
    mean: f64,
    low: Option<f64>,
    high: Option<f64>,
    ratio_to_first: Option<f64>,
    p: Option<f64>,
    differs: Option<bool>,
}

/// Judges all quantities.
pub fn judge(options: &Options, runs: &[Run]) -> Vec<Judged> {
    let values = |policy: &str, place: usize| -> Vec<f64> {
        runs.iter().filter(|run| run.policy == policy).map(|run| run.values[place]).collect()
    };
    let judged = |(place, &quantity): (usize, &Quantity)| {
        let first = values(&options.policies[0], place);
        let samples = options.policies.iter().enumerate().map(|(number, policy)| {
            let values = values(policy, place);
            let difference = (number > 0).then(|| Difference::of(&values, &first, 1)).flatten();
            let mean = Moments::of(&values).map_or(0.0, |m| m.mean);
            Sample { policy: policy.clone(), mean, interval: mean_interval(&values), difference, values }
        });
        Judged { quantity, samples: samples.collect() }
    };
    QUANTITIES.iter().enumerate().map(judged).collect()
}

impl Judged {
    /// What can be said, in words.
    pub fn sentence(&self, options: &Options) -> String {
        let name = self.quantity.name;
        let per = if self.quantity.sum { "in a run" } else { "a pass" };
        let mut parts =
            vec![format!("{name}: {} {} {per}", options.policies[0], shown(self.samples[0].mean))];
        for sample in &self.samples[1..] {
            let Some(difference) = sample.difference else { continue };
            let verdict = match (difference.differs, sample.values.len()) {
                (true, _) => "a real difference",
                (false, 0..=3) => "too few runs to tell from noise (at least 4 of each are needed)",
                (false, _) => "within noise",
            };
            let ratio = difference.ratio.map_or_else(String::new, |ratio| format!(", {ratio:.2} times"));
            parts.push(format!(
                "{} {}{ratio}: {verdict} (p = {:.3})",
                sample.policy,
                shown(sample.mean),
                difference.p
            ));
        }
        parts.join("; ")
    }

    /// The rows of `aggregate.csv`.
    pub fn flat(&self) -> Vec<Flat> {
        let flat = |sample: &Sample| Flat {
            quantity: self.quantity.column,
            policy: sample.policy.clone(),
            runs: sample.values.len(),
            mean: sample.mean,
            low: sample.interval.map(|i| i.low),
            high: sample.interval.map(|i| i.high),
            ratio_to_first: sample.difference.and_then(|d| d.ratio),
            p: sample.difference.map(|d| d.p),
            differs: sample.difference.map(|d| d.differs),
        };
        self.samples.iter().map(flat).collect()
    }
}

/// A count as people read it.
pub fn shown(value: f64) -> String {
    if value >= 100.0 || value == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.1}")
    }
}
