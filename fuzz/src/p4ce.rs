//! Sends arbitrary packets from any host to P4CE's switch, with an open group and a control plane. The switch
//! does not panic, its frames have correct checksums, and it never acknowledges to the leader more than the
//! replicas have acknowledged.

use core::net::IpAddr;
use p4ce::{
    Command, Config, Control, ControlConfig, Event, Group, GroupConfig, GroupId, P4ce, Peer, Replica,
};
use rnic::Interface;
use rocev2::aeth::Syndrome;
use rocev2::ethernet::MacAddr;
use rocev2::{Bth, Opcode, Packet, Psn, Qpn, icrc};
use switch::memory::{FrameCollector, run_frame};
use switch::{Control as _, Function as _, Nanos, PortId, Verdict};

const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);
const OWN_IP: [u8; 4] = [10, 0, 0, 254];
const REPLICAS: u8 = 3;
const QUORUM: usize = 2;
const FIRST: Psn = Psn::new(0xff_fffd);

fn mac(host: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, host])
}

fn peer(host: u8) -> Peer {
    let n = u32::from(host);
    Peer {
        local: OWN_IP.into(),
        remote: [10, 0, 0, host].into(),
        mac: mac(host),
        port: PortId(host.into()),
        local_qp: Qpn::new(0x10 + n),
        remote_qp: Qpn::new(0x80 + n),
        first: FIRST.add(1000 * n),
    }
}

fn switch(how: u8) -> (P4ce, Control) {
    let interface = Interface::new(OWN, OWN_IP.into(), 24);
    let mut function = P4ce::new(Config {
        forward: switch::forward::Config::bridge(5, 8),
        mac: OWN,
        addresses: vec![IpAddr::from(OWN_IP)],
        groups: 2,
        queue_pairs: 64,
        workers: 1,
        silent_after: Nanos::from_millis(u64::from(how & 3)),
        bug: None,
    });
    let replica = |host: u8| Replica { peer: peer(host), va: u64::from(host) << 32, rkey: host.into() };
    let group = Group::new(GroupConfig {
        id: GroupId(1),
        own: OWN,
        leader: peer(0),
        rkey: 7,
        size: 4096,
        replicas: (1..=REPLICAS).map(replica).collect(),
        quorum: QUORUM,
        outvote: how & 4 != 0,
        max_lag: p4ce::gather::MAX_LAG,
    });
    function.on_command(Command::Open(group.unwrap()), Nanos::ZERO);
    assert!(matches!(function.poll_event(), Some(Event::Opened(_, true))));
    let control = Control::new(ControlConfig {
        interface,
        port: 18_515,
        groups: 1,
        queue_pairs: 4,
        workers: 1,
        max_replicas: 3,
        lists: [].into(),
        limits: p4ce::Limits::default(),
        secret: None,
        setup_timeout: Nanos::from_secs(1),
        max_lag: p4ce::gather::MAX_LAG,
        seed: 1,
        first_psn: None,
    });
    (function, control)
}

/// Returns a packet from a host to the switch, with correct checksums. `transport` is the BTH and what
/// follows it.
fn packet(host: u8, qpn: Qpn, transport: &[u8]) -> Vec<u8> {
    let mut bth = transport.to_vec();
    bth.resize(bth.len().max(Bth::LEN).next_multiple_of(4), 0);
    bth[1] &= 0xf0;
    bth[5..8].copy_from_slice(&qpn.to_wire());
    let udp_len = 8 + bth.len() as u16 + 4;
    let mut frame = [&OWN.0[..], &mac(host).0, &[8, 0, 0x45, 0]].concat();
    frame.extend((udp_len + 20).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, host]);
    frame.extend(OWN_IP);
    let sum = rocev2::checksum::Sum::default().add(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0xc0, 0, 0x12, 0xb7]);
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(bth);
    let icrc = icrc::compute_for(&frame[14..], false, 20);
    frame.extend(icrc.to_le_bytes());
    frame
}

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let (mut function, mut control) = switch(how);
    let mut now = Nanos::ZERO;
    // Number of packets from the first PSN on that each replica has acknowledged by correct packets of its
    // own
    let mut acknowledged = [0i32; REPLICAS as usize];
    while let Some((&[kind, len], after)) = rest.split_first_chunk() {
        let (data, after) = after.split_at((2 * usize::from(len)).min(after.len()));
        rest = after;
        now = now + Nanos(u64::from(kind) << 16);
        let host = kind >> 4 & 3;
        let frame = match kind & 3 {
            0 => data.to_vec(),
            // To the switch's queue pair for this host
            1 => packet(host, peer(host).local_qp, data),
            2 => packet(host, Qpn::new(u32::from(kind >> 2)), data),
            _ => packet(host, Qpn::GSI, data),
        };
        if let Some(seen) = Packet::parse(&frame)
            && (1..=REPLICAS).contains(&host)
            && seen.bth().dest_qp() == peer(host).local_qp
            && seen.bth().opcode() == Opcode::RC_ACKNOWLEDGE
            && let Some(aeth) = seen.aeth()
        {
            let missing = !matches!(aeth.kind(), Syndrome::Ack(_));
            let covered_by_ack = seen.bth().psn().distance(peer(host).first) + i32::from(!missing);
            let acked = &mut acknowledged[usize::from(host) - 1];
            *acked = covered_by_ack.max(*acked);
        }
        let (verdict, frames) = run_frame(&mut function, &frame, PortId(host.into()), now);
        for (sent, _) in &frames {
            check(&frame, sent, &acknowledged);
        }
        if verdict == Verdict::Punt {
            control.on_punt(&frame, PortId(host.into()), now);
        }
        function.on_timer(now, &mut FrameCollector::with_room(0));
        while let Some(event) = function.poll_event() {
            control.on_event(event, now);
        }
        if control.next_timer().is_some_and(|at| at <= now) {
            control.on_timer(now);
        }
        while let Some((_, command)) = control.poll_command() {
            function.on_command(command, now);
        }
        let mut made = Vec::new();
        while control.poll_transmit(now, &mut made).is_some() {
            if let Some(made) = Packet::parse(&made) {
                assert!(made.verify_icrc());
            }
        }
    }
}

/// Checks a frame that the switch sent in response to another one.
fn check(cause: &[u8], sent: &[u8], acknowledged: &[i32; REPLICAS as usize]) {
    let Some(packet) = Packet::parse(sent) else {
        assert_eq!(cause, sent, "a frame that is not a packet was changed");
        return;
    };
    if packet.ethernet().src != OWN {
        return;
    }
    let right = Packet::parse(cause).is_some_and(|cause| cause.verify_icrc());
    assert!(!right || packet.verify_icrc());
    if packet.bth().dest_qp() != peer(0).remote_qp || packet.bth().opcode() != Opcode::RC_ACKNOWLEDGE {
        return;
    }
    let Some(aeth) = packet.aeth() else { return };
    let missing = !matches!(aeth.kind(), Syndrome::Ack(_));
    let covered = packet.bth().psn().distance(FIRST) + i32::from(!missing);
    let holders = acknowledged.iter().filter(|acked| **acked >= covered).count();
    assert!(
        covered <= 0 || holders >= QUORUM,
        "{covered} packets acknowledged to the leader, replicas hold {acknowledged:?}"
    );
}
