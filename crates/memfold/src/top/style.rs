//! How the screen looks: colours that can be read on light and dark ground, or none, and letters for terminals without Unicode.
//!
//! Only the terminal's own sixteen colours are used, which its user has chosen; never as text on a ground that is not known, but red and green,
//! which go with either. Nothing is told by colour alone.

use crate::view::heat::Kind;
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::border;

/// Steps of a bar, or heights of a column, from little to all.
const EIGHTHS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const LETTERS: [char; 8] = ['_', '.', ',', '-', '=', '+', '*', '#'];

/// What the terminal can show.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Look {
    /// Whether there are colours (no-color.org, and the terminal has some).
    pub colours: bool,
    /// Whether block elements of Unicode may be used.
    pub unicode: bool,
}

impl Look {
    /// By the environment.
    pub fn of_environment() -> Look {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].map(variable).into_iter().find(|value| !value.is_empty());
        Look::of(&variable("TERM"), &variable("NO_COLOR"), &locale.unwrap_or_default())
    }

    fn of(term: &str, no_color: &str, locale: &str) -> Look {
        let mono = ["vt52", "vt100", "vt102", "vt220", "vt320", "dumb", "unknown", ""].contains(&term)
            || term.ends_with("-m")
            || term.ends_with("-mono");
        let locale = locale.to_lowercase();
        Look {
            colours: no_color.is_empty() && !mono,
            unicode: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    /// Text in a colour.
    pub fn text(self, colour: Color) -> Style {
        if self.colours {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    /// What is above a table.
    pub fn head(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD)
    }

    /// What is chosen.
    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// What stands out.
    pub fn strong(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// What is beside the point.
    pub fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// A cell of the picture: its letter, on its colour.
    pub fn cell(self, kind: Kind) -> Style {
        let colour = match kind {
            Kind::InUse => Color::Red,
            Kind::Cooling => Color::Yellow,
            Kind::Cold => Color::Green,
            Kind::Aside => Color::Cyan,
            Kind::Folded => Color::Blue,
            Kind::Other => Color::DarkGray,
            Kind::Own => Color::Magenta,
            Kind::Nothing => return Style::new(),
        };
        if self.colours {
            Style::new().fg(colour).add_modifier(Modifier::REVERSED)
        } else {
            Style::new()
        }
    }

    /// What a box is drawn with.
    pub fn border(self) -> border::Set<'static> {
        if self.unicode {
            return border::PLAIN;
        }
        border::Set {
            top_left: "+",
            top_right: "+",
            bottom_left: "+",
            bottom_right: "+",
            vertical_left: "|",
            vertical_right: "|",
            horizontal_top: "-",
            horizontal_bottom: "-",
        }
    }

    /// A bar of so many cells for a part of a whole.
    pub fn bar(self, part: f64, whole: f64, width: usize) -> String {
        let full = if whole > 0.0 { (part / whole).clamp(0.0, 1.0) * width as f64 } else { 0.0 };
        // What there is a little of is seen.
        let filled = if part > 0.0 { (full.round() as usize).max(1).min(width) } else { 0 };
        let (on, off) = if self.unicode { ('█', '░') } else { ('#', '.') };
        std::iter::repeat_n(on, filled).chain(std::iter::repeat_n(off, width - filled)).collect()
    }

    /// The last values as columns of one line, the highest as high as the line; as many as fit, the newest at the end.
    pub fn spark(self, values: impl DoubleEndedIterator<Item = f64> + Clone, width: usize) -> String {
        let last = values.rev().take(width);
        let most = last.clone().fold(0.0, f64::max);
        let steps = if self.unicode { EIGHTHS } else { LETTERS };
        let step = |value: f64| match value / most {
            part if part > 0.0 => steps[((part * 8.0).ceil() as usize).clamp(1, 8) - 1],
            _ => ' ',
        };
        let drawn: String = last.map(step).collect();
        drawn.chars().rev().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_left_out_where_nobody_wants_or_has_them() {
        let colours = |term, no_color| Look::of(term, no_color, "en_US.UTF-8").colours;
        assert!(colours("xterm-256color", "") && colours("screen", ""));
        assert!(
            !colours("xterm-256color", "1")
                && !colours("vt100", "")
                && !colours("xterm-mono", "")
                && !colours("", "")
        );
        let plain = Look { colours: false, unicode: false };
        assert_eq!(plain.cell(Kind::Folded), Style::new());
        assert!(Look::of("linux", "", "de_DE.utf8").unicode && !Look::of("xterm", "", "C").unicode);
    }

    #[test]
    fn bars_and_sparks_are_as_long_as_they_are_asked_to_be() {
        let look = Look { colours: true, unicode: false };
        assert_eq!(look.bar(1.0, 2.0, 4), "##..");
        assert_eq!(look.bar(1.0, 1e9, 4), "#...");
        assert_eq!(look.bar(0.0, 0.0, 4), "....");
        assert_eq!(look.bar(9.0, 2.0, 4), "####");
        assert_eq!(look.spark([100.0, 0.0, 1.0, 4.0, 8.0].into_iter(), 4), " _-#");
        assert_eq!(look.spark([0.0, 0.0].into_iter(), 4), "  ");
        let tall = Look { unicode: true, ..look };
        assert_eq!(tall.spark([1.0, 8.0].into_iter(), 9), "▁█");
    }
}
