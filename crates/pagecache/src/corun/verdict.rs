//! What the runs of an arm mean: how far each tenant got beside the others, and how fair that is.

use super::{Arm, ArmRun, Plan};
use crate::fairness::{jain, max_slowdown};
use crate::job::Access;
use memfold_stats::median;
use serde::Serialize;

/// A tenant within 20 % of running alone is called well.
pub const WELL: f64 = 1.25;

/// One arm: medians over its runs.
#[derive(Clone, Debug, Serialize)]
pub struct Fairness {
    /// The arm.
    pub arm: Arm,
    /// Its name.
    pub name: String,
    /// Why this machine cannot do it; there are then no tenants.
    pub unsupported: Option<String>,
    /// Its tenants, the victim first.
    pub tenants: Vec<Standing>,
    /// Jain's index of the tenants' progress; `None` where one runs alone or is measured against nothing.
    pub jain: Option<f64>,
    /// The largest slowdown.
    pub max_slowdown: Option<f64>,
    /// Time lost to the disk, seconds ("full" of PSI).
    pub io_pressure_seconds: f64,
    /// Time lost for want of memory, seconds.
    pub memory_pressure_seconds: f64,
    /// Whether the pressure is of the tenants' group, not of the whole system.
    pub pressure_of_group: bool,
}

/// One tenant of an arm: medians over its runs.
#[derive(Clone, Debug, Serialize)]
pub struct Standing {
    /// Its workload's name.
    pub workload: String,
    /// How it reached its file.
    pub access: Access,
    /// Requests a second.
    pub iops: f64,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Mean time of a request, ns.
    pub mean_ns: f64,
    /// Median of it, ns.
    pub p50_ns: Option<f64>,
    /// 99th percentile, ns.
    pub p99_ns: Option<f64>,
    /// 99.9th percentile, ns.
    pub p999_ns: Option<f64>,
    /// Requests a second alone over those here; `None` for a mechanism, which never runs alone.
    pub slowdown: Option<f64>,
    /// p99 here over p99 alone.
    pub p99_over_alone: Option<f64>,
    /// Bytes of its file in the cache, the mean over the run.
    pub resident_bytes: f64,
    /// The most of its file that was changed and not written back, bytes.
    pub dirty_bytes_peak: Option<u64>,
    /// The most of its file that was being written back, bytes.
    pub writeback_bytes_peak: Option<u64>,
    /// Refaults a second, of its own or of all tenants together.
    pub refaults: f64,
    /// Whether the refaults are its own.
    pub own_refaults: bool,
}

impl Standing {
    /// Whether it gets within 20 % of what it gets alone.
    pub fn is_well(&self) -> bool {
        self.slowdown.is_some_and(|slowdown| slowdown <= WELL)
    }
}

/// Every arm of the plan that has runs.
pub(super) fn judge(plan: &Plan, runs: &[ArmRun]) -> Vec<Fairness> {
    let of = |arm: Arm| memfold_experiment::runs::of(runs, arm);
    let alone: Vec<Option<Standing>> =
        (0..=plan.neighbors.len()).map(|tenant| standing(&of(Arm::Alone { tenant }), 0, None)).collect();
    let arms = plan.arms.iter().filter_map(|&arm| {
        let runs = of(arm);
        let first = runs.first()?;
        let reference = |tenant: usize| match arm {
            Arm::Alone { tenant } => alone[tenant].as_ref(),
            Arm::Evicting | Arm::Writing if tenant > 0 => None,
            _ => alone[tenant].as_ref(),
        };
        let tenants: Vec<Standing> = (0..plan.tenants(arm).len())
            .filter_map(|tenant| standing(&runs, tenant, reference(tenant)))
            .collect();
        let slowdowns: Vec<f64> = tenants.iter().filter_map(|tenant| tenant.slowdown).collect();
        let comparable = tenants.len() > 1 && slowdowns.len() == tenants.len();
        let progress: Vec<f64> = slowdowns.iter().map(|slowdown| 1.0 / slowdown).collect();
        let seconds = |of: fn(&ArmRun) -> u64| {
            median(&runs.iter().map(|run| of(run) as f64 / 1e9).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        Some(Fairness {
            arm,
            name: arm.name(),
            unsupported: first.unsupported.clone(),
            jain: comparable.then(|| jain(&progress)).flatten(),
            max_slowdown: max_slowdown(&slowdowns),
            io_pressure_seconds: seconds(|run| run.pressure.io_ns),
            memory_pressure_seconds: seconds(|run| run.pressure.memory_ns),
            pressure_of_group: first.pressure.of_group,
            tenants,
        })
    });
    arms.collect()
}

/// A tenant's figures over the runs of an arm, against its figures `alone`.
fn standing(runs: &[&ArmRun], tenant: usize, alone: Option<&Standing>) -> Option<Standing> {
    let all: Vec<_> = runs.iter().filter_map(|run| run.tenants.get(tenant)).collect();
    let first = all.first()?;
    let middle = |of: &dyn Fn(&crate::outcome::Outcome) -> Option<f64>| {
        median(&all.iter().filter_map(|run| of(&run.outcome)).collect::<Vec<f64>>())
    };
    let iops = middle(&|outcome| Some(outcome.iops))?;
    let p99_ns = middle(&|outcome| outcome.p99_ns);
    let files = || runs.iter().flat_map(|run| &run.samples).filter_map(|sample| sample.files.get(tenant));
    let resident: Vec<f64> = files().map(|file| file.resident as f64).collect();
    let refaults: Vec<f64> = runs
        .iter()
        .filter_map(|run| {
            let seconds = run.samples.last()?.at_ms as f64 / 1e3;
            Some(run.tenants.get(tenant)?.refaults as f64 / seconds.max(1e-3))
        })
        .collect();
    Some(Standing {
        workload: first.workload.clone(),
        access: first.access,
        iops,
        bytes_per_second: middle(&|outcome| Some(outcome.bytes_per_second))?,
        mean_ns: middle(&|outcome| Some(outcome.mean_ns))?,
        p50_ns: middle(&|outcome| outcome.p50_ns),
        p99_ns,
        p999_ns: middle(&|outcome| outcome.p999_ns),
        slowdown: alone.map(|alone| alone.iops / iops),
        p99_over_alone: alone.and_then(|alone| Some(p99_ns? / alone.p99_ns?)),
        resident_bytes: resident.iter().sum::<f64>() / resident.len().max(1) as f64,
        dirty_bytes_peak: files().filter_map(|file| file.dirty).max(),
        writeback_bytes_peak: files().filter_map(|file| file.writeback).max(),
        refaults: median(&refaults).unwrap_or(0.0),
        own_refaults: first.own_group,
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::options;
    use super::super::{Remedy, Sample, TenantRun};
    use super::*;
    use crate::outcome::Outcome;
    use crate::residency::Residency;

    fn run(arm: Arm, repeat: usize, iops: &[f64]) -> ArmRun {
        let tenant = |&iops: &f64| TenantRun {
            workload: "w".into(),
            access: Access::Cached,
            outcome: Outcome { iops, p99_ns: Some(1e9 / iops), ..Outcome::default() },
            refaults: 30,
            own_group: false,
        };
        let file = |resident| Residency { resident, dirty: Some(resident / 2), ..Residency::default() };
        let sample = |at_ms, resident| Sample { at_ms, files: vec![file(resident); iops.len()] };
        let samples = vec![sample(1000, 100), sample(3000, 300)];
        ArmRun { arm, repeat, tenants: iops.iter().map(tenant).collect(), samples, ..ArmRun::default() }
    }

    #[test]
    fn slowdowns_are_of_medians_and_against_the_tenant_alone() {
        let mut options = options();
        options.neighbors.pop();
        let plan = Plan::new(&options).unwrap();
        let remedy = Arm::Remedy { remedy: Remedy::Direct };
        let unsupported = Some("no".to_owned());
        let runs = [
            run(Arm::Alone { tenant: 0 }, 0, &[100.0]),
            run(Arm::Alone { tenant: 1 }, 0, &[50.0]),
            run(Arm::Together, 0, &[10.0, 50.0]),
            run(Arm::Together, 1, &[20.0, 50.0]),
            run(Arm::Together, 2, &[90.0, 50.0]),
            ArmRun { arm: remedy, unsupported, ..ArmRun::default() },
            run(Arm::Evicting, 0, &[80.0, 7.0]),
        ];
        let arms = judge(&plan, &runs);
        assert_eq!(arms.len(), 5, "an arm without runs is not there");
        let together = &arms[2];
        assert_eq!(together.tenants[0].slowdown, Some(5.0));
        assert_eq!(together.tenants[0].p99_over_alone, Some(5.0));
        assert_eq!((together.max_slowdown, together.tenants[1].is_well()), (Some(5.0), true));
        // (0.2 + 1)² / (2 · (0.04 + 1))
        assert!((together.jain.unwrap() - 1.44 / 2.08).abs() < 1e-12);
        assert_eq!(together.tenants[0].resident_bytes, 200.0);
        assert_eq!((together.tenants[0].dirty_bytes_peak, together.tenants[0].refaults), (Some(150), 10.0));
        assert_eq!((arms[3].unsupported.as_deref(), arms[3].tenants.len()), (Some("no"), 0));
        assert_eq!((arms[4].jain, arms[4].tenants[0].slowdown), (None, Some(1.25)));
        assert!(arms[4].tenants[0].is_well());
        assert_eq!(arms[0].tenants[0].slowdown, Some(1.0));
    }
}
