//! Who may ask the kernel for reports of forks: `CAP_SYS_PTRACE` in the initial user namespace (userfaultfd(2), user_namespaces(7)).

use std::fs;
use std::os::unix::fs::MetadataExt;

/// The capability, as a bit of a mask.
const CAP_SYS_PTRACE: u64 = 1 << 19;
/// The number of the initial user namespace (`PROC_USER_INIT_INO` of include/linux/proc_ns.h).
const INITIAL: u64 = 0xEFFF_FFFD;

/// Whether the process may.
pub fn may_ask_for_forks(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    // Where there are no user namespaces, there is no such file.
    let initial = fs::metadata(format!("/proc/{pid}/ns/user")).map_or(true, |link| link.ino() == INITIAL);
    initial && has(&status)
}

fn has(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0) & CAP_SYS_PTRACE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_is_read_from_the_capabilities_in_effect() {
        assert!(has("CapPrm:\t0000000000000000\nCapEff:\t000001ffffffffff\n"));
        assert!(!has("CapPrm:\t000001ffffffffff\nCapEff:\t0000000000000000\n"));
        assert!(!has(""));
        assert!(!may_ask_for_forks(u32::MAX));
    }
}
