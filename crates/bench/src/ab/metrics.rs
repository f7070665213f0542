//! The figures of one run, by name: the columns of `all_runs_long.csv` and the metrics of `aggregate.csv`.
//!
//! Names that begin with `pager_` are those of the process-pager prototype where it has the same figure.

use serde::{Deserialize, Serialize};

macro_rules! metrics {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The figures of one run; those that an arm does not have are `None`.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        pub struct Metrics {
            $($(#[doc = $doc])+ pub $name: Option<f64>,)+
        }

        impl Metrics {
            /// Each name with what it means.
            pub const MEANINGS: &'static [(&'static str, &'static str)] =
                &[$((stringify!($name), concat!($($doc),+))),+];

            /// Each name with its value.
            pub fn values(&self) -> Vec<(&'static str, Option<f64>)> {
                vec![$((stringify!($name), self.$name)),+]
            }
        }
    };
}

metrics! {
    /// Units of work done in a second.
    units_per_s,
    /// Units of work done.
    units,
    /// Time of the run, ms.
    elapsed_ms,
    /// Median time of a unit, ns.
    unit_p50_ns,
    /// 95th percentile of the time of a unit, ns.
    unit_p95_ns,
    /// 99th percentile of the time of a unit, ns.
    unit_p99_ns,
    /// 99.9th percentile of the time of a unit, ns.
    unit_p999_ns,
    /// CPU time of the process outside the kernel in all its life, s (wait4). A daemon's is in pager_daemon_cpu_pct_total only.
    host_user_s,
    /// CPU time of the process in the kernel in all its life, s (wait4).
    host_system_s,
    /// Faults that needed no device (wait4).
    host_minor_faults,
    /// Faults that did (wait4).
    host_major_faults,
    /// Most memory that was resident in all its life, bytes (VmHWM).
    host_peak_rss_bytes,
    /// Resident memory of the process, mean over the run, bytes.
    resident_mean_bytes,
    /// Memory that the process takes wherever it is (resident, and in zram), mean over the run, bytes.
    footprint_mean_bytes,
    /// The same at the end of the run, bytes.
    footprint_end_bytes,
    /// Anonymous memory of the daemon at the end of the run, bytes; not in the footprint, since one daemon is there for many processes.
    daemon_own_bytes,
    /// Mean over the run of memory that was untouched for the cold age, by the workload's own account, bytes.
    cold_bytes_mean,
    /// Footprint of the baseline's run beside it minus this footprint, bytes.
    saved_bytes_mean,
    /// The same as a share of the baseline's footprint, per cent.
    saved_pct_of_resident,
    /// Pages evicted, mean over the run, as a share of the cold bytes, per cent.
    folded_pct_of_cold,
    /// Seconds from the begin of the run until half of what is cold then, by the workload's own account, is set aside or evicted for the
    /// first time; empty where that never came, and counted as longer than any time in the aggregate.
    half_of_cold_folded_s,
    /// Memory that the store takes, gaps and tables included, as a share of what is evicted, means over the run, per cent.
    pager_store_pct_of_evicted,
    /// Time that threads waited for the pager, as a share of the run, per cent.
    stall_pct,
    /// 95th percentile of a thread's wait on a page that the pager has, ns.
    pager_fault_missing_p95_ns,
    /// 99th percentile of it, ns.
    pager_fault_missing_p99_ns,
    /// 95th percentile of the work on a restore (look-up, decompression, mapping) of a page that somebody waits for, ns.
    pager_restore_wall_p95_ns,
    /// 99th percentile of it, ns.
    pager_restore_wall_p99_ns,
    /// CPU time of folding, in threads of the process and in the daemon, as a share of the run, per cent of one CPU.
    pager_daemon_cpu_pct_total,
    /// Of it what finding cold pages and compressing them takes in the process.
    pager_bg_cpu_pct,
    /// Of it what serving touches takes in the process.
    pager_fault_cpu_pct,
    /// Pages compressed into the store, those of one repeated word among them.
    pager_compress_success,
    /// Waits on pages that the pager had.
    pager_faults_missing,
    /// First touches of fresh memory that the pager had to serve.
    pager_faults_first_touch,
    /// Pages brought back from the store.
    pager_restore_success,
    /// Pages touched while set aside, moved back without a codec.
    pager_second_chance,
    /// Pages brought ahead of their touch, because they came back with others before or recur by time.
    pager_foreseen,
    /// Of those the ones that were touched, as samples tell.
    pager_foreseen_hit,
    /// Of those the ones that were not.
    pager_foreseen_wasted,
    /// Pages given back to the kernel by the process itself; with memfold, every compressed page.
    pager_client_evict_success,
    /// Mappings that came under the pager's management.
    pager_range_add_msgs,
    /// Unmappings of managed memory.
    pager_range_del_msgs,
    /// Most pages under management.
    pager_pages_tracked_peak,
    /// Times that the stall budget held eviction back.
    pager_budget_holds,
    /// CPU time of the thread that has the kernel swap out, the kernel's compression included, per cent of one CPU.
    zram_evict_cpu_pct,
}

#[cfg(test)]
mod tests {
    use super::Metrics;

    #[test]
    fn the_prototypes_names_are_kept() {
        let names: Vec<&str> = Metrics::MEANINGS.iter().map(|(name, _)| *name).collect();
        for name in [
            "pager_fault_missing_p95_ns",
            "pager_fault_missing_p99_ns",
            "pager_restore_wall_p95_ns",
            "pager_restore_wall_p99_ns",
            "pager_daemon_cpu_pct_total",
            "pager_bg_cpu_pct",
            "pager_fault_cpu_pct",
            "pager_compress_success",
            "pager_faults_missing",
            "pager_restore_success",
            "pager_client_evict_success",
            "pager_range_add_msgs",
            "pager_range_del_msgs",
            "pager_pages_tracked_peak",
            "saved_bytes_mean",
            "saved_pct_of_resident",
        ] {
            assert!(names.contains(&name), "{name} is missing");
        }
    }
}
