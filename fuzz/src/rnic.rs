//! Sends arbitrary packets and frames to a NIC that has a queue pair of each service in each state, while
//! access rights change, the region is deregistered and registered again, and its buffer is exchanged. The
//! NIC does not panic, changes no byte of memory without write access, and sends none without read access.

use rnic::{
    Access, AckPolicy, Buffer, Config, Cq, Data, Interface, Modify, Mr, Operation, Path, PathMtu, Pd, QpInit,
    ReadyToReceive, ReadyToSend, RecvRequest, Remote, Rnic, SendRequest, Sge, State, Transport,
};
use rocev2::aeth::RnrTimer;
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn, icrc};
use switch::Nanos;

const OWN: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
const VA: u64 = 0x1000;
/// Range of the region in its buffer
const REGION: core::ops::Range<usize> = 1024..3072;
const GUARD: u8 = 0xa5;
/// Rights that allow local or remote writes
const WRITES: [Access; 3] = [Access::LOCAL_WRITE, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC];

struct Host {
    nic: Rnic,
    pd: Pd,
    cq: Cq,
    buffers: [Buffer; 2],
    mr: Option<Mr>,
    qpns: Vec<Qpn>,
    /// Contents of the first buffer, while nothing may write to it
    unwritable: Option<Vec<u8>>,
}

impl Host {
    /// Changes access rights, the region or its buffer.
    fn change(&mut self, how: u8, which: u8) {
        let flags = [WRITES[0], WRITES[1], WRITES[2], Access::REMOTE_READ, Access::REMOTE_INVALIDATE];
        let chosen = flags.iter().enumerate().filter(|(at, _)| which >> at & 1 != 0);
        let access = chosen.fold(Access::LOCAL_READ, |all, (_, flag)| all.union(*flag));
        // A SEND with invalidate may have invalidated it.
        self.mr = self.mr.filter(|mr| self.nic.region(*mr).is_some());
        match (how % 4, self.mr) {
            (0, Some(mr)) => self.nic.reregister(mr, access).unwrap(),
            (1, Some(mr)) => self.nic.deregister(mr).unwrap(),
            (1, None) => {
                let mr = self.nic.register(self.pd, self.buffers[0], REGION, VA, access);
                self.mr = Some(mr.unwrap());
            }
            (2, None) => {
                // The next buffer gets the slot of the one that is freed.
                self.nic.free(self.buffers[0]).unwrap();
                self.buffers[0] = self.nic.alloc(vec![GUARD; 4096]).unwrap();
            }
            _ => {
                // In some states, access rights cannot be changed.
                let qpn = self.qpns[usize::from(which) % self.qpns.len()];
                _ = self.nic.modify_qp(qpn, Modify::Access(access));
            }
        }
        let region = self.mr.and_then(|mr| self.nic.region(mr));
        let may_write = region.is_some_and(|region| WRITES.iter().any(|flag| region.access.contains(*flag)));
        self.unwritable = (!may_write).then(|| self.nic.bytes(self.buffers[0]).to_vec());
    }

    /// Checks that nothing was written without a right, and that a frame has no contents of deregistered
    /// memory.
    fn check(&self, sent: &[u8]) {
        if let Some(unwritable) = &self.unwritable {
            assert!(self.nic.bytes(self.buffers[0]) == unwritable);
        }
        let is_udp = sent.get(23) == Some(&17);
        if is_udp && self.mr.is_none_or(|mr| self.nic.region(mr).is_none()) {
            assert!(!sent.windows(16).any(|bytes| bytes == [GUARD; 16]));
        }
    }
}

fn host(how: u8) -> Host {
    let interface = Interface {
        neighbours: vec![(PEER.into(), MacAddr([4; 6]))],
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
    Host { nic, pd, cq, buffers, mr: Some(mr), qpns, unwritable: None }
}

fn queue_pair(nic: &mut Rnic, pd: Pd, cq: Cq, mr: Mr, transport: Transport, state: State, how: u8) -> Qpn {
    let init = QpInit { transport, pd, send_cq: cq, recv_cq: cq, srq: None, max_send: 16, max_recv: 16 };
    let qpn = nic.create_qp(init).unwrap();
    let path = Path::new(OWN.into(), PEER.into());
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
    let transitions = [Modify::Init { access: Access::ALL, qkey: 1 }, rtr, rts];
    let steps = match state {
        State::Reset => 0,
        State::Init => 1,
        State::Rtr => 2,
        State::Rts | State::Sqd | State::Error => 3,
    };
    for modify in &transitions[..steps] {
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
            // UC has no operations that fetch.
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

/// Returns a frame with correct checksums, in which `bytes` follow the UDP header.
fn packet(bytes: &[u8]) -> Vec<u8> {
    let udp_len = (8 + bytes.len() + 4) as u16;
    let mut frame = vec![2; 6];
    frame.extend([4; 6]);
    frame.extend([8, 0, 0x45, 2]);
    frame.extend((udp_len + 20).to_be_bytes());
    frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0]);
    frame.extend(PEER);
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

/// Runs one input.
pub(crate) fn run(input: &[u8]) {
    let Some((&how, mut rest)) = input.split_first() else { return };
    let mut host = host(how);
    let (mut now, mut out) = (Nanos::ZERO, Vec::new());
    while let Some((&[kind, to, len], after)) = rest.split_first_chunk() {
        let (bytes, after) = after.split_at((usize::from(len) * 2).min(after.len()));
        rest = after;
        now = now + Nanos(u64::from(kind) << 4);
        if kind & 0x70 == 0x70 {
            host.change(to, len);
        }
        if kind & 7 == 7 {
            host.nic.on_frame(bytes, now);
        } else {
            let mut bytes = bytes.to_vec();
            if bytes.len() >= 12 && kind & 8 == 0 {
                // To one of the queue pairs, with a PSN close to the expected one
                let qpn = host.qpns[usize::from(to) % host.qpns.len()].get().to_be_bytes();
                bytes[1] &= 0xf0;
                bytes[2..4].fill(0xff);
                bytes[5..8].copy_from_slice(&qpn[1..]);
                let psn = 0xff_fff8u32.wrapping_add(u32::from(bytes[11]) % 24).to_be_bytes();
                bytes[9..12].copy_from_slice(&psn[1..]);
            }
            host.nic.on_frame(&packet(&bytes), now);
        }
        for _ in 0..64 {
            if !host.nic.poll_transmit(now, &mut out) {
                break;
            }
            host.check(&out);
        }
        if host.nic.next_timer().is_some_and(|at| at <= now) {
            host.nic.on_timer(now);
        }
        host.check(&[]);
        while host.nic.poll_cq(host.cq).is_some() {}
        while host.nic.poll_event().is_some() || host.nic.poll_cm_event().is_some() {}
    }
    let whole = host.nic.bytes(host.buffers[0]);
    assert!(whole[..REGION.start].iter().chain(&whole[REGION.end..]).all(|byte| *byte == GUARD));
    assert!(host.nic.bytes(host.buffers[1]).iter().all(|byte| *byte == GUARD));
}
