//! Messages between the controller and its nodes: processes, and representatives of switches, which keep the
//! links that end there (1Pipe, section 5.2).
//!
//! All of them may be repeated and reordered: a state that the controller wants has a version, and every
//! answer names what it answers. An [`Envelope`] is
//!
//! ```text
//!  0      version, 2
//!  1      kind
//!  2..4   reserved, 0
//!  4..12  term of the controller; 0 if the node knows none
//! 12..16  incarnation of the node; 0 if it has none yet
//! 16..    fields of the kind, in the order of their declaration
//! ```
//!
//! A connection adds length, sequence number and authentication.

mod message;
mod wire;

pub use message::*;
pub use wire::{Wire, WireError};

/// Number of an incarnation of a process or of a representative: never used twice in a network; 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u32);

impl core::fmt::Display for Incarnation {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl Wire for Incarnation {
    fn put(&self, to: &mut Vec<u8>) {
        self.0.put(to);
    }
    fn take(from: &mut &[u8]) -> Result<Self, WireError> {
        u32::take(from).map(Self)
    }
}

/// A message with its term and the node's incarnation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Term of the controller; 0 if the node knows none
    pub term: u64,
    /// Incarnation of the node that sends or receives the message; 0 if it has none yet
    pub incarnation: Incarnation,
    /// The message
    pub message: Message,
}

/// Bytes that are not an [`Envelope`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another version of this protocol
    #[error("version {0} of the control protocol; this program has version {VERSION}")]
    Version(u8),
    /// An unknown kind
    #[error("unknown kind of message {0}")]
    Kind(u8),
    /// Reserved bits that are not 0
    #[error("reserved bits are not 0")]
    Reserved,
    /// Longer than [`MAX_LEN`]
    #[error("a message of {0} bytes; at most {MAX_LEN} are allowed")]
    Long(usize),
    /// Fields that cannot be read
    #[error("message of kind {kind}: {error}")]
    Fields {
        /// Kind of the message
        kind: u8,
        /// Reason
        error: WireError,
    },
}

/// Version of this protocol
pub const VERSION: u8 = 2;
/// Length of the longest [`Envelope`], in bytes
pub const MAX_LEN: usize = 65_500;

impl Envelope {
    /// Returns the encoding.
    ///
    /// # Errors
    /// [`Refusal::Long`] if it is longer than [`MAX_LEN`].
    pub fn encode(&self) -> Result<Vec<u8>, Refusal> {
        let mut bytes = vec![VERSION, self.message.kind(), 0, 0];
        self.term.put(&mut bytes);
        self.incarnation.put(&mut bytes);
        self.message.put_fields(&mut bytes);
        if bytes.len() > MAX_LEN { Err(Refusal::Long(bytes.len())) } else { Ok(bytes) }
    }

    /// Returns the message of an encoding.
    ///
    /// # Errors
    /// [`Refusal`] with the first thing that is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        if bytes.len() > MAX_LEN {
            return Err(Refusal::Long(bytes.len()));
        }
        let short = Refusal::Fields { kind: bytes.get(1).copied().unwrap_or(0), error: WireError::Truncated };
        let (&[version, kind, a, b], mut rest) = bytes.split_first_chunk().ok_or(short)?;
        if version != VERSION {
            return Err(Refusal::Version(version));
        }
        if (a, b) != (0, 0) {
            return Err(Refusal::Reserved);
        }
        let fields = |error| Refusal::Fields { kind, error };
        let term = u64::take(&mut rest).map_err(fields)?;
        let incarnation = Incarnation::take(&mut rest).map_err(fields)?;
        let message = Message::take_fields(kind, &mut rest).ok_or(Refusal::Kind(kind))?.map_err(fields)?;
        if rest.is_empty() {
            Ok(Self { term, incarnation, message })
        } else {
            Err(fields(WireError::TooLong(rest.len())))
        }
    }
}

#[cfg(test)]
mod tests;
