//! A deterministic network in virtual time: links, faults, clocks, hosts and switches, all from one seed.
//!
//! Nothing here waits, and nothing is left to the machine: a [`World`] passes from one thing that happens to the next.
//! The same world with the same seed does the same, to the byte, which [`World::digest`] tells.
//!
//! * Any [`switch::Function`] is a switch ([`Switch`]): the one that runs on DPDK.
//! * Any [`rnic::Rnic`] with an application ([`App`]) is a host ([`Host`]); anything else that implements [`Node`], too.
//! * [`Link`]s take time, lose, duplicate, reorder, damage, queue and mark; [`Fault`]s crash, pause, cut and set clocks.

#![forbid(unsafe_code)]

mod clock;
pub mod consensus;
mod controlled;
mod fault;
mod frame;
pub mod groups;
mod host;
mod liar;
mod link;
mod net;
mod node;
pub mod onepipe;
mod pcap;
pub mod rack;
pub mod rdmc;
pub mod registers;
mod responder;
pub mod scenario;
mod switch_node;
pub mod verbs;
pub mod words;
mod world;

pub use clock::{Clock, EPOCH};
pub use controlled::{CONTROL_LATENCY, Controlled, Queues};
pub use fault::Fault;
pub use host::{Host, nic};
pub use liar::{Address, Liar, LiarConfig};
pub use link::{Counters as LinkCounters, Ecn, Link, OVERHEAD};
pub use node::{Node, Ports};
pub use responder::{Costs, Executed, MemoryCosts};
pub use rnic::App;
/// What NICs count, as outcomes tell
pub use rnic::Counters as NicCounters;
pub use switch_node::{Counters as SwitchCounters, Switch};
pub use world::{LinkId, NodeId, World};
