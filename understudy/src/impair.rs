//! `understudy impair`: lists and changes the rules of `[impair]` in a running instance.

use crate::config::{self, EXIT_CODE};
use crate::observe::Client;
use crate::observe::steer::{RulesRequest, RulesState};
use crate::output::{print, print_error, row, section};
use clap::Subcommand;
use core::fmt::Write as _;
use settings::file::text_of;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// List and change the rules of `[impair]` in a running instance, while its connections go on
///
/// The instance's configuration has to have `[observe]` with `socket` (docs/observe.md). A change takes effect on
/// all workers before the command ends, or is refused as a whole. Frames that a rule holds back leave when they
/// were due, whatever becomes of the rule.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Socket of the instance, or its configuration file
    #[arg(value_name = "SOCKET|CONFIG")]
    target: PathBuf,
    #[command(subcommand)]
    action: Option<Action>,
    /// Print the rules as one line of JSON
    #[arg(long, global = true)]
    json: bool,
    /// Print the rules as a configuration has them, for a file that `apply` reads
    #[arg(long, global = true, conflicts_with = "json")]
    toml: bool,
}

#[derive(Subcommand)]
enum Action {
    /// Print the rules and what they have done; also without a command
    List,
    /// Add a rule, such as `add action=drop share=0.3 match.opcode=write`
    Add {
        /// Keys of [[impair.rule]] with their values; those of `match` as match.KEY
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = key_and_value)]
        keys: Vec<(String, String)>,
        /// Add it before this rule, instead of behind all others
        #[arg(long, value_name = "RULE")]
        before: Option<String>,
    },
    /// Change keys of a rule, such as `set lossy share=0`; an empty value removes the key
    Set {
        /// Name of the rule
        rule: String,
        /// Keys with their values. Setting `skip` or `times` resets their counts
        #[arg(value_name = "KEY=VALUE", required = true, value_parser = key_and_value)]
        keys: Vec<(String, String)>,
    },
    /// Remove rules
    Remove {
        /// Names of the rules
        #[arg(value_name = "RULE", required = true)]
        rules: Vec<String>,
    },
    /// Replace all rules by those of a file; of a whole configuration, only its rules are read
    Apply {
        /// File with [[impair.rule]] tables; - is standard input
        file: PathBuf,
    },
}

/// Returns the name and the value of an argument.
fn key_and_value(text: &str) -> Result<(String, String), String> {
    let (key, value) =
        text.split_once('=').ok_or("write a key of [[impair.rule]] and its value, such as share=0.3")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let target = match config::target(&args.target) {
        Ok(target) => target,
        Err(why) => {
            print_error(why);
            return ExitCode::from(EXIT_CODE);
        }
    };
    let request = match request(args.action.as_ref()) {
        Ok(request) => request,
        Err(why) => {
            print_error(why);
            return ExitCode::from(EXIT_CODE);
        }
    };
    match Client::connect(&target).and_then(|mut client| client.rules(request)) {
        Ok(state) if args.json => {
            let json = serde_json::to_string(&state).expect("numbers and text always serialise");
            print(&format!("{json}\n"), ExitCode::SUCCESS)
        }
        Ok(state) if args.toml => print(&toml(&state), ExitCode::SUCCESS),
        Ok(state) => print(&text(&state), ExitCode::SUCCESS),
        Err(error) => {
            print_error(format_args!("understudy: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn request(action: Option<&Action>) -> Result<RulesRequest, String> {
    Ok(match action {
        None | Some(Action::List) => RulesRequest::List,
        Some(Action::Add { keys, before }) => {
            RulesRequest::Add { keys: keys.clone(), before: before.clone() }
        }
        Some(Action::Set { rule, keys }) => RulesRequest::Set { rule: rule.clone(), keys: keys.clone() },
        Some(Action::Remove { rules }) => RulesRequest::Remove { rules: rules.clone() },
        Some(Action::Apply { file }) => {
            let text = if file == Path::new("-") {
                let mut text = String::new();
                let read = std::io::stdin().read_to_string(&mut text);
                read.map(|_| text).map_err(|error| format!("standard input: {error}; write TOML to it"))?
            } else {
                text_of(file).map_err(|report| report.render())?
            };
            RulesRequest::Apply { origin: file.display().to_string(), text }
        }
    })
}

/// Returns the rules as a configuration has them. Without rules, the text still removes all when it is applied.
fn toml(state: &RulesState) -> String {
    let rules: Vec<_> = state.rules.iter().map(|rule| rule.toml.as_str()).collect();
    if rules.is_empty() { "[impair]\n".into() } else { rules.join("\n") }
}

fn text(state: &RulesState) -> String {
    let mut text = String::new();
    let columns = ["", "rule", "matched", "acted", "unable"];
    let rows = (1..).zip(&state.rules).map(|(number, rule): (usize, _)| {
        row(&[&number.to_string(), &rule.text], &[rule.matched, rule.acted, rule.unable])
    });
    section(&mut text, "Rules, in their order", &columns, 2, rows);
    if state.rules.is_empty() {
        text += "There are no rules: all packets pass.\n";
    }
    if !state.waiting.is_empty() {
        let workers: Vec<_> = state.waiting.iter().map(usize::to_string).collect();
        // Writing to a string does not fail.
        _ = writeln!(
            text,
            "Not adopted yet by {} of {} workers: {}",
            workers.len(),
            state.workers,
            workers.join(", ")
        );
    }
    text
}
