//! Switch functions and the forwarding, impairing and tunnel functions. The crate does no I/O and has no
//! clock or thread: a [`Function`] is a state machine over frames. `dataplane` runs it on DPDK, the simulator
//! in virtual time, and tests on byte arrays ([`memory`]).

#![forbid(unsafe_code)]

pub mod control;
pub mod counters;
pub mod drop;
pub mod forward;
pub mod function;
pub mod heap;
pub mod impair;
pub mod memory;
pub mod metrics;
pub mod random;
pub mod table;
pub mod timers;
pub mod tunnel;

pub use control::{Control, Egress};
pub use drop::DropReason;
pub use function::{Frame, Full, Function, Nanos, NoRoom, Output, PortId, Verdict};
pub use random::{Probability, Rng};
