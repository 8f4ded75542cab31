//! Rates that change during a run: requests of the socket, commands to the workers, and what was sent at each
//! rate.

use crate::observe::steer::{ADOPTION_TIMEOUT, RatesRequest, RatesState, SteerError, Steering, StreamState};
use crossbeam_channel::{Receiver, Sender};
use pktgen::{Command, Counters, Pktgen, Profile, Rate, RateHistory, RateMark, Share, Totals, Unit};
use settings::words::{all_of, closest};
use std::collections::VecDeque;
use std::time::Instant;

type Response = Sender<Result<RatesState, SteerError>>;

/// Rates of all streams, and their changes.
pub(super) struct Rates {
    requests: Option<Receiver<Steering>>,
    names: Vec<String>,
    /// Mean length of each stream's packets on the wire, in bits
    packet_bits: Vec<u64>,
    /// Workers that have a part of each stream, and its share
    shares: Vec<Vec<(usize, Share)>>,
    workers: usize,
    histories: Vec<RateHistory>,
    /// Requests that wait until the change before has taken effect, each with its deadline
    waiting: VecDeque<(RatesRequest, Response, Instant)>,
    change: Option<Change>,
}

/// A change that has not taken effect yet.
struct Change {
    /// Workers, streams and rates that were not sent
    unsent: VecDeque<(usize, usize, Rate)>,
    /// Streams and rates that not all workers have reported
    unreported: Vec<Unreported>,
    /// Requester, until it gets its response, and deadline of it
    requester: Option<(Response, Instant)>,
}

/// A rate that not all workers have reported.
struct Unreported {
    stream: usize,
    rate: Rate,
    /// Workers that have not reported it
    workers: Vec<usize>,
    /// What the parts of the others had sent
    marks: Vec<(RateMark, Share)>,
}

impl Change {
    /// Returns the workers that have not adopted the change.
    fn waiting(&self) -> Vec<usize> {
        let mut workers: Vec<_> = self.unreported.iter().flat_map(|rate| rate.workers.clone()).collect();
        workers.sort_unstable();
        workers.dedup();
        workers
    }
}

impl Rates {
    /// Returns the rates of a profile whose instances are these.
    pub(super) fn new(
        profile: &Profile,
        instances: &[Pktgen],
        totals: &Totals,
        requests: Option<Receiver<Steering>>,
    ) -> Self {
        let streams = || profile.streams.iter().enumerate();
        let packet_bits = |index| instances.iter().find_map(|instance| instance.packet_bits(index));
        Self {
            requests,
            names: profile.streams.iter().map(|stream| stream.name.clone()).collect(),
            packet_bits: streams().map(|(index, _)| packet_bits(index).unwrap_or(0)).collect(),
            shares: streams()
                .map(|(index, _)| totals.parts(index).map(|(worker, share, _)| (worker, share)).collect())
                .collect(),
            workers: instances.len(),
            histories: streams()
                .map(|(index, stream)| RateHistory::new(stream, totals.parts(index).count()))
                .collect(),
            waiting: VecDeque::new(),
            change: None,
        }
    }

    /// Returns the rates of each stream during the run.
    pub(super) fn histories(&self) -> &[RateHistory] {
        &self.histories
    }

    /// Handles requests and time-outs. `device` returns the rate of the device that sends, in bits a second, and
    /// `send` sends a command to a worker, or returns false if there is no room.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        totals: &Totals,
        device: impl Fn() -> Option<u64>,
        mut send: impl FnMut(usize, Command) -> bool,
    ) {
        let requests: Vec<_> = self.requests.iter().flat_map(Receiver::try_iter).collect();
        for request in requests {
            match request {
                Steering::Rates(RatesRequest::List, response) => {
                    drop(response.send(Ok(self.state(&totals.get(), device()))));
                }
                Steering::Rates(request, response) => {
                    self.waiting.push_back((request, response, now + ADOPTION_TIMEOUT));
                }
                other @ (Steering::Rules(..) | Steering::Layers(..)) => other.refuse("pktgen"),
            }
        }
        self.continue_change(now, totals, &device, &mut send);
        while self.change.is_none()
            && let Some((request, response, deadline)) = self.waiting.pop_front()
        {
            match self.rates_of(request, device()) {
                Ok(rates) => {
                    let requester = Some((response, deadline));
                    self.change = Some(self.change_to(&rates, requester));
                    self.continue_change(now, totals, &device, &mut send);
                }
                // A requester that has given up needs no response.
                Err(why) => drop(response.send(Err(SteerError::Invalid(why)))),
            }
        }
        while self.waiting.front().is_some_and(|(_, _, deadline)| *deadline <= now) {
            let Some((_, response, _)) = self.waiting.pop_front() else { break };
            let waiting = self.change.as_ref().map_or(Vec::new(), Change::waiting);
            drop(response.send(Err(SteerError::Busy { waiting })));
        }
    }

    /// Returns a change of these streams to these rates.
    fn change_to(&self, rates: &[(usize, Rate)], requester: Option<(Response, Instant)>) -> Change {
        let all = 0..self.workers;
        let unsent =
            rates.iter().flat_map(|&(stream, rate)| all.clone().map(move |worker| (worker, stream, rate)));
        let unreported = rates.iter().map(|&(stream, rate)| Unreported {
            stream,
            rate,
            workers: all.clone().collect(),
            marks: Vec::new(),
        });
        Change { unsent: unsent.collect(), unreported: unreported.collect(), requester }
    }

    fn continue_change(
        &mut self,
        now: Instant,
        totals: &Totals,
        device: &impl Fn() -> Option<u64>,
        send: &mut impl FnMut(usize, Command) -> bool,
    ) {
        let Some(change) = &mut self.change else { return };
        // A worker without room does not delay the others, whose order stays.
        let mut full = vec![false; self.workers];
        change.unsent.retain(|&(worker, stream, rate)| {
            full[worker] = full[worker] || !send(worker, Command::SetRate { stream, rate });
            full[worker]
        });
        if change.unreported.is_empty() {
            let requester = self.change.take().and_then(|change| change.requester);
            if let Some((response, _)) = requester {
                drop(response.send(Ok(self.state(&totals.get(), device()))));
            }
        } else if let Some((response, _)) = change.requester.take_if(|(_, deadline)| *deadline <= now) {
            drop(response.send(Err(SteerError::Late { waiting: change.waiting() })));
        }
    }

    /// Notes that a worker has changed the rate of a stream.
    pub(super) fn changed(&mut self, worker: usize, stream: usize, mark: RateMark) {
        let Some(change) = &mut self.change else { return };
        let found = change.unreported.iter().position(|rate| rate.stream == stream);
        let Some((at, rate)) = found.map(|at| (at, &mut change.unreported[at])) else { return };
        rate.workers.retain(|other| *other != worker);
        let share = self.shares[stream].iter().find(|(other, _)| *other == worker);
        rate.marks.extend(share.map(|(_, share)| (mark, *share)));
        if rate.workers.is_empty() {
            let Unreported { rate, marks, .. } = change.unreported.swap_remove(at);
            self.histories[stream].change(rate, RateMark::sum(marks));
        }
    }

    /// Returns the streams and rates of a request, or why it is refused, as a text for users.
    fn rates_of(&self, request: RatesRequest, device: Option<u64>) -> Result<Vec<(usize, Rate)>, String> {
        let RatesRequest::Set { rates } = request else { return Ok(Vec::new()) };
        let mut all: Vec<Option<Rate>> = vec![None; self.names.len()];
        for (name, text) in rates {
            let rate = parse(&text)?;
            match name {
                None => all.fill(Some(rate)),
                Some(name) => all[self.find(&name)?] = Some(rate),
            }
        }
        if let Some(device) = device {
            self.check_device(&all, device)?;
        }
        Ok(all.into_iter().enumerate().filter_map(|(stream, rate)| Some((stream, rate?))).collect())
    }

    /// Refuses rates that would exceed the device, all streams together.
    fn check_device(&self, changed: &[Option<Rate>], device: u64) -> Result<(), String> {
        let current = self.histories.iter().map(RateHistory::rate);
        let rates = changed.iter().zip(current).map(|(new, current)| new.unwrap_or(current));
        let bits = |(rate, packet_bits): (Rate, &u64)| {
            let per_second = match rate {
                Rate::Max => 0,
                Rate::Steady { per_second, .. } => per_second,
                Rate::Ramp { from, to, .. } => from.max(to),
            };
            let unit = if rate.unit() == Some(Unit::Packets) { *packet_bits } else { 1 };
            u128::from(per_second) * u128::from(unit)
        };
        let total: u128 = rates.zip(&self.packet_bits).map(bits).sum();
        if total <= u128::from(device) {
            return Ok(());
        }
        let gbps = |bits: f64| bits / 1e9;
        Err(format!(
            "the device sends {} Gb/s, and all streams would send {:.3} Gb/s on the wire; set lower rates, which add up to {} Gb/s \
             at most, or `max`",
            gbps(device as f64),
            gbps(total as f64),
            gbps(device as f64)
        ))
    }

    fn find(&self, name: &str) -> Result<usize, String> {
        self.names.iter().position(|other| other == name).ok_or_else(|| {
            let close = closest(name, self.names.iter().map(String::as_str));
            let meant = close.map(|close| format!("did you mean `{close}`? ")).unwrap_or_default();
            format!("there is no stream `{name}`; {meant}the streams are {}", all_of(&self.names))
        })
    }

    fn state(&self, counters: &Counters, device_bits_per_s: Option<u64>) -> RatesState {
        let stream =
            |((name, history), counters): ((&String, &RateHistory), &pktgen::counters::StreamCounters)| {
                StreamState {
                    name: name.clone(),
                    rate: text(history.rate()),
                    sent: counters.sent.frames.get(),
                    sending_s: counters.sending_ns.get() as f64 / 1e9,
                }
            };
        let streams = self.names.iter().zip(&self.histories).zip(&counters.streams);
        RatesState { streams: streams.map(stream).collect(), device_bits_per_s }
    }
}

const SUFFIXES: [(&str, Unit); 2] = [("pps", Unit::Packets), ("bps", Unit::Bits)];

/// Reads a rate such as `1.5Mpps`, `10Gbps` or `max`.
pub(super) fn parse(text: &str) -> Result<Rate, String> {
    let help = || {
        format!(
            "`{text}` is not a rate; write `max`, or 1 to {} packets or bits in a second, such as 1.5Mpps, 250kpps, 800pps \
             or 10Gbps",
            Rate::FASTEST
        )
    };
    if text == "max" {
        return Ok(Rate::Max);
    }
    let found =
        SUFFIXES.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?.trim_end(), *unit)));
    let (number, unit) = found.ok_or_else(help)?;
    let factors = [('k', 1e3), ('M', 1e6), ('G', 1e9)];
    let (number, factor) = factors
        .iter()
        .find_map(|(prefix, factor)| Some((number.strip_suffix(*prefix)?, *factor)))
        .unwrap_or((number, 1.0));
    let number: f64 = number.replace('_', "").trim().parse().map_err(|_| help())?;
    let per_second = (number * factor).round();
    if !(1.0..=Rate::FASTEST as f64).contains(&per_second) {
        return Err(help());
    }
    Ok(Rate::Steady { unit, per_second: per_second as u64 })
}

/// Returns a rate as [`parse`] reads it; a ramp, which a request cannot state, in a similar form.
pub(super) fn text(rate: Rate) -> String {
    let suffix = |unit| if unit == Unit::Bits { "bps" } else { "pps" };
    match rate {
        Rate::Max => "max".into(),
        Rate::Steady { unit, per_second } => format!("{per_second}{}", suffix(unit)),
        Rate::Ramp { unit, from, to, over } => {
            format!("{from} to {to}{} in {} s", suffix(unit), over.0 as f64 / 1e9)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::pktgen::run::tests::profile;
    use crate::system::now;
    use crossbeam_channel::{TryRecvError, bounded};
    use pktgen::{Event, Pktgen};
    use std::time::Duration;
    use switch::{Function as _, Nanos};

    const STREAMS: &str = "[[pktgen.stream]]\nname = \"small\"\nverb = \"write\"\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\n\
                           rate = { packets_per_s = 1000 }\n\
                           [[pktgen.stream]]\nname = \"big\"\nverb = \"send\"\nsize = 1000\nsrc = \"10.0.0.1\"\ndst = \"10.0.0.2\"\n\
                           rate = { bits_per_s = 1_000_000 }\n";

    /// A generator, its rates, and a queue of one command for each worker.
    struct Machine {
        instances: Vec<Pktgen>,
        totals: Totals,
        rates: Rates,
        queues: Vec<Vec<Command>>,
        requests: Sender<Steering>,
        now: Instant,
        device: Option<u64>,
    }

    impl Machine {
        fn new(workers: usize, device: Option<u64>) -> Self {
            let profile = profile(STREAMS);
            let instance = |worker| Pktgen::of_worker(&profile, worker, workers).unwrap();
            let instances: Vec<_> = (0..workers).map(instance).collect();
            let (requests, received) = bounded(8);
            let totals = Totals::new(&instances, profile.streams.len());
            let rates = Rates::new(&profile, &instances, &totals, Some(received));
            let queues = vec![Vec::new(); workers];
            Self { instances, totals, rates, queues, requests, now: now(), device }
        }

        fn ask(&self, rates: &[(Option<&str>, &str)]) -> Receiver<Result<RatesState, SteerError>> {
            let rates = rates.iter().map(|(name, rate)| (name.map(Into::into), (*rate).into())).collect();
            let (response, received) = bounded(1);
            self.requests.send(Steering::Rates(RatesRequest::Set { rates }, response)).unwrap();
            received
        }

        fn poll(&mut self, ms: u64) {
            self.now += Duration::from_millis(ms);
            let (queues, device) = (&mut self.queues, self.device);
            self.rates.poll(
                self.now,
                &self.totals,
                || device,
                |worker, command| {
                    let room = queues[worker].is_empty();
                    if room {
                        queues[worker].push(command);
                    }
                    room
                },
            );
        }

        fn turn(&mut self, worker: usize) {
            for command in self.queues[worker].drain(..) {
                self.instances[worker].on_command(command, Nanos::ZERO);
            }
            while let Some(event) = self.instances[worker].poll_event() {
                let Event::RateChanged { stream, mark } = event else { panic!("nothing has ended") };
                self.rates.changed(worker, stream, mark);
            }
        }

        fn turns(&mut self) {
            (0..self.instances.len()).for_each(|worker| self.turn(worker));
        }
    }

    #[test]
    fn the_response_comes_when_all_streams_have_their_rates() {
        for workers in [1, 2] {
            let mut machine = Machine::new(workers, None);
            let response = machine.ask(&[(None, "5kpps"), (Some("big"), "max")]);
            let next = machine.ask(&[(Some("small"), "1pps")]);
            for _ in 0..3 {
                assert_eq!(response.try_recv(), Err(TryRecvError::Empty));
                machine.poll(1);
                machine.turns();
            }
            let state = response.try_recv().unwrap().unwrap();
            let rates: Vec<_> = state.streams.iter().map(|stream| (&*stream.name, &*stream.rate)).collect();
            assert_eq!(rates, [("small", "5000pps"), ("big", "max")]);
            machine.turns();
            machine.poll(1);
            assert_eq!(next.try_recv().unwrap().unwrap().streams[0].rate, "1pps");
        }
    }

    #[test]
    fn a_stopped_worker_is_named() {
        let mut machine = Machine::new(1, None);
        let (first, second) = (machine.ask(&[(None, "5kpps")]), machine.ask(&[(None, "6kpps")]));
        machine.poll(0);
        machine.poll(3000);
        assert_eq!(first.try_recv(), Ok(Err(SteerError::Late { waiting: vec![0] })));
        assert_eq!(second.try_recv(), Ok(Err(SteerError::Busy { waiting: vec![0] })));
        // One of two: the other has adopted the change.
        let mut machine = Machine::new(2, None);
        let response = machine.ask(&[(None, "5kpps")]);
        for _ in 0..3 {
            machine.poll(0);
            machine.turn(0);
        }
        machine.poll(3000);
        assert_eq!(response.try_recv(), Ok(Err(SteerError::Late { waiting: vec![1] })));
        // It gets each change once, however late.
        machine.turn(1);
        machine.poll(0);
        machine.turn(1);
        let late = machine.ask(&[(None, "7kpps")]);
        for _ in 0..4 {
            machine.poll(0);
            machine.turns();
        }
        assert_eq!(late.try_recv().unwrap().unwrap().streams[1].rate, "7000pps");
    }

    #[test]
    fn wrong_rates_and_those_beyond_the_device_change_nothing() {
        // 8 bytes of payload: 98 bytes on the wire, with gap and preamble
        let mut machine = Machine::new(1, Some(1_000_000_000));
        let bits = machine.instances[0].packet_bits(0).unwrap();
        for (rates, expected) in [
            (
                &[(Some("small"), "1Gbps"), (Some("large"), "1pps")][..],
                "there is no stream `large`; the streams are `small` and `big`",
            ),
            (&[(Some("smal"), "1pps")], "did you mean `small`?"),
            (&[(Some("small"), "10")], "`10` is not a rate; write `max`"),
            (&[(None, "0pps")], "`0pps` is not a rate"),
            (&[(None, "2000Gbps")], "`2000Gbps` is not a rate"),
            (&[(Some("small"), "1Gbps")], "the device sends 1 Gb/s, and all streams would send 1.001 Gb/s"),
            (&[(None, "2Mpps")], "the device sends 1 Gb/s"),
        ] {
            let response = machine.ask(rates);
            machine.poll(1);
            let Err(SteerError::Invalid(why)) = response.try_recv().unwrap() else { panic!("{rates:?}") };
            assert!(why.contains(expected) && machine.queues[0].is_empty(), "{why}");
        }
        // Exactly the device's rate is possible: what the other stream leaves.
        let most = format!("{}pps", (1_000_000_000 - 1_000_000) / bits);
        let response = machine.ask(&[(Some("small"), &most)]);
        machine.poll(1);
        machine.turns();
        machine.poll(1);
        assert!(response.try_recv().unwrap().is_ok());
    }

    #[test]
    fn rates_are_unchanged_by_a_round_trip_through_text() {
        for (given, expected) in [
            ("1.5Mpps", "1500000pps"),
            ("10Gbps", "10000000000bps"),
            ("2_000 pps", "2000pps"),
            ("max", "max"),
            ("0.25kbps", "250bps"),
        ] {
            let rate = parse(given).unwrap();
            assert_eq!(text(rate), expected);
            assert_eq!(parse(&text(rate)), Ok(rate));
        }
    }
}
