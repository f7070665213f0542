//! Bars in groups, side by side or stacked, with intervals.

use crate::axis::{write_short, Axis};
use crate::frame::{Across, Frame, Key};
use crate::svg::Anchor;
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

impl From<stats::Ratio> for Value {
    fn from(ratio: stats::Ratio) -> Value {
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

/// Up to so many bars each have their value written beside them.
const MOST_NOTES: usize = 20;
/// Height of a note, as a share of the axis.
const NOTE: f64 = 0.06;

impl Bars {
    fn from(&self) -> f64 {
        self.axis.mark.unwrap_or(0.0)
    }

    /// Every value that the axis must reach, with room for the notes beyond the ends.
    fn reach(&self) -> Vec<f64> {
        let mut all: Vec<f64> = if self.axis.logarithmic { Vec::new() } else { vec![self.from()] };
        if self.stacked {
            all.extend((0..self.groups.len()).map(|group| self.pile(group).1));
        } else {
            all.extend(self.series.iter().flat_map(|s| &s.values).flatten().flat_map(|value| value.all()));
        }
        if !self.axis.logarithmic {
            let low = all.iter().copied().fold(self.from(), f64::min);
            let high = all.iter().copied().fold(self.from(), f64::max);
            let room = (high - low) * NOTE;
            all.extend((low < self.from()).then_some(low - room));
            all.extend((high > self.from()).then_some(high + room));
        }
        all
    }

    /// The bars of a group that stand on each other, each with its low and high end, and their sum.
    fn pile(&self, group: usize) -> (Vec<(usize, f64, f64)>, f64) {
        let mut top = self.from();
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
        frame.svg.note(note, Anchor::Middle, &write_short(top, self.axis.unit));
    }

    fn draw_group(&self, frame: &mut Frame, group: usize) {
        let (from, width) = frame.slot(group, self.groups.len());
        let each = (width * 0.8 / self.series.len() as f64).min(64.0);
        let start = from + (width - each * self.series.len() as f64) / 2.0;
        let notes = self.groups.len() * self.series.len() <= MOST_NOTES;
        for (number, series) in self.series.iter().enumerate() {
            let (left, right) =
                (start + each * number as f64 + 1.0, start + each * (number + 1) as f64 - 1.0);
            let middle = (left + right) / 2.0;
            let (_, _, _, bottom) = frame.area();
            let base = if self.axis.logarithmic { bottom } else { frame.y(self.from()) };
            let Some(value) = series.values.get(group).copied().flatten().filter(|v| v.middle.is_finite())
            else {
                frame.svg.note((middle, base - 4.0), Anchor::Middle, "–");
                continue;
            };
            if !frame.shows_y(value.middle) {
                frame.svg.note(
                    (middle, bottom - 4.0),
                    Anchor::Middle,
                    &write_short(value.middle, self.axis.unit),
                );
                continue;
            }
            let tip = frame.y(value.middle);
            frame.svg.bar(number, (left, base), (right, tip));
            if let Some((low, high)) = value.interval {
                frame.upright_interval(middle, low, high);
            }
            if notes {
                let ends = value.all().map(|v| frame.y(v));
                let y = if tip <= base {
                    ends.fold(base, f64::min) - 5.0
                } else {
                    ends.fold(base, f64::max) + 12.0
                };
                frame.svg.note((middle, y), Anchor::Middle, &write_short(value.middle, self.axis.unit));
            }
        }
    }
}

impl Chart for Bars {
    fn svg(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(|series| series.name.as_str()).collect();
        let up = self.axis.ruler(self.reach().into_iter());
        let mut frame =
            Frame::new(&self.title, Key::Bar, &names, Across::Names(&self.groups), &self.axis, up);
        for group in 0..self.groups.len() {
            if self.stacked {
                self.draw_pile(&mut frame, group);
            } else {
                self.draw_group(&mut frame, group);
            }
        }
        frame.svg.finish()
    }
}
