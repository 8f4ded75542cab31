//! TCP stack beside the NIC, for programs that exchange data over TCP first.
//!
//! smoltcp gets bare IP packets, so that it does not resolve neighbours: the NIC does. A packet from smoltcp
//! gets the Ethernet header of the last packet from that peer, with the addresses swapped.

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

/// MTU that any link carries; the messages here are much shorter.
const MTU: usize = 1500;
/// Size of a socket's buffer in each direction, in bytes
const BUFFER_LEN: usize = 4096;
/// Idle time after which a keep-alive is sent
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// Time without an answer after which a connection is aborted
const TIMEOUT: Duration = Duration::from_secs(60);
/// Link headers that are kept: more than there are peers at once
const MAX_PEERS: usize = 1024;
/// Half-open connections to a port
const BACKLOG: usize = 64;
/// Packets queued in each direction
const MAX_PACKETS: usize = 1024;
const TCP: u8 = 6;

/// A frame with TCP.
struct Segment<'a> {
    to: MacAddr,
    /// VLAN, or 0
    vlan: u16,
    /// Offset of the IP packet
    ip_at: usize,
    src: IpAddr,
    dst: IpAddr,
    /// The frame from the TCP header on
    tcp: &'a [u8],
}

impl<'a> Segment<'a> {
    fn parse(frame: &'a [u8]) -> Option<Self> {
        let (ethernet, rest) = Ethernet::ref_from_prefix(frame).ok()?;
        let (vlan, kind, packet) = if ethernet.ethertype.get() == ethertype::VLAN {
            let (tag, packet) = VlanTag::ref_from_prefix(rest).ok()?;
            (tag.id(), tag.ethertype.get(), packet)
        } else {
            (0, ethernet.ethertype.get(), rest)
        };
        let (src, dst, protocol, header_len): (IpAddr, IpAddr, u8, usize) = match kind {
            ethertype::IPV4 => {
                let (ip, _) = Ipv4::ref_from_prefix(packet).ok()?;
                (ip.src.into(), ip.dst.into(), ip.protocol, ip.header_len())
            }
            ethertype::IPV6 => {
                let (ip, _) = Ipv6::ref_from_prefix(packet).ok()?;
                (ip.src.into(), ip.dst.into(), ip.next_header, Ipv6::LEN)
            }
            _ => return None,
        };
        let tcp = packet.get(header_len..).filter(|_| protocol == TCP)?;
        Some(Self { to: ethernet.dst, vlan, ip_at: frame.len() - packet.len(), src, dst, tcp })
    }
}

/// Returns the host that sent a TCP segment, and the ports from which and to which, if the frame is one.
pub(super) fn peer_of(frame: &[u8]) -> Option<(IpAddr, u32)> {
    let segment = Segment::parse(frame)?;
    Some((segment.src, u32::from_be_bytes(*segment.tcp.first_chunk()?)))
}

/// The TCP stack of a host.
pub(super) struct Tcp {
    mac: MacAddr,
    addresses: Vec<IpAddr>,
    vlan: Option<u16>,
    interface: Interface,
    sockets: SocketSet<'static>,
    queues: PacketQueues,
    /// Link headers, by IP address of the peer
    peers: BTreeMap<IpAddr, PeerLink>,
    /// Accepted connections, each with its peer
    accepted: Vec<(SocketHandle, IpAddr)>,
    /// Packets dropped because a queue was full or too many peers had connections
    dropped: u64,
    /// Connections closed by this side that have not ended yet
    closing: Vec<SocketHandle>,
    /// Time at which smoltcp is to be polled next
    poll_at: Option<Nanos>,
}

/// Link-layer path to a peer.
struct PeerLink {
    /// Link header for packets to the peer
    header: Vec<u8>,
    /// Established connections. While there is one, no received frame changes the header: a single forged
    /// frame would redirect the peer's packets.
    connections: u32,
}

/// A listening port.
pub(super) struct Listener {
    port: u16,
    /// Listening and half-open sockets, oldest first
    sockets: VecDeque<SocketHandle>,
}

fn instant(now: Nanos) -> Instant {
    Instant::from_micros(i64::try_from(now.0 / 1000).unwrap_or(i64::MAX))
}

/// Addresses that smoltcp supports
pub(crate) const MAX_ADDRESSES: usize = 8;

impl Tcp {
    pub(super) fn new(nic: &rnic::Interface, seed: u64) -> Result<Self, String> {
        let mut queues = PacketQueues::default();
        let mut config = Config::new(HardwareAddress::Ip);
        config.random_seed = seed;
        let mut interface = Interface::new(config, &mut queues, Instant::ZERO);
        let mut fits = true;
        interface.update_ip_addrs(|list| {
            for &(address, prefix) in &nic.addresses {
                fits &= list.push(IpCidr::new(address.into(), prefix)).is_ok();
            }
        });
        if !fits {
            return Err(format!(
                "a host with perftest servers has at most {MAX_ADDRESSES} addresses; remove some"
            ));
        }
        for &(address, _) in &nic.addresses {
            // Any route will do, since responses use the link header of the peer's own packets.
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
            queues,
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

    /// Creates a socket that listens at `port`.
    fn socket(&mut self, port: u16) -> SocketHandle {
        let buffer = || SocketBuffer::new(vec![0; BUFFER_LEN]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_timeout(Some(TIMEOUT));
        socket.set_keep_alive(Some(KEEP_ALIVE));
        // Each message waits for a response, so there is nothing to coalesce.
        socket.set_nagle_enabled(false);
        socket.listen(port).expect("a new socket can listen, and no port of the configuration is 0");
        self.sockets.add(socket)
    }

    /// Connects to a neighbour with this MAC address.
    #[cfg(test)]
    pub(super) fn connect(&mut self, to: (IpAddr, u16), mac: MacAddr) -> SocketHandle {
        let socket = self.socket(1);
        let header = Ethernet {
            dst: mac,
            src: self.mac,
            ethertype: if to.0.is_ipv4() { ethertype::IPV4 } else { ethertype::IPV6 }.into(),
        };
        self.poll_at = Some(Nanos::ZERO);
        let header = zerocopy::IntoBytes::as_bytes(&header).to_vec();
        self.peers.insert(to.0, PeerLink { header, connections: 0 });
        let socket_ref = self.sockets.get_mut::<Socket<'_>>(socket);
        socket_ref.abort();
        socket_ref
            .connect(self.interface.context(), to, 40_000)
            .expect("a socket that is closed can connect");
        socket
    }

    /// Returns the next established connection and its peer.
    pub(super) fn accept(&mut self, listener: &mut Listener) -> Option<(SocketHandle, IpAddr)> {
        let established_peer = |handle: &SocketHandle| {
            let socket = self.sockets.get::<Socket<'_>>(*handle);
            let peer = socket.remote_endpoint().map(|endpoint| IpAddr::from(endpoint.addr));
            peer.filter(|_| !matches!(socket.state(), State::Listen | State::SynReceived))
        };
        let (at, peer) = (listener.sockets.iter().enumerate())
            .find_map(|(at, handle)| Some((at, established_peer(handle)?)))?;
        let socket = listener.sockets.remove(at)?;
        self.accepted.push((socket, peer));
        if let Some(peer_link) = self.peers.get_mut(&peer) {
            peer_link.connections += 1;
        }
        Some((socket, peer))
    }

    /// Ensures that a socket listens for the next connection. If too many connections are half open, the
    /// oldest is dropped: a peer that answers does so within a round trip, and one that does not must not
    /// block other peers.
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

    /// Returns the packets dropped because a queue was full or too many peers had connections.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Appends the received bytes to `bytes`.
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

    /// Sends all of `bytes`. Returns `false` if they do not fit into the send buffer.
    pub(super) fn write(&mut self, socket: SocketHandle, bytes: &[u8]) -> bool {
        self.poll_at = Some(Nanos::ZERO);
        self.sockets.get_mut::<Socket<'_>>(socket).send_slice(bytes) == Ok(bytes.len())
    }

    /// Returns whether the peer will send nothing more.
    pub(super) fn has_ended(&self, socket: SocketHandle) -> bool {
        !self.sockets.get::<Socket<'_>>(socket).may_recv()
    }

    /// Closes a connection in order, after all written data.
    pub(super) fn close(&mut self, socket: SocketHandle) {
        self.poll_at = Some(Nanos::ZERO);
        self.sockets.get_mut::<Socket<'_>>(socket).close();
        self.closing.push(socket);
    }

    /// Aborts a connection.
    pub(super) fn abort(&mut self, socket: SocketHandle) {
        self.poll_at = Some(Nanos::ZERO);
        self.sockets.get_mut::<Socket<'_>>(socket).abort();
        self.closing.push(socket);
    }

    /// Queues a frame if it is TCP for one of this host's addresses, and returns whether it is.
    pub(super) fn on_frame(&mut self, frame: &[u8]) -> bool {
        let Some((at, src)) = self.classify(frame) else { return false };
        let (header, packet) = frame.split_at(at);
        let reply_header = [&header[6..12], &header[..6], &header[12..]].concat();
        if !self.store_header(src, reply_header) || self.queues.incoming.len() >= MAX_PACKETS {
            self.dropped += 1;
            return true;
        }
        self.queues.incoming.push_back(packet.to_vec());
        true
    }

    /// Stores the link header for packets to `src`. Returns `false` if the table is full.
    fn store_header(&mut self, src: IpAddr, header: Vec<u8>) -> bool {
        match self.peers.get_mut(&src) {
            Some(peer) if peer.connections > 0 => return true,
            Some(peer) => {
                peer.header = header;
                return true;
            }
            None => {}
        }
        if self.peers.len() >= MAX_PEERS {
            // Active peers are added again with their next frame.
            self.peers.retain(|_, peer| peer.connections > 0);
        }
        let has_room = self.peers.len() < MAX_PEERS;
        if has_room {
            self.peers.insert(src, PeerLink { header, connections: 0 });
        }
        has_room
    }

    /// Returns the offset of the IP packet and its source address, if the frame is TCP for this host.
    fn classify(&self, frame: &[u8]) -> Option<(usize, IpAddr)> {
        let segment = Segment::parse(frame)?;
        let ours = segment.to == self.mac
            && segment.vlan == self.vlan.unwrap_or(0) & 0xfff
            && self.addresses.contains(&segment.dst);
        ours.then_some((segment.ip_at, segment.src))
    }

    /// Processes received packets and due timers. Returns `false` if there was nothing to do.
    pub(super) fn poll(&mut self, now: Nanos) -> bool {
        if self.queues.incoming.is_empty() && self.poll_at.is_none_or(|at| now < at) {
            return false;
        }
        self.interface.poll(instant(now), &mut self.queues, &mut self.sockets);
        self.closing.retain(|&socket| {
            // A connection that was reset before it was established listens again (RFC 9293, section
            // 3.10.7.4).
            let ended = matches!(
                self.sockets.get::<Socket<'_>>(socket).state(),
                State::Closed | State::Listen | State::TimeWait
            );
            if ended {
                self.sockets.remove(socket);
                if let Some(at) = self.accepted.iter().position(|(accepted, _)| *accepted == socket) {
                    let (_, peer) = self.accepted.swap_remove(at);
                    if let Some(peer_link) = self.peers.get_mut(&peer) {
                        peer_link.connections -= 1;
                    }
                }
            }
            !ended
        });
        let at = self.interface.poll_at(instant(now), &self.sockets);
        self.poll_at = at.map(|at| Nanos(u64::try_from(at.total_micros()).unwrap_or(0) * 1000));
        true
    }

    /// Writes the next frame to send into `frame`. Returns `false` if there is none.
    pub(super) fn poll_transmit(&mut self, frame: &mut Vec<u8>) -> bool {
        while let Some(packet) = self.queues.outgoing.pop_front() {
            let Some(peer) = destination(&packet).and_then(|dst| self.peers.get(&dst)) else { continue };
            frame.clear();
            frame.extend_from_slice(&peer.header);
            frame.extend_from_slice(&packet);
            return true;
        }
        false
    }

    /// Returns whether a frame waits to be sent.
    pub(super) fn wants_to_transmit(&self) -> bool {
        !self.queues.outgoing.is_empty()
    }

    /// Returns the time at which [`poll`](Self::poll) is due.
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

/// Queues of IP packets in each direction.
#[derive(Default)]
struct PacketQueues {
    incoming: VecDeque<Vec<u8>>,
    outgoing: VecDeque<Vec<u8>>,
}

impl PacketQueues {
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

impl Device for PacketQueues {
    type RxToken<'a> = Incoming;
    type TxToken<'a> = Outgoing<'a>;

    fn receive(&mut self, _now: Instant) -> Option<(Incoming, Outgoing<'_>)> {
        // A packet whose answer could not be queued waits.
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
