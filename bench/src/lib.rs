//! Benchmarks: switch functions compared with DPDK's own programs, traffic to measure with, RFC 2544 tests,
//! and reproductions of the papers' figures.
//!
//! Each module is a subcommand of `understudy bench`: its `run` measures and prints.

#![forbid(unsafe_code)]

pub mod compare;
pub mod consensus;
pub mod health;
pub mod hgrm;
pub mod observe;
pub mod onepipe;
pub mod p4ce;
pub mod paper;
pub mod peers;
pub mod pktgen;
mod process;
pub mod rfc2544;
pub use process::OWN_TIME;
pub mod swordbox;
mod telemetry;
pub mod traffic;
pub mod workers;
