//! `understudy rdmc`: transfer of objects to many hosts.

mod partial_file;
mod receive;
mod schedule;
mod send;
mod transfer;

#[cfg(test)]
pub(crate) use schedule::Printed;
#[cfg(test)]
pub(crate) use send::Sent;

use clap::Subcommand;
use std::process::ExitCode;

#[derive(Subcommand)]
pub(crate) enum Command {
    Schedule(schedule::Args),
    Send(send::Args),
    Receive(receive::Args),
}

pub(crate) fn run(command: &Command) -> ExitCode {
    match command {
        Command::Schedule(args) => schedule::run(args),
        Command::Send(args) => send::run(args),
        Command::Receive(args) => receive::run(args),
    }
}
