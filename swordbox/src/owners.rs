//! Which worker owns a packet: each memory server belongs to one worker, which handles all requests to the server and
//! the server's responses.
//!
//! Between two servers of different workers, requests belong to the worker of their destination and responses to that
//! of their source. Each of the two workers sees one direction of such a connection, in which it takes the other
//! server for a client. It also misses messages of the connection manager: the worker of the passive side gets the REQ
//! and the REP, that of the destination a DREQ. So such a connection is not translated.

use crate::address::bits_of;
use crate::config::Config;
use crate::damaged::addresses_of;
use crate::op::{Kind, Op};
use core::net::IpAddr;
use rocev2::cm::{Body, Message, mad_of};
use rocev2::ethernet::Ethernet;
use rocev2::ipv4::Ipv4;
use rocev2::ipv6::Ipv6;
use rocev2::udp::Udp;
use rocev2::{Class, Packet, classify, usual_bth};

/// Workers of the memory servers: the server with index `n` belongs to worker `n` modulo the number of workers.
#[derive(Debug)]
pub(crate) struct Owners {
    /// Addresses of the servers as 128 bits
    hosts: Box<[u128]>,
    workers: usize,
}

impl Owners {
    /// Returns the owners of a configuration's servers.
    ///
    /// # Panics
    /// If there is no worker.
    pub(crate) fn new(config: &Config, workers: usize) -> Self {
        assert!(workers > 0, "a switch has at least one worker");
        Self { hosts: config.servers.iter().map(|server| bits_of(server.host)).collect(), workers }
    }

    /// Returns the number of workers.
    pub(crate) const fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the worker of a server; `None` for a host that is none.
    pub(crate) fn worker_of_server(&self, host: IpAddr) -> Option<usize> {
        self.worker_of(bits_of(host))
    }

    #[inline]
    fn worker_of(&self, host: u128) -> Option<usize> {
        let at = self.hosts.iter().position(|own| *own == host)?;
        Some(at % self.workers)
    }

    /// Returns the owner of a frame, or `None` if it concerns no server. With the planted bug `is_hashed`, it follows from
    /// both addresses, as in a NIC that distributes by their hash.
    #[inline]
    pub(crate) fn owner(&self, frame: &[u8], is_hashed: bool) -> Option<usize> {
        let (source, destination) = usual_hosts(frame).or_else(|| unusual_hosts(frame))?;
        if is_hashed {
            return Some((source ^ destination) as usize % self.workers);
        }
        match (self.worker_of(source), self.worker_of(destination)) {
            (Some(of_source), Some(of_destination)) if of_source != of_destination => {
                Some(if is_from_responder(frame) { of_source } else { of_destination })
            }
            (of_source, of_destination) => of_destination.or(of_source),
        }
    }
}

/// Returns the source and the destination of a RoCEv2 packet with the usual headers. Of such a packet, which may be
/// malformed, they are all that determines the owner, except between two servers.
#[inline]
fn usual_hosts(frame: &[u8]) -> Option<(u128, u128)> {
    const V4: usize = Ethernet::LEN + Ipv4::LEN + Udp::LEN;
    const V6: usize = Ethernet::LEN + Ipv6::LEN + Udp::LEN;
    let v4 = |at: usize| {
        frame.get(at..)?.first_chunk().map(|host| 0xffff_0000_0000 | u128::from(u32::from_be_bytes(*host)))
    };
    let v6 = |at: usize| frame.get(at..)?.first_chunk().map(|host| u128::from_be_bytes(*host));
    match usual_bth(frame)? {
        V4 => v4(Ethernet::LEN + 12).zip(v4(Ethernet::LEN + 16)),
        V6 => v6(Ethernet::LEN + 8).zip(v6(Ethernet::LEN + 24)),
        _ => None,
    }
}

/// Returns the source and the destination of any other RoCEv2 packet, malformed or not.
#[cold]
fn unusual_hosts(frame: &[u8]) -> Option<(u128, u128)> {
    if matches!(classify(frame), Class::Other) {
        return None;
    }
    addresses_of(frame).map(|(source, destination, _)| (bits_of(source), bits_of(destination)))
}

/// Returns whether a packet concerns what its destination has begun: a response, a CNP, or a REP.
#[cold]
fn is_from_responder(frame: &[u8]) -> bool {
    let Class::Roce(layout) = classify(frame) else { return false };
    let packet = Packet::new(frame, layout);
    match Op::of(layout.opcode()).kind {
        // The clients that share a queue pair get the CNPs of its server.
        Kind::Response | Kind::Cnp => true,
        Kind::UnreliableDatagram => mad_of(&packet)
            .and_then(|mad| Message::parse(mad).ok())
            .is_some_and(|message| matches!(message.body, Body::Rep(_))),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Connection, Server};
    use rocev2::cm::{self, MAD_LEN, MadHeader};
    use rocev2::deth::Deth;
    use rocev2::ethernet::{MacAddr, VlanTag, ethertype};
    use rocev2::repr::{Extended, Ip, Repr};
    use rocev2::{Bth, Opcode, Psn, Qpn};
    use switch::forward;
    use zerocopy::{FromZeros, Immutable, IntoBytes};

    const SERVERS: u8 = 5;
    const CLIENTS: [u8; 2] = [20, 21];
    /// A host to which connections ended with a restart
    const FORMER_SERVER: u8 = 30;

    /// Source and destination, with the version of their addresses
    #[derive(Clone, Copy, Debug)]
    struct Ends {
        v6: bool,
        from: u8,
        to: u8,
    }

    fn ip(v6: bool, host: u8) -> IpAddr {
        if v6 { [0xfd00, 0, 0, 0, 0, 0, 0, host.into()].into() } else { [10, 0, 0, host].into() }
    }

    fn owners(v6: bool, workers: usize) -> Owners {
        let config = Config {
            servers: (0..SERVERS).map(|n| Server::new(ip(v6, n))).collect(),
            ..Config::new(forward::Config::bridge(2, 16))
        };
        Owners::new(&config, workers)
    }

    fn frame(ends: Ends, bth: Bth, mad: &[u8], change: &dyn Fn(&mut Repr<'_>)) -> Vec<u8> {
        let Ends { v6, from, to } = ends;
        let kind = if v6 { ethertype::IPV6 } else { ethertype::IPV4 };
        let ethernet = Ethernet { dst: MacAddr([2; 6]), src: MacAddr([4; 6]), ethertype: kind.into() };
        let extended = Extended { deth: Deth::new(Deth::GSI_QKEY, Qpn::GSI), ..Extended::default() };
        let between = Ip::between(ip(v6, from), ip(v6, to), 0);
        let mut repr = Repr { extended, payload: mad, ..Repr::new(ethernet, between, bth) };
        change(&mut repr);
        let mut bytes = vec![0; 1024];
        let len = repr.build(&mut bytes).expect("the frame fits");
        bytes.truncate(len);
        bytes
    }

    fn packet(ends: Ends, opcode: Opcode) -> Vec<u8> {
        frame(ends, Bth::new(opcode, Qpn::new(0x11), Psn::ZERO), &[], &|_| {})
    }

    fn message(ends: Ends, kind: cm::Kind, body: &(impl IntoBytes + Immutable)) -> Vec<u8> {
        let mut mad = [0; MAD_LEN];
        cm::emit(&MadHeader::new(kind, 1), body, &mut mad);
        frame(ends, Bth::new(Opcode::UD_SEND_ONLY, Qpn::GSI, Psn::ZERO), &mad, &|_| {})
    }

    /// Calls `check` with each number of workers and IP version, for each server and each other host: with both
    /// directions between them, and the server's worker.
    fn for_all(check: impl Fn(&Owners, Ends, Ends, usize)) {
        for (workers, v6) in (1..=4).flat_map(|workers| [(workers, false), (workers, true)]) {
            let owners = owners(v6, workers);
            for (server, peer) in
                (0..SERVERS).flat_map(|n| (0..SERVERS).chain(CLIENTS).map(move |peer| (n, peer)))
            {
                let to_server = Ends { v6, from: peer, to: server };
                let from_server = Ends { v6, from: server, to: peer };
                check(&owners, to_server, from_server, usize::from(server) % workers);
            }
        }
    }

    #[test]
    fn the_worker_of_the_server_gets_requests_to_it_and_its_responses() {
        for_all(|owners, to_server, from_server, worker| {
            for opcode in [Opcode::RC_COMPARE_SWAP, Opcode::RC_READ_REQUEST, Opcode::RC_SEND_MIDDLE] {
                let owner = owners.owner(&packet(to_server, opcode), false);
                assert_eq!(owner, Some(worker), "{to_server:?} {opcode}");
            }
            for opcode in [
                Opcode::RC_ACKNOWLEDGE,
                Opcode::RC_ATOMIC_ACKNOWLEDGE,
                Opcode::RC_READ_RESPONSE_MIDDLE,
                Opcode::CNP,
            ] {
                let owner = owners.owner(&packet(from_server, opcode), false);
                assert_eq!(owner, Some(worker), "{from_server:?} {opcode}");
            }
        });
    }

    #[test]
    fn the_worker_of_the_passive_side_gets_the_messages_that_connect() {
        for_all(|owners, to_server, from_server, worker| {
            let req = message(to_server, cm::Kind::Req, &cm::Req::new_zeroed());
            let rep = message(from_server, cm::Kind::Rep, &cm::Rep::new_zeroed());
            let dreq = message(to_server, cm::Kind::Dreq, &cm::Dreq::new_zeroed());
            for message in [req, rep, dreq] {
                assert_eq!(owners.owner(&message, false), Some(worker), "{to_server:?}");
            }
        });
    }

    #[test]
    fn headers_that_are_not_usual_change_no_owner() {
        let tagged = |repr: &mut Repr<'_>| {
            repr.tags[0] = VlanTag { tci: 7.into(), ethertype: repr.ethernet.ethertype };
            (repr.ethernet.ethertype, repr.tag_count) = (ethertype::VLAN.into(), 1);
        };
        let with_options = |repr: &mut Repr<'_>| {
            if let Ip::V4(header, options) = &mut repr.ip {
                (header.version_ihl, *options) = (0x46, &[1; 4]);
            }
        };
        let changes: [&dyn Fn(&mut Repr<'_>); 2] = [&tagged, &with_options];
        for_all(|owners, to_server, _, worker| {
            for (change, opcode) in changes.iter().flat_map(|change| {
                // An unknown opcode, whose packet invalidates all cached words of the server
                [Opcode::RC_WRITE_ONLY, Opcode(0x1f)].map(|opcode| (change, opcode))
            }) {
                let bth = Bth::new(opcode, Qpn::new(0x11), Psn::ZERO);
                assert_eq!(
                    owners.owner(&frame(to_server, bth, &[], change), false),
                    Some(worker),
                    "{to_server:?}"
                );
            }
        });
    }

    #[test]
    fn frames_that_concern_no_server_have_no_owner() {
        for v6 in [false, true] {
            let owners = owners(v6, 3);
            let between_clients = Ends { v6, from: 20, to: 21 };
            assert_eq!(owners.owner(&packet(between_clients, Opcode::RC_WRITE_ONLY), false), None);
            let to_server = Ends { v6, from: 20, to: 1 };
            let request = packet(to_server, Opcode::RC_COMPARE_SWAP);
            for len in 0..54 {
                assert_eq!(owners.owner(&request[..len], false), None, "{len} bytes");
            }
            let other_port = |repr: &mut Repr<'_>| repr.udp.dst_port = 4792.into();
            let bth = Bth::new(Opcode::RC_WRITE_ONLY, Qpn::new(0x11), Psn::ZERO);
            assert_eq!(owners.owner(&frame(to_server, bth, &[], &other_port), false), None);
        }
    }

    #[test]
    fn connections_that_ended_with_a_restart_are_known_to_each_worker_that_gets_their_packets() {
        let ended = (0..=SERVERS).map(|n| Connection {
            server: (ip(false, if n == SERVERS { FORMER_SERVER } else { n }), Qpn::new(7)),
            client: (ip(false, 20), Qpn::new(8)),
        });
        let config = Config {
            servers: (0..SERVERS).map(|n| Server::new(ip(false, n))).collect(),
            ended: ended.collect(),
            ..Config::new(forward::Config::bridge(2, 16))
        };
        for workers in 1..=4 {
            let owners = Owners::new(&config, workers);
            let of_workers: Vec<_> =
                (0..workers).map(|worker| config.clone().of_worker(worker, workers).ended).collect();
            for ended in &config.ended {
                let IpAddr::V4(server) = ended.server.0 else { panic!("{ended:?}") };
                let to_server = Ends { v6: false, from: 20, to: server.octets()[3] };
                let owner = owners.owner(&packet(to_server, Opcode::RC_WRITE_ONLY), false);
                for (worker, of_worker) in of_workers.iter().enumerate() {
                    let gets_packets = owner.is_none_or(|owner| owner == worker);
                    assert_eq!(of_worker.contains(ended), gets_packets, "{ended:?}");
                }
            }
        }
    }
}
