//! Configuration files: TOML is read into plain values, or all problems are reported, each with its position
//! and a remedy.
//!
//! [`file::parsed`] reads a text; [`tree`] reads its tables. [`Dpdk`] is the part that every file of a
//! program with ports has: `[runtime]` and `[[port]]`. Other tables are read by their users: the program's
//! functions, and the host library's `[process]`.

#![forbid(unsafe_code)]

pub mod address;
pub mod capture;
mod conflicts;
pub mod declare;
mod device;
mod dpdk;
pub mod file;
pub mod machine;
pub mod memory;
mod paths;
mod pcap;
pub mod port;
mod problems;
pub mod reference;
pub mod report;
pub mod runtime;
mod spec;
pub mod syntax;
pub mod tree;
mod value;
pub mod words;

pub use dpdk::{Dpdk, TABLES};
pub use machine::Machine;
pub use paths::socket_path;
pub use report::{Finding, Problem, Report};
