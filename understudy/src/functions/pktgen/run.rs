//! The packet generator's control plane, which starts it when its ports are up and ends the run when it is
//! done, and its report.

use super::invalid::{InvalidReason, Links};
use super::rates::Rates;
use super::report::{self, PktgenReport};
use super::{hgrm, invalid};
use crate::functions::launch::{Closing, Launch, Supervision};
use crate::observe::no_groups;
use crate::system::now;
use dataplane::config::{Device, Port};
use dataplane::{ControlHandler, ControlOutput, LinkChange, Live, Mbuf, PortInfo, Stop, log};
use onepipe::Timestamp;
use pktgen::{Command, Event, Pktgen, Profile, Totals};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::io::{IsTerminal as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use switch::{Nanos, PortId};
use tracing::{info, warn};

/// Interval of progress lines on a terminal
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Time that several workers have to start and to get the command to begin, so that they begin at the same time
const BEGIN_DELAY: Nanos = Nanos::from_millis(5);
/// Time within which links have to come up, before the generator starts without them
const LINK_TIMEOUT: Duration = Duration::from_secs(5);

/// The control plane.
struct Plane<'a> {
    profile: &'a Profile,
    totals: Totals,
    /// Ports that have no peer yet
    unconnected: Vec<&'a Port>,
    /// Time within which they have to have one; `None` for any time
    wait_limit: Option<Duration>,
    /// Links of the other ports in use
    links: Links,
    start: Instant,
    /// Flag that signals set
    stop: &'a Stop,
    ending: bool,
    commands: CommandQueues,
    /// Workers that have sent everything, and that have ended
    drained: usize,
    ended: usize,
    done: bool,
    /// Time at which sending began
    began: Option<Instant>,
    invalid_reasons: Vec<InvalidReason>,
    lines: Lines,
    supervision: Option<Supervision<'a>>,
    rates: Rates,
}

/// Commands for all workers, in order, of which each worker gets each one once.
struct CommandQueues {
    /// Commands that worker n has not got yet
    unsent: Vec<VecDeque<Command>>,
}

impl CommandQueues {
    fn new(workers: usize) -> Self {
        Self { unsent: vec![VecDeque::new(); workers] }
    }

    /// Adds a command for all workers.
    fn add(&mut self, command: Command) {
        for worker in &mut self.unsent {
            worker.push_back(command);
        }
    }

    /// Sends what there is room for. `send` returns false if a worker's queue is full.
    fn send(&mut self, mut send: impl FnMut(usize, Command) -> bool) {
        for (worker, commands) in self.unsent.iter_mut().enumerate() {
            while commands.front().is_some_and(|command| send(worker, *command)) {
                commands.pop_front();
            }
        }
    }

    /// Returns whether each worker has got all commands.
    fn are_sent(&self) -> bool {
        self.unsent.iter().all(VecDeque::is_empty)
    }
}

/// Output during the run.
struct Lines {
    /// Interval of JSON lines on standard output, if requested
    json: Option<Duration>,
    /// Whether to print progress lines on standard error
    show_progress: bool,
    next: Instant,
    /// Packets sent and received at the last line, and its time
    last: (u64, u64, Instant),
}

impl ControlHandler<Pktgen> for Plane<'_> {
    fn on_event(&mut self, worker: usize, event: Event, out: &mut ControlOutput<'_, Pktgen>) {
        match event {
            Event::Done => {
                self.ended += 1;
                self.done = self.ended == out.workers();
            }
            Event::Drained => {
                self.drained += 1;
                if self.drained == out.workers() {
                    self.commands.add(Command::Finish);
                }
            }
            Event::RateChanged { stream, mark } => self.rates.changed(worker, stream, mark),
        }
    }

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, Pktgen>) {
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, Pktgen>) -> bool {
        if let Some(supervision) = &mut self.supervision {
            let metrics = || report::metrics_of(self.profile, &self.totals.get());
            supervision.on_tick(live, out, metrics, no_groups);
        }
        let time = self.began.map_or(Duration::ZERO, |began| began.elapsed());
        if !self.done {
            self.invalid_reasons.extend(self.links.poll(|| live.links(), now(), self.began.is_some(), time));
        }
        let ready =
            self.unconnected.is_empty() && (self.links.all_up() || self.start.elapsed() > LINK_TIMEOUT);
        if self.began.is_none() && ready {
            self.commands.add(Command::Begin { at: out.now() + BEGIN_DELAY });
            let now = now();
            self.began = Some(now);
            (self.lines.next, self.lines.last) = (now + self.lines.every(), (0, 0, now));
            self.invalid_reasons.extend(self.links.down_at_the_start());
        }
        let is_late = self.wait_limit.is_some_and(|limit| self.start.elapsed() >= limit);
        if self.began.is_none() && !self.unconnected.is_empty() && is_late {
            return false;
        }
        // The first signal ends sending. The second one, or one before the start, ends the run.
        if self.stop.flag().swap(false, Ordering::Relaxed) {
            if self.ending || self.began.is_none() {
                return false;
            }
            self.ending = true;
            self.commands.add(Command::End);
        }
        let device = || live.link_rates()[self.profile.send.index()];
        self.commands.send(|worker, command| out.command(worker, command).is_ok());
        // A change of a rate must not overtake the command to begin or to end.
        let are_sent = self.commands.are_sent();
        let change = |worker, command| are_sent && out.command(worker, command).is_ok();
        self.rates.poll(now(), &self.totals, device, change);
        if let Some(began) = self.began {
            self.lines.show(&self.totals, began);
        }
        !self.done
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        log::peer(port, up);
        if up {
            self.unconnected.retain(|unconnected| unconnected.name != port.name);
        } else if let Some(began) = self.began.filter(|_| !self.done) {
            self.invalid_reasons.push(invalid::port_down(&port.name, "peer", began.elapsed()));
        }
    }

    fn on_link_change(&mut self, port: &PortInfo, change: &LinkChange) {
        log::link(port, change);
    }

    fn on_peer_awaited(&mut self, port: &PortInfo) {
        log::awaited_peer(port);
    }

    fn on_peer_refused(&mut self, port: &PortInfo, why: &str) {
        log::refused_peer(port, why);
    }
}

/// A line of `--live`: packets of all streams together. Fields are added, not renamed.
#[derive(serde::Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct LiveLine {
    /// Time since sending began
    seconds: f64,
    /// Packets sent since then
    sent: u64,
    /// Packets received since then, without duplicates
    received: u64,
    /// Packets lost since then: later ones of their queue pairs arrived
    lost: u64,
    /// Packets sent and neither received nor lost yet, such as those in flight
    unseen: u64,
    /// Packets received more than once since then
    duplicates: u64,
    /// Packets sent, since the previous line
    sent_per_s: f64,
    /// Packets received, since the previous line
    received_per_s: f64,
}

impl Lines {
    fn every(&self) -> Duration {
        self.json.unwrap_or(PROGRESS_INTERVAL)
    }

    fn show(&mut self, totals: &Totals, began: Instant) {
        let now = now();
        if now < self.next || !(self.show_progress || self.json.is_some()) {
            return;
        }
        self.next = now + self.every();
        let counters = totals.get();
        let sum = |count: fn(&pktgen::counters::StreamCounters) -> u64| {
            counters.streams.iter().map(count).sum::<u64>()
        };
        let (sent, received) = (sum(|c| c.sent.frames.get()), sum(|c| c.received.frames.get()));
        let (lost, duplicates) = (sum(pktgen::counters::StreamCounters::lost), sum(|c| c.duplicates.get()));
        let unseen = sum(pktgen::counters::StreamCounters::unseen);
        let (sent_before, received_before, at) = self.last;
        let span = now.duration_since(at).as_secs_f64().max(1e-9);
        let rate = |now: u64, last: u64| (now - last) as f64 / span;
        let (tx, rx) = (rate(sent, sent_before), rate(received, received_before));
        self.last = (sent, received, now);
        let seconds = now.duration_since(began).as_secs_f64();
        if self.json.is_some() {
            let line = LiveLine {
                seconds,
                sent,
                received,
                lost,
                unseen,
                duplicates,
                sent_per_s: tx,
                received_per_s: rx,
            };
            let line = serde_json::to_string(&line).expect("numbers always serialise");
            // A closed pipe does not end the run.
            _ = writeln!(std::io::stdout(), "{line}");
        } else {
            info!(
                "{seconds:6.1} s: {:.3} Mpps out, {:.3} in; {lost} lost, {duplicates} duplicates",
                tx / 1e6,
                rx / 1e6
            );
        }
    }
}

/// Returns the current 1Pipe time.
fn epoch() -> Timestamp {
    let time = clock_gettime(ClockId::Realtime);
    let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    Timestamp::new(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
}

/// Runs the generator. The error that follows the report is that of writing the requested histograms.
pub(super) fn run(profile: &Profile, launch: Launch<'_>) -> Result<Closing, miette::Report> {
    let options = launch.options;
    if let Some(folder) = &options.hgrm {
        hgrm::create_folder(folder)?;
    }
    let mut run = launch.start()?;
    let steering = run.take_steering();
    let ports = &run.ports;
    let duration = options.duration.map(|time| Nanos(time.as_nanos() as u64));
    let profile = Profile { epoch: epoch(), duration: duration.or(profile.duration), ..profile.clone() };
    let instances: Vec<_> = (0..run.workers)
        .map(|worker| Pktgen::of_worker(&profile, worker, run.workers))
        .collect::<Result<_, _>>()
        .map_err(|error| miette::miette!("invalid [pktgen]: {error}"))?;
    let totals = Totals::new(&instances, profile.streams.len());
    let rates = Rates::new(&profile, &instances, &totals, steering);
    let receiving = invalid::receiving(ports, &instances[0]);
    let used = [Some(profile.send), profile.receive];
    let unconnected = used.into_iter().flatten().map(|port| &ports[port.index()]);
    let unconnected = unconnected.filter(|port| matches!(port.device, Device::Memif { .. }));
    let mut unconnected: Vec<_> = unconnected.collect();
    // One port may both send and receive.
    unconnected.dedup_by_key(|port| &port.name);
    let links = used.into_iter().flatten().map(|port| (port.index(), &ports[port.index()]));
    let links = links.filter(|(_, port)| !matches!(port.device, Device::Memif { .. }));
    let links = links.map(|(index, port)| (index, port.name.clone()));
    let start = now();
    let mut plane = Plane {
        profile: &profile,
        totals,
        unconnected,
        // The wait ends when the run would have ended at the latest.
        wait_limit: profile.duration.map(|time| Duration::from_nanos(time.0)),
        links: Links::new(links),
        start,
        stop: &run.stop,
        ending: false,
        commands: CommandQueues::new(run.workers),
        drained: 0,
        ended: 0,
        done: false,
        began: None,
        invalid_reasons: Vec::new(),
        lines: Lines {
            json: options.live,
            show_progress: std::io::stderr().is_terminal(),
            next: start,
            last: (0, 0, start),
        },
        rates,
        supervision: run.supervision.take(),
    };
    let began = now();
    let outcome = run.runtime.run_by(workers::pktgen, instances, &mut plane, &Stop::new());
    let seconds = began.elapsed().as_secs_f64();
    let counters = plane.totals.get();
    run.lost_link.set(outcome.lost_link.is_some());
    let mut invalid_reasons = core::mem::take(&mut plane.invalid_reasons);
    invalid_reasons.extend(invalid::by_streams(&profile, &counters, plane.rates.histories()));
    invalid_reasons.extend(invalid::by_drops(&outcome));
    invalid_reasons.extend(invalid::by_devices(ports, &receiving, &outcome, &invalid_reasons));
    if !plane.done && plane.began.is_none() {
        invalid_reasons.extend(plane.unconnected.iter().map(|port| invalid::no_peer(port, seconds)));
    }
    if !plane.done && invalid_reasons.iter().all(|invalid| invalid.reason != "no_peer") {
        invalid_reasons.push(InvalidReason {
            reason: "cut_short",
            what: "the run was interrupted before the last packets could arrive".into(),
        });
    }
    let deferred = options.hgrm.as_deref().map_or(Ok(()), |folder| {
        if hgrm::write(folder, plane.profile, &counters)? == 0 {
            warn!(
                "No latency was measured, so there is no histogram in {}: set `receive` and payloads of 8 bytes or more for \
                 one-way latency, or `outstanding` on requests for round trips.",
                folder.display()
            );
        }
        Ok(())
    });
    let end = (seconds, plane.done);
    let streams = (&*counters, plane.rates.histories());
    let report = PktgenReport::new(&profile, streams, &run.runtime, &outcome, invalid_reasons, end);
    Ok(Closing { report: Box::new(report), deferred })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn each_worker_gets_each_command_once_and_in_order() {
        let mut commands = CommandQueues::new(2);
        let begin = Command::Begin { at: Nanos(5) };
        let mut got = [Vec::new(), Vec::new()];
        commands.add(begin);
        for full in [Some(1), Some(0), None] {
            commands.send(|worker, command| {
                let has_room = full != Some(worker);
                if has_room {
                    got[worker].push(command);
                }
                has_room
            });
            assert_eq!(commands.are_sent(), full.is_none());
            if full == Some(1) {
                commands.add(Command::End);
            }
        }
        assert_eq!(got, [vec![begin, Command::End], vec![begin, Command::End]]);
    }

    use crate::config::load;
    use crate::functions::FunctionConfig;

    /// Returns the profile of a generator with these lines after the port that it sends to and receives from.
    pub(in crate::functions::pktgen) fn profile(lines: &str) -> Profile {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.toml");
        let port = "[[port]]\nname = \"loop\"\nring = {}\n[pktgen]\nsend = \"loop\"\nreceive = \"loop\"\n";
        std::fs::write(&path, format!("{port}{lines}")).unwrap();
        let config = load(&path).map_err(|report| report.render()).unwrap();
        let FunctionConfig::Pktgen(profile) = config.function else { panic!("no generator") };
        profile
    }
}
