//! Hosts that send to the servers: number of connections per host, so that no host can occupy the whole
//! table.

use crate::Id;
use crate::address::bits_of;
use core::net::IpAddr;
use switch::Nanos;
use switch::table::{Index, Key, Salt, mix};

/// Address of a host as 128 bits
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Host(u128);

impl Key for Host {
    fn hash(&self) -> u64 {
        mix(self.0 as u64 ^ (self.0 >> 64) as u64)
    }

    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(self.0, 0)
    }
}

/// State of a host.
#[derive(Clone, Copy, Debug, Default)]
struct Source {
    /// Connections in the table
    connections: u32,
    /// Last time at which a connection of the host found no free table entry: responses may belong to a
    /// connection that is not tracked
    last_refused: Option<Nanos>,
    /// Last time at which a packet of the host was forwarded without a tracked connection: responses may
    /// belong to it
    last_untracked: Option<Nanos>,
    /// Whether the host has used a right to a server's memory
    proven: bool,
}

/// Hosts that send to servers and have connections in the table, or recent untracked packets.
#[derive(Debug)]
pub(crate) struct Sources {
    index: Index<Host>,
    all: Vec<Source>,
    limit: u32,
    hand: Id,
    /// Last time at which a packet found no free table entry. While that connection may continue, responses
    /// may belong to it
    overflowed: Option<Nanos>,
}

impl Sources {
    /// Returns a table for `capacity` connections in total, with at most `limit` per host.
    pub(crate) fn new(capacity: usize, limit: usize) -> Self {
        Self {
            index: Index::with_capacity(capacity),
            all: Vec::with_capacity(capacity),
            limit: limit as u32,
            hand: 0,
            overflowed: None,
        }
    }

    /// Salts the hashes of hosts' addresses.
    pub(crate) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
    }

    /// Returns the memory in bytes for `capacity` hosts.
    pub(crate) fn bytes(capacity: usize) -> usize {
        Index::<Host>::bytes(capacity) + capacity * size_of::<Source>()
    }

    fn get(&mut self, host: u128) -> Option<&mut Source> {
        self.index.get(&Host(host)).map(|at| &mut self.all[at as usize])
    }

    /// Returns whether a host may have one more connection, and notes a refusal.
    pub(crate) fn may_add(&mut self, host: u128, now: Nanos) -> bool {
        let limit = self.limit;
        let Some(source) = self.get(host) else { return true };
        let may = source.connections < limit;
        if !may {
            source.last_refused = Some(now);
        }
        may
    }

    /// Counts a connection that was added to the table.
    pub(crate) fn add(&mut self, host: u128) {
        if let Some(at) = self.entry(host) {
            self.all[at as usize].connections += 1;
        }
    }

    /// Counts a connection that was removed from the table.
    pub(crate) fn remove(&mut self, host: u128) {
        let Some(source) = self.get(host) else { return };
        source.connections = source.connections.saturating_sub(1);
    }

    /// Notes that a host has used a right to a server's memory.
    pub(crate) fn set_proven(&mut self, host: u128) {
        if let Some(source) = self.get(host) {
            source.proven = true;
        }
    }

    /// Returns whether a host with connections in the table has used a right to a server's memory.
    pub(crate) fn has_proven(&self, host: u128) -> bool {
        self.index.get(&Host(host)).is_some_and(|at| self.all[at as usize].proven)
    }

    /// Notes that a packet of a host was forwarded without a tracked connection. `tick` is the time of the
    /// last tick.
    pub(crate) fn note_untracked(&mut self, host: u128, now: Nanos, tick: Nanos) {
        match self.entry(host) {
            Some(at) => self.all[at as usize].last_untracked = Some(now),
            None => self.note_overflow(tick),
        }
    }

    /// Examines 64 hosts and removes those without connections whose last untracked packet is older than
    /// `after`.
    pub(crate) fn sweep(&mut self, now: Nanos, after: Nanos) {
        let ids = self.index.ids();
        for _ in 0..64.min(ids) {
            self.hand = (self.hand + 1) % ids;
            let Some(host) = self.index.key(self.hand).copied() else { continue };
            let source = &self.all[self.hand as usize];
            if source.connections == 0 && source.last_untracked.is_none_or(|at| now.since(at) > after) {
                self.index.remove(&host);
            }
        }
    }

    /// Returns the entry of a host, and adds one if necessary.
    fn entry(&mut self, host: u128) -> Option<Id> {
        if let Some(at) = self.index.get(&Host(host)) {
            return Some(at);
        }
        let at = self.index.get_or_insert(Host(host)).ok()?;
        crate::lines::put(&mut self.all, at, Source::default(), Source::default());
        Some(at)
    }

    /// Notes that a packet found no free table entry at `tick`.
    pub(crate) fn note_overflow(&mut self, tick: Nanos) {
        self.overflowed = Some(tick);
    }

    /// Returns whether all connections of a host are in the table: no response to this host can belong to an
    /// untracked connection, which may be silent for `ageing`, or to an untracked packet, whose response
    /// arrives within `dead_after`.
    pub(crate) fn are_all_tracked(&self, host: IpAddr, now: Nanos, ageing: Nanos, dead_after: Nanos) -> bool {
        let is_past = |at: Option<Nanos>, after| at.is_none_or(|at| now.since(at) > after);
        let source = self.index.get(&Host(bits_of(host))).map(|at| &self.all[at as usize]);
        is_past(self.overflowed, ageing)
            && source.is_none_or(|source| {
                is_past(source.last_refused, ageing) && is_past(source.last_untracked, dead_after)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_examines_64_hosts_of_a_table_of_any_size() {
        for count in [100, 10_000] {
            let mut sources = Sources::new(count, 1);
            (0..count as u128).for_each(|host| sources.note_untracked(host, Nanos::ZERO, Nanos::ZERO));
            assert_eq!((sources.index.len(), sources.overflowed), (count, None));
            for sweep in 1..=3 {
                sources.sweep(Nanos::from_secs(2), Nanos::from_secs(1));
                assert_eq!(
                    count - sources.index.len(),
                    (sweep * 64).min(count),
                    "{count} hosts, sweep {sweep}"
                );
            }
        }
    }
}
