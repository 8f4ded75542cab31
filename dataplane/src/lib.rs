//! Runs a switch function on DPDK: EAL, ports, mbufs and mempools, poll-mode workers (lcores), the hand-off
//! rings between workers, and the queues to and from the control plane. All decisions about packets are made
//! in the function.
//!
//! [`Runtime::start`] initialises the EAL and the ports. [`Runtime::run`] polls the ports until it is
//! stopped. Dropping the runtime closes and frees everything. A process has one EAL, which cannot be
//! initialised a second time.

mod claim;
pub mod config;
mod control;
pub mod counters;
mod eal;
mod error;
mod idle;
mod inputs;
pub mod interface;
mod interrupt;
mod link;
mod live;
pub mod log;
mod mbuf;
mod memif;
mod missing;
mod netlink;
mod plane;
mod port;
mod runtime;
mod stopwatch;
mod time;
mod tx;
pub mod unix_socket;
mod users;
pub mod watch;
mod worker;

pub use config::Config;
pub use control::{ControlHandler, ControlOutput, NoControl, QueueFull};
pub use error::Error;
pub use inputs::CHUNK as INPUT_CHUNK;
pub use link::{Link, LinkChange};
pub use live::{DeviceCounters, Devices, Live, PortState};
pub use mbuf::Mbuf;
pub use plane::ControlPlane;
pub use port::PortInfo;
pub use runtime::{Outcome, Runtime, Stop, WorkerMain, WorkerThread, run_worker};
pub use stopwatch::{Laps, Stopwatch};
pub use tx::QUEUE as TX_QUEUE;
