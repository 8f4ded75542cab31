//! A memory server: words and pages that all connections share, memory of each connection's own, and receive
//! requests.

use super::connect::{Joined, Kind, Memory, RNR_TIMER, join, kind, message, queue_pair};
use super::linear::Action;
use super::truth::Shared;
use super::{Config, Lane, PAGES_VA, PORT, STARVED, TABLE_VA};
use crate::App;
use rnic::cm::{Conn, Event as CmEvent, PortSpace, RemoteRequest};
use rnic::{
    Access, Buffer, Completed, Completion, ConnParam, Cq, Modify, Mr, Pd, RecvRequest, Remote, Rnic, Sge,
    State, Status,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use std::collections::{BTreeMap, BTreeSet};
use switch::{Chance, Nanos};

const OWN_VA: u64 = 0x4000_0000_0000;
const RECEIVE_VA: u64 = 0x5000_0000_0000;
/// Number of words that the server's program writes locally after each start, and the time span for it (ns)
const LOCAL_WRITES: u32 = 24;
const LOCALLY_UNTIL: u64 = 4_000_000;
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
struct Served {
    line: u32,
    conn: Option<Conn>,
    own: Buffer,
    receives: (Buffer, Mr),
    /// Messages received
    messages: u64,
    /// Whether the server was notified that the connection is over
    over: bool,
}

/// The application of a memory server.
#[derive(Debug)]
pub struct ServerApp {
    config: Config,
    number: usize,
    truth: Shared,
    resources: Option<Resources>,
    /// Ends of connections, by the queue pair number since the last start
    served: BTreeMap<u32, Served>,
    /// Queue pairs of the switch's own connections
    lanes: BTreeMap<Conn, Qpn>,
    by_line: BTreeMap<u32, u32>,
    /// Connections that an earlier incarnation served. If the REQ of one arrives again, its new end lacks the
    /// state that the client already relies on
    lost: BTreeSet<u32>,
    reposts: BTreeMap<(Nanos, u64), (u32, u64)>,
    reposted: u64,
    /// Times of the program's local writes
    writes: BTreeSet<Nanos>,
    /// Memory at the time of the crash, if it survives
    kept: Option<Vec<u8>>,
    chance: Chance,
    lives: u64,
    up: bool,
}

impl ServerApp {
    pub(super) fn new(config: &Config, number: usize, truth: Shared) -> Self {
        Self {
            config: config.clone(),
            number,
            truth,
            resources: None,
            served: BTreeMap::new(),
            lanes: BTreeMap::new(),
            by_line: BTreeMap::new(),
            lost: BTreeSet::new(),
            reposts: BTreeMap::new(),
            reposted: 0,
            writes: BTreeSet::new(),
            kept: None,
            chance: Chance::stream(config.seed, 0x7365_7276_0000 + number as u64),
            lives: 0,
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
    pub(super) fn of_line<'a>(&self, nic: &'a Rnic, line: u32) -> Option<(&'a [u8], u64)> {
        let served = self.served.get(self.by_line.get(&line)?).filter(|_| !self.lost.contains(&line))?;
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
    pub(super) fn serve(&mut self, nic: &mut Rnic, line: u32) -> Option<(Qpn, Memory)> {
        let Resources { pd, cq, memory, keys } = self.resources?;
        let config = &self.config;
        let keys = if config.own_keys { Self::keys(config, nic, pd, memory) } else { keys };
        let qpn = queue_pair(nic, pd, cq, 1, config.receives);
        let (own, own_key) = nic.register_new(pd, config.max_size as usize, OWN_VA, Access::ALL).ok()?;
        let size = (config.receives * config.max_size) as usize;
        let receives = nic.register_new(pd, size, RECEIVE_VA, Access::ALL).ok()?;
        let served = Served { line, conn: None, own, receives, messages: 0, over: false };
        self.by_line.insert(line, qpn.get());
        self.truth.get().grant(line);
        self.served.insert(qpn.get(), served);
        let receives = if self.is_starved(line) { 1 } else { self.config.receives };
        for slot in 0..receives {
            self.repost(nic, qpn.get(), slot.into());
        }
        let behind = TABLE_VA + self.config.table_size() as u64;
        let pages = if self.config.separate_keys { PAGES_VA } else { behind };
        let memory = Memory {
            table: Remote { va: TABLE_VA, rkey: keys[0].0 },
            pages: Remote { va: pages, rkey: keys[1].0 },
            own: Remote { va: OWN_VA, rkey: own_key.0 },
        };
        Some((qpn, memory))
    }

    /// Connects a queue pair to the client's.
    pub(super) fn joined(&mut self, nic: &mut Rnic, own: Joined, other: Joined) {
        join(nic, own, other, &self.config);
    }

    /// Destroys the end of a connection that is over.
    pub(super) fn drop_line(&mut self, nic: &mut Rnic, line: u32) {
        if let Some(qpn) = self.by_line.get(&line) {
            // The queue pair may be gone.
            _ = nic.destroy_qp(Qpn::new(*qpn));
            self.truth.get().end(line);
            if let Some(served) = self.served.get_mut(qpn) {
                served.over = true;
            }
        }
    }

    fn is_starved(&self, line: u32) -> bool {
        line == STARVED && self.config.starve.is_some()
    }

    /// Revokes the right to write words from a connection. Returns the connection's number; None if there is
    /// none.
    pub(super) fn revoke(&mut self, nic: &mut Rnic, nth: u64) -> Option<u32> {
        let (qpn, served) = self.served.iter().nth((nth % self.served.len().max(1) as u64) as usize)?;
        nic.modify_qp(Qpn::new(*qpn), Modify::Access(Access::REMOTE_READ)).ok()?;
        Some(served.line)
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
        let (line, number) = (served.line, served.messages);
        if completion.status != Status::Success {
            // The client is gone or has disconnected, or it requested an access that was revoked.
            let ended = served.over || self.truth.get().is_revoked(line, &self.config);
            if completion.status != Status::Flushed || !ended {
                self.truth
                    .get()
                    .fail(|| format!("connection {line}, at the server: {completion:?} without a cause"));
            }
            return;
        }
        served.messages += 1;
        let size = self.config.max_size;
        let expected = message(line, number, size);
        let len = completion.len.min(size) as usize;
        let (of, immediate) = match kind(line, number) {
            Kind::Send => (Completed::Recv, None),
            Kind::SendImm => (Completed::Recv, Some(number as u32)),
            Kind::WriteImm => (Completed::RecvWriteImm, Some(number as u32)),
        };
        let came = match of {
            // The data is in place now: later messages are not executed before this completion is polled.
            Completed::RecvWriteImm => &nic.bytes(served.own)[..len],
            _ => &nic.bytes(served.receives.0)[completion.id as usize * size as usize..][..len],
        };
        if came != expected || (completion.of, completion.immediate) != (of, immediate) {
            self.truth.get().fail(|| {
                format!("connection {line}: message {number} differs from what was sent: {completion:?}")
            });
        }
        let after = Nanos(self.chance.below(u64::from(self.config.repost_us) * 1000 + 1));
        let after = self.config.starve.filter(|_| line == STARVED).unwrap_or(after);
        if after == Nanos::ZERO {
            self.repost(nic, qpn, completion.id);
        } else {
            self.reposted += 1;
            self.reposts.insert((now + after, self.reposted), (qpn, completion.id));
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
            _ if event.is_last() && self.lanes.contains_key(&conn) => {
                if let Some(qpn) = self.lanes.remove(&conn) {
                    _ = nic.destroy_qp(qpn);
                }
            }
            _ if event.is_last() => {
                let line =
                    self.served.values().find(|served| served.conn == Some(conn)).map(|served| served.line);
                if let Some(line) = line {
                    self.drop_line(nic, line);
                }
            }
            _ => {}
        }
    }

    fn accept(&mut self, nic: &mut Rnic, conn: Conn, request: &RemoteRequest, now: Nanos) -> Option<()> {
        if let Some(lane) = Lane::asked_by(&request.private_data) {
            return self.accept_lane(nic, conn, lane, now);
        }
        let line = u32::from_be_bytes(*request.private_data.first_chunk()?);
        let (qpn, memory) = self.serve(nic, line)?;
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
    fn accept_lane(&mut self, nic: &mut Rnic, conn: Conn, lane: Lane, now: Nanos) -> Option<()> {
        let Resources { pd, cq, .. } = self.resources?;
        let pd = match lane {
            Lane::Good => pd,
            Lane::OtherDomain => nic.alloc_pd(),
            Lane::Refused => return None,
        };
        let qpn = queue_pair(nic, pd, cq, 1, 1);
        let param = ConnParam {
            responder_resources: self.config.max_rd_atomic,
            initiator_depth: 0,
            rnr_retry_count: 7,
            min_rnr_timer: RNR_TIMER,
            ..ConnParam::default()
        };
        self.lanes.insert(conn, qpn);
        nic.accept(conn, qpn, param, now).ok()
    }

    /// Writes one of the local words.
    fn write_locally(&mut self, nic: &mut Rnic) {
        let Some(resources) = &self.resources else { return };
        let of = self.config.local_words;
        let word = (self.config.words - of) as usize + self.chance.below(of.into()) as usize;
        let mut truth = self.truth.get();
        let (value, memory) = (truth.fresh(), truth.memory_of(self.number));
        // A connection number that no client has
        let line = u32::MAX - self.number as u32;
        let recorded = truth.post(memory, word, line, false, Action::Write(value));
        nic.bytes_mut(resources.memory)[word * 8..][..8].copy_from_slice(&value.to_le_bytes());
        truth.complete(recorded, 0);
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
        let memory = self.kept.take().unwrap_or_else(|| vec![0; size]);
        let memory = nic.alloc(memory).expect("the NIC has room for memory");
        let keys = Self::keys(&self.config, nic, pd, memory);
        self.resources = Some(Resources { pd, cq, memory, keys });
        (self.up, self.lives) = (true, self.lives + 1);
        if self.config.local_words > 0 {
            let mut at = || now + Nanos(self.chance.between(1_000, LOCALLY_UNTIL));
            self.writes = (0..LOCAL_WRITES).map(|_| at()).collect();
        }
        // Cannot fail: the port of a new NIC is free.
        _ = nic.listen(PortSpace::Tcp, PORT);
    }

    fn crash(&mut self, nic: &Rnic) {
        self.up = false;
        let mut truth = self.truth.get();
        if self.config.keeps_memory {
            // The server may crash again before it has started.
            let memory = self.resources.map(|resources| nic.bytes(resources.memory).to_vec());
            self.kept = memory.or_else(|| self.kept.take());
            self.by_line.keys().for_each(|line| truth.end_now(*line));
        } else {
            truth.forget(self.number);
        }
        drop(truth);
        self.served.clear();
        self.lanes.clear();
        self.lost.extend(core::mem::take(&mut self.by_line).into_keys());
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
