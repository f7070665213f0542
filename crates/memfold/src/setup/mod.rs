//! Letting ordinary users fold their own programs: a group that may open `/dev/userfaultfd`, real-time priority for it, and a program by which
//! it has forks reported, so that its members may attach to what runs.
//!
//! [`plan`] decides what is missing, as a list of changes, from what [`machine`] sees; [`machine`] also
//! makes the changes. What was there before is remembered in a file, so that the way back is exact.
//!
//! Invariants: doing it twice changes nothing the second time; files that memfold did not write are
//! neither overwritten nor removed; a file is there as a whole or not at all, in a directory that only root can change.

pub mod handshake;
pub mod machine;
mod place;
pub mod plan;

/// The group whose members may fold their programs.
pub const GROUP: &str = "memfold";
/// The udev rule, which gives the device to the group at every start of the machine.
pub const RULES: &str = "/etc/udev/rules.d/60-memfold.rules";
/// The limits that pam_limits(8) gives to members when they log in.
pub const LIMITS: &str = "/etc/security/limits.d/60-memfold.conf";
/// What was there before.
pub const STATE: &str = "/var/lib/memfold/setup.json";
/// The device.
pub const DEVICE: &str = "/dev/userfaultfd";

/// First line of every file that setup writes, and how it knows them again.
pub const HEADER: &str = "# Written by `memfold setup`; `memfold setup --remove` removes it.";
