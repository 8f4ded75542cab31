//! `understudy top`: shows a running instance.

mod app;
mod draw;
mod rates;
#[cfg(test)]
mod tests;
mod text;

use crate::config::{self, EXIT_CODE};
use crate::observe::{Client, ClientError, Snapshot, Target};
use crate::output::{print, print_error};
use crate::system::{hangup_is_ignored, parse_seconds};
use app::App;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::iterator::Signals;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Interval at which keys are read
const KEY_INTERVAL: Duration = Duration::from_millis(50);
/// Time after SIGHUP within which the display has to end
const HANGUP_TIMEOUT: Duration = Duration::from_millis(500);
/// Shortest interval between two snapshots
const MIN_INTERVAL: Duration = Duration::from_millis(50);

/// Watch a running instance: rates by port, group and connection, cycles, drops, latency
///
/// The instance's configuration has to have `[observe]` with `socket` (docs/observe.md).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Socket of the instance, or its configuration file
    #[arg(value_name = "SOCKET|CONFIG")]
    target: PathBuf,
    /// Print the current state once and exit
    #[arg(long)]
    once: bool,
    /// Print the current state once as JSON and exit
    #[arg(long)]
    json: bool,
    /// Refresh interval
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    every: Duration,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let target = match config::target(&args.target) {
        Ok(target) => target,
        Err(why) => {
            print_error(why);
            return ExitCode::from(EXIT_CODE);
        }
    };
    let failed = |why: &str| {
        print_error(format_args!("understudy: {why}"));
        ExitCode::FAILURE
    };
    if args.once || args.json {
        return match Client::connect(&target).and_then(|mut client| client.snapshot()) {
            Ok(snapshot) if args.json => {
                let json = serde_json::to_string(&snapshot).expect("numbers and text always serialise");
                print(&format!("{json}\n"), ExitCode::SUCCESS)
            }
            Ok(snapshot) => print(&text::of(&snapshot), ExitCode::SUCCESS),
            Err(error) => failed(&error.to_string()),
        };
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return failed("`top` needs a terminal; use --once for text, or --json");
    }
    let stop = Arc::new(AtomicBool::new(false));
    let caught = signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&stop));
    if let Err(error) = caught.and_then(|_| end_at_hangup(&stop)) {
        return failed(&format!("cannot catch signals: {error}"));
    }
    let shown = ratatui::try_init().and_then(|mut terminal| {
        let shown = show(&mut terminal, target, args.every.max(MIN_INTERVAL), &stop);
        ratatui::restore();
        shown
    });
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("terminal: {error}")),
    }
}

/// Makes SIGHUP end the program, unless it is ignored. When the terminal is gone, reading from it may never
/// return: then this thread ends the process.
fn end_at_hangup(stop: &Arc<AtomicBool>) -> io::Result<()> {
    if hangup_is_ignored() {
        return Ok(());
    }
    let mut signals = Signals::new([signal_hook::consts::SIGHUP])?;
    let stop = Arc::clone(stop);
    thread::Builder::new().name("hangup".into()).spawn(move || {
        if signals.forever().next().is_some() {
            stop.store(true, Ordering::Relaxed);
            thread::sleep(HANGUP_TIMEOUT);
            ratatui::restore();
            std::process::exit(0);
        }
    })?;
    Ok(())
}

/// Shows the instance until the user or a signal ends the program.
fn show(
    terminal: &mut DefaultTerminal,
    target: Target,
    every: Duration,
    stop: &AtomicBool,
) -> io::Result<()> {
    let mut app = App::default();
    // A thread of its own, because an instance that hangs must not delay keys.
    let (sender, snapshots) = crossbeam_channel::bounded(1);
    thread::Builder::new().name("look".into()).spawn(move || {
        let mut client = None;
        while sender.send(fetch(&target, &mut client)).is_ok() {
            thread::sleep(every);
        }
    })?;
    while !stop.load(Ordering::Relaxed) {
        for result in snapshots.try_iter() {
            app.update(result);
        }
        terminal.draw(|frame| draw::draw(&app, frame))?;
        if event::poll(KEY_INTERVAL)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && !app.on_key(key)
        {
            break;
        }
    }
    Ok(())
}

/// Returns the current state of the instance, and reconnects after a failure.
fn fetch(target: &Target, client: &mut Option<Client>) -> Result<Snapshot, ClientError> {
    let mut connected = match client.take() {
        Some(client) => client,
        None => Client::connect(target)?,
    };
    let snapshot = connected.snapshot()?;
    *client = Some(connected);
    Ok(snapshot)
}
