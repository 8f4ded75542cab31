//! READs and atomics that clients may repeat: of each flow the latest, in a ring.

use crate::Id;
use crate::flow::{Flow, NOWHERE, Stage};
use crate::function::Swordbox;
use crate::steering::Ticket;
use rocev2::Psn;

/// A READ or an atomic, as long as its client may repeat it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub psn: Psn,
    /// PSNs that it takes: those of its responses
    pub count: u32,
    /// What the server knows it by, on the client's own connection
    pub own: Psn,
    /// PSNs at its beginning that the server knows by another number than `own` says, or has forgotten: the server read again
    /// from behind them
    pub skipped: u32,
    pub what: What,
    /// The response has been seen
    pub done: bool,
    /// What an atomic was answered; of a READ, the node that it went to
    pub value: u64,
    /// What was added to its address, if it was steered
    pub steered: u64,
    /// What its answer has to wait for, if it was steered
    pub waits: Ticket,
}

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A READ on the client's own connection: asked for again, the server reads again
    Read,
    /// An atomic, answered with what it was answered
    Atomic,
    /// A READ, or several, of which it was not seen how many PSNs they take: the server reads again
    Unseen,
    /// An atomic of which it is not known what it was answered: the server remembers, as long as nobody else does atomics
    /// on the connection
    Unknown,
}

impl Record {
    /// Returns the PSN by which the server knows the request with the client's `psn`, if it still does.
    pub(crate) fn own_psn(&self, psn: Psn) -> Option<Psn> {
        let at = psn.distance(self.psn);
        (self.skipped as i32..self.count as i32).contains(&at).then(|| self.own.add(at as u32))
    }

    /// Returns the client's PSN of what the server knows by `own`.
    pub(crate) fn client_psn(&self, own: Psn) -> Option<Psn> {
        let at = own.distance(self.own);
        (self.skipped as i32..self.count as i32).contains(&at).then(|| self.psn.add(at as u32))
    }
}

pub(crate) const NO_RECORD: Record = Record {
    psn: Psn::ZERO,
    count: 0,
    own: Psn::ZERO,
    skipped: 0,
    what: What::Read,
    done: true,
    value: 0,
    steered: 0,
    waits: Ticket::NONE,
};

/// PSNs that lie between all records of a flow at most, as long as they are put down one behind the other: less than half of
/// all PSNs, so that none is ever taken for one of a later round
const SPAN: usize = 1 << 22;

impl Swordbox {
    pub(crate) fn clear_records(&mut self, id: Id) {
        self.records_mut(id).fill(NO_RECORD);
        self.flows[id as usize].newest_at = NOWHERE;
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

    /// Remembers a READ or an atomic. Most come in the order of their PSNs: then the ring goes on, from the newest to the place
    /// of the oldest, or to one where none is yet.
    #[inline]
    pub(crate) fn record(&mut self, id: Id, record: Record) {
        let n = self.config.rd_atomic;
        let flow = &mut self.flows[id as usize];
        let gap = record.psn.distance(flow.newest);
        if flow.newest_at == NOWHERE || gap <= 0 || gap as usize > SPAN / n {
            return self.record_late(id, record);
        }
        let next = usize::from(flow.newest_at) + 1;
        let at = if next == n { 0 } else { next };
        flow.newest_at = at as u16;
        flow.newest = record.psn;
        self.put_record(id, at, record);
    }

    /// Remembers one that is the first, or out of order, or far from the others.
    #[cold]
    fn record_late(&mut self, id: Id, record: Record) {
        let next = self.flows[id as usize].next;
        // How far behind the next request; a client repeats only its latest.
        let age =
            |record: &Record| if record.count == 0 { u32::MAX } else { next.sub(record.psn.get()).get() };
        // One of the same PSN is from before PSNs came round.
        let psn = record.psn;
        let place_of =
            |place: &Record| if place.count > 0 && place.psn == psn { (1, 0) } else { (0, age(place)) };
        let places = self.records(id).iter().enumerate();
        let Some((at, place)) = places.max_by_key(|(_, place)| place_of(place)) else { return };
        if place.psn != psn && age(place) < age(&record) {
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
        (flow.newest_at, flow.newest) = newest.unwrap_or((NOWHERE, Psn::ZERO));
    }

    fn put_record(&mut self, id: Id, at: usize, record: Record) {
        // What was there is not in the cache: it is looked at only if it may matter.
        let open = self.flows[id as usize].open > 0;
        let place = &mut self.records_mut(id)[at];
        let lost = open && !place.done;
        *place = record;
        let flow = &mut self.flows[id as usize];
        flow.open -= u16::from(lost);
        if !record.done {
            flow.open += 1;
            if flow.stage >= Stage::Clear {
                flow.most_reads = flow.most_reads.max(flow.open.min(255) as u8);
            }
        }
        if lost && self.flows[id as usize].stage < Stage::Strict {
            // More than were thought to be outstanding at once: what is remembered is not all there is. And if this is a READ
            // of unknown count, where it ends is as unknown as before.
            let &Flow { next, unsure, .. } = &self.flows[id as usize];
            self.restart_at(id, next);
            self.flows[id as usize].unsure = unsure;
        }
    }
}
