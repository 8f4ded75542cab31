//! The messages and their fields.

use super::{Incarnation, Wire, WireError};
use crate::header::Timestamp;
use crate::process::ProcessId;
use crate::{wire_enum, wire_structs};
use rocev2::Qpn;

/// IPv4 or IPv6 address: an IPv4 address is mapped (RFC 4291, 2.5.5.2)
pub type Address = [u8; 16];
/// Random number that a node draws when it starts
pub type Boot = [u8; 16];
/// First queue pair of incarnations, which the controller gives out; configured ones are below it. So nothing that
/// has not reached the controller is taken for an incarnation
pub const FIRST_INCARNATION_QP: u32 = 0x1_0000;
/// Number of representatives that a switch has at most
pub const SEATS: u8 = 2;
/// Number of the link from a switch's upper node to its lower one, among the switch's links
pub const LOOPBACK: u16 = 0xffff;

wire_enum! {
    /// Why a node has to wait, or is refused
    pub enum Reason {
        /// Unknown process or switch
        Unknown = 1,
        /// An earlier incarnation is alive
        Living = 2,
        /// Another topology
        OtherTopology = 3,
        /// A case is open
        Case = 4,
        /// A representative is missing or does not answer
        Representative = 5,
        /// Members are not connected with the process in both directions
        NoPath = 6,
        /// The outcome of some messages is not known yet
        Undecided = 7,
        /// The record of the failure is gone; nothing can be recovered
        Forgotten = 8,
        /// The clock differs too much from the controller's
        Clock = 9,
    }
}

wire_structs! {
    /// Sender of a link's beacons
    pub struct Source {
        /// Address
        address: Address,
        /// Queue pair
        qpn: Qpn,
    }

    /// Member of the reliable service
    pub struct Peer {
        /// Process
        id: ProcessId,
        /// Incarnation
        incarnation: Incarnation,
        /// Queue pair
        qpn: Qpn,
        /// Address
        address: Address,
    }

    /// A representative's setting for one of its links, in both directions
    pub struct LinkSetting {
        /// Number among the switch's links, or [`LOOPBACK`]
        link: u16,
        /// Whether the input counts for the commit barrier
        counted: bool,
        /// Whether the input's register stands still
        frozen: bool,
        /// Whether beacons on the output carry no commit barrier
        muted: bool,
        /// Whether beacons on the output leave from the queue pair of this switch's incarnation, because their
        /// receiver has been given it; from the configured one otherwise, which best effort does not depend on
        /// the controller for
        introduced: bool,
        /// Senders of the input's beacons
        sources: Vec<Source>,
    }

    /// State of an input of a representative
    pub struct LinkValue {
        /// Number among the switch's links, or [`LOOPBACK`]
        link: u16,
        /// Whether the input has reached the value from which it counts
        caught: bool,
        /// Whether the input is silent: none of its sources is heard
        silent: bool,
        /// Ends of the link whose source is not heard: bit 0 for the switch's representative, or a process, bit 1 for
        /// the standby
        quiet: u8,
        /// Register
        raw: Option<Timestamp>,
    }

    /// Failed incarnation, and the time up to which its messages count
    pub struct Failed {
        /// Process
        id: ProcessId,
        /// Incarnation
        incarnation: Incarnation,
        /// Messages above this time are discarded
        time: Timestamp,
    }

    /// Failures that a process that recovers has missed
    pub struct MissedNotice {
        /// Number of the case
        case: u64,
        /// Failed incarnations
        failed: Vec<Failed>,
    }

    /// Recall that could not be delivered to `to`
    pub struct StoredRecall {
        /// Receiver of the messages, which has failed
        to: ProcessId,
        /// Its incarnation
        incarnation: Incarnation,
        /// Time of the scattering; none if it was not stamped
        time: Option<Timestamp>,
        /// First PSN, 24 bits
        first: u32,
        /// Last PSN, 24 bits
        last: u32,
    }

    /// Recall for a process that recovers
    pub struct Recall {
        /// Sender of the messages
        from: ProcessId,
        /// Its incarnation
        incarnation: Incarnation,
        /// Time of the scattering; none if it was not stamped
        time: Option<Timestamp>,
        /// First PSN, 24 bits
        first: u32,
        /// Last PSN, 24 bits
        last: u32,
    }
}

macro_rules! messages {
    ($($(#[$meta:meta])* $kind:literal $name:ident { $($(#[$fmeta:meta])* $field:ident: $type:ty,)* })*) => {
        /// A message between the controller and a node.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $($(#[$meta])* $name { $($(#[$fmeta])* $field: $type,)* },)*
        }

        impl Message {
            /// Kinds of messages and their names
            pub const KINDS: &[(u8, &str)] = &[$(($kind, stringify!($name)),)*];

            /// Returns the number of the message's kind.
            pub fn kind(&self) -> u8 {
                match self { $(Self::$name { .. } => $kind,)* }
            }

            pub(super) fn put_fields(&self, to: &mut Vec<u8>) {
                let _ = &to;
                match self { $(Self::$name { $($field,)* } => { $($field.put(to);)* })* }
            }

            /// Returns the message of a kind, or `None` if there is no such kind.
            pub(super) fn take_fields(kind: u8, from: &mut &[u8]) -> Option<Result<Self, WireError>> {
                let _ = &from;
                match kind {
                    $($kind => {
                        fn fields(from: &mut &[u8]) -> Result<Message, WireError> {
                            let _ = &from;
                            Ok(Message::$name { $($field: Wire::take(from)?,)* })
                        }
                        Some(fields(from))
                    })*
                    _ => None,
                }
            }
        }
    };
}

messages! {
    /// A process asks to be admitted.
    1 Register {
        /// Process
        id: ProcessId,
        /// Number drawn at its start
        boot: Boot,
        /// Its address
        address: Address,
        /// Hash of its topology
        topology: u64,
        /// What its clock shows
        clock: Option<Timestamp>,
    }
    /// The node has to ask again later.
    2 Wait {
        /// Reason
        reason: Reason,
        /// Process or switch that is waited for
        of: u32,
    }
    /// The node is refused.
    3 Refused {
        /// Reason
        reason: Reason,
    }
    /// A process gets an incarnation. It sends beacons with a commit barrier from now on.
    4 Welcome {
        /// Number drawn at the process's start: one that has restarted must not take the incarnation of the
        /// process before it
        boot: Boot,
        /// Its incarnation
        incarnation: Incarnation,
        /// Its queue pair
        qpn: Qpn,
        /// Members
        members: Vec<Peer>,
    }
    /// A process is about to be a member: its frames are accepted from now on.
    5 MemberUp {
        /// The member
        peer: Peer,
    }
    /// Answer to `MemberUp`.
    6 MemberAck {
        /// Process of the member
        id: ProcessId,
        /// Incarnation of the member
        incarnation: Incarnation,
        /// Commit barrier of the process that answers
        barrier: Option<Timestamp>,
    }
    /// The process is a member.
    7 Admitted {
        /// No message of it may have this time or an earlier one; `None` if there has been no message yet
        after: Option<Timestamp>,
    }
    /// A representative registers.
    8 RegisterRep {
        /// Switch
        switch: u16,
        /// Which of the switch's representatives it is: 0, or 1 for the standby
        seat: u8,
        /// Number drawn at its start
        boot: Boot,
        /// Its address
        address: Address,
        /// Hash of its topology
        topology: u64,
    }
    /// A representative gets an incarnation.
    9 WelcomeRep {
        /// Number drawn at the representative's start
        boot: Boot,
        /// Its incarnation
        incarnation: Incarnation,
        /// Its first queue pair; those of the other links follow
        first_qp: Qpn,
    }
    /// State that a representative has to have.
    10 Configure {
        /// Version: later states have greater ones
        version: u64,
        /// Floors of the upper and of the lower node: no input counts before it has reached its node's floor
        floors: [Option<Timestamp>; 2],
        /// Links
        links: Vec<LinkSetting>,
    }
    /// Answer to `Configure`, with the values at the moment at which it took effect.
    11 Configured {
        /// Version of the state
        version: u64,
        /// Commit barriers of the upper and of the lower node
        outputs: [Option<Timestamp>; 2],
        /// Links
        links: Vec<LinkValue>,
    }
    /// State that a process has to have.
    12 Desired {
        /// Version: later states have greater ones
        version: u64,
        /// Whether its commit barrier has to stand still
        held: bool,
        /// Senders of the beacons of its link
        sources: Vec<Source>,
    }
    /// Answer to `Desired`.
    13 DesiredAck {
        /// Version of the state
        version: u64,
        /// Commit barrier at the moment at which it took effect
        barrier: Option<Timestamp>,
        /// Whether the process's link is silent
        silent: bool,
        /// Ends of the link whose source is not heard, as in a link's value
        quiet: u8,
    }
    /// Changed states of links at their keeper, repeated until acknowledged.
    14 Report {
        /// Number: later reports have greater ones
        number: u32,
        /// Links; for a process link 0
        links: Vec<LinkValue>,
    }
    /// Answer to `Report`.
    15 ReportAck {
        /// Number of the report
        number: u32,
    }
    /// Processes have failed.
    16 Notice {
        /// Number of the case
        case: u64,
        /// Failed incarnations
        failed: Vec<Failed>,
    }
    /// Their messages are discarded.
    17 Noticed {
        /// Number of the case
        case: u64,
    }
    /// All own scatterings to them are recalled; implies `Noticed`.
    18 Recalled {
        /// Number of the case
        case: u64,
    }
    /// The application's callback has returned; implies `Recalled`.
    19 Completed {
        /// Number of the case
        case: u64,
    }
    /// The process itself has failed.
    20 YouFailed {
        /// Number of the case
        case: u64,
        /// Time up to which its messages count
        time: Timestamp,
    }
    /// Recalls that cannot be delivered have to be stored.
    21 StoreRecalls {
        /// Number of the batch
        batch: u32,
        /// Recalls
        recalls: Vec<StoredRecall>,
    }
    /// They are stored.
    22 RecallsStored {
        /// Number of the batch
        batch: u32,
    }
    /// Frames for a process of which the sender hears nothing.
    23 Forward {
        /// Receiver
        to: ProcessId,
        /// Its incarnation
        incarnation: Incarnation,
        /// Payloads of datagrams
        frames: Vec<Vec<u8>>,
    }
    /// Frames of a process, carried by the controller.
    24 Forwarded {
        /// Sender
        from: ProcessId,
        /// Its incarnation
        incarnation: Incarnation,
        /// Payloads of datagrams
        frames: Vec<Vec<u8>>,
    }
    /// The receiver of a `Forward` is no member.
    25 NotMember {
        /// Process
        id: ProcessId,
        /// Incarnation
        incarnation: Incarnation,
    }
    /// A failed process that still has its memory asks for what it has missed.
    26 Recover {
        /// Greatest number of a case that it has completed
        case_done: u64,
        /// Greatest time of a message that it holds
        held_max: Option<Timestamp>,
        /// Its commit barrier
        barrier: Option<Timestamp>,
    }
    /// What it has missed, in pages.
    27 RecoverReply {
        /// Number of the page, from 0
        page: u16,
        /// Whether it is the last one
        last: bool,
        /// Messages up to this time are to be delivered; none: all of them
        until: Option<Timestamp>,
        /// Failures
        notices: Vec<MissedNotice>,
        /// Recalls
        recalls: Vec<Recall>,
    }
    /// It has delivered them.
    28 Recovered {}
    /// Request for a process's barrier.
    29 Progress {}
    /// Answer to `Progress`.
    30 ProgressReply {
        /// Commit barrier
        barrier: Option<Timestamp>,
        /// Processes for whose answers it waits
        waits: Vec<ProcessId>,
    }
    /// Request for a sign of life.
    31 Ping {
        /// Number
        number: u32,
    }
    /// Answer to `Ping`.
    32 Pong {
        /// Number
        number: u32,
    }
    /// A process leaves: it sends no more, and its scatterings are decided. Repeated until `Left`.
    33 Leave {
        /// Its clock: it has sent nothing later
        time: Timestamp,
        /// Its commit barrier: it has delivered nothing later
        barrier: Option<Timestamp>,
        /// Number of the last `MayLeave` after which it has delivered all that it had acknowledged, or 0
        delivered: u64,
    }
    /// A process leaves: nothing more may be sent to it.
    34 Leaving {
        /// Process
        id: ProcessId,
        /// Its incarnation
        incarnation: Incarnation,
    }
    /// Answer to `Leaving`: all scatterings to the process are decided, and no more follow.
    35 LeavingAck {
        /// Process that leaves
        id: ProcessId,
        /// Its incarnation
        incarnation: Incarnation,
    }
    /// All processes have given this answer. What the process has acknowledged is all that it will have to deliver.
    36 MayLeave {
        /// Number: it changes when a process may have learned of this one since
        number: u64,
    }
    /// A process has left, without a failure.
    37 Left {
        /// Process
        id: ProcessId,
        /// Its incarnation
        incarnation: Incarnation,
    }
    /// Request for a member's clock.
    38 AskClock {
        /// Number
        number: u32,
    }
    /// Answer to `AskClock`.
    39 Clock {
        /// Number
        number: u32,
        /// Clock of the process when it answers
        clock: Timestamp,
    }
    /// The other representative of the switch serves alone from now on: this one ends.
    40 Retire {}
}

impl Wire for [Option<Timestamp>; 2] {
    fn put(&self, to: &mut Vec<u8>) {
        for time in self {
            time.put(to);
        }
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        Ok([Wire::take(from)?, Wire::take(from)?])
    }
}
