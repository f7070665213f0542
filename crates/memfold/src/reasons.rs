//! Why what is resident of a process is not folded, in words.

use crate::text::{self, bytes, percent};
use memfold_inspect::Inventory;
use memfold_pager::why::Why;

/// So many reasons are named in one line.
const NAMED: usize = 4;

/// Rows of a table: reason, bytes, share of what is resident. Only of what there is, the most first.
pub fn rows(inventory: &Inventory) -> Vec<Vec<String>> {
    let share = |part| format!("{:.1} %", percent(part, inventory.resident_bytes));
    let row = |(why, part): (Why, u64)| vec![why.words().to_owned(), bytes(part), share(part)];
    inventory.reasons.largest().into_iter().map(row).collect()
}

/// The short name of a reason.
pub fn name(why: Why) -> String {
    match why {
        Why::Own => "memfold's own".to_owned(),
        why => why.name().replace('_', " "),
    }
}

/// The reasons that there are by their short names, and bytes, the most first.
pub fn short(inventory: &Inventory) -> impl Iterator<Item = (String, u64)> {
    inventory.reasons.largest().into_iter().map(move |(why, part)| (name(why), part))
}

/// One line: how much was resident, and the most of it by reason.
pub fn line(inventory: &Inventory) -> String {
    let named: Vec<_> =
        short(inventory).take(NAMED).map(|(name, part)| format!("{} {name}", bytes(part))).collect();
    let rest = short(inventory).skip(NAMED).fold(0u64, |sum, (_, part)| sum.saturating_add(part));
    let rest = if rest == 0 { String::new() } else { format!(", {} for other reasons", bytes(rest)) };
    format!(
        "{} resident {} after its start: {}{rest}",
        bytes(inventory.resident_bytes),
        text::nanos(inventory.taken_at_ns),
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::snapshot;
    use memfold_inspect::fixture;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn what_was_counted_reads_back_by_reason_and_what_never_was_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        fixture::write(&path, |_| {});
        assert_eq!(snapshot(&path).unwrap().inventory, None);
        fixture::write(&path, |page| {
            page.started_ns.store(1_000_000_000, Relaxed);
            page.inventory.taken_ns.store(3_000_000_000, Relaxed);
            page.inventory.resident_bytes.store(4 << 20, Relaxed);
            page.inventory.bytes[Why::Young as usize].store(1 << 20, Relaxed);
            page.inventory.bytes[Why::Written as usize].store(3 << 20, Relaxed);
        });
        let inventory = snapshot(&path).unwrap().inventory.unwrap();
        assert_eq!(inventory.sum_bytes, 4 << 20);
        assert_eq!(rows(&inventory)[0][1..], ["3.00 MiB", "75.0 %"]);
        assert_eq!(
            line(&inventory),
            "4.00 MiB resident 2.00 s after its start: 3.00 MiB written, 1.00 MiB young"
        );
        let json = serde_json::to_value(&inventory).unwrap();
        assert_eq!((&json["reasons"]["written"], &json["reasons"]["pinned"]), (&(3 << 20).into(), &0.into()));
        // A page may say anything.
        fixture::write(&path, |page| {
            page.inventory.taken_ns.store(1, Relaxed);
            page.inventory.bytes.iter().for_each(|bytes| bytes.store(u64::MAX, Relaxed));
        });
        let nonsense = snapshot(&path).unwrap().inventory.unwrap();
        assert_eq!(nonsense.sum_bytes, u64::MAX);
        assert_eq!(line(&nonsense).matches("other reasons").count(), 1);
    }
}
