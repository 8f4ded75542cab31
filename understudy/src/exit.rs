//! Exit codes of the commands: the sections of the manual pages, the ends of `--help`, and docs/json.md.

use crate::config::EXIT_CODE as INVALID;
use crate::run::LINK_LOST;
use clap::Command;
use core::fmt::Write as _;

/// Code of a command that did what it was to do
const DONE: u8 = 0;
/// Code of a command that failed, or found what it looks for
const FAILED: u8 = 1;

/// Exit codes of a command, each with its meaning.
type Codes = &'static [(u8, &'static str)];

/// Meanings that many commands share
const RUN: [(u8, &str); 2] = [
    (INVALID, "The command line or the configuration is not valid."),
    (
        LINK_LOST,
        "A port lost its link, and `on_link_loss` is \"exit\"; or the system requested a port's card, to unplug it.",
    ),
];
const BAD_COMMAND_LINE: (u8, &str) = (INVALID, "The command line is not valid.");
const NO_ANSWER: (u8, &str) = (FAILED, "The instance cannot be reached, or refused the request.");
const BAD_TARGET: (u8, &str) =
    (INVALID, "The command line, or the configuration that names the socket, is not valid.");
const BENCHMARK: Codes = &[
    (DONE, "The measurement is complete."),
    (FAILED, "A program that it measures could not be started or failed, or a check of the results failed."),
    BAD_COMMAND_LINE,
];
/// Codes of the program as a whole, in the order of their values
const ALL: Codes = &[
    (DONE, "The command succeeded."),
    (
        FAILED,
        "It failed, or found what it looks for: a check that fails, an error in a capture, numbers that are not valid.",
    ),
    (INVALID, "The command line, the configuration or the input is not valid."),
    RUN[1],
];

/// Codes by command; a command with subcommands has those of all of them that are not listed.
const BY_COMMAND: &[(&str, Codes)] = &[
    (
        "run",
        &[
            (
                DONE,
                "The run ended as requested: by a signal, `--for`, `stop_when_idle_ms`, or the function itself.",
            ),
            (
                FAILED,
                "DPDK, a port or a worker could not be started, or a file could not be written; a configuration in etcd \
                  could not be read, or is not valid yet; with `[pktgen]`: as \
                  `understudy pktgen`; with `[nic]`: as `understudy host`.",
            ),
            RUN[0],
            RUN[1],
        ],
    ),
    (
        "host",
        &[
            (DONE, "The run ended as requested, or all clients are done."),
            (
                FAILED,
                "A connection of a service failed, a server of `[consensus]` cannot continue, or the port could not be \
                  started.",
            ),
            RUN[0],
            RUN[1],
        ],
    ),
    (
        "process",
        &[
            (DONE, "The process has left as requested."),
            (FAILED, "A message was received out of order, or the port or the process could not be started."),
            RUN[0],
            RUN[1],
        ],
    ),
    (
        "pktgen",
        &[
            (DONE, "The numbers are valid."),
            (
                FAILED,
                "The numbers are not valid, for the reasons in `spoiled`, or do not add up; or the ports could not be \
                  started, or the histograms not be written.",
            ),
            RUN[0],
            RUN[1],
        ],
    ),
    (
        "controller",
        &[
            (DONE, "The controller ended as requested, or the request was carried out."),
            (
                FAILED,
                "The store cannot be used, or the address is taken; of a request: no answer, a refusal, or no result in \
                  time.",
            ),
            RUN[0],
        ],
    ),
    (
        "sim",
        &[
            (DONE, "Each seed passed all checks."),
            (FAILED, "A check failed."),
            (
                INVALID,
                "The command line or the scenario is not valid, a capture cannot be created, or the run is not the one \
                   that `--digest` names.",
            ),
        ],
    ),
    (
        "check",
        &[
            (DONE, "The configuration is valid."),
            (FAILED, "The configuration in etcd could not be read."),
            (INVALID, "The command line or the configuration is not valid."),
        ],
    ),
    (
        "plan",
        &[
            (DONE, "The plan was printed, or all its files were written."),
            (FAILED, "A file could not be written."),
            (INVALID, "The command line or the topology is not valid, or a number in DIR would change."),
        ],
    ),
    (
        "rdmc send",
        &[
            (DONE, "Every receiver has the file and has verified its SHA-256."),
            (FAILED, "A receiver has not, or the transfer failed."),
            (INVALID, "The command line, the configuration or the file to send is not valid."),
            RUN[1],
        ],
    ),
    (
        "rdmc receive",
        &[
            (DONE, "The file is stored, and its SHA-256 is that of the sender."),
            (FAILED, "The transfer failed; no file of that name was stored."),
            RUN[0],
            RUN[1],
        ],
    ),
    ("rdmc schedule", &[(DONE, "The schedule was printed."), BAD_COMMAND_LINE]),
    ("top", &[(DONE, "The state was shown."), NO_ANSWER, BAD_TARGET]),
    (
        "trace",
        &[
            (DONE, "The trace ended as requested."),
            (FAILED, "The instance cannot be reached or refused the trace, or the output cannot be written."),
            BAD_TARGET,
        ],
    ),
    (
        "decode",
        &[
            (DONE, "The file was read to its end."),
            (FAILED, "The file cannot be read to its end; what could be read was printed."),
            BAD_COMMAND_LINE,
        ],
    ),
    (
        "diagnose",
        &[
            (DONE, "No finding has the severity `error`."),
            (FAILED, "A finding has the severity `error`."),
            (
                INVALID,
                "The command line is not valid, or an input cannot be read to its end; what could be read was diagnosed.",
            ),
        ],
    ),
    (
        "impair",
        &[(DONE, "The rules were printed, or all workers have adopted the change."), NO_ANSWER, BAD_TARGET],
    ),
    (
        "rate",
        &[(DONE, "The rates were printed, or all workers have adopted the change."), NO_ANSWER, BAD_TARGET],
    ),
    (
        "doctor",
        &[
            (DONE, "The findings were printed, whatever they are."),
            (INVALID, "The command line or the configuration is not valid."),
        ],
    ),
    (
        "generate",
        &[(DONE, "The files were written."), (FAILED, "A file could not be written."), BAD_COMMAND_LINE],
    ),
    (
        "demo",
        &[
            (DONE, "The demonstration ran, and its checks passed."),
            (FAILED, "A check failed."),
            BAD_COMMAND_LINE,
        ],
    ),
    ("bench", BENCHMARK),
    (
        "bench rfc2544",
        &[
            (DONE, "All tests are complete."),
            (
                FAILED,
                "The device ended, the test was interrupted, a figure could not be measured, or the counters do not add up.",
            ),
            RUN[0],
        ],
    ),
];

/// Returns the codes of a command by its words, such as `rdmc send`, or those of the command that it belongs to.
fn of(words: &str) -> Option<Codes> {
    let own = BY_COMMAND.iter().find(|(command, _)| *command == words).map(|(_, codes)| *codes);
    own.or_else(|| of(words.rsplit_once(' ')?.0))
}

/// Adds the codes of each command to the end of its `--help`.
pub(crate) fn described(program: Command) -> Command {
    let help = help(ALL);
    add(program, "").after_help(help)
}

fn add(command: Command, words: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| {
        let words = format!("{words} {name}").trim().to_owned();
        command.mut_subcommand(name, |subcommand| {
            let subcommand = add(subcommand, &words);
            match of(&words) {
                Some(codes) => subcommand.after_help(help(codes)),
                None => subcommand,
            }
        })
    })
}

fn help(codes: Codes) -> String {
    let lines = codes.iter().map(|(code, meaning)| format!("\n  {code}  {meaning}"));
    format!("Exit codes:{}", lines.collect::<String>())
}

/// Returns the section of a command's manual page, in roff; `words` are empty for the program.
pub(crate) fn roff(words: &str) -> String {
    let codes = if words.is_empty() { Some(ALL) } else { of(words) };
    let mut text = String::new();
    for (code, meaning) in codes.unwrap_or_default() {
        let meaning = meaning.replace('\\', "\\e").replace('-', "\\-");
        let parts = meaning.split('`').enumerate();
        let bold = |(at, part)| if at % 2 == 1 { format!("\\fB{part}\\fR") } else { String::from(part) };
        // Writing to a string does not fail.
        _ = write!(text, ".TP\n.B {code}\n{}\n", parts.map(bold).collect::<String>());
    }
    if text.is_empty() { text } else { format!(".SH \"EXIT STATUS\"\n{text}") }
}

/// Returns the codes as tables of Markdown.
#[cfg(test)]
pub(crate) fn markdown() -> String {
    let mut page = String::from("| command | code | meaning |\n|---|---|---|\n");
    for (command, codes) in BY_COMMAND {
        for (index, (code, meaning)) in codes.iter().enumerate() {
            let command = if index == 0 { format!("`{command}`") } else { String::new() };
            _ = writeln!(page, "| {command} | {code} | {meaning} |");
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// Returns the words of each command that has no subcommands or works without them.
    fn commands(command: &Command, parents: &str) -> Vec<String> {
        let mut all = Vec::new();
        for subcommand in command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()) {
            let words = format!("{parents} {}", subcommand.get_name()).trim().to_owned();
            if subcommand.get_subcommands().count() == 0 || !subcommand.is_subcommand_required_set() {
                all.push(words.clone());
            }
            all.extend(commands(subcommand, &words));
        }
        all
    }

    #[test]
    fn each_command_has_exit_codes_and_each_entry_a_command() {
        let program = crate::Cli::command();
        let commands = commands(&program, "");
        for words in &commands {
            let codes = of(words).unwrap_or_else(|| panic!("{words} has no exit codes"));
            assert!(codes.is_sorted_by_key(|(code, _)| code) && codes[0].0 == DONE, "{words}: {codes:?}");
            // clap ends with this code.
            assert!(codes.iter().any(|(code, _)| *code == INVALID), "{words}: {codes:?}");
            assert!(codes.iter().all(|(code, _)| ALL.iter().any(|(known, _)| known == code)), "{words}");
        }
        for (entry, _) in BY_COMMAND {
            let is_used =
                commands.iter().any(|words| words == entry || words.starts_with(&format!("{entry} ")));
            assert!(is_used, "{entry} is no command");
        }
    }

    #[test]
    fn help_and_manual_pages_end_with_the_same_codes() {
        let mut program = described(crate::Cli::command());
        let help = program.find_subcommand_mut("diagnose").unwrap().render_help().to_string();
        assert!(help.contains("Exit codes:\n  0  No finding has the severity `error`."), "{help}");
        let page = roff("diagnose");
        assert!(page.contains("\n.B 0\nNo finding has the severity \\fBerror\\fR.\n"), "{page}");
        assert_eq!(roff("bench workers"), roff("bench"));
        assert_ne!(roff("bench rfc2544"), roff("bench"));
    }
}
