//! Queue pairs: their states, attributes and parts (IB 10.2.4, 10.3, 11.2.4).

use crate::memory::{Access, Pd};
use crate::queue::{Cq, ReceiveQueue, Srq};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::wire::Route;
use core::net::IpAddr;
use rocev2::aeth::RnrTimer;
use rocev2::ethernet::MacAddr;
use rocev2::{Psn, Qpn};
use switch::Nanos;

/// The transport service of a queue pair
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection
    Rc,
    /// Unreliable connection
    Uc,
    /// Unreliable datagram
    Ud,
}

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Nothing can be posted; arriving packets are dropped.
    Reset,
    /// Receives can be posted; arriving packets are dropped.
    Init,
    /// Ready to receive
    Rtr,
    /// Ready to receive and to send
    Rts,
    /// Send queue drained: requests in flight complete; no new request starts.
    Sqd,
    /// Requests are flushed; arriving packets are dropped.
    Error,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Error];

    /// Returns whether a modify may move a queue pair from this state to `next` (IB figure 124).
    pub const fn leads_to(self, next: Self) -> bool {
        use State::{Error, Init, Reset, Rtr, Rts, Sqd};
        matches!(
            (self, next),
            (_, Reset | Error)
                | (Reset | Init, Init)
                | (Init, Rtr)
                | (Rtr | Rts | Sqd, Rts)
                | (Rts | Sqd, Sqd)
        )
    }

    /// Returns whether requests from the remote side are executed.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd)
    }

    /// Returns whether requests are sent.
    pub const fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

/// The path MTU: the maximum payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMtu {
    /// 256 bytes
    B256,
    /// 512 bytes
    B512,
    /// 1,024 bytes
    B1024,
    /// 2,048 bytes
    B2048,
    /// 4,096 bytes
    B4096,
}

impl PathMtu {
    /// Every path MTU, ascending.
    pub const ALL: [Self; 5] = [Self::B256, Self::B512, Self::B1024, Self::B2048, Self::B4096];

    /// Returns the MTU in bytes.
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// Returns the MTU of `bytes` bytes, if there is one.
    pub const fn of_bytes(bytes: u16) -> Option<Self> {
        match bytes {
            256 => Some(Self::B256),
            512 => Some(Self::B512),
            1024 => Some(Self::B1024),
            2048 => Some(Self::B2048),
            4096 => Some(Self::B4096),
            _ => None,
        }
    }

    /// Returns the largest path MTU that fits an Ethernet port's MTU with all headers, as Linux computes it.
    pub fn for_port(port_mtu: usize) -> Self {
        // IPv6 40, UDP 8, BTH 12, the longest extended headers 28 and 4, ICRC 4
        let room = port_mtu.saturating_sub(96);
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room).unwrap_or(Self::B256)
    }
}

/// Addresses and IP attributes of the packets that a queue pair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Local address
    pub src: IpAddr,
    /// Remote address
    pub dst: IpAddr,
    /// MAC address of the next hop; `None` to resolve it
    pub mac: Option<MacAddr>,
    /// DSCP (6 bits) and ECN (2 bits)
    pub traffic_class: u8,
    /// TTL or hop limit
    pub hop_limit: u8,
}

impl Path {
    /// Returns a path with traffic class 0 and hop limit 64.
    pub fn new(src: IpAddr, dst: IpAddr) -> Self {
        Self { src, dst, mac: None, traffic_class: 0, hop_limit: 64 }
    }
}

/// Attributes with which a queue pair is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Transport service
    pub transport: Transport,
    /// Protection domain
    pub pd: Pd,
    /// Completion queue of send requests
    pub send_cq: Cq,
    /// Completion queue of receive requests
    pub recv_cq: Cq,
    /// Shared receive queue, instead of a receive queue of its own
    pub srq: Option<Srq>,
    /// Capacity of the send queue, in requests
    pub max_send: usize,
    /// Capacity of the receive queue, in requests
    pub max_recv: usize,
}

/// A change of a queue pair. Transitions to a [`State`] carry the attributes that the state requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modify {
    /// Reset or Init to Init
    Init {
        /// Access that the remote side gets
        access: Access,
        /// `Q_Key`, for UD
        qkey: u32,
    },
    /// Init to RTR
    Rtr(ReadyToReceive),
    /// RTR to RTS
    Rts(ReadyToSend),
    /// RTS to SQD
    Sqd,
    /// SQD to RTS
    Resume,
    /// Any state to Error
    Error,
    /// Any state to Reset
    Reset,
    /// Changes the access that the remote side gets, in any state except Reset and Error
    Access(Access),
}

/// Attributes of the RTR state. UD uses none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// Path to the remote side
    pub path: Path,
    /// Remote queue pair number
    pub dest_qp: Qpn,
    /// Path MTU
    pub mtu: PathMtu,
    /// PSN of the first incoming request
    pub rq_psn: Psn,
    /// READs and atomics from the remote side executed at once
    pub max_dest_rd_atomic: u8,
    /// Time that the remote side waits after an RNR NAK
    pub min_rnr_timer: RnrTimer,
}

/// Attributes of the RTS state. UD and UC use the PSN only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSend {
    /// PSN of the first request
    pub sq_psn: Psn,
    /// READs and atomics outstanding at once
    pub max_rd_atomic: u8,
    /// Acknowledgement timeout: 4.096 us times 2^`timeout`, 0 is unlimited (IB 9.7.6.1.3)
    pub timeout: u8,
    /// Retries after a timeout or a missing packet. A CM message carries 7 at most; here it may be more, and
    /// [`NO_LIMIT`](Self::NO_LIMIT) is unlimited.
    pub retry_count: u8,
    /// Retries after RNR NAKs; 7 is unlimited
    pub rnr_retry: u8,
    /// Whether end-to-end credits are heeded
    pub flow_control: bool,
}

impl ReadyToSend {
    /// Value of `retry_count` for unlimited retries
    pub const NO_LIMIT: u8 = u8::MAX;
}

/// Why a verb on a queue pair or queue fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpError {
    /// No queue pair has this number
    #[error("no queue pair has this number; create it first")]
    Unknown,
    /// The state of the queue pair does not allow the call
    #[error("not valid in state {0:?}; move the queue pair to another state first")]
    State(State),
    /// A queue or table is at its capacity
    #[error("the queue or table is full; poll completions or raise its capacity")]
    Full,
    /// The transport service does not support the operation
    #[error("the queue pair's transport service does not support the operation")]
    Transport,
    /// Invalid length: the limit of a message is 2^31 bytes, of a datagram one packet, and an atomic fetches
    /// 8 bytes
    #[error("invalid length: at most 2^31 bytes, one packet for UD, exactly 8 bytes for atomics")]
    Length,
    /// A datagram requires a destination, and other requests must not have one
    #[error("UD requests require a destination, requests of other services must not have one")]
    Destination,
    /// READs and atomics are not valid with `max_rd_atomic` = 0
    #[error("READs and atomics are not valid with max_rd_atomic = 0; raise it")]
    NoFetches,
    /// Queue pairs still use the queue
    #[error("queue pairs still use the queue; destroy them first")]
    Busy,
    /// The completion queue or shared receive queue does not exist, or the queue pair has a shared receive
    /// queue
    #[error("no such completion queue or receive queue")]
    Queue,
    /// The source address is not local, or not of the destination's address family
    #[error("the path's source address is not local or not of the destination's family")]
    Path,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) qpn: Qpn,
    pub(crate) init: QpInit,
    pub(crate) state: State,
    pub(crate) access: Access,
    pub(crate) qkey: u32,
    pub(crate) path: Option<Path>,
    /// Headers that do not change, and the version of the neighbour table with which they were made
    pub(crate) route: Option<(Route, u64)>,
    pub(crate) peer_qpn: Qpn,
    pub(crate) mtu: PathMtu,
    pub(crate) recv: ReceiveQueue,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    /// Whether the next packet is a request, if one is ready, rather than a response
    pub(crate) request_next: bool,
    /// Whether it waits for its neighbour's MAC address
    pub(crate) unresolved: bool,
    /// The event of the state has been reported: in RTR [`Event::Established`](crate::Event::Established), in
    /// SQD [`Event::Drained`](crate::Event::Drained)
    pub(crate) event_reported: bool,
}

impl Qp {
    pub(crate) fn new(qpn: Qpn, init: QpInit) -> Self {
        Self {
            qpn,
            init,
            state: State::Reset,
            access: Access::LOCAL_READ,
            qkey: 0,
            path: None,
            route: None,
            peer_qpn: Qpn::new(0),
            mtu: PathMtu::B1024,
            recv: ReceiveQueue { capacity: init.max_recv, ..ReceiveQueue::default() },
            req: Requester::default(),
            resp: Responder::default(),
            request_next: false,
            unresolved: false,
            event_reported: false,
        }
    }

    /// Returns the earliest deadline of the queue pair.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let req = [self.req.deadline, self.req.rnr_until, self.req.pacer.wake_at()];
        req.into_iter().chain([self.resp.ack_deadline]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: from; columns: to, in the order of `State::ALL`.
    #[test]
    fn transitions_follow_the_state_table() {
        let table = State::ALL.map(|from| State::ALL.map(|to| u8::from(from.leads_to(to))));
        assert_eq!(
            table,
            [
                // Reset Init RTR RTS SQD Error
                [1, 1, 0, 0, 0, 1],
                [1, 1, 1, 0, 0, 1],
                [1, 0, 0, 1, 0, 1],
                [1, 0, 0, 1, 1, 1],
                [1, 0, 0, 1, 1, 1],
                [1, 0, 0, 0, 0, 1],
            ]
        );
    }

    #[test]
    fn path_mtus_convert_from_and_to_bytes() {
        assert_eq!(PathMtu::ALL.map(PathMtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(PathMtu::for_port(1500), PathMtu::B1024);
        assert_eq!(PathMtu::for_port(9000), PathMtu::B4096);
        assert_eq!(PathMtu::of_bytes(2048), Some(PathMtu::B2048));
    }
}
