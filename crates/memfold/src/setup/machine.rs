//! Seeing what is there, and making changes.

use super::plan::{Before, Change, Ownership, Seen};
use super::{DEVICE, GROUP, LIMITS, RULES, STATE};
use anyhow::{bail, Context};
use nix::unistd::{Gid, Group, Uid};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// Looks at the machine.
///
/// # Errors
/// The memory of an earlier set-up cannot be read.
pub fn look() -> anyhow::Result<Seen> {
    let parent_exists = |path: &str| Path::new(path).parent().is_some_and(Path::is_dir);
    Ok(Seen {
        group: Group::from_name(GROUP)?.map(|g| (g.gid.as_raw(), g.mem)),
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
            Ok(fs::write(STATE, serde_json::to_string_pretty(before)? + "\n")?)
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
            fs::write(path, text)?;
            reload(path);
            Ok(())
        }
        Change::Delete(path) => {
            fs::remove_file(path)?;
            reload(path);
            Ok(())
        }
        Change::ShareDevice => {
            let group = Group::from_name(GROUP)?.context("the group is not there")?;
            own(Ownership { uid: 0, gid: group.gid.as_raw(), mode: 0o660 })
        }
        Change::RestoreDevice(was) => own(*was),
        Change::Tell(_) => Ok(()),
    }
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
