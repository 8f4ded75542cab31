//! Trust in hosts: an untrusted host may have no right to write to a server's memory.

use super::Swordbox;
use super::detour::Target;
use crate::{Id, NONE};
use rocev2::Packet;
use switch::Nanos;

impl Swordbox {
    /// Returns whether a client is trusted: requests of its connection were answered, or its host has used a
    /// right on another connection.
    pub(crate) fn is_trusted(&self, id: Id, from: u128) -> bool {
        self.connections.get_endpoint(id).is_some_and(|end| end.peer() != NONE && end.from == from)
            || self.sources.has_proven(from)
    }

    /// Returns whether a packet of an untrusted client may pass that invalidates the memory that it may write
    /// to.
    pub(crate) fn may_invalidate(&mut self, id: Id, server: u8, packet: &Packet<'_>, now: Nanos) -> bool {
        match self.write_target(id, packet) {
            Target::Nothing => true,
            Target::Range(va, len) => self.may_invalidate_range(server, va, len, now),
            Target::Anywhere => self.may_invalidate_range(server, 0, u64::MAX, now),
        }
    }

    /// Returns whether a packet of an untrusted client may pass that invalidates a range.
    pub(crate) fn may_invalidate_range(&mut self, server: u8, va: u64, len: u64, now: Nanos) -> bool {
        self.lines.may_invalidate(server, (va, len), now, self.config.settle, self.config.dead_after)
    }
}
