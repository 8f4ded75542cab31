//! READs that a client retransmitted after they were complete: the queue of one flow.

use crate::NONE;
use crate::held::Held;
use core::cmp::Ordering;
use rocev2::{Packet, Psn};
use switch::{Full, Nanos, PortId};

/// Retransmitted READs of one flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rereads {
    /// Requests as the client sent them, in its order: a queue of [`Held`](crate::held::Held)
    queue: [u32; 2],
    count: u16,
    /// Client's PSNs of the first and the last request in the queue
    first: Psn,
    last: Psn,
    /// The first request, once it has been sent to the server
    sent: Option<Sent>,
}

/// A READ that is in flight again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    /// The client's first PSN
    pub psn: Psn,
    /// The server's first PSN
    pub server_psn: Psn,
    /// Maximum number of response packets
    pub span: i32,
    /// Time of the first and of the latest transmission
    pub since: Nanos,
    pub at: Nanos,
    pub tries: u8,
}

impl Rereads {
    pub(crate) const NONE: Self =
        Self { queue: [NONE; 2], count: 0, first: Psn::ZERO, last: Psn::ZERO, sent: None };

    /// Returns whether a response with this PSN of the server belongs to the READ in flight.
    pub(crate) fn awaits(&self, server_psn: Psn) -> bool {
        self.sent.is_some_and(|sent| (0..sent.span).contains(&server_psn.distance(sent.server_psn)))
    }

    /// Returns whether a READ is in flight again.
    pub(crate) const fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Returns the READ in flight.
    pub(crate) const fn sent(&self) -> Option<Sent> {
        self.sent
    }

    pub(crate) fn sent_mut(&mut self) -> Option<&mut Sent> {
        self.sent.as_mut()
    }

    /// Notes that the first READ of the queue is in flight again.
    pub(crate) fn begin(&mut self, sent: Sent) {
        self.sent = Some(sent);
    }

    /// Returns the position of a client's PSN relative to the queue: before, within or behind it.
    pub(crate) fn compare(&self, psn: Psn) -> Ordering {
        if self.last.precedes(psn) {
            Ordering::Greater
        } else if psn.precedes(self.first) {
            Ordering::Less
        } else {
            Ordering::Equal
        }
    }

    /// Returns the first READ of the queue as the client sent it, and the port on which it arrived.
    pub(crate) fn request<'a>(&self, held: &'a Held) -> Option<(&'a [u8], PortId)> {
        held.first(self.queue)
    }

    /// Appends a READ. Returns whether the queue was empty.
    ///
    /// # Errors
    /// The queue has `limit` READs, or no slot is free.
    pub(crate) fn push(
        &mut self,
        held: &mut Held,
        (psn, frame): (Psn, &[u8]),
        port: PortId,
        limit: usize,
    ) -> Result<bool, Full> {
        if usize::from(self.count) >= limit || !held.push(&mut self.queue, frame, port) {
            return Err(Full);
        }
        self.last = psn;
        let is_first = self.count == 0;
        if is_first {
            self.first = psn;
        }
        self.count += 1;
        Ok(is_first)
    }

    /// Removes all READs but the one in flight.
    pub(crate) fn clear_behind_sent(&mut self, held: &mut Held) {
        if self.sent.is_some() {
            held.clear_behind_first(&mut self.queue);
            self.count = 1;
        } else {
            held.clear(&mut self.queue);
            self.count = 0;
        }
    }

    /// Removes the first READ. Returns whether others remain.
    pub(crate) fn pop(&mut self, held: &mut Held) -> bool {
        self.sent = None;
        held.pop(&mut self.queue);
        self.count -= 1;
        let next = self.request(held).and_then(|(bytes, _)| Packet::parse(bytes));
        if let Some(packet) = &next {
            self.first = packet.bth().psn();
        }
        next.is_some()
    }

    /// Removes all READs.
    pub(crate) fn clear(&mut self, held: &mut Held) {
        held.clear(&mut self.queue);
        *self = Self::NONE;
    }
}
