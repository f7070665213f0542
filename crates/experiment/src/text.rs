//! Figures as text, for terminals and pages.

/// Bytes as MiB.
pub fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

/// A figure, or a dash where there is none.
pub fn or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "–".to_owned(), show)
}

/// A number with so many decimals, or a dash where there is none.
pub fn number(value: Option<f64>, decimals: usize) -> String {
    or_dash(value, |value| format!("{value:.decimals$}"))
}

/// Cells of a table.
pub fn cells<const N: usize>(of: [&str; N]) -> Vec<String> {
    of.map(str::to_owned).to_vec()
}

/// Rows in columns: the first `left` of them to the left, the others to the right.
pub fn columns<'a>(rows: impl IntoIterator<Item = &'a Vec<String>>, left: usize) -> String {
    let rows: Vec<&Vec<String>> = rows.into_iter().collect();
    let count = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &&Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column < left {
            true => format!("{cell:<width$}  "),
            false => format!("{cell:>width$}  "),
        });
        cells.collect::<String>().trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [cells(["a", "1"]), cells(["long", "100"])];
        assert_eq!(columns(&rows, 1), "a       1\nlong  100\n");
    }

    #[test]
    fn what_is_missing_is_a_dash() {
        assert_eq!([number(None, 2), number(Some(1.0), 2)], ["–", "1.00"]);
    }
}
