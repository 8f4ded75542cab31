//! Parts of a host whose NIC runs on several workers.
//!
//! Each worker has a [`Rnic`](crate::Rnic) of its own, with its own queue pairs, memory and connections: a *part* of the
//! host's NIC. All parts have the same addresses. [`owner`] returns the part that processes a frame: that of the queue pair
//! or connection whose number or ID it carries. [`Notice`]s carry what all parts have to know.

use crate::cm::IdSpace;
use core::net::IpAddr;
use rocev2::cm::{Body, Message, mad_of};
use rocev2::ethernet::MacAddr;
use rocev2::{Class, Packet, Qpn, classify, destination_qp};
use switch::Nanos;
use switch::table::mix;

/// Queue pair numbers below this one are not assigned to applications.
pub(crate) const FIRST_QPN: u32 = 16;
/// Limit of queue pairs of all parts together: a quarter of the 24-bit numbers, so that a number is not assigned again soon
pub const MAX_QPS: usize = 1 << 22;

/// One of the parts of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of the part, from 0. Part 0 answers ARP requests, neighbour solicitations and echo requests.
    pub index: u32,
    /// Number of parts, from 1
    pub count: u32,
}

impl Part {
    /// A whole NIC
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Returns whether the NIC has other parts.
    pub(crate) const fn has_others(self) -> bool {
        self.count > 1
    }

    /// Returns the communication IDs that belong to the part: `n` with `n % count == index`.
    pub(crate) const fn ids(self) -> IdSpace {
        IdSpace { first: self.index, step: self.count }
    }
}

/// Notice of a part of a NIC for all other parts. It may arrive late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// The MAC address of a neighbour was learnt.
    Neighbour {
        /// IP address of the neighbour
        ip: IpAddr,
        /// Its MAC address
        mac: MacAddr,
        /// Whether it may be added to the neighbour table
        create: bool,
    },
    /// A connection to another host's queue pair exists for [`SETTLED_AFTER`]. Older connections to that queue pair, or
    /// with that communication ID, are stale (IB 12.9.8.3.1).
    Connected {
        /// IP address of the other host
        host: IpAddr,
        /// Its queue pair
        qpn: Qpn,
        /// Its communication ID
        comm_id: u32,
        /// When the connection was requested or accepted
        at: Nanos,
    },
    /// Another host has given up a connection before it knew this host's communication ID.
    GivenUp {
        /// IP address of the other host
        host: IpAddr,
        /// Its communication ID
        comm_id: u32,
        /// When its message arrived
        at: Nanos,
    },
}

/// Time after which a connection is announced to the other parts. By then, messages that end an older connection to the same
/// queue pair have arrived, also at a part that was not scheduled for a while.
pub const SETTLED_AFTER: Nanos = Nanos::from_secs(1);

/// Returns which of `parts` parts of a NIC processes a frame: the owner of the queue pair or connection to which a RoCEv2
/// packet belongs. Returns `None` for other frames.
///
/// A connection request belongs to the part that a hash of the remote queue pair determines, so that a second request for
/// a queue pair reaches the part that has its first connection. All other messages of the communication manager carry the
/// ID of the part's connection, except a REJ of a host that gives up before it knows that ID: part 0 announces it to the
/// others.
#[inline]
pub fn owner(frame: &[u8], parts: u32) -> Option<u32> {
    match destination_qp(frame)? {
        Qpn::GSI => owner_of_message(frame, parts),
        qpn => Some(qpn.get().wrapping_sub(FIRST_QPN) % parts),
    }
}

#[cold]
fn owner_of_message(frame: &[u8], parts: u32) -> Option<u32> {
    let Class::Roce(layout) = classify(frame) else { return None };
    let packet = Packet::new(frame, layout);
    let message = Message::parse(mad_of(&packet)?).ok()?;
    let own_id = match message.body {
        Body::Req(req) => return Some((hash(packet.src(), req.qpn().get()) % u64::from(parts)) as u32),
        Body::Mra(mra) => mra.remote_comm_id,
        Body::Rej(rej) => rej.remote_comm_id,
        Body::Rep(rep) => rep.remote_comm_id,
        Body::Rtu(rtu) => rtu.remote_comm_id,
        Body::Dreq(dreq) => dreq.remote_comm_id,
        Body::Drep(drep) => drep.remote_comm_id,
        Body::Opaque(..) => return None,
    };
    Some(own_id.get() % parts)
}

/// Returns a hash of a host and a number. It is consecutive for up to 16 consecutive numbers, so that a few queue pairs of a
/// host are spread evenly.
pub fn hash(host: IpAddr, number: u32) -> u64 {
    let host = match host {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let block = mix(u64::from(number >> 4) ^ mix(host as u64 ^ mix((host >> 64) as u64)));
    (block >> 1) + u64::from(number)
}
