//! A replicated key-value store, as an example of a service on p4ce's consensus: any server may be killed, and nothing that
//! was acknowledged is lost.
#![forbid(unsafe_code)]

mod check;
mod client;
mod codec;
mod command;
mod desk;
mod history;
mod replica;
mod resp;
mod server;
mod store;
mod tcp;

use clap::{Args, Parser, Subcommand};
use client::Client;
use core::net::SocketAddr;
use core::time::Duration;
use resp::Value;
use std::io::Write as _;
use std::process::ExitCode;

/// A replicated key-value store on consensus over RDMA.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Server(Box<server::ServerArgs>),
    /// Print a value
    Get(KeyArgs),
    /// Set a value
    Set {
        #[command(flatten)]
        key: KeyArgs,
        value: String,
    },
    /// Delete a key
    Del(KeyArgs),
    /// Count up a number
    Incr(KeyArgs),
    /// Begin the group, empty: once, when all servers run for the first time
    ///
    /// Again only when all of them have lost their memory, and what they held is to be given up. It is refused while any
    /// server is a member.
    Bootstrap {
        #[command(flatten)]
        servers: Servers,
        /// How long to try
        #[arg(long, value_name = "S", default_value_t = 10)]
        patience: u64,
    },
    /// Print how each server is
    Info {
        #[command(flatten)]
        servers: Servers,
    },
    Check(check::CheckArgs),
}

#[derive(Args)]
struct Servers {
    /// Where all servers serve clients
    #[arg(long, value_name = "IP:PORT,...", value_delimiter = ',', required = true)]
    tcp: Vec<SocketAddr>,
}

#[derive(Args)]
struct KeyArgs {
    #[command(flatten)]
    servers: Servers,
    /// How long to try
    #[arg(long, value_name = "S", default_value_t = 10)]
    patience: u64,
    key: String,
}

fn main() -> miette::Result<ExitCode> {
    match Cli::parse().command {
        Command::Server(args) => server::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Get(key) => Ok(call(key, "GET", None)),
        Command::Set { key, value } => Ok(call(key, "SET", Some(&value))),
        Command::Del(key) => Ok(call(key, "DEL", None)),
        Command::Incr(key) => Ok(call(key, "INCR", None)),
        Command::Bootstrap { servers, patience } => {
            Ok(bootstrap(&servers.tcp, Duration::from_secs(patience)))
        }
        Command::Info { servers } => Ok(info(&servers.tcp)),
        Command::Check(args) => check::run(&args),
    }
}

/// Has one command applied, and prints the answer.
fn call(args: KeyArgs, name: &str, value: Option<&str>) -> ExitCode {
    let mut client = Client::new(args.servers.tcp, Duration::from_secs(args.patience));
    let words = [Some(name), Some(&args.key), value].into_iter().flatten().map(str::as_bytes);
    let text = match client.call(&words.collect::<Vec<_>>()) {
        Some(Value::Error(error)) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
        None => {
            eprintln!("No leader answered in time: it may have been done or not.");
            return ExitCode::FAILURE;
        }
        Some(Value::Bulk(None)) => return ExitCode::FAILURE,
        Some(Value::Simple(text)) => text.into(),
        Some(Value::Number(number)) => number.to_string().into_bytes(),
        Some(Value::Bulk(Some(bytes))) => bytes,
    };
    // A reader that has gone away does not make it a failure.
    _ = std::io::stdout().write_all(&[text, b"\n".to_vec()].concat());
    ExitCode::SUCCESS
}

/// Has one of the servers begin the group, as soon as it sees all others; failure if it has begun already.
fn bootstrap(servers: &[SocketAddr], patience: Duration) -> ExitCode {
    let began = client::now();
    let mut why = String::from("no server answers");
    for server in servers.iter().cycle() {
        match client::bootstrap(*server) {
            Ok(Value::Simple(_)) => {
                println!("The group has begun.");
                return ExitCode::SUCCESS;
            }
            Ok(Value::Error(error)) if error.starts_with("BEGUN ") => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
            Ok(Value::Error(error)) => why = format!("{server}: {error}"),
            Ok(_) => why = format!("{server} does not answer as a server of kv does"),
            Err(error) => why = format!("{server}: {error}"),
        }
        if began.elapsed() >= patience {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("The group has not begun: {why}");
    ExitCode::FAILURE
}

/// Prints how each server is; failure if one of them does not answer.
fn info(servers: &[SocketAddr]) -> ExitCode {
    let mut code = ExitCode::SUCCESS;
    for server in servers {
        match client::info(*server) {
            Ok(text) => println!("{server}\n{}", text.replace('\r', "")),
            Err(error) => {
                println!("{server}\nerror:{error}\n");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
