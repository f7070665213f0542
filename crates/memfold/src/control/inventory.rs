//! Why what is resident of a process is not folded, as it was counted last.

use crate::text::{self, bytes, percent};
use pager::control::ControlPage;
use pager::why::{Why, REASONS};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::sync::atomic::Ordering::Relaxed;

/// So many reasons are named in one line.
const NAMED: usize = 4;

/// The resident bytes of a process by reason; see `pager::why::Why` for each.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Inventory {
    /// When it was taken, from the time on at which the process made its page, ns.
    pub taken_at_ns: u64,
    /// How long that took, ns.
    pub took_ns: u64,
    /// Resident bytes as the kernel counted them at that time.
    pub resident_bytes: u64,
    /// The sum of the reasons.
    pub sum_bytes: u64,
    /// Bytes by reason.
    pub reasons: Reasons,
}

/// Bytes by reason, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reasons([u64; REASONS]);

impl Inventory {
    /// What a page says; `None` before anything was counted.
    pub fn copy(page: &ControlPage) -> Option<Inventory> {
        // Relaxed: the page is a copy that nobody writes to.
        let taken = page.inventory.taken_ns.load(Relaxed);
        let reasons = Reasons(std::array::from_fn(|i| page.inventory.bytes[i].load(Relaxed)));
        (taken != 0).then(|| Inventory {
            taken_at_ns: taken.saturating_sub(page.started_ns.load(Relaxed)),
            took_ns: page.inventory.took_ns.load(Relaxed),
            resident_bytes: page.inventory.resident_bytes.load(Relaxed),
            sum_bytes: reasons.all().fold(0, |sum, (_, bytes)| sum.saturating_add(bytes)),
            reasons,
        })
    }

    /// Rows of a table: reason, bytes, share of what is resident. Only of what there is, the most first.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let share = |part| format!("{:.1} %", percent(part, self.resident_bytes));
        let row = |(why, part): (Why, u64)| vec![why.words().to_owned(), bytes(part), share(part)];
        self.reasons.largest().into_iter().map(row).collect()
    }

    /// The reasons that there are by their short names, and bytes, the most first.
    pub fn short(&self) -> impl Iterator<Item = (String, u64)> {
        let name = |why: Why| match why {
            Why::Own => "memfold's own".to_owned(),
            why => why.name().replace('_', " "),
        };
        self.reasons.largest().into_iter().map(move |(why, part)| (name(why), part))
    }

    /// One line: how much was resident, and the most of it by reason.
    pub fn line(&self) -> String {
        let named: Vec<_> =
            self.short().take(NAMED).map(|(name, part)| format!("{} {name}", bytes(part))).collect();
        let rest = self.short().skip(NAMED).fold(0u64, |sum, (_, part)| sum.saturating_add(part));
        let rest = if rest == 0 { String::new() } else { format!(", {} for other reasons", bytes(rest)) };
        format!(
            "{} resident {} after its start: {}{rest}",
            bytes(self.resident_bytes),
            text::nanos(self.taken_at_ns),
            named.join(", ")
        )
    }
}

impl Reasons {
    fn all(&self) -> impl Iterator<Item = (Why, u64)> + '_ {
        Why::ALL.into_iter().zip(self.0)
    }

    fn largest(&self) -> Vec<(Why, u64)> {
        let mut some: Vec<_> = self.all().filter(|(_, bytes)| *bytes > 0).collect();
        some.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        some
    }
}

impl Serialize for Reasons {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(REASONS))?;
        for (why, bytes) in self.all() {
            map.serialize_entry(why.name(), &bytes)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{fixture, Snapshot};

    #[test]
    fn what_was_counted_reads_back_by_reason_and_what_never_was_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("7");
        fixture::write(&path, |_| {});
        assert_eq!(Snapshot::read(&path).unwrap().inventory, None);
        fixture::write(&path, |page| {
            page.started_ns.store(1_000_000_000, Relaxed);
            page.inventory.taken_ns.store(3_000_000_000, Relaxed);
            page.inventory.resident_bytes.store(4 << 20, Relaxed);
            page.inventory.bytes[Why::Young as usize].store(1 << 20, Relaxed);
            page.inventory.bytes[Why::Written as usize].store(3 << 20, Relaxed);
        });
        let inventory = Snapshot::read(&path).unwrap().inventory.unwrap();
        assert_eq!(inventory.sum_bytes, 4 << 20);
        assert_eq!(inventory.rows()[0][1..], ["3.00 MiB", "75.0 %"]);
        assert_eq!(
            inventory.line(),
            "4.00 MiB resident 2.00 s after its start: 3.00 MiB written, 1.00 MiB young"
        );
        let json = serde_json::to_value(&inventory).unwrap();
        assert_eq!((&json["reasons"]["written"], &json["reasons"]["pinned"]), (&(3 << 20).into(), &0.into()));
        // A page may say anything.
        fixture::write(&path, |page| {
            page.inventory.taken_ns.store(1, Relaxed);
            page.inventory.bytes.iter().for_each(|bytes| bytes.store(u64::MAX, Relaxed));
        });
        let nonsense = Snapshot::read(&path).unwrap().inventory.unwrap();
        assert_eq!(nonsense.sum_bytes, u64::MAX);
        assert_eq!(nonsense.line().matches("other reasons").count(), 1);
    }
}
