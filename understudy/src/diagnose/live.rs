//! Diagnosis of a running instance: traces packets for a time, and analyses what its workers report.

use super::Args;
use super::analysis::{Analysis, Diagnosis};
use super::finding::{Detail, Finding, Kind};
use super::packet::{FlowKey, Observed, Sight};
use crate::config;
use crate::decode::{Dissection, dissect_ethernet};
use crate::observe::{Client, ClientError, Part, TraceLine, TraceRecord, TraceRequest};
use crate::system::{catch_signals, now};
use core::time::Duration;
use dataplane::Stop;
use std::path::Path;
use std::sync::atomic::Ordering;

/// Time within which an instance has to end a trace
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Traces the packets that `args` select, for the time that they state, and diagnoses them.
pub(super) fn diagnose(at: &Path, args: &Args) -> Result<Diagnosis, String> {
    let target = config::target(at)?;
    let failed = |error: ClientError| format!("understudy: {error}");
    let stop = catch_signals().map_err(|error| error.to_string())?;
    let mut client = Client::connect(&target).map_err(failed)?;
    let request = TraceRequest {
        qp: args.qp,
        host: args.host,
        group: None,
        count: None,
        all: args.qp.is_none(),
        snaplen: None,
    };
    client.trace(request).map_err(failed)?;
    let (diagnosis, missed) = trace(&mut client, args.duration, &stop).map_err(failed)?;
    let diagnosis = without_unseen(diagnosis, missed);
    Ok(if args.qp.is_some() { one_sided(diagnosis) } else { diagnosis })
}

/// Analyses a trace that has begun. Returns also how many packets were missed.
fn trace(client: &mut Client, duration: Duration, stop: &Stop) -> Result<(Diagnosis, u64), ClientError> {
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
            Some(TraceLine::End { missed, .. }) => return Ok((analysis.finish(), missed)),
            None if over.is_some_and(|over| over.elapsed() > END_TIMEOUT) => {
                return Err(ClientError::Disconnected(std::io::ErrorKind::TimedOut.into()));
            }
            Some(TraceLine::Begin { .. }) => has_begun = true,
            None => {}
        }
    }
}

/// Takes a traced packet as it was received, and as it was sent where the function changed its hosts or its queue
/// pair, or made it.
pub(super) fn take(analysis: &mut Analysis, record: &TraceRecord) {
    let sight = Sight { number: record.number, time_ns: record.time_ns };
    let frames = record.parts.iter().filter_map(|part| match part {
        Part::In { port, len, bytes }
        | Part::Out { port, len, bytes }
        | Part::Lost { port, len, bytes, .. } => Some((*port, *len as usize, &bytes.0)),
        Part::Dropped { .. } | Part::Punted | Part::Consumed => None,
    });
    let mut taken: Vec<Option<FlowKey>> = Vec::new();
    let mut first = None;
    for (port, len, bytes) in frames {
        let Some(dissection) = dissect_ethernet(bytes, len) else { continue };
        let key = match &dissection {
            Dissection::Roce(packet) => Observed::of(packet, sight, port.into()).map(|packet| packet.key),
            Dissection::Other(_) => None,
        };
        if !taken.contains(&key) {
            analysis.frame(sight, port.into(), &dissection);
            taken.push(key);
        }
        first = first.or(Some(dissection));
    }
    let dropped = record.parts.iter().find_map(|part| match part {
        Part::Dropped { reason } | Part::Lost { reason, .. } => Some(reason),
        _ => None,
    });
    if let (Some(reason), Some(Dissection::Roce(packet))) = (dropped, &first) {
        let known = switch::DropReason::all().find(|known| known.name() == reason);
        analysis.dropped(sight, packet, known.map_or("a reason of another version", |known| known.name()));
    }
}

/// Removes findings that rest on packets that were not seen, because `missed` packets came too fast for the trace.
fn without_unseen(mut diagnosis: Diagnosis, missed: u64) -> Diagnosis {
    diagnosis.findings.retain(|finding: &Finding| match finding.kind {
        Kind::Missing
        | Kind::CaptureLost
        | Kind::RequestLostBefore
        | Kind::ResponseLostBefore
        | Kind::RequestOrResponseLost
        | Kind::NoResponse
        | Kind::OneDirection
        | Kind::CeWithoutCnp
        | Kind::MtuBlackHole
        | Kind::NakUnheeded
        | Kind::RnrExhausted => missed == 0,
        _ => true,
    });
    diagnosis.totals.missed += missed;
    diagnosis
}

/// Removes what the trace of one queue pair cannot show, because it has packets in one direction only unless the
/// QPNs of both ends are the same.
fn one_sided(mut diagnosis: Diagnosis) -> Diagnosis {
    for finding in &mut diagnosis.findings {
        if finding.kind == Kind::NoResponse && finding.detail == Detail::None {
            finding.kind = Kind::RequestOrResponseLost;
        }
    }
    let shows = |kind| !matches!(kind, Kind::NoResponse | Kind::OneDirection | Kind::CeWithoutCnp);
    diagnosis.findings.retain(|finding: &Finding| shows(finding.kind));
    diagnosis
}

#[cfg(test)]
mod tests;
