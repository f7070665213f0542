//! Folded stacks: a line for each, its functions outermost first between semicolons, then bytes; what flame graph tools read.

use crate::profile::{By, Profile};
use std::collections::BTreeMap;

/// The lines, by name. Stacks that hold less than a byte have none.
pub fn lines(profile: &Profile, by: By) -> Vec<String> {
    let mut stacks: BTreeMap<String, f64> = BTreeMap::new();
    for stack in &profile.stacks {
        let names: Vec<String> = stack.frames().rev().map(|frame| plain(&frame.function)).collect();
        *stacks.entry(names.join(";")).or_default() += stack.bytes.by(by);
    }
    let lines = stacks.into_iter().filter(|(_, bytes)| *bytes >= 1.0);
    lines.map(|(names, bytes)| format!("{names} {}", bytes.round() as u64)).collect()
}

/// A name without what separates names.
pub(crate) fn plain(name: &str) -> String {
    name.replace([';', '\n'], ":")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::profile;

    #[test]
    fn each_stack_is_a_line_outermost_first_and_equal_ones_are_one() {
        let profile = profile(&[
            (&["alloc", "set;x", "main"], [100.0, 10.0, 0.0]),
            (&["alloc", "set;x", "main"], [50.4, 0.0, 0.0]),
            (&["alloc", "get", "main"], [7.0, 7.0, 7.0]),
        ]);
        assert_eq!(lines(&profile, By::Live), ["main;get;alloc 7", "main;set:x;alloc 150"]);
        assert_eq!(lines(&profile, By::Folded), ["main;get;alloc 7"]);
    }
}
