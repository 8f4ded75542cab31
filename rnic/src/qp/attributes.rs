//! States and attributes of queue pairs, and the events about them (IB 10.2.4, 10.3, 11.2.4).

use crate::memory::{Access, Pd};
use crate::path::{Path, PathMtu};
use crate::queue::{Cq, Srq};
use rocev2::aeth::RnrTimer;
use rocev2::{Psn, Qpn};

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

impl QpInit {
    /// Returns the attributes of a reliable connection with one completion queue and a receive queue of its
    /// own.
    pub const fn rc(pd: Pd, cq: Cq, max_send: usize, max_recv: usize) -> Self {
        Self { transport: Transport::Rc, pd, send_cq: cq, recv_cq: cq, srq: None, max_send, max_recv }
    }
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

/// Asynchronous events of a NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A queue pair went into the error state because of an error.
    QpError(Qpn),
    /// A queue pair in state SQD has no requests in flight any more.
    Drained(Qpn),
    /// A packet arrived on a connection before its handshake was complete (IB 11.6.3.1, communication
    /// established).
    Established(Qpn),
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
}
