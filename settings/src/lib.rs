//! Configuration files: TOML in, plain values out, or everything that is wrong with it, each problem at its place with what to write
//! instead.
//!
//! [`file::parsed`] reads a text; [`tree`] says how its tables are read. [`Dpdk`] is the part that every file has whose program
//! polls ports: `[runtime]` and `[[port]]`. What else stands there is for whoever reads it: the program's functions, the host
//! library's `[process]`.

#![forbid(unsafe_code)]

pub mod address;
pub mod capture;
mod clash;
mod device;
mod dpdk;
pub mod file;
pub mod machine;
pub mod memory;
mod pcap;
pub mod port;
pub mod report;
pub mod runtime;
pub mod syntax;
pub mod tree;
pub mod words;

pub use device::socket_path;
pub use dpdk::Dpdk;
pub use machine::Machine;
pub use report::{Finding, Problem, Report};
