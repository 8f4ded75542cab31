//! Random packets in random order.

use crate::net::*;
use rocev2::aeth::{Credit, NakCode, Syndrome};
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Packet, Psn, Qpn};
use switch::memory::{FrameCollector, MemoryFrame};
use switch::metrics::Metrics as _;
use switch::{Function, Nanos, PortId, Rng, Verdict};
use swordbox::{Command, FailedCas, Layers, Server};

/// Random packets, timers and commands: nothing panics or overflows, and nothing is left in the end.
#[test]
#[expect(clippy::too_many_lines, reason = "a list of all kinds of packets")]
fn random_packets_cause_no_panic_and_leave_nothing_behind() {
    let wanted = std::env::var("SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    let seeds = wanted.unwrap_or(40);
    let mut sum = std::collections::BTreeMap::<&str, u64>::new();
    for seed in 0..seeds {
        let mut rng = Rng::new(seed);
        let (mut net, a, b) = two_clients(|config| {
            config.servers.push(Server::new([10, 0, 1, 3].into()));
            config.servers[0].client_owned_qps = 1 + (seed % 3) as usize;
            config.servers[0].detect_after = (seed % 4) as u32;
            config.connections = 256;
            config.held = 8;
            config.in_flight = 16;
            config.rd_atomic = 4;
            config.lines = 4;
            config.ageing = Nanos::from_millis(80);
            config.settle = Nanos::from_micros(20);
            config.dead_after = Nanos::from_millis(5);
            config.failed_cas = if seed % 2 == 0 { FailedCas::Write } else { FailedCas::Respond };
        });
        let mut ends = [a, b, new_client(3), new_client(4), new_client(5)];
        let mut out = FrameCollector::with_room(usize::MAX);
        // PSN of the last frame to each of the server's queue pairs, and unanswered requests
        let mut lasts = [0u32; 5];
        let mut open = std::collections::VecDeque::<(usize, Opcode, u32)>::new();
        let mut next_qpn = 0x300;
        for _ in 0..4000 {
            let sender = rng.below(5) as usize;
            if rng.below(200) == 0 {
                // The client has a new queue pair, sometimes with an old number.
                next_qpn += 1;
                let [client, server] = [0, 1].map(|_| rng.below(3) > 0);
                let old = ends[sender];
                ends[sender] = Client {
                    qpn: if client { next_qpn } else { old.qpn },
                    server_qpn: if server { next_qpn } else { old.server_qpn },
                    port: if rng.below(4) > 0 { 0xc000 + rng.below(999) as u16 } else { old.port },
                    psn: if rng.below(8) > 0 { rng.below(1 << 24) as u32 } else { 0xff_fff0 },
                    ..old
                };
            }
            let psn = match rng.below(8) {
                0 if rng.below(3) == 0 => {
                    ends[sender].psn.wrapping_add(rng.below(6) as u32).wrapping_sub(3) & 0xff_ffff
                }
                1 if rng.below(100) == 0 => rng.below(1 << 24) as u32,
                _ => {
                    ends[sender].psn = (ends[sender].psn + 1) & 0xff_ffff;
                    ends[sender].psn.wrapping_sub(1) & 0xff_ffff
                }
            };
            let end: Client = ends[sender];
            let at = match rng.below(12) {
                0 => u64::MAX - rng.below(70),
                1 => rng.bits(),
                _ => TABLE + 8 * rng.below(64),
            };
            let len = [0, 1, 7, 8, 64, 300, 1024][rng.below(7) as usize];
            let bytes = vec![1; len];
            let announced_len = if rng.below(10) == 0 { rng.bits() as u32 } else { len as u32 };
            let reth = Reth { va: at.into(), rkey: KEY.into(), len: announced_len.into() };
            let response =
                (lasts[sender] + rng.below(3) as u32).wrapping_sub(rng.below(3) as u32) & 0xff_ffff;
            let kind = rng.below(75);
            if kind > 40
                && let Some((sender, opcode, psn)) = open.pop_front()
            {
                let end: Client = ends[sender];
                let syndrome = Syndrome::Ack(Credit(0x1f));
                let bytes = match opcode {
                    Opcode::RC_COMPARE_SWAP => end.response(psn, syndrome, Some(rng.below(3))),
                    Opcode::RC_READ_REQUEST | Opcode::RC_FLUSH | Opcode::RC_ATOMIC_WRITE => {
                        let bth = Bth::new(Opcode::RC_READ_RESPONSE_ONLY, Qpn::new(end.qpn), Psn::new(psn));
                        frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &[0; 8])
                    }
                    _ => end.ack(psn),
                };
                net.now = net.now + Nanos(rng.below(5000));
                let mut frame = MemoryFrame::new(bytes);
                out.room = usize::MAX;
                let verdict = net.swordbox.on_frame(&mut frame, SERVERS, net.now, &mut out);
                if let Verdict::Forward(port) = verdict {
                    out.frames.push((frame, port));
                }
                net.permit();
                let reply = out.frames.drain(..).filter(|(_, port)| *port == CLIENTS);
                for (reply, _) in reply.map(|(frame, port)| (frame.into_bytes(), port)) {
                    let packet = Packet::parse(&reply).unwrap();
                    let nak = packet.aeth().is_some_and(|aeth| !matches!(aeth.kind(), Syndrome::Ack(_)));
                    let end = ends.iter_mut().find(|end| end.qpn == packet.bth().dest_qp().get());
                    if let Some(end) = end.filter(|_| nak) {
                        end.psn = packet.bth().psn().get();
                    }
                }
                continue;
            }
            let kind = if kind > 40 { kind % 10 } else { kind };
            let (frame, port) = match kind {
                0..3 => (end.cas(psn, at, rng.below(3), rng.below(3)), CLIENTS),
                8..12 => (end.write(psn, at, &bytes), CLIENTS),
                5..8 => (end.write(psn, TABLE + 8 * rng.below(4), &[1; 8]), CLIENTS),
                12..15 => {
                    let opcodes = [
                        Opcode::RC_READ_REQUEST,
                        Opcode::RC_WRITE_FIRST,
                        Opcode::RC_WRITE_MIDDLE,
                        Opcode::RC_WRITE_LAST,
                        Opcode::RC_SEND_ONLY_INVALIDATE,
                        Opcode::RC_FLUSH,
                        Opcode::RC_ATOMIC_WRITE,
                        Opcode::RC_WRITE_ONLY_IMM,
                        Opcode::RC_SEND_FIRST,
                        Opcode::UC_WRITE_FIRST,
                    ];
                    let opcode = opcodes[rng.below(10) as usize];
                    let data = !matches!(opcode, Opcode::RC_READ_REQUEST | Opcode::RC_FLUSH);
                    let bytes = if data { &bytes[..] } else { &[] };
                    (end.request(opcode, psn, |repr| repr.extended.reth = reth, bytes), CLIENTS)
                }
                15 => {
                    let mut bytes = end.write(psn, at, &bytes);
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] = rng.bits() as u8;
                    (bytes, PortId(rng.below(2) as u16))
                }
                16 if rng.below(10) == 0 => (dreq(end.ip, SERVER, end.server_qpn), CLIENTS),
                17 if rng.below(30) == 0 => (dreq(SERVER, end.ip, end.qpn), SERVERS),
                18 if rng.below(20) == 0 => {
                    ends[sender].port ^= 1;
                    (ends[sender].ack(response), SERVERS)
                }
                19 if rng.below(10) == 0 => {
                    let bth = Bth::new(Opcode::RC_SEND_ONLY, Qpn::new(end.qpn), Psn::new(psn));
                    let port = 0xc000 + rng.below(4) as u16;
                    (frame(SERVER, end.ip, port, bth, |_| {}, &[]), SERVERS)
                }
                20 => {
                    let bth = Bth::new(Opcode::CNP, Qpn::new(end.qpn), Psn::ZERO);
                    (frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &[]), SERVERS)
                }
                21 if rng.below(4) == 0 => {
                    let nak = match rng.below(12) {
                        0 => Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR),
                        1 => Syndrome::from_wire(rng.bits() as u8),
                        _ => Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR),
                    };
                    (end.response(response, nak, None), SERVERS)
                }
                22..24 => {
                    let opcodes = [
                        Opcode::RC_READ_RESPONSE_ONLY,
                        Opcode::RC_READ_RESPONSE_FIRST,
                        Opcode::RC_READ_RESPONSE_MIDDLE,
                        Opcode::RC_READ_RESPONSE_LAST,
                    ];
                    let opcode = opcodes[rng.below(4) as usize];
                    let bth = Bth::new(opcode, Qpn::new(end.qpn), Psn::new(response));
                    (frame(SERVER, end.ip, 0xd000 + end.port % 100, bth, |_| {}, &bytes), SERVERS)
                }
                24..26 => (end.response(response, Syndrome::Ack(Credit(3)), Some(rng.below(3))), SERVERS),
                30 if rng.below(10) == 0 => {
                    net.now = net.now + Nanos(rng.below(60_000_000));
                    continue;
                }
                31 => {
                    net.now = net.now + Nanos(rng.below(200_000));
                    out.room = if rng.below(3) == 0 { 1 } else { usize::MAX };
                    out.frames.clear();
                    net.swordbox.on_timer(net.now, &mut out);
                    net.permit();
                    continue;
                }
                32 if rng.below(10) == 0 => {
                    let remap = rng.below(3) > 0;
                    let layers = Layers { remap, cas_to_write: rng.below(3) > 0, ..Layers::PASS };
                    net.swordbox.on_command(Command::Layers(layers), net.now);
                    continue;
                }
                33 => (end.ack(response), SERVERS),
                _ => (end.cas(psn, TABLE + 8 * rng.below(4), rng.below(3), rng.below(3)), CLIENTS),
            };
            net.now = net.now + Nanos(rng.below(5000));
            out.room = if rng.below(10) == 0 { rng.below(3) as usize } else { usize::MAX };
            out.frames.clear();
            let mut frame = MemoryFrame::new(frame);
            let verdict = net.swordbox.on_frame(&mut frame, port, net.now, &mut out);
            if let Verdict::Forward(port) = verdict {
                out.frames.push((frame, port));
            }
            net.permit();
            for (frame, port) in out.frames.drain(..) {
                let bytes = frame.into_bytes();
                // The PSN from which the client has to retransmit
                if let Some(packet) = Packet::parse(&bytes).filter(|_| port == CLIENTS)
                    && let Some(aeth) = packet.aeth()
                    && aeth.kind() == Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR)
                    && let Some(end) = ends.iter_mut().find(|end| end.qpn == packet.bth().dest_qp().get())
                {
                    end.psn = packet.bth().psn().get();
                }
                if let Some(packet) = Packet::parse(&bytes).filter(|_| port == SERVERS) {
                    let to = packet.bth().dest_qp().get();
                    if let Some(sender) = ends.iter().position(|end| end.server_qpn == to) {
                        lasts[sender] = packet.bth().psn().get();
                        open.push_back((sender, packet.bth().opcode(), lasts[sender]));
                    }
                }
            }
        }
        // After some idle time nothing is left.
        net.advance_time(Nanos::from_secs(1));
        let [connections, lanes, _, held] = net.swordbox.usage();
        assert!(
            [connections, lanes, held] == [0; 3],
            "seed {seed}: {connections} connections, {lanes} shared QPs, {held} held frames"
        );
        net.swordbox.counters().reported().for_each(|(name, count)| *sum.entry(name).or_default() += count);
    }
    println!("{sum:?}");
    let counted = ["decided", "lanes_lost", "resent", "forgotten"].iter().all(|name| sum[name] > 100);
    assert!(counted || wanted.is_some());
}
