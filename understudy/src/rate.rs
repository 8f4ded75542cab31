//! `understudy rate`: lists and changes the rates of `[pktgen]` in a running instance.

use crate::config::{self, EXIT_CODE};
use crate::observe::Client;
use crate::observe::steer::{RatesRequest, RatesState};
use crate::output::{print, print_error, row, section};
use core::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// List and change the rates of a running packet generator (understudy pktgen)
///
/// The instance's configuration has to have `[observe]` with `socket` (docs/observe.md). Rates are packets or bits
/// on the wire in a second: 1.5Mpps, 250kpps, 800pps, 10Gbps, or max. All of them change, or none.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Socket of the instance, or its configuration file
    #[arg(value_name = "SOCKET|CONFIG")]
    target: PathBuf,
    /// Rate of a stream, or of all streams; without any, the rates are printed
    #[arg(value_name = "[STREAM=]RATE", value_parser = stream_and_rate)]
    rates: Vec<(Option<String>, String)>,
    /// Print the rates as one line of JSON
    #[arg(long)]
    json: bool,
}

#[expect(clippy::unnecessary_wraps, reason = "clap's parsers return a result")]
fn stream_and_rate(text: &str) -> Result<(Option<String>, String), String> {
    Ok(match text.rsplit_once('=') {
        Some((stream, rate)) => (Some(stream.to_owned()), rate.to_owned()),
        None => (None, text.to_owned()),
    })
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let target = match config::target(&args.target) {
        Ok(target) => target,
        Err(why) => {
            print_error(why);
            return ExitCode::from(EXIT_CODE);
        }
    };
    let request = match args.rates.as_slice() {
        [] => RatesRequest::List,
        rates => RatesRequest::Set { rates: rates.to_vec() },
    };
    match Client::connect(&target).and_then(|mut client| client.rates(request)) {
        Ok(state) if args.json => {
            let json = serde_json::to_string(&state).expect("numbers and text always serialise");
            print(&format!("{json}\n"), ExitCode::SUCCESS)
        }
        Ok(state) => print(&text(&state), ExitCode::SUCCESS),
        Err(error) => {
            print_error(format_args!("understudy: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn text(state: &RatesState) -> String {
    let mut text = String::new();
    let rows = state.streams.iter().map(|stream| {
        row(&[&stream.name, &stream.rate, &format!("{:.1} s", stream.sending_s)], &[stream.sent])
    });
    section(&mut text, "Rates", &["stream", "rate", "has sent for", "packets sent"], 3, rows);
    if let Some(bits) = state.device_bits_per_s {
        // Writing to a string does not fail.
        _ = writeln!(text, "The device sends {} Gb/s.", bits as f64 / 1e9);
    }
    text
}
