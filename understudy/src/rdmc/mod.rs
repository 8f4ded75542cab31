//! `understudy rdmc`: objects to many hosts.

mod schedule;

use clap::Subcommand;
use std::process::ExitCode;

#[derive(Subcommand)]
pub(crate) enum Command {
    Schedule(schedule::Args),
}

pub(crate) fn run(command: &Command) -> ExitCode {
    match command {
        Command::Schedule(args) => schedule::run(args),
    }
}
