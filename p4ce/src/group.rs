//! A communication group as the data plane sees it (paper tables II and III): its leader, its replicas, and how packets
//! are readdressed between them.

use crate::gather::{Answer, Gather, MAX_MEMBERS};
use core::net::IpAddr;
use rocev2::ethernet::{Ethernet, MacAddr};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::redirect::{Fixed, Redirect};
use rocev2::repr::{Ip, Repr};
use rocev2::rewrite::Rewriter;
use rocev2::{Bth, Layout, Opcode, Packet, Psn, Qpn};
use switch::{Frame, Full, Output, PortId};
use zerocopy::IntoBytes;

/// A group, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A connection of the switch's to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The switch's address on it
    pub local: IpAddr,
    /// The host's
    pub remote: IpAddr,
    /// The host's MAC address, or that of the gateway to it
    pub mac: MacAddr,
    /// The port behind which it lies
    pub port: PortId,
    /// The switch's queue pair: the paper's `BCastQP` towards the leader, `AggrQP` towards a replica
    pub local_qp: Qpn,
    /// The host's queue pair
    pub remote_qp: Qpn,
    /// The first PSN that requests have on it
    pub first: Psn,
}

/// A replica: the connection to it, and its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The connection
    pub peer: Peer,
    /// Virtual address of its memory
    pub va: u64,
    /// Its key
    pub rkey: u32,
}

/// What a group is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Its number
    pub id: GroupId,
    /// The switch's MAC address
    pub own: MacAddr,
    /// The leader
    pub leader: Peer,
    /// The key that the leader was told
    pub rkey: u32,
    /// Bytes of memory, from address 0 on for the leader
    pub size: u64,
    /// The replicas, 1 to [`MAX_MEMBERS`]
    pub replicas: Vec<Replica>,
    /// How many replicas have to acknowledge
    pub quorum: usize,
    /// See [`GroupRequest::outvote`](crate::wire::GroupRequest::outvote)
    pub outvote: bool,
    /// Packets that a replica may be behind a quorum before it is excluded: [`MAX_LAG`](crate::gather::MAX_LAG) at most
    pub max_lag: u32,
}

/// Both addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Addresses {
    V4 { src: [u8; 4], dst: [u8; 4] },
    V6 { src: [u8; 16], dst: [u8; 16] },
}

impl Addresses {
    /// `None` if they are of two families.
    fn new(src: IpAddr, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src: src.octets(), dst: dst.octets() }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src: src.octets(), dst: dst.octets() }),
            _ => None,
        }
    }

    /// Whether these are the addresses of a packet that comes the other way.
    #[expect(clippy::inline_always, reason = "a call costs more than the comparison")]
    #[inline(always)]
    fn are_answered_by(&self, packet: &Packet<'_>) -> bool {
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

/// What packets to a host get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    addresses: Addresses,
    mac: MacAddr,
    remote_qp: Qpn,
    pub(crate) port: PortId,
}

impl Way {
    fn new(peer: &Peer) -> Option<Self> {
        Some(Self {
            addresses: Addresses::new(peer.local, peer.remote)?,
            mac: peer.mac,
            remote_qp: peer.remote_qp,
            port: peer.port,
        })
    }

    /// Whether a packet comes from this host, to the address that the host knows.
    #[inline]
    pub(crate) fn is_of(&self, packet: &Packet<'_>) -> bool {
        self.addresses.are_answered_by(packet)
    }

    #[inline]
    fn readdress(&self, rewriter: &mut Rewriter<'_>, own: MacAddr) {
        rewriter.set_ethernet(own, self.mac);
        // The packet is of the group's family: it came from one of its hosts.
        _ = match self.addresses {
            Addresses::V4 { src, dst } => rewriter.set_ipv4_addresses(src, dst),
            Addresses::V6 { src, dst } => rewriter.set_ipv6_addresses(src, dst),
        };
        rewriter.set_dest_qp(self.remote_qp);
    }

    /// Turns a packet into one to this host, with another PSN.
    #[inline]
    pub(crate) fn pass(&self, frame: &mut [u8], layout: Layout, own: MacAddr, psn: Psn) {
        let mut rewriter = Rewriter::new(frame, layout);
        self.readdress(&mut rewriter, own);
        rewriter.set_psn(psn);
        rewriter.finish();
    }

    /// Turns a replica's acknowledgement into one of the group's to its leader.
    #[inline]
    pub(crate) fn answer(&self, frame: &mut [u8], layout: Layout, own: MacAddr, answer: Answer) {
        let mut rewriter = Rewriter::new(frame, layout);
        self.readdress(&mut rewriter, own);
        rewriter.set_psn(answer.psn);
        // It is an acknowledgement, so it has one.
        _ = rewriter.set_aeth(answer.aeth);
        rewriter.finish();
    }

    /// Makes an acknowledgement of a request of this host's.
    pub(crate) fn make_answer<O: Output>(
        &self,
        request: &Packet<'_>,
        own: MacAddr,
        answer: Answer,
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
        let bth = Bth::new(Opcode::RC_ACKNOWLEDGE, self.remote_qp, answer.psn);
        let mut repr = Repr::new(ethernet, ip, bth);
        let tags = request.tags();
        repr.tags[..tags.len()].copy_from_slice(tags);
        repr.tag_count = tags.len();
        repr.udp.src_port = request.udp().src_port;
        repr.udp.dst_port = rocev2::UDP_PORT.into();
        repr.extended.aeth.copy_from_slice(answer.aeth.as_bytes());
        let mut frame = out.make(repr.frame_len())?;
        // It fits: the frame was made for it.
        _ = repr.build(frame.bytes_mut());
        Ok(frame)
    }
}

/// A replica as its packets need it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Member {
    va: u64,
    /// What its PSNs are ahead of the leader's
    pub(crate) psn_ahead: u32,
    /// Where it lies
    pub(crate) port: PortId,
    /// From a packet of the leader's to one to this replica
    redirect: Redirect,
}

impl Member {
    fn new(config: &GroupConfig, replica: &Replica) -> Option<Self> {
        let (leader, peer) = (&config.leader, &replica.peer);
        let from =
            Fixed { src: leader.remote, dst: leader.local, dest_qp: leader.local_qp, rkey: config.rkey };
        let to = Fixed { src: peer.local, dst: peer.remote, dest_qp: peer.remote_qp, rkey: replica.rkey };
        Some(Self {
            redirect: Redirect::new(&from, &to, config.own, peer.mac)?,
            psn_ahead: peer.first.distance(leader.first) as u32,
            port: peer.port,
            va: replica.va,
        })
    }

    /// Whether a packet comes from this replica, to the address that the replica knows.
    #[inline]
    pub(crate) fn is_of(&self, packet: &Packet<'_>) -> bool {
        self.redirect.is_answered_by(packet)
    }

    /// Turns a packet of the leader's into the replica's (paper IV-B).
    #[inline]
    pub(crate) fn scatter(&self, frame: &mut [u8], layout: Layout, request: Request) {
        let va = request.va.map(|va| self.va.wrapping_add(va));
        self.redirect.apply(frame, layout, request.psn.add(self.psn_ahead), va);
    }
}

/// What differs between a request's copies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) psn: Psn,
    /// Where the leader writes to, if the packet says it
    pub(crate) va: Option<u64>,
}

/// A group. In this order what a request needs lies in two lines of the cache, and a replica's part in one more.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub struct Group {
    pub(crate) leader: Way,
    pub(crate) rkey: u32,
    pub(crate) size: u64,
    /// The numbers of those that are written to: the first `target_count`
    targets: [u8; MAX_MEMBERS],
    target_count: u8,
    pub(crate) gather: Gather,
    /// By their number in the gather
    pub(crate) members: [Member; MAX_MEMBERS],
    config: GroupConfig,
    /// For [`Bug::LeaderByPort`](crate::Bug::LeaderByPort): the UDP source port of the leader's first packet
    #[cfg(debug_assertions)]
    pub(crate) leader_port: Option<u16>,
}

impl Group {
    /// A group; `None` if its hosts have addresses of two families, or it has no replica, too many, or too few for its
    /// quorum.
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
            leader: Way::new(&config.leader)?,
            rkey: config.rkey,
            size: config.size,
            gather: Gather::new(count, config.quorum, config.outvote, config.leader.first)
                .with_max_lag(config.max_lag),
            members,
            targets: core::array::from_fn(|number| number as u8),
            target_count: count as u8,
            config,
            #[cfg(debug_assertions)]
            leader_port: None,
        }))
    }

    /// What it was made of
    pub fn config(&self) -> &GroupConfig {
        &self.config
    }

    /// What its replicas have acknowledged
    pub fn gather(&self) -> &Gather {
        &self.gather
    }

    /// Plants a bug.
    #[cfg(debug_assertions)]
    pub fn plant(&mut self, bug: Option<crate::Bug>) {
        self.gather.plant(bug);
    }

    /// Where that lies which is needed for a packet of a replica's, or for one of the leader's.
    #[inline]
    pub(crate) fn foresee(&self, member: Option<usize>, fetch: impl Fn(*const u8)) {
        let start = core::ptr::from_ref(self).cast::<u8>();
        fetch(start);
        fetch(start.wrapping_add(64));
        let member = core::ptr::from_ref(&self.members[member.unwrap_or(0)]).cast::<u8>();
        fetch(member);
    }

    /// The replicas that are written to: all but the last, and the last
    #[inline]
    pub(crate) fn targets(&self) -> Option<(&[u8], &Member)> {
        let (last, others) = self.targets[..usize::from(self.target_count)].split_last()?;
        Some((others, &self.members[usize::from(*last)]))
    }

    /// A replica is written to no more, and its acknowledgements count no more.
    pub(crate) fn exclude(&mut self, member: usize) {
        self.gather.exclude(member);
        let count = usize::from(self.target_count);
        if let Some(at) = self.targets[..count].iter().position(|target| usize::from(*target) == member) {
            self.targets.copy_within(at + 1..count, at);
            self.target_count -= 1;
        }
    }

    /// Moves the leader to the port that a packet of its own came from, if the leader itself has sent that packet there: a
    /// packet that was routed here says nothing of where the way back leads. A damaged packet moves nothing.
    #[cold]
    pub(crate) fn move_leader(&mut self, packet: &Packet<'_>, port: PortId) -> bool {
        let moves = packet.ethernet().src == self.config.leader.mac && packet.verify_icrc();
        if moves {
            self.leader.port = port;
        }
        moves
    }

    /// Moves a replica to the port that a response of its own came from, as [`move_leader`](Self::move_leader). The
    /// response's ICRC has been verified.
    #[cold]
    pub(crate) fn move_member(&mut self, member: usize, packet: &Packet<'_>, port: PortId) -> bool {
        let moves = packet.ethernet().src == self.config.replicas[member].peer.mac;
        if moves {
            self.members[member].port = port;
        }
        moves
    }

    /// Moves replicas to the ports at which a bridge has heard them last, if it has. Returns how many have moved.
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

    /// Whether a WRITE lies within the memory.
    #[inline]
    pub(crate) fn allows(&self, va: u64, rkey: u32, len: u32) -> bool {
        // Nothing is written: neither address nor key is looked at (IB 9.3.3.1).
        len == 0 || (rkey == self.rkey && va.checked_add(len.into()).is_some_and(|end| end <= self.size))
    }
}
