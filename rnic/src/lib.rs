//! An RDMA NIC in software: RC, UC and UD queue pairs, memory regions, completion queues, go-back-N, atomics,
//! end-to-end credits, DCQCN, ARP and neighbour discovery, and the communication manager. It is the peer in
//! tests, and the RDMA host on machines that have no RNIC.
//!
//! # Usage
//!
//! A [`Rnic`] does no I/O and reads no clock. Its caller
//!
//! * passes every frame that arrives to [`Rnic::on_frame`],
//! * calls [`Rnic::poll_transmit`] for frames to send whenever the port has room, after every call that may
//!   have produced some,
//! * calls [`Rnic::on_timer`] at the time that [`Rnic::next_timer`] returns,
//! * and uses the verbs as an application does: [`Rnic::post_send`], [`Rnic::poll_cq`], ...
//!
//! All times are [`switch::Nanos`] of one monotonic clock. The same sequence of calls produces the same
//! frames, byte for byte.
//!
//! # Cost
//!
//! The cost of a packet does not depend on the number of queue pairs: a queue pair is found by its number in
//! an array, queue pairs with something to send are in a round-robin queue, and queue pairs that wait for a
//! deadline have one entry each in a timer heap.
//!
//! Source: InfiniBand Architecture Specification Volume 1, Release 1.4 ("IB"), chapters 9 to 12 and annex
//! A17.

#![forbid(unsafe_code)]

pub mod cm;
pub mod congestion;
mod counters;
mod endpoint;
mod gsi;
mod host_function;
pub mod memory;
mod neighbour;
mod nic;
mod qp;
mod queue;
mod receive;
mod requester;
mod requester_rx;
mod responder;
mod responder_rx;
mod responder_tx;
mod send;
mod timers;
mod wire;

pub use congestion::Dcqcn;
pub use counters::Counters;
pub use endpoint::Endpoint;
pub use gsi::{ConnError, ConnParam};
pub use host_function::{App, HostCall, HostFunction, Outbox};
pub use memory::{Access, AccessError, Buffer, MemoryError, Mr, Pd, Region};
pub use neighbour::Interface;
pub use nic::{Config, Event, ResourceCounts, Rnic};
pub use qp::{Modify, Path, PathMtu, QpError, QpInit, ReadyToReceive, ReadyToSend, State, Transport};
pub use queue::{
    Completion, CompletionOpcode, Cq, Data, Datagram, Operation, RecvRequest, Remote, SendRequest, Sge, Srq,
    Status,
};
pub use responder::AckPolicy;

/// Bugs that a test can plant with [`Config`]'s field `bug`, to check that the test suites find them. Debug
/// builds only.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// An acknowledgement covers one packet that has not arrived
    AckTooFar,
    /// A duplicate atomic is executed again
    AtomicTwice,
    /// A duplicate SEND is delivered again
    NoDuplicateCheck,
    /// PSNs are compared without wrap-around
    WrongWrap,
    /// A READ returns the data of the previous READ from the same address
    StaleRead,
    /// Requests leave only when no response is owed
    ResponsesFirst,
    /// An acknowledgement timeout is ignored while a packet waits for the DCQCN rate
    PaceExcuses,
    /// A queue pair's access flags are not checked
    AnyAccess,
}

#[cfg(debug_assertions)]
impl Bug {
    /// Every bug.
    pub const ALL: [Self; 8] = [
        Self::AckTooFar,
        Self::AtomicTwice,
        Self::NoDuplicateCheck,
        Self::WrongWrap,
        Self::StaleRead,
        Self::ResponsesFirst,
        Self::PaceExcuses,
        Self::AnyAccess,
    ];
}

#[cfg(test)]
mod tests;
