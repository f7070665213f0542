//! Several drawings beside and below each other, as one.

use crate::frame::WIDTH;
use crate::Chart;

/// Drawings in two columns, in reading order; a single one stands alone.
#[derive(Clone, Debug, Default)]
pub struct Panels {
    /// The drawings, as SVG documents that [`Chart::svg`] made.
    pub panels: Vec<String>,
}

/// Scale of a drawing that has a neighbour: two of them are about as wide as one and a half alone.
const SCALE: f64 = 0.75;

impl Chart for Panels {
    fn svg(&self) -> String {
        if let [only] = &self.panels[..] {
            return only.clone();
        }
        let (width, mut y, mut body) = (WIDTH * SCALE, 0.0, String::new());
        for row in self.panels.chunks(2) {
            let height = row.iter().map(|panel| height_of(panel)).fold(0.0, f64::max) * SCALE;
            for (column, panel) in row.iter().enumerate() {
                let x = column as f64 * width;
                body.push_str(&format!(
                    r#"<g transform="translate({x:.1} {y:.1}) scale({SCALE})">{panel}</g>"#
                ));
            }
            y += height;
        }
        let (width, height) = (2.0 * width, y.max(1.0));
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0}" height="{height:.0}" viewBox="0 0 {width:.0} {height:.0}">
<rect width="{width:.0}" height="{height:.0}" fill="#ffffff"/>
{body}</svg>
"##
        )
    }
}

/// The height that a drawing names in its first line.
fn height_of(svg: &str) -> f64 {
    let height = svg.split_once(" height=\"").and_then(|(_, rest)| rest.split_once('"'));
    height.and_then(|(height, _)| height.parse().ok()).unwrap_or(0.0)
}
