//! The packet generator's control plane, which begins it when its ports are up and ends it when it is done, and its report.

mod hgrm;
mod told;

use super::{now, run_until_done};
use crate::observe::Observer;
use dataplane::config::Device;
use dataplane::{Control, ControlOutput, Live, Mbuf, PortInfo, Runtime, Stop};
use pktgen::{Command, Counters, Event, Pktgen, Profile};
use rocev2::onepipe::Timestamp;
use rustix::time::{ClockId, clock_gettime};
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use switch::PortId;

pub(super) use told::PktgenReport;
pub(crate) use told::rate;

/// How often a line is shown to people
const SHOW_EVERY: Duration = Duration::from_secs(1);
/// Part of what was asked for that a rate may be off
const RATE_TOLERANCE: f64 = 0.005;

/// Why a run's numbers are not to be believed.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(super) struct Spoil {
    /// A word for it
    reason: &'static str,
    /// What happened, in a sentence
    what: String,
}

/// The control plane.
struct Plane<'a> {
    profile: &'a Profile,
    counters: Arc<Counters>,
    /// The names of ports that have no peer yet
    waits_for: Vec<String>,
    /// Set by signals
    asked: &'a Stop,
    ending: bool,
    done: bool,
    /// When sending began
    began: Option<Instant>,
    spoils: Vec<Spoil>,
    lines: Lines,
    observer: Option<Observer>,
}

/// What is shown while it runs.
struct Lines {
    /// JSON on standard output, this often
    json: Option<Duration>,
    /// A line on standard error
    shows: bool,
    next: Instant,
    /// Packets sent and received when it was last shown, and when that was
    before: (u64, u64, Instant),
}

impl Control<Pktgen> for Plane<'_> {
    fn on_event(&mut self, _worker: usize, Event::Done: Event, _out: &mut ControlOutput<'_, Pktgen>) {
        self.done = true;
    }

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, Pktgen>) {
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, Pktgen>) -> bool {
        if let Some(observer) = &mut self.observer {
            observer.attend(live, out, || told::observed(self.profile, &self.counters));
        }
        if self.began.is_none() && self.waits_for.is_empty() && out.command(0, Command::Begin).is_ok() {
            let now = now();
            self.began = Some(now);
            (self.lines.next, self.lines.before) = (now + self.lines.every(), (0, 0, now));
        }
        // The first signal ends sending; the next, or one before it began, ends the run.
        if self.asked.flag().swap(false, Ordering::Relaxed) {
            if self.ending || self.began.is_none() {
                return false;
            }
            self.ending = out.command(0, Command::End).is_ok();
        }
        if let Some(began) = self.began {
            self.lines.show(&self.counters, began);
        }
        !self.done
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        eprintln!("Port {} {} its peer.", port.name, if up { "has" } else { "has lost" });
        if up {
            self.waits_for.retain(|name| *name != port.name);
        } else if let Some(began) = self.began.filter(|_| !self.done) {
            self.spoils.push(Spoil {
                reason: "port_down",
                what: format!(
                    "port {} lost its peer after {:.3} s",
                    port.name,
                    began.elapsed().as_secs_f64()
                ),
            });
        }
    }
}

impl Lines {
    fn every(&self) -> Duration {
        self.json.unwrap_or(SHOW_EVERY)
    }

    fn show(&mut self, counters: &Counters, began: Instant) {
        let now = now();
        if now < self.next || !(self.shows || self.json.is_some()) {
            return;
        }
        self.next = now + self.every();
        let sum = |count: fn(&pktgen::counters::StreamCounters) -> u64| {
            counters.streams.iter().map(count).sum::<u64>()
        };
        let (sent, received) = (sum(|c| c.sent.frames.get()), sum(|c| c.received.frames.get()));
        let (lost, duplicates) = (sum(pktgen::counters::StreamCounters::lost), sum(|c| c.duplicates.get()));
        let (sent_before, received_before, at) = self.before;
        let span = now.duration_since(at).as_secs_f64().max(1e-9);
        let rate = |now: u64, before: u64| (now - before) as f64 / span;
        let (tx, rx) = (rate(sent, sent_before), rate(received, received_before));
        self.before = (sent, received, now);
        let seconds = now.duration_since(began).as_secs_f64();
        if self.json.is_some() {
            let line = serde_json::json!({
                "seconds": seconds, "sent": sent, "received": received, "lost": lost, "duplicates": duplicates,
                "sent_per_s": tx, "received_per_s": rx,
            });
            // A reader that has gone away does not end the run.
            _ = writeln!(std::io::stdout(), "{line}");
        } else {
            eprintln!(
                "{seconds:6.1} s: {:.3} Mpps out, {:.3} in; {lost} lost, {duplicates} twice",
                tx / 1e6,
                rx / 1e6
            );
        }
    }
}

/// What 1Pipe's time is now.
fn epoch() -> Timestamp {
    let time = clock_gettime(ClockId::Realtime);
    let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    Timestamp::new(seconds.wrapping_mul(1_000_000_000).wrapping_add(nanos))
}

/// What is asked for beside the profile.
pub(super) struct Asked<'a> {
    /// Send for so long
    pub(super) duration: Option<Duration>,
    /// Lines of JSON
    pub(super) live: Option<Duration>,
    /// Where histograms go
    pub(super) hgrm: Option<&'a Path>,
}

pub(super) fn run(
    runtime: &mut Runtime,
    ports: &[dataplane::config::Port],
    profile: &Profile,
    asked: &Asked<'_>,
    observer: Option<Observer>,
    stop: &Stop,
) -> Result<PktgenReport, miette::Report> {
    let duration = asked.duration.map(|time| switch::Nanos(time.as_nanos() as u64));
    let profile = Profile { epoch: epoch(), duration: duration.or(profile.duration), ..profile.clone() };
    let function = Pktgen::new(&profile).map_err(|error| miette::miette!("[pktgen] cannot be: {error}"))?;
    let counters = function.counters();
    let used = [Some(profile.send), profile.receive];
    let waits_for = used.into_iter().flatten().map(|port| &ports[port.index()]);
    let waits_for = waits_for.filter(|port| matches!(port.device, Device::Memif { .. }));
    let start = now();
    let mut plane = Plane {
        profile: &profile,
        counters: Arc::clone(&counters),
        waits_for: waits_for.map(|port| port.name.clone()).collect(),
        asked: stop,
        ending: false,
        done: false,
        began: None,
        spoils: Vec::new(),
        lines: Lines {
            json: asked.live,
            shows: std::io::stderr().is_terminal(),
            next: start,
            before: (0, 0, start),
        },
        observer,
    };
    let (outcome, seconds) = run_until_done(runtime, vec![function], &mut plane);
    let mut spoils = core::mem::take(&mut plane.spoils);
    spoils.extend(spoiled(&profile, &counters, runtime, &outcome));
    if !plane.done {
        spoils.push(Spoil {
            reason: "cut_short",
            what: "it was ended before the last packets were waited for".into(),
        });
    }
    if let Some(folder) = asked.hgrm {
        hgrm::write(folder, plane.profile, &counters)?;
    }
    Ok(PktgenReport::new(&profile, &counters, runtime, &outcome, spoils, seconds))
}

/// What went wrong on this side of the wire.
fn spoiled(
    profile: &Profile,
    counters: &Counters,
    runtime: &Runtime,
    outcome: &dataplane::Outcome,
) -> Vec<Spoil> {
    let mut spoils = Vec::new();
    for (stream, counters) in profile.streams.iter().zip(&counters.streams) {
        let part = told::part_of_rate(profile, stream, counters);
        // Who waits for answers sends as fast as they come.
        if let Some(part) =
            part.filter(|part| (part - 1.0).abs() > RATE_TOLERANCE && stream.outstanding.is_none())
        {
            let given_up = counters.forfeited.get();
            let unit = if stream.rate.unit() == Some(pktgen::Unit::Bits) { "bits" } else { "packets" };
            spoils.push(Spoil {
                reason: "rate_not_reached",
                what: format!(
                    "stream {} sent {:.2} % of what its rate was due, and gave up {given_up} {unit} that came too late; ask for \
                     less, or give it a faster port or a CPU of its own",
                    stream.name,
                    part * 100.0
                ),
            });
        }
    }
    let drops = switch::DropReason::all().filter_map(|reason| {
        let frames: u64 = outcome.workers.iter().map(|worker| worker.drops[reason.index()].get()).sum();
        (frames > 0).then(|| Spoil {
            reason: reason.name(),
            what: format!("{frames} frames were dropped here: {}", reason.explanation()),
        })
    });
    spoils.extend(drops);
    for (info, device) in runtime.ports().zip(&outcome.devices) {
        for (count, reason, what) in [
            (device.missed, "missed", "frames were lost before they were fetched"),
            (device.rx_errors, "rx_errors", "frames were received with an error"),
            (
                device.no_buffer,
                "no_buffer",
                "times no packet buffer was free for a frame that came: raise `buffers`",
            ),
            (device.tx_errors, "tx_errors", "frames could not be sent by the device"),
        ] {
            if count > 0 {
                spoils.push(Spoil { reason, what: format!("port {}: {count} {what}", info.name) });
            }
        }
    }
    spoils
}
