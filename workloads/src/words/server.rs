//! A memory server: words and pages that all connections share, memory of each connection's own, and receive
//! requests.

use super::connect::{Endpoint, Kind, Memory, RNR_TIMER, connect_qp, kind, message, queue_pair};
use super::history::Shared;
use super::linear::Action;
use super::{Config, PAGES_VA, PORT, STARVED, SwitchConnection, TABLE_VA};
use rnic::cm::{Conn, Event as CmEvent, PortSpace, RemoteRequest};
use rnic::{
    Access, Buffer, Completion, CompletionOpcode, ConnParam, Cq, Modify, Mr, Pd, RecvRequest, Remote, Rnic,
    Sge, State, Status,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use sim::App;
use std::collections::{BTreeMap, BTreeSet};
use switch::{Nanos, Rng};

const OWN_VA: u64 = 0x4000_0000_0000;
const RECEIVE_VA: u64 = 0x5000_0000_0000;
/// Number of words that the server's program writes locally after each start, and the time span for it (ns)
const LOCAL_WRITES: u32 = 24;
const LOCAL_WRITES_SPAN_NS: u64 = 4_000_000;
/// Capacity of the completion queue
const COMPLETIONS: usize = 1 << 16;

/// NIC objects that all connections share.
#[derive(Clone, Copy, Debug)]
struct Resources {
    pd: Pd,
    cq: Cq,
    /// Words, locks and pages
    memory: Buffer,
    /// Keys of words and of pages, for connections without keys of their own
    keys: [Mr; 2],
}

/// A server's end of a connection.
#[derive(Debug)]
struct ServerEnd {
    conn_id: u32,
    conn: Option<Conn>,
    own: Buffer,
    receives: (Buffer, Mr),
    /// Messages received
    messages: u64,
    /// Whether the server was notified that the connection is over
    is_over: bool,
}

/// The application of a memory server.
#[derive(Debug)]
pub struct ServerApp {
    config: Config,
    number: usize,
    history: Shared,
    resources: Option<Resources>,
    /// Ends of connections, by the queue pair number since the last start
    served: BTreeMap<u32, ServerEnd>,
    /// Queue pairs of the switch's own connections
    switch_qps: BTreeMap<Conn, Qpn>,
    by_conn_id: BTreeMap<u32, u32>,
    /// Connections that an earlier incarnation served. If the REQ of one arrives again, its new end lacks the
    /// state that the client already relies on
    lost: BTreeSet<u32>,
    reposts: BTreeMap<(Nanos, u64), (u32, u64)>,
    repost_count: u64,
    /// Times of the program's local writes
    writes: BTreeSet<Nanos>,
    /// Memory at the time of the crash, if it survives
    kept_memory: Option<Vec<u8>>,
    rng: Rng,
    starts: u64,
    up: bool,
}

impl ServerApp {
    pub(super) fn new(config: &Config, number: usize, history: Shared) -> Self {
        Self {
            config: config.clone(),
            number,
            history,
            resources: None,
            served: BTreeMap::new(),
            switch_qps: BTreeMap::new(),
            by_conn_id: BTreeMap::new(),
            lost: BTreeSet::new(),
            reposts: BTreeMap::new(),
            repost_count: 0,
            writes: BTreeSet::new(),
            kept_memory: None,
            rng: Rng::stream(config.seed, 0x7365_7276_0000 + number as u64),
            starts: 0,
            up: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    /// Returns the contents of the words and locks.
    pub(super) fn table<'a>(&self, nic: &'a Rnic) -> &'a [u8] {
        let Some(resources) = &self.resources else { return &[] };
        &nic.bytes(resources.memory)[..self.config.table_size()]
    }

    /// Returns the memory of a connection's own, and the number of messages that it received.
    pub(super) fn of_connection<'a>(&self, nic: &'a Rnic, conn_id: u32) -> Option<(&'a [u8], u64)> {
        let served =
            self.served.get(self.by_conn_id.get(&conn_id)?).filter(|_| !self.lost.contains(&conn_id))?;
        Some((nic.bytes(served.own), served.messages))
    }

    /// Registers keys for words and pages.
    fn keys(config: &Config, nic: &mut Rnic, pd: Pd, memory: Buffer) -> [Mr; 2] {
        let (table, pages) = (config.table_size(), config.pages_size());
        let mut register = |range, va| {
            nic.register(pd, memory, range, va, Access::ALL).expect("the NIC has room for a region")
        };
        if config.separate_keys {
            [register(0..table, TABLE_VA), register(table..table + pages, PAGES_VA)]
        } else {
            [register(0..table + pages, TABLE_VA); 2]
        }
    }

    /// Creates the server's end of a connection.
    pub(super) fn serve(&mut self, nic: &mut Rnic, conn_id: u32) -> Option<(Qpn, Memory)> {
        let Resources { pd, cq, memory, keys } = self.resources?;
        let config = &self.config;
        let keys = if config.own_keys { Self::keys(config, nic, pd, memory) } else { keys };
        let qpn = queue_pair(nic, pd, cq, 1, config.receives);
        let (own, own_key) = nic.register_new(pd, config.max_size as usize, OWN_VA, Access::ALL).ok()?;
        let size = (config.receives * config.max_size) as usize;
        let receives = nic.register_new(pd, size, RECEIVE_VA, Access::ALL).ok()?;
        let served = ServerEnd { conn_id, conn: None, own, receives, messages: 0, is_over: false };
        self.by_conn_id.insert(conn_id, qpn.get());
        self.history.get().grant(conn_id);
        self.served.insert(qpn.get(), served);
        let receives = if self.is_starved(conn_id) { 1 } else { self.config.receives };
        for slot in 0..receives {
            self.repost(nic, qpn.get(), slot.into());
        }
        let after_table = TABLE_VA + self.config.table_size() as u64;
        let pages = if self.config.separate_keys { PAGES_VA } else { after_table };
        let memory = Memory {
            table: Remote { va: TABLE_VA, rkey: keys[0].0 },
            pages: Remote { va: pages, rkey: keys[1].0 },
            own: Remote { va: OWN_VA, rkey: own_key.0 },
        };
        Some((qpn, memory))
    }

    /// Connects a queue pair to the client's.
    pub(super) fn connected(&mut self, nic: &mut Rnic, own: Endpoint, other: Endpoint) {
        connect_qp(nic, own, other, &self.config);
    }

    /// Destroys the end of a connection that is over.
    pub(super) fn drop_connection(&mut self, nic: &mut Rnic, conn_id: u32) {
        if let Some(qpn) = self.by_conn_id.get(&conn_id) {
            // The queue pair may be gone.
            _ = nic.destroy_qp(Qpn::new(*qpn));
            self.history.get().end_connection(conn_id);
            if let Some(served) = self.served.get_mut(qpn) {
                served.is_over = true;
            }
        }
    }

    fn is_starved(&self, conn_id: u32) -> bool {
        conn_id == STARVED && self.config.starve.is_some()
    }

    /// Revokes the right to write words from a connection. Returns the connection's number; `None` if there
    /// is none.
    pub(super) fn revoke(&mut self, nic: &mut Rnic, nth: u64) -> Option<u32> {
        let (qpn, served) = self.served.iter().nth((nth % self.served.len().max(1) as u64) as usize)?;
        nic.modify_qp(Qpn::new(*qpn), Modify::Access(Access::REMOTE_READ)).ok()?;
        Some(served.conn_id)
    }

    fn repost(&mut self, nic: &mut Rnic, qpn: u32, slot: u64) {
        let Some(served) = self.served.get(&qpn) else { return };
        let size = self.config.max_size;
        let data = Sge { mr: served.receives.1, va: RECEIVE_VA + slot * u64::from(size), len: size };
        // Fails if the connection is over.
        _ = nic.post_recv(Qpn::new(qpn), RecvRequest { id: slot, data: Some(data) });
    }

    fn on_completion(&mut self, nic: &mut Rnic, completion: &Completion, now: Nanos) {
        let qpn = completion.qpn.get();
        let Some(served) = self.served.get_mut(&qpn) else { return };
        let (conn_id, number) = (served.conn_id, served.messages);
        if completion.status != Status::Success {
            // The client is gone or has disconnected, or it requested an access that was revoked.
            let ended = served.is_over || self.history.get().is_revoked(conn_id, &self.config);
            if completion.status != Status::Flushed || !ended {
                self.history
                    .get()
                    .fail(|| format!("connection {conn_id}, at the server: {completion:?} without a cause"));
            }
            return;
        }
        served.messages += 1;
        let size = self.config.max_size;
        let expected = message(conn_id, number, size);
        let len = completion.len.min(size) as usize;
        let (of, immediate) = match kind(conn_id, number) {
            Kind::Send => (CompletionOpcode::Recv, None),
            Kind::SendImm => (CompletionOpcode::Recv, Some(number as u32)),
            Kind::WriteImm => (CompletionOpcode::RecvWriteImm, Some(number as u32)),
        };
        let received = match of {
            // The data is in place now: later messages are not executed before this completion is polled.
            CompletionOpcode::RecvWriteImm => &nic.bytes(served.own)[..len],
            _ => &nic.bytes(served.receives.0)[completion.id as usize * size as usize..][..len],
        };
        if received != expected || (completion.opcode, completion.immediate) != (of, immediate) {
            self.history.get().fail(|| {
                format!("connection {conn_id}: message {number} differs from what was sent: {completion:?}")
            });
        }
        let after = Nanos(self.rng.below(u64::from(self.config.repost_us) * 1000 + 1));
        let after = self.config.starve.filter(|_| conn_id == STARVED).unwrap_or(after);
        if after == Nanos::ZERO {
            self.repost(nic, qpn, completion.id);
        } else {
            self.repost_count += 1;
            self.reposts.insert((now + after, self.repost_count), (qpn, completion.id));
        }
    }

    fn on_cm(&mut self, nic: &mut Rnic, event: &CmEvent, now: Nanos) {
        let conn = event.conn();
        match event {
            CmEvent::Requested { request, .. } => {
                let accepted = self.accept(nic, conn, request, now);
                // No resources are left, or the private data is unknown.
                _ = accepted.ok_or(()).or_else(|()| nic.reject(conn, RejReason::CONSUMER, &[], now));
            }
            _ if event.is_last() && self.switch_qps.contains_key(&conn) => {
                if let Some(qpn) = self.switch_qps.remove(&conn) {
                    _ = nic.destroy_qp(qpn);
                }
            }
            _ if event.is_last() => {
                let conn_id = self
                    .served
                    .values()
                    .find(|served| served.conn == Some(conn))
                    .map(|served| served.conn_id);
                if let Some(conn_id) = conn_id {
                    self.drop_connection(nic, conn_id);
                }
            }
            _ => {}
        }
    }

    fn accept(&mut self, nic: &mut Rnic, conn: Conn, request: &RemoteRequest, now: Nanos) -> Option<()> {
        if let Some(treatment) = SwitchConnection::requested_by(&request.private_data) {
            return self.accept_switch_qp(nic, conn, treatment, now);
        }
        let conn_id = u32::from_be_bytes(*request.private_data.first_chunk()?);
        let (qpn, memory) = self.serve(nic, conn_id)?;
        let param = ConnParam {
            responder_resources: self.config.max_rd_atomic,
            initiator_depth: self.config.max_rd_atomic,
            rnr_retry_count: 7,
            min_rnr_timer: RNR_TIMER,
            private_data: memory.to_bytes(),
            ..ConnParam::default()
        };
        self.served.get_mut(&qpn.get())?.conn = Some(conn);
        nic.accept(conn, qpn, param, now).ok()
    }

    /// Accepts a connection of the switch's own.
    fn accept_switch_qp(
        &mut self,
        nic: &mut Rnic,
        conn: Conn,
        treatment: SwitchConnection,
        now: Nanos,
    ) -> Option<()> {
        let Resources { pd, cq, .. } = self.resources?;
        let pd = match treatment {
            SwitchConnection::Good => pd,
            SwitchConnection::OtherDomain => nic.alloc_pd(),
            SwitchConnection::Refused => return None,
        };
        let qpn = queue_pair(nic, pd, cq, 1, 1);
        let param = ConnParam {
            responder_resources: self.config.max_rd_atomic,
            initiator_depth: 0,
            rnr_retry_count: 7,
            min_rnr_timer: RNR_TIMER,
            ..ConnParam::default()
        };
        self.switch_qps.insert(conn, qpn);
        nic.accept(conn, qpn, param, now).ok()
    }

    /// Writes one of the local words.
    fn write_locally(&mut self, nic: &mut Rnic) {
        let Some(resources) = &self.resources else { return };
        let of = self.config.local_words;
        let word = (self.config.words - of) as usize + self.rng.below(of.into()) as usize;
        let mut history = self.history.get();
        let (value, memory) = (history.unique_value(), history.memory_of(self.number));
        // A connection number that no client has
        let conn_id = u32::MAX - self.number as u32;
        let recorded = history.post(memory, word, conn_id, false, Action::Write(value));
        nic.bytes_mut(resources.memory)[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        history.complete(recorded, 0);
    }

    /// Returns the number of queue pairs in the error state.
    pub(super) fn failed(&self, nic: &Rnic) -> usize {
        self.served.keys().filter(|qpn| nic.qp_state(Qpn::new(**qpn)) == Some(State::Error)).count()
    }
}

impl App for ServerApp {
    fn start(&mut self, nic: &mut Rnic, now: Nanos) {
        let pd = nic.alloc_pd();
        let cq = nic.create_cq(COMPLETIONS).expect("the NIC has room for a completion queue");
        let size = self.config.table_size() + self.config.pages_size();
        let memory = self.kept_memory.take().unwrap_or_else(|| vec![0; size]);
        let memory = nic.alloc(memory).expect("the NIC has room for memory");
        let keys = Self::keys(&self.config, nic, pd, memory);
        self.resources = Some(Resources { pd, cq, memory, keys });
        (self.up, self.starts) = (true, self.starts + 1);
        if self.config.local_words > 0 {
            let mut at = || now + Nanos(self.rng.between(1_000, LOCAL_WRITES_SPAN_NS));
            self.writes = (0..LOCAL_WRITES).map(|_| at()).collect();
        }
        // Cannot fail: the port of a new NIC is free.
        _ = nic.listen(PortSpace::Tcp, PORT);
    }

    fn crash(&mut self, nic: &Rnic) {
        self.up = false;
        let mut history = self.history.get();
        if self.config.keeps_memory {
            // The server may crash again before it has started.
            let memory = self.resources.map(|resources| nic.bytes(resources.memory).to_vec());
            self.kept_memory = memory.or_else(|| self.kept_memory.take());
            self.by_conn_id.keys().for_each(|conn_id| history.end_connection_now(*conn_id));
        } else {
            history.lose_memory(self.number);
        }
        drop(history);
        self.served.clear();
        self.switch_qps.clear();
        self.lost.extend(core::mem::take(&mut self.by_conn_id).into_keys());
        self.reposts.clear();
        self.writes.clear();
        self.resources = None;
    }

    fn run(&mut self, nic: &mut Rnic, now: Nanos) {
        while self.writes.first().is_some_and(|at| *at <= now) {
            self.writes.pop_first();
            self.write_locally(nic);
        }
        while let Some(due) = self.reposts.first_entry().filter(|entry| entry.key().0 <= now) {
            let (qpn, slot) = due.remove();
            self.repost(nic, qpn, slot);
        }
        while let Some(event) = nic.poll_cm_event() {
            self.on_cm(nic, &event, now);
        }
        if let Some(Resources { cq, .. }) = self.resources {
            while let Some(completion) = nic.poll_cq(cq) {
                self.on_completion(nic, &completion, now);
            }
        }
        while nic.poll_event().is_some() {}
    }

    fn next_timer(&self) -> Option<Nanos> {
        let repost = self.reposts.first_key_value().map(|((at, _), _)| *at);
        repost.into_iter().chain(self.writes.first().copied()).min()
    }
}
