//! Axes of plots: their range, ticks at round numbers, and units that fit.

use super::super::figure::{Axis, Unit};
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use std::ops::Range;

/// Number of labels that fit along an axis
const MOST_LABELS: usize = 7;

/// Steps of a unit: name, size, and the value from which it is used. The smallest unit comes first.
type Steps = &'static [(&'static str, f64, f64)];

const TIME: Steps = &[(" ns", 1e-9, 0.0), (" us", 1e-6, 1e-6), (" ms", 1e-3, 1e-3), (" s", 1.0, 1.0)];
const BYTES: Steps = &[
    (" B", 1.0, 0.0),
    (" KiB", 1024.0, 1024.0),
    (" MiB", 1_048_576.0, 1_048_576.0),
    (" GiB", 1_073_741_824.0, 1_073_741_824.0),
];
const BIT_RATE: Steps = &[(" b/s", 1.0, 0.0), (" kb/s", 1e3, 1e3), (" Mb/s", 1e6, 1e6), (" Gb/s", 1e9, 1e9)];
/// Four digits are easier to read than "k".
const COUNT: Steps = &[("", 1.0, 0.0), ("k", 1e3, 1e4), ("M", 1e6, 1e6), ("G", 1e9, 1e9)];
const PERCENT: Steps = &[(" %", 1.0, 0.0)];

/// Returns the steps of a unit, and the size of the unit in which points are given.
const fn steps(unit: Unit) -> (Steps, f64) {
    match unit {
        Unit::Number => (COUNT, 1.0),
        Unit::Millions => (COUNT, 1e6),
        Unit::Percent => (PERCENT, 1.0),
        Unit::Us => (TIME, 1e-6),
        Unit::Ms => (TIME, 1e-3),
        Unit::S => (TIME, 1.0),
        Unit::Bytes => (BYTES, 1.0),
        Unit::KiB => (BYTES, 1024.0),
        Unit::Gbps => (BIT_RATE, 1e9),
    }
}

/// Returns the unit in which a value has the fewest digits before its point: its name, and its size.
fn fitting(steps: Steps, value: f64) -> (&'static str, f64) {
    let value = value.abs() * (1.0 + 1e-9);
    let fits = steps.iter().rev().find(|(_, _, from)| value >= *from);
    fits.map_or(("", 1.0), |(name, size, _)| (*name, *size))
}

/// Values of an axis, and what is written beside it.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    /// Least and greatest value
    range: (f64, f64),
    log: bool,
    /// Ticks with labels
    ticks: Vec<(f64, String)>,
    /// Ticks without labels
    minor: Vec<f64>,
    /// Quantity, with the unit unless the labels have it
    title: String,
}

impl Scale {
    /// Returns the scale of an axis for these values.
    pub(super) fn new(axis: &Axis, values: &[f64]) -> Self {
        let values: Vec<f64> =
            values.iter().copied().filter(|value| value.is_finite() && (!axis.log || *value > 0.0)).collect();
        let range = range(&values, axis.log);
        let (steps, base) = steps(axis.unit);
        // Ticks are round numbers of the unit that is shown.
        let (_, size) = fitting(steps, range.1 * base);
        let factor = base / size;
        let (ticks, minor) = if axis.log {
            let is_binary = |value: &f64| value.log2().fract().abs() < 1e-9;
            if matches!(axis.unit, Unit::Bytes | Unit::KiB) || values.iter().all(is_binary) {
                binary_ticks(range)
            } else {
                decimal_ticks(range, axis.zero.is_some())
            }
        } else {
            let ticks = linear_ticks((range.0 * factor, range.1 * factor));
            (ticks.into_iter().map(|tick| tick / factor).collect(), Vec::new())
        };
        let (labels, suffix) = labels(&ticks, axis, steps, base);
        let title = format!("{}{suffix}", axis.label);
        Self { range, log: axis.log, ticks: ticks.into_iter().zip(labels).collect(), minor, title }
    }

    /// Returns the text beside the axis.
    pub(super) fn title(&self) -> &str {
        &self.title
    }

    fn position(&self, value: f64) -> f64 {
        let along = |value: f64| if self.log { value.ln() } else { value };
        let (low, high) = (along(self.range.0), along(self.range.1));
        (along(value) - low) / (high - low)
    }
}

/// Returns the range of an axis: the least to the greatest value, with a margin. Linear axes include 0, so that lengths
/// can be compared.
fn range(values: &[f64], log: bool) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if least > most {
        return if log { (0.1, 10.0) } else { (0.0, 1.0) };
    }
    if log {
        let around = (most / least).powf(0.05).max(1.1);
        return (least / around, most * around);
    }
    let (low, high) = (least.min(0.0), most.max(0.0));
    let margin = 0.06 * (high - low);
    if high > low {
        (if low < 0.0 { low - margin } else { 0.0 }, if high > 0.0 { high + margin } else { 0.0 })
    } else {
        (0.0, 1.0)
    }
}

/// Returns round numbers, 1, 2 or 5 times a power of ten apart, of which at most six are within a range.
fn linear_ticks((low, high): (f64, f64)) -> Vec<f64> {
    let rough = (high - low) / 6.0;
    let decade = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * decade).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * decade);
    let (first, last) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    (first..=last).map(|n| n as f64 * step).collect()
}

/// Returns the powers of `base` within a range, as exponents.
fn exponents((low, high): (f64, f64), base: f64) -> Vec<i32> {
    let (low, high) = (low.log(base), high.log(base));
    ((low - 1e-9).ceil() as i32..=(high + 1e-9).floor() as i32).collect()
}

/// Returns every n-th exponent from the first one on, so that at most `most` are left.
fn thinned(exponents: &[i32], most: usize) -> Vec<i32> {
    exponents.iter().copied().step_by(exponents.len().div_ceil(most).max(1)).collect()
}

/// Returns ticks at powers of two, and the others between them.
fn binary_ticks(range: (f64, f64)) -> (Vec<f64>, Vec<f64>) {
    let all = exponents(range, 2.0);
    let labelled = thinned(&all, MOST_LABELS);
    let minor = all.iter().filter(|n| !labelled.contains(n)).map(|n| 2_f64.powi(*n)).collect();
    (labelled.into_iter().map(|n| 2_f64.powi(n)).collect(), minor)
}

/// Returns ticks at powers of ten, with 2 and 5 times these if fewer than two decades are shown, and the others from
/// 2 to 9 between them. `decades_only` leaves out what is between decades.
fn decimal_ticks(range: (f64, f64), decades_only: bool) -> (Vec<f64>, Vec<f64>) {
    let (low, high) = range;
    let is_shown = |value: &f64| (low..=high).contains(value);
    let decades = exponents((low / 10.0, high), 10.0);
    let times = |digits: &[f64]| -> Vec<f64> {
        decades
            .iter()
            .flat_map(|n| digits.iter().map(|digit| digit * 10_f64.powi(*n)))
            .filter(is_shown)
            .collect()
    };
    let is_wide = decades_only || high / low >= 100.0;
    let labelled = if is_wide {
        thinned(&exponents(range, 10.0), MOST_LABELS).into_iter().map(|n| 10_f64.powi(n)).collect()
    } else {
        times(&[1.0, 2.0, 5.0])
    };
    if labelled.len() < 3 && !is_wide {
        return (linear_ticks(range).into_iter().filter(|tick| *tick > 0.0).collect(), Vec::new());
    }
    let between =
        if decades_only { times(&[1.0]) } else { times(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]) };
    let is_labelled = |value: &f64| labelled.iter().any(|tick| (tick / value - 1.0).abs() < 1e-6);
    let minor = between.into_iter().filter(|value| !is_labelled(value)).collect();
    (labelled, minor)
}

/// Returns the labels of ticks, and what follows the quantity in the axis' title. A linear axis has the unit that fits its
/// last tick; the labels of a logarithmic one have each its own unit where they differ.
fn labels(ticks: &[f64], axis: &Axis, steps: Steps, base: f64) -> (Vec<String>, String) {
    let last = ticks.last().map_or(0.0, |tick| tick.abs().max(ticks[0].abs()));
    let units: Vec<_> =
        ticks.iter().map(|tick| fitting(steps, if axis.log { *tick * base } else { last * base })).collect();
    let common = units.first().filter(|first| units.iter().all(|unit| unit == *first)).map(|unit| unit.0);
    // Letters such as "k" are part of the number.
    let in_title = common.filter(|name| name.starts_with(' '));
    let label = |(tick, (name, size)): (&f64, &(&str, f64))| {
        if axis.zero.is_some_and(|zero| (tick / zero - 1.0).abs() < 1e-6) || *tick == 0.0 {
            return "0".to_owned();
        }
        format!("{}{}", number(tick * base / size), if in_title.is_some() { "" } else { name })
    };
    let labels = ticks.iter().zip(&units).map(label).collect();
    (labels, in_title.map_or_else(String::new, |name| format!(" ({})", name.trim_start())))
}

/// Formats the number at a tick. Small ones are powers of ten.
fn number(value: f64) -> String {
    if value == 0.0 || value.abs() >= 0.9e-3 {
        return super::number(value);
    }
    let exponent = (value.abs().log10() + 1e-9).floor() as i32;
    let digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
    let raised: String = exponent
        .to_string()
        .chars()
        .map(|c| c.to_digit(10).and_then(|n| digits.chars().nth(n as usize)).unwrap_or('⁻'))
        .collect();
    let mantissa = super::number(value / 10_f64.powi(exponent));
    if mantissa == "1" { format!("10{raised}") } else { format!("{mantissa}·10{raised}") }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        from + (self.position(*value) * f64::from(to - from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        let labelled = self.ticks.iter().map(|tick| tick.0);
        if hint.weight().allow_light_points() {
            labelled.chain(self.minor.iter().copied()).collect()
        } else {
            labelled.collect()
        }
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        self.ticks
            .iter()
            .find(|tick| tick.0.total_cmp(value).is_eq())
            .map_or_else(String::new, |tick| tick.1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(axis: &Axis, values: &[f64]) -> (String, String) {
        let scale = Scale::new(axis, values);
        let labels: Vec<_> = scale.ticks.iter().map(|tick| tick.1.as_str()).collect();
        (scale.title, labels.join(", "))
    }

    #[test]
    fn logarithmic_axes_have_decades_and_2_and_5_below_two_decades() {
        let of = |values: &[f64]| shown(&Axis::log("x", Unit::Number), values).1;
        assert_eq!(of(&[0.7, 30.0, 4_000.0]), "1, 10, 100, 1000");
        assert_eq!(of(&[3.0, 60.0]), "5, 10, 20, 50");
        assert_eq!(of(&[3.0, 60_000.0, 6e6]), "10, 100, 1000, 10k, 100k, 1M, 10M");
        // Less than 1, 2 or 5 apart: round numbers
        assert_eq!(of(&[21.0, 29.0]), "20, 25, 30");
        // More decades than labels
        assert_eq!(of(&[1e-9, 3e3]), "10⁻⁹, 10⁻⁷, 10⁻⁵, 0.001, 0.1, 10, 1000");
    }

    #[test]
    fn powers_of_two_have_ticks_at_powers_of_two() {
        let of = |values: &[f64]| shown(&Axis::log("hosts", Unit::Number), values).1;
        assert_eq!(of(&[8.0, 16.0, 32.0, 512.0]), "8, 16, 32, 64, 128, 256, 512");
        assert_eq!(of(&[8.0, 8192.0]), "8, 32, 128, 512, 2048, 8192");
        let bytes = |values: &[f64], unit| shown(&Axis::log("size", unit), values);
        assert_eq!(bytes(&[64.0, 8192.0], Unit::Bytes).1, "64 B, 256 B, 1 KiB, 4 KiB");
        assert_eq!(bytes(&[150.0, 900.0], Unit::Bytes), ("size (B)".into(), "256, 512".into()));
        assert_eq!(
            bytes(&[4.0, 16_384.0], Unit::KiB).1,
            "4 KiB, 16 KiB, 64 KiB, 256 KiB, 1 MiB, 4 MiB, 16 MiB"
        );
    }

    #[test]
    fn linear_axes_begin_at_zero_and_have_round_numbers() {
        let of = |values: &[f64], unit| shown(&Axis::linear("x", unit), values);
        assert_eq!(of(&[3.0, 17.0], Unit::Number).1, "0, 5, 10, 15");
        assert_eq!(
            of(&[0.263, 0.264], Unit::Percent),
            ("x (%)".into(), "0, 0.05, 0.1, 0.15, 0.2, 0.25".into())
        );
        assert_eq!(of(&[-3.0, 17.0], Unit::Number).1, "0, 5, 10, 15");
        assert_eq!(of(&[0.0, 0.0], Unit::Number).1, "0, 0.2, 0.4, 0.6, 0.8, 1");
        assert_eq!(of(&[], Unit::Number).1, of(&[f64::NAN], Unit::Number).1);
        assert_eq!(of(&[0.1, 2.2], Unit::Millions).1, "0, 0.5M, 1M, 1.5M, 2M");
        assert_eq!(of(&[0.1, 0.3], Unit::Millions).1, "0, 100k, 200k, 300k");
    }

    #[test]
    fn the_unit_fits_the_range() {
        let of = |values: &[f64], unit| shown(&Axis::linear("latency", unit), values);
        assert_eq!(of(&[0.2], Unit::Us), ("latency (ns)".into(), "0, 50, 100, 150, 200".into()));
        assert_eq!(of(&[24.0], Unit::Us), ("latency (us)".into(), "0, 5, 10, 15, 20, 25".into()));
        assert_eq!(of(&[2_400.0], Unit::Us), ("latency (ms)".into(), "0, 0.5, 1, 1.5, 2, 2.5".into()));
        assert_eq!(of(&[2_400.0], Unit::Ms).0, "latency (s)");
        assert_eq!(of(&[97.0], Unit::Gbps), ("latency (Gb/s)".into(), "0, 20, 40, 60, 80, 100".into()));
        assert_eq!(of(&[0.097], Unit::Gbps).0, "latency (Mb/s)");
        let log = |values: &[f64]| shown(&Axis::log("latency", Unit::Us), values);
        assert_eq!(log(&[4.0, 8_000.0]), ("latency".into(), "10 us, 100 us, 1 ms, 10 ms".into()));
        assert_eq!(log(&[4.0, 80.0]), ("latency (us)".into(), "5, 10, 20, 50".into()));
    }

    #[test]
    fn zero_has_a_place_on_a_logarithmic_axis() {
        let axis = Axis::log("loss", Unit::Number).with_zero_at(1e-9);
        assert_eq!(shown(&axis, &[1e-9, 1e-8, 1e-1]).1, "0, 10⁻⁷, 10⁻⁵, 0.001, 0.1");
    }

    /// Every label of an axis with any range is at a value within it, and labels are apart.
    #[test]
    fn ticks_are_within_the_range_and_few() {
        for log in [false, true] {
            for n in 1..400 {
                let low = 10_f64.powf(f64::from(n % 23) - 11.0) * 1.7;
                for times in [1.0, 1.3, 4.0, 37.0, 1e3, 1e7] {
                    for unit in [Unit::Number, Unit::Us, Unit::Bytes] {
                        let axis = if log { Axis::log("", unit) } else { Axis::linear("", unit) };
                        let scale = Scale::new(&axis, &[low, low * times * f64::from(n).sqrt()]);
                        assert!(scale.ticks.len() <= 8, "{scale:?}");
                        let positions: Vec<_> =
                            scale.ticks.iter().map(|tick| scale.position(tick.0)).collect();
                        assert!(positions.iter().all(|at| (-1e-6..=1.000_001).contains(at)), "{scale:?}");
                        assert!(positions.windows(2).all(|pair| pair[1] - pair[0] > 0.06), "{scale:?}");
                        assert!(
                            scale.minor.iter().all(|at| (-1e-6..=1.000_001).contains(&scale.position(*at)))
                        );
                    }
                }
            }
        }
    }
}
