//! Private data of the connections between servers.

use super::log::Term;
use p4ce::wire::Region;
use zerocopy::byteorder::network_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 2] = *b"C4";
const VERSION: u8 = 2;
const WATCH: u8 = 1;
const WRITE: u8 = 2;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// To read heartbeats
    Watch,
    /// To write the log, in this term
    Write(Term),
}

/// Private data of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// Number of the requesting server
    pub(super) server: u8,
    /// Purpose
    pub(super) purpose: Purpose,
    /// Hash of the configuration that all servers of a group share
    pub(super) group: u64,
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
    group: U64,
}

impl Hello {
    /// Length of the encoding in bytes, without a tag
    pub(super) const LEN: usize = size_of::<HelloLayout>();

    /// Encodes the request as private data.
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
            group: self.group.into(),
        };
        layout.as_bytes().to_vec()
    }

    /// Decodes private data; `None` if it is not from a server.
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
        Some(Self { server: layout.server, purpose, group: layout.group.get() })
    }
}

/// Private data of a reply that grants permission to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Memory region of the log
    pub(super) region: Region,
    /// Incarnation of the server
    pub(super) incarnation: u64,
    /// Whether it is a member, whose permission counts towards a majority
    pub(super) is_member: bool,
    /// Number of entries that it has applied and no longer needs
    pub(super) applied: u64,
    /// Index from which the entries below `applied` in its log are known to be the decided ones
    pub(super) valid_from: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct GrantLayout {
    region: Region,
    incarnation: U64,
    member: U64,
    applied: U64,
    valid_from: U64,
}

impl Grant {
    /// Encodes the grant as private data.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let layout = GrantLayout {
            region: self.region,
            incarnation: self.incarnation.into(),
            member: u64::from(self.is_member).into(),
            applied: self.applied.into(),
            valid_from: self.valid_from.into(),
        };
        layout.as_bytes().to_vec()
    }

    /// Decodes private data; `None` if it grants no permission.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let region = Region::from_private_data(bytes)?;
        let (layout, _) = GrantLayout::ref_from_prefix(bytes).ok()?;
        Some(Self {
            region,
            incarnation: layout.incarnation.get(),
            is_member: layout.member.get() == 1,
            applied: layout.applied.get(),
            valid_from: layout.valid_from.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellos_and_grants_round_trip() {
        for purpose in [Purpose::Watch, Purpose::Write(Term(0x1_0203))] {
            let hello = Hello { server: 7, purpose, group: u64::MAX - 3 };
            assert_eq!(hello.to_bytes().len(), Hello::LEN);
            assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
        }
        let region = Region::new(0x2000, 7, 4096);
        for is_member in [false, true] {
            let grant = Grant { region, incarnation: 1 << 50, is_member, applied: 12, valid_from: 5 };
            assert_eq!(Grant::from_bytes(&grant.to_bytes()), Some(grant));
        }
        assert_eq!(Grant::from_bytes(&region.to_bytes()), None);
        let other = [b"P4", &Hello { server: 1, purpose: Purpose::Watch, group: 0 }.to_bytes()[2..]].concat();
        assert_eq!(Hello::from_bytes(&other), None);
        assert_eq!(Hello::from_bytes(b"C4"), None);
    }
}
