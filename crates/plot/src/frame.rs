//! What all charts have around their data: title, legend, axes with ticks and labels.
//!
//! Invariants: the margins follow from the labels, so no text is cut off; the legend takes as many rows as it needs.

use crate::axis::{Axis, Ruler};
use crate::svg::{title_width, width_of, Anchor, Svg, TEXT};

/// Width of a chart whose texts fit into it.
pub(crate) const WIDTH: f64 = 760.0;
/// Height of a chart whose legend takes no row.
const HEIGHT: f64 = 400.0;
const MARGIN: f64 = 14.0;
/// Between a text and the drawing's edge.
const EDGE: f64 = 4.0;
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
    width: f64,
    height: f64,
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
        let ticks = up.ticks.iter().map(|tick| width_of(&up.label(*tick))).fold(0.0, f64::max);
        let left = MARGIN + TEXT + 12.0 + ticks;
        // A single series needs no legend: the title names it.
        let shown: &[&str] = if series.len() > 1 { series } else { &[] };
        let entry = shown.iter().map(|name| entry_width(name)).fold(0.0, f64::max);
        let below = match &across {
            Across::Ruler(axis, _) => width_of(&axis.label),
            Across::Names(_) => 0.0,
        };
        let widest =
            [MARGIN + title_width(title), left + entry, left + below].into_iter().fold(0.0, f64::max);
        let width = WIDTH.max((widest + MARGIN + 10.0).ceil());
        let right = width - MARGIN - 10.0;
        let (left, deep) = match &across {
            Across::Names(names) => room_for_names(names, left, right),
            Across::Ruler(..) => (left, None),
        };
        let rows = legend_rows(shown, right - left);
        let top = MARGIN + 28.0 + rows.len() as f64 * ROW;
        let below = match &across {
            Across::Ruler(..) => ROW + 26.0,
            Across::Names(_) => ROW + 8.0 + deep.unwrap_or(0.0),
        };
        let height = HEIGHT + rows.len() as f64 * ROW + deep.unwrap_or(0.0);
        let height = height.max((width_of(&axis.label) + 2.0 * EDGE).ceil());
        let bottom = height - MARGIN - below;
        let svg = Svg::new(width, height);
        let mut frame = Frame { svg, across: None, up, left, right, top, bottom, width, height };
        frame.svg.title((MARGIN, MARGIN + 14.0), title);
        frame.legend(key, &rows);
        frame.left_side(axis);
        frame.lower_side(across, deep.is_some());
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
        let half = width_of(&axis.label) / 2.0 + EDGE;
        let middle = ((self.top + self.bottom) / 2.0).clamp(half, (self.height - half).max(half));
        self.svg.turned_text((MARGIN + TEXT - 2.0, middle), Anchor::Middle, &axis.label, -90.0);
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
                        self.svg.text((x.min(self.width - half), self.bottom + ROW), Anchor::Middle, &label);
                        free_from = x + half + 6.0;
                    }
                }
                if let Some(mark) = axis.mark {
                    let x = self.x(mark);
                    self.svg.rule((x, self.top), (x, self.bottom), INK, 1.4);
                }
                let half = width_of(&axis.label) / 2.0 + EDGE;
                let middle = ((self.left + self.right) / 2.0).clamp(half, (self.width - half).max(half));
                let at = (middle, self.bottom + ROW + 20.0);
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
    let mut rows: Vec<Vec<(usize, &str)>> = Vec::new();
    let mut used = f64::INFINITY;
    for (number, name) in series.iter().enumerate() {
        let width = entry_width(name);
        if used + width > room {
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

/// Where the area's left side goes so that no name is cut, and how deep the names reach below the line that level ones stand
/// on, if they must be slanted.
fn room_for_names(names: &[String], left: f64, right: f64) -> (f64, Option<f64>) {
    let widest = names.iter().map(|name| width_of(name)).fold(0.0, f64::max);
    let count = names.len().max(1) as f64;
    if widest + 8.0 <= (right - left) / count {
        return (left, None);
    }
    // A slanted name ends below the middle of its group and reaches to the left from there.
    let needed = names.iter().enumerate().map(|(number, name)| {
        let share = (number as f64 + 0.5) / count;
        (width_of(name) * SLANT.to_radians().cos() + EDGE - share * right) / (1.0 - share)
    });
    let left = needed.fold(left, f64::max).min(right / 2.0);
    (left, Some(widest * SLANT.to_radians().sin()))
}

#[cfg(test)]
mod tests {
    use crate::{Axis, Bars, Chart, Line, Lines, Point, Scatter, Series, Unit};

    /// Left, top, right and bottom of every text of a drawing, and the size of the drawing.
    fn texts(svg: &str) -> (Vec<(String, [f64; 4])>, f64, f64) {
        use resvg::usvg::{roxmltree::Document, Group, Node};
        let tree = crate::png::read(svg).unwrap();
        let document = Document::parse(svg).unwrap();
        let words: Vec<_> = document.descendants().filter(|node| node.has_tag_name("text")).collect();
        let mut paths = Vec::new();
        fn walk(group: &Group, paths: &mut Vec<(usize, [f32; 4])>) {
            for node in group.children() {
                match node {
                    Node::Group(group) => walk(group, paths),
                    Node::Path(path) => {
                        let bounds = path.abs_bounding_box();
                        let number = path.id().strip_prefix("text-").and_then(|number| number.parse().ok());
                        let sides = [bounds.left(), bounds.top(), bounds.right(), bounds.bottom()];
                        paths.extend(number.map(|number| (number, sides)));
                    }
                    _ => {}
                }
            }
        }
        walk(tree.root(), &mut paths);
        assert_eq!(paths.len(), words.len(), "a text was not drawn");
        let named = |(number, sides): (usize, [f32; 4])| {
            (words[number].text().unwrap_or_default().to_owned(), sides.map(f64::from))
        };
        let size = tree.size();
        (paths.into_iter().map(named).collect(), f64::from(size.width()), f64::from(size.height()))
    }

    fn nothing_is_cut(chart: &dyn Chart) {
        let (texts, width, height) = texts(&chart.svg());
        assert!(texts.len() > 5, "the texts were not found");
        for (text, [left, top, right, bottom]) in texts {
            let inside = left >= 0.0 && top >= 0.0 && right <= width && bottom <= height;
            assert!(inside, "{text:?} is cut: {left} {top} {right} {bottom} in {width} by {height}");
        }
    }

    fn bars(names: usize, series: usize, axis: Axis) -> Bars {
        let long = |what: &str, n: usize| format!("{what} number {n} with a name that says rather a lot");
        let series = (0..series).map(|n| Series {
            name: long("a series", n),
            values: (0..names).map(|name| Some((0.01 * 7f64.powi((name + n) as i32 % 5)).into())).collect(),
        });
        Bars {
            title: "Something of which the title tells more than fits on a line of the usual width, and then some more".into(),
            axis,
            groups: (0..names).map(|n| long("a group", n)).collect(),
            series: series.collect(),
            stacked: false,
        }
    }

    #[test]
    fn no_text_is_cut_however_long_it_is() {
        let label = "what is measured, told at such a length that it is higher than the chart, which then has to grow";
        for names in [1, 2, 3, 8, 17] {
            for series in [1, 2, 5] {
                for axis in
                    [Axis::linear(label), Axis::logarithmic(label), Axis::ratio(label), Axis::change(label)]
                {
                    nothing_is_cut(&bars(names, series, axis));
                }
            }
        }
        let points = vec![(0.0, 1e9), (123_456_789.0, 9e12)];
        let (x, y) = (Axis::linear(label.repeat(2)), Axis::linear(label).unit(Unit::Bytes));
        nothing_is_cut(&Lines { title: "t".into(), x, y, lines: vec![Line { name: "one".into(), points }] });
    }

    #[test]
    fn the_labels_of_points_at_the_edges_are_not_cut() {
        let at = |x: f64, y: f64| Point {
            label: "a point with a long name".into(),
            series: 0,
            x: x.into(),
            y: y.into(),
        };
        let points = (0..5).flat_map(|x| (0..5).map(move |y| at(f64::from(x), f64::from(y))));
        // Many in one corner, for which there is no room anywhere.
        let points =
            points.chain((0..20).map(|_| at(4.0, 4.0))).chain((0..20).map(|_| at(0.0, 0.0))).collect();
        let (x, y) = (Axis::linear("x"), Axis::linear("y"));
        nothing_is_cut(&Scatter { title: "t".into(), x, y, series: vec!["s".into()], points });
    }
}
