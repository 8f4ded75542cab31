//! What a switch function is, and the first of them. No I/O, no clock, no thread: a [`Function`] is a state machine
//! over frames, run by `dataplane` on DPDK, by a simulator in virtual time, and by tests on byte arrays.

#![forbid(unsafe_code)]

pub mod control;
pub mod counters;
pub mod drop;
pub mod forward;
pub mod function;
pub mod heap;
pub mod impair;
pub mod memory;
pub mod random;
pub mod table;
pub mod tunnel;

pub use control::{Control, Egress};
pub use drop::DropReason;
pub use function::{Frame, Full, Function, Nanos, NoRoom, Output, PortId, Verdict};
pub use random::{Chance, Share};
