//! Axes: what they measure, how far they reach, and where their ticks stand.
//!
//! Invariants: a ruler's ticks ascend and lie on it; every value that it was made from does too, save those that a
//! logarithmic axis cannot show and those below 0 of what cannot be negative, which lie at its low end.

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

/// How values become distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    /// Equal differences are equally far apart.
    Linear,
    /// Equal quotients are, from one power of the base to another.
    Logarithmic,
    /// The same for quotients themselves, no further than they reach.
    Ratio,
    /// The same for quotients that are written as what they are more or less than 1, in per cent.
    Change,
}

impl Scale {
    /// What is as far from another as it is greater; `None` for what has no place.
    fn of(self, value: f64) -> Option<f64> {
        let place = match self {
            Scale::Linear => value,
            Scale::Logarithmic | Scale::Ratio => value.ln(),
            Scale::Change => (1.0 + value / 100.0).ln(),
        };
        place.is_finite().then_some(place)
    }

    /// What is written before a value.
    fn sign(self, value: f64) -> &'static str {
        if self == Scale::Change && value > 0.0 {
            "+"
        } else {
            ""
        }
    }

    /// The value with this place.
    fn back(self, place: f64) -> f64 {
        match self {
            Scale::Linear => place,
            Scale::Logarithmic | Scale::Ratio => place.exp(),
            Scale::Change => (place.exp() - 1.0) * 100.0,
        }
    }
}

/// A description of an axis.
#[derive(Clone, Debug)]
pub struct Axis {
    pub(crate) label: String,
    pub(crate) unit: Unit,
    scale: Scale,
    range: Option<(f64, f64)>,
    pub(crate) mark: Option<f64>,
    not_negative: bool,
}

impl Axis {
    /// A linear axis; `label` says what is measured, with its unit where the ticks do not show it.
    pub fn linear(label: impl Into<String>) -> Axis {
        Axis {
            label: label.into(),
            unit: Unit::Number,
            scale: Scale::Linear,
            range: None,
            mark: None,
            not_negative: false,
        }
    }

    /// A logarithmic axis. Values of 0 or less cannot be shown on it.
    pub fn logarithmic(label: impl Into<String>) -> Axis {
        Axis { scale: Scale::Logarithmic, ..Axis::linear(label) }
    }

    /// An axis for ratios: 1 is marked, and a half is as far from it as 2, so that who loses is seen beside who wins
    /// twentyfold. It reaches as far as the values, and at least a tenth to either side. Values of 0 or less cannot be shown.
    pub fn ratio(label: impl Into<String>) -> Axis {
        Axis { scale: Scale::Ratio, mark: Some(1.0), range: Some((0.9, 1.1)), ..Axis::linear(label) }
    }

    /// The same for ratios that are given as what they are more than 1, in per cent: -50 is as far from 0 as +100. Values of
    /// -100 or less cannot be shown.
    pub fn change(label: impl Into<String>) -> Axis {
        let (mark, range) = (Some(0.0), Some((-10.0, 10.0)));
        Axis { scale: Scale::Change, mark, range, ..Axis::linear(label) }.unit(Unit::Percent)
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

    /// Says that what is measured cannot be less than 0: the axis begins there, and so does an interval whose arithmetic gave
    /// it a lower end.
    pub fn not_negative(mut self) -> Axis {
        self.not_negative = true;
        let high = self.range.map_or(0.0, |(_, high)| high);
        self.range(0.0, high)
    }

    /// Draws a line across the chart at `value`, such as the 1 of a ratio; bars start from it.
    pub fn mark(mut self, value: f64) -> Axis {
        self.mark = Some(value);
        self
    }

    /// Whether equal quotients are equally far apart on it.
    pub(crate) fn is_logarithmic(&self) -> bool {
        self.scale != Scale::Linear
    }

    /// A value as it is written beside its bar.
    pub(crate) fn note(&self, value: f64) -> String {
        format!("{}{}", self.scale.sign(value), write_short(value, self.unit))
    }

    /// Where bars start: from the mark, or from 0 where there is one; `None` for the low end of the axis.
    pub(crate) fn origin(&self) -> Option<f64> {
        self.mark.or((self.scale == Scale::Linear).then_some(0.0))
    }

    /// The least and the greatest of `values` and the origin, and so much further, as a share of what lies between, where
    /// something lies beyond the origin: room for what is written there.
    pub(crate) fn with_room(&self, values: impl Iterator<Item = f64>, share: f64) -> Vec<f64> {
        let places = values.chain(self.origin()).filter_map(|value| self.scale.of(self.bounded(value)));
        let (low, high) = ends(places);
        if low > high {
            return Vec::new();
        }
        let (room, origin) = ((high - low) * share, self.origin().and_then(|value| self.scale.of(value)));
        let below = if origin.is_some_and(|origin| low < origin) { low - room } else { low };
        let above = if origin.is_none_or(|origin| high > origin) { high + room } else { high };
        [below, above].map(|place| self.scale.back(place)).into()
    }

    fn bounded(&self, value: f64) -> f64 {
        if self.not_negative {
            value.max(0.0)
        } else {
            value
        }
    }

    /// The ruler on which all `values` have a place.
    pub(crate) fn ruler(&self, values: impl Iterator<Item = f64>) -> Ruler {
        let (from, to) = self.range.unzip();
        let all = values.map(|value| self.bounded(value)).chain([from, to, self.mark].into_iter().flatten());
        let (low, high) = ends(all.filter(|value| self.scale.of(*value).is_some()));
        let (low, high) = match (low > high, self.scale) {
            (false, _) => (low, high),
            (true, Scale::Linear) => (0.0, 1.0),
            (true, _) => (1.0, 10.0),
        };
        let (low, high, ticks) = match self.scale {
            Scale::Linear => linear(low, high, self.unit),
            Scale::Logarithmic => logarithmic(low, high, self.unit),
            Scale::Ratio | Scale::Change => quotients(low, high, self.scale, self.unit),
        };
        Ruler { low, high, ticks, unit: self.unit, scale: self.scale }
    }
}

/// The least and the greatest; the wrong way round where there is none.
fn ends(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
}

/// An axis with its reach and ticks.
#[derive(Clone, Debug)]
pub(crate) struct Ruler {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) ticks: Vec<f64>,
    unit: Unit,
    scale: Scale,
}

impl Ruler {
    /// Where `value` lies, 0 at the low end and 1 at the high end; what cannot be shown lies at the low end.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let of = |value: f64| self.scale.of(value);
        let (Some(low), Some(high), Some(place)) = (of(self.low), of(self.high), of(value)) else {
            return 0.0;
        };
        ((place - low) / (high - low)).clamp(0.0, 1.0)
    }

    /// Whether `value` has a place of its own.
    pub(crate) fn shows(&self, value: f64) -> bool {
        self.scale.of(value).is_some()
    }

    /// A tick's label.
    pub(crate) fn label(&self, tick: f64) -> String {
        format!("{}{}", self.scale.sign(tick), write(tick, self.unit))
    }
}

/// About this many ticks stand on an axis.
const TICKS: f64 = 6.0;

/// Low end, high end and ticks.
type Reach = (f64, f64, Vec<f64>);

fn linear(low: f64, high: f64, unit: Unit) -> Reach {
    let span = if high > low { high - low } else { low.abs().max(1.0) };
    let base =
        if unit == Unit::Bytes { 1024f64.powf((span / TICKS).max(1.0).log(1024.0).floor()) } else { 1.0 };
    let rough = span / base / TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = base * power * [1.0, 2.0, 5.0].into_iter().find(|s| rough <= s * power).unwrap_or(10.0);
    let first = (low / step + 1e-9).floor();
    let last = (high / step - 1e-9).ceil().max(first + 1.0);
    let ticks: Vec<f64> = (0..=(last - first) as usize).map(|i| (first + i as f64) * step).collect();
    (first * step, last * step, ticks)
}

fn logarithmic(low: f64, high: f64, unit: Unit) -> Reach {
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
    (low, high, ticks)
}

/// Changes below 0 that are easily read; above it, 1, 2 and 5 times the powers of 10 from 100 on.
const LOSSES: [f64; 10] = [-99.99, -99.9, -99.0, -98.0, -95.0, -90.0, -75.0, -50.0, -25.0, 0.0];
/// Quotients further apart than this are not shown by equal steps.
const NEAR: f64 = 3.0;

/// The ruler of ratios or changes. Between near ones ticks are equal steps, between others they are round figures, and the one
/// in the middle is among them.
fn quotients(low: f64, high: f64, scale: Scale, unit: Unit) -> Reach {
    let of = |value: f64| scale.of(value).unwrap_or(0.0);
    if of(high) - of(low) < NEAR.ln() {
        return linear(low, high, unit);
    }
    let powers =
        |from: i32| (from..18).flat_map(|power| [1.0, 2.0, 5.0].map(|step| step * 10f64.powi(power)));
    let round: Vec<f64> = match scale {
        Scale::Change => LOSSES.into_iter().chain(powers(2)).collect(),
        _ => powers(-18).collect(),
    };
    let start = round.iter().rposition(|tick| *tick <= low + low.abs() * 1e-9).unwrap_or(0);
    let end = round.iter().position(|tick| *tick >= high - high.abs() * 1e-9).unwrap_or(round.len() - 1);
    let ticks = &round[start..=end.max(start)];
    // Outwards from the middle, each at a distance from the one before.
    let apart = (of(ticks[ticks.len() - 1]) - of(ticks[0])) / (2.0 * TICKS);
    let middle = ticks.iter().position(|tick| of(*tick).abs() < 1e-9).unwrap_or(0);
    let mut kept = vec![ticks[middle]];
    for outwards in
        [&mut ticks[middle..].iter() as &mut dyn Iterator<Item = &f64>, &mut ticks[..middle].iter().rev()]
    {
        let mut last = of(ticks[middle]);
        for &tick in outwards {
            if (of(tick) - last).abs() >= apart {
                kept.push(tick);
                last = of(tick);
            }
        }
    }
    kept.sort_by(f64::total_cmp);
    (ticks[0], ticks[ticks.len() - 1], kept)
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
fn write_short(value: f64, unit: Unit) -> String {
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

    fn labels(ruler: &Ruler) -> Vec<String> {
        ruler.ticks.iter().map(|tick| ruler.label(*tick)).collect()
    }

    #[test]
    fn a_ratio_is_as_far_from_one_as_its_inverse_and_its_axis_ends_above_zero() {
        let ruler = Axis::ratio("").ruler([0.03, 21.0].into_iter());
        assert!((ruler.place(0.5) + ruler.place(2.0) - 2.0 * ruler.place(1.0)).abs() < 1e-9);
        assert_eq!((ruler.low, ruler.high), (0.02, 50.0));
        assert!(
            labels(&ruler).contains(&"1".to_owned()) && ruler.ticks.iter().all(|tick| *tick > 0.0),
            "{ruler:?}"
        );
        assert!(!ruler.shows(0.0) && ruler.place(-1.0) == 0.0);
    }

    #[test]
    fn a_ratio_near_one_has_even_steps_and_noise_does_not_fill_the_axis() {
        let noise = Axis::ratio("").ruler([0.998, 1.001].into_iter());
        assert_eq!(labels(&noise), ["0.9", "0.95", "1", "1.05", "1.1"]);
        let some = Axis::ratio("").ruler([0.62, 1.04].into_iter());
        assert_eq!(labels(&some), ["0.6", "0.7", "0.8", "0.9", "1", "1.1"]);
    }

    #[test]
    fn who_loses_a_half_is_seen_beside_who_wins_twentyfold() {
        let ruler = Axis::change("").ruler([-50.0, 2000.0, 12.0].into_iter());
        assert_eq!(labels(&ruler), ["-50 %", "0 %", "+100 %", "+200 %", "+500 %", "+1000 %", "+2000 %"]);
        assert!(ruler.place(0.0) - ruler.place(-50.0) > 0.15, "{}", ruler.place(-50.0));
        assert!(ruler.shows(-99.0) && !ruler.shows(-100.0));
        assert_eq!(
            [-34.73, 0.0, 590.6].map(|value| Axis::change("").note(value)),
            ["-34.7 %", "0 %", "+591 %"]
        );
        let wide = Axis::change("").ruler([-99.5, 900_000.0].into_iter());
        assert!(wide.ticks.contains(&0.0) && (5..=12).contains(&wide.ticks.len()), "{:?}", labels(&wide));
        assert_eq!(
            labels(&Axis::change("").ruler([-3.0, 7.0].into_iter())),
            ["-10 %", "-5 %", "0 %", "+5 %", "+10 %"]
        );
    }

    #[test]
    fn what_cannot_be_negative_has_an_axis_from_zero_whatever_an_interval_says() {
        let ruler = Axis::linear("").not_negative().ruler([-3.0, 5.0, 9.0].into_iter());
        assert_eq!(ruler.low, 0.0);
        assert_eq!(ruler.place(-3.0), 0.0);
        let far = Axis::linear("").not_negative().ruler([95.0, 99.0].into_iter());
        assert_eq!(far.low, 0.0);
        let with_room = Axis::linear("").not_negative().with_room([-3.0, 9.0].into_iter(), 0.1);
        assert_eq!(with_room[0], 0.0);
    }

    #[test]
    fn room_is_made_only_beyond_the_origin_and_never_past_what_a_scale_has() {
        let room = |axis: Axis, values: [f64; 2]| axis.with_room(values.into_iter(), 0.1);
        assert_eq!(room(Axis::linear(""), [3.0, 10.0]), [0.0, 11.0]);
        assert_eq!(room(Axis::linear("").mark(1.0), [0.5, 1.0])[1], 1.0);
        for [low, high] in [[0.001, 1.0], [0.5, 25.0], [1.0, 1000.0]] {
            let ends = room(Axis::ratio(""), [low, high]);
            assert!(0.0 < ends[0] && ends[0] <= low && high <= ends[1], "{ends:?}");
        }
        assert!(room(Axis::change(""), [-99.9, 0.0])[0] > -100.0);
        assert!(room(Axis::logarithmic(""), [0.0, f64::NAN]).is_empty());
    }

    #[test]
    fn an_axis_without_values_and_one_with_a_single_value_can_be_drawn() {
        for values in [vec![], vec![0.0], vec![5.0], vec![-3.0], vec![f64::NAN]] {
            for axis in [
                Axis::linear(""),
                Axis::logarithmic(""),
                Axis::ratio(""),
                Axis::change(""),
                Axis::linear("").not_negative(),
            ] {
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
