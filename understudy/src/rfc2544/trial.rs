//! Trials on DPDK ports: each uses a new generator, on a runtime that stays up.

use super::device::Device;
use crate::config::{Rfc2544Config, Traffic};
use crate::functions::pktgen::invalid::{self, Links};
use crate::system::now;
use bench::rfc2544::{Load, Outcome, Test, Tester, Times, Trial};
use dataplane::config::Device as PortDevice;
use dataplane::counters::WorkerCounters;
use dataplane::{ControlHandler, ControlOutput, DeviceCounters, Live, Mbuf, PortInfo, Runtime, Stop, log};
use hdrhistogram::Histogram as Hdr;
use miette::{Report, miette};
use onepipe::Timestamp;
use pktgen::profile::RemoteMemory;
use pktgen::{Choice, Command, Counters, Event, Histogram, Pktgen, Profile, Rate, Stream, Unit};
use rocev2::Qpn;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use switch::counters::Counter;
use switch::{Nanos, PortId, Probability};

/// Largest relative deviation of the actual rate from the requested one
const RATE_TOLERANCE: f64 = 0.005;
/// Largest backlog that the generator makes up for
const CATCH_UP: Nanos = Nanos::from_millis(10);
/// Time within which ports have to find their peers
const PEER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time by which the end of a trial may be late
const END_TOLERANCE: Duration = Duration::from_secs(10);
/// Frames of the trial that checks whether the device forwards
const PROBES: u64 = 32;

/// Runs trials, one after the other.
pub(super) struct Runner<'a> {
    runtime: Runtime,
    config: &'a Rfc2544Config,
    device: Option<Device>,
    stop: Stop,
    /// Names of the ports that have no peer yet
    unconnected: Vec<String>,
    trials: u64,
    show_progress: bool,
}

impl<'a> Runner<'a> {
    pub(super) fn new(
        runtime: Runtime,
        config: &'a Rfc2544Config,
        device: Option<Device>,
        stop: Stop,
    ) -> Self {
        let used_ports =
            [config.traffic.send, config.traffic.receive].map(|port| &config.runtime.ports[port.index()]);
        let unconnected = used_ports.iter().filter(|port| matches!(port.device, PortDevice::Memif { .. }));
        Self {
            unconnected: unconnected.map(|port| port.name.clone()).collect(),
            show_progress: std::io::stderr().is_terminal(),
            runtime,
            config,
            device,
            stop,
            trials: 0,
        }
    }

    /// Sends frames until one is received through the device.
    pub(super) fn wait_for_forwarding(&mut self, frame: u32) -> Result<(), Report> {
        let began = now();
        let traffic = &self.config.traffic;
        let probe =
            Trial { test: Test::MaxRate, frame, load: Load::Burst(PROBES), seconds: 0.0, max_rate: None };
        while self.run(&probe)?.received == 0 {
            if began.elapsed() > traffic.start {
                let port = |port: PortId| &self.config.runtime.ports[port.index()].name;
                let last_output = self.device.as_ref().map_or_else(String::new, Device::last_output);
                return Err(miette!(
                    help = format!(
                        "check that the device forwards frames, and that it has a table entry for {}; {last_output}",
                        traffic.dst.mac
                    ),
                    "no frame sent through {} arrived at {} within {} s",
                    port(traffic.send),
                    port(traffic.receive),
                    traffic.start.as_secs_f64()
                ));
            }
        }
        Ok(())
    }
}

/// Returns the generator's profile for a trial.
fn profile(traffic: &Traffic, trial: &Trial, number: u64) -> Profile {
    let packets_per_s = |per_second: u64| Rate::Steady { unit: Unit::Packets, per_second };
    let rate = match trial.load {
        Load::PacketsPerS(rate) => packets_per_s(rate),
        Load::Fastest => Rate::Max,
        Load::Burst(_) => trial.max_rate.map_or(Rate::Max, packets_per_s),
    };
    let packets = if let Load::Burst(frames) = trial.load { Some(frames) } else { None };
    let per_second = if let Rate::Steady { per_second, .. } = rate { per_second } else { u64::MAX };
    // Frames of a burst wait for one another, which would add to their latency.
    let burst = if trial.test == Test::Latency { 1 } else { (per_second / 100_000).clamp(1, 32) as u16 };
    let stream = Stream {
        name: "frames".into(),
        verb: traffic.verb,
        src: traffic.src,
        dst: traffic.dst,
        first_qpn: Qpn::new(0x100),
        qps: traffic.qps,
        pick: Choice::RoundRobin,
        sizes: vec![trial.frame - traffic.overhead() as u32],
        mtu: rocev2::MAX_PAYLOAD as u16,
        memory: RemoteMemory { va: 0x7f00_0000_0000, rkey: 0x1000, slots: 1, choice: Choice::RoundRobin },
        first_psn: None,
        rate,
        burst: Some(burst),
        packets,
        ack_every: 0,
        outstanding: None,
        timeout: Nanos::from_millis(1),
        stamp: true,
        malformed: Probability::NEVER,
    };
    Profile {
        // Other PSNs in each trial, so that late packets of the previous trial are recognised.
        seed: number,
        send: traffic.send,
        receive: Some(traffic.receive),
        respond: false,
        duration: packets.is_none().then_some(Nanos((trial.seconds * 1e9) as u64)),
        drain: traffic.settle,
        catch_up: CATCH_UP,
        window: 1024,
        // Each packet has a PSN of its own, and the packets under way are far fewer than half of the PSN
        // space.
        queued: 0,
        epoch: Timestamp::default(),
        streams: vec![stream],
    }
}

impl Tester for Runner<'_> {
    type Error = Report;

    fn run(&mut self, trial: &Trial) -> Result<Outcome, Report> {
        if let Some(device) = &mut self.device {
            device.check()?;
        }
        self.trials += 1;
        if self.show_progress {
            let what = format!("{:?} of {} B, {:?}", trial.test, trial.frame, trial.load);
            _ = write!(std::io::stderr(), "\r\x1b[Ktrial {}: {what} ", self.trials);
        }
        let profile = profile(&self.config.traffic, trial, self.trials);
        let function = Pktgen::new(&profile).map_err(|error| miette!("invalid trial: {error}"))?;
        let counters = function.counters();
        let ports = &self.config.runtime.ports;
        let receiving = invalid::receiving(ports, &function);
        let used_ports = [profile.send, self.config.traffic.receive].map(PortId::index);
        let links = used_ports.map(|index| (index, &ports[index]));
        let links = links.into_iter().filter(|(_, port)| !matches!(port.device, PortDevice::Memif { .. }));
        let mut control = TrialControl {
            links: Links::new(links.map(|(index, port)| (index, port.name.clone()))),
            ends_within: Duration::from_secs_f64(2.0 * trial.seconds)
                + Duration::from_nanos(self.config.traffic.settle.0)
                + END_TOLERANCE,
            unconnected: &mut self.unconnected,
            device: self.device.as_mut(),
            stop: &self.stop,
            start: now(),
            began: None,
            ended: None,
            error: None,
        };
        let run = self.runtime.run_by(workers::pktgen, vec![function], &mut control, &Stop::new());
        let (began, ended, error) = (control.began, control.ended, control.error);
        if self.show_progress {
            _ = write!(std::io::stderr(), "\r\x1b[K");
        }
        if let Some(error) = error {
            // The device's own error is the more useful one.
            self.device.as_mut().map_or(Ok(()), Device::check)?;
            return Err(error);
        }
        let (Some(began), Some(ended)) = (began, ended) else {
            return Err(miette!("the worker of a trial ended too early"));
        };
        let lost = |all: &[DeviceCounters]| {
            let of = |(device, receiving): (&DeviceCounters, &bool)| {
                if *receiving { device.lost() } else { device.sending().lost() }
            };
            all.iter().zip(&receiving).map(of).sum::<u64>()
        };
        let dropped: u64 = run.workers.iter().flat_map(|worker| &worker.drops).map(Counter::get).sum();
        let local = LocalLosses {
            lost: lost(&run.devices).saturating_sub(lost(&run.devices_before)) + dropped,
            dropped,
            rx_queue_frames: used_ports.iter().map(|at| u64::from(ports[*at].descriptors)).min().unwrap_or(0),
            agrees: invalid::by_devices(ports, &receiving, &run, &[])
                .iter()
                .all(|invalid| invalid.reason != "port_disagrees"),
        };
        Ok(outcome(&profile, trial, &counters, &run.workers[0], ended.since(&began), local))
    }
}

/// Counts of frames on this side of the link.
#[derive(Clone, Copy)]
struct LocalLosses {
    /// Frames lost by this program's ports, or before they reached them
    lost: u64,
    /// Of these, frames lost before they reached a port
    dropped: u64,
    /// Capacity of a port's queue, in frames
    rx_queue_frames: u64,
    /// Whether the ports' counters agree with those of the worker
    agrees: bool,
}

/// Returns the outcome of a trial from its counters.
fn outcome(
    profile: &Profile,
    trial: &Trial,
    counters: &Counters,
    worker: &WorkerCounters,
    cpu_use: CpuUse,
    local: LocalLosses,
) -> Outcome {
    let stream = &counters.streams[0];
    let (sent, received) = (stream.sent.frames.get(), stream.received.frames.get());
    let sending_s = stream.sending_ns.get() as f64 / 1e9;
    let arrived = received + stream.duplicates.get() + stream.stale.get() + stream.unexpected.get();
    let arrived =
        arrived + stream.responses.get() + stream.unexpected_responses.get() + stream.reflected.get();
    let arrived = arrived + counters.foreign.get() + counters.other.get() + counters.too_late.get();
    let broken: u64 = counters.faults.iter().map(Counter::get).sum();
    let forfeited = stream.forfeited.get() > 0;
    let at_rate = stream.part_of_rate(&profile.streams[0]).is_none_or(|part| part >= 1.0 - RATE_TOLERANCE);
    let offered = !forfeited
        && sent > 0
        && match trial.load {
            Load::Fastest => true,
            Load::Burst(frames) => sent == frames && at_rate,
            Load::PacketsPerS(_) => at_rate,
        };
    let sent_per_s = if sending_s > 0.0 { sent as f64 / sending_s } else { 0.0 };
    let away_ns = counters.longest_away_ns.get();
    let left = worker.ports.iter().map(|port| port.tx.frames.get()).sum::<u64>();
    let adds_up = arrived + broken == worker.received() && sent == left + local.dropped && local.agrees;
    let late = match stream.part_of_rate(&profile.streams[0]) {
        Some(part) if !at_rate => Nanos((sending_s * 1e9 * (1.0 - part)) as u64),
        _ => Nanos::ZERO,
    };
    let descheduled = was_descheduled(forfeited, late, Nanos(away_ns), &cpu_use);
    Outcome {
        sent,
        received,
        lost: stream.lost(),
        unseen: stream.unseen(),
        duplicates: stream.duplicates.get(),
        reordered: stream.late.get(),
        lost_locally: local.lost,
        sent_per_s,
        offered,
        // The queue pairs' own count of packets with no later one received has to equal `unseen`.
        adds_up: adds_up && stream.behind.get() == stream.unseen(),
        on_cpu: cpu_use.part(cpu_use.on_cpu),
        core: if descheduled { 0.0 } else { 1.0 - cpu_use.part(cpu_use.waited) },
        poll_gap_ns: away_ns,
        poll_gap_frames: (sent_per_s * away_ns as f64 / 1e9) as u64,
        rx_queue_frames: local.rx_queue_frames,
        latency: times(&stream.latency),
    }
}

/// Returns whether frames are late, or were given up, because the trial's thread was descheduled, and not
/// because it is slow: in that case a single absence is at least as long as the delay. A thread without any
/// time on a CPU is treated as descheduled, because nothing is known about it.
fn was_descheduled(forfeited: bool, late: Nanos, away: Nanos, cpu_use: &CpuUse) -> bool {
    let excused =
        if forfeited { cpu_use.waited.min(away) >= CATCH_UP } else { late > Nanos::ZERO && away >= late };
    excused || cpu_use.on_cpu == Nanos::ZERO
}

fn times(histogram: &Histogram) -> Option<Times> {
    let mut hdr = Hdr::<u64>::new(3).expect("the precision is valid");
    for (time, count) in histogram.buckets() {
        // The histogram grows as needed.
        hdr.record_n(time.0, count).expect("a growing histogram accepts all values");
    }
    (!hdr.is_empty()).then(|| Times {
        p50_ns: hdr.value_at_quantile(0.5),
        p99_ns: hdr.value_at_quantile(0.99),
        p999_ns: hdr.value_at_quantile(0.999),
        max_ns: hdr.max(),
    })
}

/// The control plane of a trial.
struct TrialControl<'a> {
    links: Links,
    /// Time limit of the trial, from its beginning
    ends_within: Duration,
    unconnected: &'a mut Vec<String>,
    device: Option<&'a mut Device>,
    stop: &'a Stop,
    start: Instant,
    began: Option<CpuMark>,
    ended: Option<CpuMark>,
    error: Option<Report>,
}

impl ControlHandler<Pktgen> for TrialControl<'_> {
    fn on_event(&mut self, _worker: usize, event: Event, _out: &mut ControlOutput<'_, Pktgen>) {
        // Trials do not change rates.
        let Event::Done = event else { return };
        self.ended = self.began.as_ref().map(|began| CpuMark::of(began.thread.clone()));
    }

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, Pktgen>) {
    }

    fn on_tick(&mut self, live: &Live<'_>, out: &mut ControlOutput<'_, Pktgen>) -> bool {
        if self.stop.flag().load(std::sync::atomic::Ordering::Relaxed) {
            self.error = Some(miette!("interrupted before all tests were done"));
        }
        // If the device has ended, the trial ends at once.
        if self.began.is_none()
            && let Some(Err(gone)) = self.device.as_mut().map(|device| device.check())
        {
            self.error = Some(gone);
        }
        if self.began.is_none() && self.unconnected.is_empty() {
            // The thread gets its name when it runs. If the system does not report threads, the trial goes on
            // without information about them.
            let thread = polling_thread();
            let known = thread.is_some() || self.start.elapsed() > PEER_TIMEOUT;
            if known && out.command(0, Command::Begin { at: out.now() }).is_ok() {
                self.began = Some(CpuMark::of(thread));
            }
        } else if self.began.is_none() && self.start.elapsed() > PEER_TIMEOUT {
            self.error = Some(miette!(
                "ports without a peer: {}; start the device under test",
                self.unconnected.join(", ")
            ));
        }
        let running = self.began.as_ref().map(|began| began.at.elapsed());
        let since = running.unwrap_or_default();
        if let Some(lost) =
            self.links.poll(|| live.links(), now(), running.is_some(), since).into_iter().next()
        {
            self.error = Some(miette!("{}", lost.what));
        }
        if since > self.ends_within {
            self.error = Some(miette!(
                help = "a port accepts no more frames; check that the device under test still runs",
                "a trial did not end: after {} s, some of its frames were still not sent",
                since.as_secs()
            ));
        }
        self.ended.is_none() && self.error.is_none()
    }

    fn on_link(&mut self, port: &PortInfo, up: bool) {
        if up {
            self.unconnected.retain(|name| *name != port.name);
        } else {
            self.error = Some(miette!("port {} lost its peer: the device under test has ended", port.name));
        }
    }

    fn on_peer_awaited(&mut self, port: &PortInfo) {
        log::awaited_peer(port);
    }

    fn on_peer_refused(&mut self, port: &PortInfo, why: &str) {
        log::refused_peer(port, why);
    }
}

/// CPU use of the polling thread up to a moment.
struct CpuMark {
    at: Instant,
    thread: Option<PathBuf>,
    on_cpu_ns: u64,
    waited_ns: u64,
}

/// CPU use between two moments: elapsed time, time on a CPU, and time waiting for one.
#[derive(Clone, Copy)]
struct CpuUse {
    wall: Nanos,
    on_cpu: Nanos,
    waited: Nanos,
}

impl CpuUse {
    fn part(self, time: Nanos) -> f64 {
        (time.0 as f64 / self.wall.0.max(1) as f64).min(1.0)
    }
}

impl CpuMark {
    fn of(thread: Option<PathBuf>) -> Self {
        let text = thread.as_ref().and_then(|thread| std::fs::read_to_string(thread.join("schedstat")).ok());
        let mut words =
            text.as_deref().unwrap_or("").split_whitespace().map(|word| word.parse().unwrap_or(0));
        let mut next = || words.next().unwrap_or(0);
        Self { at: now(), on_cpu_ns: next(), waited_ns: next(), thread }
    }

    fn since(&self, before: &Self) -> CpuUse {
        CpuUse {
            wall: Nanos(self.at.duration_since(before.at).as_nanos() as u64),
            on_cpu: Nanos(self.on_cpu_ns.saturating_sub(before.on_cpu_ns)),
            waited: Nanos(self.waited_ns.saturating_sub(before.waited_ns)),
        }
    }
}

/// Returns the folder in /proc of this process's only worker thread.
fn polling_thread() -> Option<PathBuf> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten().map(|entry| entry.path());
    let name = |thread: &PathBuf| std::fs::read_to_string(thread.join("comm")).unwrap_or_default();
    let mut threads = threads;
    threads.find(|thread| name(thread).trim() == "worker-0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_thread_is_not_treated_as_descheduled() {
        let ms = Nanos::from_millis;
        let cpu_use = |waited| CpuUse { wall: ms(60_000), on_cpu: ms(59_000), waited };
        // At the end of the trial, late by no more than one absence
        assert!(was_descheduled(false, ms(1), ms(2), &cpu_use(ms(2))));
        assert!(
            !was_descheduled(false, ms(3), ms(2), &cpu_use(ms(2))),
            "later than its longest absence explains"
        );
        assert!(!was_descheduled(false, Nanos::ZERO, ms(2), &cpu_use(ms(2))), "not late at the end");
        // Frames that were given up
        assert!(was_descheduled(true, Nanos::ZERO, ms(12), &cpu_use(ms(12))));
        assert!(
            !was_descheduled(true, Nanos::ZERO, ms(1), &cpu_use(ms(12))),
            "many short absences in a minute"
        );
        assert!(was_descheduled(
            false,
            Nanos::ZERO,
            Nanos::ZERO,
            &CpuUse { on_cpu: Nanos::ZERO, ..cpu_use(ms(0)) }
        ));
    }
}
