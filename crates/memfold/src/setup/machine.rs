//! Seeing what is there, and making changes.

use super::place::check;
use super::plan::{Before, Change, Ownership, Seen};
use super::{handshake, DEVICE, GROUP, LIMITS, RULES, STATE};
use anyhow::{bail, Context};
use nix::unistd::{Gid, Group, Uid};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Looks at the machine.
///
/// # Errors
/// The memory of an earlier set-up cannot be read.
pub fn look() -> anyhow::Result<Seen> {
    let parent_exists = |path: &str| Path::new(path).parent().is_some_and(Path::is_dir);
    let group = Group::from_name(GROUP)?.map(|g| (g.gid.as_raw(), g.mem));
    let program = handshake::program()?;
    Ok(Seen {
        handshake: handshake::is_ready(program.as_deref(), group.as_ref().map(|(gid, _)| *gid)),
        has_handshake: program.is_some(),
        group,
        rules: fs::read_to_string(RULES).ok(),
        has_udev: parent_exists(RULES),
        limits: fs::read_to_string(LIMITS).ok(),
        has_limits: parent_exists(LIMITS),
        device: fs::metadata(DEVICE).ok().map(|m| Ownership {
            uid: m.uid(),
            gid: m.gid(),
            mode: m.mode() & 0o7777,
        }),
        before: remembered()?,
    })
}

fn remembered() -> anyhow::Result<Option<Before>> {
    let dir = Path::new(STATE).parent().unwrap_or(Path::new("/"));
    if dir.exists() {
        check(dir)?;
    }
    match fs::read_to_string(STATE) {
        Ok(text) => Ok(Some(serde_json::from_str(&text).with_context(|| format!("{STATE} is damaged"))?)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("cannot read {STATE}")),
    }
}

/// A change in words.
pub fn describe(change: &Change) -> String {
    match change {
        Change::Remember(_) => format!("write {STATE}, what was there before"),
        Change::Forget => format!("remove {STATE}"),
        Change::MakeGroup => format!("make the system group {GROUP}"),
        Change::DeleteGroup => format!("delete the group {GROUP}"),
        Change::AddUser(user) => format!("add {user} to the group {GROUP} (from the next log-in on)"),
        Change::RemoveUser(user) => format!("take {user} out of the group {GROUP}"),
        Change::Write(path, text) => format!("write {path}: {}", text.lines().nth(1).unwrap_or_default()),
        Change::Delete(path) => format!("remove {path}"),
        Change::ShareDevice => format!("give {DEVICE} to the group {GROUP}, mode 660"),
        Change::RestoreDevice(was) => {
            format!("give {DEVICE} back to user {}, group {}, mode {:o}", was.uid, was.gid, was.mode)
        }
        Change::InstallHandshake => format!(
            "install {}, by which members of the group {GROUP} attach to their own programs (mode 750, CAP_SYS_PTRACE)",
            handshake::PLACE
        ),
        Change::RemoveHandshake => format!("remove {}", handshake::PLACE),
        Change::Tell(text) => text.clone(),
    }
}

/// Makes a change.
///
/// # Errors
/// It cannot be made; the error names it.
pub fn make(change: &Change) -> anyhow::Result<()> {
    attempt(change).with_context(|| format!("could not {}", describe(change)))
}

fn attempt(change: &Change) -> anyhow::Result<()> {
    match change {
        Change::Remember(before) => {
            if let Some(dir) = Path::new(STATE).parent() {
                fs::create_dir_all(dir)?;
            }
            write_whole(Path::new(STATE), &(serde_json::to_string_pretty(before)? + "\n"))
        }
        Change::Forget => {
            fs::remove_file(STATE)?;
            // Fails, as it should, if something else is kept there.
            let _ = Path::new(STATE).parent().map(fs::remove_dir);
            Ok(())
        }
        Change::MakeGroup => one_of(&[&["groupadd", "--system", GROUP], &["addgroup", "-S", GROUP]]),
        Change::DeleteGroup => one_of(&[&["groupdel", GROUP], &["delgroup", GROUP]]),
        Change::AddUser(user) => one_of(&[&["usermod", "-aG", GROUP, user], &["addgroup", user, GROUP]]),
        Change::RemoveUser(user) => one_of(&[&["gpasswd", "-d", user, GROUP], &["delgroup", user, GROUP]]),
        Change::Write(path, text) => {
            write_whole(Path::new(path), text)?;
            reload(path);
            Ok(())
        }
        Change::Delete(path) => {
            fs::remove_file(path)?;
            reload(path);
            Ok(())
        }
        Change::ShareDevice => own(Ownership { uid: 0, gid: group()?.as_raw(), mode: 0o660 }),
        Change::InstallHandshake => {
            let program = handshake::program()?.context("it is not there any more")?;
            handshake::install(&program, group()?)
        }
        Change::RemoveHandshake => handshake::remove(),
        Change::RestoreDevice(was) => own(*was),
        Change::Tell(_) => Ok(()),
    }
}

fn group() -> anyhow::Result<Gid> {
    Ok(Group::from_name(GROUP)?.context("the group is not there")?.gid)
}

/// Puts a file in place of whatever has its name, as a whole or not at all, whenever the machine stops; readable for all.
///
/// # Errors
/// It cannot be written, or another user could change the directory.
pub fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    check(dir)?;
    let readable = fs::Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().prefix(".memfold-").permissions(readable).tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(File::open(dir)?.sync_all()?)
}

fn own(ownership: Ownership) -> anyhow::Result<()> {
    // Closed first: at no moment may both the old mode and the new group, or the reverse, be in force.
    fs::set_permissions(DEVICE, fs::Permissions::from_mode(0o600))?;
    nix::unistd::chown(DEVICE, Some(Uid::from_raw(ownership.uid)), Some(Gid::from_raw(ownership.gid)))?;
    Ok(fs::set_permissions(DEVICE, fs::Permissions::from_mode(ownership.mode))?)
}

/// Tells a running udev of a changed rule. Where none runs, the rule is read at the next start.
fn reload(path: &str) {
    if path == RULES {
        let _ = quiet(Command::new("udevadm").args(["control", "--reload"])).status();
    }
}

fn quiet(command: &mut Command) -> &mut Command {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

/// Runs the first of these commands that exists: distributions differ in their tools.
fn one_of(commands: &[&[&str]]) -> anyhow::Result<()> {
    for words in commands {
        match Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => bail!("{}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(e).context(words.join(" ")),
        }
    }
    bail!("there is neither {}", commands.iter().map(|c| c[0]).collect::<Vec<_>>().join(" nor "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::plan;
    use crate::text;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_put_in_place_of_what_has_its_name_and_not_written_through_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("state"), dir.path().join("victim"));
        fs::write(&victim, b"bytes").unwrap();
        symlink(&victim, &path).unwrap();
        write_whole(&path, "one").unwrap();
        write_whole(&path, "two").unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&victim).unwrap()),
            (b"two".to_vec(), b"bytes".to_vec())
        );
        let meta = fs::symlink_metadata(&path).unwrap();
        assert!(meta.is_file() && meta.mode() & 0o777 == 0o644);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn what_cannot_be_put_in_place_leaves_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        write_whole(&path, "whole").unwrap();
        // In the way of the last step.
        let taken = dir.path().join("taken");
        fs::create_dir(&taken).unwrap();
        assert!(write_whole(&taken, "text").is_err());
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = write_whole(&path, "other").unwrap_err().to_string();
        assert!(refused.contains("mode 777"), "{refused}");
        assert_eq!(fs::read(&path).unwrap(), b"whole");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn udev_finds_nothing_wrong_with_the_rule() {
        let help = Command::new("udevadm").args(["verify", "--help"]).output();
        if !help.is_ok_and(|output| output.status.success()) {
            text::say("skipped: there is no `udevadm verify` (systemd 254 or later)");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let rule = dir.path().join("60-memfold.rules");
        // `root` is a group everywhere, memfold's only after setup.
        fs::write(&rule, plan::rules().replace(GROUP, "root")).unwrap();
        let output =
            Command::new("udevadm").args(["verify", "--resolve-names=early"]).arg(&rule).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
}
