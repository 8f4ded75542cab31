//! `understudy bench rfc2544`: RFC 2544's tests of a device between two ports, with the packet generator as
//! sender and receiver. [`bench::rfc2544`] chooses the trials; this module runs them.

mod device;
mod trial;

use crate::config::{self, Rfc2544Config};
use crate::output::print_error;
use crate::system::{catch_signals, start};
use bench::rfc2544::{MaxRate, measure};
use device::Device;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trial::Runner;

/// Test a device between two ports as in RFC 2544: throughput without loss, latency, loss by rate,
/// back-to-back frames
///
/// If it is interrupted, the results so far are printed.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Configuration with `[rfc2544]`, such as configs/pktgen/rfc2544.toml
    #[arg(value_name = "CONFIG.toml")]
    config: PathBuf,
    /// Print the report as JSON, with every trial
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let config = match config::load_rfc2544(&args.config) {
        Ok(config) => config,
        Err(report) => {
            print_error(report.render());
            return ExitCode::from(config::EXIT_CODE);
        }
    };
    match run_tests(args, &config) {
        Ok(code) => code,
        Err(report) => {
            print_error(format_args!("{report:?}"));
            ExitCode::FAILURE
        }
    }
}

fn run_tests(args: &Args, config: &Rfc2544Config) -> Result<ExitCode, miette::Report> {
    let stop = catch_signals()?;
    let runtime = start(config.runtime.clone())?;
    let folder = args.config.parent().unwrap_or(Path::new(""));
    let device = config.command.as_deref().map(|command| Device::start(command, folder)).transpose()?;
    let mut runner = Runner::new(runtime, config, device, stop);
    runner.wait_for_forwarding(config.settings.frames[0])?;
    let (report, error) = measure(&config.settings, &mut runner);
    drop(runner);
    let text = if args.json {
        serde_json::to_string(&report).expect("numbers and text always serialise")
    } else {
        report.text()
    };
    // A closed pipe is not a failure.
    _ = writeln!(std::io::stdout(), "{text}");
    if let Some(error) = error {
        return Err(error);
    }
    let missing = report.missing();
    if let (Some(missing), true) = (&missing, args.json) {
        print_error(missing);
    }
    Ok(if report.adds_up && missing.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the description of a configuration for `understudy check`.
pub(crate) fn summary(path: &Path, config: &Rfc2544Config) -> String {
    let (traffic, settings) = (&config.traffic, &config.settings);
    let mut text = format!("{} is valid. `understudy bench rfc2544` would test:\n\n", path.display());
    let mut line = |key: &str, value: String| _ = writeln!(text, "{key:<9} {value}");
    let port = |port: switch::PortId| &config.runtime.ports[port.index()].name;
    line(
        "device",
        match &config.command {
            Some(command) => format!("`{command}`, from {} to {}", port(traffic.send), port(traffic.receive)),
            None => format!("whatever is between {} and {}", port(traffic.send), port(traffic.receive)),
        },
    );
    let frames: Vec<_> = settings.frames.iter().map(u32::to_string).collect();
    line("frames", format!("of {} bytes, with their check sequences", frames.join(", ")));
    line(
        "offered",
        match settings.max_rate {
            Some(MaxRate::BitsPerS(bits)) => format!("up to {} Gb/s on the wire", bits as f64 / 1e9),
            Some(MaxRate::PacketsPerS(packets)) => format!("up to {packets} packets a second"),
            None => "up to what the generator can send".into(),
        },
    );
    line(
        "trials",
        format!(
            "of {} s, {} s for latency; each figure the median of {}",
            settings.trial_s, settings.latency_trial_s, settings.repeats
        ),
    );
    text
}
