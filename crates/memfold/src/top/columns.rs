//! The columns of the list of all folded programs: what stands in each, how it is sorted, and which of them a narrow terminal does without.

use crate::text::bytes;
use crate::view::row::Row;
use ratatui::text::Span;
use std::cmp::Ordering;

/// A column.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Column {
    /// The program's name.
    Name,
    /// The process id.
    Pid,
    /// The user.
    User,
    /// Memory in RAM, of all kinds.
    Resident,
    /// See [`crate::words`].
    Managed,
    /// See [`crate::words`].
    Folded,
    /// See [`crate::words`].
    Into,
    /// See [`crate::words`].
    Cost,
    /// See [`crate::words`].
    Saved,
    /// What is saved of what would be resident otherwise.
    SavedPct,
    /// Waits on faults, a second.
    Faults,
    /// Part of the time that threads waited.
    Waits,
    /// CPU time of folding.
    Cpu,
    /// What evicts.
    Policy,
    /// What lies in the tier below memory.
    Tier,
    /// Why the most of what is managed is not folded.
    Why,
}

impl Column {
    /// All of them, from left to right.
    pub const ALL: [Column; 16] = [
        Column::Name,
        Column::Pid,
        Column::User,
        Column::Resident,
        Column::Managed,
        Column::Folded,
        Column::Into,
        Column::Cost,
        Column::Saved,
        Column::SavedPct,
        Column::Faults,
        Column::Waits,
        Column::Cpu,
        Column::Policy,
        Column::Tier,
        Column::Why,
    ];

    /// Those that are shown first where there is room for a few only.
    const BY_WEIGHT: [Column; 16] = [
        Column::Name,
        Column::Saved,
        Column::Pid,
        Column::Resident,
        Column::SavedPct,
        Column::Folded,
        Column::Waits,
        Column::Faults,
        Column::Cost,
        Column::Managed,
        Column::Why,
        Column::Cpu,
        Column::Into,
        Column::User,
        Column::Policy,
        Column::Tier,
    ];

    /// What stands above it.
    pub fn title(self) -> &'static str {
        match self {
            Column::Name => "NAME",
            Column::Pid => "PID",
            Column::User => "USER",
            Column::Resident => "RESIDENT",
            Column::Managed => "MANAGED",
            Column::Folded => "FOLDED",
            Column::Into => "INTO",
            Column::Cost => "COST",
            Column::Saved => "SAVED",
            Column::SavedPct => "SAVED%",
            Column::Faults => "FAULTS/S",
            Column::Waits => "WAITS%",
            Column::Cpu => "CPU%",
            Column::Policy => "POLICY",
            Column::Tier => "TIER",
            Column::Why => "WHY NOT MORE",
        }
    }

    /// What stands in it.
    pub fn text(self, row: &Row) -> String {
        match self {
            Column::Name => row.name.clone(),
            Column::Pid if row.pid == 0 => String::new(),
            Column::Pid => row.pid.to_string(),
            Column::User => row.user.clone(),
            Column::Resident => bytes(row.resident),
            Column::Managed => bytes(row.managed),
            Column::Folded => bytes(row.folded),
            Column::Into => bytes(row.into),
            Column::Cost => bytes(row.cost),
            Column::Saved => bytes(row.saved),
            Column::SavedPct => format!("{:.1}", row.saved_pct()),
            Column::Faults => format!("{:.0}", row.rates.faults),
            Column::Waits => format!("{:.3}", row.rates.waits),
            Column::Cpu => format!("{:.2}", row.rates.cpu),
            Column::Policy => row.policy.clone(),
            Column::Tier if row.tier == 0 => "-".into(),
            Column::Tier => bytes(row.tier),
            Column::Why => row.why.clone(),
        }
    }

    /// Whether it is of words, to the left; numbers are to the right.
    pub fn is_words(self) -> bool {
        matches!(self, Column::Name | Column::User | Column::Policy | Column::Why)
    }

    /// How wide it may become, whatever stands in it.
    fn most(self) -> usize {
        match self {
            Column::Name => 20,
            Column::Why => 48,
            _ => 16,
        }
    }

    /// Which of two rows comes first: of words and process ids the lesser, of all else the greater.
    pub fn order(self, a: &Row, b: &Row) -> Ordering {
        let by_pid = a.pid.cmp(&b.pid);
        let order = match self {
            Column::Name => a.name.cmp(&b.name),
            Column::Pid => by_pid,
            Column::User => a.user.cmp(&b.user),
            Column::Policy => a.policy.cmp(&b.policy),
            Column::Why => a.why.cmp(&b.why),
            Column::Resident => b.resident.cmp(&a.resident),
            Column::Managed => b.managed.cmp(&a.managed),
            Column::Folded => b.folded.cmp(&a.folded),
            Column::Into => b.into.cmp(&a.into),
            Column::Cost => b.cost.cmp(&a.cost),
            Column::Saved => b.saved.cmp(&a.saved),
            Column::Tier => b.tier.cmp(&a.tier),
            Column::SavedPct => b.saved_pct().total_cmp(&a.saved_pct()),
            Column::Faults => b.rates.faults.total_cmp(&a.rates.faults),
            Column::Waits => b.rates.waits.total_cmp(&a.rates.waits),
            Column::Cpu => b.rates.cpu.total_cmp(&a.rates.cpu),
        };
        order.then(by_pid)
    }

    /// The columns that fit into so many cells, each with its width, from left to right; between two of them is one cell.
    pub fn fitting(room: usize, rows: &[Row]) -> Vec<(Column, usize)> {
        let width = |column: Column| {
            let widest = rows.iter().map(|row| cells(&column.text(row))).max().unwrap_or(0);
            widest.clamp(column.title().len(), column.most().max(column.title().len()))
        };
        let mut chosen = Vec::new();
        let mut left = room + 1;
        for column in Column::BY_WEIGHT {
            let width = width(column);
            // What is first is shown whatever the width.
            let width = if chosen.is_empty() { width.min(room.saturating_sub(11).max(6)) } else { width };
            if width < left || chosen.is_empty() {
                left = left.saturating_sub(width + 1);
                chosen.push((column, width));
            }
        }
        chosen.sort_by_key(|(column, _)| Column::ALL.iter().position(|other| other == column));
        chosen
    }
}

/// How many cells a text takes.
pub fn cells(text: &str) -> usize {
    Span::raw(text).width()
}

/// Fits a text into so many cells.
pub fn pad(text: &str, width: usize, to_the_left: bool) -> String {
    let mut text = text.to_owned();
    while cells(&text) > width {
        text.pop();
    }
    let blank = " ".repeat(width - cells(&text));
    if to_the_left {
        text + &blank
    } else {
        blank + &text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let row = |pid, name: &str, saved| Row {
            pid,
            name: name.into(),
            user: "root".into(),
            saved,
            resident: 3 * saved,
            policy: "age".into(),
            why: "young: 12.0 MiB".into(),
            ..Row::default()
        };
        vec![row(7, "redis-server", 100 << 20), row(8, "node", 200 << 20)]
    }

    #[test]
    fn columns_fit_and_come_in_their_order_and_the_first_is_there_however_narrow() {
        for cells in [1, 20, 40, 80, 200] {
            let columns = Column::fitting(cells, &rows());
            let width: usize = columns.iter().map(|(_, width)| width + 1).sum();
            assert!(
                columns[0].0 == Column::Name && (width <= cells + 1 || columns.len() == 1),
                "{cells}: {columns:?}"
            );
            let places =
                columns.iter().map(|(column, _)| Column::ALL.iter().position(|other| other == column));
            assert!(places.clone().zip(places.skip(1)).all(|(a, b)| a < b));
        }
        assert!(Column::fitting(20, &rows()).iter().any(|(column, _)| *column == Column::Saved));
        assert_eq!(Column::fitting(200, &rows()).len(), Column::ALL.len());
    }

    #[test]
    fn numbers_are_sorted_downwards_and_words_upwards_and_the_total_is_the_sum() {
        let mut rows = rows();
        rows.sort_by(|a, b| Column::Saved.order(a, b));
        assert_eq!(rows[0].pid, 8);
        rows.sort_by(|a, b| Column::Pid.order(a, b));
        assert_eq!(rows[0].pid, 7);
        let total = Row::total(rows.iter());
        assert_eq!((total.saved, total.name.as_str()), (300 << 20, "2 programs"));
        assert!((total.saved_pct() - 25.0).abs() < 1e-9);
    }
}
