//! Compares rnic's responses with those of soft-RoCE: requests of real captures are replayed against an rnic
//! in the same state, and its responses have to equal those of the capture, field by field.
//!
//! These fields may differ, and are not compared: MigReq, which soft-RoCE leaves 0 and hardware sets (IB
//! 17.2.8: the initial state is "migrated"; some hardware drops packets with the other value); the IPv4
//! identification, a counter of the host, and with it the header checksum; the UDP source port, which is
//! arbitrary (IB A17.4.5); the UDP checksum, which both soft-RoCE and rnic omit on IPv4; and the ICRC, which
//! covers these fields and is verified instead.

use rnic::{
    Access, Buffer, Config, Interface, Modify, Path, PathMtu, QpInit, ReadyToReceive, RecvRequest, Rnic, Sge,
    Transport,
};
use rocev2::ethernet::MacAddr;
use rocev2::rewrite::Rewriter;
use rocev2::{Class, Msn, Opcode, Packet, Psn, Qpn, classify};
use std::collections::BTreeMap;
use std::net::IpAddr;
use switch::Nanos;
use understudy_tests::captures;

/// Size of the buffer for received messages
const RECEIVE: usize = 1 << 20;
const RECEIVE_VA: u64 = 0x7000_0000_0000;

fn is_response(opcode: Opcode) -> bool {
    (0x0d..=0x12).contains(&opcode.0)
}

/// One direction of a connection: the requests to a queue pair, and its responses.
#[derive(Default)]
struct Flow<'a> {
    requests: Vec<(usize, Packet<'a>)>,
    responses: Vec<Packet<'a>>,
}

/// Returns whether a PSN is between the first and the last request of a flow, or up to 15 after it.
fn spans(flow: &Flow<'_>, psn: Psn) -> bool {
    let (Some((_, first)), Some((_, last))) = (flow.requests.first(), flow.requests.last()) else {
        return false;
    };
    let from = first.bth().psn();
    psn.distance(from) >= 0 && psn.distance(last.bth().psn()) < 16
}

/// Sorts the packets of a capture into flows by responder. The PSNs identify the queue pair that sent a
/// response.
fn flows<'a>(frames: &'a [Vec<u8>]) -> Vec<Flow<'a>> {
    let packets: Vec<_> =
        frames.iter().enumerate().filter_map(|(n, frame)| Some((n, Packet::parse(frame)?))).collect();
    let mut flows: BTreeMap<(IpAddr, Qpn), Flow<'a>> = BTreeMap::new();
    for (n, packet) in &packets {
        let opcode = packet.layout().opcode();
        if opcode.0 < 0x20 && !is_response(opcode) {
            flows.entry((packet.dst(), packet.bth().dest_qp())).or_default().requests.push((*n, *packet));
        }
    }
    for (_, packet) in packets.iter().filter(|(_, packet)| is_response(packet.layout().opcode())) {
        let of = flows
            .iter_mut()
            .find(|((host, _), flow)| *host == packet.src() && spans(flow, packet.bth().psn()));
        if let Some((_, flow)) = of {
            flow.responses.push(*packet);
        }
    }
    flows.into_values().collect()
}

/// The responder, in the state at the beginning of the capture.
struct Replay {
    nic: Rnic,
    qpn: Qpn,
    /// Regions by their R_key in the capture
    regions: BTreeMap<u32, Region>,
}

/// Memory that the requests of a capture access.
struct Region {
    rkey: u32,
    buffer: Buffer,
    va: u64,
}

impl Replay {
    fn new(flow: &Flow<'_>) -> Self {
        let (first, response) = (&flow.requests[0].1, &flow.responses[0]);
        let mut interface = Interface::new(first.ethernet().dst, first.dst(), 24);
        interface.neighbours.push((first.src(), first.ethernet().src));
        interface.vlan = first.tags().first().map(|tag| tag.tci.get());
        let mut nic = Rnic::new(Config::new(interface));
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(1 << 16).unwrap();
        let init = QpInit {
            transport: Transport::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send: 1,
            max_recv: 1 << 16,
        };
        let qpn = nic.create_qp(init).unwrap();
        let has_full_payload =
            |packet: &&(usize, Packet<'_>)| matches!(packet.1.layout().opcode().0 & 0x1f, 0 | 1 | 6 | 7);
        let mtu = flow.requests.iter().find(has_full_payload).map(|(_, packet)| packet.payload().len());
        let first_of_read = |p: &&Packet<'_>| p.layout().opcode() == Opcode::RC_READ_RESPONSE_FIRST;
        let mtu = mtu.or_else(|| flow.responses.iter().find(first_of_read).map(|p| p.payload().len()));
        let mtu = PathMtu::of_bytes(mtu.unwrap_or(1024) as u16).expect("a path MTU");
        let path = Path {
            mac: Some(first.ethernet().src),
            hop_limit: response.ipv4().map_or_else(|| response.ipv6().unwrap().hop_limit, |ip| ip.ttl),
            traffic_class: response
                .ipv4()
                .map_or_else(|| response.ipv6().unwrap().traffic_class(), |ip| ip.tos),
            ..Path::new(first.dst(), first.src())
        };
        let ready = ReadyToReceive {
            path,
            dest_qp: response.bth().dest_qp(),
            mtu,
            rq_psn: first.bth().psn(),
            max_dest_rd_atomic: 128,
            min_rnr_timer: rocev2::aeth::RnrTimer(12),
        };
        nic.modify_qp(qpn, Modify::Init { access: Access::ALL, qkey: 0 }).unwrap();
        nic.modify_qp(qpn, Modify::Rtr(ready)).unwrap();
        let (_, into) = nic.register_new(pd, RECEIVE, RECEIVE_VA, Access::LOCAL_WRITE).unwrap();
        for id in 0..1 << 12 {
            let sge = Sge { mr: into, va: RECEIVE_VA, len: RECEIVE as u32 };
            nic.post_recv(qpn, RecvRequest { id, data: Some(sge) }).unwrap();
        }
        let regions = register(&mut nic, pd, flow);
        let mut replay = Self { nic, qpn, regions };
        // Requests are handled last to first, so that the first request for an address determines its
        // contents.
        for (_, packet) in flow.requests.iter().rev().filter(|(_, packet)| packet.atomic().is_some()) {
            replay.store(packet, &fetched(flow, packet));
        }
        replay
    }

    /// Stores bytes at the address from which a request fetches.
    fn store(&mut self, packet: &Packet<'_>, bytes: &[u8]) {
        let target = packet.reth().map(|reth| (reth.rkey.get(), reth.va.get()));
        let target = target.or(packet.atomic().map(|atomic| (atomic.rkey.get(), atomic.va.get())));
        let Some((key, va)) = target else { return };
        let region = &self.regions[&key];
        let at = (va - region.va) as usize;
        let memory = &mut self.nic.bytes_mut(region.buffer)[at..];
        let len = bytes.len().min(memory.len());
        memory[..len].copy_from_slice(&bytes[..len]);
    }

    /// Delivers a request to the NIC. Returns its responses.
    fn request(&mut self, packet: &Packet<'_>) -> Vec<Vec<u8>> {
        let mut frame = packet.bytes().to_vec();
        let mut rewriter = Rewriter::new(&mut frame, packet.layout());
        rewriter.set_dest_qp(self.qpn);
        if let Some(reth) = packet.reth() {
            rewriter.set_remote_memory(reth.va.get(), self.regions[&reth.rkey.get()].rkey).unwrap();
        }
        rewriter.finish();
        if let Some(atomic) = packet.atomic() {
            // The rewriter cannot change an AtomicETH's R_key alone, because no function needs that.
            let mut repr = rocev2::repr::Repr::parse(&frame).unwrap();
            repr.extended.atomic.rkey = self.regions[&atomic.rkey.get()].rkey.into();
            let mut rebuilt = vec![0; repr.frame_len()];
            repr.build(&mut rebuilt).unwrap();
            frame = rebuilt;
        }
        self.nic.on_frame(&frame, Nanos::ZERO);
        let mut replies = Vec::new();
        let mut response = Vec::new();
        while self.nic.poll_transmit(Nanos::ZERO, &mut response) {
            replies.push(response.clone());
        }
        replies
    }
}

/// Registers memory at all addresses that the requests access. Returns the regions by their R_key in the
/// capture.
fn register(nic: &mut Rnic, pd: rnic::Pd, flow: &Flow<'_>) -> BTreeMap<u32, Region> {
    let mut ranges: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for (_, packet) in &flow.requests {
        let target = packet.reth().map(|reth| (reth.rkey.get(), reth.va.get(), reth.len.get().into()));
        let target = target.or(packet.atomic().map(|atomic| (atomic.rkey.get(), atomic.va.get(), 8)));
        if let Some((key, va, len)) = target {
            let range = ranges.entry(key).or_insert((va, va + len));
            *range = (range.0.min(va), range.1.max(va + len));
        }
    }
    let mut region = |from: u64, to: u64| {
        let (buffer, mr) = nic.register_new(pd, (to - from) as usize, from, Access::ALL).unwrap();
        Region { rkey: mr.0, buffer, va: from }
    };
    ranges.into_iter().map(|(key, (from, to))| (key, region(from, to))).collect()
}

/// Returns the data that a request fetched according to its responses. It is empty for requests that fetch
/// nothing.
fn fetched(flow: &Flow<'_>, packet: &Packet<'_>) -> Vec<u8> {
    let first = packet.bth().psn();
    match packet.layout().opcode() {
        Opcode::RC_READ_REQUEST => {
            let psns = packet.reth().unwrap().len.get() / 256 + 1;
            let is_response_to_it =
                |p: &&Packet<'_>| (0..psns as i32).contains(&p.bth().psn().distance(first));
            let data = |p: &&Packet<'_>| (0x0d..=0x10).contains(&p.layout().opcode().0);
            flow.responses
                .iter()
                .filter(is_response_to_it)
                .filter(data)
                .flat_map(|p| p.payload().to_vec())
                .collect()
        }
        Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => {
            let is_response_to_it = |p: &&Packet<'_>| p.atomic_ack().is_some() && p.bth().psn() == first;
            let word =
                flow.responses.iter().find(is_response_to_it).map(|p| p.atomic_ack().unwrap().original.get());
            word.map(|word| word.to_le_bytes().to_vec()).unwrap_or_default()
        }
        _ => Vec::new(),
    }
}

/// Returns all fields that have to be equal.
fn compared(packet: &Packet<'_>) -> impl PartialEq + std::fmt::Debug {
    let macs: (MacAddr, MacAddr) = (packet.ethernet().src, packet.ethernet().dst);
    let ip = (packet.src(), packet.dst(), packet.ipv4().map(|ip| (ip.tos, ip.ttl, ip.flags_fragment.get())));
    let ip6 = packet.ipv6().map(|ip| (ip.traffic_class(), ip.hop_limit, ip.payload_len.get()));
    let udp = (packet.udp().dst_port.get(), packet.udp().len.get(), packet.udp().checksum.get());
    let tags: Vec<_> = packet.tags().iter().map(|tag| tag.tci.get()).collect();
    let aeth = packet.aeth().map(|aeth| (aeth.kind(), aeth.msn()));
    let original = packet.atomic_ack().map(|ack| ack.original.get());
    let mut bth = *packet.bth();
    bth.set_mig_req(true);
    ((macs, tags, ip, ip6, udp), bth, aeth, original, packet.payload().to_vec())
}

/// Replays every flow of a capture, except for the frames that were lost in the network. Returns how many
/// responses agreed.
fn replay(name: &str, lost: impl Fn(usize) -> bool) -> usize {
    let frames = captures::frames(&captures::path(name));
    let mut agreed = 0;
    for flow in flows(&frames).iter().filter(|flow| !flow.responses.is_empty()) {
        let mut replay = Replay::new(flow);
        let replies: Vec<_> = flow
            .requests
            .iter()
            .filter(|(n, _)| !lost(*n))
            .flat_map(|(_, packet)| {
                // An application writes to its memory between the READs.
                if packet.layout().opcode() == Opcode::RC_READ_REQUEST {
                    replay.store(packet, &fetched(flow, packet));
                }
                replay.request(packet)
            })
            .collect();
        // A capture may end before the last responses.
        assert!(
            replies.len() >= flow.responses.len(),
            "{name}: {} responses, {} in the capture",
            replies.len(),
            flow.responses.len()
        );
        for (n, (ours, recorded)) in replies.iter().zip(&flow.responses).enumerate() {
            let Class::Roce(layout) = classify(ours) else { panic!("{name}: response {n} does not parse") };
            let ours = Packet::new(ours, layout);
            assert!(ours.verify_icrc());
            assert!(
                compared(&ours) == compared(recorded),
                "{name}: response {n} differs: rnic, then soft-RoCE:\n{:?}\n{:?}",
                compared(&ours),
                compared(recorded)
            );
            agreed += 1;
        }
        assert_ne!(replay.nic.qp_state(replay.qpn), Some(rnic::State::Error), "{name}");
    }
    agreed
}

#[test]
fn responses_agree_with_those_of_soft_roce() {
    for (name, responses) in [
        ("rc_send_64.pcap", 20),
        ("rc_write_64.pcap", 50),
        ("rc_write_4096.pcap", 24),
        ("rc_write_8192_mtu512.pcap", 10),
        ("rc_write_8192_mtu4096.pcap", 1),
        ("rc_write_4qp.pcap", 40),
        ("rc_write_imm_rstream.pcap", 1),
        ("rc_read_4096.pcap", 80),
        ("rc_compare_swap.pcap", 50),
        ("rc_fetch_add.pcap", 50),
        ("cm_rping.pcap", 20),
        ("cm_ucmatose.pcap", 40),
        ("ipv6_cm_rping.pcap", 1),
        ("ipv6_rc_fetch_add.pcap", 1),
        ("ipv6_rc_read_3072.pcap", 1),
        ("ipv6_rc_send_64.pcap", 1),
        ("ipv6_rc_write_4096.pcap", 1),
        ("vlan_rc_write_4096.pcap", 1),
        ("vlan_ipv6_rc_send_1500.pcap", 1),
        ("dscp_ecn_rc_write_64.pcap", 1),
    ] {
        let agreed = replay(name, |_| false);
        assert!(agreed >= responses, "{name}: only {agreed} responses agreed");
    }
}

#[test]
fn responses_after_losses_agree_with_those_of_soft_roce() {
    // The forwarder dropped every 23rd frame, after recording it.
    assert_eq!(replay("rc_write_loss.pcap", |n| (n + 1) % 23 == 0), 8);
}

#[test]
fn the_first_response_has_message_sequence_number_one() {
    let frames = captures::frames(&captures::path("rc_send_64.pcap"));
    let flows = flows(&frames);
    assert_eq!(flows[0].responses[0].aeth().unwrap().msn(), Msn::new(1));
}
