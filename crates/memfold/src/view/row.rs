//! What is said of one folded program in a line, or of all of them together.

use crate::reasons;
use crate::text::{bytes, percent};
use crate::watch::{Rates, Seen};
use memfold_pager::config::Setting;
use memfold_pager::control::Mode;
use memfold_pager::why::Why;

/// What the list says of one process, or of all together.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// The process; 0 for all together.
    pub pid: u32,
    pub name: String,
    pub user: String,
    pub resident: u64,
    pub managed: u64,
    pub folded: u64,
    pub into: u64,
    pub cost: u64,
    pub saved: u64,
    pub tier: u64,
    pub rates: Rates,
    pub policy: String,
    pub why: String,
}

impl Row {
    /// Of one process.
    pub fn of(seen: &Seen) -> Row {
        let sizes = &seen.page.sizes;
        Row {
            pid: seen.pid,
            name: seen.name.clone(),
            user: seen.user.clone(),
            resident: seen.resident,
            managed: sizes.managed_bytes,
            folded: sizes.evicted_bytes,
            into: sizes.stored_bytes,
            cost: sizes.overhead_bytes,
            saved: sizes.saved_bytes,
            tier: sizes.tier_bytes,
            rates: seen.rates,
            policy: seen.page.policy.clone(),
            why: why(seen),
        }
    }

    /// Of all of them.
    pub fn total<'r>(rows: impl Iterator<Item = &'r Row>) -> Row {
        let mut total = Row::default();
        let mut count = 0;
        for row in rows {
            count += 1;
            let sums = [
                (&mut total.resident, row.resident),
                (&mut total.managed, row.managed),
                (&mut total.folded, row.folded),
                (&mut total.into, row.into),
                (&mut total.cost, row.cost),
                (&mut total.saved, row.saved),
                (&mut total.tier, row.tier),
            ];
            sums.into_iter().for_each(|(sum, part)| *sum = sum.saturating_add(part));
            total.rates.faults += row.rates.faults;
            total.rates.waits += row.rates.waits;
            total.rates.cpu += row.rates.cpu;
        }
        Row { name: format!("{count} program{}", if count == 1 { "" } else { "s" }), ..total }
    }

    /// What is saved of what would be resident without folding, in per cent.
    pub fn saved_pct(&self) -> f64 {
        percent(self.saved, self.resident.saturating_add(self.saved))
    }

    /// Whether the text is a part of what the row says in words.
    pub fn matches(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let words = [&self.name, &self.user, &self.policy, &self.why];
        words.iter().any(|word| word.to_lowercase().contains(&text)) || self.pid.to_string().contains(&text)
    }
}

/// Why nothing is folded, or why the most of what is managed and resident is not.
pub fn why(seen: &Seen) -> String {
    let page = &seen.page;
    match page.mode {
        Mode::Off => return format!("off: {}", page.reason),
        Mode::Idle => return format!("below start_at ({})", bytes(page.settings[Setting::StartAt as usize])),
        Mode::Embedded if page.paused => return "paused".into(),
        Mode::Embedded if page.asleep => return "asleep".into(),
        Mode::Embedded => {}
    }
    let Some(inventory) = &page.inventory else { return String::new() };
    let managed = inventory.reasons.largest().into_iter().find(|(why, _)| is_managed(*why));
    managed.map_or_else(String::new, |(why, part)| format!("{}: {}", reasons::name(why), bytes(part)))
}

fn is_managed(why: Why) -> bool {
    (why as usize) < Why::SetAside as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_looks_at_words_and_numbers_of_processes() {
        let row = Row {
            pid: 7,
            name: "redis-server".into(),
            user: "root".into(),
            why: "young: 12.0 MiB".into(),
            ..Row::default()
        };
        for text in ["redis", "REDIS", "7", "root", "young", ""] {
            assert!(row.matches(text), "{text}");
        }
        assert!(!row.matches("node"));
    }
}
