//! How the series of a chart are told apart: by colour, and again by pattern, dash or marker.
//!
//! The colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any of the common kinds
//! of colour-blindness can tell apart, put into an order in which neighbours also differ in brightness.

const COLOURS: [&str; 8] =
    ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#4d4d4d", "#b8a800"];

const DASHES: [&str; 4] = ["none", "7 3", "2 2", "9 3 2 3"];

/// The colour of a series.
pub(crate) fn colour(series: usize) -> &'static str {
    COLOURS[series % COLOURS.len()]
}

/// The dashes of a series' line, as SVG's `stroke-dasharray`.
pub(crate) fn dash(series: usize) -> &'static str {
    DASHES[series % DASHES.len()]
}

/// The pattern over a series' bars: white lines in one of four directions; `None` for the plain first one.
/// The path lies in a tile of 6 by 6.
pub(crate) fn hatch(series: usize) -> Option<&'static str> {
    const HATCHES: [Option<&str>; 5] = [
        None,
        Some("M-1 1L1 -1M0 6L6 0M5 7L7 5"),
        Some("M0 3H6"),
        Some("M-1 5L1 7M0 0L6 6M5 -1L7 1"),
        Some("M3 0V6"),
    ];
    HATCHES[series % HATCHES.len()]
}

/// The outline of a series' marker around `x`, `y`.
pub(crate) fn marker(series: usize, x: f64, y: f64) -> String {
    match series % 4 {
        0 => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
        1 => format!("M{:.1} {:.1}h7.4v7.4h-7.4Z", x - 3.7, y - 3.7),
        2 => format!("M{x:.1} {:.1}l4.8 8.2h-9.6Z", y - 5.2),
        _ => format!("M{x:.1} {:.1}l5 5l-5 5l-5 -5Z", y - 5.0),
    }
}
