//! Labelled points, such as cost over gain, with intervals in both directions.

use crate::axis::Axis;
use crate::bars::Value;
use crate::frame::{Across, Frame, Key};
use crate::svg::{width_of, TEXT};
use crate::Chart;

/// One point.
#[derive(Clone, Debug)]
pub struct Point {
    /// What stands beside it.
    pub label: String,
    /// Which of the chart's series it belongs to.
    pub series: usize,
    /// Its place along the lower axis.
    pub x: Value,
    /// Its place along the upright axis.
    pub y: Value,
}

/// Labelled points in one or more series.
#[derive(Clone, Debug)]
pub struct Scatter {
    /// What the chart shows.
    pub title: String,
    /// The lower axis.
    pub x: Axis,
    /// The upright axis.
    pub y: Axis,
    /// The names of the series.
    pub series: Vec<String>,
    /// The points.
    pub points: Vec<Point>,
}

/// Left, top, right and bottom.
type Rectangle = (f64, f64, f64, f64);

impl Chart for Scatter {
    fn svg(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(String::as_str).collect();
        let across = Across::Ruler(&self.x, self.x.ruler(self.points.iter().flat_map(|p| p.x.all())));
        let up = self.y.ruler(self.points.iter().flat_map(|p| p.y.all()));
        let mut frame = Frame::new(&self.title, Key::Marker, &names, across, &self.y, up);
        let shown: Vec<&Point> = self.points.iter().filter(|p| frame.shows(p.x.middle, p.y.middle)).collect();
        let places: Vec<(f64, f64)> =
            shown.iter().map(|p| (frame.x(p.x.middle), frame.y(p.y.middle))).collect();
        let points: Vec<Rectangle> =
            places.iter().map(|(x, y)| (x - 5.0, y - 5.0, x + 5.0, y + 5.0)).collect();
        let mut intervals: Vec<Rectangle> = Vec::new();
        for (point, &(x, y)) in shown.iter().zip(&places) {
            if let Some((low, high)) = point.x.interval {
                frame.level_interval(y, low, high);
                intervals.push((frame.x(low), y - 4.0, frame.x(high), y + 4.0));
            }
            if let Some((low, high)) = point.y.interval {
                frame.upright_interval(x, low, high);
                intervals.push((x - 4.0, frame.y(high), x + 4.0, frame.y(low)));
            }
        }
        let mut labels = Vec::new();
        for (point, &(x, y)) in shown.iter().zip(&places) {
            let at = label_place((x, y), &point.label, frame.area(), [&points, &intervals, &labels]);
            labels.push(bounds(at.0, at.1, &point.label));
        }
        // Lines below markers, and both below text.
        for (&(x, y), own) in places.iter().zip(&labels) {
            let near = (x.clamp(own.0, own.2), y.clamp(own.1, own.3));
            if (near.0 - x).hypot(near.1 - y) > ATTACHED {
                frame.svg.rule((x, y), near, LEADER, 0.8);
            }
        }
        for (point, &place) in shown.iter().zip(&places) {
            frame.svg.marker(point.series, place);
        }
        for (point, own) in shown.iter().zip(&labels) {
            frame.svg.label((own.0, own.3 - BELOW), &point.label);
        }
        frame.svg.finish()
    }
}

/// A label further from its point is tied to it by a line.
const ATTACHED: f64 = 14.0;
/// The colour of that line.
const LEADER: &str = "#999999";
/// What letters reach below their line.
const BELOW: f64 = 3.0;
/// Steps between the distances at which a place for a label is looked for, and how many there are.
const STEP: f64 = 7.0;
const STEPS: usize = 60;
/// Directions in which it is looked for; a multiple of 4.
const DIRECTIONS: usize = 24;

fn bounds(left: f64, base: f64, label: &str) -> Rectangle {
    (left, base - TEXT, left + width_of(label), base + BELOW)
}

fn apart(a: &Rectangle, b: &Rectangle) -> bool {
    a.2 <= b.0 || b.2 <= a.0 || a.3 <= b.1 || b.3 <= a.1
}

/// Where the label of a point begins: the nearest place around it that lies within the area and touches no point, interval or
/// other label; nearly as near one on an interval is better than one far away. Over others, but whole, where none is free.
fn label_place((x, y): (f64, f64), label: &str, area: Rectangle, taken: [&[Rectangle]; 3]) -> (f64, f64) {
    let (width, height) = (width_of(label), TEXT + BELOW);
    let [points, intervals, labels] = taken;
    let around = (0..STEPS).flat_map(|step| {
        let distance = 8.0 + STEP * step as f64;
        (0..DIRECTIONS + 4).map(move |turn| {
            // To the right, to the left, and from there on upwards and downwards.
            let quarter = (turn / 4) as f64;
            let half = DIRECTIONS as f64 / 2.0;
            let turn = [quarter, half - quarter, -quarter, half + quarter][turn % 4];
            let angle = turn * std::f64::consts::TAU / DIRECTIONS as f64;
            let (across, up) = (angle.cos(), angle.sin());
            // The label's nearest side or corner lies on the circle.
            let left = x + across * distance + (across - 1.0) / 2.0 * width;
            let middle = y - up * (distance + height / 2.0);
            (distance, (left, middle + height / 2.0 - BELOW))
        })
    });
    let free = |own: &Rectangle, others: &[Rectangle]| others.iter().all(|other| apart(own, other));
    let mut second: Option<(f64, (f64, f64))> = None;
    for (distance, at) in around {
        let own = bounds(at.0, at.1, label);
        let inside = own.0 >= area.0 && own.1 >= area.1 && own.2 <= area.2 + 10.0 && own.3 <= area.3;
        if !inside || !free(&own, points) || !free(&own, labels) {
            continue;
        }
        if second.is_some_and(|(near, _)| distance > 3.0 * near + 20.0) {
            break;
        }
        if free(&own, intervals) {
            return at;
        }
        second = second.or(Some((distance, at)));
    }
    let over = ((x + 8.0).min(area.2 + 10.0 - width).max(area.0), y + 4.0);
    second.map_or(over, |(_, at)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_points_in_one_place_do_not_cover_each_other() {
        let points = [(95.0, 95.0, 105.0, 105.0)];
        let mut taken: Vec<Rectangle> = points.to_vec();
        for _ in 0..30 {
            let at = label_place((100.0, 100.0), "label", (0.0, 0.0, 300.0, 300.0), [&points, &[], &taken]);
            let own = bounds(at.0, at.1, "label");
            let apart = |o: &Rectangle| own.2 <= o.0 || o.2 <= own.0 || own.3 <= o.1 || o.3 <= own.1;
            assert!(taken.iter().all(apart), "{own:?} covers one of {taken:?}");
            taken.push(own);
        }
    }
}
