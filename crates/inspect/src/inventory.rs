//! Why what is resident of a process is not folded, as it was counted last.

use memfold_pager::control::ControlPage;
use memfold_pager::why::{Why, REASONS};
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::sync::atomic::Ordering::Relaxed;

/// The resident bytes of a process by reason; see `memfold_pager::why::Why` for each.
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
}

impl Reasons {
    fn all(&self) -> impl Iterator<Item = (Why, u64)> + '_ {
        Why::ALL.into_iter().zip(self.0)
    }

    /// Those that there are, the most first.
    pub fn largest(&self) -> Vec<(Why, u64)> {
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
