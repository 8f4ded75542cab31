//! Peers of a process: their numbers, their addresses, and the headers of frames to them.
//!
//! Each peer has two queue pairs: that of its configuration, from which its best-effort frames leave, and that of
//! its incarnation as a member of the reliable service, from which its reliable ones do. So the best-effort
//! service needs no controller, and no reliable frame of another incarnation is ever taken for one of this.

use crate::datagram::Template;
use crate::header::OnePipe;
use core::net::IpAddr;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use switch::table::{Index, Key, Salt, mix};

use super::config::{Config, ConfigError, Peer};
use super::relay::Relay;
use super::types::ProcessId;

/// Source address and queue pair of a packet
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Source(IpAddr, Qpn);

impl Source {
    /// Returns the address, as 128 bits.
    fn address_bits(self) -> u128 {
        match self.0 {
            IpAddr::V4(ip) => u128::from(ip.to_bits()),
            IpAddr::V6(ip) => ip.to_bits(),
        }
    }
}

impl Key for Source {
    fn hash(&self) -> u64 {
        let ip = self.address_bits();
        mix(ip as u64 ^ mix((ip >> 64) as u64 ^ u64::from(self.1.get())))
    }

    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(self.address_bits(), self.1.get().into())
    }
}

/// Peer, and the headers of frames to it.
#[derive(Clone, Debug)]
struct Remote {
    id: ProcessId,
    is_dead: bool,
    mac: MacAddr,
    address: IpAddr,
    route: Template,
    /// Queue pair of its incarnation, and the headers of reliable frames to it
    member_qpn: Qpn,
    member_route: Template,
}

/// Table of the peers, by index.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    remotes: Box<[Remote]>,
    by_id: Index<ProcessId>,
    by_source: Index<Source>,
    /// By the queue pairs of incarnations
    by_member: Index<Source>,
    /// Queue pair of this process's incarnation
    own_qpn: Qpn,
    relay: Relay,
}

impl Peers {
    /// Creates the table from the configuration.
    ///
    /// # Errors
    /// A peer occurs twice, or has an address of another IP version than the process.
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let count = config.peers.len();
        let (mut by_id, mut by_source) = (Index::with_capacity(count), Index::with_capacity(count));
        let mut by_member = Index::with_capacity(count);
        let mut remotes = Vec::with_capacity(count);
        for (number, peer) in (0..).zip(&config.peers) {
            // Ids are dense, so both lookups return the index in the table unless the id or the address is a
            // duplicate.
            let indices =
                (by_id.get_or_insert(peer.id), by_source.get_or_insert(Source(peer.address, peer.qpn)));
            if indices != (Ok(number), Ok(number)) || peer.id == config.own.id {
                return Err(ConfigError::Duplicate(peer.id));
            }
            let route = config.template(peer.mac, peer.address, peer.qpn)?;
            _ = by_member.get_or_insert(Source(peer.address, peer.qpn));
            let Peer { id, mac, address, qpn } = *peer;
            let (member_qpn, member_route) = (qpn, route);
            remotes.push(Remote { id, is_dead: false, mac, address, route, member_qpn, member_route });
        }
        let (own_qpn, relay) = (config.own.qpn, Relay::new(count));
        Ok(Self { remotes: remotes.into(), by_id, by_source, by_member, own_qpn, relay })
    }

    /// Returns the index of a process.
    #[inline]
    pub(super) fn find(&self, id: ProcessId) -> Option<u32> {
        self.by_id.get(&id)
    }

    /// Returns the index of the process with this address and queue pair.
    #[inline]
    pub(super) fn find_source(&self, address: IpAddr, qpn: Qpn) -> Option<u32> {
        self.by_source.get(&Source(address, qpn))
    }

    /// Returns the index of the process whose incarnation has this address and queue pair.
    #[inline]
    pub(super) fn find_member(&self, address: IpAddr, qpn: Qpn) -> Option<u32> {
        self.by_member.get(&Source(address, qpn))
    }

    /// Returns the index of the process with this address, whatever its queue pair (a planted bug).
    pub(super) fn find_address(&self, address: IpAddr) -> Option<u32> {
        self.remotes.iter().position(|remote| remote.address == address).map(|index| index as u32)
    }

    /// Returns a peer's address.
    pub(super) const fn address(&self, peer: u32) -> IpAddr {
        self.remotes[peer as usize].address
    }

    /// Returns whether a peer's incarnation may have this queue pair: that of no other peer at its address does.
    pub(super) fn is_free(&self, peer: u32, qpn: Qpn) -> bool {
        let address = self.remotes[peer as usize].address;
        self.find_member(address, qpn).is_none_or(|other| other == peer)
    }

    /// Sets the queue pair of this process's incarnation, from which reliable frames leave. Returns whether it
    /// could be set.
    pub(super) fn set_own_queue_pair(&mut self, qpn: Qpn, config: &Config) -> bool {
        for remote in &mut self.remotes {
            let Remote { mac, address, member_qpn, .. } = *remote;
            let Ok(route) = config.template_from(qpn, mac, address, member_qpn) else { return false };
            remote.member_route = route;
        }
        self.own_qpn = qpn;
        true
    }

    /// Sets the queue pair of a peer's new incarnation: reliable packets of the previous one are from an unknown
    /// source. Returns false if another peer has it.
    pub(super) fn set_queue_pair(&mut self, peer: u32, qpn: Qpn, config: &Config) -> bool {
        let Remote { mac, address, member_qpn: before, .. } = self.remotes[peer as usize];
        let Ok(route) = config.template_from(self.own_qpn, mac, address, qpn) else { return false };
        if !self.is_free(peer, qpn) {
            return false;
        }
        // The index that is freed is the next one to be assigned.
        self.by_member.remove(&Source(address, before));
        let index = self.by_member.get_or_insert(Source(address, qpn));
        debug_assert_eq!(index, Ok(peer));
        let remote = &mut self.remotes[peer as usize];
        (remote.member_qpn, remote.member_route) = (qpn, route);
        self.relay.forget(peer);
        true
    }

    /// Returns the number of the process with this index.
    #[inline]
    pub(super) const fn id(&self, peer: u32) -> ProcessId {
        self.remotes[peer as usize].id
    }

    /// Returns whether the peer is known to have failed.
    #[inline]
    pub(super) const fn is_dead(&self, peer: u32) -> bool {
        self.remotes[peer as usize].is_dead
    }

    /// Sets whether the peer is known to have failed.
    pub(super) const fn set_dead(&mut self, peer: u32, is_dead: bool) {
        self.remotes[peer as usize].is_dead = is_dead;
    }

    /// Returns the headers of best-effort frames to the peer.
    #[inline]
    pub(super) const fn route(&mut self, peer: u32) -> &mut Template {
        &mut self.remotes[peer as usize].route
    }

    /// Writes a reliable frame to a peer. If the peer does not answer, the controller carries a copy.
    #[inline]
    pub(super) fn emit(
        &mut self,
        peer: u32,
        is_unanswered: bool,
        header: &OnePipe,
        payload: &[u8],
        frame: &mut Vec<u8>,
    ) {
        if is_unanswered {
            self.relay.add(peer, header, payload);
        }
        self.remotes[peer as usize].member_route.emit(frame, header, payload);
    }

    /// Writes an answer to a peer's reliable frame, or passes it to the controller if the frame has come through
    /// it. Returns whether it was written.
    #[inline]
    pub(super) fn answer(
        &mut self,
        peer: u32,
        header: &OnePipe,
        payload: &[u8],
        frame: &mut Vec<u8>,
    ) -> bool {
        let (is_direct, is_carried) = self.relay.answers(peer);
        if is_carried {
            self.relay.add(peer, header, payload);
        }
        if is_direct {
            self.remotes[peer as usize].member_route.emit(frame, header, payload);
        }
        is_direct
    }

    /// Returns the frames for the controller.
    pub(super) const fn relay(&mut self) -> &mut Relay {
        &mut self.relay
    }
}
