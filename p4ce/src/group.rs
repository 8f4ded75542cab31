//! A communication group in the data plane (P4CE, tables II and III): its leader, its replicas, and the
//! rewriting of packets between them.

use crate::gather::{Gather, LeaderResponse, MAX_MEMBERS};
use core::net::IpAddr;
use rocev2::ethernet::{Ethernet, MacAddr};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::redirect::{FlowFields, Redirect};
use rocev2::repr::{Ip, Repr};
use rocev2::rewrite::Rewriter;
use rocev2::{Bth, Layout, Opcode, Packet, Psn, Qpn};
use switch::{Frame, Full, Output, PortId};
use zerocopy::IntoBytes;

/// Identifier of a group, unique while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A connection of the switch to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The switch's address
    pub local: IpAddr,
    /// The host's address
    pub remote: IpAddr,
    /// MAC address of the next hop to the host
    pub mac: MacAddr,
    /// Port towards the host
    pub port: PortId,
    /// The switch's queue pair: P4CE's `BCastQP` towards the leader, `AggrQP` towards a replica
    pub local_qp: Qpn,
    /// The host's queue pair
    pub remote_qp: Qpn,
    /// PSN of the first request
    pub first: Psn,
}

/// A replica: the connection to it, and its memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// Connection
    pub peer: Peer,
    /// Virtual address of the region
    pub va: u64,
    /// `R_Key` of the region
    pub rkey: u32,
}

/// Configuration of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Identifier
    pub id: GroupId,
    /// MAC address of the switch
    pub own: MacAddr,
    /// Connection to the leader
    pub leader: Peer,
    /// `R_Key` that the leader uses
    pub rkey: u32,
    /// Size of the memory in bytes; the leader's addresses start at 0
    pub size: u64,
    /// The replicas, 1 to [`MAX_MEMBERS`]
    pub replicas: Vec<Replica>,
    /// Number of replicas that have to acknowledge
    pub quorum: usize,
    /// Whether a quorum outvotes NAKs; see [`GroupRequest::outvote`](crate::wire::GroupRequest::outvote)
    pub outvote: bool,
    /// Limit of packets that a replica may be behind a quorum before it is excluded, at most
    /// [`MAX_LAG`](crate::gather::MAX_LAG)
    pub max_lag: u32,
}

/// Source and destination address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    V4 { src: [u8; 4], dst: [u8; 4] },
    V6 { src: [u8; 16], dst: [u8; 16] },
}

impl Addresses {
    /// Returns `None` if the addresses are of different families.
    fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src: src.octets(), dst: dst.octets() }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src: src.octets(), dst: dst.octets() }),
            _ => None,
        }
    }

    /// Returns whether a packet has these addresses in the opposite direction.
    #[expect(clippy::inline_always, reason = "a call costs more than the comparison")]
    #[inline(always)]
    fn are_reversed_in(&self, packet: &Packet<'_>) -> bool {
        let header = &packet.bytes()[packet.layout().l3()..];
        match self {
            Self::V4 { src, dst } => {
                let both = &header[12..20];
                !packet.layout().is_ipv6() && both[..4] == *dst && both[4..] == *src
            }
            Self::V6 { src, dst } => {
                packet.layout().is_ipv6() && header[8..24] == *dst && header[24..40] == *src
            }
        }
    }
}

/// Header fields of packets to a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostRoute {
    addresses: Addresses,
    mac: MacAddr,
    remote_qp: Qpn,
    pub(crate) port: PortId,
}

impl HostRoute {
    fn new(peer: &Peer) -> Option<Self> {
        Some(Self {
            addresses: Addresses::new(peer.local, peer.remote)?,
            mac: peer.mac,
            remote_qp: peer.remote_qp,
            port: peer.port,
        })
    }

    /// Returns whether a packet comes from this host and is addressed to the switch.
    #[inline]
    pub(crate) fn is_from(&self, packet: &Packet<'_>) -> bool {
        self.addresses.are_reversed_in(packet)
    }

    #[inline]
    fn readdress(&self, rewriter: &mut Rewriter<'_>, own: MacAddr) {
        rewriter.set_ethernet(own, self.mac);
        // The packet has the group's address family, because it came from one of the group's hosts.
        _ = match self.addresses {
            Addresses::V4 { src, dst } => rewriter.set_ipv4_addresses(src, dst),
            Addresses::V6 { src, dst } => rewriter.set_ipv6_addresses(src, dst),
        };
        rewriter.set_dest_qp(self.remote_qp);
    }

    /// Rewrites a packet into one to this host with the given PSN.
    #[inline]
    pub(crate) fn forward(&self, frame: &mut [u8], layout: Layout, own: MacAddr, psn: Psn) {
        let mut rewriter = Rewriter::new(frame, layout);
        self.readdress(&mut rewriter, own);
        rewriter.set_psn(psn);
        rewriter.finish();
    }

    /// Rewrites a replica's acknowledgement into the group's acknowledgement to the leader.
    #[inline]
    pub(crate) fn rewrite_response(
        &self,
        frame: &mut [u8],
        layout: Layout,
        own: MacAddr,
        response: LeaderResponse,
    ) {
        let mut rewriter = Rewriter::new(frame, layout);
        self.readdress(&mut rewriter, own);
        rewriter.set_psn(response.psn);
        // The packet is an acknowledgement, so it has an AETH.
        _ = rewriter.set_aeth(response.aeth);
        rewriter.finish();
    }

    /// Builds an acknowledgement of a request of this host.
    pub(crate) fn make_response<O: Output>(
        &self,
        request: &Packet<'_>,
        own: MacAddr,
        response: LeaderResponse,
        out: &mut O,
    ) -> Result<O::Frame, Full> {
        let ethernet = Ethernet { src: own, dst: self.mac, ..*request.ethernet() };
        let ip = match self.addresses {
            Addresses::V4 { src, dst } => {
                let tos = request.ipv4().map_or(0, |ip| ip.tos) & !3;
                Ip::V4(Ipv4 { tos, src, dst, ..Ipv4::default() }, &[])
            }
            Addresses::V6 { src, dst } => {
                let class = request.ipv6().map_or(0, Ipv6::traffic_class) & !3;
                let version_class_flow = (6 << 28 | u32::from(class) << 20).into();
                Ip::V6(Ipv6 { version_class_flow, src, dst, ..Ipv6::default() }, &[])
            }
        };
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, self.remote_qp, response.psn);
        let mut repr = Repr::new(ethernet, ip, bth);
        let tags = request.tags();
        repr.tags[..tags.len()].copy_from_slice(tags);
        repr.tag_count = tags.len();
        repr.udp.src_port = request.udp().src_port;
        repr.udp.dst_port = rocev2::UDP_PORT.into();
        repr.extended.aeth.copy_from_slice(response.aeth.as_bytes());
        let mut frame = out.make(repr.frame_len())?;
        // The frame was made with the required length.
        _ = repr.build(frame.bytes_mut());
        Ok(frame)
    }
}

/// Data of a replica that its packets need.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Member {
    va: u64,
    /// Distance from the leader's PSNs to the replica's
    pub(crate) psn_ahead: u32,
    /// Port towards the replica
    pub(crate) port: PortId,
    /// Rewriting of a packet of the leader into one to this replica
    redirect: Redirect,
}

impl Member {
    fn new(config: &GroupConfig, replica: &Replica) -> Option<Self> {
        let (leader, peer) = (&config.leader, &replica.peer);
        let from =
            FlowFields { src: leader.remote, dst: leader.local, dest_qp: leader.local_qp, rkey: config.rkey };
        let to =
            FlowFields { src: peer.local, dst: peer.remote, dest_qp: peer.remote_qp, rkey: replica.rkey };
        Some(Self {
            redirect: Redirect::new(&from, &to, config.own, peer.mac)?,
            psn_ahead: peer.first.distance(leader.first) as u32,
            port: peer.port,
            va: replica.va,
        })
    }

    /// Returns whether a packet comes from this replica and is addressed to the switch.
    #[inline]
    pub(crate) fn is_from(&self, packet: &Packet<'_>) -> bool {
        self.redirect.matches_reverse(packet)
    }

    /// Rewrites a packet of the leader into one to the replica (P4CE, section IV-B).
    #[inline]
    pub(crate) fn scatter(&self, frame: &mut [u8], layout: Layout, request: Request) {
        let va = request.va.map(|va| self.va.wrapping_add(va));
        self.redirect.apply(frame, layout, request.psn.add(self.psn_ahead), va);
    }
}

/// Per-packet values of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) psn: Psn,
    /// The leader's target address, if the packet has a RETH
    pub(crate) va: Option<u64>,
}

/// A group. The field order puts everything that a request needs into two cache lines, plus one for each
/// replica.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Group {
    pub(crate) leader: HostRoute,
    pub(crate) rkey: u32,
    pub(crate) size: u64,
    /// Indexes of the replicas that are written to: the first `target_count`
    targets: [u8; MAX_MEMBERS],
    target_count: u8,
    pub(crate) gather: Gather,
    /// Replicas, by their index in the gather
    pub(crate) members: [Member; MAX_MEMBERS],
    config: GroupConfig,
    /// For [`Bug::LeaderByPort`](crate::Bug::LeaderByPort): the UDP source port of the leader's first packet
    pub(crate) leader_port: Option<u16>,
}

impl Group {
    /// Creates a group. Returns `None` if its hosts have addresses of different families, or if it has no
    /// replica, too many, or too few for its quorum.
    pub fn new(config: GroupConfig) -> Option<Box<Self>> {
        let count = config.replicas.len();
        if count > MAX_MEMBERS || !(1..=count).contains(&config.quorum) {
            return None;
        }
        let list: Option<Vec<_>> =
            config.replicas.iter().map(|replica| Member::new(&config, replica)).collect();
        let list = list?;
        let mut members = [list[0]; MAX_MEMBERS];
        members[..count].copy_from_slice(&list);
        Some(Box::new(Self {
            leader: HostRoute::new(&config.leader)?,
            rkey: config.rkey,
            size: config.size,
            gather: Gather::new(count, config.quorum, config.outvote, config.leader.first)
                .with_max_lag(config.max_lag),
            members,
            targets: core::array::from_fn(|number| number as u8),
            target_count: count as u8,
            config,
            leader_port: None,
        }))
    }

    /// Returns the configuration.
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// Returns the state of the acknowledgements.
    pub fn gather(&self) -> &Gather {
        &self.gather
    }

    /// Plants a bug.
    pub fn plant(&mut self, bug: Option<crate::Bug>) {
        self.gather.plant(bug);
    }

    /// Prefetches the cache lines for a packet from replica `member`, or from the leader if `None`.
    #[inline]
    pub(crate) fn prefetch(&self, member: Option<usize>, fetch: impl Fn(*const u8)) {
        let start = core::ptr::from_ref(self).cast::<u8>();
        fetch(start);
        fetch(start.wrapping_add(64));
        let member = core::ptr::from_ref(&self.members[member.unwrap_or(0)]).cast::<u8>();
        fetch(member);
    }

    /// Returns the replicas that are written to: the indexes of all but the last, and the last.
    #[inline]
    pub(crate) fn targets(&self) -> Option<(&[u8], &Member)> {
        let (last, others) = self.targets[..usize::from(self.target_count)].split_last()?;
        Some((others, &self.members[usize::from(*last)]))
    }

    /// Excludes a replica: it is no longer written to, and its acknowledgements no longer count.
    pub(crate) fn exclude(&mut self, member: usize) {
        self.gather.exclude(member);
        let count = usize::from(self.target_count);
        if let Some(at) = self.targets[..count].iter().position(|target| usize::from(*target) == member) {
            self.targets.copy_within(at + 1..count, at);
            self.target_count -= 1;
        }
    }

    /// Moves the leader to the port on which its packet arrived, if the packet has the leader's own source
    /// MAC address: a routed packet does not show the path back. A damaged packet moves nothing. Returns
    /// whether the leader moved.
    #[cold]
    pub(crate) fn move_leader(&mut self, packet: &Packet<'_>, port: PortId) -> bool {
        let moves = packet.ethernet().src == self.config.leader.mac && packet.verify_icrc();
        if moves {
            self.leader.port = port;
        }
        moves
    }

    /// Moves a replica to the port on which its response arrived, under the same condition as
    /// [`move_leader`](Self::move_leader). The response's ICRC has been verified.
    #[cold]
    pub(crate) fn move_member(&mut self, member: usize, packet: &Packet<'_>, port: PortId) -> bool {
        let moves = packet.ethernet().src == self.config.replicas[member].peer.mac;
        if moves {
            self.members[member].port = port;
        }
        moves
    }

    /// Moves replicas to the ports in a bridge's table. Returns the number of replicas that moved.
    #[cold]
    pub(crate) fn find_members(&mut self, find: impl Fn(MacAddr) -> Option<PortId>) -> u64 {
        let mut moved = 0;
        for (member, replica) in self.members.iter_mut().zip(&self.config.replicas) {
            if let Some(port) = find(replica.peer.mac).filter(|port| *port != member.port) {
                member.port = port;
                moved += 1;
            }
        }
        moved
    }

    /// Returns whether a WRITE is within the memory.
    #[inline]
    pub(crate) fn allows(&self, va: u64, rkey: u32, len: u32) -> bool {
        // A WRITE of 0 bytes: neither address nor key is checked (IB 9.3.3.1).
        len == 0 || (rkey == self.rkey && va.checked_add(len.into()).is_some_and(|end| end <= self.size))
    }
}
