//! What crosses crates: real captures, and the table of packets that drives tests and benchmarks.

#![forbid(unsafe_code)]

pub mod alone;
pub mod captures;
pub mod instructions;
pub mod nics;
pub mod packets;
pub mod processes;
