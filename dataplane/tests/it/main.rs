//! Workers and ports on DPDK's virtual devices.

mod common;
mod control;
mod copies;
mod errors;
mod events;
mod forward;
mod idle;
mod memif;
mod owners;
mod pools;
mod removal;
mod rings;
mod senders;
mod share;
mod stalls;
mod watch;
