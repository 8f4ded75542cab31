//! Instruction counts of the hot paths, compared with a committed baseline
//! (`bench/benches/instructions.toml`).
//!
//! A count does not depend on the load of the machine, so it shows a slower path where times do not. It does
//! depend on the compiler, the C library and the CPU features in use. These are part of a baseline, and
//! counts are judged only where all of them are the same.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Relative increase over the baseline that is tolerated
pub const TOLERANCE: f64 = 0.03;

/// Conditions other than the code that counts depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// Compiler, as printed by `rustc -V`
    pub rustc: String,
    /// C library, whose `memcpy` is counted
    pub libc: String,
    /// Version of valgrind, which counts
    pub valgrind: String,
    /// CPU features that valgrind's virtual processor has, of those that the code uses
    pub features: String,
}

impl Conditions {
    /// Describes the differences between the baseline's conditions (`self`) and those of this run.
    pub fn differences(&self, here: &Self) -> Vec<String> {
        [
            ("the compiler", &self.rustc, &here.rustc),
            ("the C library", &self.libc, &here.libc),
            ("valgrind", &self.valgrind, &here.valgrind),
            ("CPU features", &self.features, &here.features),
        ]
        .into_iter()
        .filter(|(_, then, now)| then != now)
        .map(|(what, then, now)| format!("{what}: `{then}` in the baseline, `{now}` here"))
        .collect()
    }
}

/// Counts, and the conditions that they depend on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Conditions that the counts depend on
    pub conditions: Conditions,
    /// Instructions per unit of each path
    pub paths: BTreeMap<String, f64>,
}

const HEAD: &str = "# Instructions of the hot paths per packet (or per other unit that the path names), counted by callgrind.\n\
                    # `make instructions` compares with this file, `make instructions RENEW=1` writes it.\n\n";

impl Counts {
    /// Parses a file of counts.
    ///
    /// # Errors
    /// If the text is not such a file.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// Returns the contents of the file, with counts rounded to one decimal.
    pub fn file(&self) -> String {
        let mut counts = self.clone();
        counts.paths.values_mut().for_each(|count| *count = (*count * 10.0).round() / 10.0);
        HEAD.to_owned() + &toml::to_string(&counts).expect("text and numbers always serialise")
    }
}

/// Result for one path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Within the tolerance
    Same,
    /// Greater by this proportion, which exceeds the tolerance
    Worse(f64),
    /// Smaller by this proportion, which exceeds the tolerance
    Better(f64),
    /// In the baseline only
    Missing,
    /// In the new counts only
    New,
}

/// New counts, compared with a baseline.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// For each path: its name, the baseline's count, the new count, and the result
    pub rows: Vec<(String, Option<f64>, Option<f64>, Verdict)>,
    /// Differences in conditions, because of which counts are not judged
    pub differences: Vec<String>,
}

impl Comparison {
    /// Compares new counts with a baseline.
    pub fn new(baseline: &Counts, here: &Counts) -> Self {
        let mut names: Vec<_> = baseline.paths.keys().chain(here.paths.keys()).collect();
        names.sort();
        names.dedup();
        let row = |name: &String| {
            let (then, now) = (baseline.paths.get(name).copied(), here.paths.get(name).copied());
            let verdict = match (then, now) {
                (Some(then), Some(now)) => {
                    let part = now / then - 1.0;
                    match part {
                        part if part > TOLERANCE => Verdict::Worse(part),
                        part if part < -TOLERANCE => Verdict::Better(-part),
                        _ => Verdict::Same,
                    }
                }
                (None, _) => Verdict::New,
                (_, None) => Verdict::Missing,
            };
            (name.clone(), then, now, verdict)
        };
        Self {
            rows: names.into_iter().map(row).collect(),
            differences: baseline.conditions.differences(&here.conditions),
        }
    }

    /// Returns whether no path takes more than the tolerance allows, and both sides have the same paths.
    /// Counts that are not judged pass.
    pub fn passes(&self) -> bool {
        !self.is_judged()
            || self.rows.iter().all(|(.., verdict)| matches!(verdict, Verdict::Same | Verdict::Better(_)))
    }

    /// Returns whether the conditions are the same, so that counts can be judged.
    pub const fn is_judged(&self) -> bool {
        self.differences.is_empty()
    }

    /// Returns the report.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let number = |n: Option<f64>| n.map_or_else(|| "-".into(), |n| format!("{n:.1}"));
        _ = writeln!(text, "{:>10} {:>10} {:>8}  path", "baseline", "here", "change");
        for (name, then, now, verdict) in &self.rows {
            let change = then
                .zip(*now)
                .map_or_else(String::new, |(then, now)| format!("{:+.1} %", (now / then - 1.0) * 100.0));
            let words = match verdict {
                Verdict::Worse(_) if self.is_judged() => "   TAKES MORE",
                Verdict::Missing => "   IS NO LONGER MEASURED",
                Verdict::New => "   is new",
                _ => "",
            };
            _ = writeln!(text, "{:>10} {:>10} {change:>8}  {name}{words}", number(*then), number(*now));
        }
        for difference in &self.differences {
            _ = writeln!(text, "Not judged, because counts depend on {difference}");
        }
        if !self.passes() {
            let percent = TOLERANCE * 100.0;
            _ = writeln!(
                text,
                "A hot path exceeds its baseline by more than {percent} %, or is missing on one side. If that is intended, run \
                 `make instructions RENEW=1` to write a new baseline, commit it, and state the reason."
            );
        } else if self.is_judged()
            && self.rows.iter().any(|(.., verdict)| matches!(verdict, Verdict::Better(_)))
        {
            text += "Some paths take less: run `make instructions RENEW=1` to lower the baseline.\n";
        }
        text
    }
}

/// Returns the total instruction count of a callgrind file, or `None` if it has none.
pub fn total(file: &str) -> Option<u64> {
    let line = |name: &str| {
        let rest = file.lines().rev().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    line("totals:").or_else(|| line("summary:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(rustc: &str, paths: &[(&str, f64)]) -> Counts {
        Counts {
            conditions: Conditions { rustc: rustc.into(), ..Conditions::default() },
            paths: paths.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect(),
        }
    }

    #[test]
    fn a_path_that_takes_more_fails_and_one_that_takes_less_is_reported() {
        let baseline = counts("1", &[("a", 100.0), ("b", 100.0), ("c", 100.0)]);
        let better = Comparison::new(&baseline, &counts("1", &[("a", 102.9), ("b", 97.1), ("c", 90.0)]));
        assert!(better.passes() && better.text().contains("take less"), "{}", better.text());
        let worse = Comparison::new(&baseline, &counts("1", &[("a", 103.1), ("b", 100.0), ("c", 100.0)]));
        assert!(!worse.passes() && worse.text().contains("a   TAKES MORE"), "{}", worse.text());
        assert!(!worse.text().contains("b   TAKES MORE"));
    }

    #[test]
    fn a_path_that_is_new_or_missing_fails() {
        let baseline = counts("1", &[("a", 100.0)]);
        for paths in [&[][..], &[("a", 100.0), ("b", 1.0)], &[("b", 1.0)]] {
            assert!(!Comparison::new(&baseline, &counts("1", paths)).passes(), "{paths:?}");
        }
    }

    #[test]
    fn counts_under_other_conditions_are_not_judged_and_the_difference_is_reported() {
        let (baseline, here) = (counts("1.95", &[("a", 100.0)]), counts("1.96", &[("a", 200.0)]));
        let comparison = Comparison::new(&baseline, &here);
        assert!(comparison.passes() && !comparison.is_judged());
        assert!(comparison.text().contains("the compiler: `1.95` in the baseline, `1.96` here"));
        assert!(!comparison.text().contains("TAKES MORE"));
    }

    #[test]
    fn a_written_file_is_read_back() {
        let written = counts("1", &[("a path, \"quoted\"", 12.34)]);
        let read = Counts::parse(&written.file()).unwrap();
        assert_eq!(read, counts("1", &[("a path, \"quoted\"", 12.3)]));
        assert!(Counts::parse("[paths]\na = 1").is_err());
    }

    #[test]
    fn the_total_is_read_from_either_line() {
        assert_eq!(total("events: Ir\nfn=(1)\n12 3\nsummary: 17\n\ntotals: 18\n"), Some(18));
        assert_eq!(total("summary: 17\n"), Some(17));
        assert_eq!(total("nothing"), None);
    }
}
