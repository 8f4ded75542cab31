//! Values that a process and its application exchange (1Pipe, Table 1).

use crate::header::Timestamp;
use core::fmt;
use switch::Nanos;
use switch::table::Key;

/// Number of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ProcessId(pub u32);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Key for ProcessId {
    fn hash(&self) -> u64 {
        self.0.into()
    }
}

/// Number of a scattering that was passed to this process; numbers start from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scattering(pub u64);

/// Message that is delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Position in the total order, together with the sender
    pub timestamp: Timestamp,
    /// Sender of the message
    pub src: ProcessId,
    /// Payload
    pub payload: Vec<u8>,
}

/// Event for the application, other than a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message is not known to have arrived (1Pipe, Table 1, `onepipe_send_fail_callback`). It was not
    /// delivered if [`why`](Failure) is [`Lost`](Failure::Lost), [`Late`](Failure::Late) or
    /// [`NoRoom`](Failure::NoRoom); otherwise it may have been. No other event about the message follows but
    /// the scattering's [`Settled`](Self::Settled).
    SendFailed {
        /// Scattering of the message
        scattering: Scattering,
        /// Timestamp of the scattering, if it has been stamped
        timestamp: Option<Timestamp>,
        /// Receiver of the message
        dst: ProcessId,
        /// Index of the message in the call
        part: u32,
        /// Reason
        why: Failure,
    },
    /// For every message of a scattering, it is known whether it has arrived in time.
    Settled {
        /// The scattering
        scattering: Scattering,
        /// Timestamp of the scattering, if it has been stamped
        timestamp: Option<Timestamp>,
        /// Number of its messages that have failed
        failed: u32,
    },
    /// The barrier of the process's link has not risen for [`stall_after`](super::Config::stall_after):
    /// nothing is delivered. A link, a switch or a clock in the network has failed, or this process's link.
    Stalled {
        /// The barrier; `None` if there has not been any
        barrier: Option<Timestamp>,
    },
    /// The barrier rises again.
    Recovered {
        /// The new barrier
        barrier: Timestamp,
        /// Time for which it stood still, to the beacon interval
        after: Nanos,
    },
}

/// Reason why a message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// The message, or a part of it, was lost in the network.
    #[error("lost in the network")]
    Lost,
    /// The message arrived when later ones might have been delivered already.
    #[error("arrived too late")]
    Late,
    /// The receiver had no room for the message.
    #[error("no room at the receiver")]
    NoRoom,
    /// The message was not acknowledged in time. If only the ACK was lost, it was delivered; if the receiver
    /// restarted, its previous incarnation may have delivered it.
    #[error("not acknowledged in time")]
    NotAcknowledged,
    /// The receiver is known to have failed.
    #[error("the receiver has failed")]
    Dead,
    /// This process left before the message was acknowledged.
    #[error("this process has left")]
    Left,
}

/// Reason why a scattering was refused. Nothing of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The scattering has no messages.
    #[error("the scattering has no messages; pass at least one")]
    Empty,
    /// A receiver is not in the table of peers.
    #[error("process {0} is unknown; add it to the table of peers")]
    Unknown(ProcessId),
    /// A receiver is known to have failed.
    #[error("process {0} has failed")]
    Dead(ProcessId),
    /// A message is longer than [`MAX_MESSAGE`](super::MAX_MESSAGE).
    #[error("message of {len} bytes for process {dst} is too long; send at most 16 MiB")]
    TooLong {
        /// Receiver of the message
        dst: ProcessId,
        /// Length of the message, in bytes
        len: usize,
    },
    /// The messages for one receiver would never fit into that receiver's window.
    #[error(
        "messages for process {dst} take {cost} bytes of its window of {window}; send less at once or enlarge receive_window"
    )]
    TooLarge {
        /// Receiver of the messages
        dst: ProcessId,
        /// Their cost, in bytes, including [`PACKET_COST`](super::PACKET_COST) for each packet
        cost: usize,
        /// Size of an empty [window](super::Config::receive_window), in bytes
        window: usize,
    },
    /// The scattering would not even fit into an empty send buffer.
    #[error("{messages} messages of {bytes} bytes never fit into the send buffer; send less at once")]
    TooMuch {
        /// Sum of the messages' lengths, in bytes
        bytes: usize,
        /// Number of messages
        messages: usize,
    },
    /// The send buffer is full, or too many messages are not settled. Events that have not been polled count,
    /// too.
    #[error("the send buffer is full; try again later")]
    Full,
    /// This process has left.
    #[error("this process has left")]
    Left,
}
