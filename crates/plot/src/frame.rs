//! What all charts have around their data: title, legend, axes with ticks and labels.
//!
//! Invariants: the margins follow from the labels, so no text is cut off; the legend takes as many rows as it needs.

use crate::axis::{Axis, Ruler};
use crate::svg::{width_of, Anchor, Svg, TEXT};

/// Width of every chart.
pub(crate) const WIDTH: f64 = 760.0;
/// Height of a chart whose legend takes no row.
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 14.0;
const ROW: f64 = 18.0;
const GRID: &str = "#dddddd";
const INK: &str = "#444444";

/// How a legend shows a series.
#[derive(Clone, Copy)]
pub(crate) enum Key {
    /// A filled square.
    Bar,
    /// A piece of line.
    Line,
    /// A marker.
    Marker,
}

/// What stands along the lower edge.
pub(crate) enum Across<'a> {
    /// A ruler for this axis.
    Ruler(&'a Axis, Ruler),
    /// Names at equal distances.
    Names(&'a [String]),
}

/// A chart's surroundings, drawn, and where data goes in them.
pub(crate) struct Frame {
    pub(crate) svg: Svg,
    across: Option<Ruler>,
    up: Ruler,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Frame {
    /// Draws the surroundings.
    pub(crate) fn new(
        title: &str,
        key: Key,
        series: &[&str],
        across: Across<'_>,
        axis: &Axis,
        up: Ruler,
    ) -> Frame {
        let widest = up.ticks.iter().map(|tick| width_of(&up.label(*tick))).fold(0.0, f64::max);
        let left = MARGIN + TEXT + 12.0 + widest;
        let right = WIDTH - MARGIN - 10.0;
        // A single series needs no legend: the title names it.
        let rows = if series.len() > 1 { legend_rows(series, right - left) } else { Vec::new() };
        let top = MARGIN + 28.0 + rows.len() as f64 * ROW;
        let (slant, below) = match &across {
            Across::Ruler(..) => (0.0, ROW + 26.0),
            Across::Names(names) => below_names(names, right - left),
        };
        let height = HEIGHT + rows.len() as f64 * ROW + slant;
        let bottom = height - MARGIN - below;
        let mut frame = Frame { svg: Svg::new(WIDTH, height), across: None, up, left, right, top, bottom };
        frame.svg.title((MARGIN, MARGIN + 14.0), title);
        frame.legend(key, &rows);
        frame.left_side(axis);
        frame.lower_side(across, slant > 0.0);
        frame
    }

    /// Height on the drawing of a value on the upright axis.
    pub(crate) fn y(&self, value: f64) -> f64 {
        self.bottom - self.up.place(value) * (self.bottom - self.top)
    }

    /// Place on the drawing of a value on the lower axis.
    pub(crate) fn x(&self, value: f64) -> f64 {
        let share = self.across.as_ref().map_or(0.0, |ruler| ruler.place(value));
        self.left + share * (self.right - self.left)
    }

    /// Left end and width of group `number` of `count` names.
    pub(crate) fn slot(&self, number: usize, count: usize) -> (f64, f64) {
        let width = (self.right - self.left) / count.max(1) as f64;
        (self.left + number as f64 * width, width)
    }

    /// Whether both coordinates can be shown.
    pub(crate) fn shows(&self, x: f64, y: f64) -> bool {
        self.across.as_ref().is_none_or(|ruler| ruler.shows(x)) && self.shows_y(y)
    }

    /// Whether the upright axis can show a value.
    pub(crate) fn shows_y(&self, value: f64) -> bool {
        self.up.shows(value)
    }

    /// Left, top, right and bottom of the data's area.
    pub(crate) fn area(&self) -> (f64, f64, f64, f64) {
        (self.left, self.top, self.right, self.bottom)
    }

    /// An upright interval with bars at its ends.
    pub(crate) fn upright_interval(&mut self, x: f64, low: f64, high: f64) {
        let (low, high) = (self.y(low), self.y(high));
        self.svg.rule((x, low), (x, high), "#000000", 1.2);
        for y in [low, high] {
            self.svg.rule((x - 4.0, y), (x + 4.0, y), "#000000", 1.2);
        }
    }

    /// A level interval with bars at its ends.
    pub(crate) fn level_interval(&mut self, y: f64, low: f64, high: f64) {
        let (low, high) = (self.x(low), self.x(high));
        self.svg.rule((low, y), (high, y), "#000000", 1.2);
        for x in [low, high] {
            self.svg.rule((x, y - 4.0), (x, y + 4.0), "#000000", 1.2);
        }
    }

    fn legend(&mut self, key: Key, rows: &[Vec<(usize, &str)>]) {
        for (row, entries) in rows.iter().enumerate() {
            let (mut x, y) = (self.left, MARGIN + 34.0 + row as f64 * ROW);
            for (series, name) in entries {
                match key {
                    Key::Bar => self.svg.bar(*series, (x, y - 9.0), (x + 18.0, y + 2.0)),
                    Key::Marker => self.svg.marker(*series, (x + 9.0, y - 4.0)),
                    Key::Line => self.svg.line(*series, &[(x, y - 4.0), (x + 24.0, y - 4.0)]),
                }
                self.svg.text((x + KEY, y), Anchor::Start, name);
                x += entry_width(name);
            }
        }
    }

    fn left_side(&mut self, axis: &Axis) {
        for tick in self.up.ticks.clone() {
            let y = self.y(tick);
            self.svg.rule((self.left, y), (self.right, y), GRID, 1.0);
            self.svg.text((self.left - 8.0, y + 4.0), Anchor::End, &self.up.label(tick));
        }
        if let Some(mark) = axis.mark {
            let y = self.y(mark);
            self.svg.rule((self.left, y), (self.right, y), INK, 1.4);
        }
        let middle = (MARGIN + TEXT - 2.0, (self.top + self.bottom) / 2.0);
        self.svg.turned_text(middle, Anchor::Middle, &axis.label, -90.0);
        self.svg.rule((self.left, self.top), (self.left, self.bottom), INK, 1.0);
        self.svg.rule((self.left, self.bottom), (self.right, self.bottom), INK, 1.0);
    }

    fn lower_side(&mut self, across: Across<'_>, slanted: bool) {
        match across {
            Across::Names(names) => {
                for (number, name) in names.iter().enumerate() {
                    let (from, width) = self.slot(number, names.len());
                    let at = (from + width / 2.0, self.bottom + ROW);
                    if slanted {
                        self.svg.turned_text((at.0 + 4.0, at.1 - 4.0), Anchor::End, name, -SLANT);
                    } else {
                        self.svg.text(at, Anchor::Middle, name);
                    }
                }
            }
            Across::Ruler(axis, ruler) => {
                self.across = Some(ruler.clone());
                let mut free_from = f64::NEG_INFINITY;
                for tick in &ruler.ticks {
                    let (x, label) = (self.x(*tick), ruler.label(*tick));
                    self.svg.rule((x, self.top), (x, self.bottom), GRID, 1.0);
                    let half = width_of(&label) / 2.0;
                    // A label that would touch its neighbour is left out; its line stays.
                    if x - half >= free_from {
                        self.svg.text((x.min(WIDTH - half), self.bottom + ROW), Anchor::Middle, &label);
                        free_from = x + half + 6.0;
                    }
                }
                if let Some(mark) = axis.mark {
                    let x = self.x(mark);
                    self.svg.rule((x, self.top), (x, self.bottom), INK, 1.4);
                }
                let at = ((self.left + self.right) / 2.0, self.bottom + ROW + 20.0);
                self.svg.text(at, Anchor::Middle, &axis.label);
            }
        }
    }
}

/// Degrees by which long names are turned.
const SLANT: f64 = 28.0;
/// Room for a legend's key.
const KEY: f64 = 30.0;

fn entry_width(name: &str) -> f64 {
    KEY + width_of(name) + 14.0
}

/// The series by rows of the legend.
fn legend_rows<'a>(series: &[&'a str], room: f64) -> Vec<Vec<(usize, &'a str)>> {
    let mut rows: Vec<Vec<(usize, &str)>> = vec![Vec::new()];
    let mut used = 0.0;
    for (number, name) in series.iter().enumerate() {
        let width = entry_width(name);
        if used + width > room && used > 0.0 {
            rows.push(Vec::new());
            used = 0.0;
        }
        used += width;
        if let Some(row) = rows.last_mut() {
            row.push((number, name));
        }
    }
    rows
}

/// How much the names add to the chart's height because they are slanted, and the room below the axis.
fn below_names(names: &[String], room: f64) -> (f64, f64) {
    let widest = names.iter().map(|name| width_of(name)).fold(0.0, f64::max);
    if widest + 8.0 <= room / names.len().max(1) as f64 {
        return (0.0, ROW + 8.0);
    }
    let deep = widest * SLANT.to_radians().sin();
    (deep, deep + ROW + 8.0)
}
