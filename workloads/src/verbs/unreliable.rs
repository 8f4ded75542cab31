//! One end of an unreliable connection (UC). UC guarantees only that each message arrives as a whole or not
//! at all, at most once, and in order.
//!
//! Messages are numbered, and carry their number as immediate data. WRITEs without immediate data are mixed
//! with them, and are checked indirectly: the messages around them have to be intact.

use super::end::{PATTERN_VA, PeerMemory, TARGET_VA};
use super::stream::{Op, Stream};
use super::workload::{Verb, Verbs};
use rnic::{
    Buffer, Completion, CompletionOpcode, Data, Mr, Operation, Remote, Rnic, SendRequest, Sge, Status,
};
use rocev2::Qpn;

/// One end of an unreliable connection.
#[derive(Debug)]
pub(super) struct Unreliable {
    pub(super) qpn: Qpn,
    pattern: Mr,
    /// Memory that the other end writes to
    target: Buffer,
    peer: Option<PeerMemory>,
    /// Operations of this end, and of the other end
    own: Stream,
    incoming: Stream,
    operations: u32,
    depth: u32,
    posted: u32,
    sent: u32,
    /// Number of the message that arrives next if none is lost
    next: u32,
    /// Whether the queue pair or its host has failed
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

    /// Returns whether nothing is left to be sent. Messages that are still expected may be lost.
    pub(super) fn is_done(&self) -> bool {
        self.has_failed || self.sent == self.operations
    }

    /// Posts requests up to the depth.
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

    /// Handles the completion of a send request.
    pub(super) fn on_sent(&mut self, completion: &Completion) -> Result<(), String> {
        match completion.status {
            Status::Success if completion.id == u64::from(self.sent) => self.sent += 1,
            Status::Success => return Err(format!("{completion:?}, but {} was next", self.sent)),
            // The neighbour's address could not be resolved: each query or reply was lost.
            Status::RetryExceeded | Status::Flushed => self.has_failed = true,
            _ => return Err(format!("{completion:?}: this status is not possible here")),
        }
        Ok(())
    }

    /// Handles the completion of a receive request; `bytes` is the received message.
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
        let Some(missing) = completion.immediate.unwrap_or(u32::MAX).checked_sub(self.next) else {
            return Err(format!("{completion:?} arrived twice, or after a later message"));
        };
        // The messages in between were lost.
        let Some(op) = self.incoming.nth(missing as usize) else {
            return Err(format!("{completion:?}: the other end sent no such message"));
        };
        self.next += missing + 1;
        let is_write = op.verb == Verb::WriteImm;
        let of = if is_write { CompletionOpcode::RecvWriteImm } else { CompletionOpcode::Recv };
        let is = (completion.status, completion.opcode, completion.len, completion.solicited);
        if op.verb == Verb::Write || is != (Status::Success, of, op.len, op.solicited) {
            return Err(format!("{completion:?} does not match the message {op:?}"));
        }
        let received = if is_write { &nic.bytes(self.target)[op.at as usize..] } else { bytes };
        if received[..op.len as usize] != *bytes_of(&op, pattern) {
            return Err(format!("{op:?} delivered other data than was sent"));
        }
        Ok(())
    }
}

fn bytes_of<'a>(op: &Op, pattern: &'a [u8]) -> &'a [u8] {
    &pattern[op.source as usize..][..op.len as usize]
}
