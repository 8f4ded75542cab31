//! An endpoint of a link: its neighbours, and the communication manager on QP 1. A NIC adds queue pairs to
//! it. A switch's control plane, which connects virtual queue pairs that its data plane handles, uses it
//! alone.

use crate::cm::{self, AddressPair, Cm};
use crate::neighbour::{Interface, Neighbours};
use crate::part::{Notice, Part};
use crate::path::Path;
use crate::wire::{PathHeaderFields, PathHeaders, src_port};
use core::net::IpAddr;
use rocev2::cm::{MAD_LEN, mad_of};
use rocev2::deth::Deth;
use rocev2::ethernet::MacAddr;
use rocev2::{Bth, Class, Opcode, Packet, Psn, Qpn, classify};
use std::collections::VecDeque;
use switch::Nanos;
use zerocopy::IntoBytes;

/// Limit of MADs that wait for their neighbour's MAC address, and of MADs to send. The communication manager
/// retransmits dropped MADs, because no acknowledgement arrives for them.
const MAX_WAITING: usize = 4096;
const HOP_LIMIT: u8 = 64;

/// An endpoint of a link. Its caller passes frames to [`on_frame`](Self::on_frame), takes frames from
/// [`poll_transmit`](Self::poll_transmit), and calls [`on_timer`](Self::on_timer) when
/// [`next_timer`](Self::next_timer) is due.
#[derive(Debug)]
pub struct Endpoint {
    neighbours: Neighbours,
    cm: Cm,
    psn: Psn,
    /// MADs ready to send
    mads: VecDeque<(AddressPair, [u8; MAD_LEN])>,
    /// MADs whose next hop is not resolved yet
    waiting: VecDeque<(AddressPair, [u8; MAD_LEN])>,
    /// MADs dropped because [`MAX_WAITING`] others waited for their neighbour
    dropped: u64,
    /// XORed into UDP source ports, so that packets take other ECMP paths
    path_salt: u16,
}

impl Endpoint {
    /// Creates an endpoint with these addresses. Its CA GUID is the EUI-64 of its MAC address; `cm.ca_guid`
    /// is ignored.
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

    /// Returns the endpoint as that of a part of a NIC, whose communication IDs its configuration sets.
    #[must_use]
    pub(crate) fn of_part(mut self, part: Part) -> Self {
        self.neighbours = self.neighbours.of_part(part);
        self
    }

    /// Returns the next notice for the other parts.
    pub(crate) fn poll_notice(&mut self) -> Option<Notice> {
        self.neighbours.poll_notice().or_else(|| self.cm.poll_notice())
    }

    /// Processes a notice of another part. Returns whether a neighbour was resolved.
    pub(crate) fn on_notice(&mut self, notice: Notice, now: Nanos) -> bool {
        match notice {
            Notice::Neighbour { ip, mac, create } => {
                let resolved = self.neighbours.learn(ip, mac, create, now);
                if resolved {
                    self.retry_waiting();
                }
                return resolved;
            }
            Notice::Connected { host, qpn, comm_id, at } => {
                self.cm.close_older(host, qpn, comm_id, at, now);
            }
            Notice::GivenUp { host, comm_id, at } => self.cm.close_given_up(host, comm_id, at, now),
        }
        false
    }

    /// Returns its addresses.
    pub fn interface(&self) -> &Interface {
        self.neighbours.interface()
    }

    /// Returns the number of own frames and messages that were dropped because too many waited for a port
    /// without room or for an unresolved neighbour.
    pub fn dropped(&self) -> u64 {
        self.neighbours.dropped() + self.cm.dropped() + self.dropped
    }

    /// Returns its communication manager.
    pub fn cm(&self) -> &Cm {
        &self.cm
    }

    /// Returns its communication manager, to open and close connections. Its messages leave through
    /// [`poll_transmit`](Self::poll_transmit).
    pub fn cm_mut(&mut self) -> &mut Cm {
        &mut self.cm
    }

    /// Returns the MAC address of the next hop to `ip`. If it is not known, sends an ARP request or neighbour
    /// solicitation and returns `None`; the caller tries again later.
    pub fn resolve(&mut self, ip: IpAddr, now: Nanos) -> Option<MacAddr> {
        self.neighbours.resolve(ip, now)
    }

    /// Processes a received frame. Frames that are not for this endpoint are ignored.
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
                    self.retry_waiting();
                }
            }
            Class::Malformed(_) => {}
        }
    }

    /// Processes a packet to QP 1 whose ICRC is valid. Returns false if it is not a MAD of the communication
    /// manager.
    pub(crate) fn on_mad(&mut self, packet: &Packet<'_>, now: Nanos) -> bool {
        let Some(mad) = mad_of(packet) else { return false };
        self.cm.on_mad(AddressPair { local: packet.dst(), remote: packet.src() }, mad, now);
        true
    }

    /// Changes the UDP source ports of all packets sent from now on.
    pub(crate) const fn set_path_salt(&mut self, salt: u16) {
        self.path_salt = salt;
    }

    /// Processes a frame that is not RoCEv2. Returns whether a neighbour was resolved.
    pub(crate) fn on_neighbour_frame(&mut self, frame: &[u8], now: Nanos) -> bool {
        self.neighbours.on_frame(frame, now)
    }

    /// Checks whether a neighbour still has the MAC address that is known.
    pub(crate) fn verify(&mut self, ip: IpAddr, now: Nanos) {
        self.neighbours.verify(ip, now);
    }

    /// Returns the version of the neighbour table, which changes with each MAC address.
    #[inline]
    pub(crate) fn neighbours_version(&self) -> u64 {
        self.neighbours.version()
    }

    /// Returns the neighbours.
    #[cfg(test)]
    pub(crate) fn neighbours(&self) -> &Neighbours {
        &self.neighbours
    }

    /// Retries MADs that wait for a neighbour, after a neighbour may have been resolved.
    pub(crate) fn retry_waiting(&mut self) {
        self.mads.append(&mut self.waiting);
    }

    /// Writes the next frame to send into `frame`. Returns false if there is none now.
    pub fn poll_transmit(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        self.neighbours.poll_transmit(frame)
            || self.poll_mads(now, frame)
            // Routing a MAD may have queued an ARP request or a solicitation.
            || self.neighbours.poll_transmit(frame)
    }

    fn poll_mads(&mut self, now: Nanos, frame: &mut Vec<u8>) -> bool {
        self.collect_mads();
        while let Some((addresses, mad)) = self.mads.pop_front() {
            let path = Path { hop_limit: HOP_LIMIT, ..Path::new(addresses.local, addresses.remote) };
            let Some(mut path_headers) = self.path_headers(&path, src_port(Qpn::GSI, Qpn::GSI), now) else {
                if self.waiting.len() >= MAX_WAITING {
                    self.waiting.pop_front();
                    self.dropped += 1;
                }
                self.waiting.push_back((addresses, mad));
                continue;
            };
            let bth = Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, self.psn);
            self.psn = self.psn.add(1);
            path_headers.emit(frame, bth, &[Deth::new(Deth::GSI_QKEY, Qpn::GSI).as_bytes()], &mad);
            return true;
        }
        false
    }

    fn collect_mads(&mut self) {
        // MADs beyond the limit stay with the communication manager, which has a bound of its own.
        while self.mads.len() < MAX_WAITING
            && let Some(mad) = self.cm.poll_transmit()
        {
            self.mads.push_back(mad);
        }
    }

    /// Returns the headers of packets to a host if its next hop's MAC address is known; otherwise sends a
    /// request for it.
    pub(crate) fn path_headers(&mut self, path: &Path, src_port: u16, now: Nanos) -> Option<PathHeaders> {
        let dst_mac = match path.mac {
            Some(mac) => mac,
            None => self.resolve(path.dst, now)?,
        };
        PathHeaders::new(&PathHeaderFields {
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

    /// Returns whether [`poll_transmit`](Self::poll_transmit) may have a frame.
    pub fn wants_to_transmit(&self) -> bool {
        self.neighbours.has_frames() || !self.mads.is_empty() || self.cm.has_messages()
    }

    /// Returns the time at which [`on_timer`](Self::on_timer) is due.
    pub fn next_timer(&self) -> Option<Nanos> {
        [self.neighbours.next_timer(), self.cm.next_timer()].into_iter().flatten().min()
    }

    /// Runs the timers that are due. Returns true if resolution of a neighbour was given up: callers that
    /// still need it resolve it again.
    pub fn on_timer(&mut self, now: Nanos) -> bool {
        !self.run_timers(now).is_empty()
    }

    /// Runs the timers that are due. Returns the neighbours whose resolution was given up.
    pub(crate) fn run_timers(&mut self, now: Nanos) -> Vec<IpAddr> {
        let given_up = self.neighbours.on_timer(now);
        if !given_up.is_empty() {
            self.retry_waiting();
        }
        self.collect_mads();
        let before = self.mads.len();
        self.cm.on_timer(now);
        self.collect_mads();
        // A retransmitted MAD was not answered: the peer's MAC address may have changed.
        for (addresses, _) in self.mads.iter().skip(before) {
            self.neighbours.verify(addresses.remote, now);
        }
        given_up
    }
}
