//! The `understudy` program: RDMA in-network computing on a commodity server.
#![forbid(unsafe_code)]
// Errors that end a command go through `output::print_error`, everything else is an event (`log`).
#![warn(clippy::print_stderr)]

mod check;
mod config;
mod controller;
mod decode;
mod diagnose;
mod doctor;
mod etcd;
mod exit;
mod functions;
mod generate;
mod impair;
mod interfaces;
mod log;
mod observe;
mod output;
mod plan;
mod process;
mod rate;
mod rdmc;
#[cfg(test)]
mod reference;
mod rfc2544;
mod ring;
mod run;
mod service;
mod sim;
mod system;
mod top;
mod trace;

// Imported here so that the modules can write `crate::machine`.
use settings::machine;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use miette::IntoDiagnostic as _;
use output::print_error;
use std::process::ExitCode;

/// RDMA in-network computing on a commodity server
///
/// understudy runs switch functions for RDMA on DPDK ports: it forwards, counts, impairs and generates RoCEv2 traffic,
/// replicates writes (P4CE), serializes contended atomics (Swordbox), orders messages (1Pipe) and multicasts objects
/// (RDMC). `understudy run` without a configuration runs a demonstration.
#[derive(Parser)]
#[command(version = version(), max_term_width = 100)]
struct Cli {
    /// Events to print to standard error: off, error, warn, info or debug, or by module, such as
    /// warn,understudy::run=info
    #[arg(long, global = true, env = log::ENV, value_name = "FILTER", default_value = "info", value_parser = log::parse_filter)]
    log: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Host(run::HostArgs),
    Process(process::Args),
    Controller(controller::Args),
    Pktgen(run::PktgenArgs),
    Sim(sim::Args),
    Check(check::Args),
    Plan(plan::Args),
    /// Send objects to many hosts (RDMC)
    #[command(subcommand)]
    Rdmc(rdmc::Command),
    Top(top::Args),
    Trace(trace::Args),
    Decode(decode::DecodeArgs),
    Diagnose(diagnose::Args),
    Impair(impair::Args),
    Rate(rate::Args),
    Doctor(doctor::Args),
    /// Write manual pages or shell completions, which packages install
    #[command(subcommand)]
    Generate(generate::Action),
    /// Run a demonstration
    #[command(subcommand)]
    Demo(Demo),
    /// Run a benchmark
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Demo {
    Swordbox(bench::swordbox::simulated::DemoArgs),
    #[command(name = "onepipe")]
    OnePipe(bench::onepipe::demo::DemoArgs),
}

#[derive(Subcommand)]
enum Bench {
    Peers(bench::peers::PeersArgs),
    Rfc2544(rfc2544::Args),
    Pktgen(bench::pktgen::PktgenArgs),
    Observe(bench::observe::ObserveArgs),
    Health(bench::health::HealthArgs),
    Workers(bench::workers::WorkersArgs),
    P4ce(bench::p4ce::P4ceArgs),
    Consensus(bench::consensus::ConsensusArgs),
    Swordbox(bench::swordbox::SwordboxArgs),
    #[command(name = "onepipe")]
    OnePipe(bench::onepipe::OnePipeArgs),
    Paper(bench::paper::PaperArgs),
    #[command(hide = true)]
    P4ceLoad(bench::p4ce::LoadArgs),
    #[command(hide = true)]
    HealthLoad(bench::health::LoadArgs),
    #[command(hide = true)]
    SwordboxLoad(bench::swordbox::LoadArgs),
    #[command(name = "onepipe-load", hide = true)]
    OnePipeLoad(bench::onepipe::LoadArgs),
}

fn main() -> ExitCode {
    let matches = exit::described(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    log::init(&cli.log);
    break_errors_at_spaces();
    match cli.command {
        Command::Run(args) => run::run(args),
        Command::Host(args) => run::host(args),
        Command::Process(args) => process::run(&args),
        Command::Controller(args) => controller::run(&args),
        Command::Pktgen(args) => run::pktgen(args),
        Command::Sim(args) => sim::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Rdmc(command) => rdmc::run(&command),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Decode(args) => decode::run(&args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Impair(args) => impair::run(&args),
        Command::Rate(args) => rate::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Generate(action) => generate::run(&action, &Cli::command()),
        Command::Demo(Demo::Swordbox(args)) => exit_code(bench::swordbox::simulated::demo(&args)),
        Command::Demo(Demo::OnePipe(args)) => exit_code(bench::onepipe::demo::demo(&args)),
        Command::Bench(Bench::Rfc2544(args)) => rfc2544::run(&args),
        Command::Bench(command) => bench(&command),
    }
}

/// Returns the version of the program, the commit from which a release build was made, and the version of DPDK.
fn version() -> String {
    let dpdk = dataplane::Runtime::version();
    match option_env!("UNDERSTUDY_COMMIT") {
        Some(commit) => format!("{} ({commit}, {dpdk})", env!("CARGO_PKG_VERSION")),
        None => format!("{} ({dpdk})", env!("CARGO_PKG_VERSION")),
    }
}

/// Makes every error that ends a command break at spaces only.
fn break_errors_at_spaces() {
    let hook = miette::set_hook(Box::new(|_| {
        Box::new(settings::report::unbroken_words(miette::MietteHandlerOpts::new()).build())
    }));
    hook.expect("the hook is set once");
}

fn bench(command: &Bench) -> ExitCode {
    let own = std::env::current_exe().into_diagnostic();
    let done = own.and_then(|own| match command {
        Bench::Peers(args) => bench::peers::run(args, &own),
        Bench::Rfc2544(_) => unreachable!("main handles this command, because it has exit codes of its own"),
        Bench::Pktgen(args) => bench::pktgen::run(args, &own),
        Bench::Observe(args) => bench::observe::run(args, &own),
        Bench::Health(args) => bench::health::run(args, &own),
        Bench::Workers(args) => bench::workers::run(args, &own),
        Bench::P4ce(args) => bench::p4ce::run(args, &own),
        Bench::Consensus(args) => bench::consensus::run(args),
        Bench::Swordbox(args) => bench::swordbox::run(args, &own),
        Bench::P4ceLoad(args) => run::p4ce_load(args),
        Bench::HealthLoad(args) => run::health_load(args),
        Bench::SwordboxLoad(args) => run::swordbox_load(args),
        Bench::OnePipe(args) => bench::onepipe::run(args, &own),
        Bench::Paper(args) => bench::paper::run(args, &own, &dataplane::Runtime::version()),
        Bench::OnePipeLoad(args) => run::onepipe_load(args),
    });
    exit_code(done)
}

fn exit_code(done: Result<(), miette::Report>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(report) => {
            print_error(format_args!("{report:?}"));
            ExitCode::FAILURE
        }
    }
}
