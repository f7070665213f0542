//! From facts to a judgement: line by line, and as a whole.

use super::probe::{Access, Facts};
use crate::text::{self, plain};
use serde::Serialize;

/// How good one fact is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Good,
    /// Neither good nor bad.
    Note,
    /// Folding works, but less well.
    Weak,
    /// Folding cannot work.
    Bad,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// How good it is.
    pub level: Level,
    /// What it is about.
    pub name: &'static str,
    /// What was found.
    pub found: String,
}

/// The features without which no program is folded: what the engine asks its userfaultfd for.
/// Write tracking (`WP_ASYNC`) is not among them: without it the engine finds out by setting aside alone.
pub const NEEDED: [&str; 6] =
    ["MOVE", "THREAD_ID", "EVENT_REMAP", "EVENT_REMOVE", "EVENT_UNMAP", "PAGEFAULT_FLAG_WP"];

/// Whether some way to a userfaultfd works.
pub fn has_access(facts: &Facts) -> bool {
    facts.userfaultfd_device.ok || facts.userfaultfd_syscall.ok
}

/// The needed features that the kernel lacks; none where there is no access to ask it.
pub fn lacking(facts: &Facts) -> Vec<&'static str> {
    let lacks = |name: &&str| has_access(facts) && !facts.features.contains(name);
    NEEDED.iter().filter(|n| lacks(n)).copied().collect()
}

/// Why programs cannot be folded here, in one sentence; `None` if they can.
pub fn hindrance(facts: &Facts) -> Option<String> {
    if facts.page_size != memfold_sys::PAGE_SIZE as u64 {
        return Some(format!(
            "this kernel has pages of {} bytes, and memfold folds pages of 4096",
            facts.page_size
        ));
    }
    if let Some(error) = &facts.library_error {
        return Some(error.clone());
    }
    if !has_access(facts) {
        return Some("this user may not make a userfaultfd".into());
    }
    match lacking(facts) {
        missing if !missing.is_empty() => {
            Some(format!("this kernel's userfaultfd lacks {}", missing.join(", ")))
        }
        _ if !facts.pagemap_scan.ok => Some("this kernel lacks PAGEMAP_SCAN (Linux 6.7)".into()),
        _ => facts.runtime_error.clone(),
    }
}

/// The report, line by line.
pub fn lines(facts: &Facts) -> Vec<Line> {
    let line = |level, name, found: String| Line { level, name, found };
    let either = |ok, otherwise| if ok { Level::Good } else { otherwise };
    let number = |n: Option<u64>| n.map_or("unknown".into(), |n| n.to_string());
    let access = has_access(facts);
    let other_way = if access { Level::Note } else { Level::Bad };
    let lacking = lacking(facts);
    let library = facts.library.as_ref().map(|l| l.display().to_string());
    vec![
        line(Level::Note, "kernel", format!("{} on {}", facts.kernel, facts.machine)),
        line(
            either(facts.page_size == memfold_sys::PAGE_SIZE as u64, Level::Bad),
            "page size",
            text::bytes(facts.page_size),
        ),
        line(
            either(library.is_some(), Level::Bad),
            "library",
            library.or(facts.library_error.clone()).unwrap_or_default(),
        ),
        line(
            either(facts.runtime_error.is_none(), Level::Bad),
            "control directory",
            facts.runtime_error.clone().unwrap_or("usable".into()),
        ),
        line(either(facts.userfaultfd_device.ok, other_way), "/dev/userfaultfd", device(facts)),
        line(
            either(facts.userfaultfd_syscall.ok, other_way),
            "userfaultfd(2)",
            shown(&facts.userfaultfd_syscall),
        ),
        line(Level::Note, "vm.unprivileged_userfaultfd", number(facts.unprivileged_userfaultfd)),
        line(
            if !access { Level::Note } else { either(lacking.is_empty(), Level::Bad) },
            "features",
            if access { features(facts, &lacking) } else { "unknown without access".into() },
        ),
        line(either(facts.pagemap_scan.ok, Level::Bad), "PAGEMAP_SCAN", shown(&facts.pagemap_scan)),
        line(either(facts.real_time.ok, Level::Weak), "real-time priority", real_time(facts)),
        line(
            Level::Note,
            "transparent huge pages",
            facts.transparent_hugepage.clone().unwrap_or("not in this kernel".into()),
        ),
        line(Level::Note, "DAMON", plain(&facts.damon)),
        line(Level::Note, "idle page tracking", plain(&facts.idle_page_tracking)),
        line(Level::Note, "remote eviction", shown(&facts.remote_eviction)),
        line(Level::Note, "attach", facts.attach.clone()),
        line(
            either(facts.max_map_count.is_none_or(|n| n >= 65_530), Level::Weak),
            "vm.max_map_count",
            number(facts.max_map_count),
        ),
        line(
            either(facts.overcommit_memory != Some(2), Level::Weak),
            "vm.overcommit_memory",
            number(facts.overcommit_memory),
        ),
        line(
            either(facts.address_space_limit.is_none(), Level::Weak),
            "address space limit",
            facts.address_space_limit.map_or("none".into(), text::bytes),
        ),
        line(Level::Note, "memory", facts.memory_bytes.map_or("unknown".into(), text::bytes)),
        line(
            Level::Note,
            "swap",
            if facts.swaps.is_empty() { "none".into() } else { facts.swaps.join(", ") },
        ),
        line(
            Level::Note,
            "cgroup memory limit",
            facts.cgroup_memory_limit.map_or("none".into(), text::bytes),
        ),
        line(Level::Note, "seccomp filter", if facts.seccomp { "yes" } else { "no" }.into()),
        line(Level::Note, "no new privileges", if facts.no_new_privileges { "yes" } else { "no" }.into()),
        line(
            Level::Note,
            "container",
            facts.container.map_or("none seen".into(), |c| format!("{c:?}").to_lowercase()),
        ),
    ]
}

fn shown(access: &Access) -> String {
    access.error.clone().unwrap_or("works".into())
}

fn device(facts: &Facts) -> String {
    match &facts.userfaultfd_device_mode {
        Some(mode) => format!("{}, mode {mode}", shown(&facts.userfaultfd_device)),
        None => shown(&facts.userfaultfd_device),
    }
}

fn features(facts: &Facts, lacking: &[&str]) -> String {
    match lacking {
        [] => facts.features.join(" "),
        _ => format!("{}; lacks {}", facts.features.join(" "), lacking.join(" ")),
    }
}

fn real_time(facts: &Facts) -> String {
    let limit = facts.rtprio_limit.map_or("none".into(), |n| n.to_string());
    match &facts.real_time.error {
        None => "permitted".into(),
        Some(error) => format!("{error} (its limit is {limit}); faults take longer on a busy machine"),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A machine on which everything works.
    pub fn good() -> Facts {
        let mut facts = super::super::probe::gather();
        let works = Access { ok: true, error: None, missing: false };
        facts.page_size = 4096;
        facts.userfaultfd_device = works.clone();
        facts.userfaultfd_syscall = works.clone();
        facts.pagemap_scan = works.clone();
        facts.real_time = works;
        facts.features = NEEDED.to_vec();
        facts.library = Some("/usr/lib/memfold/libmemfold.so".into());
        facts.library_error = None;
        facts.runtime_error = None;
        facts.container = None;
        facts
    }

    /// The same machine for a user who may not make a userfaultfd.
    pub fn refused() -> Facts {
        let refused = Access { ok: false, error: Some("not permitted for this user".into()), missing: false };
        Facts {
            userfaultfd_device: refused.clone(),
            userfaultfd_syscall: refused,
            features: vec![],
            ..good()
        }
    }

    #[test]
    fn one_way_to_a_userfaultfd_is_enough() {
        let mut facts = refused();
        assert!(hindrance(&facts).unwrap().contains("may not make a userfaultfd"));
        facts.userfaultfd_device.ok = true;
        facts.features = NEEDED.to_vec();
        assert_eq!(hindrance(&facts), None);
    }

    #[test]
    fn a_needed_feature_that_is_missing_is_named() {
        let facts = Facts { features: NEEDED[1..].to_vec(), ..good() };
        assert!(hindrance(&facts).unwrap().contains("MOVE"));
        assert!(lines(&facts).iter().any(|l| l.level == Level::Bad && l.found.contains("lacks MOVE")));
    }

    #[test]
    fn no_line_is_bad_where_everything_works() {
        assert_eq!(hindrance(&good()), None);
        assert!(lines(&good()).iter().all(|l| l.level != Level::Bad));
    }
}
