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
mod config;
pub mod congestion;
mod connections;
mod counters;
mod endpoint;
mod host_function;
pub mod memory;
mod neighbour;
mod nic;
pub mod part;
mod path;
mod qp;
mod queue;
mod wire;

pub use config::Bug;
pub use config::{AckPolicy, Config};
pub use congestion::Dcqcn;
pub use connections::{ConnError, ConnParam};
pub use counters::Counters;
pub use endpoint::Endpoint;
pub use host_function::{App, HostCall, HostFunction, Outbox};
pub use memory::{Access, AccessError, Buffer, MemoryError, Mr, Pd, Region};
pub use neighbour::Interface;
pub use nic::{ResourceCounts, Rnic};
pub use part::{Notice, Part};
pub use path::{Path, PathMtu};
pub use qp::{Event, Modify, QpError, QpInit, ReadyToReceive, ReadyToSend, State, Transport};
pub use queue::{
    Completion, CompletionOpcode, Cq, Data, Operation, RecvRequest, Remote, SendRequest, Sge, Srq, Status,
    UdDestination,
};

#[cfg(test)]
mod tests;
