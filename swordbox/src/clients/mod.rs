//! Clients of disaggregated memory, as load for experiments: locks ([`lock`]), a B-link tree ([`sherman`]), a key-value
//! store of lists ([`clover`]), and what they are asked for ([`ycsb`]). They speak plain RDMA to a [`Server`] and know
//! nothing of a switch between them: with one and without, the code is the same.
//!
//! # How it fits together
//!
//! A client machine is [`Threads`], an [`rnic::App`]: so many threads, each with a reliable connection of its own and one
//! thing to do at a time, as the systems are that they are modelled on. What a thread does is a [`Program`]: a future
//! that posts requests to its connection by [`Verbs`] and waits for them. Nothing runs it but completions, so the
//! same frames and times give the same run, to the byte.
//!
//! A memory server is [`Server`], an [`rnic::App`], too: it gives clients regions of its memory, and does nothing else.
//! What it tells of them stands in the private data of its REP; or QPNs and regions are exchanged by other means
//! ([`Threads::prepare`], [`Server::prepare`]).
//!
//! What clients have done is counted in an [`Account`], which any number of them share.

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
pub use server::{Memory, Server};
pub use threads::{Connect, Program, Start, Thread, Threads, ThreadsConfig};
pub use verbs::{Stopped, Verbs};
