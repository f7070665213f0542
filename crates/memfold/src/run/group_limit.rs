//! What a run makes of the limit that control groups set on memory here: it says which, and folds smaller programs where it is small.
//!
//! What it is not: keeping to it, which each process does by itself (the pager's `evict::group`).

use crate::options::{variable, PagerOptions};
use crate::text;
use memfold_pager::config::Setting;
use std::ffi::OsString;

/// Programs with less than one part in so many of the limit are left alone, and with less than so many bytes in any case.
const PART: u64 = 32;
const LEAST: u64 = 4 << 20;

/// Says which limit the program is kept below, if it will be.
pub fn tell(settings: &PagerOptions) {
    let chosen = settings.get(Setting::ResidentLimit).map(OsString::from);
    let chosen = chosen.or_else(|| variable(Setting::ResidentLimit.variable()));
    if chosen.is_some_and(|chosen| chosen != "group") {
        return;
    }
    if let Ok(limit) = memfold_sys::cgroup::memory_limit(None) {
        text::say(format_args!(
            "control groups limit memory to {} here: as that comes near, more is folded, and sooner (`--resident-limit none` has it otherwise)",
            text::bytes(limit)
        ));
    }
}

/// Has programs folded from less on, unless the user has said from how much: several that are left alone could fill a small group.
pub fn settle(settings: &mut PagerOptions) {
    if settings.get(Setting::StartAt).is_some() || variable(Setting::StartAt.variable()).is_some() {
        return;
    }
    let limit = memfold_sys::cgroup::memory_limit(None).ok();
    if let Some(start_at) = limit.and_then(start_at) {
        settings.set(Setting::StartAt, start_at.to_string());
    }
}

/// From how many bytes on programs are folded under this limit, where that is less than by default.
fn start_at(limit: u64) -> Option<u64> {
    let start_at = (limit / PART).max(LEAST);
    (start_at < Setting::StartAt.default_value()).then_some(start_at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_folded_from_less_on_where_several_could_fill_the_group() {
        const MIB: u64 = 1 << 20;
        let limits = [16 * MIB, 160 * MIB, 512 * MIB, 64 << 30];
        assert_eq!(limits.map(start_at), [Some(4 * MIB), Some(5 * MIB), None, None]);
    }

    #[test]
    fn what_the_user_has_said_holds() {
        let mut settings = PagerOptions::default();
        settings.set(Setting::StartAt, "7");
        settle(&mut settings);
        assert_eq!(settings.get(Setting::StartAt), Some("7"));
    }
}
