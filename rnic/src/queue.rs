//! What is posted to queues and what comes back: work requests, completion queues, shared receive queues
//! (IB 10.8, 11.4).

use crate::memory::Mr;
use crate::qp::Path;
use rocev2::Qpn;
use std::collections::VecDeque;

/// A completion queue
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cq(pub(crate) u32);

/// A shared receive queue
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Srq(pub(crate) u32);

/// A piece of local memory, within one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// The region
    pub mr: Mr,
    /// Virtual address of the first byte
    pub va: u64,
    /// Bytes
    pub len: u32,
}

/// What a request sends, or where the response to it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// Nothing
    None,
    /// Bytes copied when the request is posted; for what is sent, not for what is fetched
    Inline(Vec<u8>),
    /// Memory; it belongs to the NIC until the request completes
    Memory(Sge),
}

impl Data {
    /// Bytes
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Inline(bytes) => bytes.len(),
            Self::Memory(sge) => sge.len as usize,
        }
    }

    /// Whether there are none
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An operation on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND
    Send,
    /// SEND with immediate data
    SendImm(u32),
    /// SEND with invalidate of the other side's region of this key
    SendInvalidate(u32),
    /// RDMA WRITE
    Write(Remote),
    /// RDMA WRITE with immediate data
    WriteImm(Remote, u32),
    /// RDMA READ
    Read(Remote),
    /// `CmpSwap`: stores `swap` if the memory holds `compare`; fetches what it held
    CompareSwap {
        /// The eight bytes, at a multiple of eight
        at: Remote,
        /// What it has to hold
        compare: u64,
        /// What it holds then
        swap: u64,
    },
    /// `FetchAdd`: adds, modulo 2^64; fetches what it held
    FetchAdd {
        /// The eight bytes, at a multiple of eight
        at: Remote,
        /// What is added
        add: u64,
    },
}

impl Operation {
    pub(crate) const fn is_read(self) -> bool {
        matches!(self, Self::Read(_))
    }

    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether it completes by a response that carries data.
    pub(crate) const fn fetches(self) -> bool {
        self.is_read() || self.is_atomic()
    }

    /// Whether it takes a receive request, and so a credit, of the other side (IB 9.7.7.2).
    pub(crate) const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) | Self::WriteImm(..))
    }
}

/// An address in the memory of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address
    pub va: u64,
    /// `R_Key`
    pub rkey: u32,
}

impl Remote {
    /// The address so many bytes further on.
    pub(crate) fn skip(self, bytes: usize) -> Self {
        Self { va: self.va.wrapping_add(bytes as u64), ..self }
    }
}

/// A request for the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// The application's name for it; comes back in the completion
    pub id: u64,
    /// What is to be done
    pub operation: Operation,
    /// The data
    pub data: Data,
    /// Whether a completion is wanted when all is well; errors always make one
    pub signaled: bool,
    /// Whether the receiver shall be woken (the solicited-event bit)
    pub solicited: bool,
    /// Whether it waits for READs and atomics before it
    pub fence: bool,
    /// Where it goes, on a UD queue pair
    pub to: Option<Datagram>,
}

impl SendRequest {
    /// A signaled request.
    pub fn new(id: u64, operation: Operation, data: Data) -> Self {
        Self { id, operation, data, signaled: true, solicited: false, fence: false, to: None }
    }
}

/// The destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// How to get there
    pub path: Path,
    /// The queue pair there
    pub qpn: Qpn,
    /// Its `Q_Key`
    pub qkey: u32,
}

/// A request for the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// The application's name for it; comes back in the completion
    pub id: u64,
    /// Where the message goes; none for one of no bytes. A UD message begins behind 40 bytes that are kept for the
    /// GRH and hold the IP header (an IPv4 header in the last 20 of them).
    pub data: Option<Sge>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// Well
    Success,
    /// The receive request's memory is shorter than the message, or a message too long was posted
    LocalLength,
    /// The local memory cannot be reached
    LocalProtection,
    /// The queue pair went into the error state before
    Flushed,
    /// The responder refused the request as invalid
    RemoteInvalidRequest,
    /// The responder refused access
    RemoteAccess,
    /// The responder could not carry it out
    RemoteOperation,
    /// A response that makes no sense
    BadResponse,
    /// No answer, however often it was tried
    RetryExceeded,
    /// The receiver was not ready, however often it was tried
    RnrRetryExceeded,
}

/// What a completion is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Completed {
    /// SEND
    Send,
    /// RDMA WRITE
    Write,
    /// RDMA READ
    Read,
    /// `CmpSwap`
    CompareSwap,
    /// `FetchAdd`
    FetchAdd,
    /// A received message
    Recv,
    /// A receive request that an RDMA WRITE with immediate took
    RecvWriteImm,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's name
    pub id: u64,
    /// The queue pair that it was posted to
    pub qpn: Qpn,
    /// How it ended
    pub status: Status,
    /// What it was
    pub of: Completed,
    /// Bytes received or fetched; with the 40 bytes of the GRH on a UD queue pair
    pub len: u32,
    /// Immediate data that came along
    pub immediate: Option<u32>,
    /// The region that the sender invalidated
    pub invalidated: Option<u32>,
    /// Who sent it, on a UD queue pair
    pub from: Option<(core::net::IpAddr, Qpn)>,
    /// Whether the sender asked for the receiver to be woken
    pub solicited: bool,
}

/// A completion queue: what has ended, oldest first.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    queue: VecDeque<Completion>,
    capacity: usize,
    /// Queues of queue pairs that complete here
    pub(crate) users: u32,
    /// A completion found no room (IB 11.6.3.2): what follows is lost, and the queue pairs go into the error state.
    pub(crate) overrun: bool,
}

impl CompletionQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { queue: VecDeque::new(), capacity, users: 0, overrun: false }
    }

    pub(crate) fn push(&mut self, completion: Completion) {
        if self.queue.len() < self.capacity {
            self.queue.push_back(completion);
        } else {
            self.overrun = true;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<Completion> {
        self.queue.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// A queue of receive requests: of one queue pair, or shared.
#[derive(Debug, Default)]
pub(crate) struct ReceiveQueue {
    pub(crate) queue: VecDeque<RecvRequest>,
    pub(crate) capacity: usize,
    /// Queue pairs that share it
    pub(crate) users: u32,
}
