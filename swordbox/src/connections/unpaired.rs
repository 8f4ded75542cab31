//! Endpoints whose peer is unknown: lists by the two hosts, in which the requests that a response may belong
//! to are searched.

use super::Connections;
use crate::address::bits_of;
use crate::records::{Record, RecordKind};
use crate::{Id, NONE};
use rocev2::Psn;
use switch::Nanos;
use switch::table::{Index, Key, Salt, mix};

/// Unpaired endpoints between the same two hosts that are examined per tick. It bounds the cost of responses
/// that match none of very many endpoints
const MAX_EXAMINED: u32 = 1 << 16;
/// Unpaired endpoints between the same two hosts that are examined for one response
const CANDIDATES: usize = 1024;
/// Number of results kept
const RESULTS: usize = 1 << 14;

/// Address of the requester, and of the responder
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hosts(u128, u128);

impl Key for Hosts {
    fn hash(&self) -> u64 {
        mix((self.0 as u64).rotate_left(32) ^ self.1 as u64 ^ (self.0 >> 64) as u64 ^ (self.1 >> 64) as u64)
    }

    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(self.0, salt.hash(self.1, 0))
    }
}

/// List of the unpaired endpoints between two hosts.
#[derive(Clone, Copy, Debug)]
struct HostPair {
    /// First endpoint of the list
    first: Id,
    /// Endpoints examined since `since`, to match responses
    examined: u32,
    since: Nanos,
}

/// Endpoints whose peer is unknown, by the two hosts.
#[derive(Debug)]
pub(super) struct UnpairedEndpoints {
    index: Index<Hosts>,
    all: Vec<HostPair>,
    /// Results of recent atomics, by the endpoint that the response was sent to
    results: Box<[AtomicResult]>,
}

/// Result of an atomic.
#[derive(Clone, Copy, Debug)]
struct AtomicResult {
    to: Id,
    /// Incarnation of the endpoint `to`, since indices are reused
    incarnation: u32,
    psn: Psn,
    value: u64,
}

impl UnpairedEndpoints {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        let empty = AtomicResult { to: NONE, incarnation: 0, psn: Psn::ZERO, value: 0 };
        Self {
            index: Index::with_capacity(capacity),
            all: Vec::with_capacity(capacity),
            results: vec![empty; RESULTS].into(),
        }
    }

    /// Salts the hashes of the table.
    pub(super) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
    }

    fn slot_of(to: Id, psn: Psn) -> usize {
        mix(u64::from(to) << 32 | u64::from(psn.get())) as usize % RESULTS
    }

    /// Returns the memory in bytes for `capacity` endpoints.
    pub(super) fn bytes(capacity: usize) -> usize {
        Index::<Hosts>::bytes(capacity) + capacity * size_of::<HostPair>()
    }

    fn first(&self, client: u128, server: u128) -> Id {
        self.index.get(&Hosts(client, server)).map_or(NONE, |at| self.all[at as usize].first)
    }

    /// Adds to the number of endpoints examined between two hosts. Returns whether the limit of this tick
    /// permits more.
    fn count_examined(&mut self, client: u128, server: u128, examined: u32, tick: Nanos) -> bool {
        let Some(at) = self.index.get(&Hosts(client, server)) else { return true };
        let pair = &mut self.all[at as usize];
        if pair.since != tick {
            (pair.since, pair.examined) = (tick, 0);
        }
        pair.examined = pair.examined.saturating_add(examined);
        pair.examined <= MAX_EXAMINED
    }
}

impl Connections {
    fn hosts_of(&self, id: Id) -> Option<Hosts> {
        Some(Hosts(self.endpoint(id).from, bits_of(self.key(id)?.host())))
    }

    /// Adds an endpoint whose sender is known to the unpaired ones.
    pub(crate) fn add_unpaired(&mut self, id: Id) {
        let Some(hosts) = self.hosts_of(id) else { return };
        let is_new = self.unpaired.index.get(&hosts).is_none();
        let Ok(at) = self.unpaired.index.get_or_insert(hosts) else { return };
        let none = HostPair { first: NONE, examined: 0, since: Nanos::ZERO };
        if is_new {
            crate::lines::put(&mut self.unpaired.all, at, none, none);
        }
        let next = core::mem::replace(&mut self.unpaired.all[at as usize].first, id);
        self.endpoint_mut(id).neighbours = [NONE, next];
        if let Some(next) = self.endpoints.get_mut(next as usize) {
            next.neighbours[0] = id;
        }
    }

    /// Removes an endpoint from the unpaired ones.
    pub(super) fn remove_unpaired(&mut self, id: Id) {
        let Some(hosts) = self.hosts_of(id) else { return };
        let Some(at) = self.unpaired.index.get(&hosts) else { return };
        let [before, next] = core::mem::replace(&mut self.endpoint_mut(id).neighbours, [NONE; 2]);
        let first = &mut self.unpaired.all[at as usize].first;
        match self.endpoints.get_mut(before as usize) {
            Some(before) => before.neighbours[1] = next,
            None if *first == id => *first = next,
            // The endpoint is not in the list.
            None => return,
        }
        if let Some(next) = self.endpoints.get_mut(next as usize) {
            next.neighbours[0] = before;
        }
        if self.unpaired.all[at as usize].first == NONE {
            self.unpaired.index.remove(&hosts);
        }
    }

    /// Returns the only unpaired endpoint between two hosts whose requests a response with this PSN may
    /// belong to; `NONE` if there is none, or several. Returns `None` if the limit of this tick is reached.
    pub(crate) fn candidate(&mut self, client: u128, server: u128, psn: Psn, tick: Nanos) -> Option<Id> {
        if !self.unpaired.count_examined(client, server, 0, tick) {
            return None;
        }
        let mut found = NONE;
        let mut examined = 0;
        let mut next = self.unpaired.first(client, server);
        while next != NONE {
            let id = next;
            next = self.endpoint(id).neighbours[1];
            let flow = self.flow_mut(id);
            if !flow.is_started {
                continue;
            }
            examined += 1;
            if flow.may_have_requested(psn) {
                if found != NONE {
                    found = NONE;
                    break;
                }
                found = id;
            }
            if examined > CANDIDATES {
                found = NONE;
                break;
            }
        }
        self.unpaired.count_examined(client, server, examined as u32, tick);
        Some(found)
    }

    /// Stores the result of an atomic whose response was sent to endpoint `to`.
    pub(crate) fn keep_result(&mut self, to: Id, psn: Psn, value: u64) {
        let incarnation = self.flow(to).incarnation;
        let result = AtomicResult { to, incarnation, psn, value };
        self.unpaired.results[UnpairedEndpoints::slot_of(to, psn)] = result;
    }

    /// Sets the result of an atomic whose response arrived before the pairing, if the result is still stored.
    pub(crate) fn find_result(&self, id: Id, record: &mut Record) {
        let peer = self.endpoint(id).peer;
        let kept = &self.unpaired.results[UnpairedEndpoints::slot_of(peer, record.psn)];
        let incarnation = self.get_flow(peer).map(|flow| flow.incarnation);
        if (kept.to, kept.psn) == (peer, record.psn) && Some(kept.incarnation) == incarnation {
            record.kind = RecordKind::Atomic;
            record.value = kept.value;
        } else {
            record.kind = RecordKind::AtomicWithoutResult;
        }
    }

    /// Returns the neighbours of an endpoint in the list of unpaired ones.
    #[cfg(test)]
    pub(crate) fn neighbours_mut(&mut self, id: Id) -> &mut [Id; 2] {
        &mut self.endpoint_mut(id).neighbours
    }
}
