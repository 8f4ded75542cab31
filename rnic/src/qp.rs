//! Queue pairs: their states, their attributes, and what they are made of (IB 10.2.4, 10.3, 11.2.4).

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
    /// Nothing can be posted; what arrives is dropped.
    Reset,
    /// Receives can be posted; what arrives is dropped.
    Init,
    /// Ready to receive
    Rtr,
    /// Ready to send, too
    Rts,
    /// Requests under way complete; no further one begins.
    Sqd,
    /// Requests are flushed; what arrives is dropped.
    Error,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 6] = [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Error];

    /// Whether a queue pair may be moved from this state to `next` by a modify (IB figure 124).
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

    /// Whether requests from the other side are executed.
    pub const fn receives(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd)
    }

    /// Whether requests are sent.
    pub const fn sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }
}

/// The path MTU: the most payload of a packet.
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

    /// In bytes
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// The MTU of so many bytes, if there is one.
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

    /// The largest that an Ethernet port of this MTU carries with all headers, as Linux reckons.
    pub fn for_port(port_mtu: usize) -> Self {
        // IPv6 40, UDP 8, BTH 12, the longest extended headers 28 and 4, ICRC 4
        let room = port_mtu.saturating_sub(96);
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= room).unwrap_or(Self::B256)
    }
}

/// How packets of a queue pair get to the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// Own address
    pub src: IpAddr,
    /// The other side's address
    pub dst: IpAddr,
    /// The next hop's MAC address, if it is not to be asked for
    pub mac: Option<MacAddr>,
    /// DSCP (6 bits) and ECN (2 bits)
    pub traffic_class: u8,
    /// TTL or hop limit
    pub hop_limit: u8,
}

impl Path {
    /// A path of ordinary traffic.
    pub fn new(src: IpAddr, dst: IpAddr) -> Self {
        Self { src, dst, mac: None, traffic_class: 0, hop_limit: 64 }
    }
}

/// What a queue pair is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpInit {
    /// Its service
    pub transport: Transport,
    /// Its protection domain
    pub pd: Pd,
    /// Where its sends complete
    pub send_cq: Cq,
    /// Where its receives complete
    pub recv_cq: Cq,
    /// A shared receive queue in place of one of its own
    pub srq: Option<Srq>,
    /// Send requests at once
    pub max_send: usize,
    /// Receive requests at once
    pub max_recv: usize,
}

/// A change of a queue pair. Those of [`State`] carry what the state needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modify {
    /// Reset or Init to Init
    Init {
        /// What the other side may do
        access: Access,
        /// For UD
        qkey: u32,
    },
    /// Init to RTR
    Rtr(ReadyToReceive),
    /// RTR to RTS
    Rts(ReadyToSend),
    /// To the drained state
    Sqd,
    /// From the drained state back to RTS
    Resume,
    /// To the error state
    Error,
    /// To the reset state
    Reset,
    /// What the other side may do, from now on; in any state but Reset and Error
    Access(Access),
}

/// What the RTR state needs; of all of it UD uses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToReceive {
    /// The way to the other side
    pub path: Path,
    /// The other side
    pub dest_qp: Qpn,
    /// Path MTU
    pub mtu: PathMtu,
    /// The PSN of the first request to come
    pub rq_psn: Psn,
    /// READs and atomics executed at once for the other side
    pub max_dest_rd_atomic: u8,
    /// For how long the other side shall wait when no receive is posted
    pub min_rnr_timer: RnrTimer,
}

/// What the RTS state needs; UD and UC use the PSN only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToSend {
    /// The PSN of the first request
    pub sq_psn: Psn,
    /// READs and atomics outstanding at once
    pub max_rd_atomic: u8,
    /// Time to wait for an acknowledgement: 4.096 us times two to this; 0 waits for ever (IB 9.7.6.1.3)
    pub timeout: u8,
    /// How often to try again. A CM can say 7 at most; here it may be more, and [`NO_LIMIT`](Self::NO_LIMIT) has no end.
    pub retry_count: u8,
    /// The same for a receiver that is not ready; 7 has no end
    pub rnr_retry: u8,
    /// Whether credits are heeded (end-to-end flow control)
    pub flow_control: bool,
}

impl ReadyToSend {
    /// Retries without end
    pub const NO_LIMIT: u8 = u8::MAX;
}

/// A change that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QpError {
    /// There is no such queue pair
    #[error("there is no such queue pair")]
    Unknown,
    /// The state does not allow it
    #[error("not in state {0:?}")]
    State(State),
    /// A queue is full
    #[error("the queue is full")]
    Full,
    /// The service does not have the operation
    #[error("not on a queue pair of this service")]
    Transport,
    /// A message is 2^31 bytes at most, a datagram one packet, what an atomic fetches eight bytes
    #[error("a length that the operation cannot have")]
    Length,
    /// A datagram needs a destination, and nothing else may have one
    #[error("a datagram needs a destination, other requests have none")]
    Destination,
    /// READs and atomics where none may be outstanding
    #[error("no READs and atomics may be outstanding")]
    NoFetches,
    /// Queue pairs use it
    #[error("queue pairs use it")]
    Busy,
    /// No such completion queue or shared receive queue
    #[error("no such completion queue or shared receive queue")]
    Queue,
    /// The source address is not one of this NIC, or not of the destination's family
    #[error("the path's addresses do not fit")]
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
    /// Headers that do not change, and the age of the neighbour table that they are of
    pub(crate) route: Option<(Route, u64)>,
    pub(crate) peer_qpn: Qpn,
    pub(crate) mtu: PathMtu,
    pub(crate) recv: ReceiveQueue,
    pub(crate) req: Requester,
    pub(crate) resp: Responder,
    /// Whether a request has its turn before a response
    pub(crate) request_next: bool,
    /// Whether it waits for its neighbour's MAC address
    pub(crate) unresolved: bool,
    /// What its state has to tell has been told: in RTR that the connection stands, in SQD that nothing is under way
    pub(crate) told: bool,
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
            told: false,
        }
    }

    /// When it next has something to do by itself.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let req = [self.req.deadline, self.req.rnr_until, self.req.pace.wake_at()];
        req.into_iter().chain([self.resp.ack_deadline]).flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: from; columns: to, in the order of `State::ALL`.
    #[test]
    fn the_state_machine() {
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
    fn path_mtus() {
        assert_eq!(PathMtu::ALL.map(PathMtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(PathMtu::for_port(1500), PathMtu::B1024);
        assert_eq!(PathMtu::for_port(9000), PathMtu::B4096);
        assert_eq!(PathMtu::of_bytes(2048), Some(PathMtu::B2048));
    }
}
