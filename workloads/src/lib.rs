//! Workloads for the simulator, and checkers of their results.
//!
//! * [`verbs`]: every verb of an RDMA NIC, between each two hosts; [`words`]: atomics on words that clients
//!   contend for, checked for linearizability ([`words::linear`]).
//! * [`groups`]: P4CE's leaders and replicas; [`consensus`]: servers that replicate a log; [`rdmc`]: groups
//!   that relay objects.
//! * [`rack`]: a rack of disaggregated memory with the [`clients`] of its servers (locks, a B-link tree, a
//!   store of lists); [`registers`] checks what they read.
//! * [`onepipe`]: trees and fat trees of 1Pipe's switches and processes.
//! * [`scenario`]: drawn networks with one of these workloads, from a file, and their shrinking.

#![forbid(unsafe_code)]

pub mod clients;
pub mod consensus;
pub mod groups;
pub mod onepipe;
pub mod rack;
pub mod rdmc;
pub mod registers;
pub mod scenario;
pub mod verbs;
pub mod words;
