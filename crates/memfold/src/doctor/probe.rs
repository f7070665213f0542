//! The facts: each is found by asking the kernel or by trying.

use crate::process::field;
use crate::{library, run::launch, run_dir};
use memfold_attach::rights;
use memfold_sys::pagemap::{Categories, Pagemap, Query, Run};
use memfold_sys::uffd::{Features, Userfaultfd};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// What a container gives away about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)]
pub enum Container {
    Docker,
    Podman,
    Kubernetes,
    Other,
}

/// A way to a userfaultfd: `ok`, or the error it gave.
#[derive(Clone, Debug, Serialize)]
pub struct Access {
    /// Whether it works.
    pub ok: bool,
    /// The kernel's error if it does not.
    pub error: Option<String>,
    /// Whether the error says that the kernel does not know userfaultfd.
    pub missing: bool,
}

/// Everything that `doctor` reports.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Facts {
    pub kernel: String,
    pub machine: &'static str,
    pub page_size: u64,
    pub uid: u32,
    pub userfaultfd_device: Access,
    pub userfaultfd_device_mode: Option<String>,
    pub userfaultfd_syscall: Access,
    pub unprivileged_userfaultfd: Option<u64>,
    /// Names of the features that the kernel has, of those that memfold knows; none without access.
    pub features: Vec<&'static str>,
    pub pagemap_scan: Access,
    pub real_time: Access,
    pub rtprio_limit: Option<u64>,
    pub transparent_hugepage: Option<String>,
    pub max_map_count: Option<u64>,
    pub overcommit_memory: Option<u64>,
    pub address_space_limit: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub swaps: Vec<String>,
    pub cgroup_memory_limit: Option<u64>,
    pub seccomp: bool,
    pub no_new_privileges: bool,
    pub container: Option<Container>,
    pub library: Option<PathBuf>,
    pub library_error: Option<String>,
    pub runtime_error: Option<String>,
    pub group_exists: bool,
    /// What DAMON, the kernel's monitor of accesses, offers here, or why it does not.
    pub damon: String,
    /// Whether the kernel tells of pages that were not touched (idle page tracking), or why it does not.
    pub idle_page_tracking: String,
    pub remote_eviction: Access,
    /// To whose processes this user can attach.
    pub attach: String,
}

impl Access {
    fn of<T>(result: memfold_sys::Result<T>) -> (Access, Option<T>) {
        match result {
            Ok(value) => (Access { ok: true, error: None, missing: false }, Some(value)),
            Err(e) => {
                let missing = matches!(e.0, libc::ENOSYS | libc::ENOENT | libc::ENODEV | libc::ENOTTY);
                (Access { ok: false, error: Some(words(e)), missing }, None)
            }
        }
    }
}

/// An error of the kernel's in plain words.
fn words(error: memfold_sys::Errno) -> String {
    match error.0 {
        libc::EPERM | libc::EACCES => "not permitted for this user".into(),
        libc::ENOENT | libc::ENODEV | libc::ENXIO => "not there".into(),
        libc::ENOSYS => "this kernel does not have it, or a filter of system calls hides it".into(),
        libc::ENOTTY | libc::EINVAL | libc::EOPNOTSUPP => "this kernel cannot do it".into(),
        libc::EBUSY => "in use by somebody else".into(),
        other => nix::errno::Errno::from_raw(other).desc().to_lowercase(),
    }
}

/// The features by name, those that memfold needs first.
const NAMED: [(Features, &str); 9] = [
    (Features::MOVE, "MOVE"),
    (Features::THREAD_ID, "THREAD_ID"),
    (Features::EVENT_REMAP, "EVENT_REMAP"),
    (Features::EVENT_REMOVE, "EVENT_REMOVE"),
    (Features::EVENT_UNMAP, "EVENT_UNMAP"),
    (Features::PAGEFAULT_FLAG_WP, "PAGEFAULT_FLAG_WP"),
    (Features::WP_ASYNC, "WP_ASYNC"),
    (Features::WP_UNPOPULATED, "WP_UNPOPULATED"),
    (Features::EVENT_FORK, "EVENT_FORK"),
];

/// Gathers the facts.
pub fn gather() -> Facts {
    let system = nix::sys::utsname::uname().ok();
    let (device, from_device) = Access::of(through_device());
    let (syscall, from_syscall) = Access::of(Userfaultfd::from_system_call());
    let features = from_device
        .or(from_syscall)
        .and_then(|uffd| uffd.handshake(Features::empty()).ok())
        .unwrap_or(Features::empty());
    let library = library::find();
    let number = |path: &str| fs::read_to_string(path).ok()?.trim().parse().ok();
    let status = |key| field("/proc/self/status", key);
    Facts {
        kernel: system.map(|s| s.release().to_string_lossy().into_owned()).unwrap_or_default(),
        machine: std::env::consts::ARCH,
        page_size: nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(0)
            as u64,
        uid: nix::unistd::geteuid().as_raw(),
        userfaultfd_device: device,
        userfaultfd_device_mode: device_mode(),
        userfaultfd_syscall: syscall,
        unprivileged_userfaultfd: number("/proc/sys/vm/unprivileged_userfaultfd"),
        features: NAMED.iter().filter(|(f, _)| features.contains(*f)).map(|(_, name)| *name).collect(),
        pagemap_scan: Access::of(scan()).0,
        real_time: Access::of(memfold_bench::process::try_real_time()).0,
        rtprio_limit: limit(libc::RLIMIT_RTPRIO),
        transparent_hugepage: chosen("/sys/kernel/mm/transparent_hugepage/enabled"),
        max_map_count: number("/proc/sys/vm/max_map_count"),
        overcommit_memory: number("/proc/sys/vm/overcommit_memory"),
        address_space_limit: limit(libc::RLIMIT_AS),
        memory_bytes: crate::process::field_bytes("/proc/meminfo", "MemTotal"),
        swaps: swaps(),
        cgroup_memory_limit: cgroup_limit(),
        seccomp: status("Seccomp").is_some_and(|v| v != "0"),
        no_new_privileges: status("NoNewPrivs").is_some_and(|v| v != "0"),
        container: container(),
        library_error: library.as_ref().err().map(|e| format!("{e:#}")),
        library: library.ok(),
        runtime_error: run_dir::RunDir::create().err().map(|e| format!("{e:#}")),
        damon: damon(),
        idle_page_tracking: idle_page_tracking(),
        remote_eviction: Access::of(memfold_daemon::remote::try_to_evict(memfold_sys::thread::parent_pid()))
            .0,
        attach: attach(number("/proc/sys/kernel/yama/ptrace_scope")),
        group_exists: matches!(nix::unistd::Group::from_name(crate::setup::GROUP), Ok(Some(_))),
    }
}

/// To whose processes this user can attach, where Yama keeps to this scope (Documentation/admin-guide/LSM/Yama.rst).
fn attach(scope: Option<u64>) -> String {
    if cfg!(not(target_arch = "x86_64")) {
        return "to none: the agent is for x86-64".into();
    }
    if rights::may_ask_for_forks(std::process::id()) {
        return "to any process".into();
    }
    match (rights::helper().is_some(), scope.unwrap_or(0)) {
        (false, _) => "to none: `sudo memfold setup --user NAME` lets this user attach to their own".into(),
        (true, 0) => "to processes of this user".into(),
        (true, 1) => "to what `memfold run` starts; to other processes of this user where kernel.yama.ptrace_scope is 0, not 1".into(),
        (true, scope) => format!("to none, as kernel.yama.ptrace_scope is {scope}; 0 would let this user attach to their own"),
    }
}

/// Makes a userfaultfd as a folded program does: from an open descriptor of the device.
fn through_device() -> memfold_sys::Result<Userfaultfd> {
    let device = launch::open_device().map_err(|e| memfold_sys::Errno(e as i32))?;
    Userfaultfd::from_device(std::os::fd::AsRawFd::as_raw_fd(&device))
}

/// Scans one page of this process.
fn scan() -> memfold_sys::Result<()> {
    let pagemap = Pagemap::open()?;
    let here = (&pagemap as *const Pagemap as usize) & !(memfold_sys::PAGE_SIZE - 1);
    let query = Query {
        all: Categories::PRESENT,
        none: Categories::empty(),
        report: Categories::PRESENT,
        protect: false,
    };
    pagemap.scan(here, here + memfold_sys::PAGE_SIZE, &query, &mut [Run::EMPTY]).map(drop)
}

/// Asks without writing: whoever uses it is left alone.
fn damon() -> String {
    let sysfs = Path::new(memfold_daemon::damon::SYSFS);
    match (memfold_daemon::damon::monitors(sysfs), memfold_daemon::damon::operations(sysfs)) {
        (Err(refusal), _) => refusal.to_string(),
        (Ok(0), _) => "free to use, by root".into(),
        (Ok(_), Some(operations)) => format!("in use by somebody else; it has {}", operations.join(", ")),
        (Ok(_), None) => "in use by somebody else".into(),
    }
}

/// Asks without writing: one mark of a page is for all who use it.
fn idle_page_tracking() -> String {
    match fs::metadata(memfold_daemon::observe::Places::default().idle) {
        Ok(_) => "free to use, by root".into(),
        Err(error) => memfold_daemon::damon::Refusal::NoIdleTracking(error).to_string(),
    }
}

fn device_mode() -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata("/dev/userfaultfd").ok()?;
    Some(format!("{:o} owner {} group {}", meta.mode() & 0o7777, meta.uid(), meta.gid()))
}

/// A resource limit; `None` for no limit.
fn limit(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut value = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `value` is valid for the call.
    let result = unsafe { libc::getrlimit(resource, &mut value) };
    (result == 0 && value.rlim_cur != libc::RLIM_INFINITY).then_some(value.rlim_cur)
}

/// The word in brackets, as in `always [madvise] never`.
fn chosen(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

fn swaps() -> Vec<String> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    text.lines().skip(1).filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// The lowest memory limit of the control groups that this process is in, of either version.
fn cgroup_limit() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(group_limit).min()
}

/// The limit of one line of `/proc/self/cgroup`, and of the groups above it. Numbers near 2^63 mean none.
fn group_limit(line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        c if c.split(',').any(|c| c == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    let group = Path::new(path.trim_start_matches('/'));
    let limits = group.ancestors().filter_map(|g| {
        fs::read_to_string(Path::new(root).join(g).join(file)).ok()?.trim().parse::<u64>().ok()
    });
    limits.filter(|l| *l < 1 << 60).min()
}

fn container() -> Option<Container> {
    let marker = fs::read_to_string("/run/systemd/container").unwrap_or_default();
    let variable = std::env::var("container").unwrap_or_default();
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Some(Container::Kubernetes);
    }
    if Path::new("/run/.containerenv").exists() || marker.trim() == "podman" || variable == "podman" {
        return Some(Container::Podman);
    }
    if Path::new("/.dockerenv").exists() || marker.trim() == "docker" {
        return Some(Container::Docker);
    }
    (!marker.is_empty() || !variable.is_empty()).then_some(Container::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_that_every_linux_has_are_found() {
        let facts = gather();
        assert!(facts.kernel.starts_with(|c: char| c.is_ascii_digit()), "{}", facts.kernel);
        assert!(facts.page_size >= 4096 && facts.memory_bytes > Some(64 << 20));
        assert!(facts.userfaultfd_device.ok == facts.userfaultfd_device.error.is_none());
    }

    #[test]
    fn a_line_of_another_controller_has_no_memory_limit() {
        assert_eq!(group_limit("5:cpuset:/x"), None);
        assert_eq!(group_limit("nonsense"), None);
    }
}
