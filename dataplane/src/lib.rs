//! Runs a switch function on DPDK: the environment, ports, packet buffers, poll-mode workers, the rings between them
//! and the queues to and from the control plane. Nothing that decides anything about a packet lives here.
//!
//! [`Runtime::start`] brings up the EAL and the ports, [`Runtime::run`] polls them until it is told to stop, and
//! dropping the runtime closes and frees everything. There is one EAL a process, and it cannot be started twice.

pub mod config;
mod control;
pub mod counters;
mod eal;
mod error;
mod idle;
mod mbuf;
mod memif;
pub mod place;
mod plane;
mod port;
mod runtime;
mod stopwatch;
mod time;
mod tx;
mod users;
pub mod watch;
mod worker;

pub use config::Config;
pub use control::{Control, ControlOutput, Passive, QueueFull};
pub use error::Error;
pub use mbuf::Mbuf;
pub use plane::Plane;
pub use port::PortInfo;
pub use runtime::{DeviceCounters, Live, Outcome, Runtime, Stop};
pub use stopwatch::{Laps, Stopwatch};
pub use tx::QUEUE as TX_QUEUE;
