//! Work requests, completions, completion queues and shared receive queues (IB 10.8, 11.4).

use crate::memory::Mr;
use crate::path::Path;
use rocev2::Qpn;
use std::collections::VecDeque;
use switch::Full;

/// Handle of a completion queue
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cq(pub(crate) u32);

/// Handle of a shared receive queue
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Srq(pub(crate) u32);

/// A scatter/gather element: a range of local memory within one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Memory region
    pub mr: Mr,
    /// Virtual address of the first byte
    pub va: u64,
    /// Length in bytes
    pub len: u32,
}

/// Data of a send request: the payload, or the buffer for the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// No data
    None,
    /// Bytes copied when the request is posted; not valid for READs and atomics
    Inline(Vec<u8>),
    /// Registered memory; the application must not access it until the request completes
    Memory(Sge),
}

impl Data {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Inline(bytes) => bytes.len(),
            Self::Memory(sge) => sge.len as usize,
        }
    }

    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// SEND
    Send,
    /// SEND with immediate data
    SendImm(u32),
    /// SEND with invalidate of the remote region with this key
    SendInvalidate(u32),
    /// RDMA WRITE
    Write(Remote),
    /// RDMA WRITE with immediate data
    WriteImm(Remote, u32),
    /// RDMA READ
    Read(Remote),
    /// `CmpSwap`: stores `swap` if the memory holds `compare`; fetches the previous value
    CompareSwap {
        /// Address of the 8 bytes, a multiple of 8
        at: Remote,
        /// Expected value
        compare: u64,
        /// New value
        swap: u64,
    },
    /// `FetchAdd`: adds modulo 2^64; fetches the previous value
    FetchAdd {
        /// Address of the 8 bytes, a multiple of 8
        at: Remote,
        /// Addend
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

    /// Returns whether it completes by a response that carries data.
    pub(crate) const fn fetches(self) -> bool {
        self.is_read() || self.is_atomic()
    }

    /// Returns whether it consumes a receive request, and therefore a credit, of the remote side
    /// (IB 9.7.7.2).
    pub(crate) const fn consumes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm(_) | Self::SendInvalidate(_) | Self::WriteImm(..))
    }
}

/// An address in remote memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Virtual address
    pub va: u64,
    /// `R_Key`
    pub rkey: u32,
}

impl Remote {
    /// Returns the address `bytes` bytes later.
    pub(crate) fn skip(self, bytes: usize) -> Self {
        Self { va: self.va.wrapping_add(bytes as u64), ..self }
    }
}

/// A work request for the send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    /// Work request ID; the completion carries it
    pub id: u64,
    /// Operation
    pub operation: Operation,
    /// Data
    pub data: Data,
    /// Whether success generates a completion; errors always do
    pub signaled: bool,
    /// Whether to set the solicited-event bit, which wakes the receiver
    pub solicited: bool,
    /// Whether to wait for all earlier READs and atomics
    pub fence: bool,
    /// Destination, on a UD queue pair
    pub to: Option<UdDestination>,
}

impl SendRequest {
    /// Returns a signaled request without destination.
    pub fn new(id: u64, operation: Operation, data: Data) -> Self {
        Self { id, operation, data, signaled: true, solicited: false, fence: false, to: None }
    }
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// Path
    pub path: Path,
    /// Remote queue pair number
    pub qpn: Qpn,
    /// Remote `Q_Key`
    pub qkey: u32,
}

/// A work request for the receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRequest {
    /// Work request ID; the completion carries it
    pub id: u64,
    /// Buffer for the message; `None` for a message of 0 bytes. A UD message starts after 40 bytes that are
    /// reserved for the GRH and hold the IP header (an IPv4 header in the last 20 of them).
    pub data: Option<Sge>,
}

/// Status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The request succeeded
    Success,
    /// The receive buffer is shorter than the message, or a message too long was posted
    LocalLength,
    /// The access flags or bounds of the local region do not allow the access
    LocalProtection,
    /// The queue pair went into the error state first
    Flushed,
    /// The responder rejected the request as invalid
    RemoteInvalidRequest,
    /// The responder rejected the access
    RemoteAccess,
    /// The responder failed to execute the request
    RemoteOperation,
    /// A response of wrong type or length
    BadResponse,
    /// No acknowledgement after all retries
    RetryExceeded,
    /// RNR NAKs after all retries
    RnrRetryExceeded,
}

/// Operation that a completion reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompletionOpcode {
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
    /// Received SEND
    Recv,
    /// Receive request that an RDMA WRITE with immediate consumed
    RecvWriteImm,
}

/// A work completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Work request ID
    pub id: u64,
    /// Queue pair to which the request was posted
    pub qpn: Qpn,
    /// Status
    pub status: Status,
    /// Operation
    pub opcode: CompletionOpcode,
    /// Bytes received or fetched; on a UD queue pair including the 40 bytes of the GRH
    pub len: u32,
    /// Immediate data of the message
    pub immediate: Option<u32>,
    /// Key of the region that the message invalidated
    pub invalidated: Option<u32>,
    /// Sender, on a UD queue pair
    pub from: Option<(core::net::IpAddr, Qpn)>,
    /// Whether the sender set the solicited-event bit
    pub solicited: bool,
}

/// A completion queue, oldest completion first.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    queue: VecDeque<Completion>,
    capacity: usize,
    /// Send and receive queues that complete here
    pub(crate) users: u32,
    /// Whether a completion found the queue full (IB 11.6.3.2). That completion and later ones are lost, and
    /// the queue pairs go into the error state.
    overrun: bool,
}

impl CompletionQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { queue: VecDeque::new(), capacity, users: 0, overrun: false }
    }

    /// Appends a completion. Returns whether the queue has overrun.
    pub(crate) fn push(&mut self, completion: Completion) -> bool {
        if self.queue.len() < self.capacity {
            self.queue.push_back(completion);
        } else {
            self.overrun = true;
        }
        self.overrun
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Completion> {
        self.queue.pop_front()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns whether it has lost a completion.
    pub(crate) const fn has_overrun(&self) -> bool {
        self.overrun
    }
}

/// A queue of receive requests, of one queue pair or shared.
#[derive(Debug)]
pub(crate) struct ReceiveQueue {
    queue: VecDeque<RecvRequest>,
    capacity: usize,
    /// Queue pairs that share it
    pub(crate) users: u32,
}

impl ReceiveQueue {
    pub(crate) const fn new(capacity: usize) -> Self {
        Self { queue: VecDeque::new(), capacity, users: 0 }
    }

    /// Appends a request. Fails if the queue is full.
    pub(crate) fn push(&mut self, request: RecvRequest) -> Result<(), Full> {
        if self.queue.len() >= self.capacity {
            return Err(Full);
        }
        self.queue.push_back(request);
        Ok(())
    }

    pub(crate) fn pop(&mut self) -> Option<RecvRequest> {
        self.queue.pop_front()
    }

    /// Puts a removed request back to the front.
    pub(crate) fn put_back(&mut self, request: RecvRequest) {
        self.queue.push_front(request);
    }

    pub(crate) fn front(&self) -> Option<RecvRequest> {
        self.queue.front().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }
}
