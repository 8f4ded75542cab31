//! A RoCEv2 packet generator: streams of every verb at exact rates, from a seed. Its receiver reports for
//! each packet whether it arrived, how often, in which order and after how long. Its responder answers
//! requests as a NIC on a lossless link would.
//!
//! All three are one [`switch::Function`], [`Pktgen`]. It owns no socket, thread or clock: a run in virtual
//! time is reproducible to the byte, and tests compare the receiver's counters with what was done to the
//! packets.
//!
//! # Call order
//!
//! Build a [`Profile`], check it with [`Profile::check`], and create the generator with [`Pktgen::new`]. Send
//! it [`Command::Begin`], then call `on_timer` when `next_timer` is due and `on_frame` for each received
//! frame. When `poll_event` returns [`Event::Done`], the counters are final.
//!
//! With several workers, each has an instance ([`Pktgen::of_worker`]), which sends and checks what is on some of each
//! stream's queue pairs, at its share of the rate. Frames belong to the worker that has their queue pair
//! ([`owner`](switch::Function::owner)), and [`Totals`] adds the counters.
//!
//! # Invariants of the counters
//!
//! For each stream, at any time between two calls ([`counters::StreamCounters`]):
//!
//! * packets sent = received + lost + unseen. *Lost* packets were overtaken by a later packet of their queue
//!   pair; *unseen* packets were not overtaken yet: they are in flight, or were lost at the end. Duplicates
//!   are in neither.
//! * requests = answered + unanswered + outstanding, with [`profile::Stream::outstanding`].
//!
//! For all received frames: frames = received + duplicates + stale + unexpected + reflected + responses +
//! unexpected responses of all streams, plus frames that are malformed, have a wrong ICRC, belong to no
//! stream, or are not RoCEv2.

#![forbid(unsafe_code)]

mod chooser;
pub mod counters;
mod error;
mod function;
mod histogram;
mod limits;
mod locks;
mod malformed;
mod matcher;
mod memory;
mod message;
pub mod pace;
mod part;
pub mod profile;
mod rates;
mod receiver;
mod requester;
mod responder;
mod schedule;
mod sender;
mod template;
mod totals;
mod uniform;
mod window;

pub use counters::Counters;
pub use error::ProfileError;
pub use function::{Command, Event, Pktgen};
pub use histogram::Histogram;
pub use pace::{Rate, Unit};
pub use part::Share;
pub use profile::{Choice, Profile, Stream, Verb};
pub use rates::{AtRate, RateHistory, RateMark};
pub use totals::Totals;
