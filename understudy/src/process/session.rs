//! A process with its workload, from its start to its report.

use super::output::{print, print_failed, print_process_failed, report_output};
use super::report::ReceiveStats;
use super::workload::Workload;
use super::{Args, explain};
use crate::interfaces;
use crate::system::{catch_signals, now};
use onepipe_host::{Config, Endpoint, Event, ProcessId, Timestamp, reliable};
use std::io::{BufWriter, Stdout, Write};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Timeout of a receive when there is nothing to do
const RECV_TIMEOUT: Duration = Duration::from_millis(1);
/// Maximum number of messages received in a turn, because scatterings have to be sent as well
const MESSAGES_PER_TURN: usize = 1024;

struct Session<'a> {
    args: &'a Args,
    endpoint: Endpoint,
    workload: Workload<'a>,
    stats: ReceiveStats,
    out: BufWriter<Stdout>,
    reports: Box<dyn Write>,
    began: Instant,
}

/// Runs a process until it is to end, and reports.
pub(super) fn run(args: &Args, mut config: Config, to: &[ProcessId]) -> Result<ExitCode, miette::Report> {
    let stop = catch_signals()?;
    let stop = stop.flag();
    config.process.settled_events = true;
    let own = config.process.process.own.id;
    interfaces::warn_of(&config.runtime.ports);
    let endpoint = Endpoint::init(config).map_err(explain)?;
    let peers = endpoint.handle().peers().len();
    let noun = if peers == 1 { "peer" } else { "peers" };
    info!("Process {own} is ready, with {peers} {noun}. Ctrl-C ends it.");
    let mut session = Session {
        args,
        endpoint,
        workload: Workload::new(args, to),
        stats: ReceiveStats::new(args.reliable),
        out: BufWriter::new(std::io::stdout()),
        reports: report_output(args)?,
        began: now(),
    };
    let mut next_line = args.live.map(|every| session.began + every);
    while !stop.load(Ordering::Relaxed) && session.endpoint.handle().is_running() {
        let time = now();
        if session.is_over(time) {
            break;
        }
        let sent = session.workload.send(&mut session.endpoint, time);
        let sent = sent.map_err(|error| miette::miette!("{error}"))?;
        session.take_events();
        if session.receive(MESSAGES_PER_TURN) == 0 && !sent {
            session.wait();
        }
        if let (Some(at), Some(every)) = (next_line, args.live)
            && at <= time
        {
            next_line = Some(time + every);
            session.write_line(time);
        }
    }
    session.finish()
}

impl Session<'_> {
    fn is_over(&self, time: Instant) -> bool {
        self.args.duration.is_some_and(|limit| time.duration_since(self.began) >= limit)
            || self.workload.is_done(self.stats.received)
    }

    /// Counts and prints all events.
    fn take_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            self.take(event);
        }
        // The order of messages and failed processes in the output is that in which this program gets them.
        while let Ok(Some(event)) = self.endpoint.poll_reliable_event() {
            self.take_reliable(&event);
        }
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::SendFailed { scattering, dst, why, .. } => {
                let why = self.stats.record_failure(why);
                if self.args.print {
                    print_failed(&mut self.out, scattering, dst, why);
                }
            }
            Event::Settled { .. } => self.workload.settle(),
            Event::Stalled { barrier } => warn_stalled(barrier),
            Event::Recovered { after, .. } => {
                info!("The barrier rises again, after {} us.", after.0 / 1_000);
            }
        }
    }

    fn take_reliable(&mut self, event: &reliable::Event) {
        let stats = &mut self.stats.reliable;
        stats.record(event);
        match *event {
            reliable::Event::SendFailed { scattering, dst, why, .. } => {
                let why = stats.record_failure(why);
                if self.args.print {
                    print_failed(&mut self.out, scattering, dst, why);
                }
            }
            reliable::Event::ProcessFailed(failed) if self.args.print => {
                print_process_failed(&mut self.out, failed.process, failed.timestamp);
            }
            reliable::Event::Settled { .. } => self.workload.settle(),
            _ => {}
        }
    }

    /// Counts and prints at most this many messages. Returns how many there were.
    fn receive(&mut self, limit: usize) -> usize {
        let Self { args, endpoint, stats, out, .. } = self;
        let mut record = |timestamp, src, payload: &[u8]| {
            stats.record(timestamp, src, payload.len());
            if args.print {
                print(out, timestamp, src, payload);
            }
        };
        if args.reliable {
            // The command line and the configuration agree, so the call is not refused.
            let next = || {
                let message = endpoint.recv().ok().flatten()?;
                record(message.timestamp, message.src, &message.payload);
                Some(())
            };
            core::iter::from_fn(next).take(limit).count()
        } else {
            (0..limit).take_while(|_| endpoint.unreliable_recv_with(&mut record).is_some()).count()
        }
    }

    /// Waits for a message, or a while.
    fn wait(&mut self) {
        if self.args.reliable {
            std::thread::sleep(RECV_TIMEOUT);
        } else if let Some(message) = self.endpoint.recv_timeout(RECV_TIMEOUT) {
            self.stats.record(message.timestamp, message.src, message.payload.len());
            if self.args.print {
                print(&mut self.out, message.timestamp, message.src, &message.payload);
            }
        }
    }

    /// Writes a line of `--live`.
    fn write_line(&mut self, time: Instant) {
        let seconds = time.duration_since(self.began).as_secs_f64();
        let line = self.stats.json(&self.endpoint, self.workload.sent(), seconds);
        // Messages before the line that counts them. A closed pipe does not end the process.
        _ = self.out.flush();
        _ = writeln!(self.reports, "{line}");
        _ = self.reports.flush();
    }

    /// Leaves, and writes the report.
    fn finish(mut self) -> Result<ExitCode, miette::Report> {
        let thread_ended = !self.endpoint.handle().is_running();
        let seconds = now().duration_since(self.began).as_secs_f64();
        self.endpoint.handle().exit();
        // Messages and events that came during `exit`
        while self.receive(MESSAGES_PER_TURN) > 0 {}
        self.take_events();
        let sent = self.workload.sent();
        let text = if self.args.json {
            self.stats.json(&self.endpoint, sent, seconds)
        } else {
            self.stats.text(&self.endpoint, sent, seconds)
        };
        // Messages first, if both go to the same terminal.
        _ = self.out.flush();
        let written = writeln!(self.reports, "{text}").and_then(|()| self.reports.flush());
        if let (Err(error), Some(file)) = (written, &self.args.report) {
            return Err(miette::miette!("{}: {error}", file.display()));
        }
        if self.endpoint.handle().has_lost_link() {
            return Ok(ExitCode::from(crate::run::LINK_LOST));
        }
        if thread_ended {
            return Err(miette::miette!("the polling thread has ended"));
        }
        Ok(if self.stats.out_of_order == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// Warns that nothing is delivered.
fn warn_stalled(barrier: Option<Timestamp>) {
    if let Some(barrier) = barrier {
        warn!("The barrier stands still at {barrier}: nothing is delivered.");
    } else {
        warn!("No barrier has arrived yet: nothing is delivered.");
    }
}
