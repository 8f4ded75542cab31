//! A replicated key-value store, as an example of a service on p4ce's consensus: any server may be killed
//! without loss of acknowledged data.
#![forbid(unsafe_code)]

mod check;
mod client;
mod codec;
mod command;
mod control;
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
use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
    /// Increment a number
    Incr(KeyArgs),
    /// Bootstrap the group with an empty store: once, when all servers run for the first time
    ///
    /// Bootstrap again only if all servers have lost their memory; the previous contents are then given up.
    /// The command is refused while any server is a member.
    Bootstrap {
        #[command(flatten)]
        servers: Servers,
        /// Seconds to keep trying
        #[arg(long, value_name = "S", default_value_t = 10)]
        patience: u64,
    },
    /// Print the status of each server
    Info {
        #[command(flatten)]
        servers: Servers,
    },
    Check(check::CheckArgs),
}

#[derive(Args)]
struct Servers {
    /// Client addresses of all servers
    #[arg(long, value_name = "IP:PORT,...", value_delimiter = ',', required = true)]
    tcp: Vec<SocketAddr>,
}

#[derive(Args)]
struct KeyArgs {
    #[command(flatten)]
    servers: Servers,
    /// Seconds to keep trying
    #[arg(long, value_name = "S", default_value_t = 10)]
    patience: u64,
    key: String,
}

fn main() -> miette::Result<ExitCode> {
    let cli = Cli::parse();
    print_events();
    match cli.command {
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

/// Prints events to standard error, filtered by the environment variable `KV_LOG`, such as `warn`; `info` if
/// it is not set.
fn print_events() {
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).with_env_var("KV_LOG");
    tracing_subscriber::fmt()
        .with_env_filter(filter.from_env_lossy())
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        .init();
}

/// Executes one command, and prints the response.
fn call(args: KeyArgs, name: &str, value: Option<&str>) -> ExitCode {
    let mut client = Client::new(args.servers.tcp, Duration::from_secs(args.patience));
    let words = [Some(name), Some(&args.key), value].into_iter().flatten().map(str::as_bytes);
    let text = match client.call(&words.collect::<Vec<_>>()) {
        Some(Value::Error(error)) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
        None => {
            eprintln!("No leader responded in time: the command may or may not have been executed.");
            return ExitCode::FAILURE;
        }
        Some(Value::Bulk(None)) => return ExitCode::FAILURE,
        Some(Value::Simple(text)) => text.into(),
        Some(Value::Number(number)) => number.to_string().into_bytes(),
        Some(Value::Bulk(Some(bytes))) => bytes,
    };
    // A closed pipe is not an error.
    _ = std::io::stdout().write_all(&[text, b"\n".to_vec()].concat());
    ExitCode::SUCCESS
}

/// Makes one of the servers bootstrap the group, as soon as it is connected to all other servers. Fails if
/// the group was bootstrapped before.
fn bootstrap(servers: &[SocketAddr], patience: Duration) -> ExitCode {
    let began = client::now();
    let mut why = String::from("no server responds");
    for server in servers.iter().cycle() {
        match client::bootstrap(*server) {
            Ok(Value::Simple(_)) => {
                println!("The group is bootstrapped.");
                return ExitCode::SUCCESS;
            }
            Ok(Value::Error(error)) if error.starts_with("BEGUN ") => {
                eprintln!("{error}");
                return ExitCode::FAILURE;
            }
            Ok(Value::Error(error)) => why = format!("{server}: {error}"),
            Ok(_) => why = format!("{server} is not a kv server"),
            Err(error) => why = format!("{server}: {error}"),
        }
        if began.elapsed() >= patience {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    eprintln!("The group was not bootstrapped: {why}");
    ExitCode::FAILURE
}

/// Prints the status of each server. Fails if one of them does not respond.
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
