//! Diagnosis of a running instance: traces queue pairs for a time, and analyses what its workers report.

use super::Args;
use super::analysis::{Analysis, Diagnosis};
use super::finding::{Detail, Finding, Kind};
use super::packet::Sight;
use crate::config;
use crate::decode::{Dissection, dissect_ethernet};
use crate::observe::{Client, ClientError, Part, TraceLine, TraceRecord, TraceRequest};
use crate::system::{catch_signals, now};
use core::net::IpAddr;
use core::time::Duration;
use dataplane::Stop;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Queue pairs that are traced in turns
const MAX_QUEUE_PAIRS: u32 = 8;
/// Time within which an instance has to end a trace
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Traces the queue pairs that `args` select, for the time that they state, and diagnoses each.
pub(super) fn diagnose(at: &Path, args: &Args) -> Result<Diagnosis, String> {
    let target = config::target(at)?;
    let failed = |error: ClientError| format!("understudy: {error}");
    let stop = catch_signals().map_err(|error| error.to_string())?;
    let queue_pairs = match args.qp {
        Some(qp) => vec![(args.host, qp)],
        None => busiest(&mut Client::connect(&target).map_err(failed)?).map_err(failed)?,
    };
    if queue_pairs.is_empty() {
        return Err(
            "understudy: the instance has counted no queue pair yet; send traffic, or select one with \
                    --qp QPN"
                .into(),
        );
    }
    let share = args.duration / queue_pairs.len() as u32;
    let mut all: Option<Diagnosis> = None;
    for (host, qp) in queue_pairs {
        if stop.flag().load(Ordering::Relaxed) {
            break;
        }
        let mut client = Client::connect(&target).map_err(failed)?;
        let slice = trace(&mut client, (host, qp), share, &stop).map_err(failed)?;
        all = Some(match all {
            Some(all) => joined(all, slice),
            None => slice,
        });
    }
    Ok(all.unwrap_or_else(|| Analysis::default().finish()))
}

/// Returns the queue pairs with most packets.
fn busiest(client: &mut Client) -> Result<Vec<(Option<IpAddr>, u32)>, ClientError> {
    let snapshot = client.snapshot()?;
    let table = snapshot.metrics.tables.iter().find(|table| table.name == "queue_pair");
    let rows = table.into_iter().flat_map(|table| &table.rows).flat_map(|row| &row.queue_pairs);
    let mut numbers: Vec<u32> = Vec::new();
    // A number stands for the queue pairs of all hosts that have it, so often for both ends.
    for (_, qpn) in rows {
        if !numbers.contains(qpn) && numbers.len() < MAX_QUEUE_PAIRS as usize {
            numbers.push(*qpn);
        }
    }
    Ok(numbers.into_iter().map(|qpn| (None, qpn)).collect())
}

/// Traces a queue pair.
fn trace(
    client: &mut Client,
    (host, qp): (Option<IpAddr>, u32),
    duration: Duration,
    stop: &Stop,
) -> Result<Diagnosis, ClientError> {
    client.trace(TraceRequest { qp: Some(qp), host, group: None, count: None })?;
    let mut analysis = Analysis::default();
    // Time at which the trace had to end
    let (began, mut over) = (now(), None);
    let (mut has_begun, mut ending) = (false, false);
    loop {
        if began.elapsed() >= duration || stop.flag().load(Ordering::Relaxed) {
            over.get_or_insert_with(now);
        }
        // An instance ignores the end of a trace that has not begun.
        if over.is_some() && has_begun && !ending {
            ending = true;
            client.end_trace()?;
        }
        match client.next_line()? {
            Some(TraceLine::Packet(record)) => take(&mut analysis, &record),
            Some(TraceLine::End { missed, .. }) => return Ok(one_sided(analysis.finish(), missed)),
            None if over.is_some_and(|over| over.elapsed() > END_TIMEOUT) => {
                return Err(ClientError::Disconnected(std::io::ErrorKind::TimedOut.into()));
            }
            Some(TraceLine::Begin { .. }) => has_begun = true,
            None => {}
        }
    }
}

/// Takes a traced packet: as it was received, or as it was sent if it was not received.
fn take(analysis: &mut Analysis, record: &TraceRecord) {
    let sight = Sight { number: record.number, time_ns: record.time_ns };
    let frame = record.parts.iter().find_map(|part| match part {
        Part::In { port, len, bytes }
        | Part::Out { port, len, bytes }
        | Part::Lost { port, len, bytes, .. } => Some((*port, *len as usize, &bytes.0)),
        Part::Dropped { .. } | Part::Punted | Part::Consumed => None,
    });
    let Some((port, len, bytes)) = frame else { return };
    let Some(dissection) = dissect_ethernet(bytes, len) else { return };
    analysis.frame(sight, port.into(), &dissection);
    let dropped = record.parts.iter().find_map(|part| match part {
        Part::Dropped { reason } | Part::Lost { reason, .. } => Some(reason),
        _ => None,
    });
    if let (Some(reason), Dissection::Roce(packet)) = (dropped, &dissection) {
        let known = switch::DropReason::all().find(|known| known.name() == reason);
        analysis.dropped(sight, packet, known.map_or("a reason of another version", |known| known.name()));
    }
}

/// Removes what a trace cannot show, because it has packets in one direction only unless the QPNs of both ends
/// are the same, and because `missed` packets came too fast for it.
fn one_sided(mut diagnosis: Diagnosis, missed: u64) -> Diagnosis {
    for finding in &mut diagnosis.findings {
        if finding.kind == Kind::NoResponse && finding.detail == Detail::None {
            finding.kind = Kind::RequestOrResponseLost;
        }
    }
    diagnosis.findings.retain(|finding: &Finding| match finding.kind {
        Kind::NoResponse | Kind::OneDirection | Kind::CeWithoutCnp => false,
        // These rest on packets that were not seen.
        Kind::Missing
        | Kind::CaptureLost
        | Kind::RequestLostBefore
        | Kind::ResponseLostBefore
        | Kind::RequestOrResponseLost
        | Kind::MtuBlackHole
        | Kind::NakUnheeded
        | Kind::RnrExhausted => missed == 0,
        _ => true,
    });
    diagnosis.totals.missed += missed;
    diagnosis
}

fn joined(mut all: Diagnosis, slice: Diagnosis) -> Diagnosis {
    all.findings.extend(slice.findings);
    all.findings.sort_by_key(|finding| finding.severity);
    let (sum, more) = (&mut all.totals, slice.totals);
    sum.frames += more.frames;
    sum.packets += more.packets;
    sum.connections += more.connections;
    sum.forgotten += more.forgotten;
    sum.omitted += more.omitted;
    sum.unordered += more.unordered;
    sum.missed += more.missed;
    sum.duration_ns += more.duration_ns;
    if all.began_ns == 0 {
        all.began_ns = slice.began_ns;
    }
    all
}
