//! `understudy sim`: runs scenarios in the simulator, with one seed or many.

mod report;
mod sweep;

#[cfg(test)]
pub(crate) use report::{One, Sweep};

use crate::config;
use crate::output::{print, print_error};
use core::fmt::Write as _;
use miette::{MietteDiagnostic, Report};
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use sweep::Seeds;
use workloads::scenario::{CaptureTo, Outcome, Planted, Scenario, Shrunk, run as run_one, shrink};

/// Maximum number of scenarios tried to shrink a failing one
const SHRINK: u32 = 2000;

/// Run a scenario in the simulator, and check every invariant
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Scenario file
    #[arg(value_name = "SCENARIO.toml")]
    scenario: PathBuf,
    /// Seed of all random decisions
    #[arg(long, default_value_t = 1, conflicts_with = "seeds")]
    seed: u64,
    /// Expected digest of a replayed run; exit with 2 if the digest differs
    #[arg(long, value_name = "HEX", value_parser = digest, conflicts_with_all = ["seeds", "duration"])]
    digest: Option<u64>,
    /// Run this many seeds, beginning with --from
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// First of several seeds
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    from: u64,
    /// Run seeds for this long, beginning with --from
    #[arg(long = "for", value_name = "SECONDS", conflicts_with_all = ["seeds", "seed"])]
    duration: Option<u64>,
    /// Number of seeds to run at once [default: number of CPUs]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Write the traffic of a link to FILE; name the link as NODE,NODE=FILE unless there is only one; may be
    /// repeated
    #[arg(long, value_name = "[NODE,NODE=]FILE", conflicts_with_all = ["seeds", "duration"])]
    pcap: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// Do not search for a smaller scenario that fails
    #[arg(long)]
    no_shrink: bool,
    /// Plant a bug in every NIC, to test that it is found: ack-too-far, atomic-twice, no-duplicate-check,
    /// wrong-wrap, stale-read, responses-first, pace-excuses or any-access
    #[cfg(debug_assertions)]
    #[arg(long, value_parser = bug)]
    bug: Option<rnic::Bug>,
}

fn digest(text: &str) -> Result<u64, String> {
    let is_complete = text.len() == 16;
    u64::from_str_radix(text, 16)
        .ok()
        .filter(|_| is_complete)
        .ok_or_else(|| "a digest has 16 hexadecimal digits".into())
}

#[cfg(debug_assertions)]
fn bug(name: &str) -> Result<rnic::Bug, String> {
    let names = [
        "ack-too-far",
        "atomic-twice",
        "no-duplicate-check",
        "wrong-wrap",
        "stale-read",
        "responses-first",
        "pace-excuses",
        "any-access",
    ];
    let found = names.iter().zip(rnic::Bug::ALL).find(|(known, _)| **known == name);
    found.map(|(_, bug)| bug).ok_or_else(|| format!("unknown bug; use {}", names.join(", ")))
}

impl Args {
    #[cfg(debug_assertions)]
    fn planted(&self) -> Planted {
        Planted { bug: self.bug }
    }

    #[cfg(not(debug_assertions))]
    #[allow(clippy::unused_self, reason = "bugs can only be planted in debug builds")]
    fn planted(&self) -> Planted {
        Planted::default()
    }

    fn seeds(&self) -> Option<Seeds> {
        match (self.seeds, self.duration) {
            (Some(count), _) => Some(Seeds::Count { from: self.from, count }),
            (None, Some(seconds)) => Some(Seeds::For { from: self.from, seconds }),
            (None, None) => None,
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let scenario = match config::load_scenario(&args.scenario) {
        Ok(scenario) => scenario,
        Err(report) => {
            print_error(report.render());
            return ExitCode::from(config::EXIT_CODE);
        }
    };
    match args.seeds() {
        Some(seeds) => sweep(args, &scenario, seeds),
        None => match captures(args, &scenario) {
            Ok(captures) => one(args, &scenario, captures),
            Err(report) => {
                print_error(format_args!("{report:?}"));
                ExitCode::from(config::EXIT_CODE)
            }
        },
    }
}

fn one(args: &Args, scenario: &Scenario, captures: Vec<CaptureTo>) -> ExitCode {
    let outcome = run_one(scenario, args.seed, args.planted(), captures);
    let failure = failure(args, scenario, &outcome);
    let text = if args.json {
        report::one_json(&outcome, failure.as_ref())
    } else {
        report::one_text(&outcome) + &describe(&args.scenario, &outcome, failure.as_ref())
    };
    let mismatch = args.digest.filter(|digest| *digest != outcome.digest);
    let code = if let Some(digest) = mismatch {
        print_error(format_args!(
            "This is not the run to be replayed: its digest is {:016x}, not {digest:016x}. The scenario or the version of \
             understudy differs.",
            outcome.digest
        ));
        ExitCode::from(config::EXIT_CODE)
    } else {
        code(failure.is_none())
    };
    print(&text, code)
}

fn sweep(args: &Args, scenario: &Scenario, seeds: Seeds) -> ExitCode {
    let summary = sweep::run(scenario, seeds, args.threads, args.planted());
    let failed = summary.failed.as_ref();
    let failure = failed.and_then(|outcome| failure(args, scenario, outcome));
    let text = if args.json {
        report::sweep_json(&summary, failure.as_ref())
    } else {
        let description = failed.map(|outcome| describe(&args.scenario, outcome, failure.as_ref()));
        report::sweep_text(&summary) + &description.unwrap_or_default()
    };
    print(&text, code(failed.is_none()))
}

fn code(success: bool) -> ExitCode {
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A violation, and the smallest scenario found that shows it.
struct Failure {
    seed: u64,
    violation: String,
    shrunk: Option<Shrunk>,
}

fn failure(args: &Args, scenario: &Scenario, outcome: &Outcome) -> Option<Failure> {
    let violation = outcome.violation.clone()?;
    let shrunk = if args.no_shrink { None } else { shrink(scenario, outcome.seed, args.planted(), SHRINK) };
    Some(Failure { seed: outcome.seed, violation, shrunk })
}

/// Describes a violation for the terminal.
fn describe(path: &Path, outcome: &Outcome, failure: Option<&Failure>) -> String {
    let Some(failure) = failure else { return String::new() };
    let mut text = format!(
        "\nSomething is wrong with seed {}: {}\nReplay it: understudy sim {} --seed {} --digest {:016x}\n",
        outcome.seed,
        failure.violation,
        path.display(),
        outcome.seed,
        outcome.digest
    );
    if let Some(shrunk) = &failure.shrunk {
        let what = shrunk.outcome.violation.as_deref().unwrap_or_default();
        _ = write!(
            text,
            "\nThe smallest scenario found that fails with this seed, after {} attempts ({} packets; {what}):\n\n\
             # understudy sim FILE --seed {} --digest {:016x}\n{}",
            shrunk.tried,
            shrunk.outcome.packets,
            outcome.seed,
            shrunk.outcome.digest,
            workloads::scenario::to_toml(&shrunk.scenario)
        );
    }
    text
}

/// Creates the requested capture files.
fn captures(args: &Args, scenario: &Scenario) -> Result<Vec<CaptureTo>, Report> {
    let names: Vec<_> = scenario.links.iter().map(|link| link.ends.join(",")).collect();
    let wrong = |what: String, help: String| Report::from(MietteDiagnostic::new(what).with_help(help));
    args.pcap
        .iter()
        .map(|argument| {
            let (number, path) = match argument.split_once('=') {
                Some((name, path)) => {
                    let reversed: Vec<_> = name.split(',').rev().collect();
                    let number = names.iter().position(|link| link == name || *link == reversed.join(","));
                    let number = number.ok_or_else(|| {
                        wrong(
                            format!("there is no link {name}"),
                            format!("the links are {}", names.join("; ")),
                        )
                    })?;
                    (number, path)
                }
                None if names.len() == 1 => (0, argument.as_str()),
                None => {
                    let help =
                        format!("write --pcap {}={argument}; the links are {}", names[0], names.join("; "));
                    return Err(wrong("--pcap does not name a link, and there are several".into(), help));
                }
            };
            let file = File::create(path)
                .map_err(|error| wrong(format!("{path}: {error}"), "use a file that you may write".into()))?;
            Ok((number, Box::new(BufWriter::new(file)) as _))
        })
        .collect()
}
