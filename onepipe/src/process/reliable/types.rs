//! Values that the reliable service exchanges with the application and with the controller's messages.

use super::super::config::ConfigError;
use super::super::types::{ProcessId, Scattering, SendError};
use crate::header::Timestamp;
use rocev2::Qpn;

/// Member of the reliable service: an incarnation of a process that the controller has admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Number of the process
    pub id: ProcessId,
    /// Number of the incarnation, later than that of any earlier incarnation of the process
    pub incarnation: u32,
    /// Queue pair of the incarnation
    pub qpn: Qpn,
    /// Bytes that this member grants to each sender, [`PACKET_COST`](super::super::PACKET_COST) included for
    /// each packet
    pub grant: u32,
}

/// Failed incarnation of a process, as the controller has determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// Number of the controller's case
    pub case: u64,
    /// Number of the process
    pub process: ProcessId,
    /// Number of its incarnation that has failed
    pub incarnation: u32,
    /// T_P: messages of the process with later timestamps are discarded (1Pipe, section 5.2)
    pub timestamp: Timestamp,
}

/// Recall of a message by a sender that a failed receiver has not answered: the controller stores it for the
/// receiver's recovery (1Pipe, section 5.2, receiver recovery).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredRecall {
    /// Sender of the message
    pub sender: ProcessId,
    /// Receiver, which has failed
    pub receiver: ProcessId,
    /// Incarnation of the receiver
    pub incarnation: u32,
    /// Timestamp of the message, in nanoseconds
    pub timestamp: u64,
    /// PSNs of the message's first and last packet, 24 bits
    pub packets: (u32, u32),
}

/// Message for the controller, to be repeated by the caller until the controller has answered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ToController {
    /// To be stored; [`recall_stored`](super::super::Process::recall_stored) is the answer
    StoreRecall(StoredRecall),
    /// The failed process's messages above its T_P were discarded
    Noticed {
        /// Number of the case
        case: u64,
    },
    /// Every scattering that the failure has aborted is recalled
    Recalled {
        /// Number of the case
        case: u64,
    },
    /// The application's callback has returned
    Completed {
        /// Number of the case
        case: u64,
    },
}

/// Event of the reliable service for the application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// This process is a member and may send.
    Admitted {
        /// Its incarnation
        incarnation: u32,
    },
    /// A process has failed (1Pipe, Table 1, `onepipe_proc_fail_callback`). Call
    /// [`callback_done`](super::super::Process::callback_done) with `case` and `process`. Its messages up to `timestamp` may
    /// still be delivered.
    ProcessFailed(Failed),
    /// A message was not delivered to any receiver that has not failed, and will not be, unless `why` is
    /// [`Failure::Fenced`] or [`Failure::Left`].
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
    /// The fate of a scattering is known: all of its messages are delivered everywhere, or all have failed.
    Settled {
        /// The scattering
        scattering: Scattering,
        /// Timestamp of the scattering, if it has been stamped
        timestamp: Option<Timestamp>,
        /// Number of its messages that have failed
        failed: u32,
    },
    /// This process's incarnation has failed, as the controller has determined: it sends no more.
    Fenced {
        /// Its T_P
        timestamp: Timestamp,
    },
    /// The commit barrier stands still.
    Stalled,
    /// The commit barrier, which stood still, rises again.
    Recovered,
}

/// Reason why a reliable message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Failure {
    /// Another receiver of the scattering has failed, so the message was recalled.
    #[error("recalled, as another receiver of its scattering has failed")]
    Recalled,
    /// The receiver has failed.
    #[error("the receiver has failed")]
    Dead,
    /// This process's incarnation has failed. The message may have been delivered.
    #[error("this process was excluded; the message may have been delivered")]
    Fenced,
    /// This process left before the message was acknowledged.
    #[error("this process has left")]
    Left,
    /// This process, or a receiver, was no member when the message was to be sent; nothing was sent.
    #[error("this process, or a receiver of the scattering, was no member; nothing was sent")]
    NotAdmitted,
}

/// Reason why the reliable service refused a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The controller has not admitted this process.
    #[error(
        "this process is not admitted to the reliable service; configure [controller] and wait for Admitted"
    )]
    NotAdmitted,
    /// This process's incarnation has failed.
    #[error("this incarnation of the process was excluded by the controller; join again")]
    Fenced,
    /// A receiver is not a member.
    #[error("process {0} is not a member of the reliable service; wait until it has joined")]
    NotMember(ProcessId),
    /// The scattering is invalid, or there is no room.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// Reason why a member was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// The process is not in the table of peers.
    #[error("process {0} is not in the table of peers; add it to the process file")]
    Unknown(ProcessId),
    /// An incarnation that is not later than one known
    #[error(
        "incarnation {incarnation} of process {process} is not later than one that is known or has failed"
    )]
    Old {
        /// Number of the process
        process: ProcessId,
        /// The incarnation
        incarnation: u32,
    },
    /// Another peer has the queue pair.
    #[error("queue pair {} of process {process} is that of another peer", .qpn.get())]
    QueuePair {
        /// Number of the process
        process: ProcessId,
        /// The queue pair
        qpn: Qpn,
    },
    /// The configuration does not allow for the reliable service.
    #[error("invalid process configuration: {0}")]
    Config(#[from] ConfigError),
    /// The process has joined before, or not yet.
    #[error("the process has joined already, or has not joined; a new incarnation is a new process")]
    State,
}
