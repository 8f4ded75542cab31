//! What crosses crates: the table of packets that drives tests and benchmarks.

#![forbid(unsafe_code)]

pub mod packets;
