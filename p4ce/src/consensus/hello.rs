//! What servers tell each other in the private data of their connections.

use super::log::Term;
use crate::wire::Region;
use zerocopy::byteorder::network_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 2] = *b"C4";
const VERSION: u8 = 2;
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
    /// Names the configuration that all servers of a group have to share
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
    /// Bytes on the wire, without a tag
    pub(super) const LEN: usize = size_of::<HelloLayout>();

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
            group: self.group.into(),
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
        Some(Self { server: layout.server, purpose, group: layout.group.get() })
    }
}

/// The private data of an answer that gives permission to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Where the log lies
    pub(super) region: Region,
    /// Which of the lives of the server this is
    pub(super) incarnation: u64,
    /// Whether it is a member, whose permission counts
    pub(super) is_member: bool,
    /// Entries below are of no use to it any more
    pub(super) applied: u64,
    /// What lies in its log from here up to those is what was decided
    pub(super) vouched: u64,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct GrantLayout {
    region: Region,
    incarnation: U64,
    member: U64,
    applied: U64,
    vouched: U64,
}

impl Grant {
    /// As private data.
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let layout = GrantLayout {
            region: self.region,
            incarnation: self.incarnation.into(),
            member: u64::from(self.is_member).into(),
            applied: self.applied.into(),
            vouched: self.vouched.into(),
        };
        layout.as_bytes().to_vec()
    }

    /// Reads private data; `None` if it gives no permission.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let region = Region::from_private_data(bytes)?;
        let (layout, _) = GrantLayout::ref_from_prefix(bytes).ok()?;
        Some(Self {
            region,
            incarnation: layout.incarnation.get(),
            is_member: layout.member.get() == 1,
            applied: layout.applied.get(),
            vouched: layout.vouched.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_survive() {
        for purpose in [Purpose::Watch, Purpose::Write(Term(0x1_0203))] {
            let hello = Hello { server: 7, purpose, group: u64::MAX - 3 };
            assert_eq!(hello.to_bytes().len(), Hello::LEN);
            assert_eq!(Hello::from_bytes(&hello.to_bytes()), Some(hello));
        }
        let region = Region::new(0x2000, 7, 4096);
        for is_member in [false, true] {
            let grant = Grant { region, incarnation: 1 << 50, is_member, applied: 12, vouched: 5 };
            assert_eq!(Grant::from_bytes(&grant.to_bytes()), Some(grant));
        }
        assert_eq!(Grant::from_bytes(&region.to_bytes()), None);
        let other = [b"P4", &Hello { server: 1, purpose: Purpose::Watch, group: 0 }.to_bytes()[2..]].concat();
        assert_eq!(Hello::from_bytes(&other), None);
        assert_eq!(Hello::from_bytes(b"C4"), None);
    }
}
