//! Lines over time, passes or sizes.

use crate::axis::Axis;
use crate::frame::{Across, Frame, Key};
use crate::Chart;

/// One line.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// Its points, by ascending `x`.
    pub points: Vec<(f64, f64)>,
}

/// Lines over a common axis.
#[derive(Clone, Debug)]
pub struct Lines {
    /// What the chart shows.
    pub title: String,
    /// The lower axis.
    pub x: Axis,
    /// The upright axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
}

/// Up to so many points of a line each have a marker.
const MOST_MARKERS: usize = 20;
/// Points nearer than this to the one before are not drawn, in units of the drawing.
const NEAR: f64 = 0.4;

impl Chart for Lines {
    fn svg(&self) -> String {
        let names: Vec<&str> = self.lines.iter().map(|line| line.name.as_str()).collect();
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let across = Across::Ruler(&self.x, self.x.ruler(points().map(|p| p.0)));
        let up = self.y.ruler(points().map(|p| p.1));
        let mut frame = Frame::new(&self.title, Key::Line, &names, across, &self.y, up);
        for (number, line) in self.lines.iter().enumerate() {
            let shown = line.points.iter().filter(|(x, y)| frame.shows(*x, *y));
            let places: Vec<(f64, f64)> = shown.map(|(x, y)| (frame.x(*x), frame.y(*y))).collect();
            frame.svg.line(number, &thinned(&places));
            if places.len() <= MOST_MARKERS {
                places.into_iter().for_each(|place| frame.svg.marker(number, place));
            }
        }
        frame.svg.finish()
    }
}

/// The points without those that no eye could tell from the one before; the last always stays.
fn thinned(places: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    for (number, &(x, y)) in places.iter().enumerate() {
        let near = kept.last().is_some_and(|(a, b)| (x - a).abs() < NEAR && (y - b).abs() < NEAR);
        if !near || number + 1 == places.len() {
            kept.push((x, y));
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_on_top_of_each_other_are_drawn_once_and_the_ends_stay() {
        let crowd: Vec<(f64, f64)> = (0..10_000).map(|i| (f64::from(i) / 100.0, 5.0)).collect();
        let kept = thinned(&crowd);
        assert!(kept.len() < 300, "{} of {} stay", kept.len(), crowd.len());
        assert_eq!((kept[0], kept[kept.len() - 1]), (crowd[0], crowd[crowd.len() - 1]));
    }
}
