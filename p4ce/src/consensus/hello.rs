//! What servers tell each other in the private data of their connections.

use super::log::Term;
use zerocopy::byteorder::network_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 2] = *b"C4";
const VERSION: u8 = 1;
const WATCH: u8 = 1;
const WRITE: u8 = 2;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To read heartbeats
    Watch,
    /// To write the log, in this term
    Write(Term),
}

/// The private data of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Who asks
    pub(super) server: u8,
    /// What for
    pub(super) purpose: Purpose,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HelloLayout {
    magic: [u8; 2],
    version: u8,
    purpose: u8,
    server: u8,
    zero: [u8; 3],
    term: U64,
}

impl Hello {
    /// As private data.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let (purpose, term) = match self.purpose {
            Purpose::Watch => (WATCH, 0),
            Purpose::Write(term) => (WRITE, term.0),
        };
        let layout = HelloLayout {
            magic: MAGIC,
            version: VERSION,
            purpose,
            server: self.server,
            zero: [0; 3],
            term: term.into(),
        };
        layout.as_bytes().to_vec()
    }

    /// Reads private data; `None` if it is from no server.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (layout, _) = HelloLayout::ref_from_prefix(bytes).ok()?;
        if layout.magic != MAGIC || layout.version != VERSION {
            return None;
        }
        let purpose = match layout.purpose {
            WATCH => Purpose::Watch,
            WRITE => Purpose::Write(Term(layout.term.get())),
            _ => return None,
        };
        Some(Self { server: layout.server, purpose })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_survive() {
        for purpose in [Purpose::Watch, Purpose::Write(Term(0x1_0203))] {
            let hello = Hello { server: 7, purpose };
            assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
        }
        let other = [b"P4", &Hello { server: 1, purpose: Purpose::Watch }.to_bytes()[2..]].concat();
        assert_eq!(Hello::from_bytes(&other), None);
        assert_eq!(Hello::from_bytes(b"C4"), None);
    }
}
