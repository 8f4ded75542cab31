//! The connection table: every tracked queue pair with its requests, by host and number.
//!
//! A connection is a pair of endpoints. The index, the endpoints, their flows and the records of their
//! requests have the same indices. Pairing is symmetric: if an endpoint has a peer, it is the peer of that
//! endpoint. An endpoint whose sender is known is in the list of unpaired ones as long as it has no peer.

mod endpoint;
mod tracking;
mod unpaired;

pub(crate) use endpoint::{Endpoint, UNKNOWN_PORT};

use crate::address::{NO_SERVER, bits_of};
use crate::config::{Config, Connection};
use crate::flow::Flow;
use crate::records::{NO_RECORD, Record};
use crate::{Id, NONE};
use switch::Nanos;
use switch::forward::counters::HostQp;
use switch::table::{Index, Salt};
use unpaired::UnpairedEndpoints;

/// All tracked endpoints.
#[derive(Debug)]
pub(crate) struct Connections {
    index: Index<HostQp>,
    endpoints: Vec<Endpoint>,
    flows: Vec<Flow>,
    /// `rd_atomic` records per flow
    records: Vec<Record>,
    rd_atomic: usize,
    unpaired: UnpairedEndpoints,
    /// Addresses of the servers as 128 bits
    hosts: Box<[u128]>,
    /// Path MTUs of the servers in bytes; 0 if unknown
    mtus: Box<[u16]>,
    /// Endpoints added so far, modulo 2^32: the incarnation number of the latest
    incarnations: u32,
    age_cursor: Id,
}

impl Connections {
    /// Returns an empty table for the connections and servers of `config`.
    pub(crate) fn new(config: &Config) -> Self {
        let ends = config.connections * 2;
        Self {
            index: Index::with_capacity(ends),
            endpoints: Vec::with_capacity(ends),
            flows: Vec::with_capacity(ends),
            records: Vec::with_capacity(ends * config.rd_atomic),
            rd_atomic: config.rd_atomic,
            unpaired: UnpairedEndpoints::with_capacity(ends),
            hosts: config.servers.iter().map(|server| bits_of(server.host)).collect(),
            mtus: config.servers.iter().map(|server| server.path_mtu).collect(),
            incarnations: 0,
            age_cursor: 0,
        }
    }

    /// Salts the hashes of queue pairs and of hosts.
    pub(crate) fn set_salt(&mut self, salt: Salt) {
        self.index.set_salt(salt);
        self.unpaired.set_salt(salt);
    }

    /// Returns the memory in bytes of the connections of `config`.
    pub(crate) fn bytes(config: &Config) -> usize {
        let ends = config.connections * 2;
        let end = size_of::<Endpoint>() + size_of::<Flow>() + config.rd_atomic * size_of::<Record>();
        Index::<HostQp>::bytes(ends) + ends * end + UnpairedEndpoints::bytes(ends)
    }

    /// Returns the number of endpoints.
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the number of indices that were ever in use.
    #[inline]
    pub(crate) fn ids(&self) -> Id {
        self.flows.len() as Id
    }

    /// Returns the index of the server with this address, or [`NO_SERVER`].
    #[inline]
    pub(crate) fn server_of(&self, host: u128) -> u8 {
        let found = self.hosts.iter().position(|own| *own == host);
        found.map_or(NO_SERVER, |at| at as u8)
    }

    /// Returns the endpoint with this host and queue pair number.
    #[inline]
    pub(crate) fn find(&self, key: &HostQp) -> Option<Id> {
        self.index.get(key)
    }

    /// Returns the host and queue pair number of an endpoint; `None` if the index is not in use.
    #[inline]
    pub(crate) fn key(&self, id: Id) -> Option<&HostQp> {
        self.index.key(id)
    }

    #[inline]
    pub(crate) fn endpoint(&self, id: Id) -> &Endpoint {
        &self.endpoints[id as usize]
    }

    #[inline]
    pub(crate) fn endpoint_mut(&mut self, id: Id) -> &mut Endpoint {
        &mut self.endpoints[id as usize]
    }

    /// Returns an endpoint; `None` for [`NONE`].
    #[inline]
    pub(crate) fn get_endpoint(&self, id: Id) -> Option<&Endpoint> {
        self.endpoints.get(id as usize)
    }

    /// Returns the requests to an endpoint.
    #[inline]
    pub(crate) fn flow(&self, id: Id) -> &Flow {
        &self.flows[id as usize]
    }

    #[inline]
    pub(crate) fn flow_mut(&mut self, id: Id) -> &mut Flow {
        &mut self.flows[id as usize]
    }

    /// Returns the requests to an endpoint; `None` for [`NONE`].
    #[inline]
    pub(crate) fn get_flow(&self, id: Id) -> Option<&Flow> {
        self.flows.get(id as usize)
    }

    #[inline]
    pub(crate) fn get_flow_mut(&mut self, id: Id) -> Option<&mut Flow> {
        self.flows.get_mut(id as usize)
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = &Flow> {
        self.flows.iter()
    }

    /// Returns the public identity of a connection.
    pub(crate) fn connection_of(&self, id: Id) -> Option<Connection> {
        let (server, client) = (self.key(id)?, self.key(self.endpoint(id).peer())?);
        Some(Connection { server: (server.host(), server.qpn()), client: (client.host(), client.qpn()) })
    }

    /// Returns whether a queue pair belongs to a translated connection.
    pub(crate) fn is_translated(&self, key: &HostQp) -> bool {
        let Some(id) = self.find(key) else { return false };
        [id, self.endpoint(id).peer()]
            .into_iter()
            .any(|end| self.get_flow(end).is_some_and(Flow::is_translated))
    }

    /// Returns whether an endpoint is a queue pair of the switch.
    pub(crate) fn is_switch_endpoint(&self, id: Id) -> bool {
        self.get_flow(self.endpoint(id).peer()).is_some_and(|flow| flow.is_switch_owned)
    }

    /// Adds an endpoint, or resets it if it exists. Returns `None` if the table is full.
    pub(crate) fn add(&mut self, key: HostQp) -> Option<Id> {
        let Ok(id) = self.index.get_or_insert(key) else { return None };
        let server = self.server_of(bits_of(key.host()));
        let end = Endpoint { qpn: key.qpn(), ..Endpoint::NEW };
        crate::lines::put(&mut self.endpoints, id, end, Endpoint::NEW);
        let mtu = self.mtus.get(usize::from(server)).map_or(0, |mtu| *mtu);
        self.incarnations = self.incarnations.wrapping_add(1);
        let flow = Flow::new(server, mtu, self.incarnations);
        crate::lines::put(&mut self.flows, id, flow, Flow::new(server, 0, 0));
        let records = (id as usize + 1) * self.rd_atomic;
        if self.records.len() < records {
            self.records.resize(records, NO_RECORD);
        }
        self.clear_records(id);
        Some(id)
    }

    /// Adds both endpoints of a connection, or none if the table is full.
    pub(crate) fn add_both(&mut self, keys: [HostQp; 2]) -> Option<[Id; 2]> {
        if let [Some(first), Some(second)] = keys.map(|key| self.add(key)) {
            return Some([first, second]);
        }
        for key in keys {
            self.index.remove(&key);
        }
        None
    }

    /// Removes an endpoint. Its peer stays, without a peer. Returns whether the endpoint was in the table.
    pub(crate) fn remove(&mut self, id: Id) -> bool {
        let peer = core::mem::replace(&mut self.endpoints[id as usize].peer, NONE);
        if peer != NONE {
            self.endpoints[peer as usize].peer = NONE;
        }
        self.remove_unpaired(id);
        self.flows[id as usize] = Flow::new(self.flow(id).server, 0, 0);
        let Some(key) = self.key(id).copied() else { return false };
        self.index.remove(&key);
        true
    }

    /// Makes two endpoints the peers of each other.
    pub(crate) fn pair(&mut self, to_server: Id, to_client: Id) {
        for (id, peer) in [(to_server, to_client), (to_client, to_server)] {
            self.remove_unpaired(id);
            let end = self.endpoint_mut(id);
            (end.peer, end.peer_port) = (peer, UNKNOWN_PORT);
        }
    }

    /// Advances the ageing hand by one index. Returns the endpoint there, if that index is in use.
    pub(crate) fn next_to_age(&mut self) -> Option<Id> {
        self.age_cursor = (self.age_cursor + 1) % self.index.ids();
        self.key(self.age_cursor)?;
        Some(self.age_cursor)
    }

    /// Returns the later of the times of the last frames to the two endpoints of a connection.
    pub(crate) fn last_seen(&self, id: Id) -> Nanos {
        let end = self.endpoint(id);
        self.get_endpoint(end.peer()).map_or(end.seen, |peer| end.seen.max(peer.seen))
    }

    /// Prefetches the slot at which the lookup of a queue pair begins.
    #[inline]
    pub(crate) fn prefetch_slot(&self, key: &HostQp, fetch: impl Fn(*const u8)) {
        fetch(self.index.slot_address(key));
    }

    /// Prefetches the key of the likely endpoint of a queue pair. Returns that endpoint.
    #[inline]
    pub(crate) fn prefetch_key(&self, key: &HostQp, fetch: impl Fn(*const u8)) -> Id {
        let id = self.index.likely_id(key);
        fetch(self.index.key_address(id));
        id
    }

    /// Prefetches the first cache line of an endpoint, if it exists.
    #[inline]
    pub(crate) fn prefetch_endpoint(&self, id: Id, fetch: impl Fn(*const u8)) {
        if let Some(end) = self.get_endpoint(id) {
            fetch(core::ptr::from_ref(end).cast());
        }
    }

    /// Prefetches the first cache line of a flow, if it exists.
    #[inline]
    pub(crate) fn prefetch_flow(&self, id: Id, fetch: impl Fn(*const u8)) {
        if let Some(flow) = self.get_flow(id) {
            fetch(core::ptr::from_ref(flow).cast());
        }
    }
}
