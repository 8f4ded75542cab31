//! Shared code of tests and benchmarks that span crates: real captures, a table of packets, instruction
//! counts, connected NICs, child processes, servers of etcd, and searches for planted bugs.

#![forbid(unsafe_code)]

pub mod alone;
pub mod captures;
pub mod etcd;
pub mod etcd_stand_in;
pub mod instructions;
pub mod nics;
pub mod packets;
pub mod planted;
pub mod processes;

/// Compiles and runs the code of a page of the docs.
#[cfg(doctest)]
#[doc = include_str!("../../docs/write-a-function.md")]
pub struct WriteAFunction;
