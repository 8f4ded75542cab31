//! A packet generator for RoCEv2: streams of every verb at exact rates, from a seed; a receiver that knows of each packet
//! whether it came, how often, in which order and how late; and a responder that answers as a NIC would on a good wire.
//!
//! All three are one [`switch::Function`], [`Pktgen`]: it owns no socket, thread or clock, so a run in virtual time repeats to
//! the byte, and what a receiver says can be compared with what was done to its packets.
//!
//! # What always adds up
//!
//! For each stream, at any time between two calls ([`counters::StreamCounters`]):
//!
//! * packets sent = received + lost + unseen. *Lost* are those that later ones of their queue pair have overtaken; *unseen*
//!   those behind which none came yet: in flight, or lost at the end. Duplicates are no part of it.
//! * requests = answered + unanswered + outstanding, with [`profile::Stream::outstanding`].
//!
//! And for all frames that came in: frames = received + duplicates + stale + unexpected + reflected + responses + unexpected
//! responses of all streams, and those that are malformed, have a wrong ICRC, are not of any stream, or no RoCEv2 packets.

#![forbid(unsafe_code)]

mod alias;
mod alike;
pub mod counters;
mod emitter;
mod function;
mod histogram;
mod known;
mod malformed;
mod memory;
mod message;
pub mod pace;
pub mod profile;
mod receiver;
mod requester;
mod responder;
mod template;
mod window;

pub use counters::Counters;
pub use function::{Command, Event, Pktgen};
pub use histogram::Histogram;
pub use pace::{Rate, Unit};
pub use profile::{Choice, Profile, ProfileError, Stream, Verb};
