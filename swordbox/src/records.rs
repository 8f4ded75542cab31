//! Records of READs and atomics that clients may retransmit: the latest of each flow, in a ring.

use crate::steering::Ticket;
use rocev2::Psn;

/// A READ or an atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub psn: Psn,
    /// Number of PSNs, which equals the number of response packets
    pub count: u32,
    /// The server's PSN of the request on the client's own connection
    pub server_psn: Psn,
    /// Number of initial PSNs that `server_psn` does not cover, or whose data the server no longer repeats:
    /// the READ was requested again from the PSN after them
    pub skipped: u32,
    pub kind: RecordKind,
    /// Whether the response has been seen
    pub done: bool,
    /// Result of an atomic; address of the node that a READ was forwarded to
    pub value: u64,
    /// Value that steering added to the virtual address
    pub steered: u64,
    /// Pending node that the response depends on, if the request was steered
    pub depends_on: Ticket,
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordKind {
    /// READ on the client's own connection. The server executes a retransmission again
    Read,
    /// Atomic with a known result, with which the switch answers retransmissions
    Atomic,
    /// One or more READs whose PSN count is unknown. The server executes a retransmission again
    UncountedReads,
    /// Atomic whose result is unknown. The server still has it while no other client's atomics use the
    /// connection
    AtomicWithoutResult,
}

impl Record {
    /// Returns the server's PSN for the client's `psn`, if the server still has that part of the request.
    pub(crate) fn server_psn_of(&self, psn: Psn) -> Option<Psn> {
        let at = psn.distance(self.psn);
        (self.skipped as i32..self.count as i32).contains(&at).then(|| self.server_psn.add(at as u32))
    }

    /// Returns the client's PSN for the server's `server_psn`, if the server still has that part of the
    /// request.
    pub(crate) fn client_psn_of(&self, server_psn: Psn) -> Option<Psn> {
        let at = server_psn.distance(self.server_psn);
        (self.skipped as i32..self.count as i32).contains(&at).then(|| self.psn.add(at as u32))
    }
}

pub(crate) const NO_RECORD: Record = Record {
    psn: Psn::ZERO,
    count: 0,
    server_psn: Psn::ZERO,
    skipped: 0,
    kind: RecordKind::Read,
    done: true,
    value: 0,
    steered: 0,
    depends_on: Ticket::NONE,
};
