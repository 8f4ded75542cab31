//! Peers of a process: their numbers, their addresses, and the headers of frames to them.

use crate::datagram::Template;
use core::net::IpAddr;
use rocev2::Qpn;
use rocev2::ethernet::MacAddr;
use switch::table::{Index, Key, Salt, mix};

use super::config::{Config, ConfigError, Peer};
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
#[derive(Debug)]
struct Remote {
    id: ProcessId,
    is_dead: bool,
    mac: MacAddr,
    address: IpAddr,
    qpn: Qpn,
    route: Template,
}

/// Table of the peers, by index.
#[derive(Debug)]
pub(super) struct Peers {
    remotes: Box<[Remote]>,
    by_id: Index<ProcessId>,
    by_source: Index<Source>,
}

impl Peers {
    /// Creates the table from the configuration.
    ///
    /// # Errors
    /// A peer occurs twice, or has an address of another IP version than the process.
    pub(super) fn new(config: &Config) -> Result<Self, ConfigError> {
        let count = config.peers.len();
        let (mut by_id, mut by_source) = (Index::with_capacity(count), Index::with_capacity(count));
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
            let Peer { id, mac, address, qpn } = *peer;
            remotes.push(Remote { id, is_dead: false, mac, address, qpn, route });
        }
        Ok(Self { remotes: remotes.into(), by_id, by_source })
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

    /// Returns whether a peer may have this queue pair: no other peer at its address does.
    pub(super) fn is_free(&self, peer: u32, qpn: Qpn) -> bool {
        let address = self.remotes[peer as usize].address;
        self.find_source(address, qpn).is_none_or(|other| other == peer)
    }

    /// Sets the queue pair of a peer, which is that of its new incarnation: packets of the previous one are
    /// from an unknown source. Returns false if another peer has it.
    pub(super) fn set_queue_pair(&mut self, peer: u32, qpn: Qpn, config: &Config) -> bool {
        let Remote { mac, address, qpn: before, .. } = self.remotes[peer as usize];
        let Ok(route) = config.template(mac, address, qpn) else { return false };
        if !self.is_free(peer, qpn) {
            return false;
        }
        // The index that is freed is the next one to be assigned.
        self.by_source.remove(&Source(address, before));
        let index = self.by_source.get_or_insert(Source(address, qpn));
        debug_assert_eq!(index, Ok(peer));
        let remote = &mut self.remotes[peer as usize];
        (remote.qpn, remote.route) = (qpn, route);
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

    /// Returns the headers of frames to the peer.
    #[inline]
    pub(super) const fn route(&mut self, peer: u32) -> &mut Template {
        &mut self.remotes[peer as usize].route
    }
}
