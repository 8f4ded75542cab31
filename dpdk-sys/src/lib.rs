//! Bindings to the system's libdpdk, generated at build time. The crate adds no types and makes no decisions.
//!
//! The build script compiles DPDK's static inline functions into a small library, so each of them costs a
//! call into C. `dataplane` therefore accesses in Rust what it needs for each packet (mbuf fields,
//! `rte_eth_fp_ops`).

#![allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    rust_2018_idioms,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::pedantic,
    clippy::undocumented_unsafe_blocks,
    reason = "generated code"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
