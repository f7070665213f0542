//! Bars in groups, side by side or stacked, with intervals.

use crate::axis::Axis;
use crate::frame::{Across, Frame, Key, WIDTH};
use crate::svg::{note_width, Anchor};
use crate::Chart;

/// A value, with its interval where there is one; in the unit of its axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value {
    /// The middle.
    pub middle: f64,
    /// Low and high end of the interval.
    pub interval: Option<(f64, f64)>,
}

impl From<f64> for Value {
    fn from(middle: f64) -> Value {
        Value { middle, interval: None }
    }
}

impl From<memfold_stats::Ratio> for Value {
    fn from(ratio: memfold_stats::Ratio) -> Value {
        Value { middle: ratio.median, interval: ratio.interval.map(|i| (i.low, i.high)) }
    }
}

impl Value {
    /// The middle and the ends of the interval.
    pub(crate) fn all(self) -> impl Iterator<Item = f64> {
        let (low, high) = self.interval.unzip();
        [Some(self.middle), low, high].into_iter().flatten()
    }
}

/// The bars of one kind, one to each group.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its values in the order of the groups; `None` where there is nothing to show, which is drawn as a dash.
    pub values: Vec<Option<Value>>,
}

/// Bars in groups. They start from the mark of the axis, or else from 0; on a logarithmic axis from its low end.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What the chart shows.
    pub title: String,
    /// The upright axis.
    pub axis: Axis,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// The bars of each group.
    pub series: Vec<Series>,
    /// Whether a group's bars stand on each other. Their axis should be linear and their values not negative.
    pub stacked: bool,
}

/// Bars that are narrower have no values written beside them.
const LEAST_NOTED: f64 = 11.0;
/// Most of a group's width that its bars take, and the most that one takes.
const SHARE: f64 = 0.8;
const WIDEST: f64 = 64.0;

/// How values are written beside the bars.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Notes {
    /// Not at all: there is no room.
    None,
    /// Across.
    Level,
    /// Upwards, where they are wider than a bar.
    Turned,
}

impl Notes {
    /// What they take of the axis.
    fn share(self) -> f64 {
        match self {
            Notes::None => 0.02,
            Notes::Level => 0.06,
            Notes::Turned => 0.16,
        }
    }
}

impl Bars {
    /// Bars side by side: in each group one of each series, of this value. Groups and series come with their names.
    pub fn of<G: Copy, S, N: Into<String>, M: Into<String>>(
        title: impl Into<String>,
        axis: Axis,
        groups: impl IntoIterator<Item = (N, G)>,
        series: impl IntoIterator<Item = (M, S)>,
        value: impl Fn(G, &S) -> Option<Value>,
    ) -> Bars {
        let (names, groups): (Vec<String>, Vec<G>) =
            groups.into_iter().map(|(name, group)| (name.into(), group)).unzip();
        let series = series.into_iter().map(|(name, one)| Series {
            name: name.into(),
            values: groups.iter().map(|&group| value(group, &one)).collect(),
        });
        Bars { title: title.into(), axis, groups: names, series: series.collect(), stacked: false }
    }

    /// Every value that the axis must reach, with room for the notes beyond the ends.
    fn reach(&self, notes: Notes) -> Vec<f64> {
        let values = self.series.iter().flat_map(|s| &s.values).flatten();
        let all: Vec<f64> = if self.stacked {
            (0..self.groups.len()).map(|group| self.pile(group).1).collect()
        } else {
            values.flat_map(|value| value.all()).collect()
        };
        self.axis.with_room(all.into_iter(), notes.share())
    }

    /// The least and the greatest value that the axis must reach, so that several charts can have the same axis; `None`
    /// where there are none.
    pub fn reaches(&self) -> Option<(f64, f64)> {
        let all = self.reach(Notes::Turned);
        all.first().copied().zip(all.last().copied())
    }

    /// Whether the values have room beside bars of about this width.
    fn notes(&self, width: f64) -> Notes {
        let values = self.series.iter().flat_map(|series| &series.values).flatten();
        let widest = values.map(|value| note_width(&self.note(value.middle))).fold(0.0, f64::max);
        match () {
            () if width < LEAST_NOTED => Notes::None,
            () if widest <= width => Notes::Level,
            () => Notes::Turned,
        }
    }

    fn note(&self, value: f64) -> String {
        self.axis.note(value)
    }

    /// Width of one bar where all groups have so much room together.
    fn bar_width(&self, room: f64) -> f64 {
        let (groups, series) = (self.groups.len().max(1) as f64, self.series.len().max(1) as f64);
        (room / groups * SHARE / series).min(WIDEST)
    }

    /// The bars of a group that stand on each other, each with its low and high end, and their sum.
    fn pile(&self, group: usize) -> (Vec<(usize, f64, f64)>, f64) {
        let mut top = self.axis.origin().unwrap_or(0.0);
        let mut parts = Vec::new();
        for (number, series) in self.series.iter().enumerate() {
            let part = series.values.get(group).copied().flatten().map_or(0.0, |value| value.middle);
            if part.is_finite() {
                parts.push((number, top, top + part));
                top += part;
            }
        }
        (parts, top)
    }

    fn draw_pile(&self, frame: &mut Frame, group: usize) {
        let (from, width) = frame.slot(group, self.groups.len());
        let (left, right) = (from + width * 0.3, from + width * 0.7);
        let (parts, top) = self.pile(group);
        for (number, low, high) in parts {
            let (low, high) = (frame.y(low), frame.y(high));
            frame.svg.bar(number, (left, low), (right, high));
        }
        let note = (from + width / 2.0, frame.y(top) - 5.0);
        frame.svg.note(note, Anchor::Middle, &self.note(top));
    }

    fn draw_group(&self, frame: &mut Frame, group: usize, notes: Notes) {
        let (from, width) = frame.slot(group, self.groups.len());
        let (area_left, _, area_right, bottom) = frame.area();
        let each = self.bar_width(area_right - area_left);
        let start = from + (width - each * self.series.len() as f64) / 2.0;
        let base = self.axis.origin().map_or(bottom, |origin| frame.y(origin));
        for (number, series) in self.series.iter().enumerate() {
            let (left, right) =
                (start + each * number as f64 + 1.0, start + each * (number + 1) as f64 - 1.0);
            let middle = (left + right) / 2.0;
            let Some(value) = series.values.get(group).copied().flatten().filter(|v| v.middle.is_finite())
            else {
                frame.svg.note((middle, base - 4.0), Anchor::Middle, "–");
                continue;
            };
            let note = self.note(value.middle);
            // What the axis has no place for is written at its low end.
            if !frame.shows_y(value.middle) {
                frame.svg.note((middle, bottom - 4.0), Anchor::Middle, &note);
                continue;
            }
            let tip = frame.y(value.middle);
            frame.svg.bar(number, (left, base), (right, tip));
            if let Some((low, high)) = value.interval {
                frame.upright_interval(middle, low, high);
            }
            let ends = value.all().map(|v| frame.y(v));
            let (above, edge) = if tip <= base {
                (true, ends.fold(base, f64::min))
            } else {
                (false, ends.fold(base, f64::max))
            };
            match (notes, above) {
                (Notes::None, _) => {}
                (Notes::Level, true) => frame.svg.note((middle, edge - 5.0), Anchor::Middle, &note),
                (Notes::Level, false) => frame.svg.note((middle, edge + 12.0), Anchor::Middle, &note),
                (Notes::Turned, true) => {
                    frame.svg.turned_note((middle + 3.5, edge - 5.0), Anchor::Start, &note)
                }
                (Notes::Turned, false) => {
                    frame.svg.turned_note((middle + 3.5, edge + 5.0), Anchor::End, &note)
                }
            }
        }
    }
}

impl Chart for Bars {
    fn svg(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(|series| series.name.as_str()).collect();
        // A little less than the frame will leave, which depends on the axis.
        let notes = if self.stacked { Notes::Level } else { self.notes(self.bar_width(WIDTH - 90.0)) };
        let up = self.axis.ruler(self.reach(notes).into_iter());
        let mut frame =
            Frame::new(&self.title, Key::Bar, &names, Across::Names(&self.groups), &self.axis, up);
        for group in 0..self.groups.len() {
            if self.stacked {
                self.draw_pile(&mut frame, group);
            } else {
                self.draw_group(&mut frame, group, notes);
            }
        }
        frame.svg.finish()
    }
}
