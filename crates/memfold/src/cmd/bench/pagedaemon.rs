//! `memfold bench pagedaemon`: page daemons and policies under the same load and limit, in turns.

use super::{count, print, region, with_bar, EXAMPLES};
use crate::run::launch::known_policy;
use crate::{exit, library};
use ::memfold_bench::pagedaemon::{self, Load, Options};
use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;

/// Run a load under a resident limit with one policy and another in turns; log every pass, compare, and write a page.
///
/// The quantities are those of the report on Bon Chance (2019). With four runs of each policy or more, every difference is
/// called real or noise.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The policies, with parameters where they have some; all others are compared with the first.
    #[arg(long, value_name = "P,..", default_value = "freebsd,bonchance")]
    policies: String,
    /// Runs of each policy.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count(1_000))]
    runs: usize,
    /// What is run: stress, redis, or a command for the shell.
    #[arg(long, value_name = "LOAD", default_value = "stress", value_parser = load)]
    load: Load,
    /// How much managed memory may be resident.
    #[arg(long, value_name = "BYTES", default_value = "64M", value_parser = region)]
    resident_limit: usize,
    /// Memory that stress or redis uses [default: twice the limit].
    #[arg(long, value_name = "BYTES", value_parser = region)]
    memory: Option<usize>,
    /// How long a run of stress or redis takes, in seconds.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = count(86_400))]
    seconds: usize,
    /// The directory of the results.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the experiment.
    pub fn run(self) -> Result<ExitCode> {
        let policies = split(&self.policies);
        for policy in &policies {
            known_policy(policy).ok().filter(|name| name != "age").ok_or_else(|| bad_policy(policy))?;
        }
        let options = Options {
            policies,
            runs: self.runs,
            load: self.load,
            limit: self.resident_limit as u64,
            memory: self.memory.unwrap_or(self.resident_limit * 2) as u64,
            seconds: self.seconds as u64,
        };
        let library = library::find()?;
        let report = with_bar(|progress| pagedaemon::run(&options, &library, &self.out, progress))?;
        print(self.json, &report)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn bad_policy(policy: &str) -> anyhow::Error {
    let why = known_policy(policy).err().unwrap_or_else(|| "it has no passes to compare".into());
    exit::usage(format!("invalid value '{policy}' for --policies: {why}"))
}

fn load(text: &str) -> Result<Load, String> {
    match text.trim() {
        "" => Err("stress, redis or a command is needed".into()),
        text => Ok(Load::parse(text)),
    }
}

/// Splits a list of policies; what follows a comma and has `=` but no `:` before it is a further parameter.
fn split(text: &str) -> Vec<String> {
    let mut policies: Vec<String> = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let parameter = part.contains('=') && !part.split('=').next().unwrap_or(part).contains(':');
        match policies.last_mut() {
            Some(last) if parameter => {
                last.push(',');
                last.push_str(part);
            }
            _ => policies.push(part.to_owned()),
        }
    }
    policies
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn a_comma_separates_policies_and_parameters() {
        assert_eq!(split("freebsd:free=0.1,period=60,lru"), ["freebsd:free=0.1,period=60", "lru"]);
        assert_eq!(split("lru,s3fifo:small=0.2"), ["lru", "s3fifo:small=0.2"]);
    }
}
