//! Tracking of the requests of each flow: the records of its READs and atomics, in a ring, and the PSNs that
//! they take.

use super::Connections;
use crate::Id;
use crate::flow::{Flow, NO_SLOT, Stage};
use crate::message::LONGEST;
use crate::records::{NO_RECORD, Record, RecordKind};
use rocev2::Psn;

/// Maximum distance in PSNs between the records of a flow that are appended in order. It is less than half of
/// the PSN space, so that a record is never mistaken for one of a later round
const SPAN: usize = 1 << 22;

impl Connections {
    pub(crate) fn clear_records(&mut self, id: Id) {
        self.records_mut(id).fill(NO_RECORD);
        self.flow_mut(id).newest_at = NO_SLOT;
    }

    #[inline]
    pub(crate) fn records(&self, id: Id) -> &[Record] {
        let n = self.rd_atomic;
        &self.records[id as usize * n..][..n]
    }

    #[inline]
    pub(crate) fn records_mut(&mut self, id: Id) -> &mut [Record] {
        let n = self.rd_atomic;
        &mut self.records[id as usize * n..][..n]
    }

    /// Stores a READ or an atomic. Most arrive in the order of their PSNs: they take the slot behind the
    /// newest, which is free or has the oldest.
    #[inline]
    pub(crate) fn record(&mut self, id: Id, record: Record) {
        let n = self.rd_atomic;
        let flow = self.flow_mut(id);
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
        let next = self.flow(id).next;
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
        let flow = self.flow_mut(id);
        (flow.newest_at, flow.newest) = newest.unwrap_or((NO_SLOT, Psn::ZERO));
    }

    fn put_record(&mut self, id: Id, at: usize, record: Record) {
        // The slot is likely not in the cache, so it is read only if that may matter.
        let open = self.flow(id).open > 0;
        let slot = &mut self.records_mut(id)[at];
        let lost = open && !slot.done;
        *slot = record;
        let flow = self.flow_mut(id);
        flow.open -= u16::from(lost);
        if !record.done {
            flow.open += 1;
            if flow.stage >= Stage::Synced {
                flow.limits.note_outstanding(flow.open);
            }
        }
        if lost && self.flow(id).stage < Stage::Translating {
            // More requests were outstanding than `rd_atomic` records, so the tracked state is incomplete. If
            // this one is a READ with unknown PSN count, its end remains unknown.
            let &Flow { next, uncounted_read, .. } = self.flow(id);
            self.restart_tracking(id, next);
            self.flow_mut(id).uncounted_read = uncounted_read;
        }
    }

    /// Resolves the PSN count of the last READ from the PSN of the request behind it.
    #[inline]
    pub(crate) fn resolve_read_count(&mut self, id: Id, psn: Psn) {
        let flow = self.flow_mut(id);
        if flow.took_one(psn) {
            if let Some(len) = flow.uncounted_read {
                // The PSN count is only the client's claim.
                flow.extend_read_psns(flow.next, len.get());
            }
            self.set_read_count(id, 1);
        }
    }

    /// Restarts the tracking of an untranslated connection at this PSN. The acknowledgement of a later
    /// request shows that all before are complete.
    pub(crate) fn restart_tracking(&mut self, id: Id, psn: Psn) {
        let uncounted_read = self.flow(id).uncounted_read.map(|_| self.flow(id).next.sub(1));
        for record in self.records_mut(id) {
            if uncounted_read == Some(record.psn) && record.count == 1 {
                // The READ may have taken all PSNs up to the new one.
                record.count = psn.distance(record.psn).max(1) as u32;
            }
            if !record.done {
                record.kind = if record.kind == RecordKind::Atomic {
                    RecordKind::AtomicWithoutResult
                } else {
                    RecordKind::UncountedReads
                };
                record.done = true;
            }
        }
        let flow = self.flow_mut(id);
        flow.open = 0;
        if let Some(len) = flow.uncounted_read.take() {
            flow.extend_read_psns(flow.next, len.get());
        }
        flow.limits.confirm(false);
        flow.existence.forget_structures();
        flow.pending.clear();
        flow.stage = flow.stage.min(Stage::Paired);
        flow.begin(psn);
    }

    /// Sets the PSN count of the last request, a READ.
    pub(crate) fn set_read_count(&mut self, id: Id, count: u32) {
        let flow = self.flow_mut(id);
        flow.uncounted_read = None;
        let first = flow.next.sub(1);
        flow.next = first.add(count);
        flow.sent = flow.next;
        flow.translation.set_next(flow.translation.to_server(flow.next));
        for record in
            self.records_mut(id).iter_mut().filter(|record| record.psn == first && record.count == 1)
        {
            record.count = count;
        }
    }

    /// Returns whether a READ is in flight that a response with this PSN may belong to. Without this check
    /// any host could forge responses in the server's name with any PSN.
    #[cold]
    pub(crate) fn is_read(&self, id: Id, psn: Psn) -> bool {
        let flow = self.flow(id);
        let uncounted_read = flow.uncounted_read.map(|_| flow.next.sub(1));
        self.records(id).iter().any(|record| {
            let most = if Some(record.psn) == uncounted_read { LONGEST } else { record.count };
            record.count > 0
                && !record.done
                && record.kind == RecordKind::Read
                && (0..most as i32).contains(&psn.distance(record.psn))
        })
    }

    /// Returns the record of the READ with this PSN.
    pub(crate) fn read_at(&self, id: Id, psn: Psn) -> Option<Record> {
        let within = |record: &&Record| {
            matches!(record.kind, RecordKind::Read | RecordKind::UncountedReads)
                && (0..record.count as i32).contains(&psn.distance(record.psn))
        };
        let records = self.records(id).iter().filter(within);
        records
            .min_by_key(|record| (psn.distance(record.psn), record.kind == RecordKind::UncountedReads))
            .copied()
    }

    /// Returns the record with this PSN, if its request has no response.
    pub(crate) fn pending_record(&self, id: Id, psn: Psn) -> Option<&Record> {
        let within =
            |record: &&Record| !record.done && (0..record.count as i32).contains(&psn.distance(record.psn));
        self.records(id).iter().find(within)
    }

    /// Marks the records as done whose responses arrived before the pairing: those up to `psn`.
    pub(crate) fn complete_early(&mut self, id: Id, psn: Psn) {
        for at in 0..self.rd_atomic {
            let mut record = self.records(id)[at];
            if record.done || psn.precedes(record.psn) {
                continue;
            }
            record.done = true;
            if record.kind == RecordKind::Atomic {
                self.find_result(id, &mut record);
            } else {
                record.kind = RecordKind::UncountedReads;
            }
            self.records_mut(id)[at] = record;
            self.flow_mut(id).open -= 1;
        }
    }
}
