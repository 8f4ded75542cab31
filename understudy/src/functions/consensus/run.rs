//! Control plane of a server of a replicated service: its live output and its closing report.

use super::{ConsensusConfig, PathStats, Replica, ReplicaStatus, ReplicationPath};
use crate::functions::host::counters_line;
use crate::functions::launch::{ClosingReport, Launch};
use crate::functions::ports::Ports;
use crate::observe::{FunctionMetrics, Latency as ObservedLatency, Port, Values};
use crate::system::{now, random_u64};
use consensus::{Membership, WaitReason};
use core::fmt::Write as _;
use core::time::Duration;
use dataplane::{ControlHandler, ControlOutput, Live, Mbuf, run_worker};
use rnic::{HostFunction, Rnic};
use serde::Serialize;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use switch::{Nanos, PortId};
use tracing::info;

type Host = HostFunction<Replica>;

/// State of a server at one moment. The serialised form is part of the program's interface: fields are added,
/// not renamed. Rates, shares and latencies are those since the previous line; in the report, those of the
/// whole run.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Line {
    /// `live`, or `report` for the last line
    kind: &'static str,
    /// Seconds since the run began
    time_s: f64,
    /// Number of the server
    id: u8,
    /// `blank`: restarted with empty memory, and not a member yet; `member`; `behind`: lacks too many entries
    /// to lead
    #[serde(rename = "standing")]
    membership: &'static str,
    /// What the server waits for, while it is blank
    waits_for: Option<String>,
    /// Requests from hosts that are not servers of the group, or have another configuration or secret
    refused: u64,
    /// The leader, as far as this server can tell
    leader: Option<u8>,
    /// Whether this server leads
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
    switch: Option<LeaderStats>,
    /// Work as the leader without the switch
    direct: Option<LeaderStats>,
}

/// Work of a leader on one replication path.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct LeaderStats {
    /// Time on this path
    seconds: f64,
    /// Values that this leader proposed and that were decided
    decided: u64,
    decided_per_s: f64,
    /// Bytes of these values per second
    goodput: f64,
    /// Packets that the NIC sent per value, including heartbeats
    packets_out: Option<f64>,
    /// Packets that the NIC received per value, including heartbeats
    packets_in: Option<f64>,
    /// Time from proposal to decision
    latency_us: Option<Latency>,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    p999: f64,
    max: f64,
}

impl LeaderStats {
    /// Returns `None` if the server did not lead on this path.
    fn of(stats: &PathStats) -> Option<Self> {
        if stats.time == Nanos::ZERO {
            return None;
        }
        let seconds = seconds(stats.time);
        let each = |packets: u64| (stats.decided > 0).then(|| packets as f64 / stats.decided as f64);
        let us = |quantile: f64| stats.latency.value_at_quantile(quantile) as f64 / 1e3;
        let latency = || Latency { p50: us(0.5), p90: us(0.9), p99: us(0.99), p999: us(0.999), max: us(1.0) };
        Some(Self {
            seconds,
            decided: stats.decided,
            decided_per_s: stats.decided as f64 / seconds,
            goodput: stats.bytes as f64 / seconds,
            packets_out: each(stats.sent),
            packets_in: each(stats.received),
            latency_us: (!stats.latency.is_empty()).then(latency),
        })
    }

    fn text(&self, path: &str, text: &mut String) {
        _ = write!(
            text,
            "Led {path} for {:.2} s: {} decided, {:.0} per second, {:.2} MB/s",
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
    fn new(
        kind: &'static str,
        id: u8,
        time: Duration,
        since: Duration,
        before: &ReplicaStatus,
        status: &ReplicaStatus,
    ) -> Self {
        let hash = |hash: u64| format!("{hash:016x}");
        let decided = status.applied - before.applied;
        let span = time.saturating_sub(since).as_secs_f64();
        Self {
            kind,
            time_s: time.as_secs_f64(),
            id,
            membership: membership_name(status.membership),
            waits_for: status.waits_for.map(|waiting| waiting.to_string()),
            refused: status.refused,
            leader: status.leader,
            leads: status.path.is_some(),
            through_switch: status.path == Some(ReplicationPath::Switch),
            decided: status.state.count,
            decided_per_s: if span > 0.0 { decided as f64 / span } else { 0.0 },
            hash: hash(status.state.hash),
            checkpoints: status.checkpoints.iter().map(|state| (state.count, hash(state.hash))).collect(),
            pause_ms: seconds(status.pause) * 1e3,
            switch: LeaderStats::of(&status.switch.since(&before.switch)),
            direct: LeaderStats::of(&status.direct.since(&before.direct)),
        }
    }
}

const fn membership_name(membership: Membership) -> &'static str {
    match membership {
        Membership::Blank => "blank",
        Membership::Member => "member",
        Membership::Behind => "behind",
    }
}

/// Control plane: prints live output, and ends the run when the server cannot continue.
struct ReplicaControl {
    id: u8,
    status: Arc<Mutex<ReplicaStatus>>,
    began: Instant,
    live: Option<Duration>,
    /// State at the last live line, its time, and the longest pause of the run
    last: ReplicaStatus,
    last_at: Duration,
    pause: Nanos,
    /// State that was last reported to the operator
    waits_for: Option<WaitReason>,
}

impl ReplicaControl {
    fn read(&mut self) -> ReplicaStatus {
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        self.pause = self.pause.max(status.pause);
        let copy = status.clone();
        status.pause = Nanos::ZERO;
        copy
    }

    fn print_line(&mut self, time: Duration) {
        let status = self.read();
        let line = Line::new("live", self.id, time, self.last_at, &self.last, &status);
        (self.last, self.last_at) = (status, time);
        // A closed pipe is not a reason to stop leading.
        let mut out = std::io::stdout().lock();
        _ = serde_json::to_writer(&mut out, &line).map_err(Into::into).and_then(|()| writeln!(out));
        _ = out.flush();
    }
}

impl ControlHandler<Host> for ReplicaControl {
    fn on_event(&mut self, _worker: usize, (): (), _out: &mut ControlOutput<'_, Host>) {}

    fn on_punt(&mut self, _worker: usize, _frame: Mbuf, _port: PortId, _out: &mut ControlOutput<'_, Host>) {}

    fn on_tick(&mut self, _live: &Live<'_>, _out: &mut ControlOutput<'_, Host>) -> bool {
        let time = now().duration_since(self.began);
        if self.live.is_some_and(|every| time >= self.last_at + every) {
            self.print_line(time);
        }
        // The worker does not wait for this lock, so this is tried again soon if the worker holds it.
        let Ok(status) = self.status.try_lock() else { return true };
        let (waits_for, continues) = (status.waits_for, status.error.is_none());
        drop(status);
        if waits_for != self.waits_for {
            self.waits_for = waits_for;
            match waits_for {
                Some(WaitReason::Bootstrap) => info!(
                    "Server {} waits: all servers run, and all are empty. If this is a new group, or its contents may be \
                     lost, start one server with --bootstrap.",
                    self.id
                ),
                Some(waiting) => info!("Server {} waits: {waiting}.", self.id),
                None => info!("Server {} is a member.", self.id),
            }
        }
        continues
    }
}

/// The closing report of a server.
pub(super) struct Report {
    line: Line,
    status: ReplicaStatus,
    servers: usize,
    ports: Ports,
}

pub(super) fn run(config: &ConsensusConfig, launch: Launch<'_>) -> Result<Report, miette::Report> {
    let mut run = launch.start()?;
    let replica = Replica::new(config, random_u64(), run.options.bootstrap);
    let status = replica.published();
    let first = status.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let mut control = ReplicaControl {
        id: config.id,
        status,
        began: now(),
        live: run.options.live,
        last: first.clone(),
        last_at: Duration::ZERO,
        pause: Nanos::ZERO,
        waits_for: None,
    };
    let host = HostFunction::new(Rnic::new(config.host.nic(run.port_mac().0)), replica);
    let metrics =
        |control: &ReplicaControl| metrics_of(&control.status.lock().unwrap_or_else(PoisonError::into_inner));
    let (outcome, seconds) = run.run(run_worker, vec![host], &mut control, metrics);
    let time = Duration::from_secs_f64(seconds);
    let status = control.read();
    let whole = ReplicaStatus { pause: control.pause, ..status.clone() };
    let report = Line::new("report", config.id, time, Duration::ZERO, &first, &whole);
    let ports = Ports::of(&run.runtime, &outcome);
    Ok(Report { line: report, status, servers: config.servers.len(), ports })
}

/// Returns the server's metrics for observation.
fn metrics_of(status: &ReplicaStatus) -> FunctionMetrics {
    let base = FunctionMetrics::default().values(&Values::of(&status.counters)).values(&Values::of(status));
    let latencies =
        [("decided through the switch", &status.switch), ("decided without a switch", &status.direct)];
    let latencies =
        latencies.into_iter().filter_map(|(name, stats)| ObservedLatency::of(name, &stats.latency));
    FunctionMetrics { latencies: latencies.collect(), ..base }
}

/// The serialised form of the closing report.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Printed<'a> {
    #[serde(flatten)]
    line: &'a Line,
    /// Counters of the NIC
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<rnic::Counters>"))]
    nic: Values,
    /// Why the server could not continue; null if it could
    error: Option<&'a str>,
    ports: &'a Vec<Port>,
}

impl ClosingReport for Report {
    /// Returns failure if the server could not continue.
    fn code(&self) -> ExitCode {
        if self.status.error.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    fn json(&self) -> String {
        let printed = Printed {
            line: &self.line,
            nic: Values::of(&self.status.counters),
            error: self.status.error.as_deref(),
            ports: &self.ports.rows,
        };
        serde_json::to_string(&printed).expect("numbers and text always serialise")
    }

    fn text(&self) -> String {
        let Line { time_s, id, membership, decided, decided_per_s, hash, pause_ms, .. } = &self.line;
        let leader = match self.line.leader {
            _ if self.line.leads && self.line.through_switch => "leads, through the switch".into(),
            _ if self.line.leads => "leads".into(),
            Some(leader) => format!("follows server {leader}"),
            None => "no known leader".into(),
        };
        let mut text = format!(
            "Server {id} of {}, {membership}, {leader}\n{decided} entries decided, {decided_per_s:.0} per second; hash {hash}; \
             longest pause {pause_ms:.1} ms\n",
            self.servers
        );
        for (led, path) in
            [(&self.line.switch, "through the switch"), (&self.line.direct, "without a switch")]
        {
            if let Some(led) = led {
                led.text(path, &mut text);
            }
        }
        if let Some(error) = &self.status.error {
            // Writing to a string does not fail.
            _ = writeln!(text, "The server cannot continue: {error}");
        }
        text + &self.ports.notes + &counters_line(&Values::of(&self.status.counters), *time_s)
    }
}
