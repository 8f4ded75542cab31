//! Parameters that both ends of a connection exchange, and the set-up without the communication manager.

use super::{Config, fill};
use core::net::IpAddr;
use rnic::{Access, Cq, Modify, Path, Pd, QpInit, ReadyToReceive, ReadyToSend, Remote, Rnic};
use rocev2::aeth::RnrTimer;
use rocev2::{Psn, Qpn};
use switch::table::mix;

/// Minimum RNR NAK timer: 10 us (IB table 45)
pub(super) const RNR_TIMER: RnrTimer = RnrTimer(1);
/// Outstanding requests of a critical section at most
pub(super) const SECTION_REQUESTS: u32 = 3;

/// A server's memory, as announced to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) table: Remote,
    pub(super) pages: Remote,
    /// Memory of the connection's own
    pub(super) own: Remote,
}

impl Memory {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let bytes = |at: Remote| [&at.va.to_be_bytes()[..], &at.rkey.to_be_bytes()].concat();
        [bytes(self.table), bytes(self.pages), bytes(self.own)].concat()
    }

    /// Parses the beginning of a reply's private data.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let at = |index: usize| {
            let bytes = bytes.get(index * 12..index * 12 + 12)?;
            let (va, rkey) = (*bytes.first_chunk()?, *bytes.last_chunk()?);
            Some(Remote { va: u64::from_be_bytes(va), rkey: u32::from_be_bytes(rkey) })
        };
        Some(Self { table: at(0)?, pages: at(1)?, own: at(2)? })
    }
}

/// Way of sending a message
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// SEND
    Send,
    /// SEND with the message's number as immediate data
    SendImm,
    /// RDMA WRITE to the beginning of the connection's own memory, with the message's number as immediate
    /// data
    WriteImm,
}

/// Returns how the n-th message of a connection is sent.
pub(super) const fn kind(conn_id: u32, number: u64) -> Kind {
    match mix((conn_id as u64) << 32 | number) >> 32 & 3 {
        0 => Kind::SendImm,
        1 => Kind::WriteImm,
        _ => Kind::Send,
    }
}

/// Returns the contents of the n-th message of a connection.
pub(super) fn message(conn_id: u32, number: u64, max_size: u32) -> Vec<u8> {
    let name = mix(mix(u64::from(conn_id) << 32 | number) | 1);
    // All powers of two are equally likely.
    let bits = name % u64::from(33 - max_size.leading_zeros());
    let len = (name >> 8) & ((1 << bits) - 1);
    fill(name | 1, len.min(max_size.into()) as usize)
}

/// Creates a queue pair with all access rights.
pub(super) fn queue_pair(nic: &mut Rnic, pd: Pd, cq: Cq, max_send: u32, max_recv: u32) -> Qpn {
    let init = QpInit::rc(pd, cq, max_send as usize, max_recv as usize);
    let qpn = nic.create_qp(init).expect("the NIC has room for a queue pair");
    nic.modify_qp(qpn, Modify::Init { access: Access::ALL, qkey: 0 })
        .expect("a new queue pair can be initialized");
    qpn
}

/// Parameters of one end of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Endpoint {
    pub(super) address: IpAddr,
    pub(super) qpn: Qpn,
    /// Initial PSN of its requests
    pub(super) psn: Psn,
}

/// Connects a queue pair to the other end's.
pub(super) fn connect_qp(nic: &mut Rnic, own: Endpoint, other: Endpoint, config: &Config) {
    let receive = ReadyToReceive {
        path: Path::new(own.address, other.address),
        dest_qp: other.qpn,
        mtu: config.mtu,
        rq_psn: other.psn,
        max_dest_rd_atomic: config.max_rd_atomic,
        min_rnr_timer: RNR_TIMER,
    };
    let send = ReadyToSend {
        sq_psn: own.psn,
        max_rd_atomic: config.max_rd_atomic,
        timeout: config.timeout,
        retry_count: config.retry_count,
        rnr_retry: 7,
        flow_control: false,
    };
    for modify in [Modify::Rtr(receive), Modify::Rts(send)] {
        nic.modify_qp(own.qpn, modify).expect("a new queue pair can be connected");
    }
}
