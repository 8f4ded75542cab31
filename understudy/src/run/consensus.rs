//! Control plane of a server of a replicated service: its live output and its closing report.

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

/// State of a server at one moment. The serialised form is part of the program's interface: fields are added,
/// not renamed. Rates, shares and latencies are those since the previous line; in the report, those of the
/// whole run.
#[derive(Serialize)]
struct Line {
    /// `live`, or `report` for the last line
    kind: &'static str,
    /// Seconds since the run began
    time_s: f64,
    /// Number of the server
    id: u8,
    /// `blank`: restarted with empty memory, and not a member yet; `member`; `behind`: lacks too many entries
    /// to lead
    standing: &'static str,
    /// What the server waits for, while it is blank
    waits_for: Option<String>,
    /// Requests from hosts that are not servers of the group, or have another configuration or secret
    refused: u64,
    /// The leader, as far as this server can tell
    leader: Option<u8>,
    leads: bool,
    /// Whether the values that it proposes go through the switch now
    through_switch: bool,
    /// Entries that are decided and applied at this server
    decided: u64,
    /// Rate of entries applied one by one, without those in snapshots
    decided_per_s: f64,
    /// Running hash of the entries: the same at all servers after the same number of entries
    hash: String,
    /// Earlier states, as pairs of a number of entries and a hash, for comparison with other servers
    checkpoints: Vec<(u64, String)>,
    /// Longest time without a decision
    pause_ms: f64,
    /// Work as the leader through the switch
    switch: Option<Led>,
    /// Work as the leader without the switch
    direct: Option<Led>,
}

/// Work of a leader on one replication path.
#[derive(Serialize)]
struct Led {
    /// Time on this path
    seconds: f64,
    /// Values that this leader proposed and that were decided
    decided: u64,
    decided_per_s: f64,
    /// Bytes of these values per second
    goodput: f64,
    /// Packets that the NIC sent and received per value, including heartbeats
    packets_out: Option<f64>,
    packets_in: Option<f64>,
    /// Time from proposal to decision
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
    /// Returns `None` if the server did not lead on this path.
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
            "Led {way} for {:.2} s: {} decided, {:.0} per second, {:.2} MB/s",
            self.seconds,
            self.decided,
            self.decided_per_s,
            self.goodput / 1e6
        );
        if let (Some(sent), Some(received)) = (self.packets_out, self.packets_in) {
            _ = write!(text, "; NIC packets per value: {sent:.2} out, {received:.2} in");
        }
        text.push('\n');
        if let Some(Latency { p50, p90, p99, p999, max }) = &self.latency_us {
            _ = writeln!(
                text,
                "  time to decide: median {p50:.0} us, 90 % within {p90:.0} us, 99 % within {p99:.0} us, 99.9 % \
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

/// Control plane: prints live output, and ends the run when the server cannot continue.
struct Watcher {
    id: u8,
    seen: Arc<Mutex<Seen>>,
    began: Instant,
    live: Option<Duration>,
    /// State at the last live line, its time, and the longest pause of the run
    told: Seen,
    told_at: Duration,
    pause: Nanos,
    /// State that was last reported to the operator
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
        // A closed pipe is not a reason to stop leading.
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
        // The worker does not wait for this lock, so this is tried again soon if the worker holds it.
        let Ok(seen) = self.seen.try_lock() else { return true };
        let (waits_for, goes_on) = (seen.waits_for, seen.error.is_none());
        drop(seen);
        if waits_for != self.waits_for {
            self.waits_for = waits_for;
            match waits_for {
                Some(Waiting::Bootstrap) => eprintln!(
                    "Server {} waits: all servers run, and all are empty. If this is a new group, or its contents may be \
                     lost, start one server with --bootstrap.",
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

/// Returns the server's metrics for observation.
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
    /// Returns failure if the server could not continue.
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
            None => "no known leader".into(),
        };
        let mut text = format!(
            "Server {id} of {}, {standing}, {leader}\n{decided} entries decided, {decided_per_s:.0} per second; hash {hash}; \
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
            _ = writeln!(text, "The server cannot continue: {error}");
        }
        text + &super::host::counted(counters(&self.seen.counters), *time_s)
    }
}
