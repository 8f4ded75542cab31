//! Host library of 1Pipe's best-effort service: the paper's Table 1 for the threads of an application (Li et
//! al., "1Pipe: Scalable Total Order Communication in Data Center Networks", SIGCOMM 2021, sections 2.1 and
//! 6.1).
//!
//! ```no_run
//! use onepipe_host::{Endpoint, ProcessId};
//!
//! let mut endpoint = Endpoint::init(onepipe_host::load("h1.process.toml".as_ref())?)?;
//! endpoint.send_fail_callback(|failed| eprintln!("message for process {} failed: {}", failed.dst, failed.why));
//! endpoint.unreliable_send(&[(ProcessId(2), b"to one"), (ProcessId(3), b"to another, at the same time")])?;
//! while let Some(message) = endpoint.unreliable_recv() {
//!     println!("{} from process {}: {} bytes", message.timestamp, message.src, message.payload.len());
//! }
//! endpoint.exit();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A process that starts refuses what was sent before; wait for [`Handle::is_open`] before the first message
//! whose sender is to know what became of it.
//!
//! # Threads
//!
//! [`Endpoint::init`] starts two threads: the *polling thread*, a worker of `dataplane` that owns the port
//! and the [`Process`](onepipe::Process), and a *control thread*, which sets the clock, answers ARP
//! and neighbour discovery, and stops both. The application's threads share rings with the polling thread,
//! for scatterings to be sent, delivered messages, and events. Neither side waits for the other, takes a lock
//! for it or makes a system call. An [`Endpoint`] may be [split](Endpoint::split), so that one thread sends
//! and another receives.
//!
//! Callbacks run in the thread that receives, inside [`unreliable_recv`](Endpoint::unreliable_recv) and
//! similar methods, never in the polling thread: there, a slow callback would delay this host's beacons, and
//! with them the messages of all receivers. So callbacks may send, wait, and take locks.
//!
//! # Reliable service
//!
//! With `[controller]` in its file, a process takes part in the reliable service (section 5):
//! [`reliable_send`](Endpoint::reliable_send), [`reliable_recv`](Endpoint::reliable_recv), the merged
//! [`recv`](Endpoint::recv) and [`proc_fail_callback`](Endpoint::proc_fail_callback). Without it, these calls are
//! refused.
//!
//! # Backpressure
//!
//! A scattering without room is refused with [`SendError::Full`]: when the ring is full, because the polling
//! thread waits for windows or for the port; or when as many messages are unsettled as the configuration
//! allows, including those whose events the application has not taken. A receiver that does not receive stops
//! its senders: its rings fill, then its windows, then the senders' rings. A sender probes for room with one
//! message per timeout, which fails as [`Failure::NoRoom`] if there is none.
//!
//! # One endpoint per program
//!
//! DPDK's environment can be started once per program, so a program can have only one endpoint, and only
//! once.

#![forbid(unsafe_code)]

mod config;
mod endpoint;
pub mod file;
mod function;
mod membership;
mod ring;
mod service;
mod submit;

pub use config::{Clock, Config, Controller, Settings};
pub use endpoint::{Endpoint, Failed, Handle, InitError, Receiver, Sender, Stall};
pub use file::load;
pub use function::{Command, ProcessFunction, ProcessLeft};
pub use onepipe::Timestamp;
pub use onepipe::process::{Counters, Event, Failure, Message, ProcessId, Refusal, Scattering, SendError};
pub use onepipe::process::{member, reliable};
pub use service::ReliableError;
