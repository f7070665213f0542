//! The SVG document that a chart is drawn into: shapes and text, escaped.
//!
//! What it is not: a drawing model. Whoever draws says where everything goes.

use crate::palette;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Font size of everything but the title, in units of the drawing.
pub(crate) const TEXT: f64 = 12.0;
/// That of values beside what they are the values of.
const NOTE: f64 = 10.0;
/// That of the title.
const TITLE: f64 = 15.0;
/// Width of a character beside its size: that of a digit of DejaVu Sans, which is wider than its average letter.
const ASPECT: f64 = 0.62;

/// White around letters, which keeps them readable on lines.
const HALO: &str = r##" stroke="#ffffff" stroke-width="3" stroke-linejoin="round" paint-order="stroke""##;

/// Where a text stands beside its point.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    /// Right of it.
    Start,
    /// Around it.
    Middle,
    /// Left of it.
    End,
}

/// A document under way.
pub(crate) struct Svg {
    width: f64,
    height: f64,
    hatched: BTreeSet<usize>,
    body: String,
}

impl Svg {
    pub(crate) fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, hatched: BTreeSet::new(), body: String::new() }
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.body, "{element}");
    }

    /// A line of the chart's furniture.
    pub(crate) fn rule(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str, width: f64) {
        self.push(format_args!(
            r#"<path d="M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}" fill="none" stroke="{colour}" stroke-width="{width}"/>"#
        ));
    }

    /// A line through points, in the colour and dashes of a series.
    pub(crate) fn line(&mut self, series: usize, points: &[(f64, f64)]) {
        let (colour, dash) = (palette::colour(series), palette::dash(series));
        let mut path = String::new();
        for (place, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if place == 0 { 'M' } else { 'L' });
        }
        self.push(format_args!(
            r#"<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"/>"#
        ));
    }

    /// The area between two corners, in the colour and pattern of a series.
    pub(crate) fn bar(&mut self, series: usize, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let (x, y, width, height) = (x1.min(x2), y1.min(y2), (x2 - x1).abs(), (y2 - y1).abs());
        let place = format!(r#"x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}""#);
        let colour = palette::colour(series);
        self.push(format_args!(r#"<rect {place} fill="{colour}" stroke="{colour}"/>"#));
        if palette::hatch(series).is_some() {
            self.hatched.insert(series);
            self.push(format_args!(r#"<rect {place} fill="url(#{})"/>"#, pattern(series)));
        }
    }

    /// A marker of a series.
    pub(crate) fn marker(&mut self, series: usize, (x, y): (f64, f64)) {
        let (path, colour) = (palette::marker(series, x, y), palette::colour(series));
        self.push(format_args!(
            r##"<path d="{path}" fill="{colour}" stroke="#ffffff" stroke-width="0.8"/>"##
        ));
    }

    /// An upright text.
    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.write_text(at, anchor, text, TEXT, "");
    }

    /// A text turned by `degrees`, clockwise.
    pub(crate) fn turned_text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str, degrees: f64) {
        self.write_text(
            (x, y),
            anchor,
            text,
            TEXT,
            &format!(r#" transform="rotate({degrees} {x:.1} {y:.1})""#),
        );
    }

    /// A small text, for values beside what they are the values of.
    pub(crate) fn note(&mut self, at: (f64, f64), anchor: Anchor, text: &str) {
        self.write_text(at, anchor, text, NOTE, HALO);
    }

    /// The same, written upwards.
    pub(crate) fn turned_note(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let turn = format!(r#"{HALO} transform="rotate(-90 {x:.1} {y:.1})""#);
        self.write_text((x, y), anchor, text, NOTE, &turn);
    }

    /// A text that may stand on lines of the chart.
    pub(crate) fn label(&mut self, at: (f64, f64), text: &str) {
        self.write_text(at, Anchor::Start, text, TEXT, HALO);
    }

    /// The title, in bold.
    pub(crate) fn title(&mut self, at: (f64, f64), text: &str) {
        self.write_text(at, Anchor::Start, text, TITLE, r#" font-weight="bold""#);
    }

    fn write_text(&mut self, (x, y): (f64, f64), anchor: Anchor, text: &str, size: f64, more: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" font-size="{size}"{more}>{text}</text>"#
        ));
    }

    /// The whole document.
    pub(crate) fn finish(self) -> String {
        let (width, height, body) = (self.width, self.height, self.body);
        let tile = |series: usize| {
            let (id, path) = (pattern(series), palette::hatch(series).unwrap_or_default());
            format!(
                r##"<pattern id="{id}" width="6" height="6" patternUnits="userSpaceOnUse"><path d="{path}" fill="none" stroke="#ffffff" stroke-width="1.4"/></pattern>"##
            )
        };
        let patterns: String = self.hatched.into_iter().map(tile).collect();
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="DejaVu Sans, Verdana, Arial, sans-serif" fill="#222222">
<defs>{patterns}</defs>
<rect width="{width}" height="{height}" fill="#ffffff"/>
{body}</svg>
"##
        )
    }
}

/// The name of a series' pattern. Charts on one page share the names, and what they stand for.
fn pattern(series: usize) -> String {
    format!("memfold-hatch-{series}")
}

/// About how wide a text is at the ordinary size.
pub(crate) fn width_of(text: &str) -> f64 {
    text.chars().count() as f64 * TEXT * ASPECT
}

/// About how wide a note is.
pub(crate) fn note_width(text: &str) -> f64 {
    width_of(text) * NOTE / TEXT
}

/// About how wide a title is, whose letters are bold.
pub(crate) fn title_width(text: &str) -> f64 {
    width_of(text) * TITLE / TEXT * 1.1
}

/// Text as it may stand in SVG and HTML, also between double quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML forbids the other control characters, however written.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("a<b & \"c\">\u{1}"), "a&lt;b &amp; &quot;c&quot;&gt;\u{fffd}");
    }
}
