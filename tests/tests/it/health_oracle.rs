//! Compares the health of queue pairs in a simulated network with what its hosts sent and its links lost.
//!
//! The order is: host, recorder, link that loses packets, wire, another such link, recorder, host. Links have a
//! constant delay, so that the test can compute for each recorded packet whether it has passed the wire.

use rnic::{App, Data, Operation, Remote, Rnic, SendRequest, Sge, Status};
use rocev2::aeth::Syndrome;
use rocev2::{Opcode, Packet, Qpn};
use sim::{Clock, Host, Link, NodeId, Switch, World};
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use switch::forward::config::ForwardingMode;
use switch::forward::health::Bug;
use switch::forward::{Command, Config, Event, Forward};
use switch::metrics::Metrics as _;
use switch::{Frame, Function, Nanos, Output, PortId, Probability, Rng, Verdict};
use understudy_tests::nics::{VA, nic};

const QPS: usize = 6;
/// Operations of each queue pair
const OPERATIONS: u32 = 40;
/// Longest message; the path MTU is 1,024 bytes
const LONGEST: u64 = 5_000;
const DELAY: Nanos = Nanos::from_micros(1);

/// A recorded packet, reduced to the fields on which health depends.
#[derive(Clone, Copy, Debug)]
struct RecordedPacket {
    at: Nanos,
    port: PortId,
    to: (IpAddr, Qpn),
    opcode: Opcode,
    psn: u32,
    /// PSNs that the packet takes, if it is a request
    span: u32,
    syndrome: Option<Syndrome>,
}

impl RecordedPacket {
    fn is_request(&self) -> bool {
        !(0x0d..=0x12).contains(&self.opcode.0)
    }
}

/// A wire that records the packets that it receives.
struct Recorder {
    forward: Forward,
    packets: Vec<RecordedPacket>,
}

impl Recorder {
    fn new(health: bool, bug: Option<Bug>) -> Self {
        let mode = ForwardingMode::Pairs(vec![(PortId(0), PortId(1))]);
        let config = Config { mode, counted_qps: 2 * QPS, health, ..Config::bridge(2, 1) };
        let mut forward = Forward::new(&config);
        forward.plant(bug);
        Self { forward, packets: Vec::new() }
    }
}

impl Function for Recorder {
    type Command = Command;
    type Event = Event;

    fn on_frame<O: Output>(
        &mut self,
        frame: &mut O::Frame,
        port: PortId,
        now: Nanos,
        out: &mut O,
    ) -> Verdict {
        if let Some(packet) = Packet::parse(frame.bytes()) {
            let (opcode, bth) = (packet.layout().opcode(), packet.bth());
            let read = packet.reth().filter(|_| opcode == Opcode::RC_READ_REQUEST);
            self.packets.push(RecordedPacket {
                at: now,
                port,
                to: (packet.dst(), bth.dest_qp()),
                opcode,
                psn: bth.psn().get(),
                span: read.map_or(1, |reth| reth.len.get().div_ceil(1024).max(1)),
                syndrome: packet.aeth().map(rocev2::aeth::Aeth::kind),
            });
        }
        self.forward.on_frame(frame, port, now, out)
    }

    fn on_timer<O: Output>(&mut self, now: Nanos, out: &mut O) {
        self.forward.on_timer(now, out);
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.forward.next_timer()
    }

    fn on_command(&mut self, command: Command, now: Nanos) {
        self.forward.on_command(command, now);
    }

    fn poll_event(&mut self) -> Option<Event> {
        self.forward.poll_event()
    }
}

/// An application that writes and reads the other host's memory on all its queue pairs.
struct Client {
    number: u8,
    rng: Rng,
    left: [u32; QPS],
    outstanding: [u32; QPS],
}

impl App for Client {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        self.run(nic, now);
    }

    fn run(&mut self, nic: &mut Rnic, _now: Nanos) {
        // A NIC that is built as the host's NIC is, so that handles are equal
        let (_, qpns, cq, mr) = understudy_tests::nics::nic(self.number, QPS);
        while let Some(done) = nic.poll_cq(cq) {
            assert_eq!(done.status, Status::Success);
            self.outstanding[done.id as usize] -= 1;
        }
        for (at, qpn) in qpns.iter().enumerate() {
            while self.left[at] > 0 && self.outstanding[at] < 4 {
                let remote = Remote { va: VA, rkey: mr.0 };
                let reads = self.rng.below(3) == 0;
                let len = 1 + self.rng.below(LONGEST) as u32;
                // The first message shows the path MTU, without which the number of PSNs of a READ is
                // unknown.
                let (reads, len) = if self.left[at] == OPERATIONS { (false, 4096) } else { (reads, len) };
                let operation = if reads { Operation::Read(remote) } else { Operation::Write(remote) };
                let request = SendRequest::new(at as u64, operation, Data::Memory(Sge { mr, va: VA, len }));
                nic.post_send(*qpn, request).expect("room in the send queue");
                self.left[at] -= 1;
                self.outstanding[at] += 1;
            }
        }
    }
}

/// Counts of a queue pair, expected or observed.
#[derive(Debug, Default, PartialEq, Eq, Clone, Copy)]
struct Counts {
    gaps: u64,
    /// Retransmitted packets, including those that are counted as reordered
    retransmitted: u64,
    naks: u64,
}

type ByQueuePair = BTreeMap<(IpAddr, Qpn), Counts>;

/// State of one sequence of PSNs.
#[derive(Default)]
struct Sequence {
    /// PSNs that the sender has used
    used: HashSet<u32>,
    /// PSN behind the latest packet at the wire
    next: Option<u32>,
    /// Whether the response to which the latest packet belongs continues
    continues: bool,
}

/// Adds the expected counts of packets that left the sender in this order, of which some have `passed` the
/// wire.
fn expect(all: &mut ByQueuePair, sent: &[RecordedPacket], passed: impl Fn(&RecordedPacket) -> bool) {
    let mut sequences = BTreeMap::<_, Sequence>::new();
    for packet in sent.iter().filter(|packet| packet.opcode != Opcode::RC_ACKNOWLEDGE) {
        let sequence = sequences.entry((packet.to, packet.is_request())).or_default();
        let again = !sequence.used.insert(packet.psn);
        sequence.used.extend(packet.psn..packet.psn + packet.span);
        if !passed(packet) {
            continue;
        }
        let counts = all.entry(packet.to).or_default();
        // Without an earlier packet, a loss of the first one cannot be detected.
        let next = *sequence.next.get_or_insert(packet.psn);
        if packet.psn < next {
            assert!(again, "{packet:?} is behind {next}");
            counts.retransmitted += 1;
            continue;
        }
        let starts = matches!(packet.opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_ONLY);
        counts.gaps += match (packet.is_request(), starts, sequence.continues) {
            (true, ..) | (_, false, true) => u64::from(packet.psn - next),
            // At least one packet of a response is missing.
            (_, false, false) | (_, true, true) => u64::from(packet.psn > next),
            (_, true, false) => 0,
        };
        sequence.next = Some(packet.psn + packet.span);
        sequence.continues =
            matches!(packet.opcode, Opcode::RC_READ_RESPONSE_FIRST | Opcode::RC_READ_RESPONSE_MIDDLE);
    }
}

struct Outcome {
    expected: ByQueuePair,
    counted: ByQueuePair,
    /// Retransmitted packets that were counted as reordered
    reordered: u64,
    samples: u64,
    longest: u64,
    /// Retransmitted request packets: by the NICs' counters, and as recorded
    repeated: [u64; 2],
}

fn run(seed: u64, bug: Option<Bug>) -> Outcome {
    let mut rng = Rng::stream(seed, 1);
    let mut world = World::new(seed);
    let hosts: Vec<NodeId> = (0..2u8)
        .map(|number| {
            let app = Client {
                number,
                rng: Rng::stream(seed, 2 + u64::from(number)),
                left: [OPERATIONS; QPS],
                outstanding: [0; QPS],
            };
            world.add("host", Host::new(move || nic(number, QPS).0, app), Clock::default())
        })
        .collect();
    let recorders: Vec<NodeId> = (0..2)
        .map(|_| world.add("recorder", Switch::new(|| Recorder::new(false, None)), Clock::default()))
        .collect();
    let wire = world.add("wire", Switch::new(move || Recorder::new(true, bug)), Clock::default());
    let exact = Link { rate_bps: 0, delay: DELAY, mtu: 4200, ..Link::default() };
    for side in 0..2 {
        // No two packets leave a host at the same time.
        world.connect(hosts[side], recorders[side], Link { rate_bps: 100_000_000_000, ..exact });
        let loss = Probability::percent(rng.below(4));
        world.connect(recorders[side], wire, Link { loss, ..exact });
    }
    world.run_until(sim::EPOCH + Nanos::from_secs(10_000));
    let host = |at: usize| world.node::<Host<Client>>(hosts[at]);
    for at in 0..2 {
        assert_eq!(host(at).app.left, [0; QPS], "seed {seed}");
        assert_eq!(host(at).app.outstanding, [0; QPS], "seed {seed}");
    }
    let recorded_packets = |node| &world.node::<Switch<Recorder>>(node).functions[0].packets;
    let mut expected = BTreeMap::new();
    let mut recorded = 0;
    for (side, recorder) in recorders.iter().enumerate() {
        let sent: Vec<_> =
            recorded_packets(*recorder).iter().filter(|packet| packet.port == PortId(0)).copied().collect();
        let at_wire = recorded_packets(wire).iter().filter(|packet| packet.port == PortId(side as u16));
        let passed: HashSet<_> =
            at_wire.clone().map(|packet| (packet.at.0, packet.psn, packet.to.1, packet.opcode.0)).collect();
        expect(&mut expected, &sent, |packet| {
            passed.contains(&((packet.at + DELAY).0, packet.psn, packet.to.1, packet.opcode.0))
        });
        for packet in at_wire {
            let nak = matches!(packet.syndrome, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_)));
            expected.entry(packet.to).or_default().naks += u64::from(nak);
        }
        let mut used = HashSet::new();
        for packet in sent.iter().filter(|packet| packet.is_request()) {
            recorded += u64::from(!used.insert((packet.to, packet.psn)));
            used.extend((packet.psn..packet.psn + packet.span).map(|psn| (packet.to, psn)));
        }
    }
    let counters = world.node::<Switch<Recorder>>(wire).functions[0].forward.counters();
    let mut outcome = Outcome {
        expected,
        counted: BTreeMap::new(),
        reordered: 0,
        samples: 0,
        longest: 0,
        repeated: [(0..2).map(|at| host(at).nic.counters().retransmitted).sum(), recorded],
    };
    for qp in counters.qps.iter() {
        let get = |name: &str| qp.reported().find(|(known, _)| *known == name).unwrap().1;
        let counts = Counts {
            gaps: get("psn_gaps"),
            retransmitted: get("retransmitted") + get("reordered"),
            naks: get("nak_sequence") + get("nak_rnr"),
        };
        outcome.counted.insert((qp.host, qp.qpn), counts);
        outcome.reordered += get("reordered");
        outcome.samples += get("rtt_samples");
        outcome.longest = outcome.longest.max(get("rtt_max_ns"));
    }
    outcome
}

/// Returns the first difference.
fn fault(outcome: &Outcome) -> Option<String> {
    let differs = outcome.expected.iter().find(|(qp, counts)| outcome.counted.get(*qp) != Some(*counts));
    if let Some((qp, counts)) = differs {
        return Some(format!("{qp:?}: expected {counts:?}, counted {:?}", outcome.counted.get(qp)));
    }
    // Queue pairs that use the same PSNs at the same time cannot be distinguished.
    if outcome.samples == 0 {
        return None;
    }
    // A round trip takes at least this time; after the loss of an acknowledgement, the next one ends it.
    let least = 4 * DELAY.0;
    (!(least..1_000_000).contains(&outcome.longest))
        .then(|| format!("invalid round trip of {} ns", outcome.longest))
}

const SEEDS: u64 = 60;

#[test]
fn counts_equal_those_of_the_hosts_and_links() {
    let mut total = Counts::default();
    let (mut samples, mut reordered) = (0, 0);
    for seed in 1..=SEEDS {
        let outcome = run(seed, None);
        assert_eq!(
            outcome.repeated[0], outcome.repeated[1],
            "seed {seed}: the recorder did not record all transmissions"
        );
        if let Some(fault) = fault(&outcome) {
            panic!("seed {seed}: {fault}");
        }
        for counts in outcome.counted.values() {
            total.gaps += counts.gaps;
            total.retransmitted += counts.retransmitted;
            total.naks += counts.naks;
        }
        samples += outcome.samples;
        reordered += outcome.reordered;
    }
    assert!(total.gaps > 500 && total.retransmitted > 1000 && total.naks > 100, "{total:?}");
    assert!(samples > 100 && reordered * 20 < total.retransmitted, "{samples}, {reordered} of {total:?}");
}

#[test]
fn planted_bugs_are_found() {
    if cfg!(debug_assertions) {
        for bug in Bug::ALL {
            assert!((1..=SEEDS).any(|seed| fault(&run(seed, Some(bug))).is_some()), "{bug:?} was not found");
        }
    }
}
