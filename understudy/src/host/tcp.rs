//! TCP beside the NIC, for programs that first talk over it.
//!
//! smoltcp gets bare IP packets, so that it has nothing to do with neighbours: those are the NIC's. What it sends gets the
//! Ethernet header of what last came from there, turned round.

use core::net::IpAddr;
use rocev2::ethernet::{Ethernet, MacAddr, VlanTag, ethertype};
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
pub(super) use smoltcp::iface::SocketHandle;
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration, Instant};
use smoltcp::wire::{HardwareAddress, IpCidr};
use std::collections::{BTreeMap, VecDeque};
use switch::Nanos;
use zerocopy::FromBytes;

/// What any link carries; what is said here is much shorter.
const MTU: usize = 1500;
/// Bytes that wait in a socket, each way
const BUFFER: usize = 4096;
/// Whoever says nothing for so long is asked whether it is there,
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// and if it never answers, the connection is over.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Link headers that are remembered: more than there are peers at once
const MAX_PEERS: usize = 1024;
/// Connections to a port that were begun and do not stand yet, at most
const BACKLOG: usize = 64;
/// Packets that wait at most, each way
const MAX_PACKETS: usize = 1024;
const TCP: u8 = 6;

/// The host's end of TCP.
pub(super) struct Tcp {
    mac: MacAddr,
    addresses: Vec<IpAddr>,
    vlan: Option<u16>,
    interface: Interface,
    sockets: SocketSet<'static>,
    link: Link,
    /// By their addresses
    peers: BTreeMap<IpAddr, PeerLink>,
    /// Connections that were accepted, and whose they are
    accepted: Vec<(SocketHandle, IpAddr)>,
    /// Packets dropped, as too many wait or too many peers have connections
    dropped: u64,
    /// Connections that were closed from here and have not come to their end
    closing: Vec<SocketHandle>,
    /// When smoltcp wants to be asked again
    poll_at: Option<Nanos>,
}

/// How packets get to a peer.
struct PeerLink {
    /// Link header
    head: Vec<u8>,
    /// Connections that stand: as long as there is one, no frame changes the header. A single forged one would send
    /// aside what belongs to the peer.
    connections: u32,
}

/// A port that is listened at.
pub(super) struct Listener {
    port: u16,
    /// Sockets that listen or whose connection does not stand yet, oldest first
    sockets: VecDeque<SocketHandle>,
}

fn instant(now: Nanos) -> Instant {
    Instant::from_micros(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX))
}

/// Addresses that smoltcp has room for
pub(crate) const MAX_ADDRESSES: usize = 8;

impl Tcp {
    pub(super) fn new(nic: &rnic::Interface, seed: u64) -> Result<Self, String> {
        let mut link = Link::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut link, Instant::ZERO);
        let mut fits = true;
        interface.update_ip_addrs(|list| {
            for &(address, prefix) in &nic.addresses {
                fits &= list.push(IpCidr::new(address.into(), prefix)).is_ok();
            }
        });
        if !fits {
            return Err(format!("a host that speaks TCP has {MAX_ADDRESSES} addresses at most"));
        }
        for &(address, _) in &nic.addresses {
            // Any way will do, since answers go back to where the question came from.
            _ = match address {
                IpAddr::V4(ip) => interface.routes_mut().add_default_ipv4_route(ip),
                IpAddr::V6(ip) => interface.routes_mut().add_default_ipv6_route(ip),
            };
        }
        Ok(Self {
            mac: nic.mac,
            addresses: nic.addresses.iter().map(|(address, _)| *address).collect(),
            vlan: nic.vlan,
            interface,
            sockets: SocketSet::new(Vec::new()),
            link,
            peers: BTreeMap::new(),
            accepted: Vec::new(),
            dropped: 0,
            closing: Vec::new(),
            poll_at: None,
        })
    }

    /// Listens at a port.
    pub(super) fn listen(&mut self, port: u16) -> Listener {
        Listener { port, sockets: [self.socket(port)].into() }
    }

    /// A socket that waits for a connection to this port.
    fn socket(&mut self, port: u16) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_timeout(Some(TIMEOUT));
        socket.set_keep_alive(Some(KEEP_ALIVE));
        // Of what is said here, each message is an answer to the last.
        socket.set_nagle_enabled(false);
        socket.listen(port).expect("a new socket can listen, and no port of the configuration is 0");
        self.sockets.add(socket)
    }

    /// A connection to a neighbour of this MAC address.
    #[cfg(test)]
    pub(super) fn connect(&mut self, to: (IpAddr, u16), mac: MacAddr) -> SocketHandle {
        let socket = self.socket(1);
        let head = Ethernet {
            dst: mac,
            src: self.mac,
            ethertype: if to.0.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 }.into(),
        };
        self.poll_at = Some(Nanos::ZERO);
        let head = zerocopy::IntoBytes::as_bytes(&head).to_vec();
        self.peers.insert(to.0, PeerLink { head, connections: 0 });
        let socket_ref = self.sockets.get_mut::<Socket<'_>>(socket);
        socket_ref.abort();
        socket_ref
            .connect(self.interface.context(), to, 40_000)
            .expect("a socket that is closed can connect");
        socket
    }

    /// A connection that has come to stand, and whose it is.
    pub(super) fn accept(&mut self, listener: &mut Listener) -> Option<(SocketHandle, IpAddr)> {
        let stands = |handle: &SocketHandle| {
            let socket = self.sockets.get::<Socket<'_>>(*handle);
            let peer = socket.remote_endpoint().map(|endpoint| IpAddr::from(endpoint.addr));
            peer.filter(|_| !matches!(socket.state(), State::Listen | State::SynReceived))
        };
        let (at, peer) =
            (listener.sockets.iter().enumerate()).find_map(|(at, handle)| Some((at, stands(handle)?)))?;
        let socket = listener.sockets.remove(at)?;
        self.accepted.push((socket, peer));
        if let Some(link) = self.peers.get_mut(&peer) {
            link.connections += 1;
        }
        Some((socket, peer))
    }

    /// Has a socket listen for the next connection. Where too many were begun and do not stand, the oldest is given up: a
    /// peer that answers does so in a round trip, and one that does not must not keep others out.
    pub(super) fn keep_listening(&mut self, listener: &mut Listener) {
        let state = |tcp: &Self, handle: &SocketHandle| tcp.sockets.get::<Socket<'_>>(*handle).state();
        if listener.sockets.iter().any(|handle| state(self, handle) == State::Listen) {
            return;
        }
        let is_over = |handle: &SocketHandle| state(self, handle) == State::Closed;
        let oldest = (listener.sockets.len() >= BACKLOG).then_some(0);
        if let Some(at) = listener.sockets.iter().position(is_over).or(oldest)
            && let Some(handle) = listener.sockets.remove(at)
        {
            self.sockets.remove(handle);
        }
        let next = self.socket(listener.port);
        listener.sockets.push_back(next);
    }

    /// Packets dropped, as too many wait or too many peers have connections
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Appends what has come to `bytes`.
    pub(super) fn read(&mut self, socket: SocketHandle, bytes: &mut Vec<u8>) {
        let socket = self.sockets.get_mut::<Socket<'_>>(socket);
        while socket.can_recv() {
            let taken = socket.recv(|part| {
                bytes.extend_from_slice(part);
                (part.len(), ())
            });
            if taken.is_err() {
                return;
            }
        }
    }

    /// Sends all of it; false if it cannot be.
    pub(super) fn write(&mut self, socket: SocketHandle, bytes: &[u8]) -> bool {
        self.poll_at = Some(Nanos::ZERO);
        self.sockets.get_mut::<Socket<'_>>(socket).send_slice(bytes) == Ok(bytes.len())
    }

    /// Whether nothing more will come.
    pub(super) fn has_ended(&self, socket: SocketHandle) -> bool {
        !self.sockets.get::<Socket<'_>>(socket).may_recv()
    }

    /// Ends a connection in order, after all that was written.
    pub(super) fn close(&mut self, socket: SocketHandle) {
        self.poll_at = Some(Nanos::ZERO);
        self.sockets.get_mut::<Socket<'_>>(socket).close();
        self.closing.push(socket);
    }

    /// Ends a connection at once.
    pub(super) fn abort(&mut self, socket: SocketHandle) {
        self.poll_at = Some(Nanos::ZERO);
        self.sockets.get_mut::<Socket<'_>>(socket).abort();
        self.closing.push(socket);
    }

    /// Takes a frame if it is TCP and for one of our addresses; says whether it is.
    pub(super) fn on_frame(&mut self, frame: &[u8]) -> bool {
        let Some((at, src)) = self.find(frame) else { return false };
        let (head, packet) = frame.split_at(at);
        let back = [&head[6..12], &head[..6], &head[12..]].concat();
        if !self.note(src, back) || self.link.incoming.len() >= MAX_PACKETS {
            self.dropped += 1;
            return true;
        }
        self.link.incoming.push_back(packet.to_vec());
        true
    }

    /// Notes how to answer a peer; false if there is no room.
    fn note(&mut self, src: IpAddr, head: Vec<u8>) -> bool {
        match self.peers.get_mut(&src) {
            Some(peer) if peer.connections > 0 => return true,
            Some(peer) => {
                peer.head = head;
                return true;
            }
            None => {}
        }
        if self.peers.len() >= MAX_PEERS {
            // Those that still speak are known again with their next frame.
            self.peers.retain(|_, peer| peer.connections > 0);
        }
        let has_room = self.peers.len() < MAX_PEERS;
        if has_room {
            self.peers.insert(src, PeerLink { head, connections: 0 });
        }
        has_room
    }

    /// Where the IP packet begins, and who sent it, if the frame is TCP for us.
    fn find(&self, frame: &[u8]) -> Option<(usize, IpAddr)> {
        let (ethernet, rest) = Ethernet::ref_from_prefix(frame).ok()?;
        let (vlan, kind, packet) = if ethernet.ethertype.get() == ethertype::VLAN {
            let (tag, packet) = VlanTag::ref_from_prefix(rest).ok()?;
            (tag.id(), tag.ethertype.get(), packet)
        } else {
            (0, ethernet.ethertype.get(), rest)
        };
        let (src, dst): (IpAddr, IpAddr) = match kind {
            ethertype::IPV4 => {
                let (ip, _) = Ipv4::ref_from_prefix(packet).ok()?;
                (ip.protocol == TCP).then(|| (ip.src.into(), ip.dst.into()))?
            }
            ethertype::IPV6 => {
                let (ip, _) = Ipv6::ref_from_prefix(packet).ok()?;
                (ip.next_header == TCP).then(|| (ip.src.into(), ip.dst.into()))?
            }
            _ => return None,
        };
        let ours = ethernet.dst == self.mac
            && vlan == self.vlan.unwrap_or(0) & 0xfff
            && self.addresses.contains(&dst);
        ours.then(|| (frame.len() - packet.len(), src))
    }

    /// Does what is due; false if nothing was.
    pub(super) fn poll(&mut self, now: Nanos) -> bool {
        if self.link.incoming.is_empty() && self.poll_at.is_none_or(|at| now < at) {
            return false;
        }
        self.interface.poll(instant(now), &mut self.link, &mut self.sockets);
        self.closing.retain(|&socket| {
            // A connection that was reset before it stood listens again, as TCP has it.
            let gone = matches!(
                self.sockets.get::<Socket<'_>>(socket).state(),
                State::Closed | State::Listen | State::TimeWait
            );
            if gone {
                self.sockets.remove(socket);
                if let Some(at) = self.accepted.iter().position(|(accepted, _)| *accepted == socket) {
                    let (_, peer) = self.accepted.swap_remove(at);
                    if let Some(link) = self.peers.get_mut(&peer) {
                        link.connections -= 1;
                    }
                }
            }
            !gone
        });
        let at = self.interface.poll_at(instant(now), &self.sockets);
        self.poll_at = at.map(|at| Nanos(u64::try_from(at.total_micros()).unwrap_or(0) * 1000));
        true
    }

    /// The next frame, if there is one.
    pub(super) fn poll_transmit(&mut self, frame: &mut Vec<u8>) -> bool {
        while let Some(packet) = self.link.outgoing.pop_front() {
            let Some(peer) = destination(&packet).and_then(|dst| self.peers.get(&dst)) else { continue };
            frame.clear();
            frame.extend_from_slice(&peer.head);
            frame.extend_from_slice(&packet);
            return true;
        }
        false
    }

    /// Whether a frame waits to be sent
    pub(super) fn wants_to_transmit(&self) -> bool {
        !self.link.outgoing.is_empty()
    }

    /// When [`poll`](Self::poll) is due
    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.poll_at
    }
}

fn destination(packet: &[u8]) -> Option<IpAddr> {
    match packet.first()? >> 4 {
        4 => Ipv4::ref_from_prefix(packet).ok().map(|(ip, _)| ip.dst.into()),
        _ => Ipv6::ref_from_prefix(packet).ok().map(|(ip, _)| ip.dst.into()),
    }
}

/// IP packets that wait, in and out
#[derive(Default)]
struct Link {
    incoming: VecDeque<Vec<u8>>,
    outgoing: VecDeque<Vec<u8>>,
}

impl Link {
    fn has_room(&self) -> bool {
        self.outgoing.len() < MAX_PACKETS
    }
}

struct Incoming(Vec<u8>);

struct Outgoing<'a>(&'a mut VecDeque<Vec<u8>>);

impl RxToken for Incoming {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, take: F) -> R {
        take(&self.0)
    }
}

impl TxToken for Outgoing<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, fill: F) -> R {
        let mut packet = vec![0; len];
        let result = fill(&mut packet);
        self.0.push_back(packet);
        result
    }
}

impl Device for Link {
    type RxToken<'a> = Incoming;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Incoming, Outgoing<'_>)> {
        // What cannot be answered waits.
        let packet = if self.has_room() { self.incoming.pop_front()? } else { return None };
        Some((Incoming(packet), Outgoing(&mut self.outgoing)))
    }

    fn transmit(&mut self, _now: Instant) -> Option<Outgoing<'_>> {
        self.has_room().then_some(Outgoing(&mut self.outgoing))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ip;
        capabilities.max_transmission_unit = MTU;
        capabilities
    }
}
