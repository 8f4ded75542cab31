//! Beacons: packets that carry barriers alone, for one hop (1Pipe, sections 4.2 and 6.2.3).
//!
//! A beacon is a 1Pipe header without payload data, sent as a datagram or as an RDMA WRITE into the
//! neighbour's register memory. Its timestamp is the sender's clock; its barriers are those of the link that
//! it is sent on.

use crate::config::{BeaconForm, Config, Link};
use onepipe::beacon;
use onepipe::{OnePipe, OnePipeOpcode, Timestamp};
use rocev2::deth::Deth;
use rocev2::ethernet::{Ethernet, ethertype};
use rocev2::repr::{Ip, Repr};
use rocev2::reth::Reth;
use rocev2::{Bth, Class, Layout, Opcode, Psn, Qpn, classify};
use switch::{Frame, Full, Output, PortId, tunnel};
use zerocopy::IntoBytes;

/// Returns the tunnel headers that lead `packet` through a link's detour. The configuration must have been
/// checked.
fn detour_headers(config: &Config, link: &Link, packet: &[u8]) -> Vec<u8> {
    let tunnels = config.tunnels(link).expect("the configuration was checked");
    tunnel::encapsulation_headers(&tunnels, packet)
        .expect("the configuration was checked, and a beacon is short enough")
}

/// Precomputed beacon of one link, complete except for the fields that change with each beacon.
#[derive(Debug)]
pub(crate) struct Template {
    /// Whole frame, with the outer headers of the detour if there is one
    frame: Box<[u8]>,
    /// Length of these outer headers, in bytes. The bytes from this offset on are the beacon without its
    /// detour, except for its Ethernet header, which stays at the front of the frame.
    outer_len: usize,
    beacon: beacon::Template,
    port: PortId,
    psn: Psn,
}

/// Beacons of all links, from the queue pairs of one incarnation: to the first node at the other end, and to its
/// standby.
#[derive(Debug)]
pub struct Templates(pub(crate) Box<[(Template, Option<Template>)]>);

impl Templates {
    /// Builds the beacons of all links, whose queue pairs follow `first`. The configuration must have been
    /// checked.
    pub(crate) fn new(config: &Config, first: Qpn) -> Self {
        let links = (0..).zip(&config.links);
        let both = |(n, link): (u32, &Link)| {
            let qpn = Qpn::new(first.get() + n);
            let standby = link.to_standby().map(|link| Template::new(config, &link, qpn));
            (Template::new(config, link, qpn), standby)
        };
        Self(links.map(both).collect())
    }
}

/// Returns the datagram that leaves from `qpn` to the neighbour at a link with a payload of `len` bytes, and the same
/// with the outer headers of the detour. The configuration must have been checked.
pub(crate) fn datagram(config: &Config, link: &Link, qpn: Qpn, len: usize) -> (Box<[u8]>, Box<[u8]>) {
    let frame = build(config, link, qpn, &vec![0; len]);
    let outer = detour_headers(config, link, &frame[Ethernet::LEN..]);
    let mut whole = frame.clone();
    insert_detour(&mut whole, link, &outer);
    (frame.into(), whole.into())
}

/// Returns the layout of a frame that was built here.
pub(crate) fn layout_of(frame: &[u8]) -> Layout {
    let Class::Roce(layout) = classify(frame) else { unreachable!("it was built as one") };
    layout
}

/// Builds a frame to the neighbour at a link.
fn build(config: &Config, link: &Link, qpn: Qpn, payload: &[u8]) -> Vec<u8> {
    let own = config.own_address(link.address).expect("the configuration was checked");
    let ip = Ip::between(own, link.address, config.traffic_class);
    let ethernet = Ethernet { dst: link.mac, src: config.mac, ethertype: ip.ethertype().into() };
    let opcode = match link.beacon {
        BeaconForm::Datagram => Opcode::UD_SEND_ONLY,
        BeaconForm::Write { .. } => Opcode::UC_WRITE_ONLY,
    };
    let mut repr = Repr::new(ethernet, ip, Bth::new(opcode, link.qpn, Psn::ZERO));
    repr.payload = payload;
    repr.extended.deth = Deth::new(config.qkey, qpn);
    if let BeaconForm::Write { va, rkey } = link.beacon {
        let len = (payload.len() as u32).into();
        repr.extended.reth = Reth { va: va.into(), rkey: rkey.into(), len };
    }
    let mut frame = vec![0; repr.frame_len()];
    repr.build(&mut frame).expect("the buffer has the length of the frame");
    frame
}

/// Inserts the outer headers of a link's detour behind the Ethernet header.
fn insert_detour(frame: &mut Vec<u8>, link: &Link, outer: &[u8]) {
    if let Some(&first) = link.detour.first() {
        let kind = if first.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 };
        frame[Ethernet::LEN - 2..Ethernet::LEN].copy_from_slice(&kind.to_be_bytes());
    }
    frame.splice(Ethernet::LEN..Ethernet::LEN, outer.iter().copied());
}

impl Template {
    /// Builds the beacon of the link whose local queue pair is `qpn`. The configuration must have been
    /// checked.
    pub(crate) fn new(config: &Config, link: &Link, qpn: Qpn) -> Self {
        let header = OnePipe::new(OnePipeOpcode::BEACON, Timestamp::default(), Psn::ZERO);
        let mut frame = build(config, link, qpn, header.as_bytes());
        let beacon = beacon::Template::new(&frame, layout_of(&frame)).expect("it was built as one");
        let outer = detour_headers(config, link, &frame[Ethernet::LEN..]);
        insert_detour(&mut frame, link, &outer);
        Self { frame: frame.into(), outer_len: outer.len(), beacon, port: link.port, psn: Psn::ZERO }
    }

    /// Sends a beacon, behind all frames that were queued at the port before.
    #[inline]
    pub(crate) fn send<O: Output>(
        &mut self,
        contents: &beacon::BeaconHeader,
        out: &mut O,
    ) -> Result<(), Full> {
        let mut frame = out.make_from(&self.frame)?;
        // No checksum of the beacon covers the Ethernet header, and no outer checksum covers the beacon.
        self.beacon.fill(&mut frame.bytes_mut()[self.outer_len..], self.psn, contents);
        self.psn = self.psn.add(1);
        out.send(frame, self.port)
    }
}
