//! Closing report of a generator's run: as tables for the terminal, as JSON for programs.

use super::hgrm;
use super::invalid::{InvalidReason, NO_RESPONSE, stream_title};
use crate::functions::launch::ClosingReport;
use crate::observe::{FunctionMetrics, Latency, Row, Table};
use crate::output::{row, section};
use dataplane::{Outcome, Runtime};
use pktgen::counters::StreamCounters;
use pktgen::{Counters, Histogram, Profile, Rate, Stream, Unit};
use rocev2::Fault;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;

/// The closing report. The serialised form is part of the program's interface: fields are added, not renamed.
#[derive(Serialize)]
pub(super) struct PktgenReport {
    /// Length of the run in seconds, from the start of its worker to its end
    seconds: f64,
    /// TSC cycles per second
    tsc_hz: u64,
    seed: u64,
    streams: Vec<StreamRow>,
    /// Malformed packets received, by fault, including a wrong ICRC; they cannot be attributed to a stream
    malformed: Vec<FaultRow>,
    /// RoCEv2 packets received that belong to no stream
    foreign: u64,
    /// Frames received that are not RoCEv2 packets
    other: u64,
    /// Frames received after all expected packets had arrived or the drain time had passed
    too_late: u64,
    /// Whether packets or responses were still missing when the drain time ended
    drain_expired: bool,
    /// Longest delay between the time at which something was due and the time at which the worker handled it
    longest_away_ns: u64,
    /// Number of times that sending had to wait for a packet buffer, and for room in the port's queue
    no_buffer: u64,
    port_busy: u64,
    ports: Vec<PortRow>,
    /// Whether the counters agree: those of each stream with the windows of its queue pairs, those of all
    /// streams with the frames received, and those of sent packets with the frames that left through ports or
    /// were dropped before
    adds_up: bool,
    /// Reasons why the numbers are not valid; empty if they are
    spoiled: Vec<InvalidReason>,
}

/// Returns the generator's metrics for observation.
pub(super) fn metrics_of(profile: &Profile, counters: &Counters) -> FunctionMetrics {
    let streams = || profile.streams.iter().zip(&counters.streams);
    let rows = streams().map(|(stream, counters)| {
        let counts = [
            counters.sent.frames.get(),
            counters.sent.bytes.get(),
            counters.received.frames.get(),
            counters.duplicates.get(),
            counters.late.get(),
            counters.answered.get(),
            counters.unanswered.get(),
            counters.malformed.frames.get(),
            counters.stale.get(),
            counters.unexpected.get(),
            counters.reflected.get(),
            counters.responses.get(),
            counters.naks.get(),
            counters.forfeited.get(),
        ];
        // Gauges, because a late packet was counted as lost before.
        let (lost, unseen) = (counters.lost(), counters.unseen());
        Row::new([stream.name.clone(), lost.to_string(), unseen.to_string()], counts)
    });
    let counts = [
        "sent",
        "sent_bytes",
        "received",
        "duplicates",
        "late",
        "answered",
        "unanswered",
        "malformed_sent",
        "stale",
        "unexpected",
        "reflected",
        "responses",
        "naks",
        "forfeited",
    ];
    let lost = streams().map(|(_, counters)| counters.lost()).sum();
    let unseen = streams().map(|(_, counters)| counters.unseen()).sum();
    let malformed = counters.faults.iter().map(switch::counters::Counter::get).sum();
    let metrics = FunctionMetrics::default()
        .counters([
            ("malformed_frames", malformed),
            ("foreign_frames", counters.foreign.get()),
            ("other_frames", counters.other.get()),
            ("no_buffer", counters.no_buffer.get()),
            ("port_busy", counters.port_busy.get()),
        ])
        .gauges([("lost", lost), ("unseen", unseen)])
        .table(Table::new("stream", &["stream", "lost", "unseen"], 1, &counts, rows).with_gauges(2));
    let latencies = streams().flat_map(|(stream, counters)| {
        [("latency", &counters.latency), ("round trip", &counters.round_trip)]
            .map(|(kind, times)| Latency::of(format!("{} {kind}", stream.name), &hgrm::hdr(times)))
    });
    FunctionMetrics { latencies: latencies.flatten().collect(), ..metrics }
}

#[derive(Serialize)]
struct FaultRow {
    fault: &'static str,
    packets: u64,
}

#[derive(Serialize)]
struct PortRow {
    name: String,
    driver: String,
    rx_frames: u64,
    rx_bytes: u64,
    tx_frames: u64,
    tx_bytes: u64,
}

/// Results of a stream: sent = received + lost + unseen, and, where responses are expected, messages =
/// answered + unanswered + under_way.
#[derive(Serialize)]
struct StreamRow {
    name: String,
    verb: &'static str,
    /// Time during which the stream sent, in seconds
    sending_s: f64,
    sent: u64,
    sent_bytes: u64,
    messages: u64,
    sent_per_s: f64,
    /// Including preamble, frame check sequence and inter-frame gap
    wire_bits_per_s: f64,
    /// Packets or bits sent, as a part of those that were due; null if the rate is unlimited
    part_of_rate: Option<f64>,
    /// Packets or bits that were due and never sent
    forfeited: u64,
    malformed_sent: u64,
    /// Packets of the stream that came back to the port that sent them, which do not count as received, and
    /// responses to them; null if nothing is received at that port
    reflected: Option<u64>,
    /// Reception of its packets; null without a receiving port
    arrived: Option<Arrived>,
    /// Responses; null for packets that have none
    answers: Option<Answers>,
}

#[derive(Serialize)]
struct Arrived {
    received: u64,
    received_bytes: u64,
    /// Overtaken, and never received
    lost: u64,
    /// Not received, and no later packet of their queue pair was: lost at the end, or still under way
    unseen: u64,
    /// Received after being overtaken
    reordered: u64,
    duplicates: u64,
    /// Too old to decide whether they are duplicates
    stale: u64,
    /// Packets to a queue pair of the stream that it never sent
    unexpected: u64,
    /// Time from sending to receiving
    latency: Option<Times>,
}

#[derive(Serialize)]
struct Answers {
    /// Packets sent by the generator's own responder, and requests to which it could not respond
    replies: u64,
    unable: u64,
    /// Responses received; of these, NAKs, and CNPs, which respond to no request
    responses: u64,
    naks: u64,
    cnps: u64,
    /// Responses to requests that were never sent; not counted in `responses`
    unexpected: u64,
    /// Requests; null if their responses are not waited for
    requests: Option<Requests>,
}

#[derive(Serialize)]
struct Requests {
    answered: u64,
    unanswered: u64,
    under_way: u64,
    stale_responses: u64,
    /// Number of times that a due request had to wait for responses to earlier ones
    waited: u64,
    /// Results of compare and swap
    swapped: u64,
    not_swapped: u64,
    /// Time from the last packet of a request to its response
    round_trip: Option<Times>,
}

/// Quantiles in nanoseconds. The worker reads the time once per iteration.
#[derive(Serialize)]
struct Times {
    count: u64,
    min_ns: u64,
    p50_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
}

impl Times {
    fn of(histogram: &Histogram) -> Option<Self> {
        let hdr = hgrm::hdr(histogram);
        (!hdr.is_empty()).then(|| Self {
            count: hdr.len(),
            min_ns: hdr.min(),
            p50_ns: hdr.value_at_quantile(0.5),
            p90_ns: hdr.value_at_quantile(0.9),
            p99_ns: hdr.value_at_quantile(0.99),
            p999_ns: hdr.value_at_quantile(0.999),
            max_ns: hdr.max(),
        })
    }
}

impl StreamRow {
    fn new(profile: &Profile, stream: &Stream, counters: &StreamCounters) -> Self {
        let (sent, sent_bytes) = counters.sent.get();
        let sending_s = counters.sending_ns.get() as f64 / 1e9;
        let per_s = |count: u64| if sending_s > 0.0 { count as f64 / sending_s } else { 0.0 };
        let (packets, bits) = counters.units();
        let waits = stream.outstanding.is_some();
        Self {
            name: stream.name.clone(),
            verb: stream.verb.name(),
            sending_s,
            sent,
            sent_bytes,
            messages: counters.messages.get(),
            sent_per_s: per_s(packets),
            wire_bits_per_s: per_s(bits),
            part_of_rate: counters.part_of_rate(stream),
            forfeited: counters.forfeited.get(),
            malformed_sent: counters.malformed.frames.get(),
            reflected: profile.polls_send_port().then(|| counters.reflected.get()),
            arrived: profile.receive.is_some().then(|| Arrived {
                received: counters.received.frames.get(),
                received_bytes: counters.received.bytes.get(),
                lost: counters.lost(),
                unseen: counters.unseen(),
                reordered: counters.late.get(),
                duplicates: counters.duplicates.get(),
                stale: counters.stale.get(),
                unexpected: counters.unexpected.get(),
                latency: Times::of(&counters.latency),
            }),
            answers: (stream.verb.is_request() && (profile.respond || waits)).then(|| Answers {
                replies: counters.replies.get(),
                unable: counters.unable.get(),
                responses: counters.responses.get(),
                naks: counters.naks.get(),
                cnps: counters.cnps.get(),
                unexpected: counters.unexpected_responses.get(),
                requests: waits.then(|| Requests {
                    answered: counters.answered.get(),
                    unanswered: counters.unanswered.get(),
                    under_way: counters.under_way(),
                    stale_responses: counters.stale_responses.get(),
                    waited: counters.waited.get(),
                    swapped: counters.swapped.get(),
                    not_swapped: counters.not_swapped.get(),
                    round_trip: Times::of(&counters.round_trip),
                }),
            }),
        }
    }

    /// Returns whether every packet and request is accounted for. `qp_counts` is the queue pairs' own count,
    /// taken at the end: packets with no later one received, and waiting requests.
    fn adds_up(&self, qp_counts: Option<(u64, u64)>) -> bool {
        let agrees = |arrived: &Arrived| qp_counts.is_none_or(|(behind, _)| behind == arrived.unseen);
        let whole = |a: &Arrived| self.sent == a.received + a.lost + a.unseen && agrees(a);
        let arrived = self.arrived.as_ref().is_none_or(whole);
        let requests = self.answers.as_ref().and_then(|answers| answers.requests.as_ref());
        let all = |r: &Requests| self.messages == r.answered + r.unanswered + r.under_way;
        let agrees = |r: &Requests| qp_counts.is_none_or(|(_, waiting)| waiting == r.under_way);
        arrived && requests.is_none_or(|r| all(r) && agrees(r))
    }
}

impl PktgenReport {
    pub(super) fn new(
        profile: &Profile,
        counters: &Counters,
        runtime: &Runtime,
        outcome: &Outcome,
        spoiled: Vec<InvalidReason>,
        (seconds, done): (f64, bool),
    ) -> Self {
        let streams: Vec<_> = profile
            .streams
            .iter()
            .zip(&counters.streams)
            .map(|(stream, counters)| StreamRow::new(profile, stream, counters))
            .collect();
        let faults = Fault::ALL
            .into_iter()
            .map(|fault| FaultRow { fault: fault.name(), packets: counters.faults[fault as usize].get() });
        let malformed: Vec<_> = faults.filter(|row| row.packets > 0).collect();
        let (foreign, other, too_late) =
            (counters.foreign.get(), counters.other.get(), counters.too_late.get());
        let sum = |count: &dyn Fn(&dataplane::counters::WorkerCounters) -> u64| {
            outcome.workers.iter().map(|worker| count(worker)).sum::<u64>()
        };
        let known: u64 = counters
            .streams
            .iter()
            .map(|c| {
                let arrived = c.received.frames.get() + c.duplicates.get() + c.stale.get();
                let answers = c.responses.get() + c.unexpected_responses.get();
                arrived + c.unexpected.get() + answers + c.reflected.get()
            })
            .sum();
        let broken: u64 = malformed.iter().map(|row| row.packets).sum();
        let all_came = known + broken + foreign + other + too_late == sum(&|worker| worker.received());
        let made: u64 = counters
            .streams
            .iter()
            .map(|c| c.sent.frames.get() + c.malformed.frames.get() + c.replies.get())
            .sum();
        let left = sum(&|w| w.ports.iter().map(|port| port.tx.frames.get()).sum());
        // Received frames are consumed, so every dropped frame was to be sent.
        let dropped = sum(&|w| w.drops.iter().map(switch::counters::Counter::get).sum());
        let all_left = made == left + dropped;
        let rows = || streams.iter().zip(&counters.streams);
        let qp_counts = |c: &StreamCounters| done.then(|| (c.behind.get(), c.waiting.get()));
        let streams_add_up = rows().all(|(row, counters)| row.adds_up(qp_counts(counters)));
        let adds_up = all_came && all_left && streams_add_up;
        let ports = runtime.ports().enumerate().map(|(index, info)| PortRow {
            name: info.name.clone(),
            driver: info.driver.clone(),
            rx_frames: sum(&|w| w.ports[index].rx.frames.get()),
            rx_bytes: sum(&|w| w.ports[index].rx.bytes.get()),
            tx_frames: sum(&|w| w.ports[index].tx.frames.get()),
            tx_bytes: sum(&|w| w.ports[index].tx.bytes.get()),
        });
        Self {
            seconds,
            tsc_hz: outcome.tsc_hz,
            seed: profile.seed,
            adds_up,
            streams,
            malformed,
            foreign,
            other,
            too_late,
            drain_expired: counters.drain_expired.get() > 0,
            longest_away_ns: counters.longest_away_ns.get(),
            no_buffer: counters.no_buffer.get(),
            port_busy: counters.port_busy.get(),
            ports: ports.collect(),
            spoiled,
        }
    }
}

impl ClosingReport for PktgenReport {
    /// Returns failure if the numbers are not valid.
    fn code(&self) -> ExitCode {
        if self.spoiled.is_empty() && self.adds_up { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and text always serialise")
    }

    fn text(&self) -> String {
        let mut text = String::new();
        let sent = self.streams.iter().map(|s| {
            let rate = s.part_of_rate.map_or_else(|| "-".into(), |part| format!("{:.2} %", part * 100.0));
            let mpps = format!("{:.4}", s.sent_per_s / 1e6);
            let gbps = format!("{:.4}", s.wire_bits_per_s / 1e9);
            row(&[&s.name, s.verb, &mpps, &gbps, &rate], &[s.sent, s.messages, s.malformed_sent])
        });
        let columns = ["stream", "verb", "Mpps", "Gb/s", "of its rate", "sent", "messages", "malformed"];
        section(&mut text, "Sent", &columns, 5, sent);
        let arrived = self.streams.iter().filter_map(|s| Some((s, s.arrived.as_ref()?)));
        let rows = arrived.clone().map(|(s, a)| {
            let numbers =
                [s.sent, a.received, a.lost, a.unseen, a.reordered, a.duplicates, a.stale, a.unexpected];
            row(&[&s.name], &numbers)
        });
        let columns = [
            "stream",
            "sent",
            "received",
            "lost",
            "unseen",
            "reordered",
            "duplicates",
            "stale",
            "unexpected",
        ];
        section(&mut text, "Received: sent = received + lost + unseen", &columns, 1, rows);
        let reflected = |s: &StreamRow| s.reflected.filter(|packets| *packets > 0);
        let rows = self.streams.iter().filter_map(|s| Some(row(&[&s.name], &[reflected(s)?])));
        section(&mut text, "Received at the port that sent it", &["stream", "packets"], 1, rows);
        let answers = self.streams.iter().filter_map(|s| Some((s, s.answers.as_ref()?)));
        let rows = answers
            .clone()
            .map(|(s, a)| row(&[&s.name], &[a.replies, a.unable, a.responses, a.naks, a.cnps, a.unexpected]));
        let columns = ["stream", "sent", "unable", "received", "of them NAKs", "CNPs", "unexpected"];
        section(&mut text, "Responses, in packets", &columns, 1, rows);
        let requests = answers.filter_map(|(s, a)| Some((s, a.requests.as_ref()?)));
        let rows = requests.clone().map(|(s, r)| {
            let numbers = [
                s.messages,
                r.answered,
                r.unanswered,
                r.under_way,
                r.stale_responses,
                r.swapped,
                r.not_swapped,
            ];
            row(&[&s.name], &numbers)
        });
        let columns =
            ["stream", "requests", "answered", "unanswered", "under way", "stale", "swapped", "not swapped"];
        section(&mut text, "Requests = answered + unanswered + under way", &columns, 1, rows);
        let latency = arrived.filter_map(|(s, a)| Some((s, "one way", a.latency.as_ref()?)));
        let round_trip = requests.filter_map(|(s, r)| Some((s, "round trip", r.round_trip.as_ref()?)));
        let times = latency.chain(round_trip).map(|(s, what, t)| {
            let us = [t.min_ns, t.p50_ns, t.p90_ns, t.p99_ns, t.p999_ns, t.max_ns];
            let us = us.map(|ns| format!("{:.2}", ns as f64 / 1e3));
            let words: Vec<&str> =
                [s.name.as_str(), what].into_iter().chain(us.iter().map(String::as_str)).collect();
            row(&words, &[t.count])
        });
        let columns = ["stream", "time in us", "min", "50 %", "90 %", "99 %", "99.9 %", "max", "packets"];
        section(&mut text, "Latency", &columns, 8, times);
        let malformed = self.malformed.iter().map(|row_| row(&[row_.fault], &[row_.packets]));
        section(&mut text, "Malformed packets received", &["fault", "packets"], 1, malformed);
        let rows = self.ports.iter().map(|port| {
            row(&[&port.name, &port.driver], &[port.rx_frames, port.rx_bytes, port.tx_frames, port.tx_bytes])
        });
        section(
            &mut text,
            "Ports",
            &["port", "driver", "rx frames", "rx bytes", "tx frames", "tx bytes"],
            2,
            rows,
        );
        self.write_notes(&mut text);
        text + &self.last_line()
    }
}

impl PktgenReport {
    /// Writes what the tables do not show: frames of no stream, streams without responses, and why a run is invalid.
    fn write_notes(&self, text: &mut String) {
        let too_late = if self.drain_expired {
            "frames were received after `drain_ms` had passed; raise `drain_ms`"
        } else {
            "frames were received after all expected packets had arrived"
        };
        for (count, what) in [
            (self.foreign, "packets received that belong to no stream"),
            (self.other, "frames received that are not RoCEv2 packets"),
            (self.too_late, too_late),
            (self.no_buffer, "times sending waited for a packet buffer"),
            (self.port_busy, "times sending waited for room in the port's queue"),
        ] {
            if count > 0 {
                _ = writeln!(text, "{count} {what}");
            }
        }
        for stream in self.unanswered() {
            _ = writeln!(text, "{}: {NO_RESPONSE}", stream_title(&stream.name));
        }
        if !self.adds_up {
            *text += "THE COUNTERS DO NOT ADD UP: this is a bug, or the run was cut short.\n";
        }
        for invalid in &self.spoiled {
            _ = writeln!(text, "SPOILED ({}): {}", invalid.reason, invalid.what);
        }
    }

    /// Returns the streams whose requests had no response at all. Streams with a rate have an error about the
    /// missed rate that covers this.
    fn unanswered(&self) -> impl Iterator<Item = &StreamRow> {
        self.streams.iter().filter(|s| s.messages > 0 && s.part_of_rate.is_none()).filter(|s| {
            let requests = s.answers.as_ref().and_then(|answers| answers.requests.as_ref());
            requests.is_some_and(|requests| requests.answered == 0)
        })
    }

    /// Returns the totals in one line.
    fn last_line(&self) -> String {
        let sent: u64 = self.streams.iter().map(|s| s.sent).sum();
        let malformed: u64 = self.streams.iter().map(|s| s.malformed_sent).sum();
        let frames = match malformed {
            0 => format!("{sent} packets"),
            _ => format!("{} frames, {malformed} of them malformed,", sent + malformed),
        };
        let streams = self.streams.len();
        let s = if streams == 1 { "" } else { "s" };
        format!("{frames} sent by {streams} stream{s}, in {:.2} s", self.seconds)
    }
}

/// Describes a rate, for the summary of a configuration.
pub(crate) fn describe_rate(rate: Rate) -> String {
    let unit = |unit| if unit == Unit::Bits { "bits" } else { "packets" };
    match rate {
        Rate::Max => "as fast as its port accepts it".into(),
        Rate::Steady { unit: u, per_second } => format!("{per_second} {} per second", unit(u)),
        Rate::Ramp { unit: u, from, to, over } => {
            format!("{from} to {to} {} per second in {} s", unit(u), over.0 as f64 / 1e9)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns consistent counters of a stream: of ten requests, six had responses, one was given up, and
    /// three wait.
    fn counted() -> StreamCounters {
        let c = StreamCounters::default();
        c.sent.count_many(10, 1_000);
        c.received.count_many(7, 700);
        for (counter, count) in [
            (&c.messages, 10),
            (&c.skipped, 2),
            (&c.late, 1),
            (&c.behind, 2),
            (&c.answered, 6),
            (&c.unanswered, 1),
            (&c.waiting, 3),
        ] {
            counter.add(count);
        }
        c
    }

    fn adds_up(c: &StreamCounters, done: bool) -> bool {
        let profile = crate::functions::pktgen::run::tests::profile(
            "respond = true\n[[pktgen.stream]]\nverb = \"write\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\n\
             outstanding = 4\n",
        );
        StreamRow::new(&profile, &profile.streams[0], c)
            .adds_up(done.then(|| (c.behind.get(), c.waiting.get())))
    }

    #[test]
    fn counters_have_to_agree_with_those_of_the_queue_pairs() {
        assert!(adds_up(&counted(), true));
        for (counter, what) in [
            (
                &(|c: &StreamCounters| c.waiting.add(1)) as &dyn Fn(&StreamCounters),
                "one waiting request too many",
            ),
            (&|c| c.answered.add(1), "one response too many"),
            (&|c| c.behind.add(1), "one unseen packet too many"),
            (&|c| c.skipped.add(1), "one lost packet too many"),
        ] {
            let c = counted();
            counter(&c);
            assert!(!adds_up(&c, true), "{what}");
            assert!(adds_up(&c, false), "{what}: without the queue pairs' count");
        }
    }
}
