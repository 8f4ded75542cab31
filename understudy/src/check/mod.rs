//! `understudy check`: checks a configuration file, and prints what it would run.

mod scenario;
mod summary;

use crate::config::{self, Finding, Purpose, Report};
use crate::machine::Machine;
use crate::output::{print, print_error};
use crate::{plan, rfc2544};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Check a configuration file and print what it would run, without starting anything
///
/// The exit status is 0 if the file is valid, and 2 if it is not.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration file
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    /// Print {"ok", "errors": [{"line", "column", "message", "help"}]}
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let wrong = ExitCode::from(config::EXIT_CODE);
    let summary = match config::purpose(&args.config) {
        Purpose::Run => {
            config::load(&args.config).map(|config| summary::of(&args.config, &config, &Machine::this()))
        }
        Purpose::Sim => {
            config::load_scenario(&args.config).map(|scenario| scenario::of(&args.config, &scenario))
        }
        Purpose::Plan => {
            config::load_topology(&args.config).map(|network| plan::summary(&args.config, &network))
        }
        Purpose::Rfc2544 => {
            config::load_rfc2544(&args.config).map(|config| rfc2544::summary(&args.config, &config))
        }
    };
    match (summary, args.json) {
        (Ok(_), true) => print(&format!("{}\n", json!({ "ok": true, "errors": [] })), ExitCode::SUCCESS),
        (Ok(summary), false) => print(&summary, ExitCode::SUCCESS),
        (Err(report), true) => print(&format!("{}\n", json(&report)), wrong),
        (Err(report), false) => {
            print_error(report.render());
            wrong
        }
    }
}

fn json(report: &Report) -> Value {
    let error = |finding: Finding<'_>| {
        json!({
            "line": finding.position.line,
            "column": finding.position.column,
            "message": finding.message,
            "help": finding.help,
        })
    };
    json!({ "ok": false, "errors": report.findings().map(error).collect::<Vec<_>>() })
}
