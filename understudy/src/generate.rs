//! `understudy generate`: writes what a package installs beside the program, from the definitions of the command line.

use crate::exit;
use crate::output::{print, print_error};
use clap::{Command, Subcommand};
use clap_complete::Shell;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Sections of the program's manual page beside those of `--help`, in roff
const SECTIONS: &str = r#".SH FILES
.TP
.I /etc/understudy/NAME.toml
Configuration of the service \fBunderstudy@\fINAME\fB.service\fR.
.TP
.I /run/understudy/NAME/
Folder of this service, for the socket of \fB[observe]\fR.
.TP
.I /var/lib/understudy/NAME/
Folder of this service, for what outlives a restart: the journal of \fB[swordbox]\fR.
.SH EXAMPLES
.TP
.B understudy doctor
Print what this machine lacks for DPDK, and the commands that install it.
.TP
.B understudy check --example forward
Print a commented configuration with every key of a function.
.TP
.B understudy run bridge.toml
Run it until Ctrl\-C.
.TP
.B systemctl enable --now understudy@bridge
Run /etc/understudy/bridge.toml as a service, now and after each start of the machine.
.TP
.B understudy top /etc/understudy/bridge.toml
Show the rates, losses and queue pairs of the running service.
.SH "SEE ALSO"
The documentation, as Markdown in
.IR /usr/share/doc/understudy/docs ,
and examples of configurations in
.IR /usr/share/doc/understudy/configs .
"#;

/// What `understudy generate` writes.
#[derive(Subcommand)]
pub(crate) enum Action {
    /// Write the manual pages into a folder, one for each command
    Man {
        /// Folder; it is created if it is missing
        folder: PathBuf,
    },
    /// Print the completions for a shell
    Completions {
        /// Shell for which they are
        shell: Shell,
    },
}

/// Carries out an action for the program's definition of its command line.
pub(crate) fn run(action: &Action, command: &Command) -> ExitCode {
    match action {
        Action::Man { folder } => match write_pages(command, folder) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                print_error(format_args!("cannot write manual pages into {}: {error}", folder.display()));
                ExitCode::FAILURE
            }
        },
        Action::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut visible(command), "understudy", &mut text);
            print(&String::from_utf8_lossy(&text), ExitCode::SUCCESS)
        }
    }
}

/// Returns a command with what completions contain, without hidden subcommands, which clap would complete as well.
fn visible(command: &Command) -> Command {
    let shown = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    Command::new(command.get_name().to_owned())
        .version(command.get_version().unwrap_or_default().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().cloned())
        .subcommands(shown.map(visible))
}

/// Writes a page for each command that is not hidden.
fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command.clone(), folder)?;
    write_exit_codes(command, "", folder)?;
    append(&folder.join("understudy.1"), SECTIONS)
}

/// Appends the exit codes to the page of a command, and to those of its subcommands.
fn write_exit_codes(command: &Command, words: &str, folder: &Path) -> io::Result<()> {
    let name = if words.is_empty() { String::new() } else { format!("-{}", words.replace(' ', "-")) };
    append(&folder.join(format!("understudy{name}.1")), &exit::roff(words))?;
    let shown = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set());
    for subcommand in shown {
        let words = format!("{words} {}", subcommand.get_name());
        write_exit_codes(subcommand, words.trim(), folder)?;
    }
    Ok(())
}

fn append(page: &Path, text: &str) -> io::Result<()> {
    fs::OpenOptions::new().append(true).open(page)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    /// Returns the words of each command, such as `bench peers`, and whether it is hidden.
    fn commands(command: &Command, parents: &str) -> Vec<(String, bool)> {
        let mut all = Vec::new();
        for subcommand in command.get_subcommands() {
            let words = format!("{parents} {}", subcommand.get_name()).trim().to_owned();
            all.extend(commands(subcommand, &words));
            all.push((words, subcommand.is_hide_set()));
        }
        all
    }

    #[test]
    fn each_visible_command_has_a_page_and_is_completed() {
        let folder = tempfile::tempdir().unwrap();
        let program = crate::Cli::command();
        write_pages(&program, folder.path()).unwrap();
        let mut completions = Vec::new();
        clap_complete::generate(Shell::Fish, &mut visible(&program), "understudy", &mut completions);
        let completions = String::from_utf8(completions).unwrap();
        let all = commands(&program, "");
        assert!(all.iter().any(|(_, hidden)| *hidden));
        for (words, hidden) in all {
            let page = folder.path().join(format!("understudy-{}.1", words.replace(' ', "-")));
            assert_eq!(page.exists(), !hidden, "{words}");
            let codes = exit::roff(&words);
            assert!(hidden || fs::read_to_string(page).unwrap().ends_with(&codes), "{words}");
            let last = words.rsplit(' ').next().unwrap();
            assert_eq!(completions.contains(&format!("-a \"{last}\"")), !hidden, "{words}");
        }
        let first = fs::read_to_string(folder.path().join("understudy.1")).unwrap();
        assert!(first.contains(".SH \"EXIT STATUS\"") && first.contains("understudy\\-run"), "{first}");
    }
}
