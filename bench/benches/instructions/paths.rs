//! The hot paths. Each is prepared, which is not counted, and then run some hundreds or thousands of times,
//! on frames that were made in advance.

use crate::process::{self, Service};
use ::onepipe::Timestamp;
use bench::onepipe::load::{self as onepipe, Kind, Ports};
use bench::swordbox::load::{Load, Verb};
use p4ce::{Command, Group, P4ce};
use pktgen::profile::{HostAddress, RemoteMemory};
use pktgen::{Choice, Pktgen, Profile, Rate, Stream};
use rnic::{Data, Operation, Remote, SendRequest, Sge, Status};
use rocev2::ethernet::MacAddr;
use rocev2::rewrite::Rewriter;
use rocev2::{Class, Layout, Opcode, Packet, Psn, Qpn, classify};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::rc::Rc;
use switch::drop::FaultSet;
use switch::forward::config::ForwardingMode;
use switch::forward::{self, Forward};
use switch::impair::{self, Action, Impair, Match, Operations, Rule};
use switch::memory::{MemoryFrame, run_frame};
use switch::{Frame as _, Full, Function, Nanos, Output, PortId, Probability, Verdict};
use understudy_tests::nics::{VA, nic};
use understudy_tests::packets;

/// A path, and its preparation.
pub(crate) struct Path {
    /// Name of the path in the baseline
    pub(crate) name: &'static str,
    pub(crate) prepare: fn() -> Prepared,
}

/// A path that is ready to run.
pub(crate) struct Prepared {
    /// The work of one run, which gets the number of the run
    pub(crate) work: Box<dyn FnMut(usize)>,
    /// Number of runs
    pub(crate) times: usize,
    /// Number by which the count is divided
    pub(crate) units: usize,
    /// Checks that the work to be counted was done
    pub(crate) check: Box<dyn FnOnce() -> Result<(), String>>,
}

/// Paths of a message of each service of 1Pipe
const BEST_EFFORT: [&str; 2] = [
    "1Pipe: message of 64 B out of a process, and its share of an ACK",
    "1Pipe: message of 64 B into a process, and its share of an ACK",
];
const RELIABLE: [&str; 2] = [
    "1Pipe: reliable message of 64 B out of a process, and its share of an ACK",
    "1Pipe: reliable message of 64 B into a process, and its share of an ACK",
];

/// Returns the instructions of a reliable message, in those of a best-effort one.
pub(crate) fn reliable_ratio(counts: &BTreeMap<String, f64>) -> f64 {
    let sum = |names: [&str; 2]| names.iter().map(|name| counts[*name]).sum::<f64>();
    sum(RELIABLE) / sum(BEST_EFFORT)
}

/// All paths
pub(crate) const ALL: &[Path] = &[
    Path { name: "forward: WRITE of 64 B", prepare: || forward(false, &write_frames(64)) },
    Path {
        name: "forward: ACK",
        prepare: || forward(false, &vec![packets::packet(Opcode::RC_ACKNOWLEDGE, false, 0, &[]); FRAMES]),
    },
    Path { name: "forward, 1,024 queue pairs counted: WRITE of 64 B", prepare: || counting(false, false) },
    Path { name: "forward, 1,024 queue pairs counted: ACK", prepare: || counting(false, true) },
    Path { name: "forward, health of 1,024 queue pairs: WRITE of 64 B", prepare: || counting(true, false) },
    Path { name: "forward, health of 1,024 queue pairs: ACK", prepare: || counting(true, true) },
    Path { name: "forward, ICRC verified: the table of packets", prepare: table },
    Path { name: "ICRC of 64 B", prepare: || icrc(64) },
    Path { name: "ICRC of 1 KB", prepare: || icrc(1024) },
    Path { name: "impair: 1 rule, WRITE of 64 B", prepare: || impairing(1) },
    Path { name: "impair: 10 rules, WRITE of 64 B", prepare: || impairing(10) },
    Path { name: "p4ce: WRITE of 64 B to 1 replica", prepare: || scatter(1) },
    Path { name: "p4ce: WRITE of 64 B to 4 replicas", prepare: || scatter(4) },
    Path { name: "p4ce: ACK absorbed", prepare: || gather(2) },
    Path { name: "p4ce: ACK that makes the quorum", prepare: || gather(1) },
    Path { name: "swordbox: WRITE on a shared connection, and its ACK", prepare: || swordbox(Verb::Write) },
    Path { name: "swordbox: CAS that becomes a WRITE, and its answer", prepare: || swordbox(Verb::Cas) },
    Path { name: "1Pipe: message through a chip", prepare: || pipe(Kind::Messages, 1, false) },
    Path { name: "1Pipe: beacon of one of 64 links at a host", prepare: || pipe(Kind::Beacons, 64, false) },
    Path {
        name: "1Pipe: beacon of one of 64 links with a standby at a host",
        prepare: || pipe(Kind::Beacons, 64, true),
    },
    Path { name: BEST_EFFORT[0], prepare: || process::send_path(Service::BestEffort) },
    Path { name: BEST_EFFORT[1], prepare: || process::receive_path(Service::BestEffort) },
    Path { name: RELIABLE[0], prepare: || process::send_path(Service::Reliable) },
    Path { name: RELIABLE[1], prepare: || process::receive_path(Service::Reliable) },
    Path { name: "1Pipe: message of 64 B through the host library's polling thread", prepare: process::poll },
    Path { name: "1Pipe: message of 64 B for the application's thread", prepare: process::application },
    Path { name: "pktgen: making a WRITE of 64 B, 1 queue pair", prepare: || make(1) },
    Path { name: "pktgen: making a WRITE of 64 B, 1,000 queue pairs", prepare: || make(1_000) },
    Path { name: "pktgen: checking a WRITE of 64 B, 1 queue pair", prepare: || check(1) },
    Path { name: "pktgen: checking a WRITE of 64 B, 1,000 queue pairs", prepare: || check(1_000) },
    Path { name: "rnic: WRITE of 64 B and its ACK, 1 queue pair", prepare: || exchange(1) },
    Path { name: "rnic: WRITE of 64 B and its ACK, 1,000 queue pairs", prepare: || exchange(1_000) },
];

/// Number of frames of a path, and of the groups or queue pairs to which they belong
const FRAMES: usize = 1024;
const A: PortId = PortId(0);
const B: PortId = PortId(1);

/// An output with a pool of buffers. It allocates nothing once it has been filled.
pub(crate) struct Pool {
    pub(crate) free: Vec<MemoryFrame>,
    pub(crate) sent: Vec<MemoryFrame>,
}

impl Pool {
    /// Returns a pool of `buffers` buffers.
    pub(crate) fn new(buffers: usize) -> Self {
        let buffer = || MemoryFrame::new(vec![0; 2048]);
        Self { free: (0..buffers).map(|_| buffer()).collect(), sent: Vec::with_capacity(buffers) }
    }
}

impl Output for Pool {
    type Frame = MemoryFrame;

    #[inline]
    fn make(&mut self, len: usize) -> Result<MemoryFrame, Full> {
        let mut frame = self.free.pop().ok_or(Full)?;
        frame.resize(len).expect("vectors grow");
        frame.bytes_mut().fill(0);
        Ok(frame)
    }

    #[inline]
    fn make_from(&mut self, bytes: &[u8]) -> Result<MemoryFrame, Full> {
        let mut frame = self.free.pop().ok_or(Full)?;
        frame.resize(bytes.len()).expect("vectors grow");
        frame.bytes_mut().copy_from_slice(bytes);
        Ok(frame)
    }

    #[inline]
    fn room(&self, _port: PortId) -> usize {
        self.free.len()
    }

    #[inline]
    fn copy(&mut self, frame: &MemoryFrame) -> Result<MemoryFrame, Full> {
        self.make_from(frame.bytes())
    }

    #[inline]
    fn send(&mut self, frame: MemoryFrame, _port: PortId) -> Result<(), Full> {
        self.sent.push(frame);
        Ok(())
    }
}

/// Returns WRITEs to one queue pair after another.
fn write_frames(payload: usize) -> Vec<Vec<u8>> {
    (0..FRAMES as u32).map(|n| bench::traffic::write_only(n, payload)).collect()
}

fn layout(frame: &[u8]) -> Layout {
    match classify(frame) {
        Class::Roce(layout) => layout,
        other => unreachable!("the frame is not a RoCEv2 packet: {other:?}"),
    }
}

/// Returns a path in which each run handles one frame. The check counts the verdicts that were as expected.
fn on_frames<F: Function + 'static>(
    mut function: F,
    frames: &[Vec<u8>],
    buffers: usize,
    expected: fn(Verdict) -> bool,
) -> Prepared {
    let mut frames: Vec<_> = frames.iter().map(|frame| MemoryFrame::new(frame.clone())).collect();
    let times = frames.len();
    let mut out = Pool::new(buffers);
    let as_expected = Rc::new(RefCell::new(0));
    let counted = Rc::clone(&as_expected);
    let work = move |n: usize| {
        let verdict = function.on_frame(&mut frames[n], A, Nanos(1), &mut out);
        *counted.borrow_mut() += usize::from(expected(verdict));
    };
    let check = move || {
        let as_expected = *as_expected.borrow();
        if as_expected == times {
            Ok(())
        } else {
            Err(format!("only {as_expected} of {times} frames had the expected verdict"))
        }
    };
    Prepared { work: Box::new(work), times, units: times, check: Box::new(check) }
}

fn forwards(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Forward(_))
}

fn pair(verify_icrc: bool) -> Forward {
    Forward::new(&forward::Config {
        ports: 2,
        mode: ForwardingMode::Pairs(vec![(A, B)]),
        drop: FaultSet::NONE,
        verify_icrc,
        verify_udp_checksum: false,
        counted_qps: 0,
        health: false,
    })
}

fn forward(verify_icrc: bool, frames: &[Vec<u8>]) -> Prepared {
    on_frames(pair(verify_icrc), frames, 0, forwards)
}

/// Handles a WRITE of each connection, or its acknowledgement, when round trips have shown which queue pairs belong
/// together.
fn counting(health: bool, acks: bool) -> Prepared {
    const TURNS: u32 = 8;
    let mode = ForwardingMode::Pairs(vec![(A, B)]);
    let counted_qps = 2 * FRAMES;
    let config = forward::Config { mode, counted_qps, health, ..forward::Config::bridge(2, 1) };
    let mut function = Forward::new(&config);
    let connections = |turn| bench::health::connections(FRAMES as u32, turn);
    // Each WRITE begins a round trip.
    let mut now = Nanos::ZERO;
    for frame in (0..TURNS).flat_map(connections).flatten() {
        now = now + Nanos::from_micros(10);
        run_frame(&mut function, &frame, A, now);
    }
    let (writes, acknowledgements): (Vec<_>, Vec<_>) =
        connections(TURNS).map(|[write, ack]| (write, ack)).unzip();
    if acks {
        for write in &writes {
            run_frame(&mut function, write, A, Nanos(1));
        }
    }
    let counters = function.counters();
    let prepared = on_frames(function, if acks { &acknowledgements } else { &writes }, 0, forwards);
    let check = move || {
        (prepared.check)()?;
        let faults: u64 = counters.health.iter().map(switch::forward::health::Health::faults).sum();
        if faults == 0 { Ok(()) } else { Err(format!("{faults} faults")) }
    };
    Prepared { check: Box::new(check), ..prepared }
}

fn table() -> Prepared {
    let frames: Vec<_> = packets::table().into_iter().map(|row| row.frame).collect();
    forward(true, &frames)
}

fn icrc(payload: usize) -> Prepared {
    let frames = write_frames(payload);
    let layouts: Vec<_> = frames.iter().map(|frame| layout(frame)).collect();
    let work = move |n: usize| assert!(Packet::new(black_box(&frames[n]), layouts[n]).verify_icrc());
    Prepared { work: Box::new(work), times: FRAMES, units: FRAMES, check: Box::new(|| Ok(())) }
}

/// Rules that match each packet, but have reached their limit.
fn impairing(rules: usize) -> Prepared {
    let rule = |number: usize| Rule {
        name: format!("rule {number}"),
        matching: Match { operations: Some(Operations::default()), ..Match::default() },
        share: Probability::ALWAYS,
        skip: 0,
        times: u64::MAX,
        action: Action::Drop,
    };
    let config = impair::Config {
        ports: 2,
        pairs: vec![(A, B)],
        seed: 1,
        held: 64,
        frame_len: 1526,
        flows: 4096,
        counted_qps: 0,
        health: false,
        rules: (0..rules).map(rule).collect(),
    };
    on_frames(Impair::new(&config, 0), &write_frames(64), 0, forwards)
}

/// Returns a function with groups, each of which has handled its first WRITE.
fn groups(replicas: u32) -> (P4ce, Pool) {
    let mut function = P4ce::new(p4ce::Config {
        forward: forward::Config::bridge(1, 16),
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        addresses: vec![[198, 18, 0, 1].into()],
        groups: FRAMES,
        queue_pairs: 32768,
        workers: 1,
        silent_after: Nanos::ZERO,
        bug: None,
    });
    let mut out = Pool::new(FRAMES * replicas as usize);
    for (group, write) in bench::p4ce::groups(FRAMES as u32, replicas, 1).zip(write_frames(64)) {
        function.on_command(Command::Open(Group::new(group).expect("a valid group")), Nanos::ZERO);
        function.poll_event();
        let verdict = function.on_frame(&mut MemoryFrame::new(write), A, Nanos::ZERO, &mut out);
        assert!(forwards(verdict), "the WRITE was not forwarded");
    }
    (function, Pool::new(FRAMES * replicas as usize))
}

/// Handles each group's second WRITE.
fn scatter(replicas: u32) -> Prepared {
    let (mut function, mut out) = groups(replicas);
    let second = |n: usize, mut frame: Vec<u8>| {
        let layout = layout(&frame);
        let mut rewriter = Rewriter::new(&mut frame, layout);
        rewriter.set_psn(Psn::new(n as u32 + 1));
        rewriter.finish();
        MemoryFrame::new(frame)
    };
    let mut frames: Vec<_> = write_frames(64).into_iter().enumerate().map(|(n, f)| second(n, f)).collect();
    let counters = function.counters();
    let before = counters.requests.get();
    let work = move |n: usize| {
        black_box(function.on_frame(&mut frames[n], A, Nanos(1), &mut out));
    };
    let check = move || {
        let after = counters.requests.get() - before;
        if after == FRAMES as u64 { Ok(()) } else { Err(format!("only {after} WRITEs were scattered")) }
    };
    Prepared { work: Box::new(work), times: FRAMES, units: FRAMES, check: Box::new(check) }
}

/// Handles the first acknowledgement of each group, which completes its quorum or does not.
fn gather(replicas: u32) -> Prepared {
    let (function, _) = groups(replicas);
    let frames: Vec<_> = (0..FRAMES as u32).map(|n| bench::p4ce::acknowledgement(n, 0)).collect();
    let expected = if replicas == 1 { forwards } else { |verdict| !forwards(verdict) };
    on_frames(function, &frames, 0, expected)
}

/// Handles requests and the server's responses, in the second round of the traffic.
fn swordbox(verb: Verb) -> Prepared {
    let load = Load { verb, connections: 1024, requests: 1, lines: 64, covered: 1 };
    let (frames, mut replay) = load.make();
    let mut out = Pool::new(16);
    let copies = |times: usize| -> Vec<_> {
        let all = frames.iter().cycle().take(times * frames.len());
        // Frames have spare capacity, as packet buffers do: a response may be longer than the packet from
        // which it is made.
        let copy = |frame: &Vec<u8>| {
            let mut bytes = Vec::with_capacity(2048);
            bytes.extend_from_slice(frame);
            MemoryFrame::new(bytes)
        };
        all.map(copy).collect()
    };
    for frame in &mut copies(1) {
        replay.on_frame(frame, A, Nanos::ZERO, &mut out);
    }
    let mut second = copies(1);
    let (watch, times) = (replay.watch(), second.len());
    let work = move |n: usize| {
        black_box(replay.on_frame(&mut second[n], A, Nanos(1), &mut out));
    };
    let check = move || {
        let tally = watch.tally();
        let operations = load.operations() as u64;
        if tally.remapped == operations && tally.wrong == 0 { Ok(()) } else { Err(format!("{tally:?}")) }
    };
    Prepared { work: Box::new(work), times, units: load.operations(), check: Box::new(check) }
}

/// Handles messages or beacons, and sends the function's own beacons when they are due.
fn pipe(kind: Kind, links: u16, standby: bool) -> Prepared {
    let load = onepipe::Load { kind, links, ports: Ports::One, payload: 64, standby };
    let mut function = load.make(1).remove(0);
    let counters = [function.counters()];
    let mut frames: Vec<_> = load.captures().remove(0).into_iter().map(MemoryFrame::new).collect();
    let times = frames.len();
    let mut out = Pool::new(times + 2 * usize::from(links));
    let work = move |n: usize| {
        let now = Nanos(n as u64 * 100);
        black_box(function.on_frame(&mut frames[n], A, now, &mut out));
        if function.next_timer().is_some_and(|due| due <= now) {
            function.on_timer(now, &mut out);
        }
    };
    let check = move || load.check(&counters, times as u64);
    Prepared { work: Box::new(work), times, units: times, check: Box::new(check) }
}

/// Returns a generator as in `bench pktgen`: WRITEs of 64 bytes with timestamps, as fast as possible, to
/// 1,024 slots in memory.
fn generator(qps: u32) -> Pktgen {
    let host = |n: u8| HostAddress { mac: MacAddr([2, 0, 0, 0, 0, n]), ip: [10, 0, 0, n].into() };
    let stream = Stream {
        name: "writes".into(),
        verb: pktgen::Verb::Write,
        src: host(1),
        dst: host(2),
        first_qpn: Qpn::new(0x100),
        qps,
        pick: Choice::RoundRobin,
        sizes: vec![64],
        mtu: 1024,
        memory: RemoteMemory { va: 0x7f00_0000_0000, rkey: 0x1234, slots: 1024, choice: Choice::RoundRobin },
        first_psn: None,
        rate: Rate::Max,
        burst: None,
        packets: None,
        ack_every: 1,
        outstanding: None,
        timeout: Nanos::from_millis(1),
        stamp: true,
        malformed: Probability::NEVER,
    };
    let profile = Profile {
        seed: 1,
        send: A,
        receive: Some(A),
        respond: false,
        duration: None,
        drain: Nanos::from_millis(1),
        catch_up: Nanos::from_millis(1),
        window: 1024,
        queued: 1536,
        epoch: Timestamp::new(1),
        streams: vec![stream],
    };
    let mut pktgen = Pktgen::new(&profile).expect("a valid profile");
    pktgen.on_command(pktgen::Command::Begin { at: Nanos(1) }, Nanos(1));
    pktgen
}

/// Runs a worker's turns, each with a burst of packets at its own time.
fn make(qps: u32) -> Prepared {
    let mut pktgen = generator(qps);
    let counters = pktgen.counters();
    let mut out = Pool::new(1 << 15);
    // One turn in advance, which shows how many packets a turn has
    pktgen.on_timer(Nanos(2), &mut out);
    let burst = out.sent.len();
    let times = (1 << 14) / burst;
    let work = move |n: usize| pktgen.on_timer(Nanos(3 + n as u64), &mut out);
    let check = move || {
        let made = counters.streams[0].sent.frames.get() as usize;
        if made == burst * (times + 1) {
            Ok(())
        } else {
            Err(format!("{made} packets were made, expected another number"))
        }
    };
    Prepared { work: Box::new(work), times, units: times * burst, check: Box::new(check) }
}

/// Handles packets of a generator that come back to it.
fn check(qps: u32) -> Prepared {
    let mut pktgen = generator(qps);
    let counters = pktgen.counters();
    let mut out = Pool::new(1 << 14);
    let mut now = Nanos(1);
    while out.sent.len() < FRAMES * 8 {
        now = now + Nanos(1_000);
        pktgen.on_timer(now, &mut out);
    }
    let mut frames = core::mem::take(&mut out.sent);
    let times = frames.len();
    let work = move |n: usize| {
        black_box(pktgen.on_frame(&mut frames[n], A, now + Nanos(n as u64), &mut out));
    };
    let check = move || {
        let received = counters.streams[0].received.frames.get() as usize;
        if received == times {
            Ok(())
        } else {
            Err(format!("only {received} of {times} packets were received"))
        }
    };
    Prepared { work: Box::new(work), times, units: times, check: Box::new(check) }
}

/// Runs a WRITE on each queue pair in turn: its packet, its acknowledgement and its completion.
fn exchange(count: usize) -> Prepared {
    let (mut left, qpns, cq, mr) = nic(0, count);
    let (mut as_expected, _, _, remote) = nic(1, count);
    let mut frame = Vec::with_capacity(4096);
    let work = move |n: usize| {
        let now = Nanos(1 + 500 * n as u64);
        let write = Operation::Write(Remote { va: VA, rkey: remote.0 });
        let data = Data::Memory(Sge { mr, va: VA, len: 64 });
        left.post_send(qpns[n % count], SendRequest::new(0, write, data)).expect("room in the send queue");
        assert!(left.poll_transmit(now, &mut frame));
        as_expected.on_frame(&frame, now);
        assert!(as_expected.poll_transmit(now, &mut frame));
        left.on_frame(&frame, now);
        while left.next_timer().is_some_and(|at| at <= now) {
            left.on_timer(now);
        }
        assert!(left.poll_cq(cq).is_some_and(|done| done.status == Status::Success));
    };
    Prepared { work: Box::new(work), times: 4 * FRAMES, units: 4 * FRAMES, check: Box::new(|| Ok(())) }
}
