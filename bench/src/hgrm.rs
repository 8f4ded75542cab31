//! Histogram files in the format that HdrHistogram's plotters read: microseconds by percentile.

use hdrhistogram::Histogram;
use std::fmt::Write as _;

/// Returns the text of such a file, for a histogram of times in nanoseconds.
pub fn text(histogram: &Histogram<u64>) -> String {
    let us = |ns: f64| ns / 1_000.0;
    let mut text =
        format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut total = 0;
    for step in histogram.iter_quantiles(5) {
        total += step.count_since_last_iteration();
        let (value, quantile) = (us(step.value_iterated_to() as f64), step.quantile_iterated_to());
        _ = write!(text, "{value:12.3} {quantile:14.12} {total:10}");
        if quantile < 1.0 {
            _ = write!(text, " {:14.2}", 1.0 / (1.0 - quantile));
        }
        text.push('\n');
    }
    _ = writeln!(
        text,
        "#[Mean    = {:12.3}, StdDeviation   = {:12.3}]",
        us(histogram.mean()),
        us(histogram.stdev())
    );
    _ = writeln!(
        text,
        "#[Max     = {:12.3}, Total count    = {:12}]",
        us(histogram.max() as f64),
        histogram.len()
    );
    text
}
