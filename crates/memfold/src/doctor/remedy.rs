//! What helps, said to the person who can do it: a plain user, the owner of a container, or whoever
//! installs the kernel.

use super::probe::{Container, Facts};
use super::verdict;
use serde::Serialize;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remedy {
    /// What it is good for.
    pub purpose: &'static str,
    /// What to run or write, one line each.
    pub lines: Vec<String>,
}

/// What helps here, the most useful first; empty where nothing is missing.
pub fn remedies(facts: &Facts) -> Vec<Remedy> {
    let mut all = Vec::new();
    if facts.library_error.is_some() {
        all.push(remedy(
            "the library that goes into programs",
            &[
                "install memfold's package, or in its source: make build",
                "where it lies elsewhere: export MEMFOLD_LIB=/path/to/libmemfold.so",
            ],
        ));
    }
    let unknown_to_kernel = facts.userfaultfd_device.missing && facts.userfaultfd_syscall.missing;
    if !verdict::has_access(facts) {
        match facts.container {
            _ if unknown_to_kernel && !facts.seccomp => all.push(kernel_without()),
            Some(container) => {
                all.push(access_in(container));
                // The device is here already, and only its permissions are wrong.
                all.extend(
                    access_on_host(facts).into_iter().filter(|_| facts.userfaultfd_device_mode.is_some()),
                );
            }
            None => all.extend(access_on_host(facts)),
        }
    } else if !verdict::lacking(facts).is_empty() || !facts.pagemap_scan.ok {
        all.push(kernel_too_old());
    }
    if !facts.real_time.ok {
        all.push(real_time(facts));
    }
    if facts.address_space_limit.is_some() {
        all.push(remedy(
            "room for the pager's tables and staging area in the address space",
            &["ulimit -v unlimited"],
        ));
    }
    if facts.max_map_count.is_some_and(|n| n < 65_530) {
        all.push(remedy("programs with many mappings", &["sudo sysctl vm.max_map_count=262144"]));
    }
    all
}

fn remedy(purpose: &'static str, lines: &[&str]) -> Remedy {
    Remedy { purpose, lines: lines.iter().map(|l| (*l).to_owned()).collect() }
}

fn access_on_host(facts: &Facts) -> Vec<Remedy> {
    let mut ways = Vec::new();
    if facts.userfaultfd_device_mode.is_some() {
        let again = if facts.group_exists {
            "then log in again, or `newgrp memfold` in this shell (the group is there already)"
        } else {
            "then log in again, or `newgrp memfold` in this shell"
        };
        ways.push(remedy(
            "permission for this user to make userfaultfds, once",
            &["sudo memfold setup --user $USER", again],
        ));
    }
    ways.push(remedy(
        "permission for every user instead, if there is no device or no group is wanted",
        &[
            "sudo sysctl vm.unprivileged_userfaultfd=1",
            "echo vm.unprivileged_userfaultfd=1 | sudo tee /etc/sysctl.d/60-memfold.conf   (to keep it)",
        ],
    ));
    ways
}

fn access_in(container: Container) -> Remedy {
    const GROUP: &str = "$(getent group memfold | cut -d: -f3)";
    match container {
        Container::Docker => Remedy {
            purpose: "the host's userfaultfd device in the container (Docker)",
            lines: vec![
                "docker run --device /dev/userfaultfd ...".into(),
                format!("for a user other than root: `sudo memfold setup` on the host, and --group-add {GROUP}"),
                "or, without the device: --cap-add SYS_PTRACE and a seccomp profile that allows userfaultfd".into(),
            ],
        },
        Container::Podman => remedy(
            "the host's userfaultfd device in the container (Podman)",
            &[
                "on the host, once: sudo memfold setup --user $USER, then log in again",
                "podman run --device /dev/userfaultfd --group-add keep-groups ...",
            ],
        ),
        Container::Kubernetes => remedy(
            "the node's userfaultfd device in the pod (Kubernetes)",
            &[
                "install a device plugin that offers /dev/userfaultfd (such as generic-device-plugin), and in the \
                 container's resources: limits: { <plugin's domain>/userfaultfd: 1 }",
                "for a user other than root: securityContext: { supplementalGroups: [<group of the device>] }",
                "or: securityContext: { privileged: true }; a hostPath volume alone is refused by the device cgroup",
            ],
        ),
        Container::Other => remedy(
            "the host's userfaultfd device in the container",
            &["give the container /dev/userfaultfd, readable and writable, or CAP_SYS_PTRACE"],
        ),
    }
}

fn real_time(facts: &Facts) -> Remedy {
    const PURPOSE: &str = "short faults on a busy machine (real-time priority; optional)";
    match facts.container {
        Some(Container::Docker | Container::Podman) => {
            remedy(PURPOSE, &["add --ulimit rtprio=10 (or --cap-add SYS_NICE)"])
        }
        Some(Container::Kubernetes) => {
            remedy(PURPOSE, &["securityContext: { capabilities: { add: [SYS_NICE] } }"])
        }
        _ => remedy(PURPOSE, &["sudo memfold setup --user $USER, then log in again"]),
    }
}

fn kernel_without() -> Remedy {
    remedy(
        "a kernel with userfaultfd (hardened kernels leave it out)",
        &[
            "this kernel was built without CONFIG_USERFAULTFD, or a security module hides it",
            "zgrep USERFAULTFD /proc/config.gz; grep USERFAULTFD /boot/config-$(uname -r)",
            "boot your distribution's standard kernel 6.8 or later; until then memfold is an allocator only",
        ],
    )
}

fn kernel_too_old() -> Remedy {
    remedy(
        "a kernel with UFFDIO_MOVE and PAGEMAP_SCAN (Linux 6.8 or later)",
        &[
            "Debian 12: apt-get install -t bookworm-backports linux-image-amd64",
            "Ubuntu 22.04: apt-get install linux-generic-hwe-22.04; Ubuntu 24.04 has 6.8",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::super::verdict::tests::{good, refused};
    use super::*;

    fn said(facts: &Facts) -> String {
        remedies(facts).iter().flat_map(|r| r.lines.clone()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_plain_user_is_sent_to_setup() {
        let facts = Facts { userfaultfd_device_mode: Some("600".into()), ..refused() };
        assert!(said(&facts).contains("sudo memfold setup --user"));
    }

    #[test]
    fn each_container_is_told_its_own_flags() {
        let inside = |container| said(&Facts { container: Some(container), ..refused() });
        assert!(inside(Container::Docker).contains("docker run --device /dev/userfaultfd"));
        assert!(inside(Container::Podman).contains("podman run --device /dev/userfaultfd"));
        assert!(inside(Container::Kubernetes).contains("securityContext"));
    }

    #[test]
    fn a_kernel_without_userfaultfd_is_called_so() {
        let mut facts = Facts { seccomp: false, ..refused() };
        facts.userfaultfd_device.missing = true;
        facts.userfaultfd_syscall.missing = true;
        assert!(said(&facts).contains("CONFIG_USERFAULTFD"));
    }

    #[test]
    fn an_old_kernel_is_told_which_one_to_take() {
        let facts = Facts { features: vec!["WP_ASYNC"], ..good() };
        assert!(said(&facts).contains("backports"));
    }
}
