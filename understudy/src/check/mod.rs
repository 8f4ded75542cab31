//! `understudy check`: checks a configuration file, and prints what it would run.

mod example;
mod scenario;
mod summary;
#[cfg(test)]
mod tests;

use crate::config::{self, Config, Finding, Purpose, Report, Source};
use crate::etcd::{Address, Client};
use crate::machine::Machine;
use crate::output::{print, print_error};
use crate::{controller, interfaces, plan, rfc2544};
use serde::Serialize;
use settings::file::text_from;
use std::path::Path;
use std::process::ExitCode;

/// Check a configuration file and print what it would run, without starting anything
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration file, or a key in etcd (etcd://HOST:PORT/KEY)
    #[arg(value_name = "CONFIG", required_unless_present = "example", value_parser = Source::parser())]
    config: Option<Source>,
    /// Print a commented file with every key of a function's table, such as p4ce
    #[arg(long, value_name = "TABLE", conflicts_with_all = ["config", "json", "quiet"], value_parser = example::names())]
    example: Option<String>,
    /// Print nothing if the file is valid
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Print {"ok", "errors": [{"line", "column", "message", "help"}]}
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let wrong = ExitCode::from(config::EXIT_CODE);
    let summary = match &args.config {
        None => {
            let example = args.example.as_deref().and_then(example::file).unwrap_or_default();
            return print(&example, ExitCode::SUCCESS);
        }
        Some(Source::File(path)) => summary_of(path),
        Some(Source::Etcd(address)) => match value_of(address) {
            Ok(value) => summary_of_value(&address.to_string(), value),
            Err(why) if args.json => {
                let error = Error { line: 1, column: 1, message: &why, help: "" };
                return print(&json(&Verdict { ok: false, errors: vec![error] }), ExitCode::FAILURE);
            }
            Err(why) => {
                print_error(why);
                return ExitCode::FAILURE;
            }
        },
    };
    match (summary, args.json) {
        (Ok(_), true) => print(&json(&Verdict { ok: true, errors: Vec::new() }), ExitCode::SUCCESS),
        (Ok(_), false) if args.quiet => ExitCode::SUCCESS,
        (Ok(summary), false) => print(&summary, ExitCode::SUCCESS),
        (Err(report), true) => {
            let errors = report.findings().map(Into::into).collect();
            print(&json(&Verdict { ok: false, errors }), wrong)
        }
        (Err(report), false) => {
            print_error(report.render());
            wrong
        }
    }
}

/// Returns the value of a key in etcd. The error is a text for users.
fn value_of(address: &Address) -> Result<Vec<u8>, String> {
    let version =
        Client::new(address.clone()).read().map_err(|why| format!("cannot read {address}: {why}"))?;
    version.value.ok_or_else(|| format!("etcd has no key `{}`", address.key))
}

/// Describes what `run` would do here with a value of etcd, whose relative paths begin in the working directory.
fn summary_of_value(origin: &str, value: Vec<u8>) -> Result<String, Report> {
    let path = Path::new(origin);
    let text = text_from(path, value)?;
    config::load_text(path, &text, Path::new("")).map(|config| summary_of_config(path, &text, &config))
}

fn summary_of_config(path: &Path, text: &str, config: &Config) -> String {
    let interfaces = interfaces::warnings(&config.runtime.ports);
    summary::of(path, text, config, &Machine::this(), interfaces)
}

/// Describes what the command would do that a file is for.
fn summary_of(path: &Path) -> Result<String, Report> {
    match config::purpose(path) {
        Purpose::Run => config::load(path).map(|config| {
            let text = std::fs::read_to_string(path).unwrap_or_default();
            summary_of_config(path, &text, &config)
        }),
        Purpose::Sim => config::load_scenario(path).map(|scenario| scenario::of(path, &scenario)),
        Purpose::Plan => config::load_plan(path).map(|network| plan::summary(path, &network)),
        Purpose::Controller => config::load_controller(path).map(|config| controller::summary(path, &config)),
        Purpose::Rfc2544 => config::load_rfc2544(path).map(|config| {
            let interfaces = interfaces::warnings(&config.runtime.ports);
            let notes = summary::notes(&config.runtime, &Machine::this()).into_iter().chain(interfaces);
            rfc2544::summary(path, &config) + &summary::note_lines(notes)
        }),
    }
}

/// Result of `--json`. Fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Verdict<'a> {
    /// Whether the file is valid
    ok: bool,
    /// Everything that is not valid
    errors: Vec<Error<'a>>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Error<'a> {
    /// Line in the file, from 1
    line: usize,
    /// Column in the line, from 1
    column: usize,
    /// What is wrong
    message: &'a str,
    /// What to write instead
    help: &'a str,
}

impl<'a> From<Finding<'a>> for Error<'a> {
    fn from(finding: Finding<'a>) -> Self {
        let position = finding.position;
        Self { line: position.line, column: position.column, message: finding.message, help: finding.help }
    }
}

fn json(verdict: &Verdict<'_>) -> String {
    serde_json::to_string(verdict).expect("numbers and text always serialise") + "\n"
}
