//! An object of any length to a list of nodes, and on among those who are left when some fail (paper 4.6: "the file transfer
//! tool could simply retry the transfer within the surviving members").
//!
//! The object goes in segments, each a message of a group. Receivers take them in order, and say how many they have written;
//! the root keeps a few ahead of the slowest. When the group fails, the root asks those who are left how many they have, and
//! goes on from the fewest in a new group. The last message is a digest of the object, which each receiver compares with what
//! it has written before it says that it is done.
//!
//! ```text
//! root       Name..., Offer, (Switch), Members... -->
//!                                             receiver: Lacks(whom it has not reached)..., Have(segments)
//!            Start(first) -->                 both create the group of this round
//!            segments, digest ==>             Written(segments)
//!            group closed                     Stored, or Damaged
//! ```
//!
//! [`Give`] is the root's side, [`Take`] a receiver's. Neither does I/O: who owns them reads and writes the object.

mod give;
mod note;
mod take;

pub use give::{Give, GiveConfig, GiveError, Given};
pub use take::{Offer, Take, TakeConfig, TakeError};

use crate::config::{CallError, Failure, Memory};
use core::net::IpAddr;
use rnic::{Access, Buffer, MemoryError, Pd, Rnic};
use std::collections::BTreeMap;

/// Bytes of a digest
pub const DIGEST: usize = 32;

/// Why a receiver does not take an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum Refusal {
    /// There is no space for so many bytes
    #[error("it has no space")]
    NoSpace,
    /// There is something of this name
    #[error("it has something of this name")]
    Exists,
    /// It is not a name that can be used
    #[error("it cannot use this name")]
    Name,
    /// It cannot write
    #[error("it cannot write")]
    Write,
    /// It is parameters that it cannot make a group of
    #[error("it cannot make such a group")]
    Group,
    /// It was stopped
    #[error("it was stopped")]
    Stopped,
    /// Segments are longer than it has memory for
    #[error("it has no memory for segments of this size")]
    Memory,
}

impl Refusal {
    const ALL: [Self; 7] =
        [Self::NoSpace, Self::Exists, Self::Name, Self::Write, Self::Group, Self::Stopped, Self::Memory];
}

/// Why a receiver has not got the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// It did not answer when it was called
    #[error("does not answer")]
    Silent,
    /// It is gone
    #[error("is gone")]
    Gone,
    /// It and another receiver cannot reach each other
    #[error("cannot reach {0}")]
    Apart(IpAddr),
    /// It did not take it
    #[error("does not take it: {0}")]
    Refused(Refusal),
    /// What it wrote is not what was sent
    #[error("got something else: its digest differs")]
    Damaged,
    /// The group failed with it
    #[error("failed: {0}")]
    Failed(Failure),
}

/// A refusal of the node's that ends a transfer.
fn is_fatal(error: &CallError) -> bool {
    !matches!(error, CallError::Failed(_) | CallError::Unknown(_))
}

/// The address at which a segment begins in its region
const VA: u64 = 0x1000_0000;

/// Memory of segments under way, by region
#[derive(Debug, Default)]
struct Buffers(BTreeMap<u32, Buffer>);

impl Buffers {
    fn len(&self) -> usize {
        self.0.len()
    }

    /// Registers bytes.
    fn give(
        &mut self,
        nic: &mut Rnic,
        pd: Pd,
        bytes: Vec<u8>,
        access: Access,
    ) -> Result<Memory, MemoryError> {
        let len = bytes.len();
        let buffer = nic.alloc(bytes)?;
        match nic.register(pd, buffer, 0..len, VA, access) {
            Ok(mr) => {
                self.0.insert(mr.0, buffer);
                Ok(Memory { mr, va: VA })
            }
            Err(error) => {
                _ = nic.free(buffer);
                Err(error)
            }
        }
    }

    /// Takes them back.
    fn take(&mut self, nic: &mut Rnic, memory: Memory) -> Vec<u8> {
        _ = nic.deregister(memory.mr);
        let buffer = self.0.remove(&memory.mr.0);
        buffer.and_then(|buffer| nic.free(buffer).ok()).unwrap_or_default()
    }
}
