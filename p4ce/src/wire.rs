//! Layouts of the communication manager's private data: a leader's request for a group, the location of a
//! replica's memory, and the reason why a group was refused. docs/p4ce.md has the tables.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use rnic::cm::private_data;
use rocev2::cm::RejReason;
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First bytes of a request for a group
const MAGIC: [u8; 2] = *b"P4";
/// Version of all layouts in this module
pub const VERSION: u8 = 1;

/// Flag: the addresses are IPv6
const IPV6: u8 = 1;
/// Flag: the number of a configured list follows instead of addresses
const BY_REFERENCE: u8 = 2;
/// Flag: a quorum outvotes NAKs of a minority
const OUTVOTE: u8 = 4;
/// Flag: the address of a leader follows, on whose behalf the switch connects
const MEMBER: u8 = 8;
/// Flags that are valid in a leader's request
const FLAGS: u8 = IPV6 | BY_REFERENCE | OUTVOTE;

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    magic: [u8; 2],
    version: u8,
    flags: u8,
    count: u8,
    quorum: u8,
    port: U16,
}

/// Bytes of a request before its list
const HEAD: usize = size_of::<Head>();
/// Limit of replicas with IPv4 addresses in a request
pub const MAX_IPV4: usize = (private_data::REQ_CMA - HEAD) / 4;
/// Limit of replicas with IPv6 addresses in a request
pub const MAX_IPV6: usize = (private_data::REQ_CMA - HEAD) / 16;

/// The replicas of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// These addresses, all of one family
    Listed(Vec<IpAddr>),
    /// The list with this number in the switch's configuration: for more replicas than a request can hold
    Configured(u32),
}

/// A leader's request for a group: the private data of its REQ, after the RDMA IP CM header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRequest {
    /// The replicas
    pub replicas: Replicas,
    /// Number of replicas that have to acknowledge (f in the paper); 0 for a majority that includes the
    /// leader
    pub quorum: u8,
    /// Port on which the replicas listen, in `rdma_cm`'s TCP port space
    pub port: u16,
    /// Whether NAKs of a minority are withheld from the leader once a quorum holds the write
    pub outvote: bool,
}

/// Why private data is not a request for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The private data does not start with the magic bytes
    #[error("the private data is not a request for a group")]
    Magic,
    /// The version is not supported
    #[error("version {0} of the layout is not supported")]
    Version(u8),
    /// The private data ends before the end of the list
    #[error("the private data is shorter than its list of replicas")]
    Truncated,
    /// A flag is reserved, or the list is of two families
    #[error("the request has reserved flags or addresses of two families")]
    Malformed,
}

impl GroupRequest {
    /// Encodes the request as private data.
    ///
    /// # Errors
    /// If the list is longer than private data can hold, or has addresses of two families.
    pub fn to_bytes(&self) -> Result<Vec<u8>, RequestError> {
        let (count, mut flags, list) = match &self.replicas {
            Replicas::Configured(id) => (0, BY_REFERENCE, id.to_be_bytes().to_vec()),
            Replicas::Listed(list) => {
                let v6 = list.first().is_some_and(IpAddr::is_ipv6);
                if list.iter().any(|ip| ip.is_ipv6() != v6) {
                    return Err(RequestError::Malformed);
                }
                let octets = |ip: &IpAddr| match ip {
                    IpAddr::V4(ip) => ip.octets().to_vec(),
                    IpAddr::V6(ip) => ip.octets().to_vec(),
                };
                (list.len(), if v6 { IPV6 } else { 0 }, list.iter().flat_map(octets).collect())
            }
        };
        if HEAD + list.len() > private_data::REQ_CMA {
            return Err(RequestError::Truncated);
        }
        flags |= if self.outvote { OUTVOTE } else { 0 };
        let head = Head {
            magic: MAGIC,
            version: VERSION,
            flags,
            count: count as u8,
            quorum: self.quorum,
            port: self.port.into(),
        };
        Ok([head.as_bytes(), &list].concat())
    }

    /// Decodes private data, which may be padded with zeros.
    ///
    /// # Errors
    /// If the private data does not start with the magic bytes, is of another version, is too short for its
    /// list of replicas, or has reserved flags.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, RequestError> {
        let (head, list) = Head::ref_from_prefix(bytes).map_err(|_| RequestError::Truncated)?;
        if head.magic != MAGIC {
            return Err(RequestError::Magic);
        }
        if head.version != VERSION {
            return Err(RequestError::Version(head.version));
        }
        if head.flags & !FLAGS != 0 {
            return Err(RequestError::Malformed);
        }
        let count = usize::from(head.count);
        let replicas = match head.flags & (IPV6 | BY_REFERENCE) {
            BY_REFERENCE if count == 0 => {
                let id = list.first_chunk().ok_or(RequestError::Truncated)?;
                Replicas::Configured(u32::from_be_bytes(*id))
            }
            0 => {
                let list = list.get(..count * 4).ok_or(RequestError::Truncated)?;
                Replicas::Listed(list.as_chunks().0.iter().map(|ip| Ipv4Addr::from(*ip).into()).collect())
            }
            IPV6 => {
                let list = list.get(..count * 16).ok_or(RequestError::Truncated)?;
                Replicas::Listed(list.as_chunks().0.iter().map(|ip| Ipv6Addr::from(*ip).into()).collect())
            }
            _ => return Err(RequestError::Malformed),
        };
        Ok(Self { replicas, quorum: head.quorum, port: head.port.get(), outvote: head.flags & OUTVOTE != 0 })
    }
}

/// A memory region that the remote side may write to (P4CE, table III): the private data of a replica's REP,
/// and of the switch's REP to a leader, whose address is 0 and whose key is the switch's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Region {
    va: U64,
    rkey: U32,
    zero: U32,
    size: U64,
}

impl Region {
    /// Length of the encoding in bytes
    pub const LEN: usize = size_of::<Self>();

    /// Returns a region of `size` bytes.
    pub fn new(va: u64, rkey: u32, size: u64) -> Self {
        Self { va: va.into(), rkey: rkey.into(), zero: 0.into(), size: size.into() }
    }

    /// Decodes private data. Returns `None` if it does not contain a region.
    pub fn from_private_data(bytes: &[u8]) -> Option<Self> {
        let (region, _) = Self::read_from_prefix(bytes).ok()?;
        (region.zero.get() == 0 && region.size.get() > 0 && region.last().is_some()).then_some(region)
    }

    /// Encodes the region as private data.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.as_bytes().to_vec()
    }

    /// Returns the virtual address of the first byte.
    pub fn va(&self) -> u64 {
        self.va.get()
    }

    /// Returns the `R_Key`.
    pub fn rkey(&self) -> u32 {
        self.rkey.get()
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size.get()
    }

    /// Returns the address of the last byte, if it is within the address space.
    fn last(&self) -> Option<u64> {
        self.va().checked_add(self.size() - 1)
    }
}

/// The switch's request to a replica: the private data of its REQ, after the RDMA IP CM header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRequest {
    /// The leader on whose behalf the switch connects
    pub leader: IpAddr,
    /// Source port of the leader's own request, which distinguishes the leader's groups
    pub port: u16,
}

impl MemberRequest {
    /// Encodes the request as private data.
    pub fn to_bytes(self) -> Vec<u8> {
        let (flags, octets) = match self.leader {
            IpAddr::V4(ip) => (MEMBER, ip.octets().to_vec()),
            IpAddr::V6(ip) => (MEMBER | IPV6, ip.octets().to_vec()),
        };
        let port = self.port.into();
        let head = Head { magic: MAGIC, version: VERSION, flags, count: 1, quorum: 0, port };
        [head.as_bytes(), &octets].concat()
    }

    /// Decodes private data. Returns `None` if it is not from a switch.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, rest) = Head::ref_from_prefix(bytes).ok()?;
        if head.magic != MAGIC || head.version != VERSION {
            return None;
        }
        let leader = match head.flags {
            MEMBER => Ipv4Addr::from(*rest.first_chunk::<4>()?).into(),
            flags if flags == MEMBER | IPV6 => Ipv6Addr::from(*rest.first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some(Self { leader, port: head.port.get() })
    }
}

/// Why a group was refused: the private data of the REJ that a leader receives with the reason 28 (consumer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The private data was not understood
    #[error("the private data is not a request for a group of version {VERSION}")]
    Request,
    /// The list has no replica, too many, or one twice
    #[error("the list of replicas is empty, too long, or has an address twice")]
    Count,
    /// The request requires more acknowledgements than there are replicas
    #[error("the quorum is larger than the group")]
    Quorum,
    /// The leader has an IPv4 address and the replicas have IPv6 addresses, or the reverse
    #[error("leader and replicas have addresses of different families")]
    Family,
    /// The configuration has no such list
    #[error("the switch's configuration has no list with this number")]
    NoSuchList,
    /// The switch's limit of groups is reached
    #[error("the switch's limit of groups is reached; close a group first")]
    Full,
    /// A replica rejected the connection
    #[error("replica {replica} rejected the connection: {reason}")]
    Rejected {
        /// The replica
        replica: IpAddr,
        /// Reason of its REJ
        reason: RejReason,
    },
    /// A replica did not respond in time
    #[error("replica {0} does not respond")]
    Unreachable(IpAddr),
    /// A replica's REP does not contain a memory region
    #[error("the reply of replica {0} does not contain a memory region")]
    NoMemory(IpAddr),
    /// A replica's region has another size than that of another replica
    #[error("the memory region of replica {0} differs in size from that of another replica")]
    Size(IpAddr),
    /// The address is the leader's, the switch's, not unicast, or not allowed as a replica
    #[error("{0} is not valid as a replica of this leader")]
    NotAReplica(IpAddr),
    /// The rate limit of this leader or of all leaders is reached: retry after a second
    #[error("the switch's limit of requests for groups is reached; retry after a second")]
    Busy,
    /// The switch's configuration does not list the leader
    #[error("the switch's configuration does not allow groups of this leader; add it to leaders")]
    NotALeader,
    /// The request has no valid tag of the switch's secret
    #[error("the request has no valid tag; configure the switch's secret")]
    Secret,
}

#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RefusalLayout {
    magic: [u8; 2],
    version: u8,
    code: u8,
    reason: U16,
    family: U16,
    replica: [u8; 16],
}

/// Address in refusals that name no replica
const NO_REPLICA: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

impl Refusal {
    fn parts(&self) -> (u8, RejReason, IpAddr) {
        let none = RejReason(0);
        match *self {
            Self::Request => (1, none, NO_REPLICA),
            Self::Count => (2, none, NO_REPLICA),
            Self::Quorum => (3, none, NO_REPLICA),
            Self::Family => (4, none, NO_REPLICA),
            Self::NoSuchList => (5, none, NO_REPLICA),
            Self::Full => (6, none, NO_REPLICA),
            Self::Rejected { replica, reason } => (7, reason, replica),
            Self::Unreachable(replica) => (8, none, replica),
            Self::NoMemory(replica) => (9, none, replica),
            Self::Size(replica) => (10, none, replica),
            Self::NotAReplica(replica) => (11, none, replica),
            Self::Busy => (12, none, NO_REPLICA),
            Self::NotALeader => (13, none, NO_REPLICA),
            Self::Secret => (14, none, NO_REPLICA),
        }
    }

    /// Encodes the refusal as private data.
    pub fn to_bytes(self) -> Vec<u8> {
        let (code, reason, replica) = self.parts();
        let (family, octets) = match replica {
            IpAddr::V4(ip) => (4, ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => (6, ip.octets()),
        };
        let layout = RefusalLayout {
            magic: MAGIC,
            version: VERSION,
            code,
            reason: reason.0.into(),
            family: family.into(),
            replica: octets,
        };
        layout.as_bytes().to_vec()
    }

    /// Decodes the private data of a REJ. Returns `None` if it is not from a switch.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (layout, _) = RefusalLayout::ref_from_prefix(bytes).ok()?;
        if layout.magic != MAGIC || layout.version != VERSION {
            return None;
        }
        let replica = Ipv6Addr::from(layout.replica);
        let replica = if layout.family.get() == 4 { replica.to_canonical() } else { replica.into() };
        Some(match layout.code {
            1 => Self::Request,
            2 => Self::Count,
            3 => Self::Quorum,
            4 => Self::Family,
            5 => Self::NoSuchList,
            6 => Self::Full,
            7 => Self::Rejected { replica, reason: RejReason(layout.reason.get()) },
            8 => Self::Unreachable(replica),
            9 => Self::NoMemory(replica),
            10 => Self::Size(replica),
            11 => Self::NotAReplica(replica),
            12 => Self::Busy,
            13 => Self::NotALeader,
            14 => Self::Secret,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn listed(addresses: &[&str]) -> Replicas {
        Replicas::Listed(addresses.iter().map(|ip| ip.parse().unwrap()).collect())
    }

    #[test]
    fn a_request_has_the_documented_layout() {
        let request = GroupRequest {
            replicas: listed(&["10.0.0.2", "10.0.0.3"]),
            quorum: 1,
            port: 0x1234,
            outvote: false,
        };
        let bytes = request.to_bytes().unwrap();
        assert_eq!(bytes, [b'P', b'4', 1, 0, 2, 1, 0x12, 0x34, 10, 0, 0, 2, 10, 0, 0, 3]);
        let padded = [&bytes[..], &[0; 40]].concat();
        assert_eq!(GroupRequest::from_bytes(&padded), Ok(request));
    }

    #[test]
    fn the_length_of_a_list_is_limited_by_private_data() {
        assert_eq!((MAX_IPV4, MAX_IPV6), (12, 3));
        for (address, max) in [("10.0.0.1", MAX_IPV4), ("fd00::1", MAX_IPV6)] {
            let request = |count| GroupRequest {
                replicas: listed(&vec![address; count]),
                quorum: 0,
                port: 1,
                outvote: true,
            };
            let bytes = request(max).to_bytes().unwrap();
            assert_eq!(GroupRequest::from_bytes(&bytes), Ok(request(max)));
            assert_eq!(GroupRequest::from_bytes(&bytes[..bytes.len() - 1]), Err(RequestError::Truncated));
            assert_eq!(request(max + 1).to_bytes(), Err(RequestError::Truncated));
        }
        let mixed =
            GroupRequest { replicas: listed(&["10.0.0.1", "fd00::1"]), quorum: 0, port: 1, outvote: false };
        assert_eq!(mixed.to_bytes(), Err(RequestError::Malformed));
        let by_reference =
            GroupRequest { replicas: Replicas::Configured(77), quorum: 0, port: 1, outvote: false };
        assert_eq!(GroupRequest::from_bytes(&by_reference.to_bytes().unwrap()), Ok(by_reference));
    }

    #[test]
    fn invalid_requests_are_refused() {
        assert_eq!(GroupRequest::from_bytes(b"P4"), Err(RequestError::Truncated));
        assert_eq!(GroupRequest::from_bytes(&[0; 56]), Err(RequestError::Magic));
        assert_eq!(GroupRequest::from_bytes(b"P4\x02\0\x01\0\0\x01abcd"), Err(RequestError::Version(2)));
        assert_eq!(GroupRequest::from_bytes(b"P4\x01\x10\x01\0\0\x01abcd"), Err(RequestError::Malformed));
        assert_eq!(GroupRequest::from_bytes(b"P4\x01\x03\0\0\0\x01abcd"), Err(RequestError::Malformed));
    }

    #[test]
    fn regions_end_within_the_address_space() {
        let region = Region::new(0x1000, 7, 64);
        assert_eq!(Region::from_private_data(region.as_bytes()), Some(region));
        assert_eq!(Region::from_private_data(&region.as_bytes()[..Region::LEN - 1]), None);
        assert_eq!(Region::from_private_data(Region::new(0, 7, 0).as_bytes()), None);
        assert_eq!(Region::from_private_data(Region::new(u64::MAX, 7, 2).as_bytes()), None);
        assert!(Region::from_private_data(Region::new(u64::MAX, 7, 1).as_bytes()).is_some());
    }

    #[test]
    fn member_requests_and_refusals_round_trip() {
        for leader in ["10.0.0.1", "fd00::1"] {
            let leader = leader.parse().unwrap();
            let member = MemberRequest { leader, port: 77 };
            assert_eq!(MemberRequest::from_bytes(&member.to_bytes()), Some(member));
            for refusal in [
                Refusal::Request,
                Refusal::Count,
                Refusal::Quorum,
                Refusal::Family,
                Refusal::NoSuchList,
                Refusal::Full,
                Refusal::Rejected { replica: leader, reason: RejReason::CONSUMER },
                Refusal::Unreachable(leader),
                Refusal::NoMemory(leader),
                Refusal::Size(leader),
                Refusal::NotAReplica(leader),
                Refusal::Busy,
                Refusal::NotALeader,
                Refusal::Secret,
            ] {
                assert_eq!(Refusal::from_bytes(&refusal.to_bytes()), Some(refusal));
            }
        }
        assert_eq!(Refusal::from_bytes(b"something else"), None);
    }

    proptest! {
        #[test]
        fn decoding_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(request) = GroupRequest::from_bytes(&bytes) {
                let written = request.to_bytes().unwrap();
                prop_assert_eq!(GroupRequest::from_bytes(&written), Ok(request));
            }
            _ = MemberRequest::from_bytes(&bytes);
            _ = Region::from_private_data(&bytes);
            _ = Refusal::from_bytes(&bytes);
        }
    }
}
