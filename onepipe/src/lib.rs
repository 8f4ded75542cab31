//! 1Pipe (Li et al., "1Pipe: Scalable Total Order Communication in Data Center Networks", SIGCOMM 2021): the
//! formats of its packets, and the [`Process`], the endpoint that sends scatterings and delivers messages in
//! total order. The crate `representative` has 1Pipe's switches, and `onepipe-host` the host library.
//!
//! [`OnePipe`] is the header at the start of a RoCEv2 payload. Three modules handle frames with this header
//! without parsing them: [`datagram`] the messages of a process, [`beacon`] the beacons of a neighbour, and
//! [`mod@stamp`] the barriers that a switch writes into packets that pass. [`Discipline`] is the clock of processes and
//! switches.

#![forbid(unsafe_code)]

pub mod beacon;
mod clock;
pub mod clock_sync;
pub mod control;
pub mod datagram;
pub mod ends;
mod header;
pub mod process;
mod reliable;
pub mod stamp;

pub use clock::{ClockSample, ClockSource, Discipline};
pub use header::{AckBody, NakBody, OnePipe, OnePipeOpcode, Timestamp};
pub use process::{Process, ProcessId};
pub use reliable::{RecallBody, RecallResult, ReliableAckBody};
pub use stamp::stamp;
