//! Deterministic network simulator in virtual time: links, faults, clocks, hosts and switches, all from one
//! seed.
//!
//! The simulator never waits and takes no input from the machine that it runs on: a [`World`] goes from one
//! event to the next. Two runs of the same world with the same seed are identical to the byte;
//! [`World::digest`] is the check.
//!
//! * Any [`switch::Function`] is a switch ([`Switch`]); it is the same code that runs on DPDK.
//! * Any [`rnic::Rnic`] with an application ([`App`]) is a host ([`Host`]); anything else that implements
//!   [`Node`] can take part, too.
//! * [`Link`]s delay, lose, duplicate, reorder, corrupt, queue and mark frames; [`Fault`]s crash and pause
//!   nodes, cut links and set clocks.

#![forbid(unsafe_code)]

mod clock;
mod controlled;
mod fault;
mod forger;
mod frame;
mod host;
mod link;
mod net;
mod node;
mod pcap;
mod responder;
mod switch_node;
mod turns;
mod workers;
mod world;

pub use clock::{Clock, EPOCH};
pub use controlled::{CONTROL_LATENCY, Controlled, Queues};
pub use fault::Fault;
pub use forger::{Address, Forger, ForgerConfig, forged_packet};
pub use host::{Host, draws_forgetful, nic};
pub use link::{Counters as LinkCounters, Ecn, Link, LinkId, OVERHEAD};
pub use node::{Node, NodeId, Ports};
pub use responder::{Costs, Executed, MemoryCosts};
pub use rnic::App;
/// Counters of a NIC, as part of the results of workloads
pub use rnic::Counters as NicCounters;
pub use switch_node::{Counters as SwitchCounters, Switch};
pub use workers::Workers;
pub use world::World;
