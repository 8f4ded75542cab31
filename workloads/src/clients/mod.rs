//! Clients of disaggregated memory, as workloads for experiments: locks ([`lock`]), a B-link tree
//! ([`sherman`]), a key-value store of lists ([`clover`]), and the operations that they execute ([`ycsb`]).
//! They send plain RDMA requests to a [`Server`] and contain no code for a switch in between.
//!
//! # Structure
//!
//! A client machine is [`Threads`], an [`rnic::App`]. Each of its threads has its own reliable connection and
//! executes one operation at a time, like the systems that the clients are modelled on. A thread runs a
//! [`Program`]: a future that posts requests to its connection through [`Verbs`] and awaits them. Only
//! completions and timers advance it, so the same frames at the same times give the same run, to the byte.
//!
//! A memory server is [`Server`], also an [`rnic::App`]: it gives clients regions of its memory, and does
//! nothing else. The private data of its REP describe the regions. Alternatively, QPNs and regions are
//! exchanged out of band ([`Threads::prepare`], [`Server::prepare`]).
//!
//! Completed operations are counted in an [`Account`], which any number of clients may share.

mod account;
pub mod clover;
pub mod lock;
mod region;
mod server;
pub mod sherman;
mod threads;
mod verbs;
pub mod ycsb;

pub use account::{Account, Kind, SharedAccount, Tally};
pub use region::Region;
pub use server::{Server, ServerMemory};
pub use threads::{ConnectMode, Program, Start, Thread, Threads, ThreadsConfig};
pub use verbs::{Stopped, Verbs};
