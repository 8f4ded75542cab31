//! An end of a link: its neighbours, and the communication manager on QP 1. A NIC has queue pairs besides; a switch's
//! control plane, which connects queue pairs that are none, has this alone.

use crate::cm::{self, Cm, Peer};
use crate::neighbour::{Interface, Neighbours};
use crate::qp::Path;
use crate::wire::{Ends, Route, src_port};
use core::net::IpAddr;
use rocev2::cm::{MAD_LEN, mad_of};
use rocev2::deth::Deth;
use rocev2::ethernet::MacAddr;
use rocev2::{Bth, Class, Opcode, Packet, Psn, Qpn, classify};
use std::collections::VecDeque;
use switch::Nanos;
use zerocopy::IntoBytes;

/// MADs that wait for their neighbour's MAC address at most. Those lost are sent again: they are not acknowledged.
const MAX_WAITING: usize = 4096;
const HOP_LIMIT: u8 = 64;

/// An end of a link.
#[derive(Debug)]
pub struct Endpoint {
    pub(crate) neighbours: Neighbours,
    cm: Cm,
    psn: Psn,
    /// MADs to send
    mads: VecDeque<(Peer, [u8; MAD_LEN])>,
    /// MADs that wait for their neighbour
    waiting: VecDeque<(Peer, [u8; MAD_LEN])>,
    /// MADs dropped, as too many waited for their neighbour
    dropped: u64,
    /// Changes UDP source ports, so that packets take other paths
    pub(crate) path_salt: u16,
}

impl Endpoint {
    /// An end with these addresses. Its GUID is the EUI-64 of its MAC address, whatever `cm` says.
    pub fn new(interface: Interface, cm: cm::Config, seed: u64) -> Self {
        let [a, b, c, d, e, f] = interface.mac.0;
        let cm = cm::Config { ca_guid: u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]), ..cm };
        Self {
            neighbours: Neighbours::new(interface),
            cm: Cm::new(cm, seed),
            psn: Psn::ZERO,
            mads: VecDeque::new(),
            waiting: VecDeque::new(),
            dropped: 0,
            path_salt: 0,
        }
    }

    /// Its addresses
    pub fn interface(&self) -> &Interface {
        self.neighbours.interface()
    }

    /// Frames and messages of its own that were dropped, as too many waited: for a port that takes none, or for a
    /// neighbour
    pub fn dropped(&self) -> u64 {
        self.neighbours.dropped() + self.cm.dropped() + self.dropped
    }

    /// Its communication manager
    pub fn cm(&self) -> &Cm {
        &self.cm
    }

    /// Its communication manager, to make and end connections. Its messages leave through
    /// [`poll_transmit`](Self::poll_transmit).
    pub fn cm_mut(&mut self) -> &mut Cm {
        &mut self.cm
    }

    /// The MAC address of the next hop to `ip`, or a question sent to the network: ask again later.
    pub fn resolve(&mut self, ip: IpAddr, now: Nanos) -> Option<MacAddr> {
        self.neighbours.resolve(ip, now)
    }

    /// A frame came in that may be for it: what is not is passed over.
    pub fn on_frame(&mut self, frame: &[u8], now: Nanos) {
        match classify(frame) {
            Class::Roce(layout) => {
                let packet = Packet::new(frame, layout);
                let ours = self.interface().has(packet.dst()) && packet.bth().dest_qp() == Qpn::GSI;
                if ours && packet.verify_icrc() {
                    self.on_mad(&packet, now);
                }
            }
            Class::Other => {
                if self.neighbours.on_frame(frame, now) {
                    self.wake();
                }
            }
            Class::Malformed(_) => {}
        }
    }

    /// A packet to QP 1 whose ICRC is right. False if it is no MAD of the communication manager.
    pub(crate) fn on_mad(&mut self, packet: &Packet<'_>, now: Nanos) -> bool {
        let Some(mad) = mad_of(packet) else { return false };
        self.cm.on_mad(Peer { local: packet.dst(), remote: packet.src() }, mad, now);
        true
    }

    /// The neighbours may have answered.
    pub(crate) fn wake(&mut self) {
        self.mads.append(&mut self.waiting);
    }

    /// The next frame to send, written to `frame`. False if there is none now.
    pub fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        self.neighbours.poll_transmit(frame)
            || self.poll_mads(now, frame)
            // There may be a neighbour to be asked for.
            || self.neighbours.poll_transmit(frame)
    }

    fn poll_mads(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        self.take_mads();
        while let Some((peer, mad)) = self.mads.pop_front() {
            let path = Path { hop_limit: HOP_LIMIT, ..Path::new(peer.local, peer.remote) };
            let Some(mut route) = self.route(&path, src_port(Qpn::GSI, Qpn::GSI), now) else {
                if self.waiting.len() >= MAX_WAITING {
                    self.waiting.pop_front();
                    self.dropped += 1;
                }
                self.waiting.push_back((peer, mad));
                continue;
            };
            let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, self.psn);
            self.psn = self.psn.add(1);
            route.emit(frame, bth, &[Deth::new(Deth::GSI_QKEY, Qpn::GSI).as_bytes()], &mad);
            return true;
        }
        false
    }

    fn take_mads(&mut self) {
        // What does not fit waits with the manager, which has a bound of its own.
        while self.mads.len() < MAX_WAITING
            && let Some(mad) = self.cm.poll_transmit()
        {
            self.mads.push_back(mad);
        }
    }

    /// The way to a host, if its MAC address is known; it is asked for otherwise.
    pub(crate) fn route(&mut self, path: &Path, src_port: u16, now: Nanos) -> Option<Route> {
        let dst_mac = match path.mac {
            Some(mac) => mac,
            None => self.resolve(path.dst, now)?,
        };
        Route::new(&Ends {
            src_mac: self.interface().mac,
            dst_mac,
            vlan: self.interface().vlan,
            src: path.src,
            dst: path.dst,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            src_port: src_port ^ (self.path_salt & 0x3fff),
        })
    }

    /// Whether [`poll_transmit`](Self::poll_transmit) may have something.
    pub fn wants_to_transmit(&self) -> bool {
        self.neighbours.has_frames() || !self.mads.is_empty() || self.cm.has_messages()
    }

    /// When [`on_timer`](Self::on_timer) is due
    pub fn next_timer(&self) -> Option<Nanos> {
        [self.neighbours.next_timer(), self.cm.next_timer()].into_iter().flatten().min()
    }

    /// The time asked for has come. True if a neighbour was given up: whoever still wants to speak to it asks again.
    pub fn on_timer(&mut self, now: Nanos) -> bool {
        !self.pass_time(now).is_empty()
    }

    /// The same; the neighbours that were given up.
    pub(crate) fn pass_time(&mut self, now: Nanos) -> Vec<IpAddr> {
        let given_up = self.neighbours.on_timer(now);
        if !given_up.is_empty() {
            self.wake();
        }
        self.take_mads();
        let before = self.mads.len();
        self.cm.on_timer(now);
        self.take_mads();
        // What is said again was not answered: perhaps nobody heard it, at an address that is another by now.
        for (peer, _) in self.mads.iter().skip(before) {
            self.neighbours.suspect(peer.remote, now);
        }
        given_up
    }
}
