//! What a run ran on: enough to judge whether two results may be compared.

use procfs::{CpuInfo, Current, Meminfo};
use serde::{Deserialize, Serialize};
use std::fs;
use std::sync::OnceLock;
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
    /// Commit of the sources that the executable was built from, `-dirty` where they were changed; `None` where they were no
    /// working copy of git's.
    pub commit: Option<String>,
    /// When the run began, seconds since 1970 (UTC).
    pub started_unix_s: u64,
    /// The command line.
    pub command: Vec<String>,
}

impl Manifest {
    /// Of this process, now.
    pub fn gather() -> Manifest {
        let cpu = CpuInfo::current().ok().and_then(|info| info.model_name(0).map(str::to_owned));
        Manifest {
            host: line("/proc/sys/kernel/hostname"),
            kernel: line("/proc/sys/kernel/osrelease"),
            cpu: cpu.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: Meminfo::current().map_or(0, |memory| memory.mem_total),
            transparent_huge_pages: line("/sys/kernel/mm/transparent_hugepage/enabled"),
            page_cluster: line("/proc/sys/vm/page-cluster"),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            commit: COMMIT.get().copied().flatten().map(str::to_owned),
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            command: std::env::args().collect(),
        }
    }
}

fn line(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

/// What [`built_from`] was told.
static COMMIT: OnceLock<Option<&'static str>> = OnceLock::new();

/// Says of which commit this executable was built, before the first manifest is gathered. Only the executable knows: a
/// library that kept it would have to be compiled again for every commit, and all that use it. The first word stands.
pub fn built_from(commit: Option<&'static str>) {
    COMMIT.get_or_init(|| commit);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_described_and_the_commit_is_the_one_that_the_executable_told() {
        built_from(Some("5eed-dirty"));
        built_from(None);
        let manifest = Manifest::gather();
        assert!(!manifest.kernel.is_empty() && !manifest.cpu.is_empty());
        assert!(manifest.memory_bytes > 1 << 20 && manifest.cpus > 0);
        // The test runs in a working copy that has another.
        assert_eq!(manifest.commit.as_deref(), Some("5eed-dirty"));
    }
}
