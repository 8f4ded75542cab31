//! Delivery of an object of any length to a list of nodes, continued among the survivors when some of them
//! fail (RDMC, section 4.6: "the file transfer tool could simply retry the transfer within the surviving
//! members").
//!
//! The object is divided into segments, each of which is one message of a group. Receivers take segments in
//! order, and report how many they have written; the root stays a few segments ahead of the slowest. When the
//! group fails, the root requests the number of segments that each surviving receiver has, and goes on from the
//! lowest number in a new group (the next round). The last message is a digest of the object. Each receiver
//! compares it with what it has written before it reports the object as stored.
//!
//! ```text
//! root       Name..., Offer, (Switch), Members... -->
//!                                             receiver: Unreached (members)..., Have (segments)
//!            Start(first) -->                 both create the group of this round
//!            segments, digest ==>             Written(segments)
//!            group closed                     Stored, or Damaged
//! ```
//!
//! [`ObjectSender`] is the root's side, [`ObjectReceiver`] a receiver's. Neither does I/O: the application reads
//! and writes the object.

mod note;
mod receive;
mod send;

pub use receive::{ObjectReceiver, Offer, ReceiverConfig, ReceiverError};
pub use send::{DeliveryReport, ObjectSender, SenderConfig, SenderError};

use crate::config::{CallError, Failure, MessageMemory};
use core::net::IpAddr;
use rnic::{Access, Buffer, MemoryError, Pd, Rnic};
use std::collections::BTreeMap;

/// Bytes of a digest.
pub const DIGEST: usize = 32;

/// Reason for which a receiver refuses an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Refusal {
    /// There is no space for the object.
    #[error("no space for the object")]
    NoSpace,
    /// An object of this name exists.
    #[error("an object of this name exists")]
    Exists,
    /// The name is invalid at the receiver.
    #[error("the name is not valid there")]
    Name,
    /// Writing fails.
    #[error("writing failed")]
    Write,
    /// The receiver cannot create a group with the offered parameters.
    #[error("it cannot create the group")]
    Group,
    /// The receiver was stopped.
    #[error("it was stopped")]
    Stopped,
    /// The receiver has no memory for segments of this size.
    #[error("no memory for segments of this size")]
    Memory,
}

impl Refusal {
    const ALL: [Self; 7] =
        [Self::NoSpace, Self::Exists, Self::Name, Self::Write, Self::Group, Self::Stopped, Self::Memory];
}

/// Reason for which a receiver does not have the object. The text continues a sentence that begins with the
/// receiver's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossReason {
    /// It did not respond in time.
    #[error("did not respond in time")]
    Silent,
    /// Its link was lost.
    #[error("lost its connection")]
    Gone,
    /// It and another receiver cannot reach each other.
    #[error("cannot reach {0}")]
    Unreachable(IpAddr),
    /// It refused the object.
    #[error("refused the object: {0}")]
    Refused(Refusal),
    /// The digest of what it wrote differs from the root's.
    #[error("has a damaged object: its digest differs")]
    Damaged,
    /// The group failed because of it.
    #[error("failed: {0}")]
    Failed(Failure),
}

/// Returns whether an error of the node ends the delivery. Otherwise a `Failed` event follows.
fn is_fatal(error: &CallError) -> bool {
    !matches!(error, CallError::Failed(_) | CallError::Unknown(_))
}

/// Virtual address of a segment in its region.
const VA: u64 = 0x1000_0000;

/// Memory of segments that are being sent or received, by region.
#[derive(Debug, Default)]
struct Buffers(BTreeMap<u32, Buffer>);

impl Buffers {
    fn len(&self) -> usize {
        self.0.len()
    }

    /// Registers `bytes`.
    fn register(
        &mut self,
        nic: &mut Rnic,
        pd: Pd,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<MessageMemory, MemoryError> {
        let len = bytes.len();
        let buffer = nic.alloc(bytes)?;
        match nic.register(pd, buffer, 0..len, VA, access) {
            Ok(mr) => {
                self.0.insert(mr.0, buffer);
                Ok(MessageMemory { mr, va: VA })
            }
            Err(error) => {
                _ = nic.free(buffer);
                Err(error)
            }
        }
    }

    /// Deregisters the memory of a segment, and returns its bytes.
    fn deregister(&mut self, nic: &mut Rnic, memory: MessageMemory) -> Vec<u8> {
        _ = nic.deregister(memory.mr);
        let buffer = self.0.remove(&memory.mr.0);
        buffer.and_then(|buffer| nic.free(buffer).ok()).unwrap_or_default()
    }
}
