//! `understudy top`: a running instance, as it runs.

mod app;
mod draw;
mod rates;
#[cfg(test)]
mod tests;
mod text;

use crate::config::EXIT_CODE;
use crate::observe::{Client, Lost, Snapshot, Target};
use crate::output::print;
use crate::run::parse_seconds;
use app::App;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// How long keys may wait
const FRAME: Duration = Duration::from_millis(50);
/// More often is more than can be read
const FASTEST: Duration = Duration::from_millis(50);

/// Watch a running instance: rates by port, group and connection, cycles, drops, latency
///
/// The instance's configuration has to have [observe] with a socket (docs/observe.md).
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The instance's socket, or its configuration
    #[arg(value_name = "SOCKET|CONFIG")]
    target: PathBuf,
    /// Print what there is now, and end
    #[arg(long)]
    once: bool,
    /// The same as JSON
    #[arg(long)]
    json: bool,
    /// How often to look
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_seconds)]
    every: Duration,
}

pub(crate) fn run(args: &Args) -> ExitCode {
    let target = match Target::of(&args.target) {
        Ok(target) => target,
        Err(why) => {
            eprintln!("{}", why.trim_end());
            return ExitCode::from(EXIT_CODE);
        }
    };
    let failed = |why: &str| {
        eprintln!("understudy: {why}");
        ExitCode::FAILURE
    };
    if args.once || args.json {
        return match Client::connect(&target).and_then(|mut client| client.snapshot()) {
            Ok(snapshot) if args.json => {
                let json = serde_json::to_string(&snapshot).expect("numbers and text always serialise");
                print(&format!("{json}\n"), ExitCode::SUCCESS)
            }
            Ok(snapshot) => print(&text::of(&snapshot), ExitCode::SUCCESS),
            Err(lost) => failed(&lost.to_string()),
        };
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return failed("`top` needs a terminal; --once prints what there is now, --json as JSON");
    }
    let ended = Arc::new(AtomicBool::new(false));
    // Not SIGHUP: where the terminal is gone, reading from it may never return, and there is nothing to restore.
    if let Err(error) = signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::clone(&ended)) {
        return failed(&format!("signals cannot be caught: {error}"));
    }
    let shown = ratatui::try_init().and_then(|mut terminal| {
        let shown = show(&mut terminal, target, args.every.max(FASTEST), &ended);
        ratatui::restore();
        shown
    });
    match shown {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("the terminal: {error}")),
    }
}

/// Shows it until told to end.
fn show(
    terminal: &mut DefaultTerminal,
    target: Target,
    every: Duration,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut app = App::default();
    // An instance that hangs must not keep keys waiting.
    let (looks, looked) = crossbeam_channel::bounded(1);
    thread::Builder::new().name("look".into()).spawn(move || {
        let mut client = None;
        while looks.send(look(&target, &mut client)).is_ok() {
            thread::sleep(every);
        }
    })?;
    while !ended.load(Ordering::Relaxed) {
        for seen in looked.try_iter() {
            app.see(seen);
        }
        terminal.draw(|frame| draw::draw(&app, frame))?;
        if event::poll(FRAME)?
            && let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && !app.on_key(key)
        {
            break;
        }
    }
    Ok(())
}

/// The instance as it is now; after a failure the connection is made anew.
fn look(target: &Target, client: &mut Option<Client>) -> Result<Snapshot, Lost> {
    let mut connected = match client.take() {
        Some(client) => client,
        None => Client::connect(target)?,
    };
    let snapshot = connected.snapshot()?;
    *client = Some(connected);
    Ok(snapshot)
}
