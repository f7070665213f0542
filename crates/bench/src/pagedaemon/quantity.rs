//! The quantities of the report.

use serde::Serialize;

/// One quantity: the column of the log that it comes from, and what it is called.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantity {
    /// The column.
    pub column: &'static str,
    /// Its name for people.
    pub name: &'static str,
    /// Whether it is summed up over a run; else it is the mean over passes.
    pub sum: bool,
}

/// Those of the report of 2019, in its order; then what else was logged and matters.
pub const QUANTITIES: [Quantity; 13] = [
    Quantity { column: "faults", name: "page faults", sum: true },
    Quantity { column: "active", name: "pages in the active queue", sum: false },
    Quantity { column: "inactive", name: "pages in the inactive queue", sum: false },
    Quantity { column: "free", name: "free pages", sum: false },
    Quantity { column: "laundry", name: "pages in the laundry queue", sum: false },
    Quantity { column: "scanned", name: "pages scanned", sum: false },
    Quantity { column: "active_to_inactive", name: "pages from active to inactive", sum: false },
    Quantity { column: "inactive_to_free", name: "pages from inactive to free", sum: false },
    Quantity { column: "inactive_to_active", name: "pages from inactive to active", sum: false },
    Quantity { column: "minor_faults", name: "page faults without decompression", sum: true },
    Quantity { column: "brought_ahead", name: "pages brought ahead of a fault", sum: true },
    Quantity { column: "restored", name: "pages decompressed", sum: true },
    Quantity { column: "compressed", name: "pages compressed", sum: true },
];
