//! What came of all arms: the table of remedies, the mechanisms, `result.json`, `summary.txt`, plots and the page.

use super::measure::file_of;
use super::verdict::{judge, Fairness, Standing};
use super::{charts, Arm, ArmRun, Plan};
use crate::folder::{Folder, Record};
use crate::outcome::Outcome;
use crate::run::table::micros;
use crate::Refused;
use anyhow::Result;
use memfold_experiment::text::{cells, columns, mib, number};
use memfold_plot::{Block, Plot, Report, Table};
use serde::Serialize;
use std::fmt;

/// The file that holds the plan.
pub(super) const PLAN: &str = "plan.json";

/// Everything that a directory says.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Where the runs were made.
    pub manifest: Record,
    /// What was to be run.
    pub plan: Plan,
    /// What each arm came to.
    pub arms: Vec<Fairness>,
    /// The raw runs.
    #[serde(skip)]
    pub runs: Vec<ArmRun>,
}

impl Results {
    /// Reads a directory of runs, and writes `result.json`, `summary.txt`, the plots and the page.
    ///
    /// # Errors
    /// [`Refused`] if there is no run yet; when a result is damaged or a file cannot be written.
    pub fn write(folder: &Folder) -> Result<Results> {
        let results = Results::read(folder)?;
        let (output, plots) = (folder.output(), charts::all(&results));
        output.json("result.json", &results)?;
        output.text("summary.txt", &results.to_string())?;
        output.page(&results.page(&plots), &plots)?;
        Ok(results)
    }

    fn read(folder: &Folder) -> Result<Results> {
        let nothing = || Refused(format!("{} holds no finished run yet", folder.path().display()));
        let plan: Plan = folder.output().read(PLAN)?.ok_or_else(nothing)?;
        let mut runs: Vec<ArmRun> = Vec::new();
        for repeat in 0..plan.runs {
            for &arm in &plan.arms {
                runs.extend(folder.output().read(&file_of(arm, repeat))?);
            }
        }
        if runs.is_empty() {
            return Err(nothing().into());
        }
        for run in &mut runs {
            for (tenant, of) in run.tenants.iter_mut().enumerate() {
                let name = format!("{}-{:02}_{tenant}_{}.json", run.arm.name(), run.repeat, of.workload);
                // Only here are all times, for the plots.
                of.outcome = Outcome::read(&folder.path().join(name))?;
            }
        }
        let arms = judge(&plan, &runs);
        Ok(Results { manifest: folder.record().clone(), plan, arms, runs })
    }

    /// An arm, if it was run.
    pub(super) fn arm(&self, arm: Arm) -> Option<&Fairness> {
        self.arms.iter().find(|one| one.arm == arm && one.unsupported.is_none())
    }

    /// The arms in which all tenants ran: with nothing done, and under each remedy.
    pub(super) fn shared(&self) -> impl Iterator<Item = &Fairness> {
        self.arms.iter().filter(|one| matches!(one.arm, Arm::Together | Arm::Remedy { .. }))
    }

    fn table(&self) -> Vec<Vec<String>> {
        let mut rows = vec![cells(HEAD)];
        for arm in &self.arms {
            for (place, tenant) in arm.tenants.iter().enumerate() {
                let fairness =
                    if place == 0 { [ratio(arm.jain), ratio(arm.max_slowdown)] } else { Default::default() };
                rows.push(row(if place == 0 { &arm.name } else { "" }, tenant, fairness));
            }
        }
        rows
    }

    fn sentences(&self) -> Vec<String> {
        let mut text = Vec::new();
        for arm in self.arms.iter().filter(|arm| arm.unsupported.is_some()) {
            text.push(format!(
                "{}: unsupported here. {}.",
                arm.name,
                arm.unsupported.as_deref().unwrap_or("")
            ));
        }
        if let Some(none) = self.arm(Arm::Together) {
            text.push(format!("With nothing done: {}.", standing(none)));
        }
        for arm in
            self.shared().filter(|arm| matches!(arm.arm, Arm::Remedy { .. }) && arm.unsupported.is_none())
        {
            let Arm::Remedy { remedy } = arm.arm else { continue };
            let well = arm.tenants.first().is_some_and(Standing::is_well);
            let verdict = if well { "brings the victim back" } else { "does not bring the victim back" };
            text.push(format!("{} ({}) {verdict}: {}.", arm.name, remedy.meaning(), standing(arm)));
        }
        text.extend(self.mechanisms());
        text.push(
            "Back means within 20 % of its throughput alone. Slowdown and p99/alone are against the tenant alone through \
             the cache under the same limit; Jain's index is that of the tenants' throughput over their throughput alone, \
             at most 1 each."
                .into(),
        );
        if self.arms.iter().any(|arm| arm.unsupported.is_none() && !arm.pressure_of_group) {
            text.push(
                "Under version 1 cgroups, as here, throttling does not reach buffered writes. Pressure (PSI) is that of the whole system: version 1 cgroups have none of their own."
                    .into(),
            );
        }
        text.push("Refaults with a * are those of all tenants in the group together.".into());
        if let Some(share) = self.runs.iter().map(|run| run.harness_cpu_pct).max_by(f64::total_cmp) {
            text.push(format!("The harness used at most {share:.2} % of one CPU beside a run."));
        }
        text
    }

    /// What the two mechanisms cost the victim, and whether they really evicted at one rate.
    fn mechanisms(&self) -> Option<String> {
        let (evicting, writing) = (self.arm(Arm::Evicting)?, self.arm(Arm::Writing)?);
        let of =
            |arm: &Fairness| Some((arm.tenants.first()?.slowdown?, arm.tenants.get(1)?.bytes_per_second));
        let ((evicted, reads), (written, writes)) = (of(evicting)?, of(writing)?);
        let even = if (reads / writes - 1.0).abs() <= 0.1 {
            ""
        } else {
            " The rates differ by more than a tenth: lower --mechanism-rate."
        };
        Some(format!(
            "The mechanisms apart: evicting alone ({:.0} MiB/s read) slows the victim {evicted:.2} times, evicting and \
             writing back ({:.0} MiB/s written) {written:.2} times.{even}",
            mib(reads),
            mib(writes)
        ))
    }

    fn page(&self, plots: &[Plot]) -> Report {
        let mut rows = self.table().into_iter();
        let head = rows.next().unwrap_or_default();
        let caption = "Times in microseconds; medians where an arm ran more than once.".into();
        let mut blocks = vec![
            Block::Heading("Tenants".into()),
            Block::Table(Table { caption, head, rows: rows.collect() }),
            Block::Heading("What it says".into()),
        ];
        blocks.extend(self.sentences().into_iter().map(Block::Text));
        blocks.push(Block::Heading("Plots".into()));
        blocks.extend(plots.iter().map(Plot::block));
        for session in &self.manifest.sessions {
            blocks.push(Block::Heading("What it ran on".into()));
            blocks.push(Block::Table(Table::of("", ["", ""], session.rows())));
        }
        Report {
            title: "Tenants of one page cache".into(),
            summary: format!(
                "{} beside {}, in {} MiB of memory, {} s a run.",
                self.plan.victim.name,
                self.plan.neighbors.iter().map(|one| one.name.as_str()).collect::<Vec<_>>().join(" and "),
                self.plan.cache_limit >> 20,
                self.plan.victim.runtime
            ),
            blocks,
        }
    }
}

const HEAD: [&str; 14] = [
    "arm",
    "tenant",
    "mode",
    "IOPS",
    "MiB/s",
    "mean",
    "p50",
    "p99",
    "p99.9",
    "slowdown",
    "p99/alone",
    "resident MiB",
    "refaults/s",
    "Jain / max slowdown",
];

fn row(arm: &str, tenant: &Standing, [jain, slowest]: [String; 2]) -> Vec<String> {
    let mib = |bytes: f64| format!("{:.1}", mib(bytes));
    vec![
        arm.to_owned(),
        tenant.workload.clone(),
        tenant.access.name().to_owned(),
        format!("{:.0}", tenant.iops),
        mib(tenant.bytes_per_second),
        micros(Some(tenant.mean_ns)),
        micros(tenant.p50_ns),
        micros(tenant.p99_ns),
        micros(tenant.p999_ns),
        ratio(tenant.slowdown),
        ratio(tenant.p99_over_alone),
        mib(tenant.resident_bytes),
        format!("{:.0}{}", tenant.refaults, if tenant.own_refaults { "" } else { "*" }),
        if jain.is_empty() { jain } else { format!("{jain} / {slowest}") },
    ]
}

fn ratio(value: Option<f64>) -> String {
    number(value, 2)
}

/// How the tenants of an arm do, as a clause.
fn standing(arm: &Fairness) -> String {
    let tenants = arm.tenants.iter().enumerate().map(|(place, tenant)| {
        let who = if place == 0 { "the victim".to_owned() } else { tenant.workload.clone() };
        format!("{who} is slowed down {} times", ratio(tenant.slowdown))
    });
    let p99 = ratio(arm.tenants.first().and_then(|victim| victim.p99_over_alone));
    format!(
        "{}; the victim's p99 is {p99} times that alone, Jain's index {}",
        tenants.collect::<Vec<_>>().join(", "),
        ratio(arm.jain)
    )
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "## TENANTS OF ONE PAGE CACHE\n\n{}", columns(&self.table(), 3))?;
        self.sentences().iter().try_for_each(|sentence| writeln!(f, "{sentence}"))
    }
}
