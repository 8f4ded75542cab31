//! A software RDMA NIC: queue pairs (RC, UC, UD), memory regions, completion queues, go-back-N, atomics, credits,
//! DCQCN, ARP and neighbour discovery, and the communication manager. It is the peer in tests, and the host where no
//! RNIC is.
//!
//! # How to use it
//!
//! A [`Rnic`] does no I/O and reads no clock. Whoever owns it
//!
//! * hands it every frame that arrives ([`Rnic::on_frame`]),
//! * asks it for frames whenever the wire has room ([`Rnic::poll_transmit`]), after every call that may have made some,
//! * calls [`Rnic::on_timer`] when [`Rnic::next_timer`] says so,
//! * and uses it as an application does: [`Rnic::post_send`], [`Rnic::poll_cq`], ...
//!
//! All times are [`switch::Nanos`] of one clock. The same calls give the same frames, to the byte.
//!
//! # What it keeps
//!
//! The cost of a packet does not grow with the number of queue pairs: they are found by their number in an array, those
//! that have something to send stand in a round, and those that wait for something have one entry in a heap of timers.
//!
//! Sources: InfiniBand Architecture Specification Volume 1, Release 1.4 ("IB"), chapters 9 to 12 and annex A17.

#![forbid(unsafe_code)]

mod answer;
pub mod cm;
pub mod congestion;
mod counters;
mod endpoint;
mod gsi;
pub mod memory;
mod neighbour;
mod nic;
mod qp;
mod queue;
mod receive;
mod request;
mod requester;
mod responder;
mod response;
mod send;
mod station;
mod timers;
mod wire;

pub use congestion::Dcqcn;
pub use counters::Counters;
pub use endpoint::Endpoint;
pub use gsi::{ConnError, ConnParam};
pub use memory::{Access, AccessError, Buffer, MemoryError, Mr, Pd, Region};
pub use neighbour::Interface;
pub use nic::{Config, Event, Held, Rnic};
pub use qp::{Modify, Path, PathMtu, QpError, QpInit, ReadyToReceive, ReadyToSend, State, Transport};
pub use queue::{
    Completed, Completion, Cq, Data, Datagram, Operation, RecvRequest, Remote, SendRequest, Sge, Srq, Status,
};
pub use responder::AckPolicy;
pub use station::{App, Call, Outbox, Station};

/// Bugs that can be planted, to see whether tests find them.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bug {
    /// An acknowledgement covers one packet that has not come
    AckTooFar,
    /// A duplicate of an atomic is executed again
    AtomicTwice,
    /// A duplicate of a SEND is delivered again
    NoDuplicateCheck,
    /// PSNs are compared as if they did not wrap
    WrongWrap,
    /// A READ returns what the READ of the same place before returned
    StaleRead,
    /// Requests leave only where no response is owed
    ResponsesFirst,
    /// A missing acknowledgement is not noticed while anything waits for the pace
    PaceExcuses,
    /// A queue pair's access rights are not checked
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
