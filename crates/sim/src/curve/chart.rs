//! The drawing of miss-ratio curves.

use super::Curve;
use memfold_plot::{Axis, Line, Lines, Unit};

/// A chart of curves, each policy a line.
pub fn chart(curves: &[Curve], title: &str) -> Lines {
    let line = |curve: &Curve| Line {
        name: curve.policy.clone(),
        points: curve.points.iter().map(|point| (point.size as f64, point.miss_ratio * 100.0)).collect(),
    };
    Lines {
        title: title.to_owned(),
        x: Axis::logarithmic("cache, pages"),
        y: Axis::linear("requests that miss").unit(Unit::Percent).range(0.0, 100.0).not_negative(),
        lines: curves.iter().map(line).collect(),
    }
}
