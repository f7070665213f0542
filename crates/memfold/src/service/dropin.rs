//! What has to be added to a service so that it is folded: pure, from the service to a text.

use super::unit::{is_no, Unit};
use crate::calls;
use memfold_pager::tier::choice::Choice;
use std::path::Path;

/// The file's name among the drop-ins: late, as it takes up what those before it say.
pub const NAME: &str = "90-memfold.conf";

/// The first line of the file, by which it is known again.
pub const HEADER: &str = "# Written by `memfold service`; `memfold service NAME --undo` removes it.";

/// What the launcher calls besides, and who starts a thread, and what services are forbidden here and there.
const CALLS: [&str; 5] = ["clone3", "membarrier", "signalfd4", "socketpair", "statfs"];

/// What is there besides the service.
#[derive(Clone, Debug)]
pub struct Host<'a> {
    /// The executable, by its whole path.
    pub memfold: &'a str,
    /// The directory of the library.
    pub library_dir: &'a str,
    /// Options of `memfold run`, which keep it from starting where they cannot be had.
    pub options: &'a [String],
    /// Variables of it, which are left out then.
    pub variables: &'a [(&'static str, String)],
    /// The tier below memory that it has, whoever says so.
    pub tier: Option<&'a str>,
    /// Whether it is to be under the budget of a daemon, likewise.
    pub daemon: bool,
    /// Whether the group whose members may open the device is there.
    pub has_group: bool,
    /// Whether every user may open the device.
    pub is_open: bool,
}

/// A drop-in.
#[derive(Debug, PartialEq, Eq)]
pub struct DropIn {
    /// Its text.
    pub text: String,
    /// What is to be known beforehand, a sentence each.
    pub notes: Vec<String>,
}

/// Composes the drop-in.
///
/// # Errors
/// Why the service cannot be folded by one.
pub fn compose(unit: &Unit, host: &Host<'_>) -> Result<DropIn, String> {
    let kind = unit.last("Type").unwrap_or("simple");
    let tier = host.tier.and_then(|text| Choice::parse(text).ok());
    let mut lines = Vec::new();
    let mut notes = Vec::new();
    let mut line = |why: &str, settings: &[String]| {
        lines.push(format!("# {why}"));
        lines.extend_from_slice(settings);
    };
    refuse(unit, host)?;

    let commands =
        unit.all("ExecStart").iter().map(|command| wrap(command, host)).collect::<Result<Vec<_>, _>>()?;
    let mut exec = vec!["ExecStart=".to_owned()];
    exec.extend(commands.iter().map(|command| format!("ExecStart={command}")));
    line("The program is started by memfold and stays as it is.", &exec);

    if !host.variables.is_empty() {
        let variable =
            |(name, value): &(&str, String)| format!("Environment={}", quoted(&format!("{name}={value}")));
        let variables: Vec<String> = host.variables.iter().map(variable).collect();
        line("What cannot be had of this at a start is left out, and the service starts.", &variables);
    }

    let tells_when_ready = kind != "forking" && kind.starts_with("notify");
    if tells_when_ready && unit.last("NotifyAccess").is_none_or(|access| access != "all") {
        line(
            "The program says itself when it is ready; systemd knows memfold as the main process.",
            &["NotifyAccess=all".into()],
        );
    }
    if unit.is("PrivateDevices") {
        let mut settings = ["PrivateDevices=no", "DevicePolicy=closed", "DeviceAllow=/dev/userfaultfd rw"]
            .map(str::to_owned)
            .to_vec();
        // To take from no rights at all is, for systemd, to begin with all.
        if !unit.is_empty("CapabilityBoundingSet") {
            settings.push("CapabilityBoundingSet=~CAP_MKNOD CAP_SYS_RAWIO".into());
        }
        settings.push("SystemCallFilter=~@raw-io".into());
        line("One device more than before, and what else went with PrivateDevices=yes.", &settings);
    } else if !unit.all("DeviceAllow").is_empty()
        || unit.last("DevicePolicy").is_some_and(|policy| policy != "auto")
        // It permits the clocks, and so no other devices.
        || unit.is("ProtectClock")
    {
        line("One device more than before.", &["DeviceAllow=/dev/userfaultfd rw".into()]);
    }
    let user = unit.last("User").filter(|user| !matches!(*user, "root" | "0"));
    if user.is_some() || unit.is("DynamicUser") {
        match (host.is_open, host.has_group) {
            (true, _) => {}
            (false, true) => line("Who may open it.", &["SupplementaryGroups=memfold".into()]),
            (false, false) => notes.push(
                "the service runs as a user who may not make a userfaultfd: `sudo memfold setup`, then this command again; until then it runs plainly"
                    .into(),
            ),
        }
    }
    if unit.is("RestrictRealtime") {
        notes.push("RestrictRealtime=yes stays, so faults take longer while the CPUs are busy".into());
    } else if unit.last("LimitRTPRIO").is_none_or(|limit| limit.parse().is_ok_and(|limit: u32| limit < 10)) {
        line("Faults are short also while the CPUs are busy.", &["LimitRTPRIO=10".into()]);
    }
    if !unit.all("SystemCallFilter").is_empty() {
        let folding = calls::of_folding(host.tier);
        let mut names: Vec<&str> = folding.iter().map(|call| call.number.name()).chain(CALLS).collect();
        names.sort_unstable();
        line(
            "System calls of folding, of which the service may not make some itself.",
            &[format!("SystemCallFilter={}", names.join(" "))],
        );
    }
    let families = unit.all("RestrictAddressFamilies");
    let has_unix = families
        .iter()
        .any(|list| !list.starts_with('~') && list.split_whitespace().any(|name| name == "AF_UNIX"));
    let on_network = tier.is_some_and(|tier| tier.engines().is_some());
    if !families.is_empty() && on_network {
        line(
            "The tier is on the network, and kept by a process beside the program.",
            &["RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6".into()],
        );
    } else if !families.is_empty() && !has_unix && host.daemon {
        line(
            "The daemon with the budget listens on a socket of this kind.",
            &["RestrictAddressFamilies=AF_UNIX".into()],
        );
    }
    if !unit.all("NoExecPaths").is_empty() {
        line("What the service may execute.", &[format!("ExecPaths={} {}", host.memfold, host.library_dir)]);
    }
    let directory = tier.and_then(|tier| tier.directory());
    if let Some(directory) = directory.filter(|_| has_its_own_mounts(unit)) {
        // What is not there keeps no service from starting.
        line(
            "Where the tier's files are.",
            &[format!("ReadWritePaths={}", quoted(&format!("-{directory}")))],
        );
    }
    if may_not_write_tmp(unit) {
        line(
            "The pages that `memfold stat` reads need a place; this one only the service sees.",
            &["PrivateTmp=yes".into()],
        );
    }
    if unit.last("LimitAS").is_some_and(|limit| limit != "infinity") {
        notes.push(
            "LimitAS= bounds the address space, of which the pager takes some; folding may not start".into(),
        );
    }
    Ok(DropIn { text: format!("{HEADER}\n[Service]\n{}\n", lines.join("\n")), notes })
}

/// Whether some of the files that the service sees may be read-only for it alone.
fn has_its_own_mounts(unit: &Unit) -> bool {
    let is_set = |key| unit.last(key).is_some_and(|value| !is_no(value));
    ["ProtectSystem", "ProtectHome", "ReadOnlyPaths", "ReadOnlyDirectories"].into_iter().any(is_set)
        || unit.is("DynamicUser")
}

/// Whether a path of these settings is this one or above it.
fn holds(unit: &Unit, keys: [&str; 2], path: &Path) -> bool {
    // With options, or the other end of a bind mount, behind a colon.
    let names =
        |word: &String| word.split(':').any(|name| path.starts_with(name.trim_start_matches(['-', '+'])));
    keys.iter().any(|key| unit.words(key).iter().any(names))
}

/// Whether `/tmp` is there and may not be written to.
fn may_not_write_tmp(unit: &Unit) -> bool {
    let holds = |keys| holds(unit, keys, Path::new("/tmp"));
    let is_private = unit.last("PrivateTmp").is_some_and(|value| !is_no(value)) || unit.is("DynamicUser");
    let is_read_only =
        unit.last("ProtectSystem") == Some("strict") || holds(["ReadOnlyPaths", "ReadOnlyDirectories"]);
    is_read_only && !is_private && !holds(["ReadWritePaths", "ReadWriteDirectories"])
}

/// The setting that has the service not see a path.
fn what_hides(unit: &Unit, path: &Path) -> Option<&'static str> {
    let is_home = ["/home", "/root", "/run/user"].iter().any(|home| path.starts_with(home));
    let hides_home = |value: &str| !is_no(value) && value != "read-only";
    let is_bound = || holds(unit, ["BindPaths", "BindReadOnlyPaths"], path);
    if is_home && unit.last("ProtectHome").is_some_and(hides_home) && !is_bound() {
        Some("ProtectHome")
    } else if holds(unit, ["InaccessiblePaths", "InaccessibleDirectories"], path) {
        Some("InaccessiblePaths")
    } else if holds(unit, ["TemporaryFileSystem"; 2], path) && !is_bound() {
        Some("TemporaryFileSystem")
    } else {
        None
    }
}

fn refuse(unit: &Unit, host: &Host<'_>) -> Result<(), String> {
    if unit.all("ExecStart").is_empty() {
        return Err("it starts no program (there is no ExecStart=)".into());
    }
    if let Some(key) = ["RootDirectory", "RootImage"].into_iter().find(|key| unit.last(key).is_some()) {
        return Err(format!("it lives in a root of its own ({key}=), where memfold is not: start it there by `memfold run -- ...`"));
    }
    for path in [host.memfold, host.library_dir] {
        if let Some(key) = what_hides(unit, Path::new(path)) {
            return Err(format!("it does not see {path} ({key}=): install memfold below /usr"));
        }
    }
    if unit.has_socket || !unit.all("Sockets").is_empty() {
        return Err("systemd hands it sockets, by the number of its main process (sd_listen_fds(3)), which memfold would be".into());
    }
    if unit.last("WatchdogSec").is_some_and(|time| time != "0") {
        return Err(
            "systemd watches its main process (WatchdogSec=, sd_watchdog_enabled(3)), which memfold would be"
                .into(),
        );
    }
    Ok(())
}

/// A command of `ExecStart=` with memfold before it (systemd.service(5), "Command lines").
fn wrap(command: &str, host: &Host<'_>) -> Result<String, String> {
    let start = command.find(|c| !"-:+!@|".contains(c)).unwrap_or(command.len());
    let (prefix, rest) = command.split_at(start);
    if prefix.contains('@') {
        return Err(
            "its ExecStart= gives the program another name for itself (@), which memfold cannot pass on"
                .into(),
        );
    }
    if rest.split_whitespace().any(|word| word == ";") {
        return Err("its ExecStart= has several commands in a line".into());
    }
    let mut words = rest.split_whitespace();
    let first = words.next().unwrap_or_default();
    if Path::new(first).file_name().is_some_and(|name| name == "memfold") {
        return Err("it starts memfold itself already".into());
    }
    let options: String =
        host.options.iter().map(|option| format!(" {}", quoted(&option.replace('$', "$$")))).collect();
    Ok(format!("{prefix}{} run --same-end{options} -- {rest}", host.memfold))
}

/// A word as systemd reads it again.
fn quoted(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    if escaped.is_empty() || escaped.contains([' ', '\t', '\\', '\'', '"', ';']) {
        format!("\"{escaped}\"")
    } else {
        escaped
    }
}

#[cfg(test)]
mod tests {
    use super::super::unit::tests::root;
    use super::*;

    fn composed(text: &str, options: &[&str]) -> Result<DropIn, String> {
        let root = root(&[("lib/systemd/system/x.service", &format!("[Service]\n{text}"))]);
        let unit = Unit::read(root.path(), "x", NAME).unwrap();
        let options: Vec<_> = options.iter().map(|option| (*option).to_owned()).collect();
        let host = Host {
            memfold: "/usr/bin/memfold",
            library_dir: "/usr/lib/memfold",
            options: &options,
            variables: &[],
            tier: options.iter().find_map(|option| option.strip_prefix("--tier=")),
            daemon: options.iter().any(|option| option == "--daemon"),
            has_group: true,
            is_open: false,
        };
        compose(&unit, &host)
    }

    fn settings(text: &str, options: &[&str]) -> Vec<String> {
        let dropin = composed(text, options).unwrap();
        let lines = dropin.text.lines().filter(|line| !line.starts_with(['#', '[']));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn a_plain_service_gets_a_program_before_its_program() {
        assert_eq!(
            settings("ExecStart=-/usr/bin/node app.js $OPTIONS\n", &["--cold-age=2s", "--tier=disk=/a b"]),
            [
                "ExecStart=",
                "ExecStart=-/usr/bin/memfold run --same-end --cold-age=2s \"--tier=disk=/a b\" -- /usr/bin/node app.js $OPTIONS",
                "LimitRTPRIO=10"
            ]
        );
        let limits = |limit: &str| settings(&format!("ExecStart=/bin/x\nLimitRTPRIO={limit}\n"), &[]).len();
        assert_eq!(["5", "95", "infinity"].map(limits), [3, 2, 2]);
    }

    #[test]
    fn what_confines_a_service_is_loosened_by_what_folding_needs() {
        let text = "Type=notify\nExecStart=/usr/bin/redis-server\nUser=redis\nPrivateDevices=true\nRestrictRealtime=yes\n\
                    SystemCallFilter=@system-service\nSystemCallFilter=~@privileged @resources\nNoExecPaths=/\n\
                    ProtectSystem=strict\nRestrictAddressFamilies=AF_INET\n";
        let found = settings(text, &["--daemon"]);
        for wanted in [
            "NotifyAccess=all",
            "PrivateDevices=no",
            "DevicePolicy=closed",
            "DeviceAllow=/dev/userfaultfd rw",
            "SupplementaryGroups=memfold",
            "ExecPaths=/usr/bin/memfold /usr/lib/memfold",
            "PrivateTmp=yes",
            "RestrictAddressFamilies=AF_UNIX",
        ] {
            assert!(found.iter().any(|line| line == wanted), "{wanted}: {found:?}");
        }
        assert!(found
            .iter()
            .any(|line| line.starts_with("SystemCallFilter=capget") && line.contains("userfaultfd")));
        assert!(!found.iter().any(|line| line.contains("RTPRIO")));
        assert!(composed(text, &[]).unwrap().notes[0].contains("RestrictRealtime"));
        assert!(!settings(text, &[]).iter().any(|line| line.contains("AF_UNIX")));
    }

    #[test]
    fn what_holds_the_userfaultfd_is_permitted_without_a_tier_and_what_is_never_called_is_not() {
        let calls = |options: &[&str]| {
            let found = settings("ExecStart=/bin/a\nSystemCallFilter=@basic-io\n", options);
            let line =
                found.iter().find_map(|line| line.strip_prefix("SystemCallFilter=")).unwrap().to_owned();
            line.split(' ').map(str::to_owned).collect::<Vec<_>>()
        };
        let of_io = |options: &[&str]| {
            let mut calls = calls(options);
            calls.retain(|call| call.starts_with("io_"));
            calls
        };
        let holding = ["io_destroy", "io_setup", "io_submit", "io_uring_register", "io_uring_setup"];
        assert_eq!(of_io(&[]), holding);
        let mut with_tier = [&holding[..], &["io_getevents"]].concat();
        with_tier.sort_unstable();
        assert_eq!(of_io(&["--tier=disk=/srv"]), with_tier);
        // The groups that services name do not have these everywhere (systemd 252); by one of them the pager's threads say a line.
        let found = calls(&[]);
        assert!(["mincore", "pidfd_getfd"].iter().all(|call| found.iter().any(|found| found == call)));
        assert!(found.is_sorted());
    }

    #[test]
    fn a_tier_gets_its_directory_its_calls_and_its_sockets() {
        let text = "ExecStart=/bin/a\nProtectSystem=strict\nSystemCallFilter=@system-service\nRestrictAddressFamilies=AF_UNIX\n";
        let has =
            |options: &[&str], wanted: &str| settings(text, options).iter().any(|line| line.contains(wanted));
        let (disk, network) = (["--tier=disk=/srv/a b"], ["--tier=redis://cache:6379"]);
        assert!(
            has(&disk, "ReadWritePaths=\"-/srv/a b\"")
                && has(&disk, "io_getevents")
                && !has(&disk, "AF_INET")
        );
        assert!(has(&network, "AF_UNIX AF_INET AF_INET6") && !has(&network, "ReadWritePaths"));
        assert!(!has(&[], "ReadWritePaths") && !has(&[], "io_getevents") && !has(&[], "AF_"));
    }

    #[test]
    fn what_has_mounts_of_its_own_gets_what_it_may_write_to_and_others_get_none() {
        let of_paths = |text: &str| {
            let mut found = settings(&format!("ExecStart=/bin/a\n{text}\n"), &["--tier=disk=/srv"]);
            found.retain(|line| line.contains("Paths") || line.contains("PrivateTmp"));
            found
        };
        let (tier, tmp) = ("ReadWritePaths=-/srv", "PrivateTmp=yes");
        for (text, wanted) in [
            ("", &[][..]),
            ("ProtectSystem=no", &[]),
            ("DynamicUser=yes", &[tier]),
            ("ProtectSystem=full", &[tier]),
            ("ProtectHome=read-only", &[tier]),
            ("ReadOnlyDirectories=/srv", &[tier]),
            ("ReadOnlyPaths=-/", &[tier, tmp]),
            ("ProtectSystem=strict", &[tier, tmp]),
            ("ProtectSystem=strict\nPrivateTmp=disconnected", &[tier]),
            ("ProtectSystem=strict\nReadWritePaths=/var/lib/a /tmp", &[tier]),
        ] {
            assert_eq!(of_paths(text), wanted, "{text}");
        }
    }

    #[test]
    fn clocks_that_are_kept_from_a_service_keep_the_device_from_it() {
        let device = |text: &str| settings(text, &[]).contains(&"DeviceAllow=/dev/userfaultfd rw".to_owned());
        assert!(device("ExecStart=/bin/a\nProtectClock=yes\n") && !device("ExecStart=/bin/a\n"));
    }

    #[test]
    fn rights_are_taken_and_never_given() {
        let rights = |text: &str| {
            let found = settings(&format!("ExecStart=/bin/a\nPrivateDevices=yes\n{text}"), &[]);
            found.iter().any(|line| line.starts_with("CapabilityBoundingSet=~"))
        };
        assert!(rights("") && rights("CapabilityBoundingSet=CAP_CHOWN\n"));
        assert!(
            !rights("CapabilityBoundingSet=\n")
                && !rights("CapabilityBoundingSet=CAP_CHOWN\nCapabilityBoundingSet=\n")
        );
    }

    #[test]
    fn what_forks_away_from_its_launcher_keeps_its_ways_to_stop() {
        let found = settings(
            "Type=forking\nExecStart=/usr/sbin/nginx -g 'daemon on;'\nKillMode=control-group\n",
            &[],
        );
        assert_eq!(
            found,
            [
                "ExecStart=",
                "ExecStart=/usr/bin/memfold run --same-end -- /usr/sbin/nginx -g 'daemon on;'",
                "LimitRTPRIO=10"
            ]
        );
    }

    #[test]
    fn what_cannot_be_wrapped_is_refused_with_the_reason() {
        let refused = |text| composed(text, &[]).unwrap_err();
        assert!(refused("Type=oneshot\n").contains("no program"));
        assert!(refused("ExecStart=@/bin/a b\n").contains("another name"));
        assert!(refused("ExecStart=/bin/a ; /bin/b\n").contains("several commands"));
        assert!(refused("ExecStart=/usr/bin/memfold daemon\n").contains("already"));
        assert!(refused("ExecStart=/bin/a\nWatchdogSec=5s\n").contains("WatchdogSec"));
        assert!(refused("ExecStart=/bin/a\nRootDirectory=/x\n").contains("RootDirectory"));
        assert!(
            refused("ExecStart=/bin/a\nInaccessiblePaths=-/usr/lib\n").contains("/usr/lib/memfold (Inacc")
        );
        let empty = "ExecStart=/bin/a\nProtectHome=yes\nTemporaryFileSystem=/:ro\n";
        assert!(refused(empty).contains("does not see /usr/bin/memfold (TemporaryFileSystem=)"));
        assert!(composed(&format!("{empty}BindReadOnlyPaths=/usr /lib\n"), &[]).is_ok());
        let home = |unit: &str| {
            let root = root(&[("lib/systemd/system/x.service", &format!("[Service]\n{unit}"))]);
            what_hides(&Unit::read(root.path(), "x", NAME).unwrap(), Path::new("/root/.cargo/bin/memfold"))
        };
        assert_eq!(home("ProtectHome=tmpfs"), Some("ProtectHome"));
        assert_eq!([home("ProtectHome=read-only"), home("ProtectHome=no")], [None; 2]);
    }
}
