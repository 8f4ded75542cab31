//! Closing report of a generator's run: as tables for the terminal, as JSON for programs.

use super::invalid::{InvalidReason, NO_RESPONSE, stream_title};
use super::{hgrm, rates};
use crate::functions::launch::ClosingReport;
use crate::functions::ports::Ports;
use crate::observe::{FunctionMetrics, Latency, Port, Row, Table, Values};
use crate::output::{row, section};
use dataplane::{Outcome, Runtime};
use pktgen::counters::StreamCounters;
use pktgen::{AtRate, Counters, Histogram, Profile, Rate, RateHistory, Stream, Unit};
use rocev2::Fault;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;
use switch::DropReason;
use switch::metrics::Metrics as _;

/// The closing report. The serialised form is part of the program's interface: fields are added, not renamed.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct PktgenReport {
    /// Length of the run in seconds, from the start of its worker to its end
    seconds: f64,
    /// TSC cycles per second
    tsc_hz: u64,
    /// Seed of what is drawn at random
    seed: u64,
    #[cfg_attr(test, schemars(with = "Vec<Printed<'_>>"))]
    streams: Vec<StreamRow>,
    /// Malformed packets received, by fault, including a wrong ICRC; they cannot be attributed to a stream
    malformed: Vec<FaultRow>,
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "crate::reference::metrics::<Counters>"))]
    counts: Values,
    /// Whether packets or responses were still missing when the drain time ended
    drain_expired: bool,
    ports: Vec<Port>,
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
    let rows = streams().map(|(stream, counters)| Row::of([stream.name.clone()], &Values::of(counters)));
    let metrics = FunctionMetrics::default()
        .values(&Values::of(counters))
        .table(Table::of(&StreamCounters::GROUP, rows));
    let latencies = streams().flat_map(|(stream, counters)| {
        [("latency", &counters.latency), ("round trip", &counters.round_trip)]
            .map(|(kind, times)| Latency::of(format!("{} {kind}", stream.name), &hgrm::hdr(times)))
    });
    FunctionMetrics { latencies: latencies.flatten().collect(), ..metrics }
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct FaultRow {
    /// The fault as one word
    fault: &'static str,
    packets: u64,
}

/// Results of a stream: sent = received + lost + unseen, and, where responses are expected, messages =
/// answered + unanswered + under_way.
struct StreamRow {
    name: String,
    verb: &'static str,
    /// Time during which the stream sent, in seconds
    sending_s: f64,
    sent_per_s: f64,
    /// Including preamble, frame check sequence and inter-frame gap
    wire_bits_per_s: f64,
    /// Packets or bits sent, as a part of those that were due; `None` if the rate is unlimited
    part_of_rate: Option<f64>,
    /// What was sent at each rate, if the rate was changed during the run
    rates: Vec<RateRow>,
    /// Earlier rates that are not in `rates`
    rates_omitted: u64,
    sent: u64,
    messages: u64,
    /// Counters; those of sections that the stream does not have are zero
    counts: Values,
    /// Packets that came back to the port that sends; `None` if nothing is received there
    reflected: Option<u64>,
    /// Whether its packets are received, have responses, and wait for these
    is_received: bool,
    has_answers: bool,
    waits: bool,
    answered: u64,
    /// Time from sending to receiving, and from the last packet of a request to its response
    latency: Option<Times>,
    round_trip: Option<Times>,
}

/// What a stream sent at one rate.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct RateRow {
    /// Rate, as `understudy rate` takes it
    rate: String,
    /// Time during which the stream sent at this rate, in seconds
    sending_s: f64,
    /// Packets sent
    sent_per_s: f64,
    /// Including preamble, frame check sequence and inter-frame gap
    wire_bits_per_s: f64,
    /// Packets or bits sent, as a part of those that were due; null if the rate is unlimited
    part_of_rate: Option<f64>,
}

impl From<AtRate> for RateRow {
    fn from(at: AtRate) -> Self {
        let sending_s = at.sent.sending.0 as f64 / 1e9;
        let per_s = |count: u64| if sending_s > 0.0 { count as f64 / sending_s } else { 0.0 };
        Self {
            rate: rates::text(at.rate),
            sending_s,
            sent_per_s: per_s(at.sent.packets),
            wire_bits_per_s: per_s(at.sent.bits),
            part_of_rate: at.part,
        }
    }
}

impl Serialize for StreamRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut counts = json!(self.counts);
        counts["arrived"]["latency"] = json!(self.latency);
        counts["answers"]["requests"]["round_trip"] = json!(self.round_trip);
        if !self.is_received {
            counts["arrived"] = Value::Null;
        }
        if !self.waits {
            counts["answers"]["requests"] = Value::Null;
        }
        if !self.has_answers {
            counts["answers"] = Value::Null;
        }
        let has_rates = !self.rates.is_empty();
        let printed = Printed {
            counts,
            name: &self.name,
            verb: self.verb,
            sending_s: self.sending_s,
            sent_per_s: self.sent_per_s,
            wire_bits_per_s: self.wire_bits_per_s,
            part_of_rate: self.part_of_rate,
            rates: has_rates.then_some(&self.rates),
            rates_omitted: has_rates.then_some(self.rates_omitted),
            reflected: self.reflected,
        };
        printed.serialize(serializer)
    }
}

/// The serialised form of a stream's results.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Printed<'a> {
    /// Counters, with the times of each section; the sections that the stream does not have are null
    #[serde(flatten)]
    #[cfg_attr(test, schemars(schema_with = "counts_schema"))]
    counts: Value,
    name: &'a str,
    verb: &'static str,
    /// Time during which the stream sent, in seconds
    sending_s: f64,
    /// Packets sent
    sent_per_s: f64,
    /// Including preamble, frame check sequence and inter-frame gap
    wire_bits_per_s: f64,
    /// Packets or bits sent, as a part of those that were due; null if the rate is unlimited
    part_of_rate: Option<f64>,
    /// What was sent at each rate, if the rate was changed during the run
    #[serde(skip_serializing_if = "Option::is_none")]
    rates: Option<&'a Vec<RateRow>>,
    /// Earlier rates that are not in `rates`
    #[serde(skip_serializing_if = "Option::is_none")]
    rates_omitted: Option<u64>,
    /// Packets that came back to the port that sends; null if nothing is received there
    reflected: Option<u64>,
}

/// Returns the counters of a stream with their sections, each of which has times, too.
#[cfg(test)]
fn counts_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = crate::reference::metrics::<StreamCounters>(generator);
    let texts = [
        ("/properties/arrived", "latency", "Time from sending to receiving; null if none was measured"),
        (
            "/properties/answers/properties/requests",
            "round_trip",
            "Time from the last packet of a request to its response; null if none was measured",
        ),
    ];
    for (section, name, help) in texts {
        let mut times = generator.subschema_for::<Option<Times>>();
        times.insert("description".into(), help.into());
        let section = schema.pointer_mut(section).expect("the counters have this section");
        section["properties"][name] = times.to_value();
        section["type"] = json!(["object", "null"]);
    }
    schema.pointer_mut("/properties/answers").expect("a section")["type"] = json!(["object", "null"]);
    schema
}

/// Quantiles in nanoseconds. The worker reads the time once per iteration.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
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
    /// Returns a counter by its name in the report.
    fn count(&self, name: &str) -> u64 {
        self.counts.reported().find(|(other, _)| *other == name).map_or(0, |(_, value)| value)
    }

    fn new(profile: &Profile, stream: &Stream, counters: &StreamCounters, history: &RateHistory) -> Self {
        let rates = history.has_changed().then(|| history.rates(counters)).into_iter().flatten();
        let sending_s = counters.sending_ns.get() as f64 / 1e9;
        let per_s = |count: u64| if sending_s > 0.0 { count as f64 / sending_s } else { 0.0 };
        let (packets, bits) = counters.units();
        let waits = stream.verb.is_request() && stream.outstanding.is_some();
        Self {
            name: stream.name.clone(),
            verb: stream.verb.name(),
            sending_s,
            sent_per_s: per_s(packets),
            wire_bits_per_s: per_s(bits),
            part_of_rate: history.part(counters),
            rates: rates.map(RateRow::from).collect(),
            rates_omitted: history.omitted(),
            sent: counters.sent.frames.get(),
            messages: counters.messages.get(),
            counts: Values::of(counters),
            reflected: profile.polls_send_port().then(|| counters.reflected.get()),
            is_received: profile.receive.is_some(),
            has_answers: waits || stream.verb.is_request() && profile.respond,
            waits,
            answered: counters.answered.get(),
            latency: Times::of(&counters.latency),
            round_trip: Times::of(&counters.round_trip),
        }
    }

    /// Returns whether every packet and request of the stream is accounted for. `done`: the queue pairs have
    /// counted packets with no later one received, and waiting requests.
    fn adds_up(&self, c: &StreamCounters, done: bool) -> bool {
        let unseen = c.unseen();
        let all_arrived = self.sent == c.received.frames.get() + c.lost() + unseen;
        let arrived = all_arrived && (!done || c.behind.get() == unseen);
        let under_way = c.under_way();
        let all_answered = self.messages == c.answered.get() + c.unanswered.get() + under_way;
        let answered = all_answered && (!done || c.waiting.get() == under_way);
        (!self.is_received || arrived) && (!self.waits || answered)
    }
}

impl PktgenReport {
    pub(super) fn new(
        profile: &Profile,
        (counters, histories): (&Counters, &[RateHistory]),
        runtime: &Runtime,
        outcome: &Outcome,
        spoiled: Vec<InvalidReason>,
        (seconds, done): (f64, bool),
    ) -> Self {
        let streams: Vec<_> = profile
            .streams
            .iter()
            .zip(counters.streams.iter().zip(histories))
            .map(|(stream, (counters, history))| StreamRow::new(profile, stream, counters, history))
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
        // A frame that a worker could not dispatch to its owner was received, and handled by no worker.
        let lost = sum(&|worker| worker.drops[DropReason::InputFull.index()].get());
        let all_came = known + broken + foreign + other + too_late + lost == sum(&|worker| worker.received());
        let made: u64 = counters
            .streams
            .iter()
            .map(|c| c.sent.frames.get() + c.malformed.frames.get() + c.replies.get())
            .sum();
        let left = sum(&|w| w.ports.iter().map(|port| port.tx.frames.get()).sum());
        // Received frames are consumed, so every other dropped frame was to be sent.
        let dropped = sum(&|w| w.drops.iter().map(switch::counters::Counter::get).sum());
        let all_left = made + lost == left + dropped;
        let mut rows = streams.iter().zip(&counters.streams);
        let streams_add_up = rows.all(|(row, counters)| row.adds_up(counters, done));
        let adds_up = all_came && all_left && streams_add_up;
        Self {
            seconds,
            tsc_hz: outcome.tsc_hz,
            seed: profile.seed,
            adds_up,
            streams,
            malformed,
            counts: Values::of(counters),
            drain_expired: counters.drain_expired.get() > 0,
            ports: Ports::of(runtime, outcome).rows,
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
            row(&[&s.name, s.verb, &mpps, &gbps, &rate], &[s.sent, s.messages, s.count("malformed_sent")])
        });
        let columns = ["stream", "verb", "Mpps", "Gb/s", "of its rate", "sent", "messages", "malformed"];
        section(&mut text, "Sent", &columns, 5, sent);
        let at_rates = self.streams.iter().flat_map(|s| s.rates.iter().map(move |rate| (s, rate)));
        let at_rates = at_rates.map(|(s, rate)| {
            let part = rate.part_of_rate.map_or_else(|| "-".into(), |part| format!("{:.2} %", part * 100.0));
            let (seconds, mpps) = (format!("{:.3}", rate.sending_s), format!("{:.4}", rate.sent_per_s / 1e6));
            let gbps = format!("{:.4}", rate.wire_bits_per_s / 1e9);
            row(&[&s.name, &rate.rate, &seconds, &mpps, &gbps, &part], &[])
        });
        let columns = ["stream", "rate", "seconds", "Mpps", "Gb/s", "of its rate"];
        section(&mut text, "Sent at each rate, the latest last", &columns, 6, at_rates);
        let arrived = || self.streams.iter().filter(|s| s.is_received);
        let title = "Received: sent = received + lost + unseen";
        counts_section(&mut text, title, Some("sent"), "arrived", arrived());
        let reflected = |s: &StreamRow| s.reflected.filter(|packets| *packets > 0);
        let rows = self.streams.iter().filter_map(|s| Some(row(&[&s.name], &[reflected(s)?])));
        section(&mut text, "Received at the port that sent it", &["stream", "packets"], 1, rows);
        let answers = self.streams.iter().filter(|s| s.has_answers);
        counts_section(&mut text, "Responses, in packets", None, "answers", answers);
        let requests = || self.streams.iter().filter(|s| s.waits);
        let title = "Requests = answered + unanswered + under way";
        counts_section(&mut text, title, Some("messages"), "answers.requests", requests());
        let latency = arrived().filter_map(|s| Some((s, "one way", s.latency.as_ref()?)));
        let round_trip = requests().filter_map(|s| Some((s, "round trip", s.round_trip.as_ref()?)));
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
            let ((rx_frames, rx_bytes), (tx_frames, tx_bytes)) = (port.rx(), port.tx());
            row(&[&port.name, &port.driver], &[rx_frames, rx_bytes, tx_frames, tx_bytes])
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
        self.counts.clone().counters().notes("", text);
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
        self.streams
            .iter()
            .filter(|s| s.messages > 0 && s.part_of_rate.is_none())
            .filter(|s| s.waits && s.answered == 0)
    }

    /// Returns the totals in one line.
    fn last_line(&self) -> String {
        let sent: u64 = self.streams.iter().map(|s| s.sent).sum();
        let malformed: u64 = self.streams.iter().map(|s| s.count("malformed_sent")).sum();
        let frames = match malformed {
            0 => format!("{sent} packets"),
            _ => format!("{} frames, {malformed} of them malformed,", sent + malformed),
        };
        let streams = self.streams.len();
        let s = if streams == 1 { "" } else { "s" };
        format!("{frames} sent by {streams} stream{s}, in {:.2} s", self.seconds)
    }
}

/// Appends a table of a section's counters by stream, below their names in the report. `first` is a counter
/// outside the section.
fn counts_section<'a>(
    text: &mut String,
    title: &str,
    first: Option<&'static str>,
    path: &str,
    streams: impl Iterator<Item = &'a StreamRow>,
) {
    let names =
        |s: &'a StreamRow| first.map(|name| (name, s.count(name))).into_iter().chain(s.counts.section(path));
    let mut streams = streams.peekable();
    let heads =
        streams.peek().map_or(Vec::new(), |s| names(s).map(|(name, _)| name.replace('_', " ")).collect());
    let heads: Vec<_> = ["stream"].into_iter().chain(heads.iter().map(String::as_str)).collect();
    let rows = streams.map(|s| row(&[&s.name], &names(s).map(|(_, count)| count).collect::<Vec<_>>()));
    section(text, title, &heads, 1, rows);
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
        let history = RateHistory::new(&profile.streams[0], 1);
        StreamRow::new(&profile, &profile.streams[0], c, &history).adds_up(c, done)
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
