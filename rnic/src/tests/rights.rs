//! Access that is revoked while a message is in flight: access is checked for each packet.

use super::pair::*;
use crate::*;
use rocev2::aeth::{NakCode, Syndrome};
use rocev2::reth::Reth;
use rocev2::{Bth, Opcode, Packet, Psn};
use zerocopy::IntoBytes;

/// How the requester's access to the responder's memory is revoked.
#[derive(Clone, Copy, Debug)]
enum Revoked {
    /// The region's access flags change
    Region,
    /// The region and its buffer are freed; another buffer takes the slot
    Memory,
    /// The queue pair's access flags change
    QueuePair,
}

impl Revoked {
    const ALL: [Self; 3] = [Self::Region, Self::Memory, Self::QueuePair];

    /// Revokes access to the memory of `end`. Returns the buffer that has its slot afterwards.
    fn apply(self, nic: &mut Rnic, end: &End) -> Buffer {
        match self {
            Self::Region => nic.reregister(end.mr, Access::LOCAL_READ).unwrap(),
            Self::QueuePair => nic.modify_qp(end.qpn, Modify::Access(Access::LOCAL_READ)).unwrap(),
            Self::Memory => {
                nic.deregister(end.mr).unwrap();
                let len = nic.free(end.buffer).unwrap().len();
                return nic.alloc(vec![0x55; len]).unwrap();
            }
        }
        end.buffer
    }

    /// Returns the requester's completion status.
    fn status(self) -> Status {
        match self {
            Self::Region | Self::Memory => Status::RemoteAccess,
            Self::QueuePair => Status::RemoteInvalidRequest,
        }
    }
}

fn connected() -> (Pair, [End; 2]) {
    let (mut pair, ends) = Pair::connected(Setup::default());
    pair.resolve_neighbours(&ends);
    (pair, ends)
}

#[test]
fn a_write_fails_when_write_access_is_revoked() {
    for revoked in Revoked::ALL {
        let (mut pair, [a, b]) = connected();
        pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Inline(vec![7; 4096]));
        let frames = pair.frames(0);
        pair.deliver(1, &frames[..1]);
        let there = revoked.apply(&mut pair.nics[1], &b);
        pair.deliver(1, &frames[1..]);
        let written = pair.nics[1].bytes(there)[1024..4096].contains(&7);
        assert!(!written, "{revoked:?}: later packets are not written");
        assert_eq!(pair.nics[1].qp_state(b.qpn), Some(State::Error));
        pair.run();
        assert_eq!(pair.statuses(0, &a), [(1, revoked.status())], "{revoked:?}");
    }
}

#[test]
fn a_read_fails_when_read_access_is_revoked() {
    for (revoked, sent) in Revoked::ALL.into_iter().flat_map(|revoked| [0, 1, 3].map(|n| (revoked, n))) {
        let (mut pair, [a, b]) = connected();
        pair.post(0, a.qpn, 1, Operation::Read(b.remote(0)), Data::Memory(a.sge(0, 4096)));
        let request = pair.frames(0);
        pair.deliver(1, &request);
        let mut frame = Vec::new();
        for _ in 0..sent {
            assert!(pair.nics[1].poll_transmit(pair.now, &mut frame));
            pair.deliver(0, core::slice::from_ref(&frame));
        }
        revoked.apply(&mut pair.nics[1], &b);
        pair.run();
        assert_eq!(pair.statuses(0, &a), [(1, revoked.status())], "{revoked:?} after {sent} packets");
        assert!(
            !pair.nics[0].bytes(a.buffer)[..4096].contains(&0x55),
            "{revoked:?}: no byte of another buffer"
        );
        assert_eq!(pair.nics[0].counters().naks_received, 1, "{revoked:?} after {sent} packets");
        let nak = Packet::parse(&pair.seen.last().unwrap().1).unwrap();
        assert_eq!(nak.bth().psn(), Psn::new(0xff_fff1 + sent), "the PSN of the refused packet");
    }
}

#[test]
fn refusing_a_duplicate_read_does_not_fail_the_connection() {
    let (mut pair, [a, b]) = connected();
    pair.post(0, a.qpn, 1, Operation::Read(b.remote(0)), Data::Memory(a.sge(0, 4096)));
    let request = pair.frames(0);
    pair.deliver(1, &request);
    let response = pair.frames(1);
    pair.nics[1].reregister(b.mr, Access::REMOTE_WRITE).unwrap();
    // A delayed copy of the request arrives after the READ has completed.
    pair.deliver(0, &response);
    pair.deliver(1, &request);
    let refusal = pair.frames(1);
    let nak = Packet::parse(&refusal[0]).unwrap();
    assert_eq!(nak.aeth().unwrap().kind(), Syndrome::Nak(NakCode::REMOTE_ACCESS_ERROR));
    pair.deliver(0, &refusal);
    pair.post(0, a.qpn, 2, Operation::Write(b.remote(0)), Data::Inline(vec![1; 8]));
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::Success), (2, Status::Success)]);
}

#[test]
fn a_retried_read_fails_if_access_was_revoked_meanwhile() {
    let (mut pair, ends) = Pair::connected(Setup { retry_count: ReadyToSend::NO_LIMIT, ..Setup::default() });
    pair.resolve_neighbours(&ends);
    let [a, b] = ends;
    pair.post(0, a.qpn, 1, Operation::Read(b.remote(0)), Data::Memory(a.sge(0, 4096)));
    let request = pair.frames(0);
    pair.deliver(1, &request);
    let lost = pair.frames(1);
    assert_eq!(lost.len(), 4);
    pair.nics[1].deregister(b.mr).unwrap();
    pair.run();
    assert_eq!(pair.statuses(0, &a), [(1, Status::RemoteAccess)]);
}

#[test]
fn a_receive_fails_when_its_memory_is_revoked() {
    for gone in [false, true] {
        let (mut pair, [a, b]) = connected();
        pair.nics[1].post_recv(b.qpn, RecvRequest { id: 5, data: Some(b.sge(0, 4096)) }).unwrap();
        pair.post(0, a.qpn, 1, Operation::Send, Data::Inline(vec![7; 4096]));
        let frames = pair.frames(0);
        pair.deliver(1, &frames[..1]);
        let mut there = b.buffer;
        if gone {
            there = Revoked::Memory.apply(&mut pair.nics[1], &b);
        } else {
            pair.nics[1].reregister(b.mr, Access::REMOTE_READ).unwrap();
        }
        pair.deliver(1, &frames[1..]);
        assert!(!pair.nics[1].bytes(there)[1024..4096].contains(&7));
        assert_eq!(pair.statuses(1, &b), [(5, Status::LocalProtection)]);
        pair.run();
        assert_eq!(pair.statuses(0, &a), [(1, Status::RemoteOperation)]);
    }
}

#[test]
fn an_unreliable_message_is_dropped_when_access_is_revoked() {
    let (mut pair, ends) = Pair::connected(Setup { transport: Transport::Uc, ..Setup::default() });
    pair.resolve_neighbours(&ends);
    let [a, b] = ends;
    pair.post(0, a.qpn, 1, Operation::Write(b.remote(0)), Data::Inline(vec![7; 4096]));
    let frames = pair.frames(0);
    pair.deliver(1, &frames[..1]);
    pair.nics[1].reregister(b.mr, Access::LOCAL_READ).unwrap();
    pair.deliver(1, &frames[1..]);
    assert!(!pair.nics[1].bytes(b.buffer)[1024..4096].contains(&7));
    assert_eq!(pair.nics[1].qp_state(b.qpn), Some(State::Rts), "no error is reported");
}

#[test]
fn only_regions_with_remote_invalidate_are_invalidated() {
    for (access, status) in [
        (Access::LOCAL_READ, Status::RemoteAccess),
        (Access::ALL, Status::RemoteAccess),
        (Access::REMOTE_INVALIDATE, Status::Success),
    ] {
        let (mut pair, [a, b]) = connected();
        let pd = pair.nics[1].qp_init(b.qpn).unwrap().pd;
        let (_, mr) = pair.nics[1].register_new(pd, 64, VA, access).unwrap();
        pair.nics[1].post_recv(b.qpn, RecvRequest { id: 1, data: None }).unwrap();
        pair.post(0, a.qpn, 2, Operation::SendInvalidate(mr.0), Data::None);
        pair.run();
        assert_eq!(pair.statuses(0, &a), [(2, status)], "{access:?}");
        assert_eq!(pair.nics[1].region(mr).is_some(), status != Status::Success, "{access:?}");
        let receipt = pair.completions(1, &b)[0];
        let done = if status == Status::Success { Status::Success } else { Status::LocalProtection };
        assert_eq!((receipt.status, receipt.invalidated.is_some()), (done, status == Status::Success));
    }
}

#[test]
fn a_request_longer_than_2_to_the_31_bytes_is_refused() {
    for opcode in [Opcode::RC_WRITE_FIRST, Opcode::RC_READ_REQUEST] {
        let (mut pair, [_, b]) = connected();
        let reth = Reth { va: VA.into(), rkey: b.mr.0.into(), len: ((1 << 31) + 1).into() };
        let payload = if opcode == Opcode::RC_READ_REQUEST { &[][..] } else { &[0; 1024] };
        let mut frame = Vec::new();
        let bth = Bth::new(opcode, b.qpn, Psn::new(0xff_fff1));
        pair.path_headers(1).emit(&mut frame, bth, &[reth.as_bytes()], payload);
        pair.deliver(1, &[frame]);
        let response = pair.frames(1);
        let nak = Packet::parse(&response[0]).unwrap().aeth().unwrap().kind();
        assert_eq!(nak, Syndrome::Nak(NakCode::INVALID_REQUEST), "{opcode:?}");
    }
}
