//! Measures: our functions against DPDK's own programs, and the traffic to measure with.

#![forbid(unsafe_code)]

pub mod compare;
pub mod consensus;
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
