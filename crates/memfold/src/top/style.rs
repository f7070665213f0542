//! How the screen looks: colours that can be read on light and dark ground, or none, and letters for terminals without Unicode.
//!
//! Only the terminal's own sixteen colours are used, which its user has chosen. Text in a colour has a ground of its own, with a contrast of 4.5 at least
//! (WCAG 2.1, 1.4.3); all other text has the colour that the terminal gives text. Nothing is told by colour alone.

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

    /// A curve, which has neighbours of no colour that is known; magenta goes with light and dark ones.
    pub fn curve(self) -> Style {
        if self.colours {
            Style::new().fg(Color::Magenta)
        } else {
            Style::new()
        }
    }

    /// What is not as it should be.
    pub fn alarm(self) -> Style {
        if self.colours {
            self.strong().fg(Color::White).bg(Color::Red)
        } else {
            self.strong()
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
        match colours(kind) {
            Some((text, ground)) if self.colours => Style::new().fg(text).bg(ground),
            _ => Style::new(),
        }
    }

    /// A bar in the colour that its kind has in the picture.
    pub fn bar_of(self, kind: Kind) -> Style {
        match colours(kind) {
            Some((_, colour)) if self.colours => Style::new().fg(colour),
            _ => Style::new(),
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

/// The colour of a kind's letter, and of the ground that it stands on.
fn colours(kind: Kind) -> Option<(Color, Color)> {
    match kind {
        Kind::InUse => Some((Color::White, Color::Red)),
        Kind::Cooling => Some((Color::Black, Color::LightYellow)),
        Kind::Cold => Some((Color::Black, Color::Green)),
        Kind::Aside => Some((Color::Black, Color::Cyan)),
        Kind::Folded => Some((Color::White, Color::Blue)),
        Kind::Other => Some((Color::Black, Color::Gray)),
        Kind::Own => Some((Color::White, Color::Magenta)),
        Kind::Nothing => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What xterm and the terminals of Gnome (VTE) make of black, red, green, light yellow, blue, magenta, cyan, light grey and white.
    const PALETTES: [[u32; 9]; 2] = [
        [0x000000, 0xcd0000, 0x00cd00, 0xffff00, 0x0000ee, 0xcd00cd, 0x00cdcd, 0xe5e5e5, 0xffffff],
        [0x171421, 0xc01c28, 0x26a269, 0xe9ad0c, 0x12488b, 0xa347ba, 0x2aa1b3, 0xd0cfcc, 0xffffff],
    ];

    /// The contrast of two colours (WCAG 2.1, 1.4.3).
    fn contrast(a: u32, b: u32) -> f64 {
        let part = |byte: u32| match f64::from(byte & 0xff) / 255.0 {
            c if c <= 0.03928 => c / 12.92,
            c => ((c + 0.055) / 1.055).powf(2.4),
        };
        let light = |c: u32| 0.2126 * part(c >> 16) + 0.7152 * part(c >> 8) + 0.0722 * part(c);
        let (a, b) = (light(a) + 0.05, light(b) + 0.05);
        a.max(b) / a.min(b)
    }

    fn seen(colour: Option<Color>, palette: [u32; 9]) -> u32 {
        let all = [
            Color::Black,
            Color::Red,
            Color::Green,
            Color::LightYellow,
            Color::Blue,
            Color::Magenta,
            Color::Cyan,
            Color::Gray,
            Color::White,
        ];
        palette[all.iter().position(|known| Some(*known) == colour).expect("it is one of these")]
    }

    #[test]
    fn coloured_text_and_curves_can_be_read() {
        let look = Look { colours: true, unicode: true };
        let cells = Kind::SHOWN.map(|(kind, _)| look.cell(kind));
        for palette in PALETTES {
            for style in cells.into_iter().chain([look.alarm()]) {
                let found = contrast(seen(style.fg, palette), seen(style.bg, palette));
                assert!(found >= 4.5, "{style:?}: {found:.2}");
            }
            // What is no text: 3, on dark and on light ground.
            for ground in [palette[0], 0xffffff] {
                let found = contrast(seen(look.curve().fg, palette), ground);
                assert!(found >= 3.0, "{ground:x}: {found:.2}");
            }
        }
    }

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
