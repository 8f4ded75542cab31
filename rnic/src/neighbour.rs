//! Address resolution: ARP (RFC 826) for IPv4 and neighbour discovery (RFC 4861) for IPv6, as requester and
//! as responder. ICMP echo requests are answered, too, so that `ping` works.

use crate::part::{Notice, Part};
use crate::path::Path;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use rocev2::checksum::Sum;
use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use switch::Nanos;
use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

/// Interval between two requests for a neighbour
const REQUEST_INTERVAL: Nanos = Nanos::from_millis(500);
/// Minimum age of an entry that may be verified again: short enough for a request that is retried a few times
const VERIFY_AFTER: Nanos = Nanos::from_millis(20);
/// Requests without a reply after which resolution is given up
const MAX_REQUESTS: u32 = 5;
/// Lifetime of an entry
const LIFETIME: Nanos = Nanos::from_secs(60);
/// Limit of entries: more than the neighbours of a link
const MAX_NEIGHBOURS: usize = 4096;
/// Limit of own frames that wait to be sent
const MAX_FRAMES: usize = 1024;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Header of a solicitation or advertisement with the target address; an option with a link-layer address
/// follows
const ND_LEN: usize = 24;
const SOURCE_ADDRESS: u8 = 1;
const TARGET_ADDRESS: u8 = 2;
/// Flags of an advertisement: solicited, override
const ND_FLAGS: u8 = 0x60;

/// A port and its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// MAC address
    pub mac: MacAddr,
    /// Local addresses, each with the prefix length of its network
    pub addresses: Vec<(IpAddr, u8)>,
    /// Next hops to destinations outside of the networks of `addresses`, at most one used per address family
    pub gateways: Vec<IpAddr>,
    /// VLAN tag (TCI) of all sent frames
    pub vlan: Option<u16>,
    /// Static entries, which are never requested
    pub neighbours: Vec<(IpAddr, MacAddr)>,
}

impl Interface {
    /// Returns a port with one address.
    pub fn new(mac: MacAddr, address: IpAddr, prefix: u8) -> Self {
        Self {
            mac,
            addresses: vec![(address, prefix)],
            gateways: Vec::new(),
            vlan: None,
            neighbours: Vec::new(),
        }
    }

    /// Returns whether `ip` is one of the port's addresses.
    #[inline]
    pub fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(own, _)| *own == ip)
    }

    /// Returns the local address to use as source towards `ip`: one in the same network if there is one.
    pub fn source_for(&self, ip: IpAddr) -> Option<IpAddr> {
        let same = self.addresses.iter().find(|(own, prefix)| same_network(*own, ip, *prefix));
        let any = self.addresses.iter().find(|(own, _)| own.is_ipv4() == ip.is_ipv4());
        same.or(any).map(|(own, _)| *own)
    }

    /// Returns whether `ip` is in one of the port's networks.
    fn is_on_link(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|(own, prefix)| same_network(*own, ip, *prefix))
    }

    /// Returns whether frames are sent to `ip` directly, as to a host on the link or a gateway.
    fn is_hop(&self, ip: IpAddr) -> bool {
        self.is_on_link(ip) || self.gateways.contains(&ip)
    }

    /// Returns whether a path starts at a local address, and both of its addresses are of the same family.
    pub(crate) fn is_local(&self, path: &Path) -> bool {
        self.has(path.src) && path.src.is_ipv4() == path.dst.is_ipv4()
    }

    /// Returns the next hop to `ip`: `ip` itself on the port's networks, otherwise the gateway if there is
    /// one.
    pub(crate) fn next_hop(&self, ip: IpAddr) -> IpAddr {
        if self.is_on_link(ip) {
            return ip;
        }
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == ip.is_ipv4()).unwrap_or(ip)
    }
}

fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => u128::from(ip.to_bits()) << 96,
        IpAddr::V6(ip) => ip.to_bits(),
    };
    let shift = 128 - u32::from(prefix).min(if a.is_ipv4() { 32 } else { 128 });
    a.is_ipv4() == b.is_ipv4() && (bits(a) ^ bits(b)).checked_shr(shift).unwrap_or(0) == 0
}

#[derive(Clone, Copy, Debug)]
struct Neighbour {
    mac: Option<MacAddr>,
    /// When to send the next request
    request_at: Nanos,
    /// Requests since the last reply
    request_count: u32,
}

/// Neighbour table of a port.
#[derive(Debug)]
pub(crate) struct Neighbours {
    interface: Interface,
    entries: BTreeMap<IpAddr, Neighbour>,
    /// Addresses in `entries` with a request outstanding, and the other addresses, both ordered by
    /// `request_at`, so that no operation searches the table
    requested: BTreeSet<(Nanos, IpAddr)>,
    idle: BTreeSet<(Nanos, IpAddr)>,
    frames: VecDeque<Vec<u8>>,
    /// Own frames dropped because [`MAX_FRAMES`] others waited
    dropped: u64,
    /// Version of the table: incremented whenever an address changes or an entry is removed
    version: u64,
    part: Part,
    /// Notices for the other parts, the last one of each neighbour: its MAC address, and whether it may be added
    notices: BTreeMap<IpAddr, (MacAddr, bool)>,
    /// Entries that were examined, for tests of the cost
    #[cfg(test)]
    examined: usize,
}

impl Neighbours {
    pub(crate) fn new(interface: Interface) -> Self {
        Self {
            interface,
            entries: BTreeMap::new(),
            requested: BTreeSet::new(),
            idle: BTreeSet::new(),
            frames: VecDeque::new(),
            dropped: 0,
            version: 0,
            part: Part::WHOLE,
            notices: BTreeMap::new(),
            #[cfg(test)]
            examined: 0,
        }
    }

    /// Returns the table as that of a part of a NIC.
    pub(crate) fn of_part(self, part: Part) -> Self {
        Self { part, ..self }
    }

    /// Returns the next notice for the other parts.
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        let (ip, (mac, create)) = self.notices.pop_first()?;
        Some(Notice::Neighbour { ip, mac, create })
    }

    /// Returns the number of entries that were examined.
    #[cfg(test)]
    pub(crate) fn examined(&self) -> usize {
        self.examined
    }

    pub(crate) fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the version of the table. Routes made at another version may be stale.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn has_frames(&self) -> bool {
        !self.frames.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn poll_transmit(&mut self, frame: &mut Vec<u8>) -> bool {
        let Some(next) = self.frames.pop_front() else { return false };
        frame.clear();
        frame.extend_from_slice(&next);
        true
    }

    /// Returns the number of own frames and notices that were dropped because too many waited.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        self.requested.first().map(|(at, _)| *at)
    }

    /// Returns the ordered set that holds a neighbour.
    fn set_of(&mut self, neighbour: &Neighbour) -> &mut BTreeSet<(Nanos, IpAddr)> {
        if neighbour.request_count > 0 { &mut self.requested } else { &mut self.idle }
    }

    /// Stores the entry of `ip` and returns the previous one.
    fn store(&mut self, ip: IpAddr, neighbour: Neighbour) -> Option<Neighbour> {
        let before = self.remove(ip);
        self.entries.insert(ip, neighbour);
        self.set_of(&neighbour).insert((neighbour.request_at, ip));
        before
    }

    fn remove(&mut self, ip: IpAddr) -> Option<Neighbour> {
        let before = self.entries.remove(&ip)?;
        self.set_of(&before).remove(&(before.request_at, ip));
        Some(before)
    }

    /// Returns the MAC address of the next hop to `ip`; sends a request if it is not known or has expired.
    pub(crate) fn resolve(&mut self, ip: IpAddr, now: Nanos) -> Option<MacAddr> {
        let hop = self.interface.next_hop(ip);
        if let Some((_, mac)) = self.interface.neighbours.iter().find(|(known, _)| *known == hop) {
            return Some(*mac);
        }
        let known = self.entries.get(&hop).copied();
        match known {
            Some(Neighbour { mac: Some(mac), request_at, .. }) => {
                if request_at <= now {
                    self.request(hop, now);
                }
                Some(mac)
            }
            Some(Neighbour { mac: None, request_at, .. }) if request_at > now => None,
            _ => {
                self.request(hop, now);
                None
            }
        }
    }

    /// Verifies the entry of the next hop to `ip`, from which nothing came for too long: its MAC address may
    /// have changed.
    pub(crate) fn verify(&mut self, ip: IpAddr, now: Nanos) {
        let hop = self.interface.next_hop(ip);
        let may_request =
            |known: &Neighbour| known.request_count == 0 && now + LIFETIME >= known.request_at + VERIFY_AFTER;
        if self.entries.get(&hop).is_some_and(may_request) {
            self.request(hop, now);
        }
    }

    /// Sends a request and schedules the next one.
    fn request(&mut self, ip: IpAddr, now: Nanos) {
        if !self.entries.contains_key(&ip) && !self.make_room(|_| true) {
            // All entries have requests outstanding. Waiting queue pairs are woken when one of these is given
            // up.
            return;
        }
        let request_at = now + REQUEST_INTERVAL;
        let (mac, request_count) =
            self.entries.get(&ip).map_or((None, 0), |known| (known.mac, known.request_count));
        self.store(ip, Neighbour { mac, request_at, request_count: request_count + 1 });
        self.send_request(ip);
    }

    /// Repeats requests that are due. Returns the neighbours whose resolution was given up.
    pub(crate) fn on_timer(&mut self, now: Nanos) -> Vec<IpAddr> {
        let mut given_up = Vec::new();
        while let Some(&(_, ip)) = self.requested.first().filter(|(at, _)| *at <= now) {
            #[cfg(test)]
            {
                self.examined += 1;
            }
            let known = self.entries.get(&ip).copied().expect("each address in `requested` has an entry");
            if known.request_count < MAX_REQUESTS {
                self.request(ip, now);
            } else if known.mac.is_some() && self.part.index > 0 {
                // Replies reach this part through part 0 and may be late. Requests to a neighbour that is gone time out.
                self.store(ip, Neighbour { request_at: now + LIFETIME, request_count: 0, ..known });
            } else {
                self.remove(ip);
                self.version += 1;
                given_up.push(ip);
            }
        }
        given_up
    }

    /// Makes room for one entry. If the table is full, removes the oldest entry without an outstanding
    /// request, if `may_go` accepts it. Returns whether there is room.
    fn make_room(&mut self, may_go: impl Fn(&Neighbour) -> bool) -> bool {
        if self.entries.len() < MAX_NEIGHBOURS {
            return true;
        }
        #[cfg(test)]
        {
            self.examined += 1;
        }
        let Some((_, oldest)) = self.idle.first().copied() else { return false };
        if !self.entries.get(&oldest).is_some_and(may_go) {
            return false;
        }
        self.remove(oldest);
        // Routes through the removed entry would miss a later change of its address.
        self.version += 1;
        true
    }

    /// Stores the MAC address that a neighbour announced for `ip`. An address that is not in the table is
    /// stored only if `create` is set and `ip` can be a next hop, so that unrelated hosts cannot fill the
    /// table.
    pub(crate) fn learn(&mut self, ip: IpAddr, mac: MacAddr, create: bool, now: Nanos) -> bool {
        if mac.is_group() || self.interface.has(ip) {
            return false;
        }
        if !self.entries.contains_key(&ip) {
            let wanted = create && self.interface.is_hop(ip);
            if !wanted || !self.make_room(|neighbour| neighbour.request_at <= now) {
                return false;
            }
        }
        let fresh = Neighbour { mac: Some(mac), request_at: now + LIFETIME, request_count: 0 };
        let before = self.store(ip, fresh);
        if before.is_some_and(|before| before.mac.is_some_and(|before| before != mac)) {
            self.version += 1;
        }
        true
    }

    /// Stores the MAC address that a received frame announced. If it is one of interest, also to other parts, which have
    /// sent requests of their own, they get a notice.
    fn on_announcement(&mut self, ip: IpAddr, mac: MacAddr, create: bool, now: Nanos) -> bool {
        let learnt = self.learn(ip, mac, create, now);
        if learnt && self.part.has_others() {
            if let Some(known) = self.notices.get_mut(&ip) {
                *known = (mac, create || known.1);
            } else if self.notices.len() < MAX_NEIGHBOURS {
                self.notices.insert(ip, (mac, create));
            } else {
                self.dropped += 1;
            }
        }
        learnt
    }

    /// Processes a frame that is not RoCEv2. Returns true if it resolved an address for which a queue pair
    /// may wait.
    pub(crate) fn on_frame(&mut self, frame: &[u8], now: Nanos) -> bool {
        let Ok((ethernet, mut rest)) = Ethernet::ref_from_prefix(frame) else { return false };
        let mut kind = ethernet.ethertype.get();
        let mut id = 0;
        if ethertype::is_tag(kind) {
            let Ok((tag, behind)) = VlanTag::ref_from_prefix(rest) else { return false };
            (kind, rest, id) = (tag.ethertype.get(), behind, tag.id());
        }
        if id != self.interface.vlan.unwrap_or(0) & 0xfff {
            return false;
        }
        match kind {
            ethertype::ARP => self.on_arp(rest, now),
            ethertype::IPV4 => {
                self.on_ipv4(ethernet.src, rest);
                false
            }
            ethertype::IPV6 => self.on_ipv6(ethernet.src, rest, now),
            _ => false,
        }
    }

    /// Processes an ARP packet, 28 bytes for Ethernet and IPv4: types and lengths, operation, sender's MAC
    /// and IP address, target's MAC and IP address.
    fn on_arp(&mut self, arp: &[u8], now: Nanos) -> bool {
        let Some(arp) = arp.first_chunk::<28>() else { return false };
        if arp[..6] != [0, 1, 8, 0, 6, 4] {
            return false;
        }
        let operation = u16::from_be_bytes([arp[6], arp[7]]);
        let ip = |at: usize| Ipv4Addr::new(arp[at], arp[at + 1], arp[at + 2], arp[at + 3]);
        let mac =
            |at: usize| MacAddr([arp[at], arp[at + 1], arp[at + 2], arp[at + 3], arp[at + 4], arp[at + 5]]);
        let (sender_mac, sender, target) = (mac(8), ip(14), ip(24));
        let for_us = self.interface.has(target.into());
        if operation == 1 && for_us {
            self.arp(2, sender_mac, sender_mac, target, sender);
        }
        !sender.is_unspecified() && self.on_announcement(sender.into(), sender_mac, for_us, now)
    }

    fn on_ipv4(&mut self, src_mac: MacAddr, packet: &[u8]) {
        let Ok((ip, _)) = Ipv4::ref_from_prefix(packet) else { return };
        let (header, total) = (ip.header_len(), usize::from(ip.total_len.get()));
        let fits = header >= Ipv4::LEN && total >= header + 8 && packet.len() >= total;
        let for_us = self.interface.has(Ipv4Addr::from(ip.dst).into());
        if !fits || !for_us || ip.protocol != ICMP || ip.is_fragment() || packet[header] != ECHO_REQUEST {
            return;
        }
        let mut echo = packet[header..total].to_vec();
        (echo[0], echo[2], echo[3]) = (ECHO_REPLY, 0, 0);
        let sum = Sum::default().add(&echo).checksum();
        echo[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut reply = Ipv4 {
            protocol: ICMP,
            total_len: U16::new((Ipv4::LEN + echo.len()) as u16),
            src: ip.dst,
            dst: ip.src,
            ..Ipv4::default()
        };
        reply.fill_checksum(&[]);
        self.send(src_mac, ethertype::IPV4, &[reply.as_bytes(), &echo]);
    }

    fn on_ipv6(&mut self, src_mac: MacAddr, packet: &[u8], now: Nanos) -> bool {
        let Ok((ip, rest)) = Ipv6::ref_from_prefix(packet) else { return false };
        let Some(message) = rest.get(..usize::from(ip.payload_len.get())) else { return false };
        if ip.next_header != ICMPV6 || message.len() < 8 {
            return false;
        }
        let (src, dst) = (Ipv6Addr::from(ip.src), Ipv6Addr::from(ip.dst));
        if checksum_v6(src, dst, message) != 0 {
            return false;
        }
        let target = message.get(8..ND_LEN).and_then(|bytes| bytes.first_chunk::<16>());
        let target = target.map(|bytes| Ipv6Addr::from(*bytes));
        match (message[0], target) {
            // Neighbour discovery is accepted from the link itself only (RFC 4861, section 7.1).
            (SOLICITATION, Some(target)) if ip.hop_limit == 255 && self.interface.has(target.into()) => {
                let their_mac = option(&message[ND_LEN..], SOURCE_ADDRESS).unwrap_or(src_mac);
                let (to, to_mac) = if src.is_unspecified() {
                    (all_nodes(), mac_of_group(all_nodes()))
                } else {
                    (src, their_mac)
                };
                self.discovery(ADVERTISEMENT, TARGET_ADDRESS, to_mac, target, to, target);
                !src.is_unspecified() && self.on_announcement(src.into(), their_mac, true, now)
            }
            (ADVERTISEMENT, Some(target)) if ip.hop_limit == 255 => {
                let mac = option(&message[ND_LEN..], TARGET_ADDRESS).unwrap_or(src_mac);
                // An advertisement to this host may be the answer to a solicitation of another part.
                let create = self.part.has_others() && self.interface.has(dst.into());
                self.on_announcement(target.into(), mac, create, now)
            }
            (ECHO_REQUEST_V6, _) if self.interface.has(dst.into()) => {
                let mut echo = message.to_vec();
                echo[0] = ECHO_REPLY_V6;
                self.send_icmpv6(src_mac, dst, src, 64, echo);
                false
            }
            _ => false,
        }
    }

    fn send_request(&mut self, ip: IpAddr) {
        match (ip, self.interface.source_for(ip)) {
            (IpAddr::V4(ip), Some(IpAddr::V4(own))) => {
                self.arp(1, MacAddr::BROADCAST, MacAddr([0; 6]), own, ip);
            }
            (IpAddr::V6(ip), Some(IpAddr::V6(own))) => {
                let group = solicited_node(ip);
                self.discovery(SOLICITATION, SOURCE_ADDRESS, mac_of_group(group), own, group, ip);
            }
            _ => {}
        }
    }

    fn arp(&mut self, operation: u8, to: MacAddr, target_mac: MacAddr, sender: Ipv4Addr, target: Ipv4Addr) {
        let own = self.interface.mac.0;
        let head = [0, 1, 8, 0, 6, 4, 0, operation];
        self.send(to, ethertype::ARP, &[&head, &own, &sender.octets(), &target_mac.0, &target.octets()]);
    }

    fn discovery(
        &mut self,
        kind: u8,
        option: u8,
        mac: MacAddr,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        target: Ipv6Addr,
    ) {
        let flags = if kind == ADVERTISEMENT { ND_FLAGS } else { 0 };
        let mut message = vec![kind, 0, 0, 0, flags, 0, 0, 0];
        message.extend(target.octets());
        message.extend([option, 1]);
        message.extend(self.interface.mac.0);
        self.send_icmpv6(mac, src, dst, 255, message);
    }

    fn send_icmpv6(&mut self, mac: MacAddr, src: Ipv6Addr, dst: Ipv6Addr, hops: u8, mut message: Vec<u8>) {
        message[2..4].fill(0);
        let sum = checksum_v6(src, dst, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let ip = Ipv6 {
            payload_len: U16::new(message.len() as u16),
            next_header: ICMPV6,
            hop_limit: hops,
            src: src.octets(),
            dst: dst.octets(),
            ..Ipv6::default()
        };
        self.send(mac, ethertype::IPV6, &[ip.as_bytes(), &message]);
    }

    fn send(&mut self, dst: MacAddr, kind: u16, parts: &[&[u8]]) {
        if self.frames.len() >= MAX_FRAMES {
            self.dropped += 1;
            return;
        }
        let first = if self.interface.vlan.is_some() { ethertype::VLAN } else { kind };
        let ethernet = Ethernet { dst, src: self.interface.mac, ethertype: U16::new(first) };
        let mut frame = ethernet.as_bytes().to_vec();
        if let Some(tci) = self.interface.vlan {
            frame.extend_from_slice(VlanTag { tci: U16::new(tci), ethertype: U16::new(kind) }.as_bytes());
        }
        for part in parts {
            frame.extend_from_slice(part);
        }
        // The minimum length of an Ethernet frame without its FCS
        frame.resize(frame.len().max(60), 0);
        self.frames.push_back(frame);
    }
}

/// Returns the checksum of an ICMPv6 message with its pseudo-header; 0 for a message with a valid checksum.
fn checksum_v6(src: Ipv6Addr, dst: Ipv6Addr, message: &[u8]) -> u16 {
    let sum = Sum::default().add(&src.octets()).add(&dst.octets());
    sum.add_word(message.len() as u32).add_word(ICMPV6.into()).add(message).checksum()
}

/// Returns the link-layer address in the options of a neighbour discovery message.
fn option(mut options: &[u8], wanted: u8) -> Option<MacAddr> {
    while let [kind, len, rest @ ..] = options {
        let len = usize::from(*len) * 8;
        if *kind == wanted && len == 8 {
            return rest.first_chunk::<6>().map(|mac| MacAddr(*mac));
        }
        options = options.get(len.max(8)..)?;
    }
    None
}

/// Returns the solicited-node multicast address of `ip` (RFC 4291, section 2.7.1).
fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = ip.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

fn all_nodes() -> Ipv6Addr {
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1)
}

/// Returns the MAC address of an IPv6 multicast group (RFC 2464, section 7).
fn mac_of_group(group: Ipv6Addr) -> MacAddr {
    let [.., a, b, c, d] = group.octets();
    MacAddr([0x33, 0x33, a, b, c, d])
}
