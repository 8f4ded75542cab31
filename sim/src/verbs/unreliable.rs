//! One end of an unreliable connection (UC). Nothing is promised of its messages but that each comes whole or not at
//! all, once at most, and in order.
//!
//! Messages are numbered, and carry their number as immediate data. WRITEs without it come between them, and are seen
//! by what they leave to those that have it: nothing.

use super::end::{PATTERN_VA, PeerMemory, TARGET_VA};
use super::stream::{Op, Stream};
use super::{Verb, Verbs};
use rnic::{Buffer, Completed, Completion, Data, Mr, Operation, Remote, Rnic, SendRequest, Sge, Status};
use rocev2::Qpn;

/// One end of an unreliable connection.
#[derive(Debug)]
pub(super) struct Unreliable {
    pub(super) qpn: Qpn,
    pattern: Mr,
    /// What the other side writes to
    target: Buffer,
    peer: Option<PeerMemory>,
    /// What it does, and what the other side does
    own: Stream,
    incoming: Stream,
    operations: u32,
    depth: u32,
    posted: u32,
    sent: u32,
    /// The number of the message that would come if none were lost
    next: u32,
    /// The queue pair, or its host, has failed
    pub(super) has_failed: bool,
    pub(super) counted: bool,
}

impl Unreliable {
    pub(super) fn new(verbs: &Verbs, qpn: Qpn, seeds: [u64; 2], pattern: Mr, target: Buffer) -> Self {
        let [own, incoming] = seeds.map(|seed| Stream::new(verbs, seed));
        Self {
            qpn,
            pattern,
            target,
            peer: None,
            own,
            incoming,
            operations: verbs.operations,
            depth: verbs.depth,
            posted: 0,
            sent: 0,
            next: 0,
            has_failed: false,
            counted: false,
        }
    }

    pub(super) fn connect(&mut self, peer: PeerMemory) {
        self.peer = Some(peer);
    }

    /// Whether nothing is left to be sent. What is to come may never come.
    pub(super) fn is_done(&self) -> bool {
        self.has_failed || self.sent == self.operations
    }

    /// Posts as much as may be outstanding.
    pub(super) fn post(&mut self, nic: &mut Rnic, pattern: &[u8]) -> Result<(), String> {
        let Some(peer) = self.peer else { return Ok(()) };
        while self.posted - self.sent < self.depth && !self.has_failed {
            let (Some(op), number) = (self.own.next(), self.posted) else { return Ok(()) };
            let remote = Remote { va: TARGET_VA + u64::from(op.at), rkey: peer.target.0 };
            let operation = match op.verb {
                Verb::Write => Operation::Write(remote),
                Verb::WriteImm => Operation::WriteImm(remote, number),
                _ => Operation::SendImm(number),
            };
            let data = if op.inline {
                Data::Inline(bytes_of(&op, pattern).to_vec())
            } else {
                let va = PATTERN_VA + u64::from(op.source);
                Data::Memory(Sge { mr: self.pattern, va, len: op.len })
            };
            let request =
                SendRequest { solicited: op.solicited, ..SendRequest::new(number.into(), operation, data) };
            nic.post_send(self.qpn, request).map_err(|error| format!("{op:?} cannot be posted: {error}"))?;
            self.posted += 1;
        }
        Ok(())
    }

    /// A request has left.
    pub(super) fn on_sent(&mut self, completion: &Completion) -> Result<(), String> {
        match completion.status {
            Status::Success if completion.id == u64::from(self.sent) => self.sent += 1,
            Status::Success => return Err(format!("{completion:?}, but {} comes first", self.sent)),
            // Nobody said where the other side is: that was lost as well, each time.
            Status::RetryExceeded | Status::Flushed => self.has_failed = true,
            _ => return Err(format!("{completion:?}: nothing else may fail here")),
        }
        Ok(())
    }

    /// A message has come, into this memory.
    pub(super) fn on_received(
        &mut self,
        completion: &Completion,
        bytes: &[u8],
        nic: &Rnic,
        pattern: &[u8],
    ) -> Result<(), String> {
        if completion.status == Status::Flushed {
            self.has_failed = true;
            return Ok(());
        }
        let Some(ahead) = completion.immediate.unwrap_or(u32::MAX).checked_sub(self.next) else {
            return Err(format!("{completion:?} came twice, or after what followed it"));
        };
        // What is in between was lost.
        let Some(op) = self.incoming.nth(ahead as usize) else {
            return Err(format!("{completion:?}: nobody sent this"));
        };
        self.next += ahead + 1;
        let is_write = op.verb == Verb::WriteImm;
        let of = if is_write { Completed::RecvWriteImm } else { Completed::Recv };
        let is = (completion.status, completion.of, completion.len, completion.solicited);
        if op.verb == Verb::Write || is != (Status::Success, of, op.len, op.solicited) {
            return Err(format!("{completion:?} for {op:?}"));
        }
        let there = if is_write { &nic.bytes(self.target)[op.at as usize..] } else { bytes };
        if there[..op.len as usize] != *bytes_of(&op, pattern) {
            return Err(format!("{op:?} brought something else than was sent"));
        }
        Ok(())
    }
}

fn bytes_of<'a>(op: &Op, pattern: &'a [u8]) -> &'a [u8] {
    &pattern[op.source as usize..][..op.len as usize]
}
