//! What has to change, from what is there. Pure: it reads and writes nothing.

use super::{DEVICE, GROUP, HEADER, LIMITS, RULES};
use serde::{Deserialize, Serialize};

/// Who owns a file and who may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ownership {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The permission bits.
    pub mode: u32,
}

/// Whose the kernel makes the device.
const AT_FIRST: Ownership = Ownership { uid: 0, gid: 0, mode: 0o600 };

/// What has to be undone one day.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Before {
    /// The group was not there.
    pub made_group: bool,
    /// These users were not in the group.
    pub added_users: Vec<String>,
    /// Whose the device was.
    pub device: Option<Ownership>,
}

/// What is there.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Number and members of the group.
    pub group: Option<(u32, Vec<String>)>,
    /// Text of the udev rule.
    pub rules: Option<String>,
    /// Whether there is a directory for rules.
    pub has_udev: bool,
    /// Text of the limits file.
    pub limits: Option<String>,
    /// Whether there is a directory for limits.
    pub has_limits: bool,
    /// Whose the device is.
    pub device: Option<Ownership>,
    /// Whether the program that makes handshakes is installed as it should be; `None` if it is not.
    pub handshake: Option<bool>,
    /// Whether there is one to install.
    pub has_handshake: bool,
    /// What an earlier set-up remembered.
    pub before: Option<Before>,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Write down what was there.
    Remember(Before),
    /// Forget it.
    Forget,
    /// Make the group.
    MakeGroup,
    /// Delete the group.
    DeleteGroup,
    /// Put a user into the group.
    AddUser(String),
    /// Take a user out of the group.
    RemoveUser(String),
    /// Write a file.
    Write(&'static str, String),
    /// Remove a file.
    Delete(&'static str),
    /// Give the device to the group.
    ShareDevice,
    /// Give the device back.
    RestoreDevice(Ownership),
    /// Install the program that makes handshakes.
    InstallHandshake,
    /// Remove it.
    RemoveHandshake,
    /// Say something; nothing changes.
    Tell(String),
}

/// The udev rule.
pub fn rules() -> String {
    format!("{HEADER}\nSUBSYSTEM==\"misc\", KERNEL==\"userfaultfd\", GROUP=\"{GROUP}\", MODE=\"0660\"\n")
}

fn limits() -> String {
    format!("{HEADER}\n@{GROUP} - rtprio 10\n")
}

/// What to do so that members of the group, `user` among them, may fold programs.
pub fn install(seen: &Seen, user: Option<&str>) -> Vec<Change> {
    let mut changes = Vec::new();
    let mut before = seen.before.clone().unwrap_or_default();
    let (gid, members) = match &seen.group {
        Some((gid, members)) => (Some(*gid), members.as_slice()),
        None => (None, &[][..]),
    };
    if gid.is_none() {
        before.made_group = true;
        changes.push(Change::MakeGroup);
    }
    let rules =
        (RULES, rules(), &seen.rules, seen.has_udev, "udev: the permission lasts until the next start");
    let limits = (LIMITS, limits(), &seen.limits, seen.has_limits, "pam_limits: no real-time priority");
    for (path, text, there, possible, otherwise) in [rules, limits] {
        match there {
            Some(old) if *old == text => {}
            Some(old) if !old.starts_with(HEADER) => {
                changes.push(Change::Tell(format!("{path} is not memfold's and is left as it is")));
            }
            _ if possible => changes.push(Change::Write(path, text)),
            _ => changes.push(Change::Tell(format!("there is no {otherwise}"))),
        }
    }
    match seen.device {
        None => changes.push(Change::Tell("there is no /dev/userfaultfd (Linux 6.1 or later has it)".into())),
        Some(device) if Some(device.gid) == gid && device.mode & 0o060 == 0o060 => {}
        // Sharing it with the group would take it from everybody else.
        Some(device) if device.mode & 0o006 == 0o006 => {
            changes.push(Change::Tell("every user may open /dev/userfaultfd already".into()));
        }
        Some(device) => {
            before.device = before.device.or(Some(device));
            changes.push(Change::ShareDevice);
        }
    }
    match (seen.handshake, seen.has_handshake) {
        (Some(true), _) => {}
        (_, true) => changes.push(Change::InstallHandshake),
        (_, false) => changes.push(Change::Tell(
            "there is no memfold-handshake beside memfold: root alone attaches to what runs already".into(),
        )),
    }
    if let Some(user) = user.filter(|u| !members.iter().any(|m| m == u)) {
        before.added_users.push(user.to_owned());
        changes.push(Change::AddUser(user.to_owned()));
    }
    // Remembered first: if a later change fails, what was made can still be undone.
    if seen.before.as_ref() != Some(&before) {
        changes.insert(0, Change::Remember(before));
    }
    changes
}

/// What to do so that everything is as before [`install`], from its last step back to its first.
pub fn remove(seen: &Seen) -> Vec<Change> {
    let mut changes = Vec::new();
    let before = seen.before.clone().unwrap_or_default();
    if let Some((_, members)) = seen.group.as_ref().filter(|_| !before.made_group) {
        let ours = before.added_users.iter().filter(|user| members.contains(user));
        changes.extend(ours.cloned().map(Change::RemoveUser));
    }
    if seen.handshake.is_some() {
        changes.push(Change::RemoveHandshake);
    }
    let is_ours = |text: &Option<String>| text.as_ref().is_some_and(|text| text.starts_with(HEADER));
    let was = match (seen.before.is_some(), seen.device, &seen.group) {
        (true, ..) => before.device,
        // What was remembered is lost, and the device is as only setup makes it: root's alone, as the kernel does.
        (false, Some(is), Some((gid, _))) if is.gid == *gid && is_ours(&seen.rules) => Some(AT_FIRST),
        _ => None,
    };
    if let (Some(was), Some(is)) = (was, seen.device) {
        if was != is {
            changes.push(Change::RestoreDevice(was));
        }
    }
    for (path, there) in [(LIMITS, &seen.limits), (RULES, &seen.rules)] {
        match there {
            Some(_) if is_ours(there) => changes.push(Change::Delete(path)),
            Some(_) => changes.push(Change::Tell(format!("{path} is not memfold's and is left as it is"))),
            None => {}
        }
    }
    if before.made_group && seen.group.is_some() {
        changes.push(Change::DeleteGroup);
    }
    if seen.before.is_some() {
        changes.push(Change::Forget);
    }
    changes
}

/// Who may open the device, as things are.
pub fn opened(seen: &Seen) -> String {
    let Some(device) = seen.device else { return format!("there is no {DEVICE}, so nobody may open it") };
    let members = match &seen.group {
        Some((gid, members)) if *gid == device.gid && device.mode & 0o060 == 0o060 => Some(members),
        _ => None,
    };
    match members {
        _ if device.mode & 0o006 == 0o006 => {
            format!("every user may open {DEVICE}, and fold their own programs")
        }
        Some(members) if members.is_empty() => {
            format!("root and members of the group {GROUP} may open {DEVICE}; it has none yet: memfold setup --user NAME adds one")
        }
        Some(members) => format!(
            "root and members of the group {GROUP} may open {DEVICE}, and fold their own programs: {}",
            members.join(", ")
        ),
        None => format!(
            "no group of setup's may open {DEVICE} (user {}, group {}, mode {:o})",
            device.uid, device.gid, device.mode
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh() -> Seen {
        Seen {
            has_udev: true,
            has_limits: true,
            has_handshake: true,
            device: Some(AT_FIRST),
            ..Seen::default()
        }
    }

    /// What is there after the changes were made.
    fn after(seen: &Seen, changes: &[Change]) -> Seen {
        let mut seen = seen.clone();
        for change in changes {
            match change.clone() {
                Change::Remember(before) => seen.before = Some(before),
                Change::Forget => seen.before = None,
                Change::MakeGroup => seen.group = Some((990, vec![])),
                Change::DeleteGroup => seen.group = None,
                Change::AddUser(user) => seen.group.as_mut().unwrap().1.push(user),
                Change::RemoveUser(user) => seen.group.as_mut().unwrap().1.retain(|m| *m != user),
                Change::Write(RULES, text) => seen.rules = Some(text),
                Change::Write(_, text) => seen.limits = Some(text),
                Change::Delete(RULES) => seen.rules = None,
                Change::Delete(_) => seen.limits = None,
                Change::ShareDevice => {
                    let gid = seen.group.as_ref().unwrap().0;
                    seen.device = Some(Ownership { uid: 0, gid, mode: 0o660 });
                }
                Change::RestoreDevice(was) => seen.device = Some(was),
                Change::InstallHandshake => seen.handshake = Some(true),
                Change::RemoveHandshake => seen.handshake = None,
                Change::Tell(_) => {}
            }
        }
        seen
    }

    #[test]
    fn a_second_set_up_has_nothing_to_do() {
        let done = after(&fresh(), &install(&fresh(), Some("ann")));
        assert_eq!(install(&done, Some("ann")), []);
    }

    #[test]
    fn the_packages_rule_is_that_of_setup() {
        let rule = |text: &str| text.lines().find(|line| !line.starts_with('#')).map(str::to_owned);
        let packages =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/udev/60-memfold.rules");
        assert_eq!(rule(&std::fs::read_to_string(packages).unwrap()), rule(&rules()));
        assert!(rule(&rules()).is_some());
    }

    #[test]
    fn removing_leads_back_to_where_it_began() {
        let done = after(&fresh(), &install(&fresh(), Some("ann")));
        let back = after(&done, &remove(&done));
        assert_eq!((back.group, back.rules, back.limits, back.before), (None, None, None, None));
        assert_eq!((done.handshake, back.handshake), (Some(true), None));
        assert_eq!(back.device, Some(AT_FIRST));
        assert_eq!(remove(&fresh()), []);
    }

    #[test]
    fn a_group_that_was_there_stays_with_the_members_that_it_had() {
        let seen = Seen { group: Some((7, vec!["bob".into()])), ..fresh() };
        let once = after(&seen, &install(&seen, Some("ann")));
        let twice = after(&once, &install(&once, Some("cy")));
        assert_eq!(twice.group.as_ref().unwrap().1, ["bob", "ann", "cy"]);
        let back = after(&twice, &remove(&twice));
        assert_eq!(back.group, Some((7, vec!["bob".into()])));
        assert_eq!(back.device, Some(AT_FIRST));
    }

    #[test]
    fn it_goes_back_step_by_step_from_the_last() {
        let seen = Seen { group: Some((7, vec![])), ..fresh() };
        let there = after(&seen, &install(&seen, Some("ann")));
        let back = remove(&there);
        assert!(matches!(
            back[..],
            [
                Change::RemoveUser(_),
                Change::RemoveHandshake,
                Change::RestoreDevice(AT_FIRST),
                Change::Delete(LIMITS),
                Change::Delete(RULES),
                Change::Forget
            ]
        ));
    }

    #[test]
    fn a_device_is_taken_back_from_the_group_although_what_was_there_is_forgotten() {
        let done = Seen { before: None, ..after(&fresh(), &install(&fresh(), Some("ann"))) };
        assert_eq!(after(&done, &remove(&done)).device, Some(AT_FIRST));
        // Of a device that somebody else gave to a group of this name nothing is known.
        let theirs = Seen { rules: None, ..done };
        assert_eq!(remove(&theirs), [Change::RemoveHandshake, Change::Delete(LIMITS)]);
    }

    #[test]
    fn it_is_said_who_may_open_the_device() {
        let done = after(&fresh(), &install(&fresh(), Some("ann")));
        assert!(opened(&done).ends_with("fold their own programs: ann"), "{}", opened(&done));
        let nobody = after(&fresh(), &install(&fresh(), None));
        assert!(opened(&nobody).contains("it has none yet"));
        assert!(opened(&fresh()).starts_with("no group of setup's"));
        let open = Seen { device: Some(Ownership { mode: 0o666, ..AT_FIRST }), ..fresh() };
        assert!(opened(&open).starts_with("every user may open"));
    }

    #[test]
    fn another_program_that_makes_handshakes_is_replaced_and_none_is_missed() {
        let old = Seen { handshake: Some(false), ..fresh() };
        assert!(install(&old, None).contains(&Change::InstallHandshake));
        let none = Seen { has_handshake: false, ..fresh() };
        let changes = install(&none, None);
        assert!(!changes.contains(&Change::InstallHandshake));
        assert!(matches!(changes.last(), Some(Change::Tell(text)) if text.contains("root alone attaches")));
    }

    #[test]
    fn a_device_that_is_open_to_all_stays_so() {
        let seen = Seen { device: Some(Ownership { uid: 0, gid: 0, mode: 0o666 }), ..fresh() };
        assert!(!install(&seen, None).contains(&Change::ShareDevice));
    }

    #[test]
    fn a_file_of_somebody_else_is_neither_overwritten_nor_removed() {
        let seen = Seen { rules: Some("# mine".into()), ..fresh() };
        let touches = |c: &Change| matches!(c, Change::Write(RULES, _) | Change::Delete(RULES));
        assert!(!install(&seen, None).iter().any(touches));
        assert!(!remove(&seen).iter().any(touches));
    }
}
