//! Axes: what they measure, how far they reach, and where their ticks stand.
//!
//! Invariants: a ruler's ticks ascend and lie on it; every value that it was made from does too, save those that a
//! logarithmic axis cannot show, which lie at its low end.

/// What the values of an axis are, which decides how they are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// Plain numbers; large ones with k, M or G.
    #[default]
    Number,
    /// Nanoseconds, written as ns, us, ms or s.
    Nanos,
    /// Bytes, written with binary units.
    Bytes,
    /// Per cent.
    Percent,
}

/// A description of an axis.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    pub(crate) logarithmic: bool,
    pub(crate) range: Option<(f64, f64)>,
    pub(crate) mark: Option<f64>,
}

impl Axis {
    /// A linear axis; `label` says what is measured, with its unit where the ticks do not show it.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis { label: label.into(), unit: Unit::Number, logarithmic: false, range: None, mark: None }
    }

    /// A logarithmic axis. Values of 0 or less cannot be shown on it.
    pub fn logarithmic(label: impl Into<String>) -> Axis {
        Axis { logarithmic: true, ..Axis::linear(label) }
    }

    /// Says what the values are.
    pub fn unit(mut self, unit: Unit) -> Axis {
        self.unit = unit;
        self
    }

    /// Makes the axis reach from `low` to `high`, or further where values demand it.
    pub fn range(mut self, low: f64, high: f64) -> Axis {
        self.range = Some((low, high));
        self
    }

    /// Draws a line across the chart at `value`, such as the 1 of a ratio; bars start from it.
    pub fn mark(mut self, value: f64) -> Axis {
        self.mark = Some(value);
        self
    }

    /// The ruler on which all `values` have a place.
    pub(crate) fn ruler(&self, values: impl Iterator<Item = f64>) -> Ruler {
        let shown = |v: &f64| v.is_finite() && (!self.logarithmic || *v > 0.0);
        let (from, to) = self.range.unzip();
        let all = values.chain([from, to, self.mark].into_iter().flatten()).filter(shown);
        let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = match (low > high, self.logarithmic) {
            (true, false) => (0.0, 1.0),
            (true, true) => (1.0, 10.0),
            _ => (low, high),
        };
        if self.logarithmic {
            logarithmic(low, high, self.unit)
        } else {
            linear(low, high, self.unit)
        }
    }
}

/// An axis with its reach and ticks.
#[derive(Clone, Debug)]
pub(crate) struct Ruler {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<f64>,
    unit: Unit,
    logarithmic: bool,
}

impl Ruler {
    /// Where `value` lies, 0 at the low end and 1 at the high end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let of = |v: f64| if self.logarithmic { v.max(self.low).ln() } else { v };
        ((of(value) - of(self.low)) / (of(self.high) - of(self.low))).clamp(0.0, 1.0)
    }

    /// Whether `value` has a place of its own.
    pub(crate) fn shows(&self, value: f64) -> bool {
        value.is_finite() && (!self.logarithmic || value > 0.0)
    }

    /// A tick's label.
    pub(crate) fn label(&self, tick: f64) -> String {
        write(tick, self.unit)
    }
}

/// About this many ticks stand on an axis.
const TICKS: f64 = 6.0;

fn linear(low: f64, high: f64, unit: Unit) -> Ruler {
    let span = if high > low { high - low } else { low.abs().max(1.0) };
    let base =
        if unit == Unit::Bytes { 1024f64.powf((span / TICKS).max(1.0).log(1024.0).floor()) } else { 1.0 };
    let rough = span / base / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = base * power * [1.0, 2.0, 5.0].into_iter().find(|s| rough <= s * power).unwrap_or(10.0);
    let first = (low / step + 1e-9).floor();
    let last = (high / step - 1e-9).ceil().max(first + 1.0);
    let ticks: Vec<f64> = (0..=(last - first) as usize).map(|i| (first + i as f64) * step).collect();
    Ruler { low: first * step, high: last * step, ticks, unit, logarithmic: false }
}

fn logarithmic(low: f64, high: f64, unit: Unit) -> Ruler {
    let base: f64 = if unit == Unit::Bytes { 4.0 } else { 10.0 };
    let first = low.log(base).floor() as i32;
    let last = (high.log(base).ceil() as i32).max(first + 1);
    let every = ((last - first) / 8 + 1) as usize;
    let steps: &[f64] = if last - first <= 2 && base == 10.0 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let (low, high) = (base.powi(first), base.powi(last));
    let ticks = (first..=last)
        .step_by(every)
        .flat_map(|power| steps.iter().map(move |step| step * base.powi(power)))
        .filter(|tick| *tick <= high * 1.000_001)
        .collect();
    Ruler { low, high, ticks, unit, logarithmic: true }
}

/// A value with its unit and at most four digits.
pub(crate) fn write(value: f64, unit: Unit) -> String {
    let scaled = |units: &[(f64, &str)]| {
        let (by, name) =
            units.iter().find(|(by, _)| value.abs() >= *by * 0.999_999).unwrap_or(&units[units.len() - 1]);
        format!("{}{name}", digits(value / by))
    };
    match unit {
        Unit::Nanos | Unit::Bytes if value == 0.0 => "0".into(),
        Unit::Number if value.abs() < 10_000.0 => digits(value),
        Unit::Number => scaled(&[(1e9, "G"), (1e6, "M"), (1e3, "k")]),
        Unit::Nanos => scaled(&[(1e9, " s"), (1e6, " ms"), (1e3, " us"), (1.0, " ns")]),
        Unit::Bytes => {
            let k = 1024f64;
            scaled(&[(k * k * k, " GiB"), (k * k, " MiB"), (k, " KiB"), (1.0, " B")])
        }
        Unit::Percent => format!("{} %", digits(value)),
    }
}

/// A value with its unit and three digits, for a note beside a bar.
pub(crate) fn write_short(value: f64, unit: Unit) -> String {
    if value == 0.0 || !value.is_finite() {
        return write(value, unit);
    }
    let step = 10f64.powf(value.abs().log10().floor() - 2.0);
    write((value / step).round() * step, unit)
}

/// At most four significant digits, without zeros at the end.
fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let decimals = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_short_and_with_their_unit() {
        assert_eq!(write(0.98, Unit::Number), "0.98");
        assert_eq!(write(245_632.0, Unit::Number), "245.6k");
        assert_eq!(write(17_689.0, Unit::Nanos), "17.69 us");
        assert_eq!(write(268_435_456.0, Unit::Bytes), "256 MiB");
        assert_eq!(write(-2.0, Unit::Percent), "-2 %");
        assert_eq!(write(0.0, Unit::Nanos), "0");
        assert_eq!(write_short(0.80149, Unit::Number), "0.801");
        assert_eq!(write_short(16_912.0, Unit::Number), "16.9k");
        assert_eq!(write(0.0001, Unit::Number), "0.0001");
    }

    #[test]
    fn ticks_are_round_and_enclose_the_values() {
        let ruler = Axis::linear("").ruler([0.93, 1.07].into_iter());
        assert!(ruler.low <= 0.93 && ruler.high >= 1.07 && (4..=9).contains(&ruler.ticks.len()), "{ruler:?}");
        let bytes = Axis::linear("").unit(Unit::Bytes).ruler([0.0, 300.0 * 1024.0 * 1024.0].into_iter());
        assert_eq!(bytes.label(bytes.ticks[1]), "50 MiB");
        let log = Axis::logarithmic("").unit(Unit::Nanos).ruler([900.0, 6e6].into_iter());
        let labels: Vec<String> = log.ticks.iter().map(|t| log.label(*t)).collect();
        assert_eq!(labels, ["100 ns", "1 us", "10 us", "100 us", "1 ms", "10 ms"]);
    }

    #[test]
    fn an_axis_without_values_and_one_with_a_single_value_can_be_drawn() {
        for values in [vec![], vec![0.0], vec![5.0], vec![-3.0], vec![f64::NAN]] {
            for axis in [Axis::linear(""), Axis::logarithmic("")] {
                let ruler = axis.ruler(values.clone().into_iter());
                assert!(ruler.high > ruler.low && ruler.ticks.len() >= 2, "{values:?}: {ruler:?}");
            }
        }
    }

    #[test]
    fn a_logarithmic_axis_puts_zero_at_its_low_end() {
        let ruler = Axis::logarithmic("").ruler([0.0, 10.0, 1000.0].into_iter());
        assert!(!ruler.shows(0.0));
        assert_eq!(ruler.place(0.0), 0.0);
        assert!((ruler.place(100.0) - 0.5).abs() < 1e-9);
    }
}
