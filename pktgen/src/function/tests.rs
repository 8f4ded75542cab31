//! Generator, link and receiver in virtual time: what the receiver counts is compared with what was done to
//! the packets.

use super::*;
use crate::pace::{Rate, Unit};
use crate::profile::{Choice, HostAddress, RemoteMemory, Stream, Verb};
use core::net::IpAddr;
use onepipe::Timestamp;
use rocev2::ethernet::MacAddr;
use rocev2::{Fault, Opcode, Packet, Psn, Qpn};
use std::collections::{HashMap, HashSet};
use switch::Probability;
use switch::impair::{Action, Field, Match, Rule};
use switch::memory::{FrameCollector, MemoryFrame};

mod absence;
mod rates;
mod regressions;
mod responses;
mod workers;
mod world;

use world::{DELAY, World};

const A: PortId = PortId(0);
const B: PortId = PortId(1);

fn host(n: u8, v6: bool) -> HostAddress {
    let ip: IpAddr = if v6 { format!("fd00::{n}") } else { format!("10.0.0.{n}") }.parse().unwrap();
    HostAddress { mac: MacAddr([2, 0, 0, 0, 0, n]), ip }
}

pub(crate) fn stream(verb: Verb, first_qpn: u32, qps: u32) -> Stream {
    Stream {
        name: format!("{} {first_qpn:#x}", verb.name()),
        verb,
        src: host(1, false),
        dst: host(2, false),
        first_qpn: Qpn::new(first_qpn),
        qps,
        pick: Choice::Uniform,
        sizes: if verb.has_payload() || verb == Verb::Read { vec![64] } else { Vec::new() },
        mtu: 1024,
        memory: RemoteMemory {
            va: 0x7f00_0000_0000,
            rkey: 0x1234,
            slots: 16,
            choice: Choice::Zipf { thousandths: 990 },
        },
        first_psn: None,
        rate: Rate::Steady { unit: Unit::Packets, per_second: 5_000_000 },
        burst: Some(8),
        packets: Some(2_000),
        ack_every: 1,
        outstanding: None,
        timeout: Nanos::from_micros(100),
        stamp: verb.has_payload(),
        malformed: Probability::NEVER,
    }
}

fn profile(seed: u64, streams: Vec<Stream>) -> Profile {
    Profile {
        seed,
        send: A,
        receive: Some(B),
        respond: false,
        duration: None,
        drain: Nanos::from_millis(5),
        catch_up: Nanos::from_millis(10),
        window: 1024,
        queued: 1024,
        epoch: Timestamp::new(1 << 40),
        streams,
    }
}

/// Returns a stream of each verb, on queue pairs of their own.
fn mix() -> Vec<Stream> {
    let verbs = [
        Verb::Write,
        Verb::Send,
        Verb::Read,
        Verb::CompareSwap,
        Verb::FetchAdd,
        Verb::Ack { coalesce: 1 },
        Verb::Ack { coalesce: 5 },
        Verb::OnePipeMessage,
        Verb::OnePipeBeacon,
    ];
    let mut streams: Vec<_> =
        verbs.into_iter().enumerate().map(|(n, verb)| stream(verb, 0x100 * (n as u32 + 1), 7)).collect();
    // WRITEs of one, two and three packets, across the wrap of PSNs; READs that take three PSNs each; IPv6
    streams[0].sizes = vec![8, 1500, 3000];
    streams[0].first_psn = Some(Psn::new(0xff_ff80));
    streams[1].sizes = vec![13, 2047];
    (streams[1].src, streams[1].dst) = (host(1, true), host(2, true));
    streams[2].sizes = vec![2500];
    streams
}

/// Returns a generator that has begun to send.
fn begin(profile: &Profile, now: Nanos) -> Pktgen {
    let mut pktgen = Pktgen::new(profile).unwrap();
    assert_eq!(pktgen.next_timer(), None);
    pktgen.on_command(Command::Begin { at: now }, now);
    pktgen
}

fn rule(name: &str, share: f64, action: Action) -> Rule {
    Rule {
        name: name.into(),
        matching: Match::default(),
        share: Probability::new(share).unwrap(),
        skip: 0,
        times: u64::MAX,
        action,
    }
}

/// Expected counters of one stream, computed from all received packets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StreamTruth {
    received: u64,
    duplicates: u64,
    late: u64,
}

/// Returns what arrived at each stream, and how many packets were damaged.
fn truth(profile: &Profile, arrived: &[Vec<u8>]) -> (Vec<StreamTruth>, u64) {
    let mut truths = vec![StreamTruth::default(); profile.streams.len()];
    let (mut highest, mut seen, mut damaged) = (HashMap::new(), HashSet::new(), 0);
    for frame in arrived {
        let Some(packet) = Packet::parse(frame).filter(Packet::verify_icrc) else {
            damaged += 1;
            continue;
        };
        let qpn = packet.bth().dest_qp();
        let n = profile
            .streams
            .iter()
            .position(|s| (s.first_qpn.get()..s.first_qpn.get() + s.qps).contains(&qpn.get()));
        let (n, psn) = (n.unwrap(), packet.bth().psn());
        let parts = Division::new(profile, 1).parts(profile, 0);
        let first_psns = crate::sender::FirstPsns::new(profile.seed, &parts[n]);
        let first = first_psns.of(qpn.get() - profile.streams[n].first_qpn.get());
        let offset = psn.sub(first.get()).get();
        if !seen.insert((qpn, offset)) {
            truths[n].duplicates += 1;
            continue;
        }
        truths[n].received += 1;
        let highest = highest.entry(qpn).or_insert(offset);
        truths[n].late += u64::from(offset < *highest);
        *highest = offset.max(*highest);
    }
    (truths, damaged)
}

/// Checks what the receiver counted of streams of `packets` packets each against what arrived. Returns the latter.
fn assert_true(world: &World, profile: &Profile, packets: u64, what: &str) -> (Vec<StreamTruth>, u64) {
    assert_adds_up(world, profile);
    let (truths, damaged) = truth(profile, &world.arrived_at_b);
    let counters = world.counters();
    for ((stream, truth), c) in profile.streams.iter().zip(&truths).zip(&counters.streams) {
        let counted = StreamTruth {
            received: c.received.frames.get(),
            duplicates: c.duplicates.get(),
            late: c.late.get(),
        };
        assert_eq!(counted, *truth, "{}, {what}", stream.name);
        assert_eq!(c.lost() + c.unseen(), packets - truth.received, "{}, {what}", stream.name);
        assert_eq!((c.stale.get(), c.unexpected.get()), (0, 0), "{}, {what}", stream.name);
    }
    let faults: u64 = counters.faults.iter().map(switch::counters::Counter::get).sum();
    assert_eq!((faults, counters.foreign.get()), (damaged, 0), "{what}");
    (truths, damaged)
}

fn assert_adds_up(world: &World, profile: &Profile) {
    let counters = world.counters();
    for (stream, c) in profile.streams.iter().zip(&counters.streams) {
        let sent = c.sent.frames.get();
        assert_eq!(sent, c.received.frames.get() + c.lost() + c.unseen(), "{}", stream.name);
        // Counted by queue pair, from the windows
        assert_eq!(c.behind.get(), c.unseen(), "{}", stream.name);
        // Counted by queue pair, from the rings
        assert_eq!(
            c.waiting.get(),
            if stream.outstanding.is_some() { c.under_way() } else { 0 },
            "{}",
            stream.name
        );
    }
    let sum =
        |count: fn(&crate::counters::StreamCounters) -> u64| counters.streams.iter().map(count).sum::<u64>();
    let faults: u64 = counters.faults.iter().map(switch::counters::Counter::get).sum();
    let at_b = sum(|c| c.received.frames.get() + c.duplicates.get() + c.stale.get() + c.unexpected.get());
    let all = at_b + faults + counters.foreign.get() + counters.other.get();
    assert_eq!(all, world.arrived_at_b.len() as u64, "each received frame is counted once");
}

#[test]
fn a_lossless_link_delivers_all_packets_in_order() {
    let profile = profile(1, mix());
    let mut world = World::new(&profile, Vec::new());
    world.run();
    assert_adds_up(&world, &profile);
    for (stream, c) in profile.streams.iter().zip(&world.counters().streams) {
        assert_eq!((c.sent.frames.get(), c.received.frames.get()), (2_000, 2_000), "{}", stream.name);
        assert_eq!(c.sent.bytes.get(), c.received.bytes.get());
        let wrong = [c.skipped.get(), c.late.get(), c.duplicates.get(), c.stale.get(), c.unexpected.get()];
        assert_eq!(wrong, [0; 5], "{}", stream.name);
        // A turn passes between the link and the next reading of the clock, and a frame may wait for others.
        for (longest, _) in c.latency.buckets() {
            assert!(longest >= DELAY && longest < DELAY + Nanos(200), "{longest:?}");
        }
        let stamped = if stream.stamp { 2_000 } else { 0 };
        // The last packet of some messages is too short for a time stamp.
        assert!(c.latency.count() <= stamped && c.latency.count() * 2 >= stamped, "{}", stream.name);
    }
    assert!(world.arrived_at_b.iter().all(|frame| Packet::parse(frame).unwrap().verify_icrc()));
    let opcodes: HashSet<_> =
        world.arrived_at_b.iter().map(|frame| Packet::parse(frame).unwrap().layout().opcode()).collect();
    assert_eq!(opcodes.len(), 12, "{opcodes:?}");
}

#[test]
fn the_receiver_counts_what_was_done_to_its_packets() {
    let (mut lost, mut late, mut twice, mut broken) = (0, 0, 0, 0);
    for seed in 0..60 {
        let mut profile = profile(seed, mix());
        for stream in &mut profile.streams {
            stream.packets = Some(300);
        }
        let share = 0.01 * (seed % 10) as f64;
        let rules = vec![
            rule("lose", share, Action::Drop),
            rule("double", share, Action::Duplicate { copies: 2 }),
            rule(
                "damage",
                share / 2.0,
                Action::Corrupt(if seed % 2 == 0 { Field::Header } else { Field::Icrc }),
            ),
            rule("swap", share, Action::Reorder { behind: 1 + seed % 20, at_most: Nanos::from_micros(200) }),
            rule("wait", share, Action::Delay { by: Nanos::from_micros(3), jitter: Nanos::from_micros(9) }),
        ];
        let mut world = World::new(&profile, rules);
        world.run();
        assert_adds_up(&world, &profile);
        let (truths, damaged) = assert_true(&world, &profile, 300, &format!("seed {seed}"));
        for (truth, c) in truths.iter().zip(&world.counters().streams) {
            (lost, late, twice) = (lost + c.lost(), late + truth.late, twice + truth.duplicates);
        }
        broken += damaged;
    }
    assert!(lost > 1000 && late > 1000 && twice > 1000 && broken > 500, "{lost} {late} {twice} {broken}");
}

#[test]
fn a_packet_behind_the_window_is_stale() {
    let mut stream = stream(Verb::Write, 0x11, 1);
    stream.packets = Some(500);
    let mut profile = profile(1, vec![stream]);
    profile.window = 64;
    let late = Rule {
        times: 3,
        ..rule("late", 1.0, Action::Delay { by: Nanos::from_micros(60), jitter: Nanos::ZERO })
    };
    let mut world = World::new(&profile, vec![late]);
    world.run();
    assert_adds_up(&world, &profile);
    let counters = world.counters();
    let c = &counters.streams[0];
    assert_eq!((c.received.frames.get(), c.stale.get(), c.lost(), c.late.get()), (497, 3, 3, 0));
}

#[test]
fn packets_of_no_stream_and_unsent_packets_are_counted_apart() {
    let profile = profile(1, vec![stream(Verb::Write, 0x11, 4)]);
    let mut world = World::new(&profile, Vec::new());
    world.run();
    // As if it still waited for packets
    world.workers[0].pktgen.state = State::Draining(NEVER);
    let frame = world.arrived_at_b.last().unwrap().clone();
    let mut see = |change: &dyn Fn(&mut rocev2::repr::Repr<'_>)| {
        let mut repr = rocev2::repr::Repr::parse(&frame).unwrap();
        change(&mut repr);
        let mut bytes = vec![0; repr.frame_len() + 64];
        let len = repr.build(&mut bytes).unwrap();
        let mut frame = MemoryFrame::new(&bytes[..len]);
        world.workers[0].pktgen.on_frame(&mut frame, B, world.now, &mut FrameCollector::with_room(9));
        let c = world.counters();
        (c.foreign.get(), c.streams[0].unexpected.get(), c.streams[0].duplicates.get(), c.other.get())
    };
    assert_eq!(see(&|repr| repr.bth.set_dest_qp(Qpn::new(0x15))), (1, 0, 0, 0), "a queue pair of no stream");
    assert_eq!(see(&|repr| repr.bth.set_psn(repr.bth.psn().add(5))), (1, 1, 0, 0), "a PSN not sent yet");
    assert_eq!(
        see(&|repr| repr.bth.set_opcode(Opcode::RC_READ_REQUEST)),
        (1, 1, 0, 0),
        "an opcode that the stream does not send"
    );
    assert_eq!(see(&|_| {}), (1, 1, 1, 0), "a repeated packet");
    assert_eq!(see(&|repr| repr.udp.dst_port = 4790.into()), (1, 1, 1, 1), "not RoCEv2");
}

#[test]
fn malformed_packets_are_counted_by_fault() {
    let mut profile = profile(2, mix());
    for stream in &mut profile.streams {
        stream.malformed = Probability::percent(20);
    }
    let mut world = World::new(&profile, Vec::new());
    world.run();
    let counters = world.counters();
    let sent: u64 = counters.streams.iter().map(|c| c.malformed.frames.get()).sum();
    let found: u64 = counters.faults.iter().map(switch::counters::Counter::get).sum();
    assert!(sent > 2_000 && found == sent, "{found} of {sent}");
    let kinds = Fault::ALL.into_iter().filter(|fault| counters.faults[*fault as usize].get() > 0);
    assert_eq!(kinds.count(), 11, "all but a wrong UDP checksum and an oversized payload");
    for c in &counters.streams {
        assert_eq!(
            (c.sent.frames.get(), c.received.frames.get()),
            (2_000, 2_000),
            "malformed packets take no PSN"
        );
    }
}

#[test]
fn steady_rates_are_met() {
    for (unit, per_second, ms) in [
        (Unit::Packets, 10_000, 1_000),
        (Unit::Packets, 3_333_333, 20),
        (Unit::Packets, 20_000_000, 10),
        (Unit::Bits, 100_000_000, 1_000),
        (Unit::Bits, 9_999_999_999, 50),
    ] {
        let mut stream = stream(Verb::Write, 0x10, 10);
        stream.sizes = vec![64, 700, 3000];
        stream.rate = Rate::Steady { unit, per_second };
        stream.packets = None;
        stream.burst = Some(4);
        let mut profile = profile(1, vec![stream.clone()]);
        profile.receive = None;
        profile.duration = Some(Nanos::from_millis(ms));
        let (mut now, mut turn) = (Nanos(99), 0);
        let mut pktgen = begin(&profile, now);
        while let Some(next) = pktgen.next_timer() {
            turn += 1;
            now = now.max(next) + Nanos(turn * 7919 % 300);
            pktgen.on_timer(now, &mut FrameCollector::with_room(512));
        }
        let c = &pktgen.counters.streams[0];
        let (frames, bytes) = c.sent.get();
        let sent = if unit == Unit::Bits { (bytes + 24 * frames) * 8 } else { frames };
        let error = sent as f64 / (per_second as f64 * ms as f64 / 1e3) - 1.0;
        assert!(error.abs() < 0.005, "{per_second} {unit:?}: {sent}, {error}");
        assert_eq!(c.forfeited.get(), 0);
        assert!(c.sending_ns.get() - ms * 1_000_000 < 1_000, "{} ns", c.sending_ns.get());
        // All that came due by the end was sent, but for a part of a burst; in bits, a burst is as long as
        // its packets.
        let due = stream.rate.earned(Nanos::from_millis(ms)) as u64;
        let burst = if unit == Unit::Bits { 4 * 8 * 1200 } else { 4 };
        assert!(due.abs_diff(sent) <= burst, "{per_second} {unit:?}: {sent} of {due}");
    }
}

#[test]
fn a_port_that_takes_too_little_forfeits_packets() {
    let mut stream = stream(Verb::Write, 0x10, 1);
    stream.packets = None;
    let mut profile = profile(1, vec![stream]);
    profile.duration = Some(Nanos::from_millis(50));
    let mut pktgen = begin(&profile, Nanos::ZERO);
    let mut now = Nanos::ZERO;
    while pktgen.next_timer().is_some() && now < Nanos::from_millis(60) {
        // 10 packets every 10 us: a million a second instead of five
        pktgen.on_timer(now, &mut FrameCollector::with_room(10));
        now = now + Nanos::from_micros(10);
    }
    let c = &pktgen.counters;
    let sent = c.streams[0].sent.frames.get();
    // Sending goes on for ten more milliseconds, to catch up with packets that came due in time.
    assert!(
        sent.abs_diff(60_000) < 500 && c.streams[0].sending_ns.get().abs_diff(60_000_000) < 20_000,
        "{sent}"
    );
    let missing = 250_000 - sent;
    // What can still be caught up with is not forfeited yet.
    assert!(c.streams[0].forfeited.get() > missing - 51_000 && c.streams[0].forfeited.get() < missing);
    assert!(c.port_busy.get() > 4_000);
}

#[test]
fn equal_seeds_give_equal_runs() {
    let run = |seed: u64| {
        let profile = Profile { respond: true, ..profile(seed, mix()) };
        let mut world = World::new(&profile, vec![rule("lose", 0.05, Action::Drop)]);
        world.run();
        (world.left_a, world.arrived_at_b)
    };
    assert!(run(1) == run(1));
    assert!(run(1).0 != run(2).0);
}

#[test]
fn the_end_command_stops_sending_and_drains() {
    let mut endless = stream(Verb::Write, 0x10, 1);
    endless.packets = None;
    let profile = profile(1, vec![endless]);
    let mut pktgen = begin(&profile, Nanos::ZERO);
    let mut sent = FrameCollector::with_room(512);
    for now in [0, 10_000, 20_000] {
        pktgen.on_timer(Nanos(now), &mut sent);
    }
    assert!(!sent.frames.is_empty() && pktgen.poll_event().is_none());
    pktgen.on_command(Command::End, Nanos(21_000));
    let before = sent.frames.len();
    let mut now = Nanos(21_000);
    while let Some(next) = pktgen.next_timer() {
        now = now.max(next);
        pktgen.on_timer(now, &mut sent);
    }
    assert_eq!(
        (sent.frames.len(), pktgen.poll_event(), pktgen.poll_event()),
        (before, Some(Event::Done), None)
    );
    assert!(now.since(Nanos(21_000)) >= profile.drain, "nothing arrived, so the drain takes its full time");
    assert!(pktgen.receives_from(B) && !pktgen.receives_from(A));
}

#[test]
fn invalid_profiles_name_their_problem() {
    type Change = fn(&mut Profile);
    let cases: [(Change, &str); 18] = [
        (|p| p.streams.clear(), "there are 0 streams"),
        (
            |p| p.streams[3].first_qpn = Qpn::new(0x102),
            "streams 1 and 4 share queue pair 0x102 of 10.0.0.2: their PSNs collide; give each stream its own",
        ),
        (
            |p| {
                (p.streams[3].src, p.streams[3].dst) = (host(2, false), host(1, false));
                p.streams[3].first_qpn = Qpn::new(0x100);
            },
            "collide",
        ),
        (
            |p| p.streams[0].sizes = vec![64, 7],
            "a payload of 7 bytes has no room for a time stamp of 8 bytes",
        ),
        (|p| p.streams[2].stamp = true, "read has no payload that could carry the time"),
        (|p| p.streams[8].stamp = true, "onepipe_beacon has no payload"),
        (|p| p.streams[4].dst.ip = p.streams[4].src.ip, "source and destination are both 10.0.0.1"),
        (|p| p.streams[0].first_qpn = Qpn::new(1), "queue pairs 0x1 to 7"),
        (|p| p.streams[0].qps = 2_000_000, "stream 1: qps cannot be 2000000; use 1 to 1048576"),
        (|p| p.streams[0].dst = host(2, true), "different versions"),
        (|p| p.streams[2].sizes = vec![1, 2], "one size"),
        (|p| p.streams[0].outstanding = Some(1), "never requests an acknowledgement"),
        (|p| p.streams[5].outstanding = Some(1), "ack is not answered"),
        (|p| p.streams[3].outstanding = Some(2), "one outstanding"),
        (
            |p| p.streams[0].rate = Rate::Steady { unit: Unit::Bits, per_second: 0 },
            "the rate cannot be 0; use 1 to 1000000000000",
        ),
        (|p| p.window = 100, "window cannot be 100; use a power of two from 64 to 65536"),
        (|p| (p.respond, p.receive) = (true, None), "no port receives them"),
        (|p| (p.respond, p.streams[2].sizes) = (true, vec![1 << 20]), "packets of a response cannot be 1024"),
    ];
    for (change, words) in cases {
        let mut profile = profile(1, mix());
        profile.streams[0].ack_every = 2;
        assert_eq!(profile.check(), Ok(()));
        change(&mut profile);
        let error = profile.check().unwrap_err().to_string();
        assert!(error.contains(words), "{words:?} in {error:?}");
        assert!(error.contains("; "), "a remedy in {error:?}");
        assert!(Pktgen::new(&profile).is_err());
    }
}
