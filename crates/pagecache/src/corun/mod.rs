//! Tenants of one page cache side by side: `memfold pagecache corun`.
//!
//! A victim runs alone, each neighbour runs alone, then all run together in one memory cgroup, and then again under each
//! remedy. Two more arms part the mechanisms by which a neighbour harms: one that only evicts, and one that evicts as
//! fast and also writes back.
//!
//! Invariants: each tenant has a file of its own, so that its pages can be told apart. A remedy that this machine does
//! not have is a row that says so. Slowdowns are against the tenant alone, through the cache, under the same limit.

mod arm;
mod charts;
mod measure;
mod results;
mod verdict;

pub use arm::{Arm, Remedy};
pub use measure::{ArmRun, Sample, TenantRun};
pub use results::Results;
pub use verdict::{Fairness, Standing};

use crate::cgroup::Hierarchy;
use crate::files::{Files, Wanted};
use crate::folder::{Folder, Schema, Session};
use crate::place::Place;
use crate::run::{make_all, Event};
use crate::stop::{Interrupted, Stop};
use crate::tenant::Program;
use crate::workload::{Pattern, Scale, Workload};
use crate::{fio, Refused, Unsupported};
use anyhow::{Context, Result};
use measure::Stage;
use memfold_experiment::course::Advance;
use memfold_experiment::manifest::Manifest;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What to run, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The tenant that is watched, as it is to run.
    pub victim: Workload,
    /// Its neighbours.
    pub neighbors: Vec<Workload>,
    /// The remedies to try.
    pub remedies: Vec<Remedy>,
    /// Whether the mechanisms are parted.
    pub mechanisms: bool,
    /// How often every arm runs; the median counts.
    pub runs: usize,
    /// By how much workloads were made smaller.
    pub scale: Scale,
    /// Memory for all tenants together with their page cache, bytes.
    pub cache_limit: u64,
    /// Memory that separate limits give the victim, bytes; `None`: see [`Plan::new`].
    pub victim_share: Option<u64>,
    /// Bytes a second that throttling leaves the neighbours together.
    pub io_rate: u64,
    /// Bytes a second at which both mechanisms evict.
    pub mechanism_rate: u64,
    /// Where the test files lie.
    pub directory: PathBuf,
    /// Where results go.
    pub out: PathBuf,
}

/// What follows from the options, and stands beside the results.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The victim.
    pub victim: Workload,
    /// Its neighbours.
    pub neighbors: Vec<Workload>,
    /// The neighbour that only evicts.
    pub evictor: Workload,
    /// The neighbour that also writes back.
    pub writer: Workload,
    /// The arms in their order.
    pub arms: Vec<Arm>,
    /// How often each runs.
    pub runs: usize,
    /// Memory for all tenants, bytes.
    pub cache_limit: u64,
    /// Of it, what separate limits and protection give the victim, bytes.
    pub victim_share: u64,
    /// Bytes a second that throttling leaves the neighbours together.
    pub io_rate: u64,
    /// Bytes a second at which both mechanisms evict.
    pub mechanism_rate: u64,
}

/// Memory that fio itself takes, beside its file's pages, bytes.
const OWN_MEMORY: u64 = 24 << 20;

impl Plan {
    /// Of these options. Unless it is given, the victim's share is what its file and fio need, from a quarter to three
    /// quarters of the limit.
    ///
    /// # Errors
    /// [`Refused`] if the limit cannot be shared so.
    pub fn new(options: &Options) -> Result<Plan> {
        let limit = options.cache_limit;
        let fitting = (options.victim.file_size + options.victim.file_size / 16 + OWN_MEMORY)
            .clamp(limit / 4, limit / 4 * 3);
        let victim_share = options.victim_share.unwrap_or(fitting);
        if victim_share >= limit {
            return Err(Refused(format!(
                "--victim-share of {} MiB leaves nothing of --cache-limit, {} MiB",
                victim_share >> 20,
                limit >> 20
            ))
            .into());
        }
        // Large enough that no page is met again before it was evicted.
        let mechanism = |name: &str, description: &str, pattern| Workload {
            name: name.into(),
            description: description.into(),
            file_size: limit * 4,
            block_size: 64 << 10,
            runtime: options.victim.runtime,
            numjobs: 1,
            iodepth: 1,
            pattern,
            rwmixread: 50,
        };
        let alone = (0..=options.neighbors.len()).map(|tenant| Arm::Alone { tenant });
        let mut arms: Vec<Arm> = alone.chain([Arm::Together]).collect();
        arms.extend(options.remedies.iter().map(|&remedy| Arm::Remedy { remedy }));
        if options.mechanisms {
            arms.extend([Arm::Evicting, Arm::Writing]);
        }
        let mut neighbors = options.neighbors.clone();
        neighbors.iter_mut().for_each(|neighbor| neighbor.runtime = options.victim.runtime);
        Ok(Plan {
            victim: options.victim.clone(),
            neighbors,
            evictor: mechanism("evictor", "Sequential read at a set rate", Pattern::Read),
            writer: mechanism("writer", "Buffered sequential write at a set rate", Pattern::Write),
            arms,
            runs: options.runs,
            cache_limit: limit,
            victim_share,
            io_rate: options.io_rate,
            mechanism_rate: options.mechanism_rate,
        })
    }

    /// The workloads of an arm's tenants, the victim first.
    pub fn tenants(&self, arm: Arm) -> Vec<&Workload> {
        let everyone = || std::iter::once(&self.victim).chain(&self.neighbors);
        match arm {
            Arm::Alone { tenant } => everyone().skip(tenant).take(1).collect(),
            Arm::Together | Arm::Remedy { .. } => everyone().collect(),
            Arm::Evicting => vec![&self.victim, &self.evictor],
            Arm::Writing => vec![&self.victim, &self.writer],
        }
    }

    /// The file of an arm's tenant, counted as in [`Plan::tenants`]. The mechanisms share one.
    pub fn file(&self, arm: Arm, tenant: usize) -> Wanted {
        let bytes = self.tenants(arm)[tenant].file_size;
        let owner = match arm {
            Arm::Alone { tenant } => tenant,
            Arm::Together | Arm::Remedy { .. } => tenant,
            Arm::Evicting | Arm::Writing if tenant == 0 => 0,
            Arm::Evicting | Arm::Writing => self.neighbors.len() + 1,
        };
        Wanted { bytes, owner }
    }

    fn files(&self) -> Vec<Wanted> {
        let of = |&arm: &Arm| (0..self.tenants(arm).len()).map(move |tenant| self.file(arm, tenant));
        let mut files: Vec<Wanted> = self.arms.iter().flat_map(of).collect();
        files.sort();
        files.dedup();
        files
    }
}

/// Runs every arm, and returns what came of it.
///
/// # Errors
/// [`Refused`] and [`Unsupported`] before anything has run, [`Interrupted`], or what went wrong.
pub fn run(
    options: &Options,
    program: &Program,
    stop: &Stop,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<Results> {
    let fio = fio::version()?;
    let place = Place::examine(&options.directory)?;
    let plan = Plan::new(options)?;
    let hierarchy = Hierarchy::find()?;
    let mut files = Files::take(place.clone())?;
    let wanted = plan.files();
    files.check(&wanted)?;
    let mut folder = Folder::begin(&options.out, Schema::CoRun)?;
    if !folder.record().sessions.is_empty() {
        let name = options.out.display();
        return Err(Refused(format!("-o {name} holds results already: name another directory")).into());
    }
    folder.output().json(results::PLAN, &plan)?;
    folder.add(Session {
        machine: Manifest::gather(),
        fio,
        directory: place.directory.clone(),
        device: place.device.clone(),
        scale: options.scale.to_string(),
        cache_limit_bytes: Some(options.cache_limit),
        notes: Vec::new(),
    })?;
    let outcome = every_arm(&plan, &place, &hierarchy, &mut files, &folder, program, stop, tell);
    if outcome.as_ref().is_err_and(|error| error.is::<Interrupted>()) {
        files.remove_made()?;
    }
    outcome?;
    Results::write(&folder)
}

#[expect(clippy::too_many_arguments, reason = "a run has that many parts, and they come together here only")]
fn every_arm(
    plan: &Plan,
    place: &Place,
    hierarchy: &Hierarchy,
    files: &mut Files,
    folder: &Folder,
    program: &Program,
    stop: &Stop,
    tell: &mut dyn FnMut(Event<'_>),
) -> Result<()> {
    make_all(files, &plan.files(), stop, tell)?;
    let stage = Stage { plan, place, hierarchy, files, folder, program, stop };
    let total = (plan.arms.len() * plan.runs) as u64;
    let mut done = 0;
    // All arms once, then all again: a mood of the machine meets all of them.
    for repeat in 0..plan.runs {
        for &arm in &plan.arms {
            let name = arm.name();
            tell(Event::Advance(Advance { done, total, what: &name }));
            let run = match stage.run(arm, repeat) {
                Err(error) if error.is::<Unsupported>() => {
                    ArmRun { arm, repeat, unsupported: Some(format!("{error:#}")), ..ArmRun::default() }
                }
                run => run.with_context(|| name.clone())?,
            };
            if let Some(reason) = &run.unsupported {
                tell(Event::Detail(&format!("{name}: {reason}")));
            }
            folder.output().json(&measure::file_of(arm, repeat), &run)?;
            done += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{parse, BUILT_IN};

    pub(super) fn options() -> Options {
        let all = parse(BUILT_IN).unwrap();
        let scale = Scale { numerator: 1, denominator: 16 };
        let of = |name: &str| all.iter().find(|workload| workload.name == name).unwrap().scaled(scale);
        Options {
            victim: of("steady_reader_d1"),
            neighbors: vec![of("steady_writer_d1"), of("bursty_writer_d32")],
            remedies: vec![Remedy::Direct],
            mechanisms: true,
            runs: 1,
            scale,
            cache_limit: 128 << 20,
            victim_share: None,
            io_rate: 1 << 20,
            mechanism_rate: 1 << 20,
            directory: "/".into(),
            out: "/".into(),
        }
    }

    #[test]
    fn every_tenant_has_a_file_of_its_own_and_keeps_it() {
        let plan = Plan::new(&options()).unwrap();
        let names = |arm| (0..plan.tenants(arm).len()).map(|t| plan.file(arm, t).name()).collect::<Vec<_>>();
        assert_eq!(names(Arm::Together), ["test_file_64M", "test_file_64M_n1", "test_file_1G_n2"]);
        assert_eq!(names(Arm::Alone { tenant: 1 }), ["test_file_64M_n1"]);
        assert_eq!(names(Arm::Evicting), ["test_file_64M", "test_file_512M_n3"]);
        assert_eq!(names(Arm::Evicting), names(Arm::Writing));
        assert_eq!(plan.files().len(), 4);
    }

    #[test]
    fn the_victim_s_share_fits_its_file_and_leaves_a_quarter() {
        let of = |file: u64, share| {
            let mut options = Options { victim_share: share, ..options() };
            options.victim.file_size = file << 20;
            Plan::new(&options).map(|plan| plan.victim_share >> 20)
        };
        assert_eq!(of(1, None).unwrap(), 32);
        assert_eq!(of(64, None).unwrap(), 92);
        assert_eq!(of(1024, None).unwrap(), 96);
        assert_eq!(of(64, Some(40 << 20)).unwrap(), 40);
        assert!(of(64, Some(128 << 20)).unwrap_err().is::<Refused>());
    }
}
