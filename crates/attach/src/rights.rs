//! Who may ask the kernel for reports of forks: `CAP_SYS_PTRACE` in the initial user namespace (userfaultfd(2), user_namespaces(7)). Of that capability
//! a small program has nothing but this, for ordinary users; and who may make a userfaultfd.

use crate::proc;
use memfold_sys::file::{self, Fd};
use memfold_sys::uffd::DEVICE;
use nix::unistd::{access, AccessFlags};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where `memfold setup` installs the program that makes the handshake for ordinary users.
pub const HELPER: &str = "/usr/local/lib/memfold-setup/memfold-handshake";
/// The variable that names another one.
pub const HELPER_VARIABLE: &str = "MEMFOLD_HANDSHAKE";
/// The variable with the number of a descriptor of the device that this process was given.
pub const DEVICE_VARIABLE: &str = "MEMFOLD_UFFD_FD";

/// The capability, as a bit of a mask.
const CAP_SYS_PTRACE: u64 = 1 << 19;
/// The number of the initial user namespace (`PROC_USER_INIT_INO` of include/linux/proc_ns.h).
const INITIAL: u64 = 0xEFFF_FFFD;

/// Whether the process may.
pub fn may_ask_for_forks(pid: u32) -> bool {
    let status = proc::text(&format!("/proc/{pid}/status")).unwrap_or_default();
    // Where there are no user namespaces, there is no such file.
    let initial = fs::metadata(format!("/proc/{pid}/ns/user")).map_or(true, |link| link.ino() == INITIAL);
    initial && has(&status)
}

/// The program that makes the handshake for this user, where there is one and this user may execute it.
pub fn helper() -> Option<PathBuf> {
    let named = std::env::var_os(HELPER_VARIABLE).filter(|path| !path.is_empty());
    let path = named.map_or(PathBuf::from(HELPER), PathBuf::from);
    access(&path, AccessFlags::X_OK).is_ok().then_some(path)
}

/// The number of the device's descriptor, as it was passed to this process by a launcher above it or by a service manager that may open it.
pub fn inherited_device() -> Option<i32> {
    let number: i32 = std::env::var(DEVICE_VARIABLE).ok()?.parse().ok()?;
    let link = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    (link == Path::new(DEVICE.to_str().ok()?)).then_some(number)
}

/// The device, open, if this process may open it or was given it.
pub fn device() -> Option<Fd> {
    let inherited = inherited_device().and_then(|number| {
        // SAFETY: no memory involved, and the kernel just made the descriptor for us.
        unsafe {
            let copy = memfold_sys::syscall!(fcntl, number, libc::F_DUPFD_CLOEXEC, 3);
            copy.ok().map(|number| Fd::from_raw(number as i32))
        }
    });
    inherited.or_else(|| file::open(DEVICE, libc::O_RDWR, 0).ok())
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
