//! Why a process has no control page that this user may see, from what `/proc` says of it.
//!
//! What it is not: certain of what happened before. A process is judged by the environment that its program was started with, by
//! what it has mapped, and by the processes above it.

use crate::library::FILE_NAME;
use crate::run::program;
use crate::{library, options, pages, process};
use memfold_pager::config;
use memfold_sys::thread::agent_name;
use nix::unistd::{geteuid, Uid, User};
use std::path::Path;

/// So many processes above one are looked at.
const GENERATIONS: usize = 64;

/// Whether the process has the pager's threads.
fn folds(pid: u32) -> bool {
    agent_name::BACKGROUND.to_str().is_ok_and(|agent| process::has_thread(pid, agent))
}

/// One sentence about the process, without a full stop.
pub fn why(pid: u32) -> String {
    let Some(stat) = process::stat(pid) else { return format!("there is no process {pid}") };
    let this = format!("process {pid} ({})", process::name(pid));
    if matches!(stat.state, 'Z' | 'X') {
        return format!("{this} has ended");
    }
    if stat.of_kernel {
        return format!("{this} is a thread of the kernel");
    }
    let owner = process::users(pid).get(1).copied().unwrap_or(0);
    if owner != geteuid().as_raw() && !geteuid().is_root() {
        let owner =
            User::from_uid(Uid::from_raw(owner)).ok().flatten().map_or(owner.to_string(), |user| user.name);
        return format!("{this} belongs to {owner}; only its owner and root can see and steer its folding");
    }
    if process::has_mapped(pid, FILE_NAME) {
        return format!("{this} {}", with_library(pid));
    }
    if folds(pid) {
        return format!("{this} folds itself by memfold.h, and has {NOWHERE}");
    }
    if is_launcher(pid) {
        return format!("{this} is `memfold run` itself, and its program is not folded");
    }
    format!("{this} {}", without_library(pid))
}

/// Whether the process is `memfold run`, beside a program.
pub fn is_launcher(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words = line.split(|byte| *byte == 0);
    let name = words.next().and_then(|word| word.rsplit(|byte| *byte == b'/').next());
    name == Some(b"memfold") && words.next() == Some(b"run")
}

/// What a process that folds without a page is told of.
const NOWHERE: &str = "no control page: where it would be there was no room or no access when folding began";

fn with_library(pid: u32) -> String {
    const OFF: &str = "the pager is turned off (--no-pager or MEMFOLD_PAGER=off)";
    let folds = folds(pid);
    let pager = process::variable(pid, options::NO_PAGER.variable);
    let is_off = pager.is_some_and(|text| text.is_empty() || config::switch(&text) == Some(false));
    match (pages::told(pid), is_off) {
        (Some(dir), _) if folds => match pages::snapshot(&dir.join(pid.to_string())) {
            Err(error) if dir.join(pid.to_string()).exists() => {
                format!("is folded, and its control page cannot be read: {}", error.root_cause())
            }
            _ => format!("is folded, and has {NOWHERE} ({})", dir.display()),
        },
        (None, _) if folds => format!("is folded, and has {NOWHERE}"),
        (_, true) => format!("has memfold's allocator alone: {OFF}"),
        _ if has_confined_itself(pid) => "is not folded: it confined its system calls (seccomp) before it had a control page".into(),
        (Some(dir), _) => format!(
            "is not folded so far: a forked child begins, and makes its control page, when it has as much memory to manage as \
             --start-at asks for (a program that was not forked has none where there is no room in {})",
            dir.display()
        ),
        (None, _) => format!("has memfold's library and no control page: {OFF}, or there was no room for the page"),
    }
}

/// Whether the process is under more filters of system calls than the one that started it: a container's or a service's are both under.
fn has_confined_itself(pid: u32) -> bool {
    let above = process::parent(pid).and_then(process::filters);
    above.is_some_and(|above| process::filters(pid) > Some(above))
}

fn without_library(pid: u32) -> String {
    let named = process::variable(pid, "LD_PRELOAD").is_some_and(|list| names_library(&list));
    if let Some(file) = process::executable(pid).filter(|_| named && pages::told(pid).is_some()) {
        let obstacle = library::find().ok().and_then(|library| program::obstacle(&file, &library));
        let why = obstacle.unwrap_or_else(|| "the loader did not preload the library".into());
        return format!("was started under `memfold run` and runs plainly: {why}");
    }
    let above = ancestors(pid).find(|&above| process::has_mapped(above, FILE_NAME));
    match above {
        Some(above) if follows_nobody(above) => format!(
            "runs plainly: programs that process {above} ({}) starts are not followed (--no-follow)",
            process::name(above)
        ),
        Some(above) => format!(
            "runs plainly: its environment does not name the library, though process {above} ({}) above it has it; a program \
             between them took it out, as `env -i` and sudo do",
            process::name(above)
        ),
        None => format!("was not started by `memfold run`; `memfold attach {pid}` folds it while it runs"),
    }
}

/// Whether what the process starts is to run plainly.
fn follows_nobody(pid: u32) -> bool {
    let variable = process::variable(pid, options::NO_FOLLOW.variable);
    variable.is_some_and(|text| config::switch(&text) == Some(false))
}

fn names_library(list: &str) -> bool {
    list.split([':', ' ']).any(|path| Path::new(path).file_name().is_some_and(|name| name == FILE_NAME))
}

/// The processes above one, nearest first.
fn ancestors(pid: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(process::parent(pid), |&above| process::parent(above)).take(GENERATIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_nothing_to_do_with_memfold_and_one_that_is_not_there_are_told_apart() {
        assert!(
            why(std::process::id()).contains("was not started by `memfold run`"),
            "{}",
            why(std::process::id())
        );
        assert_eq!(why(4_194_303), "there is no process 4194303");
    }

    #[test]
    fn the_library_is_known_by_its_file_name_in_a_list() {
        assert!(names_library("/a/b.so:/x/libmemfold.so"));
        assert!(!names_library("/a/libmemfold.so.old"));
    }
}
