//! Routing by IP address: longest prefix match, and ECMP among equal-cost next hops by a hash of the flow
//! (RFC 2992).
//!
//! A flow is a packet's addresses, protocol and ports. All packets of a flow take the same path, so they keep
//! their order. The hash is seeded: if all switches used the same hash, half of the paths above them would be
//! unused.
//!
//! A router accepts only frames addressed to its MAC address. Where a bridge floods, each neighbour receives
//! frames for other stations; a router that accepted those as well would duplicate them. Next hops without a
//! MAC address make the switch transparent: it then accepts every frame.
//!
//! A router changes the TTL (IPv4, with its header checksum) or hop limit if [`Ttl::Decrement`] is
//! configured, and both MAC addresses if the next hop has one. The ICRC covers none of these fields.

use super::config::{NextHop, RouteTable, Ttl};
use crate::table::{Index, Key, Salt, mix};
use crate::{DropReason, PortId, Verdict};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::ops::Range;
use rocev2::checksum;
use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;

/// TCP and UDP: the protocols whose ports identify flows
const PROTOCOLS_WITH_PORTS: [u8; 2] = [6, 17];
/// Mixed into seeds, which are few and small, so that no usual seed leaves the hashed words unchanged
const SEED_OFFSET: u64 = 0x5eed_1e55_0000_0001;
/// Maximum count of VLAN tags that are skipped: a customer tag within a service tag
const MAX_TAGS: usize = 2;
/// Offset of the TTL in an IPv4 header; the protocol and the checksum follow it
const TTL: usize = 8;
const HOP_LIMIT: usize = 7;

/// A prefix as an index key; the bits behind the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    bits: u128,
    len: u8,
    v6: bool,
}

impl Key for Network {
    #[inline]
    fn hash(&self) -> u64 {
        let Self { bits, len, v6 } = *self;
        mix(bits as u64 ^ mix((bits >> 64) as u64 ^ u64::from(len) << 1 ^ u64::from(v6)))
    }

    #[inline]
    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(self.bits, u64::from(self.len) << 1 | u64::from(self.v6))
    }
}

/// Returns an address as left-aligned bits.
const fn bits_of(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => (v4.to_bits() as u128) << 96,
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

const fn first_bits(bits: u128, len: u8) -> u128 {
    match len {
        0 => 0,
        len => bits >> (128 - len as u32) << (128 - len as u32),
    }
}

/// The fields of a packet that determine its route
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Flow {
    /// Offset of the IP header
    l3: usize,
    src: IpAddr,
    dst: IpAddr,
    /// Protocol and ports
    transport: u64,
}

impl Flow {
    fn of(frame: &[u8]) -> Option<Self> {
        let mut l3 = Ethernet::LEN;
        let mut kind = u16::from_be_bytes(*frame.get(12..)?.first_chunk()?);
        for _ in 0..MAX_TAGS {
            if !ethertype::is_tag(kind) {
                break;
            }
            kind = u16::from_be_bytes(*frame.get(l3 + 2..)?.first_chunk()?);
            l3 += VlanTag::LEN;
        }
        let packet = frame.get(l3..)?;
        let (src, dst, protocol, l4): (IpAddr, IpAddr, u8, usize) = match kind {
            ethertype::IPV4 => {
                let header = packet.first_chunk::<{ Ipv4::LEN }>()?;
                let octets =
                    |at: usize| header[at..].first_chunk::<4>().map(|octets| Ipv4Addr::from(*octets));
                let len = usize::from(header[0] & 0xf) * 4;
                if header[0] >> 4 != 4 || len < Ipv4::LEN {
                    return None;
                }
                // Only the first fragment has ports, and all fragments have to take the same path.
                let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
                let l4 = if fragment { usize::MAX } else { len };
                (octets(12)?.into(), octets(16)?.into(), header[9], l4)
            }
            ethertype::IPV6 => {
                let header = packet.first_chunk::<{ Ipv6::LEN }>()?;
                let octets =
                    |at: usize| header[at..].first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets));
                if header[0] >> 4 != 6 {
                    return None;
                }
                (octets(8)?.into(), octets(24)?.into(), header[6], Ipv6::LEN)
            }
            _ => return None,
        };
        let ports = packet.get(l4..).and_then(|l4| l4.first_chunk().copied());
        let ports = ports.filter(|_| PROTOCOLS_WITH_PORTS.contains(&protocol)).map_or(0, u32::from_be_bytes);
        Some(Self { l3, src, dst, transport: u64::from(protocol) << 32 | u64::from(ports) })
    }

    /// Returns whether the destination is a group or a link-local address, to which routers do not forward.
    fn is_link_scope(&self) -> bool {
        match self.dst {
            IpAddr::V4(v4) => v4.is_multicast() || v4.is_broadcast() || v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local(),
        }
    }

    /// Hashes the flow. The multiplier depends on the seed and is applied twice for each word, so that the
    /// choices of switches with different seeds are independent.
    fn hash(&self, seed: u64) -> u64 {
        let (src, dst) = (bits_of(self.src), bits_of(self.dst));
        let by = u128::from(mix(mix(seed ^ SEED_OFFSET)) | 1);
        let times = |word: u64| {
            let product = u128::from(word) * by;
            product as u64 ^ (product >> 64) as u64
        };
        [src as u64, (src >> 64) as u64, dst as u64, (dst >> 64) as u64, self.transport]
            .into_iter()
            .fold(seed, |hash, word| times(times(hash ^ word).wrapping_add(seed)))
    }
}

/// Returns the destination of an IP packet, or `None` if the frame is not IP or is too short.
pub(super) fn destination(frame: &[u8]) -> Option<IpAddr> {
    Flow::of(frame).map(|flow| flow.dst)
}

/// The routing table.
pub(super) struct Routes {
    mac: MacAddr,
    ttl: Ttl,
    seed: u64,
    networks: Index<Network>,
    /// Ranges of `hops`, by the index's ID
    hop_ranges: Vec<Range<usize>>,
    hops: Vec<NextHop>,
    /// Prefix lengths in the table, longest first
    lens_v4: Vec<u8>,
    lens_v6: Vec<u8>,
}

impl Routes {
    /// Builds a table. The later of two routes with the same prefix takes precedence.
    pub(super) fn new(table: &RouteTable) -> Self {
        let mut routes = Self {
            mac: table.mac,
            ttl: table.ttl,
            seed: table.seed,
            networks: Index::with_capacity(2 * table.routes.len()),
            hop_ranges: Vec::new(),
            hops: Vec::new(),
            lens_v4: Vec::new(),
            lens_v6: Vec::new(),
        };
        for route in &table.routes {
            let (address, len) = (route.to.address(), route.to.len());
            let network = Network { bits: bits_of(address), len, v6: address.is_ipv6() };
            let first = routes.hops.len();
            routes.hops.extend(&route.via);
            let range = first..routes.hops.len();
            let id =
                routes.networks.get_or_insert(network).expect("the index has twice the required capacity")
                    as usize;
            if id < routes.hop_ranges.len() {
                routes.hop_ranges[id] = range;
            } else {
                routes.hop_ranges.push(range);
            }
            let lens = if network.v6 { &mut routes.lens_v6 } else { &mut routes.lens_v4 };
            if !lens.contains(&len) {
                lens.push(len);
                lens.sort_unstable_by(|a, b| b.cmp(a));
            }
        }
        routes
    }

    /// Returns the next hops of the longest prefix that contains an address.
    #[inline]
    fn find(&self, address: IpAddr) -> &[NextHop] {
        let (bits, v6) = (bits_of(address), address.is_ipv6());
        let lens = if v6 { &self.lens_v6 } else { &self.lens_v4 };
        let network = |&len: &u8| self.networks.get(&Network { bits: first_bits(bits, len), len, v6 });
        lens.iter().find_map(network).map_or(&[], |id| &self.hops[self.hop_ranges[id as usize].clone()])
    }

    /// Returns the verdict for a frame, and rewrites the frame as routing requires.
    #[inline]
    pub(super) fn route(&self, frame: &mut [u8], port: PortId) -> Verdict {
        let Some(flow) = Flow::of(frame) else { return Verdict::Drop(DropReason::NoRoute) };
        let hops = self.find(flow.dst);
        if hops.is_empty() {
            return Verdict::Drop(DropReason::NoRoute);
        }
        let chosen =
            if hops.len() == 1 { 0 } else { ((flow.hash(self.seed) >> 32) * hops.len() as u64) >> 32 };
        let NextHop { port: to, mac } = hops[chosen as usize];
        if mac.is_some() {
            if frame.first_chunk() != Some(&self.mac.0) {
                return Verdict::Drop(DropReason::OtherStation);
            }
            if flow.is_link_scope() {
                return Verdict::Drop(DropReason::NoRoute);
            }
        }
        if self.ttl == Ttl::Decrement && !decrement(&mut frame[flow.l3..], flow.dst.is_ipv6()) {
            return Verdict::Drop(DropReason::TtlExpired);
        }
        match mac {
            Some(mac) => {
                frame[..6].copy_from_slice(&mac.0);
                frame[6..12].copy_from_slice(&self.mac.0);
            }
            // The sender would receive its own frame.
            None if to == port => return Verdict::Drop(DropReason::SamePort),
            None => {}
        }
        Verdict::Forward(to)
    }
}

/// Decrements the TTL or hop limit. Returns `false`, without any change, if it is used up.
fn decrement(packet: &mut [u8], v6: bool) -> bool {
    let at = if v6 { HOP_LIMIT } else { TTL };
    if packet[at] <= 1 {
        return false;
    }
    if v6 {
        packet[at] -= 1;
        return true;
    }
    let Some([ttl, protocol, sum @ ..]) = packet[TTL..].first_chunk_mut::<4>() else { return false };
    let word = |ttl: u8| u32::from_be_bytes([ttl, *protocol, 0, 0]);
    *sum = checksum::update(u16::from_be_bytes(*sum), word(*ttl), word(*ttl - 1)).to_be_bytes();
    *ttl -= 1;
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forward::config::{Prefix, Route};
    use proptest::prelude::*;
    use rocev2::checksum::Sum;

    const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xfe]);

    fn hop(port: u16) -> NextHop {
        NextHop { port: PortId(port), mac: None }
    }

    fn table(routes: &[(&str, &[u16])]) -> RouteTable {
        let route = |(to, via): &(&str, &[u16])| Route {
            to: to.parse().unwrap(),
            via: via.iter().map(|&port| hop(port)).collect(),
        };
        RouteTable { mac: OWN, ttl: Ttl::Keep, seed: 7, routes: routes.iter().map(route).collect() }
    }

    /// Returns a frame addressed to the router.
    fn frame(src: &str, dst: &str, ports: u32) -> Vec<u8> {
        let mut frame = [OWN.0, [2; 6]].concat();
        match (src.parse().unwrap(), dst.parse().unwrap()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
                frame.extend([src.octets(), dst.octets()].concat());
                let sum = Sum::default().add(&frame[14..]).checksum();
                frame[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64]);
                frame.extend([src.octets(), dst.octets()].concat());
            }
            _ => unreachable!("one version"),
        }
        frame.extend(ports.to_be_bytes());
        frame.extend([0; 4]);
        frame
    }

    #[test]
    fn longest_prefix_wins() {
        let routes = Routes::new(&table(&[
            ("0.0.0.0/0", &[0]),
            ("10.0.0.0/8", &[1]),
            ("10.1.0.0/16", &[2]),
            ("10.1.2.3/32", &[3]),
            ("fd00::/16", &[4]),
            ("fd00::1/128", &[5]),
        ]));
        for (dst, port) in [("9.9.9.9", 0), ("10.2.0.0", 1), ("10.1.2.4", 2), ("10.1.2.3", 3)] {
            let mut packet = frame("10.9.9.9", dst, 1);
            let before = packet.clone();
            assert_eq!(routes.route(&mut packet, PortId(9)), Verdict::Forward(PortId(port)), "{dst}");
            assert_eq!(packet, before, "the packet is unchanged");
            assert_eq!(destination(&packet), dst.parse().ok());
        }
        for (dst, port) in [("fd00::2", Some(4)), ("fd00::1", Some(5)), ("fe00::1", None)] {
            let expected =
                port.map_or(Verdict::Drop(DropReason::NoRoute), |port| Verdict::Forward(PortId(port)));
            assert_eq!(routes.route(&mut frame("fd01::9", dst, 1), PortId(9)), expected, "{dst}");
        }
        let mut back = frame("10.9.9.9", "10.2.0.0", 1);
        assert_eq!(routes.route(&mut back, PortId(1)), Verdict::Drop(DropReason::SamePort));
        let mut arp = [&[0xff; 12][..], &[8, 6], &[0; 46]].concat();
        assert_eq!(routes.route(&mut arp, PortId(1)), Verdict::Drop(DropReason::NoRoute));
    }

    #[test]
    fn router_decrements_the_ttl_and_sets_both_mac_addresses() {
        let mut table = table(&[("10.0.0.0/8", &[1]), ("fd00::/16", &[1])]);
        table.ttl = Ttl::Decrement;
        for route in &mut table.routes {
            route.via = vec![NextHop { port: PortId(1), mac: Some(MacAddr([2, 0, 0, 0, 0, 5])) }];
        }
        let routes = Routes::new(&table);
        for tag in [&[][..], &[0x81, 0, 0, 7], &[0x88, 0xa8, 0, 9, 0x81, 0, 0, 7]] {
            for (dst, ttl) in [("10.1.1.1", 8), ("fd00::1", 7)] {
                let plain = frame(if ttl == 8 { "1.1.1.1" } else { "fe00::1" }, dst, 1);
                let mut packet = [&plain[..12], tag, &plain[12..]].concat();
                let l3 = Ethernet::LEN + tag.len();
                for left in (1..64).rev() {
                    packet[..6].copy_from_slice(&OWN.0);
                    // Through the port on which it was received as well: the next hop may be there.
                    assert_eq!(routes.route(&mut packet, PortId(1)), Verdict::Forward(PortId(1)));
                    assert_eq!(packet[l3 + ttl], left);
                    assert_eq!(packet[..12], [[2, 0, 0, 0, 0, 5], OWN.0].concat());
                    if ttl == 8 {
                        let header = packet[l3..].first_chunk().unwrap();
                        assert!(checksum::is_valid(header), "{header:?}");
                    }
                }
                packet[..6].copy_from_slice(&OWN.0);
                assert_eq!(routes.route(&mut packet, PortId(2)), Verdict::Drop(DropReason::TtlExpired));
            }
        }
    }

    #[test]
    fn link_local_and_group_destinations_are_not_routed() {
        let mut table = table(&[("0.0.0.0/0", &[1]), ("::/0", &[1])]);
        for route in &mut table.routes {
            route.via = vec![NextHop { port: PortId(1), mac: Some(MacAddr([2, 0, 0, 0, 0, 5])) }];
        }
        let routes = Routes::new(&table);
        for dst in ["224.0.0.251", "255.255.255.255", "169.254.1.1", "ff02::1", "fe80::1"] {
            let mut packet = frame(if dst.contains(':') { "fd00::1" } else { "10.0.0.1" }, dst, 1);
            assert_eq!(routes.route(&mut packet, PortId(2)), Verdict::Drop(DropReason::NoRoute), "{dst}");
        }
    }

    #[test]
    fn router_accepts_only_frames_addressed_to_it() {
        let table = table(&[("0.0.0.0/0", &[1]), ("::/0", &[1])]);
        let through = |mac: Option<MacAddr>, to: MacAddr, dst: &str| {
            let mut table = table.clone();
            for route in &mut table.routes {
                route.via = vec![NextHop { port: PortId(1), mac }];
            }
            let mut packet = frame(if dst.contains(':') { "fd00::1" } else { "10.0.0.1" }, dst, 1);
            packet[..6].copy_from_slice(&to.0);
            let before = packet.clone();
            let verdict = Routes::new(&table).route(&mut packet, PortId(2));
            assert_eq!(packet == before, mac.is_none() || verdict != Verdict::Forward(PortId(1)));
            verdict
        };
        let next = Some(MacAddr([2, 0, 0, 0, 0, 5]));
        let [mut other, group] = [OWN, MacAddr([0xff; 6])];
        other.0[5] ^= 1;
        for dst in ["10.0.0.2", "fd00::2"] {
            assert_eq!(through(next, OWN, dst), Verdict::Forward(PortId(1)));
            for to in [other, group] {
                assert_eq!(through(next, to, dst), Verdict::Drop(DropReason::OtherStation), "{to}");
                assert_eq!(
                    through(None, to, dst),
                    Verdict::Forward(PortId(1)),
                    "a transparent switch accepts every frame"
                );
            }
        }
    }

    #[test]
    fn flows_are_spread_and_keep_their_path() {
        let via: Vec<u16> = (0..4).collect();
        let routes =
            |seed| Routes::new(&RouteTable { seed, ..table(&[("0.0.0.0/0", &via), ("::/0", &via)]) });
        let (one, other) = (routes(0), routes(2));
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let mut counts = [[0; 4]; 4];
            for ports in 0..4000 {
                let path = |routes: &Routes| match routes
                    .route(&mut frame(src, dst, ports << 16 | 0x12b7), PortId(9))
                {
                    Verdict::Forward(PortId(port)) => usize::from(port),
                    verdict => panic!("{verdict:?}"),
                };
                assert_eq!(path(&one), path(&one));
                counts[path(&one)][path(&other)] += 1;
            }
            // 250 in each cell on average, if flows that share a path at one switch spread over all paths at
            // the other
            let all: Vec<_> = counts.as_flattened().to_vec();
            assert!(all.iter().all(|count| (180..320).contains(count)), "{all:?}");
        }
        // All fragments of a datagram take the same path, although only the first has ports.
        let fragment = |ports| {
            let mut packet = frame("10.0.0.1", "10.0.0.2", ports);
            packet[20] = 0x20;
            one.route(&mut packet, PortId(9))
        };
        assert!((1..100).all(|ports| fragment(ports) == fragment(0)));
    }

    proptest! {
        #[test]
        fn lookup_equals_a_linear_search(
            routes in prop::collection::vec((any::<bool>(), any::<u128>(), 0u8..=128, 0u16..8), 0..40),
            flip in prop::collection::vec((any::<prop::sample::Index>(), 0u32..128), 1..40),
        ) {
            let prefix = |&(v6, bits, len, _): &(bool, u128, u8, u16)| {
                let len = if v6 { len } else { len % 33 };
                let bits = first_bits(bits, len);
                let address = if v6 { IpAddr::V6(Ipv6Addr::from_bits(bits)) } else { IpAddr::V4(Ipv4Addr::from_bits((bits >> 96) as u32)) };
                Prefix::new(address, len).expect("no bit behind the prefix is set")
            };
            let config: Vec<_> = routes.iter().map(|route| Route { to: prefix(route), via: vec![hop(route.3)] }).collect();
            let table = Routes::new(&RouteTable { routes: config.clone(), ..table(&[]) });
            for (route, bit) in flip {
                // Addresses inside and outside of a prefix, next to its limits
                let Some(route) = (!routes.is_empty()).then(|| route.get(&routes)) else { break };
                let address = match prefix(route).address() {
                    IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() ^ 1 << (bit % 32))),
                    IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() ^ 1 << bit)),
                };
                let longest = config.iter().rev().filter(|route| route.to.contains(address)).max_by_key(|route| {
                    // Of equal prefixes the later takes precedence; `rev` puts it first, and `max_by_key`
                    // returns the last maximum.
                    let position = config.iter().rposition(|other| other.to == route.to);
                    (route.to.len(), position)
                });
                let expected = longest.and_then(|longest| config.iter().rev().find(|route| route.to == longest.to));
                prop_assert_eq!(table.find(address), expected.map_or(&[][..], |route| &route.via[..]));
            }
        }

        #[test]
        fn routing_arbitrary_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0usize..4) {
            let mut bytes = bytes;
            if let Some(ethertype) = bytes.get_mut(12..14) {
                ethertype.copy_from_slice(&[[8, 0], [0x86, 0xdd], [0x81, 0], [8, 6]][kind]);
            }
            let mut table = table(&[("0.0.0.0/0", &[0]), ("::/0", &[0])]);
            table.ttl = Ttl::Decrement;
            Routes::new(&table).route(&mut bytes, PortId(1));
        }
    }
}
