//! One run of one arm: its groups, its tenants, and what is seen of them meanwhile.

use super::{Arm, Plan, Remedy};
use crate::cgroup::{Group, Hierarchy, MemoryStat, Pressure, Version};
use crate::child;
use crate::drop_caches::drop_caches;
use crate::engine::try_dontcache;
use crate::files::Files;
use crate::folder::Folder;
use crate::job::{Access, Job};
use crate::outcome::Outcome;
use crate::place::Place;
use crate::residency::Residency;
use crate::run::own_cpu_seconds;
use crate::stop::Stop;
use crate::tenant::{self, Program, Working};
use crate::ticker::Ticker;
use crate::workload::Workload;
use anyhow::{Context, Result};
use memfold_experiment::runs::Ran;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What one run of one arm showed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ArmRun {
    /// The arm.
    pub arm: Arm,
    /// Which of its runs, from 0.
    pub repeat: usize,
    /// Why this machine cannot do it; the rest is then empty.
    pub unsupported: Option<String>,
    /// The tenants, the victim first (where it takes part).
    pub tenants: Vec<TenantRun>,
    /// The tenants' pages over time.
    pub samples: Vec<Sample>,
    /// Time lost by all to memory and disk during the run.
    pub pressure: Pressure,
    /// CPU time of this program during the run, per cent of one CPU.
    pub harness_cpu_pct: f64,
}

impl Ran for ArmRun {
    type Place<'a> = Arm;

    fn place(&self) -> Arm {
        self.arm
    }

    fn repeat(&self) -> usize {
        self.repeat
    }
}

/// One tenant in a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TenantRun {
    /// Its workload's name.
    pub workload: String,
    /// How it reached its file.
    pub access: Access,
    /// What was measured.
    pub outcome: Outcome,
    /// Pages of files that came back soon after they were evicted, in its group.
    pub refaults: u64,
    /// Whether its group was its own, so that the refaults are too.
    pub own_group: bool,
}

/// The pages of all tenants at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Milliseconds since the tenants started.
    pub at_ms: u64,
    /// The tenants' files in the cache.
    pub files: Vec<Residency>,
}

/// The file that holds a run, in the directory of results.
pub(super) fn file_of(arm: Arm, repeat: usize) -> String {
    format!("runs/{}-{repeat:02}.json", arm.name())
}

/// Seconds at the start that do not count.
const RAMP: u64 = 1;

/// How often the tenants' pages are counted.
const INTERVAL: Duration = Duration::from_millis(500);

/// All that a run needs.
pub(super) struct Stage<'a> {
    pub(super) plan: &'a Plan,
    pub(super) place: &'a Place,
    pub(super) hierarchy: &'a Hierarchy,
    pub(super) files: &'a Files,
    pub(super) folder: &'a Folder,
    pub(super) program: &'a Program,
    pub(super) stop: &'a Stop,
}

/// The groups of a run, and which of them each tenant is in. They go in this order, the inner ones first; the last has all
/// tenants in it, where pressure is a group's own.
struct Groups {
    groups: Vec<Group>,
    of_tenant: Vec<usize>,
}

impl Groups {
    /// The tenant's.
    fn of(&self, tenant: usize) -> &Group {
        &self.groups[self.of_tenant[tenant]]
    }

    /// That which all are in.
    fn everyone(&self) -> &Group {
        self.groups.last().expect("every arm has a group")
    }

    /// Whether nobody shares the tenant's memory.
    fn is_alone(&self, tenant: usize) -> bool {
        let own = self.of(tenant);
        let sharing = |group: &&usize| self.groups[**group].shares_memory_with(own);
        self.of_tenant.iter().filter(sharing).count() == 1
    }
}

impl Stage<'_> {
    /// Runs `arm` once.
    pub(super) fn run(&self, arm: Arm, repeat: usize) -> Result<ArmRun> {
        self.stop.check()?;
        let tenants = self.plan.tenants(arm);
        if (0..tenants.len()).any(|tenant| arm.access(tenant) == Access::DontCache) {
            try_dontcache(&self.place.directory)?;
        }
        let paths: Vec<PathBuf> =
            (0..tenants.len()).map(|tenant| self.files.path(&self.plan.file(arm, tenant))).collect();
        let groups = self.groups(arm, tenants.len())?;
        self.folder.output().below("runs")?;
        drop_caches(&paths.iter().map(PathBuf::as_path).collect::<Vec<&Path>>())?;
        let job = |(tenant, workload): (usize, &&Workload)| self.job(arm, tenant, workload, &paths[tenant]);
        let jobs: Vec<Job> = tenants.iter().enumerate().map(job).collect();
        for (tenant, job) in jobs.iter().enumerate().filter(|(_, job)| job.warm) {
            self.warm(job, groups.of(tenant))?;
        }
        let before: Vec<MemoryStat> = groups.groups.iter().map(Group::stat).collect();
        let (pressure, cpu, begun) = (groups.everyone().pressure(), own_cpu_seconds(), Instant::now());
        let watch = watch(&tenants, &paths)?;
        let mut working = Vec::new();
        for (tenant, (workload, job)) in tenants.iter().zip(&jobs).enumerate() {
            let name = format!("{}-{repeat:02}_{tenant}_{}", arm.name(), workload.name);
            let doors = groups.of(tenant).doors();
            working.push(tenant::start(job, self.folder.path(), &name, &doors, self.program)?);
        }
        let wait = |working: Working| working.wait(self.stop);
        let outcomes: Vec<Outcome> = working.into_iter().map(wait).collect::<Result<_>>()?;
        let samples = watch.finish().map_or_else(Vec::new, |watched| watched.samples);
        let elapsed = begun.elapsed().as_secs_f64();
        let refaults: Vec<u64> = groups
            .groups
            .iter()
            .zip(&before)
            .map(|(group, before)| group.stat().refaults.saturating_sub(before.refaults))
            .collect();
        let tenants =
            tenants.iter().zip(outcomes).enumerate().map(|(tenant, (workload, outcome))| TenantRun {
                workload: workload.name.clone(),
                access: arm.access(tenant),
                outcome,
                refaults: refaults[groups.of_tenant[tenant]],
                own_group: groups.is_alone(tenant),
            });
        Ok(ArmRun {
            arm,
            repeat,
            unsupported: None,
            tenants: tenants.collect(),
            samples,
            pressure: groups.everyone().pressure().since(pressure),
            harness_cpu_pct: (own_cpu_seconds() - cpu) / elapsed * 100.0,
        })
    }

    /// Reads a tenant's file into the cache, for its group, before anybody starts: were it to do so itself, its neighbours would have
    /// ended by the time at which it is still measured.
    fn warm(&self, job: &Job, group: &Group) -> Result<()> {
        let mut file = OsString::from("if=");
        file.push(&job.file);
        let mut command = Command::new("dd");
        command.arg(file).args(["of=/dev/null", "bs=1M"]);
        child::start(&mut command, "reading the victim's file", &group.doors())?.wait(self.stop)
    }

    fn job(&self, arm: Arm, tenant: usize, workload: &Workload, file: &Path) -> Job {
        // The victim begins with its file in the cache, if it fits: what is measured is whether it stays there.
        let is_victim =
            matches!(arm, Arm::Alone { tenant: 0 }) || (tenant == 0 && !matches!(arm, Arm::Alone { .. }));
        let mechanism = matches!(arm, Arm::Evicting | Arm::Writing) && tenant > 0;
        Job {
            workload: workload.clone(),
            file: file.to_owned(),
            access: arm.access(tenant),
            warm: is_victim && workload.file_size <= self.plan.cache_limit,
            ramp: RAMP,
            rate: mechanism.then_some(self.plan.mechanism_rate),
        }
    }

    fn groups(&self, arm: Arm, tenants: usize) -> Result<Groups> {
        let (plan, limit) = (self.plan, self.plan.cache_limit);
        let group = |name: &str, bytes: u64| -> Result<Group> {
            let group = Group::create(self.hierarchy, name)?;
            group.limit(bytes)?;
            Ok(group)
        };
        let neighbors = || std::iter::once(0).chain(std::iter::repeat_n(1, tenants - 1)).collect();
        match arm {
            Arm::Remedy { remedy: Remedy::Memcg } if self.hierarchy.version == Version::V1 => Ok(Groups {
                groups: vec![
                    group("victim", plan.victim_share)?,
                    group("neighbors", limit - plan.victim_share)?,
                ],
                of_tenant: neighbors(),
            }),
            Arm::Remedy { remedy: Remedy::Memcg } => {
                let outer = group("all", limit)?;
                let (victim, others) = (outer.child("victim")?, outer.child("neighbors")?);
                victim.limit(plan.victim_share)?;
                others.limit(limit - plan.victim_share)?;
                Ok(Groups { groups: vec![victim, others, outer], of_tenant: neighbors() })
            }
            Arm::Remedy { remedy: Remedy::MemcgMin } => {
                let outer = group("all", limit)?;
                let (victim, others) = (outer.child("victim")?, outer.child("neighbors")?);
                victim.protect(plan.victim_share)?;
                Ok(Groups { groups: vec![victim, others, outer], of_tenant: neighbors() })
            }
            Arm::Remedy { remedy: Remedy::Io } => {
                // One memory for all: only the requests of the neighbours are throttled.
                let (all, disk) = (group("all", limit)?, self.place.disk);
                if self.hierarchy.version == Version::V1 {
                    let throttled = all.throttled(self.hierarchy, disk, plan.io_rate)?;
                    return Ok(Groups { groups: vec![all, throttled], of_tenant: neighbors() });
                }
                let (victim, others) = (all.child("victim")?, all.child("neighbors")?);
                others.throttle(disk, plan.io_rate)?;
                Ok(Groups { groups: vec![victim, others, all], of_tenant: neighbors() })
            }
            _ => Ok(Groups { groups: vec![group("all", limit)?], of_tenant: vec![0; tenants] }),
        }
    }
}

/// What is seen of the tenants' files while they run.
#[derive(Debug)]
struct Watched {
    files: Vec<(File, u64)>,
    begun: Instant,
    samples: Vec<Sample>,
}

fn watch(tenants: &[&Workload], paths: &[PathBuf]) -> Result<Ticker<Watched>> {
    let open = |(workload, path): (&&Workload, &PathBuf)| -> Result<(File, u64)> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok((file, workload.file_size))
    };
    let files: Vec<(File, u64)> = tenants.iter().zip(paths).map(open).collect::<Result<_>>()?;
    let watched = Watched { files, begun: Instant::now(), samples: Vec::new() };
    Ok(Ticker::start(INTERVAL, watched, |watched| {
        let of = |(file, bytes): &(File, u64)| Residency::of(file, *bytes).unwrap_or_default();
        let files = watched.files.iter().map(of).collect();
        watched.samples.push(Sample { at_ms: watched.begun.elapsed().as_millis() as u64, files });
    }))
}
