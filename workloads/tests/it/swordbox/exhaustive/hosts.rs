//! The hosts: a memory server, and its clients, each of which executes a plan of operations.

use super::history::{History, NUMBER};
use rnic::cm::{Conn, Event as CmEvent, PortSpace, service_id_of};
use rnic::{
    Access, AckPolicy, Buffer, ConnParam, Cq, Data, Interface, Mr, Operation, Pd, QpInit, Remote, Rnic,
    SendRequest, Sge, Status,
};
use rocev2::Qpn;
use rocev2::cm::RejReason;
use rocev2::ethernet::MacAddr;
use std::collections::VecDeque;
use std::net::IpAddr;
use switch::Nanos;
use workloads::words::linear::Action;

/// `rdma_cm` port on which the server listens
const PORT: u16 = 9000;
/// Virtual address of the server's words
pub(super) const VA: u64 = 0x1000_0000_0000;
/// Distance of two words in bytes: each word has its own cache line.
pub(super) const STRIDE: u64 = 64;
/// Index of the word that both clients use. It is followed by one word for each client.
const SHARED: usize = 0;
/// Number of words of the server
pub(super) const WORDS: usize = 3;
/// Bytes before the words, and behind them. Those before the words fill all packets of a long WRITE but the
/// last.
const PADDING: u64 = 1024;
/// Virtual address of the buffer for a client's results
const RESULTS_VA: u64 = 0x3000_0000_0000;
/// Operations that a client has outstanding at once
const OUTSTANDING: usize = 2;
/// ACK timeout of clients: 262 us (4.096 us times two to the power of this)
const ACK_TIMEOUT: u8 = 6;
/// ACK timeout where WRITEs are long: 2.1 ms, longer than [`PAUSE`], after which the other client uses the
/// word
const LONG_ACK_TIMEOUT: u8 = 9;
/// Retry count of clients
const RETRY_COUNT: u8 = 7;
/// Pause of a client. It is longer than `SETTLE`, so that the switch fetches values again.
pub(super) const PAUSE: Nanos = Nanos::from_millis(2);
/// A client whose connection is not established within this time requests another one.
const CONNECT_TIMEOUT: Nanos = Nanos::from_millis(10);
/// Most connections that a client makes in one run: its first one, and those that the restart may cost it
const MAX_CONNECTIONS: u32 = 5;

/// A step of a client's plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// `FetchAdd` of the client's own word
    Own,
    /// `CmpSwap` of the shared word, with the newest value that either client has seen as comparand
    Swap,
    /// `FetchAdd` of the shared word
    Add,
    /// RDMA WRITE of the shared word
    Write,
    /// RDMA WRITE of the bytes before the words, whose second packet is the shared word
    Long,
    /// RDMA WRITE of the client's own word and the bytes behind it, which fill a second packet
    LongOwn,
    /// RDMA READ of the shared word
    Read,
    /// A pause of [`PAUSE`], after all previous operations have completed
    Pause,
}

/// Plan of each client, on each of its connections. The first client proves its rights with its own word, so
/// that its first operation on the shared word uses a shared QP. The second client begins with the shared
/// word, on its own connection.
const PLANS: [&[Step]; 2] = [
    &[
        Step::Own,
        Step::Own,
        Step::Own,
        Step::Pause,
        Step::Swap,
        Step::Write,
        Step::Pause,
        Step::Swap,
        Step::Add,
        Step::Swap,
    ],
    &[
        Step::Swap,
        Step::Own,
        Step::Own,
        Step::Pause,
        Step::Add,
        Step::Swap,
        Step::Pause,
        Step::Swap,
        Step::Write,
        Step::Swap,
        Step::Read,
    ],
];

/// Plans with long WRITEs: those of the second client arrive while the first one pauses.
const LONG_PLANS: [&[Step]; 2] = [
    &[
        Step::Own,
        Step::Own,
        Step::Own,
        Step::Pause,
        Step::Add,
        Step::Pause,
        Step::Pause,
        Step::Add,
        Step::Swap,
        Step::Pause,
        Step::Swap,
        Step::Read,
    ],
    &[
        Step::Own,
        Step::Own,
        Step::Own,
        Step::Pause,
        Step::Pause,
        Step::Long,
        Step::LongOwn,
        Step::Pause,
        Step::Read,
    ],
];

/// Memory of a server, as its REP announces it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) incarnation: u64,
    rkey: u32,
}

impl Memory {
    fn to_bytes(self) -> Vec<u8> {
        [&self.incarnation.to_be_bytes()[..], &self.rkey.to_be_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (incarnation, rest) = bytes.split_first_chunk()?;
        let rkey = u32::from_be_bytes(*rest.first_chunk()?);
        Some(Self { incarnation: u64::from_be_bytes(*incarnation), rkey })
    }
}

pub(super) const fn address(host: u8) -> IpAddr {
    IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, host + 1))
}

/// Returns the NIC of a host: the server is host 0, the clients are 1 and 2. NICs acknowledge every packet,
/// including the first one of a long WRITE.
fn nic(host: u8) -> Rnic {
    let mac = |host: u8| MacAddr([2, 0, 0, 0, 1, host]);
    let neighbours =
        (0..3).filter(|other| *other != host).map(|other| (address(other), mac(other))).collect();
    let interface = Interface { neighbours, ..Interface::new(mac(host), address(host), 24) };
    Rnic::new(rnic::Config {
        max_qps: 32,
        max_regions: 8,
        seed: 1 + u64::from(host),
        ack: AckPolicy::EveryPacket,
        ..rnic::Config::new(interface)
    })
}

fn queue_pair(nic: &mut Rnic, pd: Pd, cq: Cq) -> Qpn {
    let init = QpInit::rc(pd, cq, OUTSTANDING + 1, 1);
    nic.create_qp(init).expect("room for a queue pair")
}

/// A memory server. A restart creates a new one.
#[derive(Debug)]
pub(super) struct MemoryServer {
    pub(super) nic: Rnic,
    pd: Pd,
    cq: Cq,
    buffer: Buffer,
    pub(super) memory: Memory,
}

impl MemoryServer {
    /// Returns a server with empty memory of this incarnation. Its R_keys are those of the previous
    /// incarnation, and with `same_numbers` its QPNs, too.
    pub(super) fn new(incarnation: u64, same_numbers: bool) -> Self {
        let mut nic = nic(0);
        let (pd, cq) = (nic.alloc_pd(), nic.create_cq(64).expect("room for a completion queue"));
        let size = WORDS * STRIDE as usize + 2 * PADDING as usize;
        let (buffer, mr) = nic.register_new(pd, size, VA - PADDING, Access::ALL).expect("room for a region");
        if !same_numbers {
            for _ in 0..incarnation * 8 {
                queue_pair(&mut nic, pd, cq);
            }
        }
        nic.listen(PortSpace::Tcp, PORT).expect("a free port");
        Self { nic, pd, cq, buffer, memory: Memory { incarnation, rkey: mr.0 } }
    }

    /// Handles all events after a frame or a timer.
    pub(super) fn run(&mut self, now: Nanos) {
        while let Some(event) = self.nic.poll_cm_event() {
            if let CmEvent::Requested { conn, .. } = event {
                let qpn = queue_pair(&mut self.nic, self.pd, self.cq);
                let param = ConnParam { private_data: self.memory.to_bytes(), ..ConnParam::default() };
                if self.nic.accept(conn, qpn, param, now).is_err() {
                    _ = self.nic.reject(conn, RejReason::CONSUMER, &[], now);
                }
            }
        }
        while self.nic.poll_cq(self.cq).is_some() {}
        while self.nic.poll_event().is_some() {}
    }

    /// Returns the contents of the words.
    pub(super) fn words(&self) -> Vec<u64> {
        let bytes = &self.nic.bytes(self.buffer)[PADDING as usize..];
        let word =
            |at: usize| u64::from_le_bytes(*bytes[at * STRIDE as usize..].first_chunk().expect("8 bytes"));
        (0..WORDS).map(word).collect()
    }
}

/// An operation that has not completed.
#[derive(Debug)]
struct Outstanding {
    id: u64,
    /// Its memory's incarnation and its word; then its number in the word's history
    at: (u64, usize),
    number: usize,
    fetches: bool,
}

/// A client with one connection at a time.
#[derive(Debug)]
pub(super) struct Client {
    number: usize,
    /// Whether WRITEs are long
    long: bool,
    pub(super) nic: Rnic,
    pd: Pd,
    cq: Cq,
    results: (Buffer, Mr),
    qpn: Qpn,
    conn: Option<Conn>,
    /// Memory that the REP of this connection announced
    pub(super) memory: Option<Memory>,
    connections: u32,
    plan: VecDeque<Step>,
    /// When the client continues: with its plan if it is connected, with another connection otherwise
    pub(super) resume_at: Option<Nanos>,
    outstanding: VecDeque<Outstanding>,
    posted: u64,
    pub(super) completed: u64,
    /// Number of operations whose outcome is unknown because their connection failed
    pub(super) unknown: u64,
    /// Reasons for which connections failed. A reconnection after a detected restart is not among them.
    pub(super) errors: Vec<String>,
    pub(super) wrong: Option<String>,
}

impl Client {
    /// Returns a client without a connection.
    pub(super) fn new(number: usize, long: bool) -> Self {
        let mut nic = nic(number as u8 + 1);
        let (pd, cq) = (nic.alloc_pd(), nic.create_cq(64).expect("room for a completion queue"));
        let results = nic.register_new(pd, 64, RESULTS_VA, Access::ALL).expect("room for a region");
        Self {
            number,
            long,
            nic,
            pd,
            cq,
            results,
            qpn: Qpn::new(0),
            conn: None,
            memory: None,
            connections: 0,
            plan: VecDeque::new(),
            resume_at: None,
            outstanding: VecDeque::new(),
            posted: 0,
            completed: 0,
            unknown: 0,
            errors: Vec::new(),
            wrong: None,
        }
    }

    /// Leaves the current connection, if any, and makes another one.
    pub(super) fn connect(&mut self, now: Nanos) {
        if self.connections > 0 {
            // The other end is not notified.
            _ = self.nic.destroy_qp(self.qpn);
        }
        self.connections += 1;
        if self.connections > MAX_CONNECTIONS {
            self.wrong = Some(format!(
                "client {} exceeds its number of connections, which failed with {:?}",
                self.number, self.errors
            ));
            return;
        }
        self.unknown += self.outstanding.drain(..).count() as u64;
        self.memory = None;
        self.resume_at = Some(now + CONNECT_TIMEOUT);
        let (plans, ack_timeout) =
            if self.long { (LONG_PLANS, LONG_ACK_TIMEOUT) } else { (PLANS, ACK_TIMEOUT) };
        self.plan = plans[self.number].iter().copied().collect();
        self.qpn = queue_pair(&mut self.nic, self.pd, self.cq);
        let param = ConnParam { retry_count: RETRY_COUNT, ack_timeout, ..ConnParam::default() };
        let service = service_id_of(PortSpace::Tcp, PORT);
        self.conn = self.nic.connect(self.qpn, address(0), service, param, now).ok();
    }

    /// Returns whether the whole plan is done.
    pub(super) fn is_done(&self) -> bool {
        self.memory.is_some() && self.plan.is_empty() && self.outstanding.is_empty()
    }

    /// Adds a READ of the shared word to the plan.
    pub(super) fn read_again(&mut self) {
        self.plan.push_back(Step::Read);
    }

    /// Handles all events after a frame or a timer, and posts operations.
    pub(super) fn run(&mut self, history: &mut History, now: Nanos) {
        while let Some(event) = self.nic.poll_cm_event() {
            if Some(event.conn()) != self.conn {
                continue;
            }
            if let CmEvent::Replied { reply, .. } = &event {
                self.memory = Memory::from_bytes(&reply.private_data);
                self.resume_at = None;
            } else if event.is_last() {
                self.errors.push(format!("{event:?}"));
                self.connect(now);
            }
        }
        while let Some(completion) = self.nic.poll_cq(self.cq) {
            if completion.qpn != self.qpn {
                continue;
            }
            if completion.status != Status::Success {
                self.errors.push(format!("{completion:?}"));
                self.connect(now);
                continue;
            }
            match self.outstanding.pop_front() {
                Some(op) if op.id == completion.id => {
                    let result = &self.nic.bytes(self.results.0)[Self::slot(op.id)..];
                    let fetched = u64::from_le_bytes(*result.first_chunk().expect("8 bytes"));
                    history.complete(op.at, op.number, if op.fetches { fetched } else { 0 });
                    self.completed += 1;
                }
                other => self.wrong = Some(format!("client {}: {completion:?} for {other:?}", self.number)),
            }
        }
        while self.nic.poll_event().is_some() {}
        if self.memory.is_none() && self.resume_at.is_some_and(|at| at <= now) {
            self.connect(now);
        }
        self.post_all(history, now);
    }

    /// Returns the offset of an operation's result in the result buffer, in bytes.
    const fn slot(id: u64) -> usize {
        (id % 8) as usize * 8
    }

    fn post_all(&mut self, history: &mut History, now: Nanos) {
        let Some(memory) = self.memory else { return };
        while self.outstanding.len() < OUTSTANDING
            && self.resume_at.is_none_or(|at| at <= now)
            && let Some(step) = self.plan.front().copied()
        {
            if step == Step::Pause && !self.outstanding.is_empty() {
                return;
            }
            self.plan.pop_front();
            // No timer is due any more.
            self.resume_at = (step == Step::Pause).then(|| now + PAUSE);
            if step != Step::Pause {
                self.post(step, memory, history);
            }
        }
    }

    fn post(&mut self, step: Step, memory: Memory, history: &mut History) {
        let is_own = matches!(step, Step::Own | Step::LongOwn);
        let word = if is_own { 1 + self.number } else { SHARED };
        let at = (memory.incarnation, word);
        let remote = Remote { va: VA + word as u64 * STRIDE, rkey: memory.rkey };
        let newest = history.newest(at);
        let id = self.posted;
        let add = 1 << (id % u64::from(NUMBER));
        let (action, operation, data) = match step {
            Step::Own | Step::Add => (Action::FetchAdd(add), Operation::FetchAdd { at: remote, add }, None),
            Step::Swap => {
                let (compare, swap) = (newest, history.fresh(memory.incarnation));
                let operation = Operation::CompareSwap { at: remote, compare, swap };
                (Action::CompareSwap { compare, swap }, operation, None)
            }
            Step::Write => {
                let value = history.fresh(memory.incarnation);
                (Action::Write(value), Operation::Write(remote), Some(value.to_le_bytes().to_vec()))
            }
            Step::Long | Step::LongOwn => {
                let value = history.fresh(memory.incarnation);
                let mut data = vec![0; PADDING as usize + 8];
                let (at, from) =
                    if is_own { (remote.va, 0) } else { (remote.va - PADDING, PADDING as usize) };
                data[from..from + 8].copy_from_slice(&value.to_le_bytes());
                let operation = Operation::Write(Remote { va: at, ..remote });
                (Action::Write(value), operation, Some(data))
            }
            Step::Read | Step::Pause => (Action::Read, Operation::Read(remote), None),
        };
        let results = Sge { mr: self.results.1, va: RESULTS_VA + Self::slot(id) as u64, len: 8 };
        let fetches = data.is_none();
        let data = data.map_or(Data::Memory(results), Data::Inline);
        let connection = self.number as u32 * 16 + self.connections;
        let number = history.post(at, connection, action);
        self.posted += 1;
        if let Err(error) = self.nic.post_send(self.qpn, SendRequest::new(id, operation, data)) {
            self.wrong = Some(format!("client {}: cannot post {step:?}: {error}", self.number));
        }
        self.outstanding.push_back(Outstanding { id, at, number, fetches });
    }
}
