//! Dissector of one frame. Lenient where `rocev2::classify` is strict: a frame that breaks a rule, or that
//! the capture truncated, is decoded as far as possible.

use rocev2::ICRC_LEN;
use rocev2::aeth::Aeth;
use rocev2::atomic::AtomicEth;
use rocev2::cm::Message;
use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::opcode::Headers;
use rocev2::packet::{Class, Fault, classify_ip};
use rocev2::reth::Reth;
use rocev2::udp::{self, Udp};
use rocev2::{Bth, Opcode, Qpn, UDP_PORT, icrc};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Position and ethertype of the layer above the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Length of the link header, in bytes; 14 for Ethernet and for no other link type
    pub len: usize,
    /// Ethertype of the layer above
    pub ethertype: u16,
}

/// A dissected frame.
#[derive(Debug)]
pub(crate) enum Dissection<'a> {
    /// Frame to UDP port 4791
    Roce(Roce<'a>),
    /// Any other frame, with a short description
    Other(String),
}

/// Fields of a RoCEv2 packet that could be read.
#[derive(Debug)]
pub(crate) struct Roce<'a> {
    /// Source and destination
    pub addresses: (IpAddr, IpAddr),
    /// Source and destination MAC address, if captured on Ethernet
    pub macs: Option<(MacAddr, MacAddr)>,
    /// VLAN identifiers, outermost first
    pub vlans: Vec<u16>,
    /// IPv4's type of service or IPv6's traffic class: DSCP (6 bits) and ECN (2)
    pub traffic_class: u8,
    /// IPv4's time to live or IPv6's hop limit
    pub ttl: u8,
    /// IPv4's identification
    pub ip_id: Option<u16>,
    /// UDP source port
    pub src_port: u16,
    /// Base transport header, if present
    pub bth: Option<Bth>,
    /// Bytes behind the BTH without the ICRC, as far as they were captured
    rest: &'a [u8],
    /// Length of the payload without padding, in bytes
    pub payload_len: Option<usize>,
    /// ICRC as received; `None` if it was not captured
    pub icrc: Option<u32>,
    /// Whether the ICRC is correct; `None` if it was not captured
    pub icrc_ok: Option<bool>,
    /// Rule that the packet breaks
    pub fault: Option<Fault>,
}

/// Dissects a frame. `whole` is true if the capture did not truncate it.
pub(crate) fn dissect(frame: &[u8], link: Link, whole: bool) -> Dissection<'_> {
    let mut at = link.len;
    let mut kind = link.ethertype;
    let mut vlans = Vec::new();
    while ethertype::is_tag(kind) && vlans.len() < rocev2::packet::MAX_TAGS {
        let Some(tag) = view::<VlanTag>(frame, at) else {
            return Dissection::Other("truncated VLAN tag".into());
        };
        vlans.push(tag.id());
        kind = tag.ethertype.get();
        at += VlanTag::LEN;
    }
    let Some(ip) = IpPart::read(frame, at, kind) else { return Dissection::Other(name_of(kind)) };
    if ip.protocol != udp::PROTOCOL {
        return Dissection::Other(format!("IP protocol {}", ip.protocol));
    }
    let fault = match classify_ip(frame, at, kind) {
        Class::Roce(_) => None,
        Class::Malformed(fault) => Some(fault),
        Class::Other => return Dissection::Other("UDP".into()),
    };
    let Some(udp) = view::<Udp>(frame, ip.udp) else { return Dissection::Other("truncated UDP".into()) };
    if udp.dst_port.get() != UDP_PORT {
        return Dissection::Other("UDP".into());
    }
    let ethernet = view::<Ethernet>(frame, 0).filter(|_| link.len == Ethernet::LEN);
    let mut roce = Roce {
        addresses: (ip.src, ip.dst),
        macs: ethernet.map(|ethernet| (ethernet.src, ethernet.dst)),
        vlans,
        traffic_class: ip.traffic_class,
        ttl: ip.ttl,
        ip_id: ip.id,
        src_port: udp.src_port.get(),
        bth: None,
        rest: &[],
        payload_len: None,
        icrc: None,
        icrc_ok: None,
        // The capture truncated the frame, not its sender.
        fault: fault.filter(|&fault| whole || fault != Fault::Truncated),
    };
    if roce.fault != Some(Fault::Fragment) {
        // The ICRC is at the end of the UDP datagram, if the frame reaches that far.
        let end = (ip.udp + usize::from(udp.len.get())).checked_sub(ICRC_LEN);
        roce.read_transport(frame, ip.udp + Udp::LEN, end);
        roce.read_icrc(frame, at, &ip, end);
    }
    Dissection::Roce(roce)
}

fn view<T: FromBytes + KnownLayout + Immutable + Unaligned>(frame: &[u8], at: usize) -> Option<&T> {
    T::ref_from_bytes(frame.get(at..at.checked_add(size_of::<T>())?)?).ok()
}

/// Returns a short description of a frame of this ethertype.
fn name_of(kind: u16) -> String {
    match kind {
        ethertype::ARP => "ARP".into(),
        ethertype::IPV4 => "broken IPv4".into(),
        ethertype::IPV6 => "broken IPv6".into(),
        other => format!("ethertype {other:#06x}"),
    }
}

struct IpPart {
    src: IpAddr,
    dst: IpAddr,
    traffic_class: u8,
    ttl: u8,
    id: Option<u16>,
    protocol: u8,
    udp: usize,
}

impl IpPart {
    fn read(frame: &[u8], at: usize, kind: u16) -> Option<Self> {
        match kind {
            ethertype::IPV4 => {
                let ip =
                    view::<Ipv4>(frame, at).filter(|ip| ip.version() == 4 && ip.header_len() >= Ipv4::LEN)?;
                let (src, dst) = (Ipv4Addr::from(ip.src).into(), Ipv4Addr::from(ip.dst).into());
                let udp = at + ip.header_len();
                let (id, protocol) = (Some(ip.id.get()), ip.protocol);
                Some(Self { src, dst, traffic_class: ip.tos, ttl: ip.ttl, id, protocol, udp })
            }
            ethertype::IPV6 => {
                use rocev2::ipv6::extension::{DESTINATION, FRAGMENT, HOP_BY_HOP, ROUTING};
                let ip = view::<Ipv6>(frame, at).filter(|ip| ip.version() == 6)?;
                let (src, dst) = (Ipv6Addr::from(ip.src).into(), Ipv6Addr::from(ip.dst).into());
                let (mut protocol, mut udp) = (ip.next_header, at + Ipv6::LEN);
                for _ in 0..4 {
                    let Some(&[next, len]) = view::<[u8; 2]>(frame, udp) else { break };
                    udp += match protocol {
                        HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(len) + 1) * 8,
                        FRAGMENT => 8,
                        _ => break,
                    };
                    protocol = next;
                }
                let traffic_class = (ip.version_class_flow.get() >> 20) as u8;
                Some(Self { src, dst, traffic_class, ttl: ip.hop_limit, id: None, protocol, udp })
            }
            _ => None,
        }
    }
}

impl<'a> Roce<'a> {
    /// Reads the BTH, and the bytes behind it as far as they lie before `end` and within the frame.
    fn read_transport(&mut self, frame: &'a [u8], at: usize, end: Option<usize>) {
        let Some(&bth) = view::<Bth>(frame, at) else { return };
        self.bth = Some(bth);
        let from = at + Bth::LEN;
        let within = end.map_or(frame, |end| &frame[..end.min(frame.len())]);
        self.rest = within.get(from..).unwrap_or(&[]);
        let payload = from + bth.opcode().headers().len();
        let padded = end.and_then(|end| end.checked_sub(payload));
        self.payload_len = padded.and_then(|padded| padded.checked_sub(usize::from(bth.pad_count())));
    }

    /// Reads and checks the ICRC at `end`, if it was captured. The IP header is at `at`.
    fn read_icrc(&mut self, frame: &[u8], at: usize, ip: &IpPart, end: Option<usize>) {
        let packet = end.and_then(|end| Some((frame.get(at..end)?, frame.get(end..)?.first_chunk()?)));
        let udp_at = ip.udp - at;
        if let Some((covered, stored)) = packet.filter(|_| self.bth.is_some())
            && covered.len() >= udp_at + Udp::LEN + Bth::LEN
        {
            let stored = u32::from_le_bytes(*stored);
            self.icrc = Some(stored);
            self.icrc_ok = Some(icrc::compute_for(covered, ip.dst.is_ipv6(), udp_at) == stored);
        }
    }

    /// Returns an extended header, if the opcode has it and it was captured.
    pub(super) fn header<T: FromBytes + KnownLayout + Immutable + Unaligned>(
        &self,
        header: Headers,
    ) -> Option<&'a T> {
        let headers = self.bth.as_ref()?.opcode().headers();
        headers.contains(header).then(|| view(self.rest, headers.before(header))).flatten()
    }

    /// RDMA extended transport header
    pub(crate) fn reth(&self) -> Option<&'a Reth> {
        self.header(Headers::RETH)
    }

    /// Atomic extended transport header
    pub(crate) fn atomic(&self) -> Option<&'a AtomicEth> {
        self.header(Headers::ATOMIC)
    }

    /// ACK extended transport header
    pub(crate) fn aeth(&self) -> Option<&'a Aeth> {
        self.header(Headers::AETH)
    }

    /// Message of the communication manager
    pub(crate) fn cm(&self) -> Option<Message<'a>> {
        let bth = self.bth.as_ref()?;
        let to_gsi = bth.opcode() == Opcode::UD_SEND_ONLY && bth.dest_qp() == Qpn::GSI;
        let mad = self.rest.get(bth.opcode().headers().len()..).filter(|_| to_gsi)?;
        Message::parse(mad).ok()
    }
}
