//! Bindings to the system's libdpdk, generated at build time. Nothing else: no type of our own, no policy.
//!
//! Static inline functions of DPDK are compiled into a small library by the build script, so each is a call into C.
//! What runs once a packet (mbuf fields, `rte_eth_fp_ops`) is therefore read in Rust by `dataplane` instead.

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
