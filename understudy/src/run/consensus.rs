//! A server of a replicated service: what it says while it runs, and its report.

use super::host::counters;
use super::{Until, by_chance, now, run_until};
use crate::consensus::{Account, ConsensusConfig, Replica, Seen, Way};
use crate::observe::{Latency as Observed, Told};
use core::fmt::Write as _;
use core::time::Duration;
use dataplane::{Control, ControlOutput, Live, Mbuf, Runtime, Stop};
use p4ce::consensus::{Standing, Waiting};
use rnic::{Rnic, Station};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use switch::{Nanos, PortId};

type Host = Station<Replica>;

/// A server at one moment. Its serialised form is the program's interface: fields are added, not renamed. Rates, shares
/// and latencies are those since the line before; of the report, those of the whole run.
#[derive(Serialize)]
struct Line {
    /// `live`, or `report` for the last one
    kind: &'static str,
    /// Since the run began
    time_s: f64,
    /// Its number
    id: u8,
    /// `blank`: it has begun anew and counts for nothing yet; `member`; `behind`: it lacks too much to lead
    standing: &'static str,
    /// Why it counts for nothing, while it is blank
    waits_for: Option<String>,
    /// Requests of hosts that are no servers, or have another configuration or secret
    refused: u64,
    /// Who leads, as far as it knows
    leader: Option<u8>,
    leads: bool,
    /// Whether what it proposes goes through the switch now
    through_switch: bool,
    /// Entries that are decided and applied here
    decided: u64,
    /// Those that it applied one by one
    decided_per_s: f64,
    /// What they come to: the same at all servers after the same number of entries
    hash: String,
    /// Earlier states, as pairs of a number of entries and a hash, to be compared with other servers'
    checkpoints: Vec<(u64, String)>,
    /// Longest time in which nothing was decided
    pause_ms: f64,
    /// What it did as the leader through the switch
    switch: Option<Led>,
    /// And without it
    direct: Option<Led>,
}

/// What a leader did on one way.
#[derive(Serialize)]
struct Led {
    /// For how long
    seconds: f64,
    /// Values that it proposed and that are decided
    decided: u64,
    decided_per_s: f64,
    /// Bytes of these values a second
    goodput: f64,
    /// Packets that its NIC sent and received for each, heartbeats and all
    packets_out: Option<f64>,
    packets_in: Option<f64>,
    /// From proposed to decided
    latency_us: Option<Latency>,
}

#[derive(Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl Led {
    /// `None` if it did not lead this way.
    fn of(account: &Account) -> Option<Self> {
        if account.time == Nanos::ZERO {
            return None;
        }
        let seconds = seconds(account.time);
        let each = |packets: u64| (account.decided > 0).then(|| packets as f64 / account.decided as f64);
        let us = |quantile: f64| account.latency.value_at_quantile(quantile) as f64 / 1e3;
        let latency = || Latency { p50: us(0.5), p90: us(0.9), p99: us(0.99), p999: us(0.999), max: us(1.0) };
        Some(Self {
            seconds,
            decided: account.decided,
            decided_per_s: account.decided as f64 / seconds,
            goodput: account.bytes as f64 / seconds,
            packets_out: each(account.sent),
            packets_in: each(account.received),
            latency_us: (!account.latency.is_empty()).then(latency),
        })
    }

    fn text(&self, way: &str, text: &mut String) {
        _ = write!(
            text,
            "Led {way} for {:.2} s: {} decided, {:.0} a second, {:.2} MB/s",
            self.seconds,
            self.decided,
            self.decided_per_s,
            self.goodput / 1e6
        );
        if let (Some(sent), Some(received)) = (self.packets_out, self.packets_in) {
            _ = write!(text, "; packets of its NIC for each: {sent:.2} out, {received:.2} in");
        }
        text.push('\n');
        if let Some(Latency { p50, p90, p99, p999, max }) = &self.latency_us {
            _ = writeln!(
                text,
                "  from proposed to decided: median {p50:.0} us, 90 % within {p90:.0} us, 99 % within {p99:.0} us, 99.9 % \
                 within {p999:.0} us, all within {max:.0} us"
            );
        }
    }
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

impl Line {
    fn new(kind: &'static str, id: u8, time: Duration, since: Duration, before: &Seen, seen: &Seen) -> Self {
        let hash = |hash: u64| format!("{hash:016x}");
        let decided = seen.applied - before.applied;
        let span = time.saturating_sub(since).as_secs_f64();
        Self {
            kind,
            time_s: time.as_secs_f64(),
            id,
            standing: standing(seen.standing),
            waits_for: seen.waits_for.map(|waiting| waiting.to_string()),
            refused: seen.refused,
            leader: seen.leader,
            leads: seen.way.is_some(),
            through_switch: seen.way == Some(Way::Switch),
            decided: seen.state.count,
            decided_per_s: if span > 0.0 { decided as f64 / span } else { 0.0 },
            hash: hash(seen.state.hash),
            checkpoints: seen.checkpoints.iter().map(|state| (state.count, hash(state.hash))).collect(),
            pause_ms: seconds(seen.pause) * 1e3,
            switch: Led::of(&seen.switch.since(&before.switch)),
            direct: Led::of(&seen.direct.since(&before.direct)),
        }
    }
}

const fn standing(standing: Standing) -> &'static str {
    match standing {
        Standing::Blank => "blank",
        Standing::Member => "member",
        Standing::Behind => "behind",
    }
}

/// Tells what the server does, and ends the run when it cannot go on.
struct Watcher {
    id: u8,
    seen: Arc<Mutex<Seen>>,
    began: Instant,
    live: Option<Duration>,
    /// What was told last, when, and the longest pause of the run
    told: Seen,
    told_at: Duration,
    pause: Nanos,
    /// What the operator was told last that it waits for
    waits_for: Option<Waiting>,
}

impl Watcher {
    fn look(&mut self) -> Seen {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        self.pause = self.pause.max(seen.pause);
        let looked = seen.clone();
        seen.pause = Nanos::ZERO;
        looked
    }

    fn tell(&mut self, time: Duration) {
        let seen = self.look();
        let line = Line::new("live", self.id, time, self.told_at, &self.told, &seen);
        (self.told, self.told_at) = (seen, time);
        // Who has stopped reading is not a reason to stop leading.
        let mut out = std::io::stdout().lock();
        _ = serde_json::to_writer(&mut out, &line).map_err(Into::into).and_then(|()| writeln!(out));
        _ = out.flush();
    }
}

impl Control<Host> for Watcher {
    fn on_event(&mut self, _worker: usize, (): (), _out: &mut ControlOutput<'_, Host>) {}

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, Host>) {}

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, Host>) -> bool {
        let time = now().duration_since(self.began);
        if self.live.is_some_and(|every| time >= self.told_at + every) {
            self.tell(time);
        }
        // The worker waits for nobody, and looks again soon.
        let Ok(seen) = self.seen.try_lock() else { return true };
        let (waits_for, goes_on) = (seen.waits_for, seen.error.is_none());
        drop(seen);
        if waits_for != self.waits_for {
            self.waits_for = waits_for;
            match waits_for {
                Some(Waiting::Bootstrap) => eprintln!(
                    "Server {} waits: all servers run, and none has anything. If this is a new group, or all that it held \
                     is to be given up, start one server with --bootstrap.",
                    self.id
                ),
                Some(waiting) => eprintln!("Server {} waits: {waiting}.", self.id),
                None => eprintln!("Server {} is a member.", self.id),
            }
        }
        goes_on
    }
}

/// The closing report of a server.
pub(super) struct Report {
    line: Line,
    seen: Seen,
    servers: usize,
}

pub(super) fn run(
    runtime: &mut Runtime,
    config: &ConsensusConfig,
    begins: bool,
    live: Option<Duration>,
    until: Until,
    stop: &Stop,
) -> Report {
    let mac = runtime.ports().next().map_or([0; 6], |port| port.mac);
    let replica = Replica::new(config, by_chance(), begins);
    let seen = replica.seen();
    let first = seen.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut watcher = Watcher {
        id: config.id,
        seen,
        began: now(),
        live,
        told: first.clone(),
        told_at: Duration::ZERO,
        pause: Nanos::ZERO,
        waits_for: None,
    };
    let host = Station::new(Rnic::new(config.host.nic(mac)), replica);
    let tell = |watcher: &Watcher| observed(&watcher.seen.lock().unwrap_or_else(PoisonError::into_inner));
    let (_, seconds) = run_until(runtime, vec![host], &mut watcher, tell, until, stop);
    let time = Duration::from_secs_f64(seconds);
    let seen = watcher.look();
    let whole = Seen { pause: watcher.pause, ..seen.clone() };
    let report = Line::new("report", config.id, time, Duration::ZERO, &first, &whole);
    Report { line: report, seen, servers: config.servers.len() }
}

/// For those that look on
fn observed(seen: &Seen) -> Told {
    let leads = |way| u64::from(seen.way == Some(way));
    let told = Told::default()
        .counters(counters(&seen.counters))
        .counters([
            ("decided", seen.state.count),
            ("applied", seen.applied),
            ("requests_refused", seen.refused),
            ("proposed_direct", seen.direct.decided),
            ("proposed_through_switch", seen.switch.decided),
        ])
        .gauges([("leads_direct", leads(Way::Direct)), ("leads_through_switch", leads(Way::Switch))]);
    let latencies =
        [("decided through the switch", &seen.switch), ("decided without a switch", &seen.direct)];
    let latencies = latencies.into_iter().filter_map(|(name, account)| Observed::of(name, &account.latency));
    Told { latencies: latencies.collect(), ..told }
}

impl Report {
    /// Failure, if it could not go on.
    pub(super) fn code(&self) -> ExitCode {
        if self.seen.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    pub(super) fn json(&self) -> String {
        let nic: serde_json::Map<_, _> = counters(&self.seen.counters)
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        let line = serde_json::to_value(&self.line);
        let mut value = line.expect("fields with names are an object");
        value["nic"] = nic.into();
        value["error"] = self.seen.error.clone().into();
        value.to_string()
    }

    pub(super) fn text(&self) -> String {
        let Line { time_s, id, standing, decided, decided_per_s, hash, pause_ms, .. } = &self.line;
        let leader = match self.line.leader {
            _ if self.line.leads && self.line.through_switch => "leads, through the switch".into(),
            _ if self.line.leads => "leads".into(),
            Some(leader) => format!("follows server {leader}"),
            None => "knows no leader".into(),
        };
        let mut text = format!(
            "Server {id} of {}, {standing}, {leader}\n{decided} entries decided, {decided_per_s:.0} a second; hash {hash}; \
             longest pause {pause_ms:.1} ms\n",
            self.servers
        );
        for (led, way) in [(&self.line.switch, "through the switch"), (&self.line.direct, "without a switch")]
        {
            if let Some(led) = led {
                led.text(way, &mut text);
            }
        }
        if let Some(error) = &self.seen.error {
            // Writing to a string does not fail.
            _ = writeln!(text, "It cannot go on: {error}");
        }
        text + &super::host::counted(counters(&self.seen.counters), *time_s)
    }
}
