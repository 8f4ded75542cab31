//! 1Pipe's controller (Li et al., "1Pipe: Scalable Total Order Communication in Data Center Networks", SIGCOMM
//! 2021, section 5.2): admits processes to the reliable service, decides which processes failed and up to which
//! time the messages of each count, and stores what it decides before any node hears of it.
//!
//! - [`graph`]: the routing graph, and which processes failed when links are dead;
//! - [`decide`]: what has to stand still around suspected nodes, and up to which time messages count, as functions
//!   of what nodes acknowledged;
//! - [`record`]: stored records and their encoding; [`store`]: where they are stored, by one leader at a time;
//! - [`machine`]: the state machine, without I/O. The messages are [`onepipe::control`];
//! - [`operator`]: requests of operators; [`server`]: the state machine with its connections, store and clocks.

#![forbid(unsafe_code)]

pub mod decide;
pub mod graph;
pub mod machine;
pub mod operator;
pub mod record;
pub mod server;
pub mod store;

pub use machine::Machine;
pub use store::Store;
