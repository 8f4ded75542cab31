//! Packets that were captured twice, although they were sent once.

use crate::diagnose::packet::Observed;

/// Responses whose ICRC is remembered
const MAX_RESPONSES: usize = 32;
/// Time between two copies, if a packet that is sent again has another ICRC
const DISTINCT_NS: u64 = 100_000_000;
/// The same, if a packet that is sent again may look the same. No NIC sends again so soon without a NAK
const ALIKE_NS: u64 = 20_000;
/// The same for requests other than READs and atomics, if NAKs would have been seen: less than the ACK time-outs
/// that NICs have. (A READ is sent again without a NAK when a response is missing.)
const ALIKE_NO_NAK_NS: u64 = 200_000;
/// The same, if there is a NAK: less than any round-trip time
const NAK_NS: u64 = 1000;

/// What tells copies of packets from retransmissions, in one direction of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copies {
    /// Identification and ICRC of the last packet
    last: Option<(u16, Option<u32>)>,
    /// Whether two different packets had the same identification
    constant: bool,
    /// Whether responses to the requests of the direction were seen
    answered: bool,
    /// ICRC, link header and time of the latest responses, and the next slot
    responses: [Option<(u32, u16, u64)>; MAX_RESPONSES],
    next: usize,
}

/// What is known of two packets with the same ICRC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    /// Time between them, in nanoseconds
    pub ns: u64,
    /// Whether their MAC addresses, VLANs and hop limits are the same: if not, a router is between the places
    /// where they were captured, as a sender does not change them
    pub same_link: bool,
    /// Whether a NAK may have caused the second
    pub nak: bool,
    /// Whether only a time-out can have caused the second, as NAKs would have been seen
    pub only_timeout: bool,
}

impl Copies {
    /// Returns whether responses to the requests of the direction, and thus NAKs, are seen.
    pub(crate) fn is_answered(&self) -> bool {
        self.answered
    }

    /// Takes any packet of the direction; `answered` is true if responses to its requests are seen.
    pub(crate) fn observe(&mut self, p: &Observed, answered: bool) {
        self.answered = answered;
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

    /// Returns whether two packets with the same ICRC are copies of one that was sent once.
    pub(crate) fn are_likely(&self, pair: Pair) -> bool {
        let limit = match pair {
            _ if self.numbered() || !pair.same_link => DISTINCT_NS,
            Pair { nak: true, .. } => NAK_NS,
            Pair { only_timeout: true, .. } => ALIKE_NO_NAK_NS,
            _ => ALIKE_NS,
        };
        pair.ns <= limit
    }

    /// Returns whether a response is a copy of an earlier one, and remembers it if not.
    pub(crate) fn response_is_copy(&mut self, p: &Observed) -> bool {
        let Some(icrc) = p.icrc else { return false };
        let mut same = self.responses.iter().flatten().filter(|(other, ..)| *other == icrc);
        let pair = |link: u16, time_ns: u64| Pair {
            ns: p.sight.time_ns.saturating_sub(time_ns),
            same_link: link == p.link,
            nak: false,
            only_timeout: false,
        };
        if same.any(|(_, link, time_ns)| self.are_likely(pair(*link, *time_ns))) {
            return true;
        }
        self.responses[self.next] = Some((icrc, p.link, p.sight.time_ns));
        self.next = (self.next + 1) % MAX_RESPONSES;
        false
    }
}
