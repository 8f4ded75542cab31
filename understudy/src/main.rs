//! The program: RDMA in-network computing on a commodity server.
#![forbid(unsafe_code)]

mod check;
mod config;
mod doctor;
mod machine;
mod output;
mod run;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// RDMA in-network computing on a commodity server.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Check(check::Args),
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(args),
        Command::Check(args) => check::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    }
}
