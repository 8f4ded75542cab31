//! Records of READs and atomics that clients may retransmit: the latest of each flow, in a ring.

use crate::Id;
use crate::flow::{Flow, NO_SLOT, Stage};
use crate::function::Swordbox;
use crate::steering::Ticket;
use rocev2::Psn;

/// A READ or an atomic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub psn: Psn,
    /// Number of PSNs, which is that of its response packets
    pub count: u32,
    /// The server's PSN of the request on the client's own connection
    pub server_psn: Psn,
    /// Number of initial PSNs that `own` does not cover, or that the server no longer has: the READ was read
    /// again from behind them
    pub skipped: u32,
    pub what: What,
    /// The response has been seen
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
pub(crate) enum What {
    /// READ on the client's own connection. A retransmission is read again by the server
    Read,
    /// Atomic with a known result, which answers retransmissions
    Atomic,
    /// One or more READs whose PSN count is unknown. A retransmission is read again by the server
    Unseen,
    /// Atomic whose result is unknown. The server still has it while no other client's atomics use the
    /// connection
    Unknown,
}

impl Record {
    /// Returns the server's PSN for the client's `psn`, if the server still has that part of the request.
    pub(crate) fn server_psn_of(&self, psn: Psn) -> Option<Psn> {
        let at = psn.distance(self.psn);
        (self.skipped as i32..self.count as i32).contains(&at).then(|| self.server_psn.add(at as u32))
    }

    /// Returns the client's PSN for the server's `own`.
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
    what: What::Read,
    done: true,
    value: 0,
    steered: 0,
    depends_on: Ticket::NONE,
};

/// Maximum distance in PSNs between the records of a flow that are appended in order. It is less than half of
/// the PSN space, so that a record is never mistaken for one of a later round
const SPAN: usize = 1 << 22;

impl Swordbox {
    pub(crate) fn clear_records(&mut self, id: Id) {
        self.records_mut(id).fill(NO_RECORD);
        self.flows[id as usize].newest_at = NO_SLOT;
    }

    #[inline]
    pub(crate) fn records(&self, id: Id) -> &[Record] {
        let n = self.config.rd_atomic;
        &self.records[id as usize * n..][..n]
    }

    #[inline]
    pub(crate) fn records_mut(&mut self, id: Id) -> &mut [Record] {
        let n = self.config.rd_atomic;
        &mut self.records[id as usize * n..][..n]
    }

    /// Stores a READ or an atomic. Most arrive in the order of their PSNs: they take the slot behind the
    /// newest, which is free or has the oldest.
    #[inline]
    pub(crate) fn record(&mut self, id: Id, record: Record) {
        let n = self.config.rd_atomic;
        let flow = &mut self.flows[id as usize];
        let gap = record.psn.distance(flow.newest);
        if flow.newest_at == NO_SLOT || gap <= 0 || gap as usize > SPAN / n {
            return self.record_late(id, record);
        }
        let next = usize::from(flow.newest_at) + 1;
        let at = if next == n { 0 } else { next };
        flow.newest_at = at as u16;
        flow.newest = record.psn;
        self.put_record(id, at, record);
    }

    /// Stores a record that is the first one, out of order, or far from the others.
    #[cold]
    fn record_late(&mut self, id: Id, record: Record) {
        let next = self.flows[id as usize].next;
        // Distance behind the next request; a client retransmits only its latest requests
        let age =
            |record: &Record| if record.count == 0 { u32::MAX } else { next.sub(record.psn.get()).get() };
        // A record with the same PSN is from an earlier round of the PSN space.
        let psn = record.psn;
        let slot_of = |slot: &Record| if slot.count > 0 && slot.psn == psn { (1, 0) } else { (0, age(slot)) };
        let slots = self.records(id).iter().enumerate();
        let Some((at, slot)) = slots.max_by_key(|(_, slot)| slot_of(slot)) else { return };
        if slot.psn != psn && age(slot) < age(&record) {
            return;
        }
        self.put_record(id, at, record);
        let records = self.records_mut(id);
        for old in records.iter_mut().filter(|old| old.done && age(old) as usize > SPAN) {
            *old = NO_RECORD;
        }
        records.sort_unstable_by_key(|record| core::cmp::Reverse(age(record)));
        let newest = records.iter().rposition(|record| record.count > 0);
        let newest = newest.map(|at| (at as u16, records[at].psn));
        let flow = &mut self.flows[id as usize];
        (flow.newest_at, flow.newest) = newest.unwrap_or((NO_SLOT, Psn::ZERO));
    }

    fn put_record(&mut self, id: Id, at: usize, record: Record) {
        // The slot is likely not in the cache, so it is read only if that may matter.
        let open = self.flows[id as usize].open > 0;
        let slot = &mut self.records_mut(id)[at];
        let lost = open && !slot.done;
        *slot = record;
        let flow = &mut self.flows[id as usize];
        flow.open -= u16::from(lost);
        if !record.done {
            flow.open += 1;
            if flow.stage >= Stage::Synced {
                flow.peak_reads = flow.peak_reads.max(flow.open.min(255) as u8);
            }
        }
        if lost && self.flows[id as usize].stage < Stage::Translating {
            // More requests were outstanding than `rd_atomic` records, so the tracked state is incomplete. If
            // this one is a READ with unknown PSN count, its end remains unknown.
            let &Flow { next, uncounted_read, .. } = &self.flows[id as usize];
            self.restart_tracking(id, next);
            self.flows[id as usize].uncounted_read = uncounted_read;
        }
    }
}
