//! Packets that were captured twice, although they were sent once.

use crate::diagnose::packet::Observed;

/// Responses whose ICRC is remembered
const MAX_RESPONSES: usize = 32;
/// Time between two copies, if a packet that is sent again has another ICRC
const DISTINCT_NS: u64 = 100_000_000;
/// The same, if a packet that is sent again may look the same. No NIC sends again so soon without a NAK
const ALIKE_NS: u64 = 20_000;
/// The same, if there is a NAK: less than any round-trip time
const NAK_NS: u64 = 1000;

/// What tells copies of packets from retransmissions, in one direction of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copies {
    /// Identification and ICRC of the last packet
    last: Option<(u16, Option<u32>)>,
    /// Whether two different packets had the same identification
    constant: bool,
    /// ICRC and time of the latest responses, and the next slot
    responses: [Option<(u32, u64)>; MAX_RESPONSES],
    next: usize,
}

impl Copies {
    /// Takes any packet of the direction.
    pub(crate) fn observe(&mut self, p: &Observed) {
        let new = p.ip_id.map(|id| (id, p.icrc));
        if let (Some((id, icrc)), Some(last)) = (new, self.last) {
            self.constant |= id == last.0 && icrc != last.1;
        }
        self.last = new;
    }

    /// Returns whether the sender numbers its IP packets, so that a packet that is sent again has another ICRC.
    fn numbered(&self) -> bool {
        !self.constant && self.last.is_some_and(|(id, _)| id != 0)
    }

    /// Returns whether two packets with the same ICRC, this many nanoseconds apart, are copies.
    pub(crate) fn are_likely(&self, ns: u64, nak: bool) -> bool {
        ns <= match (self.numbered(), nak) {
            (true, _) => DISTINCT_NS,
            (false, false) => ALIKE_NS,
            (false, true) => NAK_NS,
        }
    }

    /// Returns whether a response is a copy of an earlier one, and remembers it if not.
    pub(crate) fn response_is_copy(&mut self, p: &Observed) -> bool {
        let Some(icrc) = p.icrc else { return false };
        let mut same = self.responses.iter().flatten().filter(|(other, _)| *other == icrc);
        if same.any(|(_, time_ns)| self.are_likely(p.sight.time_ns.saturating_sub(*time_ns), false)) {
            return true;
        }
        self.responses[self.next] = Some((icrc, p.sight.time_ns));
        self.next = (self.next + 1) % MAX_RESPONSES;
        false
    }
}
