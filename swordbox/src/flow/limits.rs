//! Limits of one connection: its path MTU, and the READs and atomics that the server accepts at once.

use crate::MIN_PATH_MTU;

/// Limits, as announced by the connection manager or learnt from packets.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Path MTU in bytes; 0 while it is unknown
    mtu: u16,
    /// Length in bytes of the longest payload of one packet: a lower bound of the path MTU
    longest: u16,
    /// Maximum number of READs and atomics that were outstanding at once on the client's own connection
    peak_reads: u8,
    /// READs and atomics that the server accepts at once on this connection, as announced by the connection
    /// manager; 0 if it did not
    server_max_reads: u8,
    /// Path MTU in bytes and `server_max_reads` from the REQ and the REP, which may be forged: unused until
    /// the server acknowledges a request with their starting PSN
    announced: Option<(u16, u8)>,
}

impl Limits {
    /// Returns the limits at this path MTU in bytes; 0 if it is unknown.
    pub(super) const fn new(mtu: u16) -> Self {
        Self { mtu, longest: 0, peak_reads: 0, server_max_reads: 0, announced: None }
    }

    /// Stores the path MTU in bytes and the number of READs that the server accepts at once, from a handshake
    /// that may be forged.
    pub(crate) fn announce(&mut self, mtu: u16, server_max_reads: u8) {
        self.announced = Some((mtu, server_max_reads));
    }

    /// Uses the limits of the handshake if the server has acknowledged requests from the starting PSN on;
    /// otherwise discards them.
    pub(crate) fn confirm(&mut self, is_acknowledged: bool) {
        if let Some(announced) = self.announced.take()
            && is_acknowledged
        {
            (self.mtu, self.server_max_reads) = announced;
        }
    }

    /// Returns the path MTU in bytes; 0 while it is unknown.
    pub(crate) fn mtu(&self) -> u16 {
        self.mtu
    }

    pub(crate) fn set_mtu(&mut self, mtu: u16) {
        self.mtu = mtu;
    }

    /// Returns whether a payload is longer than all previous ones.
    pub(crate) fn is_longest(&self, len: u32) -> bool {
        len > self.longest.into()
    }

    /// Updates the lower bound of the path MTU from a payload of `len` bytes.
    #[inline]
    pub(crate) fn note_payload(&mut self, len: usize) {
        self.longest = self.longest.max(len as u16);
    }

    /// Returns the number of PSNs that a READ of `len` bytes takes, if the path MTU determines it.
    pub(crate) fn psn_count_of(&self, len: u32) -> Option<u32> {
        match u32::from(self.mtu) {
            0 => (len <= MIN_PATH_MTU.max(self.longest.into())).then_some(1),
            mtu => Some(len.div_ceil(mtu).max(1)),
        }
    }

    /// Notes the number of READs and atomics outstanding on the client's own connection.
    pub(crate) fn note_outstanding(&mut self, count: u16) {
        self.peak_reads = self.peak_reads.max(count.min(255) as u8);
    }

    /// Returns the number of atomics that the server accepts at once, at least `declared`.
    pub(crate) fn max_atomics(&self, declared: u32) -> u32 {
        declared.max(self.peak_reads.into()).max(self.server_max_reads.into()).max(1)
    }
}
