//! One end of a reliable connection: its outstanding requests, and the messages that it expects.

use super::stream::{Op, Stream};
use super::workload::{Shared, Verb, Verbs};
use crate::words::linear::{self, Action, Done};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use rnic::{
    Buffer, Completion, CompletionOpcode, Data, Mr, Operation, QpError, Remote, Rnic, SendRequest, Sge,
    Status,
};
use rocev2::Qpn;
use std::collections::VecDeque;
use std::sync::Arc;

/// Virtual addresses of the regions that a host registers
pub(super) const PATTERN_VA: u64 = 0x1_0000_0000;
pub(super) const TARGET_VA: u64 = 0x2_0000_0000;
pub(crate) const WORDS_VA: u64 = 0x3_0000_0000;
pub(super) const LANDING_VA: u64 = 0x4_0000_0000;
pub(super) const RECEIVE_VA: u64 = 0x5_0000_0000;

/// Keys of the other end's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerMemory {
    pub(super) target: Mr,
    pub(super) words: Mr,
}

/// Parameters of one end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) number: u64,
    pub(super) peer_host: usize,
    /// Seed of this end's operations, and of the other end's
    pub(super) seeds: [u64; 2],
    /// Set when either end has failed
    pub(super) broken: Arc<AtomicBool>,
    /// Set when this end has finished
    pub(super) finished: Arc<AtomicBool>,
    /// After its own operations are posted, this end reads until this is set
    pub(super) reads_until: Option<Arc<AtomicBool>>,
}

/// An atomic operation on a word of the other end's host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Atomic {
    pub(super) word: u32,
    pub(super) op: linear::Op,
}

/// A request that has not completed.
#[derive(Debug)]
struct Pending {
    id: u64,
    op: Op,
    /// Slot of the landing zone for the fetched data
    slot: Option<u32>,
    /// Data that a READ has to return
    expected: Vec<u8>,
    /// Index in the atomics of the host
    atomic: Option<usize>,
}

/// Memory of an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pub(super) pattern: Mr,
    /// Memory that the other end writes to
    pub(super) target: (Buffer, Mr),
    pub(super) landing: (Buffer, Mr),
}

/// One end of a reliable connection.
#[derive(Debug)]
pub(super) struct End {
    pub(super) qpn: Qpn,
    pub(super) peer_host: usize,
    /// The connection's number, the same at both ends
    pub(super) connection: u64,
    memory: Memory,
    peer: Option<PeerMemory>,
    /// Operations of this end
    own: Stream,
    next: Option<Op>,
    /// Operations of the other end
    incoming: Stream,
    expected: Option<Op>,
    /// Contents of the other end's target after the execution of everything posted
    model: Vec<u8>,
    pending: VecDeque<Pending>,
    posted: u64,
    free_slots: Vec<u32>,
    slot_size: u32,
    depth: usize,
    /// Latest known value of each word
    latest: Vec<u64>,
    /// Set when either end has failed; from then on this end expects nothing particular
    broken: Arc<AtomicBool>,
    finished: Arc<AtomicBool>,
    reads_until: Option<Arc<AtomicBool>>,
    max_size: u32,
    /// First error of its queue pair
    pub(super) failed: Option<Status>,
    pub(super) counted: bool,
    pub(super) totals: [u64; Verb::ALL.len()],
}

/// State of the host that an end uses.
pub(super) struct Context<'a> {
    pub(super) nic: &'a mut Rnic,
    pub(super) shared: &'a Shared,
    pub(super) pattern: &'a [u8],
    /// Atomics on the words of the other end's host
    pub(super) atomics: &'a mut Vec<Atomic>,
    pub(super) may_fail: bool,
}

fn next_message(stream: &mut Stream) -> Option<Op> {
    stream.find(|op| op.verb.takes_receive())
}

impl End {
    pub(super) fn new(verbs: &Verbs, qpn: Qpn, memory: Memory, connection: Connection) -> Self {
        let [mut own, mut incoming] = connection.seeds.map(|seed| Stream::new(verbs, seed));
        let (next, expected) = (own.next(), next_message(&mut incoming));
        Self {
            qpn,
            peer_host: connection.peer_host,
            connection: connection.number,
            memory,
            peer: None,
            own,
            next,
            incoming,
            expected,
            model: vec![0; verbs.max_size as usize],
            pending: VecDeque::new(),
            posted: 0,
            free_slots: (0..verbs.depth).rev().collect(),
            slot_size: verbs.max_size.max(8),
            depth: verbs.depth as usize,
            latest: vec![0; verbs.words as usize],
            broken: connection.broken,
            finished: connection.finished,
            reads_until: connection.reads_until,
            max_size: verbs.max_size,
            failed: None,
            counted: false,
            totals: [0; Verb::ALL.len()],
        }
    }

    pub(super) fn connect(&mut self, peer: PeerMemory) {
        self.peer = Some(peer);
    }

    /// Returns whether either end has failed.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Relaxed)
    }

    pub(super) fn set_broken(&self) {
        self.broken.store(true, Relaxed);
    }

    /// Returns whether this end has finished: nothing is left to send or to receive, or the connection has
    /// failed.
    pub(super) fn is_done(&self) -> bool {
        let is_idle = self.next.is_none() && self.pending.is_empty() && self.expected.is_none();
        self.is_broken() || (is_idle && !self.reads_in_background())
    }

    /// Marks this end as counted and finished; the other end sees that and stops its background READs.
    pub(super) fn mark_finished(&mut self) {
        self.counted = true;
        self.finished.store(true, Relaxed);
    }

    /// Returns whether this end reads in the background.
    fn reads_in_background(&self) -> bool {
        self.reads_until.as_ref().is_some_and(|finished| !finished.load(Relaxed))
    }

    /// Posts requests up to the depth.
    pub(super) fn post(&mut self, context: &mut Context<'_>) -> Result<(), String> {
        while self.pending.len() < self.depth && !self.is_broken() {
            let background = self.reads_in_background().then(|| Op::read_all(self.max_size));
            let (Some(op), Some(peer)) = (self.next.or(background), self.peer) else { return Ok(()) };
            match self.post_one(op, peer, context) {
                Ok(()) => self.next = self.own.next(),
                // The queue pair is in the error state; error completions follow.
                Err(QpError::State(_)) if context.may_fail => return Ok(()),
                Err(error) => return Err(format!("{op:?} cannot be posted: {error}")),
            }
        }
        Ok(())
    }

    fn post_one(&mut self, op: Op, peer: PeerMemory, context: &mut Context<'_>) -> Result<(), QpError> {
        let data = &context.pattern[op.source as usize..][..op.len as usize];
        let remote = Remote { va: TARGET_VA + u64::from(op.at), rkey: peer.target.0 };
        let word = Remote { va: WORDS_VA + u64::from(op.word) * 8, rkey: peer.words.0 };
        let compare = if op.expects_latest { self.latest[op.word as usize] } else { op.add };
        let swap = compare.wrapping_add(op.add);
        let operation = match op.verb {
            Verb::Write => Operation::Write(remote),
            Verb::WriteImm => Operation::WriteImm(remote, op.immediate),
            Verb::Send => Operation::Send,
            Verb::SendImm => Operation::SendImm(op.immediate),
            Verb::Read => Operation::Read(remote),
            Verb::CompareSwap => Operation::CompareSwap { at: word, compare, swap },
            Verb::FetchAdd => Operation::FetchAdd { at: word, add: op.add },
        };
        let fetches = matches!(op.verb, Verb::Read | Verb::CompareSwap | Verb::FetchAdd);
        let slot = if fetches { self.free_slots.last().copied() } else { None };
        let local = if let Some(slot) = slot {
            let len = if op.verb == Verb::Read { op.len } else { 8 };
            let va = LANDING_VA + u64::from(slot) * u64::from(self.slot_size);
            Data::Memory(Sge { mr: self.memory.landing.1, va, len })
        } else if op.inline {
            Data::Inline(data.to_vec())
        } else {
            let va = PATTERN_VA + u64::from(op.source);
            Data::Memory(Sge { mr: self.memory.pattern, va, len: op.len })
        };
        let request = SendRequest {
            signaled: op.signaled,
            solicited: op.solicited,
            fence: op.fence,
            ..SendRequest::new(self.posted, operation, local)
        };
        context.nic.post_send(self.qpn, request)?;
        if slot.is_some() {
            self.free_slots.pop();
        }
        let range = op.at as usize..(op.at + op.len) as usize;
        let mut pending = Pending { id: self.posted, op, slot, expected: Vec::new(), atomic: None };
        match op.verb {
            Verb::Write | Verb::WriteImm => self.model[range].copy_from_slice(data),
            Verb::Read => pending.expected = self.model[range].to_vec(),
            Verb::CompareSwap | Verb::FetchAdd => {
                pending.atomic = Some(context.atomics.len());
                let (connection, invoked) = (self.connection as u32, context.shared.tick());
                let is_swap = op.verb == Verb::CompareSwap;
                let action =
                    if is_swap { Action::CompareSwap { compare, swap } } else { Action::FetchAdd(op.add) };
                let (done, until, fence) = (None, u64::MAX, op.fence);
                let atomic = linear::Op { connection, invoked, done, until, fence, action };
                context.atomics.push(Atomic { word: op.word, op: atomic });
            }
            Verb::Send | Verb::SendImm => {}
        }
        self.pending.push_back(pending);
        self.posted += 1;
        Ok(())
    }

    /// Handles the completion of a request.
    pub(super) fn on_sent(
        &mut self,
        completion: &Completion,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        if completion.status != Status::Success {
            if !context.may_fail {
                return Err(format!("{completion:?}: no operation may fail in this scenario"));
            }
            self.failed.get_or_insert(completion.status);
            self.set_broken();
            return Ok(());
        }
        // A completion also completes the unsignaled requests before it.
        loop {
            let Some(pending) = self.pending.pop_front() else {
                return Err(format!("{completion:?}: no request is outstanding"));
            };
            let last = pending.id == completion.id;
            if !last && pending.op.signaled {
                return Err(format!(
                    "{completion:?}, but {:?} was posted earlier and has not completed",
                    pending.op
                ));
            }
            self.finish(&pending, if last { Some(completion) } else { None }, context)?;
            if last {
                return Ok(());
            }
        }
    }

    fn finish(
        &mut self,
        pending: &Pending,
        completion: Option<&Completion>,
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        let op = &pending.op;
        let (of, len) = match op.verb {
            Verb::Write | Verb::WriteImm => (CompletionOpcode::Write, 0),
            Verb::Send | Verb::SendImm => (CompletionOpcode::Send, 0),
            Verb::Read => (CompletionOpcode::Read, op.len),
            Verb::CompareSwap => (CompletionOpcode::CompareSwap, 8),
            Verb::FetchAdd => (CompletionOpcode::FetchAdd, 8),
        };
        if let Some(completion) = completion
            && (completion.opcode, completion.len) != (of, len)
        {
            return Err(format!("{completion:?} does not match the request {op:?}"));
        }
        self.totals[Verb::ALL.iter().position(|verb| *verb == op.verb).unwrap_or(0)] += 1;
        let Some(slot) = pending.slot else { return Ok(()) };
        let at = slot as usize * self.slot_size as usize;
        let fetched = &context.nic.bytes(self.memory.landing.0)[at..at + len as usize];
        if let Some(atomic) = pending.atomic {
            let value = fetched.first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
            let record = &mut context.atomics[atomic].op;
            record.done = Some(Done { at: context.shared.tick(), fetched: value });
            self.latest[op.word as usize] = record.after(value);
        } else if fetched != pending.expected {
            let at = fetched.iter().zip(&pending.expected).position(|(is, was)| is != was);
            return Err(format!("{op:?} returned other data than memory held, from byte {at:?} on"));
        }
        self.free_slots.push(slot);
        Ok(())
    }

    /// Handles the completion of a receive request; `bytes` is the received message.
    pub(super) fn on_received(
        &mut self,
        completion: &Completion,
        bytes: &[u8],
        context: &mut Context<'_>,
    ) -> Result<(), String> {
        if completion.status != Status::Success {
            if !context.may_fail {
                return Err(format!("{completion:?}: no operation may fail in this scenario"));
            }
            self.failed.get_or_insert(completion.status);
            self.set_broken();
            return Ok(());
        }
        let Some(op) = self.expected else {
            return Err(format!("{completion:?}: the other end sent no further message"));
        };
        self.expected = next_message(&mut self.incoming);
        let sent = &context.pattern[op.source as usize..][..op.len as usize];
        let immediate = (op.verb != Verb::Send).then_some(op.immediate);
        let of =
            if op.verb == Verb::WriteImm { CompletionOpcode::RecvWriteImm } else { CompletionOpcode::Recv };
        if (completion.opcode, completion.len, completion.immediate, completion.solicited)
            != (of, op.len, immediate, op.solicited)
        {
            return Err(format!("{completion:?} does not match the message {op:?}"));
        }
        let is = match op.verb {
            // The target holds the message now: later messages are not executed before this completion is
            // polled.
            Verb::WriteImm => &context.nic.bytes(self.memory.target.0)[op.at as usize..][..op.len as usize],
            _ => &bytes[..op.len as usize],
        };
        if is != sent {
            return Err(format!("{op:?} delivered other data than was sent"));
        }
        Ok(())
    }

    /// Reports a difference between the model and the other end's target at the end of the run.
    pub(super) fn check_target(&self, target: &[u8]) -> Option<String> {
        let at = target.iter().zip(&self.model).position(|(is, was)| is != was)?;
        Some(format!("queue pair {}: the target differs from the model from byte {at} on", self.qpn))
    }

    pub(super) fn target(&self) -> Buffer {
        self.memory.target.0
    }

    pub(super) fn target_mr(&self) -> Mr {
        self.memory.target.1
    }
}
