//! Files of the generator's histograms.

use bench::hgrm::text;
use hdrhistogram::Histogram as Hdr;
use miette::{IntoDiagnostic as _, WrapErr as _};
use pktgen::{Counters, Histogram, Profile};
use std::fs;
use std::path::Path;

/// Significant digits, as many as the generator's own buckets have
const DIGITS: u8 = 3;

/// Converts a histogram to the library's type.
pub(super) fn hdr(histogram: &Histogram) -> Hdr<u64> {
    let mut hdr = Hdr::new(DIGITS).expect("the precision is valid");
    for (time, count) in histogram.buckets() {
        // The histogram grows as needed.
        hdr.record_n(time.0, count).expect("a growing histogram accepts all values");
    }
    hdr
}

fn failed(folder: &Path) -> String {
    format!("cannot write histograms to {}", folder.display())
}

/// Creates the folder before anything is sent, so that an error is reported early.
pub(super) fn create_folder(folder: &Path) -> Result<(), miette::Report> {
    fs::create_dir_all(folder).into_diagnostic().wrap_err_with(|| failed(folder))
}

/// Writes a file for each histogram that is not empty. Returns the number of files.
pub(super) fn write(folder: &Path, profile: &Profile, counters: &Counters) -> Result<usize, miette::Report> {
    let mut files = 0;
    let names = names(profile.streams.iter().map(|stream| &*stream.name));
    for (name, counters) in names.iter().zip(&counters.streams) {
        for (kind, histogram) in [("latency", &counters.latency), ("round-trip", &counters.round_trip)] {
            if histogram.count() > 0 {
                let path = folder.join(format!("{name}.{kind}.hgrm"));
                let written = fs::write(path, text(&hdr(histogram)));
                written.into_diagnostic().wrap_err_with(|| failed(folder))?;
                files += 1;
            }
        }
    }
    Ok(files)
}

/// Returns a file name for each stream: the stream's name with other characters replaced, and with a number
/// if the name is taken.
fn names<'a>(streams: impl Iterator<Item = &'a str>) -> Vec<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' };
    let mut names: Vec<String> = Vec::new();
    for stream in streams {
        let own: String = stream.chars().map(plain).collect();
        // Some file systems ignore case.
        let is_free = |name: &String| !names.iter().any(|other| other.eq_ignore_ascii_case(name));
        let numbered = (2..).map(|n| format!("{own}-{n}"));
        let free = core::iter::once(own.clone()).chain(numbered).find(is_free);
        names.push(free.expect("there are more numbers than streams"));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use switch::Nanos;

    #[test]
    fn each_stream_has_files_of_its_own() {
        let streams = ["a b", "a/b", "a-b-2", "A-B", "reads", "löcks"];
        assert_eq!(names(streams.into_iter()), ["a-b", "a-b-2", "a-b-2-2", "A-B-3", "reads", "l-cks"]);
    }

    #[test]
    fn histograms_have_the_format_of_hdr_plotters() {
        let histogram = Histogram::default();
        for n in 1..=1000 {
            histogram.record(Nanos(n * 1_000));
        }
        let text = text(&hdr(&histogram));
        let rows: Vec<Vec<f64>> = text
            .lines()
            .skip(2)
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        assert!(text.trim_start().starts_with("Value     Percentile TotalCount 1/(1-Percentile)"), "{text}");
        let median = rows.iter().find(|row| row[1] >= 0.5).unwrap();
        assert!((median[0] - 500.0).abs() < 5.0, "{median:?}");
        let last = rows.last().unwrap();
        assert_eq!((last[1], last[2], last.len()), (1.0, 1000.0, 3));
        assert!(text.contains("Total count    =         1000]"), "{text}");
    }
}
