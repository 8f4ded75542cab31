//! A client's end of a connection: its outstanding requests, and the results that it expects.

use super::connect::{Kind, Memory, kind, message};
use super::history::{History, Recorded};
use super::linear::Action;
use super::plan::{Guess, PlannedOp};
use super::{Config, STARVED, Verb, fill, unique};
use core::fmt::Debug;
use rnic::cm::Conn;
use rnic::{
    Buffer, Completion, CompletionOpcode, Data, Mr, Operation, Remote, Rnic, SendRequest, Sge, Status,
};
use rocev2::Qpn;
use std::collections::VecDeque;
use switch::{Nanos, Rng};

/// Virtual address of the landing zone of fetched data
pub(super) const LANDING_VA: u64 = 0x3000_0000_0000;

/// State of the host that an end uses.
pub(super) struct Context<'a> {
    pub(super) nic: &'a mut Rnic,
    pub(super) history: &'a mut History,
    pub(super) config: &'a Config,
    /// Number of the client
    pub(super) client: usize,
    pub(super) now: Nanos,
}

/// Purpose of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Words: their recorded operations, the expected value of a `CmpSwap`, and the number of bytes fetched
    /// before them
    Words(Verb, Vec<Recorded>, Option<u64>, usize),
    /// WRITE to memory of its own: offset and data
    Write(usize, Vec<u8>),
    /// READ of memory of its own: offset and expected data
    Read(usize, Vec<u8>),
    /// A message; with its data if it is written to the beginning of its own memory
    Message(Option<Vec<u8>>),
    /// Attempt to take the lock of a critical section
    Lock(Recorded),
    /// READ of the page of a critical section
    Page,
    /// WRITE of the page of a critical section
    WritePage,
    /// Release of the lock of a critical section, by `CmpSwap` from this value, or by WRITE
    Unlock(Recorded, Option<u64>),
}

impl Purpose {
    const fn completed(&self) -> CompletionOpcode {
        match self {
            Self::Words(Verb::CompareSwap, ..) | Self::Lock(_) | Self::Unlock(_, Some(_)) => {
                CompletionOpcode::CompareSwap
            }
            Self::Words(Verb::FetchAdd, ..) => CompletionOpcode::FetchAdd,
            Self::Words(Verb::ReadWord | Verb::ReadWords, ..) | Self::Read(..) | Self::Page => {
                CompletionOpcode::Read
            }
            Self::Message(None) => CompletionOpcode::Send,
            Self::Words(..) | Self::Write(..) | Self::Message(_) | Self::WritePage | Self::Unlock(..) => {
                CompletionOpcode::Write
            }
        }
    }
}

impl Purpose {
    /// Returns the offset and the data of a write to its own memory.
    fn written(&self) -> Option<(usize, &[u8])> {
        match self {
            Self::Write(at, bytes) => Some((*at, bytes)),
            Self::Message(Some(bytes)) => Some((0, bytes)),
            _ => None,
        }
    }
}

/// A request to be posted.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) operation: Operation,
    /// Data to send; empty if the request fetches
    pub(super) data: Vec<u8>,
    /// Bytes to fetch
    pub(super) fetch: usize,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) purpose: Purpose,
}

/// A critical section in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) page: usize,
    /// Value of the lock while this section holds it
    pub(super) id: u64,
    /// Remaining attempts to take the lock
    pub(super) tries: u32,
}

/// A request that has not completed.
#[derive(Debug)]
struct Pending {
    id: u64,
    posted: Nanos,
    purpose: Purpose,
    slot: Option<u32>,
    fetch: usize,
    signaled: bool,
}

/// A client's end of a connection.
#[derive(Debug)]
pub(super) struct End {
    /// Serial number of this connection, which is never reused
    pub(super) conn_id: u32,
    pub(super) server: usize,
    /// Number of the server's memory at the time of the connection set-up
    pub(super) memory_id: usize,
    pub(super) qpn: Qpn,
    /// Announced memory of the server, once connected
    pub(super) memory: Option<Memory>,
    /// Handle, if the communication manager sets up the connection
    pub(super) conn: Option<Conn>,
    pub(super) broken: bool,
    landing: (Buffer, Mr),
    slot_size: usize,
    free: Vec<u32>,
    pending: VecDeque<Pending>,
    posted: u64,
    /// First request whose latency is measured: the first one posted after a completion
    first_measured: u64,
    /// Requests posted since the last signaled one
    unsignaled: u32,
    /// Its own memory after the execution of everything posted
    model: Vec<u8>,
    confirmed: Vec<u8>,
    /// Number of messages posted, and of those completed
    sent: [u64; 2],
    /// Latest known value of each word
    pub(super) latest: Vec<u64>,
    pub(super) rng: Rng,
    pub(super) section: Option<Section>,
}

impl End {
    /// Creates an end with its queue pair and landing zone.
    pub(super) fn new(config: &Config, conn_id: u32, server: usize, qpn: Qpn, landing: (Buffer, Mr)) -> Self {
        let own = vec![0; config.max_size as usize];
        Self {
            conn_id,
            server,
            memory_id: server,
            qpn,
            memory: None,
            conn: None,
            broken: false,
            landing,
            slot_size: Self::slot_size(config),
            free: (0..Self::slots(config)).rev().collect(),
            pending: VecDeque::new(),
            posted: 0,
            first_measured: u64::MAX,
            unsignaled: 0,
            model: own.clone(),
            confirmed: own,
            sent: [0; 2],
            latest: vec![0; config.words as usize],
            rng: Rng::stream(config.seed, 0x656e_6400 | u64::from(conn_id) << 32),
            section: None,
        }
    }

    /// Returns the number of outstanding requests that fetch data at most.
    pub(super) const fn slots(config: &Config) -> u32 {
        config.depth + super::connect::SECTION_REQUESTS
    }

    /// Returns the largest number of bytes that a request fetches.
    pub(super) fn slot_size(config: &Config) -> usize {
        config.table_size().max(config.page_size as usize).max(config.max_size as usize).max(8)
    }

    /// Returns the number of outstanding requests.
    pub(super) fn outstanding(&self) -> usize {
        self.pending.len()
    }

    fn remote(base: Remote, bytes: usize) -> Remote {
        Remote { va: base.va + bytes as u64, ..base }
    }

    /// Returns the address of a word, or of a lock.
    pub(super) fn word_at(&self, word: usize) -> Remote {
        self.memory.map_or(Remote { va: 0, rkey: 0 }, |memory| Self::remote(memory.table, word * 8))
    }

    /// Returns the address of a page.
    pub(super) fn page_at(&self, page: usize, config: &Config) -> Remote {
        let size = config.page_size as usize;
        self.memory.map_or(Remote { va: 0, rkey: 0 }, |memory| Self::remote(memory.pages, page * size))
    }

    /// Posts an operation.
    pub(super) fn post(&mut self, op: &PlannedOp, context: &mut Context<'_>) {
        let request = match op.verb {
            Verb::Write | Verb::Read | Verb::Send => self.own_request(op, context.config),
            _ => self.words_request(op, context.history, context.config),
        };
        let signaled = op.signaled || self.unsignaled + 1 >= context.config.depth;
        self.submit(Request { signaled, ..request }, context);
    }

    fn own_request(&mut self, op: &PlannedOp, config: &Config) -> Request {
        let (mut at, mut len) = (op.at as usize, op.len as usize);
        let base = self.memory.map_or(Remote { va: 0, rkey: 0 }, |memory| memory.own);
        let address = Self::remote(base, at);
        let (operation, data, fetch, purpose) = match op.verb {
            Verb::Write => {
                let bytes = fill(unique(self.conn_id, self.posted), len);
                (Operation::Write(address), bytes.clone(), 0, Purpose::Write(at, bytes))
            }
            Verb::Read => {
                let expected = self.model[at..at + len].to_vec();
                (Operation::Read(address), Vec::new(), len, Purpose::Read(at, expected))
            }
            _ => {
                let number = self.sent[0];
                self.sent[0] += 1;
                let bytes = message(self.conn_id, number, config.max_size);
                (at, len) = (0, bytes.len());
                let (operation, written) = match kind(self.conn_id, number) {
                    Kind::Send => (Operation::Send, None),
                    Kind::SendImm => (Operation::SendImm(number as u32), None),
                    Kind::WriteImm => (Operation::WriteImm(base, number as u32), Some(bytes.clone())),
                };
                (operation, bytes, 0, Purpose::Message(written))
            }
        };
        let written = purpose.written();
        if let Some((at, bytes)) = written {
            self.model[at..at + bytes.len()].copy_from_slice(bytes);
        }
        // A WRITE to memory that an outstanding READ reads is fenced: the order of the two is undefined
        // otherwise.
        let overlaps = |pending: &Pending| match &pending.purpose {
            Purpose::Read(from, bytes) => *from < at + len && at < *from + bytes.len(),
            _ => false,
        };
        let fence = op.fence || (written.is_some() && self.pending.iter().any(overlaps));
        Request { operation, data, fetch, signaled: true, fence, purpose }
    }

    fn words_request(&mut self, op: &PlannedOp, history: &mut History, config: &Config) -> Request {
        let (first, len) = (op.at as usize, op.len as usize);
        let mut at = self.word_at(first);
        let (mut lead_bytes, mut fetch) = (0, len * 8);
        let (conn_id, server, fence) = (self.conn_id, self.memory_id, op.fence);
        let (mut data, mut expected) = (Vec::new(), None);
        let (operation, recorded) = match op.verb {
            Verb::CompareSwap => {
                let swap = history.unique_value();
                let compare = match op.guess {
                    Guess::Own => self.latest[first],
                    Guess::Newest => history.newest(server, first),
                    Guess::Wrong => history.unique_value(),
                };
                // The next operation may build on the new value before it is known whether this one succeeds.
                if self.rng.below(2) == 0 {
                    self.latest[first] = swap;
                }
                expected = Some(compare);
                let action = Action::CompareSwap { compare, swap };
                let recorded = vec![history.post(server, first, conn_id, fence, action)];
                (Operation::CompareSwap { at, compare, swap }, recorded)
            }
            Verb::FetchAdd => {
                let add = if op.adds { history.add(server, first, config.may_fail) } else { 0 };
                let recorded = vec![history.post(server, first, conn_id, fence, Action::FetchAdd(add))];
                (Operation::FetchAdd { at, add }, recorded)
            }
            Verb::WriteWord | Verb::WriteWords => {
                let write = |word: usize| {
                    let value = history.unique_value();
                    data.extend(value.to_le_bytes());
                    self.latest[word] = value;
                    history.post(server, word, conn_id, fence, Action::Write(value))
                };
                (Operation::Write(at), (first..first + len).map(write).collect())
            }
            _ => {
                if op.verb == Verb::ReadWords && first > 0 && fetch + 7 <= config.mtu.bytes() {
                    // A READ may begin within the preceding word. Of a word that spans two packets, each part
                    // may be read at another time.
                    lead_bytes = self.rng.below(8) as usize;
                    (at.va, fetch) = (at.va - lead_bytes as u64, fetch + lead_bytes);
                }
                let read = |word| history.post(server, word, conn_id, fence, Action::Read);
                (Operation::Read(at), (first..first + len).map(read).collect())
            }
        };
        let fetch = if data.is_empty() { fetch } else { 0 };
        let purpose = Purpose::Words(op.verb, recorded, expected, lead_bytes);
        Request { operation, data, fetch, signaled: true, fence, purpose }
    }

    /// Posts a request.
    pub(super) fn submit(&mut self, request: Request, context: &mut Context<'_>) {
        let Request { operation, data, fetch, signaled, fence, purpose } = request;
        let slot = if fetch > 0 { self.free.pop() } else { None };
        let data = match slot {
            Some(slot) => {
                let va = LANDING_VA + u64::from(slot) * self.slot_size as u64;
                Data::Memory(Sge { mr: self.landing.1, va, len: fetch as u32 })
            }
            None if data.is_empty() => Data::None,
            None => Data::Inline(data),
        };
        let id = self.posted;
        let posted = SendRequest { signaled, fence, ..SendRequest::new(id, operation, data) };
        if let Err(error) = context.nic.post_send(self.qpn, posted) {
            context
                .history
                .fail(|| format!("connection {}: {purpose:?} cannot be posted: {error}", self.conn_id));
            return;
        }
        self.posted += 1;
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        self.pending.push_back(Pending { id, posted: context.now, purpose, slot, fetch, signaled });
    }

    /// Handles a completion.
    pub(super) fn on_completion(&mut self, completion: &Completion, context: &mut Context<'_>) {
        if self.broken {
            return;
        }
        if completion.status != Status::Success {
            self.fail(completion, Some(completion.status), context);
            return;
        }
        // A completion also completes the unsignaled requests before it.
        loop {
            let Some(pending) = self.pending.pop_front() else {
                context.history.fail(|| {
                    format!("connection {}: {completion:?}: no request is outstanding", self.conn_id)
                });
                return;
            };
            let last = pending.id == completion.id;
            let fits =
                (completion.opcode, completion.len as usize) == (pending.purpose.completed(), pending.fetch);
            if (last && !fits) || (!last && pending.signaled) {
                context.history.fail(|| {
                    format!(
                        "connection {}: {completion:?} does not match the oldest request {pending:?}",
                        self.conn_id
                    )
                });
                return;
            }
            self.finish(pending, context);
            if last {
                return;
            }
        }
    }

    /// Marks the connection as broken, because of a completion with this status, or of an event of the
    /// communication manager if there is none.
    pub(super) fn fail(&mut self, cause: &dyn Debug, status: Option<Status>, context: &mut Context<'_>) {
        self.broken = true;
        context.history.check_needed = true;
        context.history.counts.broken += 1;
        let explained = context.config.may_fail && self.is_explained(status, context);
        if !explained {
            context.history.fail(|| {
                format!(
                    "connection {}: broken by {cause:?}: nothing that happened explains this",
                    self.conn_id
                )
            });
        }
    }

    /// Returns whether a fault explains the break.
    fn is_explained(&self, status: Option<Status>, context: &Context<'_>) -> bool {
        match status {
            None | Some(Status::RetryExceeded) => {
                let faults_affecting =
                    context.history.faults_affecting(context.client, self.server, context.now);
                context.config.costs_retries() || faults_affecting > 0
            }
            Some(Status::RemoteInvalidRequest) => context.history.is_revoked(self.conn_id, context.config),
            Some(_) => false,
        }
    }

    /// Returns whether an operation has completed on this connection.
    pub(super) fn has_completed_any(&self) -> bool {
        self.first_measured != u64::MAX
    }

    fn finish(&mut self, pending: Pending, context: &mut Context<'_>) {
        if self.first_measured == u64::MAX {
            self.first_measured = self.posted;
        }
        // The first requests of a connection may wait for the neighbour's address.
        if pending.id >= self.first_measured && (self.conn_id != STARVED || context.config.starve.is_none()) {
            let longest = &mut context.history.counts.longest_wait;
            *longest = (*longest).max(context.now.since(pending.posted));
        }
        let fetched = pending.slot.map(|slot| {
            self.free.push(slot);
            context.nic.bytes(self.landing.0)[slot as usize * self.slot_size..][..pending.fetch].to_vec()
        });
        let bytes = fetched.unwrap_or_default();
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let history = &mut *context.history;
        match pending.purpose {
            Purpose::Words(verb, recorded, compare, lead_bytes) => {
                history.counts.operations[verb as usize] += 1;
                let swapped = compare.is_some_and(|compare| compare == word(0));
                history.counts.swapped += u64::from(swapped);
                for (number, recorded) in recorded.into_iter().enumerate() {
                    history.complete(recorded, word(lead_bytes + number * 8));
                    if let Some(latest) = self.latest.get_mut(recorded.word).filter(|_| !bytes.is_empty()) {
                        *latest = history.newest(recorded.memory, recorded.word);
                    }
                }
            }
            Purpose::Write(at, written) => {
                history.counts.operations[Verb::Write as usize] += 1;
                self.confirmed[at..at + written.len()].copy_from_slice(&written);
            }
            Purpose::Read(at, expected) => {
                history.counts.operations[Verb::Read as usize] += 1;
                if let Some(byte) = bytes.iter().zip(&expected).position(|(is, was)| is != was) {
                    let (conn_id, len) = (self.conn_id, expected.len());
                    history.fail(|| {
                        format!(
                            "connection {conn_id}: byte {byte} of a READ of {len} own bytes at {at} is wrong"
                        )
                    });
                }
            }
            Purpose::Message(written) => {
                history.counts.operations[Verb::Send as usize] += 1;
                self.sent[1] += 1;
                if let Some(bytes) = written {
                    self.confirmed[..bytes.len()].copy_from_slice(&bytes);
                }
            }
            Purpose::Lock(recorded) => {
                history.complete(recorded, word(0));
                self.on_lock(word(0), context);
            }
            Purpose::Page => self.on_page(&bytes, context),
            Purpose::WritePage => {}
            Purpose::Unlock(recorded, expected) => {
                history.complete(recorded, word(0));
                let conn_id = self.conn_id;
                if let Some(id) = expected.filter(|id| *id != word(0)) {
                    let found = word(0);
                    history.fail(|| {
                        format!(
                            "connection {conn_id}: a release of the lock held by {id:#x} found {found:#x}"
                        )
                    });
                }
            }
        }
    }

    /// Checks its own memory at the end, and the number of messages that the server received.
    pub(super) fn check(&self, own: &[u8], messages: u64) -> Result<(), String> {
        let [sent, acknowledged] = self.sent;
        let expected = if self.broken { acknowledged..=sent } else { sent..=sent };
        if !expected.contains(&messages) {
            return Err(format!(
                "connection {}: {messages} of {sent} messages arrived, {acknowledged} were acknowledged",
                self.conn_id
            ));
        }
        // Requests that were outstanding when the connection broke may or may not have been executed.
        let maybe = |byte: usize, is: u8| {
            let mut written = self.pending.iter().filter_map(|pending| pending.purpose.written());
            written.any(|(at, bytes)| byte.checked_sub(at).and_then(|byte| bytes.get(byte)) == Some(&is))
        };
        let wrong = own
            .iter()
            .enumerate()
            .find(|(byte, is)| **is != self.confirmed[*byte] && !(self.broken && maybe(*byte, **is)));
        wrong.map_or(Ok(()), |(byte, _)| {
            Err(format!(
                "connection {}: its own memory differs from the model from byte {byte} on",
                self.conn_id
            ))
        })
    }
}
