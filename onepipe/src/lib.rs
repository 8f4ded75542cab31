//! 1Pipe's host library, best effort: the paper's Table 1 for the threads of an application (Li et al., "1Pipe: Scalable Total Order
//! Communication in Data Center Networks", SIGCOMM 2021, sections 2.1 and 6.1).
//!
//! ```no_run
//! use onepipe::{Endpoint, ProcessId};
//!
//! let mut endpoint = Endpoint::init(onepipe::load("h1.process.toml".as_ref())?)?;
//! endpoint.send_fail_callback(|failed| eprintln!("message for process {} failed: {}", failed.dst, failed.why));
//! endpoint.unreliable_send(&[(ProcessId(2), b"to one"), (ProcessId(3), b"to another, at the same time")])?;
//! while let Some(message) = endpoint.unreliable_recv() {
//!     println!("{} from process {}: {} bytes", message.timestamp, message.src, message.payload.len());
//! }
//! endpoint.exit();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Threads
//!
//! [`Endpoint::init`] starts two: the *polling thread*, a worker of `dataplane` which owns the port and the
//! [`Process`](representative::Process), and a *control thread* beside it, which sets the clock, answers who asks for the address, and
//! ends both. The application's threads share rings with the polling thread: of what is to be sent, of what was delivered, and of
//! events. Neither side waits for the other, takes a lock for it or makes a system call. An [`Endpoint`] may be
//! [split](Endpoint::split), so that one thread sends and another receives.
//!
//! Callbacks run in the thread that receives, inside [`unreliable_recv`](Endpoint::unreliable_recv) and its like, never in the polling
//! thread: one that takes its time would keep back this host's beacons, and with them everybody's messages. So they may send, wait, and
//! take locks.
//!
//! # Backpressure
//!
//! What does not fit is refused with [`SendError::Full`]: when the ring is full, because the polling thread waits for windows or for
//! the wire; or when so many messages are not settled as the configuration allows, to which events that nobody has taken belong.
//! Who does not receive is not sent any more: rings fill, then windows, and senders find theirs full. Whether there is room again
//! they learn by one message a time-out, which fails as [`Failure::NoRoom`] if there is none.
//!
//! # One endpoint a program
//!
//! DPDK's environment can be started once in a program, so there can be one endpoint, once.

#![forbid(unsafe_code)]

mod config;
mod endpoint;
pub mod file;
mod function;
mod ring;
mod submit;

pub use config::{Clock, Config, Settings};
pub use endpoint::{Endpoint, Failed, Handle, InitError, Receiver, Sender};
pub use file::load;
pub use function::{Command, Gone, Host};
pub use representative::process::{
    Counters, Event, Failure, Message, ProcessId, Refusal, Scattering, SendError,
};
pub use rocev2::onepipe::Timestamp;
