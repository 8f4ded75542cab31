//! RDMC: large objects to many hosts, over RDMA unicast (Behrens et al., *RDMC: A Reliable RDMA Multicast for Large
//! Objects*, DSN 2018).
//!
//! An object is cut into blocks, and receivers relay: while a block comes in, another one goes out. [`schedule`] says who
//! sends which block to whom at which step. No I/O and no clock.

#![forbid(unsafe_code)]

pub mod model;
pub mod schedule;

pub use schedule::{Algorithm, Racks, Receive, Schedule, ScheduleError, Send, To};
