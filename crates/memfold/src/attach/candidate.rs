//! What is known of a process before anything is done to it: what rules and patterns go by.

use crate::{config::decide, process};
use memfold_attach::Target;
use nix::unistd::{Uid, User};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A program that runs.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    /// The process.
    pub pid: u32,
    /// When it began, since the machine booted.
    pub began: Duration,
    /// Its name, as `ps` shows it.
    pub name: String,
    /// Its file, where that may be known.
    pub file: Option<PathBuf>,
    /// What it was started with, words apart by spaces.
    pub command: String,
    /// The name of its user; the number where there is no name.
    pub user: String,
    /// The number of its user.
    pub uid: u32,
    /// Its control group.
    pub cgroup: String,
    /// Resident bytes.
    pub resident: u64,
}

impl Candidate {
    /// Looks at a process; `None` where there is no program in it.
    pub fn look(pid: u32) -> Option<Candidate> {
        let stat = process::stat(pid).filter(|stat| stat.runs() && !stat.of_kernel)?;
        let uid = *process::users(pid).get(1)?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = command.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let user =
            User::from_uid(Uid::from_raw(uid)).ok().flatten().map_or(uid.to_string(), |user| user.name);
        Some(Candidate {
            pid,
            began: stat.started,
            name: process::name(pid),
            file: process::executable(pid),
            command: words.join(" ").trim_end().to_owned(),
            user,
            uid,
            cgroup: decide::group_of(pid),
            resident: stat.resident,
        })
    }

    /// It, and no later process of its number.
    pub fn target(&self) -> Target {
        Target::of(self.pid, self.began)
    }

    /// Whether it is of a user, by name or number.
    pub fn is_of(&self, user: &str) -> bool {
        self.user == user || self.uid.to_string() == user
    }

    /// The units of the system's manager that it is in, as its control group names them: slices, and the first other one in them. What lies below that
    /// is called as its user pleases.
    pub fn units(&self) -> impl Iterator<Item = &str> {
        let mut is_below = false;
        let of_system = move |name: &&str| !std::mem::replace(&mut is_below, !name.ends_with(".slice"));
        self.cgroup.split('/').skip(1).take_while(of_system).filter(|name| name.contains('.'))
    }
}

/// All programs, but for this one, those above it (`sudo memfold attach --match redis` is not meant by `redis`), and the first process of all: what starts and
/// reaps everything is attached to by its number only.
pub fn pids() -> Vec<u32> {
    let mut spared = vec![1, std::process::id()];
    while let Some(parent) =
        spared.last().and_then(|&pid| process::parent(pid)).filter(|pid| !spared.contains(pid))
    {
        spared.push(parent);
    }
    process::all().into_iter().filter(|pid| !spared.contains(pid)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_looked_at_and_is_not_among_those_that_are_meant() {
        let own = Candidate::look(std::process::id()).unwrap();
        assert!(own.target().check_same().is_ok());
        assert!(own.resident > 0 && !own.name.is_empty() && !own.command.is_empty());
        assert!(own.is_of(&nix::unistd::geteuid().to_string()) && !own.is_of("no-such-user"));
        assert!(!pids().contains(&own.pid) && !pids().contains(&1));
        assert!(Candidate::look(u32::MAX).is_none());
    }

    #[test]
    fn units_are_those_of_the_systems_manager() {
        let of = |cgroup: &str| {
            let candidate = Candidate { cgroup: cgroup.into(), ..Candidate::default() };
            candidate.units().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of("/system.slice/nginx.service"), ["system.slice", "nginx.service"]);
        let database = "/system.slice/system-postgresql.slice/postgresql@15-main.service";
        assert_eq!(of(database), ["system.slice", "system-postgresql.slice", "postgresql@15-main.service"]);
        let own = "/user.slice/user-1000.slice/user@1000.service/app.slice/postgresql-x.service";
        assert_eq!(of(own), ["user.slice", "user-1000.slice", "user@1000.service"]);
        assert_eq!(of("/system.slice/a.scope/system.slice/nginx.service"), ["system.slice", "a.scope"]);
        assert!(of("/").is_empty() && of("").is_empty() && of("/docker/nginx.service").is_empty());
    }
}
