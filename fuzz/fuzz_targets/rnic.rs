//! Any packets, and any frames, at a NIC that has a queue pair of each service in each state: it does not panic, and no
//! byte of memory outside of its regions changes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rnic::{
    Access, AckPolicy, Buffer, Config, Cq, Data, Interface, Modify, Operation, Path, PathMtu, Pd, QpInit, ReadyToReceive,
    ReadyToSend, RecvRequest, Remote, Rnic, SendRequest, Sge, State, Transport,
};
use rocev2::aeth::RnrTimer;
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn, icrc};
use switch::Nanos;

const OWN: [u8; 4] = [10, 0, 0, 1];
const OTHER: [u8; 4] = [10, 0, 0, 2];
const VA: u64 = 0x1000;
/// Where the region lies in its buffer
const REGION: core::ops::Range<usize> = 1024..3072;
const GUARD: u8 = 0xa5;

struct Host {
    nic: Rnic,
    cq: Cq,
    buffers: [Buffer; 2],
    qpns: Vec<Qpn>,
}

fn host(how: u8) -> Host {
    let interface = Interface {
        neighbours: vec![(OTHER.into(), MacAddr([4; 6]))],
        ..Interface::new(MacAddr([2; 6]), OWN.into(), 24)
    };
    let ack = match how & 3 {
        0 => AckPolicy::EveryPacket,
        1 => AckPolicy::OnRequest,
        _ => AckPolicy::Every { packets: 3, time: Nanos::from_micros(5) },
    };
    let mut nic = Rnic::new(Config { ack, credits: how & 4 != 0, window: 8, ..Config::new(interface) });
    let pd = nic.alloc_pd();
    let cq = nic.create_cq(1 << 14).unwrap();
    let buffers = [0; 2].map(|_| nic.alloc(vec![GUARD; 4096]).unwrap());
    let mr = nic.register(pd, buffers[0], REGION, VA, Access::ALL).unwrap();
    let mut qpns = Vec::new();
    for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
        for state in State::ALL {
            qpns.push(queue_pair(&mut nic, pd, cq, mr, transport, state, how));
        }
    }
    Host { nic, cq, buffers, qpns }
}

fn queue_pair(nic: &mut Rnic, pd: Pd, cq: Cq, mr: rnic::Mr, transport: Transport, state: State, how: u8) -> Qpn {
    let init = QpInit { transport, pd, send_cq: cq, recv_cq: cq, srq: None, max_send: 16, max_recv: 16 };
    let qpn = nic.create_qp(init).unwrap();
    let path = Path::new(OWN.into(), OTHER.into());
    let rtr = Modify::Rtr(ReadyToReceive {
        path,
        dest_qp: Qpn::new(0x99),
        mtu: PathMtu::B256,
        rq_psn: Psn::new(0xff_fffe),
        max_dest_rd_atomic: 2,
        min_rnr_timer: RnrTimer(1),
    });
    let rts = Modify::Rts(ReadyToSend {
        sq_psn: Psn::new(0xff_fffe),
        max_rd_atomic: 2,
        timeout: 1,
        retry_count: 2,
        rnr_retry: 2,
        flow_control: how & 8 != 0,
    });
    let way = [Modify::Init { access: Access::ALL, qkey: 1 }, rtr, rts];
    let steps = match state {
        State::Reset => 0,
        State::Init => 1,
        State::Rtr => 2,
        State::Rts | State::Sqd | State::Error => 3,
    };
    for modify in &way[..steps] {
        nic.modify_qp(qpn, *modify).unwrap();
    }
    if steps > 0 {
        for id in 0..4 {
            nic.post_recv(qpn, RecvRequest { id, data: Some(Sge { mr, va: VA, len: 600 }) }).unwrap();
        }
    }
    if steps == 3 && transport != Transport::Ud {
        let remote = Remote { va: VA, rkey: mr.0 };
        let local = |len| Data::Memory(Sge { mr, va: VA, len });
        let operations = [
            (Operation::Write(remote), local(700)),
            (Operation::Read(remote), local(900)),
            (Operation::FetchAdd { at: remote, add: 1 }, local(8)),
            (Operation::SendImm(1), Data::Inline(vec![1; 300])),
            (Operation::Read(remote), local(300)),
        ];
        for (id, (operation, data)) in (0..).zip(operations) {
            // UC has none that fetch.
            _ = nic.post_send(qpn, SendRequest::new(id, operation, data));
        }
    }
    match state {
        State::Sqd => nic.modify_qp(qpn, Modify::Sqd).unwrap(),
        State::Error => nic.modify_qp(qpn, Modify::Error).unwrap(),
        _ => {}
    }
    qpn
}

/// What comes behind the UDP header, in a frame whose checksums are right.
fn packet(bytes: &[u8]) -> Vec<u8> {
    let udp_len = (8 + bytes.len() + 4) as u16;
    let mut frame = vec![2; 6];
    frame.extend([4; 6]);
    frame.extend([8, 0, 0x45, 2]);
    frame.extend((udp_len + 20).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(OTHER);
    frame.extend(OWN);
    let sum = rocev2::checksum::Sum::default().add(&frame[14..]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame.extend([0xc0, 0, 0x12, 0xb7]);
    frame.extend(udp_len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(bytes);
    let sum = icrc::compute_for(&frame[14..], false, 20);
    frame.extend(sum.to_le_bytes());
    frame
}

fuzz_target!(|input: &[u8]| {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let Host { mut nic, cq, buffers, qpns } = host(how);
    let (mut now, mut out) = (Nanos::ZERO, Vec::new());
    while let Some((&[kind, to, len], after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at((usize::from(len) * 2).min(after.len()));
        rest = after;
        now = now + Nanos(u64::from(kind) << 4);
        if kind & 7 == 7 {
            nic.on_frame(bytes, now);
        } else {
            let mut bytes = bytes.to_vec();
            if bytes.len() >= 12 && kind & 8 == 0 {
                // To one of the queue pairs, with a PSN that is near.
                let qpn = qpns[usize::from(to) % qpns.len()].get().to_be_bytes();
                bytes[1] &= 0xf0;
                bytes[2..4].fill(0xff);
                bytes[5..8].copy_from_slice(&qpn[1..]);
                let psn = 0xff_fff8u32.wrapping_add(u32::from(bytes[11]) % 24).to_be_bytes();
                bytes[9..12].copy_from_slice(&psn[1..]);
            }
            nic.on_frame(&packet(&bytes), now);
        }
        for _ in 0..64 {
            if !nic.poll_transmit(now, &mut out) {
                break;
            }
        }
        if nic.next_timer().is_some_and(|at| at <= now) {
            nic.on_timer(now);
        }
        while nic.poll_cq(cq).is_some() {}
        while nic.poll_event().is_some() || nic.poll_cm_event().is_some() {}
    }
    let whole = nic.bytes(buffers[0]);
    assert!(whole[..REGION.start].iter().chain(&whole[REGION.end..]).all(|byte| *byte == GUARD));
    assert!(nic.bytes(buffers[1]).iter().all(|byte| *byte == GUARD));
});
