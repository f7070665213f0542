//! Several drawings beside and below each other, as one.

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
        let greatest = |panels: &[String], name: &str| {
            panels.iter().map(|panel| length(panel, name)).fold(0.0, f64::max) * SCALE
        };
        let (width, mut y, mut body) = (greatest(&self.panels, "width").max(1.0), 0.0, String::new());
        for row in self.panels.chunks(2) {
            let height = greatest(row, "height");
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

/// The width or height that a drawing names in its first line.
fn length(svg: &str, name: &str) -> f64 {
    let value = svg.split_once(&format!(" {name}=\"")).and_then(|(_, rest)| rest.split_once('"'));
    value.and_then(|(value, _)| value.parse().ok()).unwrap_or(0.0)
}
