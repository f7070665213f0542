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
        let mut taken: Vec<Rectangle> =
            places.iter().map(|(x, y)| (x - 5.0, y - 5.0, x + 5.0, y + 5.0)).collect();
        for (point, &(x, y)) in shown.iter().zip(&places) {
            if let Some((low, high)) = point.x.interval {
                frame.level_interval(y, low, high);
                taken.push((frame.x(low), y - 4.0, frame.x(high), y + 4.0));
            }
            if let Some((low, high)) = point.y.interval {
                frame.upright_interval(x, low, high);
                taken.push((x - 4.0, frame.y(high), x + 4.0, frame.y(low)));
            }
        }
        for (point, &(x, y)) in shown.iter().zip(&places) {
            frame.svg.marker(point.series, (x, y));
            let (left, base) = label_place((x, y), &point.label, frame.area(), &taken);
            taken.push(bounds(left, base, &point.label));
            frame.svg.label((left, base), &point.label);
        }
        frame.svg.finish()
    }
}

fn bounds(left: f64, base: f64, label: &str) -> Rectangle {
    (left, base - TEXT, left + width_of(label), base + 3.0)
}

/// Where the label of a point goes: the first of the places around it that lies within the area and touches neither
/// another label nor a point; the last one if none is free.
fn label_place((x, y): (f64, f64), label: &str, area: Rectangle, taken: &[Rectangle]) -> (f64, f64) {
    let width = width_of(label);
    let near = [(8.0, 4.0), (-8.0 - width, 4.0), (-width / 2.0, -9.0), (-width / 2.0, 19.0)];
    let far =
        [(8.0, -13.0), (8.0, 21.0), (-8.0 - width, -13.0), (-8.0 - width, 21.0), (8.0, 38.0), (8.0, -30.0)];
    let mut places = near.into_iter().chain(far).map(|(dx, dy)| (x + dx, y + dy));
    let free = |&(left, base): &(f64, f64)| {
        let own = bounds(left, base, label);
        let inside = own.0 >= area.0 && own.1 >= area.1 && own.2 <= area.2 + 10.0 && own.3 <= area.3;
        let apart = |o: &Rectangle| own.2 <= o.0 || o.2 <= own.0 || own.3 <= o.1 || o.3 <= own.1;
        inside && taken.iter().all(apart)
    };
    places.find(free).unwrap_or((x + 8.0, y + 4.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_points_in_one_place_do_not_cover_each_other() {
        let mut taken = vec![(95.0, 95.0, 105.0, 105.0)];
        for _ in 0..5 {
            let (left, base) = label_place((100.0, 100.0), "label", (0.0, 0.0, 300.0, 300.0), &taken);
            let own = bounds(left, base, "label");
            let apart = |o: &Rectangle| own.2 <= o.0 || o.2 <= own.0 || own.3 <= o.1 || o.3 <= own.1;
            assert!(taken.iter().all(apart), "{own:?} covers one of {taken:?}");
            taken.push(own);
        }
    }
}
