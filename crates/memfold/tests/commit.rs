//! The commit that results carry is that of the sources, wherever the command is run.

#[path = "../build/commit.rs"]
mod commit;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn git(at: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(at).args(["-c", "user.name=t", "-c", "user.email=t@localhost"]).args(arguments);
    let output = command.output().expect("git can be executed");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A tree like ours, without git.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("crates/one/src")).unwrap();
    fs::create_dir_all(at.join("docs")).unwrap();
    for file in ["Cargo.toml", "Cargo.lock", "crates/one/src/lib.rs", "docs/usage.md"] {
        fs::write(at.join(file), "first").unwrap();
    }
}

/// The same as a working copy with one commit, which is returned.
fn repository(at: &Path) -> String {
    tree(at);
    git(at, &["init", "--quiet"]);
    git(at, &["add", "."]);
    git(at, &["commit", "--quiet", "-m", "first"]);
    git(at, &["rev-parse", "HEAD"])
}

#[test]
fn a_tree_has_its_commit_and_is_dirty_only_where_its_sources_are_others() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let head = repository(at);
    let of = || commit::of(at).expect("a working copy has a commit");
    assert_eq!(of(), head);
    fs::write(at.join("docs/usage.md"), "second").unwrap();
    assert_eq!(of(), head, "what is written about a program does not change it");
    for file in ["crates/one/src/lib.rs", "crates/one/src/new.rs", "Cargo.lock"] {
        fs::write(at.join(file), "second").unwrap();
        assert_eq!(of(), format!("{head}-dirty"), "{file}");
        git(at, &["stash", "--quiet", "--include-untracked"]);
    }
    assert_eq!(of(), head);
}

#[test]
fn an_unpacked_archive_has_no_commit_even_within_somebody_elses_repository() {
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("alone");
    tree(&alone);
    assert_eq!(commit::of(&alone), None);
    repository(dir.path());
    assert_eq!(commit::of(&alone), None);
    assert_eq!(commit::watched(&alone).len(), 3, "the sources are watched all the same");
}

#[test]
fn whatever_moves_the_head_changes_a_file_that_is_watched() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("main");
    let first = repository(&at);
    git(&at, &["worktree", "add", "--quiet", "-b", "side", "../side"]);
    for at in [at.clone(), dir.path().join("side")] {
        let seen = || -> Vec<(PathBuf, Vec<u8>)> {
            let files = commit::watched(&at).into_iter().filter(|path| path.is_file());
            files.map(|path| (path.clone(), fs::read(path).unwrap())).collect()
        };
        assert!(commit::watched(&at).iter().all(|path| path.exists()));
        let moves: [&[&str]; 4] = [
            &["commit", "--quiet", "--allow-empty", "-m", "next"],
            &["pack-refs", "--all"],
            &["commit", "--quiet", "--allow-empty", "-m", "next, with packed references"],
            &["checkout", "--quiet", "--detach", &first],
        ];
        let mut before = (commit::of(&at), seen());
        for arguments in moves {
            git(&at, arguments);
            let after = (commit::of(&at), seen());
            let told = before.1.iter().any(|(path, was)| fs::read(path).ok().as_ref() != Some(was));
            assert!(told || before.0 == after.0, "git {arguments:?} in {}", at.display());
            before = after;
        }
    }
}

#[test]
fn the_executable_says_of_which_commit_it_was_built() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_memfold"));
    let output = command.arg("--version").output().expect("memfold can be executed");
    let said = String::from_utf8_lossy(&output.stdout);
    match option_env!("MEMFOLD_COMMIT") {
        Some(commit) => assert!(said.trim_end().ends_with(commit) && commit.len() >= 40, "{said}"),
        None => assert_eq!(said.lines().count(), 1, "{said}"),
    }
}
