//! Instructions that the hot paths take, compared with a committed baseline (`tests/benches/instructions.toml`).
//!
//! A count does not depend on what else a machine does, so it tells of a slower path where times do not. It does depend on the
//! compiler, the C library and the CPU features that were found, so those belong to a baseline, and counts are judged only
//! where all of them are the same.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Part of the baseline by which a path may take more
pub const TOLERANCE: f64 = 0.03;

/// What counts depend on beside the code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Conditions {
    /// The compiler, as `rustc -V` has it
    pub rustc: String,
    /// The C library, which copies memory
    pub libc: String,
    /// What counts
    pub valgrind: String,
    /// CPU features that were found in valgrind's processor, of those that code asks for
    pub features: String,
}

impl Conditions {
    /// What is different, in words; `self` is the baseline's.
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

/// Counts, and what they depend on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// What they depend on
    pub conditions: Conditions,
    /// Instructions of each path
    pub paths: BTreeMap<String, f64>,
}

const HEAD: &str = "# Instructions that the hot paths take, a packet (or what else a path says), counted by callgrind.\n\
                    # `make instructions` compares with it, `make instructions RENEW=1` writes it.\n\n";

impl Counts {
    /// Reads a file of them.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }

    /// The file.
    pub fn file(&self) -> String {
        let mut counts = self.clone();
        counts.paths.values_mut().for_each(|count| *count = (*count * 10.0).round() / 10.0);
        HEAD.to_owned() + &toml::to_string(&counts).expect("text and numbers always serialise")
    }
}

/// What became of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Within the tolerance
    Same,
    /// More by this part than the tolerance allows
    Worse(f64),
    /// Less by this part, which is more than the tolerance
    Better(f64),
    /// In one of the two only
    Missing,
    /// In the new one only
    New,
}

/// A baseline beside new counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// By path: the baseline's count, the new one
    pub rows: Vec<(String, Option<f64>, Option<f64>, Verdict)>,
    /// Why counts cannot be judged
    pub differences: Vec<String>,
}

impl Comparison {
    /// Compares.
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

    /// Whether nothing takes more than it did, and nothing was left out. Not judged is not failed.
    pub fn passes(&self) -> bool {
        !self.is_judged()
            || self.rows.iter().all(|(.., verdict)| matches!(verdict, Verdict::Same | Verdict::Better(_)))
    }

    /// Whether counts mean the same in both.
    pub const fn is_judged(&self) -> bool {
        self.differences.is_empty()
    }

    /// For people.
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
            _ = writeln!(text, "Not judged, for counts of other conditions are other counts: {difference}");
        }
        if !self.passes() {
            let percent = TOLERANCE * 100.0;
            _ = writeln!(
                text,
                "A hot path takes more than {percent} % more instructions than its baseline, or is not in both. If that has its \
                 reason, `make instructions RENEW=1` writes the baseline anew: commit it, and say why."
            );
        } else if self.is_judged()
            && self.rows.iter().any(|(.., verdict)| matches!(verdict, Verdict::Better(_)))
        {
            text += "Some paths take less: `make instructions RENEW=1` keeps it so.\n";
        }
        text
    }
}

/// The instructions that a callgrind file counts in all.
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
    fn what_takes_more_fails_and_what_takes_less_is_told() {
        let baseline = counts("1", &[("a", 100.0), ("b", 100.0), ("c", 100.0)]);
        let better = Comparison::new(&baseline, &counts("1", &[("a", 102.9), ("b", 97.1), ("c", 90.0)]));
        assert!(better.passes() && better.text().contains("take less"), "{}", better.text());
        let worse = Comparison::new(&baseline, &counts("1", &[("a", 103.1), ("b", 100.0), ("c", 100.0)]));
        assert!(!worse.passes() && worse.text().contains("a   TAKES MORE"), "{}", worse.text());
        assert!(!worse.text().contains("b   TAKES MORE"));
    }

    #[test]
    fn paths_do_not_go_unnoticed() {
        let baseline = counts("1", &[("a", 100.0)]);
        for paths in [&[][..], &[("a", 100.0), ("b", 1.0)], &[("b", 1.0)]] {
            assert!(!Comparison::new(&baseline, &counts("1", paths)).passes(), "{paths:?}");
        }
    }

    #[test]
    fn other_conditions_are_not_judged_and_that_is_said() {
        let (baseline, here) = (counts("1.95", &[("a", 100.0)]), counts("1.96", &[("a", 200.0)]));
        let comparison = Comparison::new(&baseline, &here);
        assert!(comparison.passes() && !comparison.is_judged());
        assert!(comparison.text().contains("the compiler: `1.95` in the baseline, `1.96` here"));
        assert!(!comparison.text().contains("TAKES MORE"));
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let written = counts("1", &[("a path, \"quoted\"", 12.34)]);
        let read = Counts::parse(&written.file()).unwrap();
        assert_eq!(read, counts("1", &[("a path, \"quoted\"", 12.3)]));
        assert!(Counts::parse("[paths]\na = 1").is_err());
    }

    #[test]
    fn totals() {
        assert_eq!(total("events: Ir\nfn=(1)\n12 3\nsummary: 17\n\ntotals: 18\n"), Some(18));
        assert_eq!(total("summary: 17\n"), Some(17));
        assert_eq!(total("nothing"), None);
    }
}
