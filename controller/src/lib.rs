//! 1Pipe's controller (Li et al., "1Pipe: Scalable Total Order Communication in Data Center Networks", SIGCOMM
//! 2021, section 5.2): admits processes to the reliable service, decides which processes failed and up to which
//! time the messages of each count, and stores what it decides before it tells anybody.
//!
//! [`graph`] is the routing graph; [`record`] has what is stored, [`store`] where.

#![forbid(unsafe_code)]

pub mod decide;
pub mod graph;
pub mod machine;
pub mod record;
pub mod store;
