//! Checks of whether curves have the shape that a paper reports. Each compares our numbers and records what
//! was found.

use super::figure::{Check, Series};
use core::ops::RangeInclusive;

/// Formats a number: three to five significant digits.
pub fn text(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "-".into();
    }
    let digits = match size {
        0.0 => 0,
        size if size >= 1000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        size if size >= 0.1 => 3,
        size if size >= 0.001 => 5,
        _ => return format!("{value:.2e}"),
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    text.to_owned()
}

fn curve(points: &[(f64, f64)]) -> String {
    let some =
        |points: &[(f64, f64)]| points.iter().map(|point| text(point.1)).collect::<Vec<_>>().join(", ");
    match points {
        [first, .., last] if points.len() > 8 => format!("{} to {}", text(first.1), text(last.1)),
        points => some(points),
    }
}

/// Checks that the series rises: that each point is at least the previous one times 1 - `slack`, and the last
/// is above the first.
pub fn rises(what: impl Into<String>, series: &Series, slack: f64) -> Check {
    let pairs = series.points.windows(2);
    let holds =
        series.points.len() > 1 && pairs.into_iter().all(|pair| pair[1].1 >= pair[0].1 * (1.0 - slack));
    let all = series.points.first().zip(series.points.last()).is_some_and(|(first, last)| last.1 > first.1);
    Check::new(what, curve(&series.points), holds && all)
}

/// Checks that the series falls: that each point is at most the previous one times 1 + `slack`, and the last
/// is below the first.
pub fn falls(what: impl Into<String>, series: &Series, slack: f64) -> Check {
    let pairs = series.points.windows(2);
    let holds =
        series.points.len() > 1 && pairs.into_iter().all(|pair| pair[1].1 <= pair[0].1 * (1.0 + slack));
    let all = series.points.first().zip(series.points.last()).is_some_and(|(first, last)| last.1 < first.1);
    Check::new(what, curve(&series.points), holds && all)
}

/// Checks that the greatest value is at most `times` the least, which is positive.
pub fn flat(what: impl Into<String>, series: &Series, times: f64) -> Check {
    let values = || series.points.iter().map(|point| point.1);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    let seen = format!("from {} to {}", text(least), text(most));
    Check::new(what, seen, least > 0.0 && least.is_finite() && most <= least * times)
}

/// Checks that a number is within bounds.
pub fn within(what: impl Into<String>, value: f64, bounds: RangeInclusive<f64>) -> Check {
    let to = if bounds.end().is_finite() {
        format!("{} to {}", text(*bounds.start()), text(*bounds.end()))
    } else {
        format!("at least {}", text(*bounds.start()))
    };
    Check::new(what, format!("{} (expected: {to})", text(value)), bounds.contains(&value))
}

/// Checks that a number is within a factor of two of the paper's: links and NICs here are models, not the
/// authors' testbed.
pub fn near(what: impl Into<String>, value: f64, paper: f64) -> Check {
    within(format!("{}, within a factor of 2 of the paper's", what.into()), value, paper / 2.0..=paper * 2.0)
}

/// Checks that `upper` is at least `times` `lower` wherever both have a value.
pub fn above(what: impl Into<String>, lower: &Series, upper: &Series, times: f64) -> Check {
    let ratios = ratios(lower, upper);
    let least = ratios.iter().map(|ratio| ratio.1).fold(f64::INFINITY, f64::min);
    let seen = format!("at least {} times (expected: {})", text(least), text(times));
    Check::new(what, seen, !ratios.is_empty() && least >= times)
}

/// Checks that `to` divided by `of` is within bounds wherever both have a value.
pub fn ratio(what: impl Into<String>, of: &Series, to: &Series, bounds: RangeInclusive<f64>) -> Check {
    let ratios = ratios(of, to);
    let values = || ratios.iter().map(|ratio| ratio.1);
    let (least, most) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    let seen = format!(
        "{} to {} (expected: {} to {})",
        text(least),
        text(most),
        text(*bounds.start()),
        text(*bounds.end())
    );
    Check::new(what, seen, !ratios.is_empty() && bounds.contains(&least) && bounds.contains(&most))
}

/// Returns `to` divided by `of`, wherever both have a value.
pub fn ratios(of: &Series, to: &Series) -> Vec<(f64, f64)> {
    let pairs = of.points.iter().filter_map(|&(x, y)| Some((x, to.at(x)? / y)));
    pairs.filter(|pair| pair.1.is_finite()).collect()
}

/// Checks that the greatest value is at neither end.
pub fn peaks_inside(what: impl Into<String>, series: &Series) -> Check {
    let best = best(series);
    let ends = [0, series.points.len().saturating_sub(1)];
    let seen = best.map_or_else(String::new, |n| format!("the greatest at {}", text(series.points[n].0)));
    Check::new(what, seen, best.is_some_and(|n| !ends.contains(&n)))
}

/// Returns the index of the point with the greatest value.
pub fn best(series: &Series) -> Option<usize> {
    (0..series.points.len()).max_by(|a, b| series.points[*a].1.total_cmp(&series.points[*b].1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: &[f64]) -> Series {
        Series::ours("x", values.iter().enumerate().map(|(n, value)| ((n + 1) as f64, *value)))
    }

    #[test]
    fn rises_and_falls_compare_neighbours_and_ends() {
        assert!(rises("", &series(&[1.0, 2.0, 3.0]), 0.0).holds);
        assert!(rises("", &series(&[1.0, 2.0, 1.99, 3.0]), 0.01).holds);
        assert!(!rises("", &series(&[1.0, 2.0, 1.9, 3.0]), 0.01).holds);
        // However small the steps, the last point has to be above the first.
        assert!(!rises("", &series(&[1.0, 0.999, 0.998]), 0.01).holds);
        assert!(!rises("", &series(&[1.0]), 0.0).holds && !rises("", &series(&[]), 0.0).holds);
        assert!(!rises("", &series(&[1.0, f64::NAN, 3.0]), 0.1).holds);
        assert!(falls("", &series(&[3.0, 2.0, 1.0]), 0.0).holds);
        assert!(!falls("", &series(&[3.0, 1.0, 2.0]), 0.1).holds);
        assert!(!falls("", &series(&[1.0, 1.0]), 0.1).holds);
    }

    #[test]
    fn flat_compares_the_greatest_with_the_least() {
        assert!(flat("", &series(&[1.0, 1.05, 0.98]), 1.1).holds);
        assert!(!flat("", &series(&[1.0, 1.2]), 1.1).holds);
        assert!(!flat("", &series(&[]), 1.1).holds && !flat("", &series(&[0.0, 0.0]), 1.1).holds);
    }

    #[test]
    fn ratios_are_computed_where_both_have_a_value() {
        let (low, high) = (series(&[1.0, 2.0, 4.0]), series(&[2.0, 4.0, 8.0]));
        assert_eq!(ratios(&low, &high), [(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)]);
        assert!(above("", &low, &high, 2.0).holds && !above("", &low, &high, 2.1).holds);
        assert!(!above("", &high, &low, 1.0).holds);
        assert!(ratio("", &low, &high, 1.9..=2.1).holds && !ratio("", &low, &high, 0.9..=1.1).holds);
        let elsewhere = Series::ours("", [(7.0, 1.0)]);
        assert!(!above("", &low, &elsewhere, 0.0).holds && !ratio("", &low, &elsewhere, 0.0..=9.0).holds);
        // One point below is enough to fail.
        assert!(!above("", &low, &series(&[2.0, 1.9, 8.0]), 1.0).holds);
    }

    #[test]
    fn bounds_are_inclusive_and_peaks_are_inside() {
        assert!(within("", 2.0, 1.0..=2.0).holds && !within("", 2.01, 1.0..=2.0).holds);
        assert!(!within("", f64::NAN, 0.0..=1.0).holds);
        assert!(near("", 2.0, 1.0).holds && near("", 0.5, 1.0).holds && !near("", 2.1, 1.0).holds);
        assert!(within("", 9.0, 1.0..=f64::INFINITY).seen.contains("at least 1"));
        assert!(peaks_inside("", &series(&[1.0, 3.0, 2.0])).holds);
        for wrong in [&[1.0, 2.0, 3.0][..], &[3.0, 2.0], &[]] {
            assert!(!peaks_inside("", &series(wrong)).holds);
        }
    }

    #[test]
    fn numbers_have_three_to_five_significant_digits() {
        for (value, expected) in [
            (0.0, "0"),
            (12_345.6, "12346"),
            (2.0, "2"),
            (0.25, "0.25"),
            (123.45, "123.5"),
            (1e-8, "1.00e-8"),
        ] {
            assert_eq!(text(value), expected);
        }
        assert_eq!(text(f64::NAN), "-");
    }
}
