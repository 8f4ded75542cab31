//! The connection table: connections by local ID, by remote ID and queue pair, and by deadline.

use super::state::State;
use super::types::{AddressPair, Conn, ConnInfo, IdSpace};
use core::cmp::Reverse;
use core::net::IpAddr;
use rocev2::cm::{Kind, MAD_LEN};
use rocev2::{Psn, Qpn};
use std::collections::{BinaryHeap, VecDeque};
use switch::random::Rng;
use switch::table::{Index, Key, Salt, mix};
use switch::{Full, Nanos};

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) state: State,
    pub(super) addresses: AddressPair,
    pub(super) active: bool,
    pub(super) service_id: u64,
    /// Transaction ID of the REQ, which all messages except DREQ and DREP carry
    pub(super) transaction: u64,
    pub(super) remote_id: Option<u32>,
    pub(super) local_qpn: Option<Qpn>,
    pub(super) remote_qpn: Option<Qpn>,
    /// When the remote side's ID and queue pair were stored
    pub(super) bound_at: Nanos,
    /// PSN of the REQ; together with transaction ID and queue pair it distinguishes a retransmitted REQ from
    /// a new one
    pub(super) request_psn: Psn,
    /// Response timeout
    pub(super) timeout: Nanos,
    /// Twice the packet lifetime, which is added to the service timeout of an MRA
    pub(super) round_trip: Nanos,
    pub(super) max_retries: u8,
    pub(super) retries_left: u8,
    /// Whether the last event was reported, or the owner rejected or aborted the connection and gets none
    pub(super) end_reported: bool,
    /// The last message sent, for retransmission
    pub(super) last: Option<(Kind, [u8; MAD_LEN])>,
    deadline: Option<Nanos>,
    /// The earliest entry in the timer heap
    queued: Option<Nanos>,
}

impl Connection {
    pub(super) fn new(state: State, addresses: AddressPair, service_id: u64, transaction: u64) -> Self {
        Self {
            state,
            addresses,
            active: state == State::ReqSent,
            service_id,
            transaction,
            remote_id: None,
            local_qpn: None,
            remote_qpn: None,
            bound_at: Nanos::ZERO,
            request_psn: Psn::ZERO,
            timeout: Nanos::ZERO,
            round_trip: Nanos::ZERO,
            max_retries: 0,
            retries_left: 0,
            end_reported: false,
            last: None,
            deadline: None,
            queued: None,
        }
    }

    pub(super) fn info(&self) -> ConnInfo {
        ConnInfo {
            state: self.state,
            addresses: self.addresses,
            active: self.active,
            service_id: self.service_id,
            remote_comm_id: self.remote_id,
            local_qpn: self.local_qpn,
            remote_qpn: self.remote_qpn,
        }
    }

    pub(super) const fn deadline(&self) -> Option<Nanos> {
        self.deadline
    }
}

/// A slot for a connection. Its generation is part of the ID, so that the ID of a forgotten connection
/// matches nothing.
#[derive(Debug)]
struct Slot {
    generation: u32,
    connection: Option<Box<Connection>>,
}

/// Returns a number whose lowest `bits` bits are set.
const fn mask(bits: u32) -> u32 {
    (1u64 << bits).wrapping_sub(1) as u32
}

/// An ID or queue pair number that another host chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RemoteKey {
    host: IpAddr,
    number: u32,
}

impl RemoteKey {
    const fn host(&self) -> u128 {
        match self.host {
            IpAddr::V4(address) => address.to_bits() as u128,
            IpAddr::V6(address) => address.to_bits(),
        }
    }
}

impl Key for RemoteKey {
    fn hash(&self) -> u64 {
        mix(self.host() as u64 ^ mix((self.host() >> 64) as u64 ^ u64::from(self.number)))
    }

    fn salted(&self, salt: Salt) -> u64 {
        salt.hash(self.host(), self.number.into())
    }
}

/// Connections by an ID or queue pair number of the remote side.
#[derive(Debug)]
pub(super) struct RemoteIndex {
    index: Index<RemoteKey>,
    conns: Vec<Conn>,
}

impl RemoteIndex {
    fn new(capacity: usize, salt: Salt) -> Self {
        Self { index: Index::salted(capacity, salt), conns: Vec::new() }
    }

    pub(super) fn get(&self, host: IpAddr, number: u32) -> Option<Conn> {
        self.index.get(&RemoteKey { host, number }).map(|id| self.conns[id as usize])
    }

    /// Assigns the number to `conn`, and takes it from any previous connection.
    fn bind(&mut self, host: IpAddr, number: u32, conn: Conn) -> Result<(), Full> {
        let id = self.index.get_or_insert(RemoteKey { host, number })? as usize;
        if id == self.conns.len() {
            self.conns.push(conn);
        } else {
            self.conns[id] = conn;
        }
        Ok(())
    }

    /// Removes the number if it belongs to `conn`.
    fn unbind(&mut self, host: IpAddr, number: u32, conn: Conn) {
        if self.get(host, number) == Some(conn) {
            self.index.remove(&RemoteKey { host, number });
        }
    }
}

/// All connections.
#[derive(Debug)]
pub(super) struct Table {
    slots: Vec<Slot>,
    /// Freed slots, oldest first, so that an ID recurs as late as possible
    free: VecDeque<u32>,
    capacity: usize,
    /// Number of ID bits that hold the slot number; the remaining bits hold the generation
    slot_bits: u32,
    ids: IdSpace,
    /// XORed into the numbers of IDs, so that they do not reveal the number of connections
    scramble: u32,
    rng: Rng,
    pub(super) by_remote_id: RemoteIndex,
    pub(super) by_remote_qpn: RemoteIndex,
    timers: BinaryHeap<Reverse<(Nanos, Conn)>>,
}

impl Table {
    pub(super) fn new(capacity: usize, ids: IdSpace, mut rng: Rng) -> Self {
        // At least two bits for the generation
        let capacity = capacity.min(1 << 24).min(1 << (ids.bits() - 2));
        let seed = rng.bits();
        Self {
            slots: Vec::new(),
            free: VecDeque::new(),
            capacity,
            slot_bits: capacity.max(2).next_power_of_two().trailing_zeros(),
            ids,
            scramble: rng.bits() as u32 & mask(ids.bits()),
            rng,
            by_remote_id: RemoteIndex::new(capacity, Salt::new(seed)),
            by_remote_qpn: RemoteIndex::new(capacity, Salt::new(!seed)),
            timers: BinaryHeap::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, connection: Connection) -> Result<Conn, Full> {
        let number = if let Some(number) = self.free.pop_front() {
            number
        } else if self.slots.len() < self.capacity {
            self.slots.push(Slot { generation: self.rng.bits() as u32, connection: None });
            self.slots.len() as u32 - 1
        } else {
            return Err(Full);
        };
        let slot = &mut self.slots[number as usize];
        slot.connection = Some(Box::new(connection));
        loop {
            slot.generation = slot.generation.wrapping_add(1) & mask(self.ids.bits() - self.slot_bits);
            let id = self.ids.id((slot.generation << self.slot_bits | number) ^ self.scramble);
            // 0 means "no ID" in a REJ.
            if id != 0 {
                return Ok(Conn(id));
            }
        }
    }

    fn slot(&self, conn: Conn) -> Option<usize> {
        let plain = self.ids.number(conn.0)? ^ self.scramble;
        let number = (plain & mask(self.slot_bits)) as usize;
        let slot = self.slots.get(number)?;
        (slot.generation == plain >> self.slot_bits).then_some(number)
    }

    pub(super) fn get(&self, conn: Conn) -> Option<&Connection> {
        self.slots[self.slot(conn)?].connection.as_deref()
    }

    pub(super) fn get_mut(&mut self, conn: Conn) -> Option<&mut Connection> {
        let number = self.slot(conn)?;
        self.slots[number].connection.as_deref_mut()
    }

    pub(super) fn remove(&mut self, conn: Conn) {
        self.unbind_qpn(conn);
        let Some(number) = self.slot(conn) else { return };
        let Some(connection) = self.slots[number].connection.take() else { return };
        self.free.push_back(number as u32);
        if let Some(id) = connection.remote_id {
            self.by_remote_id.unbind(connection.addresses.remote, id, conn);
        }
    }

    /// Stores the remote side's ID of the connection and its queue pair.
    pub(super) fn bind(
        &mut self,
        conn: Conn,
        remote_id: u32,
        remote_qpn: Qpn,
        now: Nanos,
    ) -> Result<(), Full> {
        let Some(connection) = self.get_mut(conn) else { return Err(Full) };
        connection.bound_at = now;
        connection.remote_id = Some(remote_id);
        connection.remote_qpn = Some(remote_qpn);
        let host = connection.addresses.remote;
        self.by_remote_id.bind(host, remote_id, conn)?;
        self.by_remote_qpn.bind(host, remote_qpn.get(), conn)
    }

    /// Lets the remote side's queue pair be connected again.
    pub(super) fn unbind_qpn(&mut self, conn: Conn) {
        let Some(connection) = self.get(conn) else { return };
        if let Some(qpn) = connection.remote_qpn {
            let host = connection.addresses.remote;
            self.by_remote_qpn.unbind(host, qpn.get(), conn);
        }
    }

    /// Sets the only deadline of `conn`.
    pub(super) fn arm(&mut self, conn: Conn, deadline: Nanos) {
        let Some(connection) = self.get_mut(conn) else { return };
        connection.deadline = Some(deadline);
        // A postponed deadline is found when the earlier entry expires, so the number of entries stays small
        // however often a timer is moved.
        if connection.queued.is_none_or(|queued| deadline < queued) {
            connection.queued = Some(deadline);
            self.timers.push(Reverse((deadline, conn)));
        }
    }

    pub(super) fn disarm(&mut self, conn: Conn) {
        if let Some(connection) = self.get_mut(conn) {
            connection.deadline = None;
        }
    }

    /// Returns the next connection whose deadline has passed.
    pub(super) fn due(&mut self, now: Nanos) -> Option<Conn> {
        while let Some(&Reverse((at, conn))) = self.timers.peek()
            && at <= now
        {
            self.timers.pop();
            let Some(connection) = self.get_mut(conn) else { continue };
            if connection.queued == Some(at) {
                connection.queued = None;
            }
            match connection.deadline {
                Some(deadline) if deadline <= now => {
                    connection.deadline = None;
                    return Some(conn);
                }
                Some(deadline) => self.arm(conn, deadline),
                None => {}
            }
        }
        None
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        self.timers.peek().map(|&Reverse((at, _))| at)
    }
}
