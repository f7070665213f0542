//! What a run ran on: enough to judge whether two results may be compared.

use serde::{Deserialize, Serialize};
use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, the kernel, the program and the moment of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// CPU model.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Memory of the machine, bytes.
    pub memory_bytes: u64,
    /// When transparent huge pages are given, as the kernel's own file has it.
    pub transparent_huge_pages: String,
    /// `vm.page-cluster`: log2 of the pages that swap-in reads at once, where it reads ahead at all.
    pub page_cluster: String,
    /// Version of memfold.
    pub version: String,
    /// Commit of the source tree that the run was started in, `-dirty` where it was changed; `None` outside one.
    pub commit: Option<String>,
    /// When the run began, seconds since 1970 (UTC).
    pub started_unix_s: u64,
    /// The command line.
    pub command: Vec<String>,
}

impl Manifest {
    /// Of this process, now.
    pub fn gather() -> Manifest {
        let cpuinfo = line("/proc/cpuinfo");
        let cpu = cpuinfo
            .lines()
            .find_map(|l| {
                l.strip_prefix("model name")?.split_once(':').map(|(_, name)| name.trim().to_owned())
            })
            .unwrap_or_else(|| std::env::consts::ARCH.to_owned());
        Manifest {
            host: line("/proc/sys/kernel/hostname"),
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu,
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: crate::kilobytes(&line("/proc/meminfo"), "MemTotal:"),
            transparent_huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled"),
            page_cluster: line("/proc/sys/vm/page-cluster"),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: commit(),
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            command: std::env::args().collect(),
        }
    }
}

fn line(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

fn commit() -> Option<String> {
    let output = Command::new("git")
        .args(["describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"])
        .output()
        .ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described() {
        let manifest = Manifest::gather();
        assert!(!manifest.kernel.is_empty() && !manifest.cpu.is_empty());
        assert!(manifest.memory_bytes > 1 << 20 && manifest.cpus > 0);
    }
}
