//! Rows of results as CSV with a header.

use serde::Serialize;
use std::io::{self, Write};

/// Writes `rows` as CSV, the field names of the row type first.
///
/// # Errors
/// What the writer says, and `InvalidData` for a row that is not a flat record.
pub fn write_csv<T: Serialize>(out: impl Write, rows: impl IntoIterator<Item = T>) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(out);
    for row in rows {
        writer.serialize(row).map_err(|error| match error.into_kind() {
            csv::ErrorKind::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, format!("a row cannot be CSV: {other:?}")),
        })?;
    }
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Row {
        arm: &'static str,
        value_ns: u64,
    }

    const ROWS: [Row; 2] = [Row { arm: "ours, folded", value_ns: 5 }, Row { arm: "plain", value_ns: 6 }];

    #[test]
    fn csv_has_a_header_and_quotes_what_needs_it() {
        let mut out = Vec::new();
        write_csv(&mut out, &ROWS).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "arm,value_ns\n\"ours, folded\",5\nplain,6\n");
    }
}
