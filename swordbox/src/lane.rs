//! A lane: a server's connection that many clients share. Everything under way on it is kept here until the server has
//! acknowledged it, so that what is lost is sent again from here, in the order in which it was promised.

use crate::flow::Flow;
use crate::headers::Class8;
use crate::own::{Keys, Probe};
use crate::{Id, NONE};
use rocev2::{Opcode, Psn};
use switch::Nanos;

/// Bytes of the longest WRITE that goes on a lane
pub(crate) const LONGEST_WRITE: usize = 64;

/// An operation under way. In one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Entry {
    pub asked: Asked,
    /// Whose it is
    pub flow: Id,
    /// The end that its answer goes to
    pub to: Id,
    /// What its client knows it by
    pub psn: Psn,
    /// Its line
    pub line: Id,
    /// Detours to the line when it was sent
    pub detours: u32,
    /// What it tells of the word's value may be learnt
    pub teaches: bool,
    /// The client asked for an acknowledgement; an atomic is answered in any case
    pub ack_req: bool,
    /// What it is counted by if it was decided
    pub tag: u8,
}

const _: () = assert!(size_of::<Entry>() == 64);

/// What is asked of the server, but for a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub what: Under,
    pub va: u64,
    pub rkey: u32,
    pub class: Class8,
    /// Its BTH had the solicited event bit
    pub solicited: bool,
}

/// What an operation is, as the server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Under {
    /// A WRITE of so many bytes that its client asked for
    Write(u8),
    /// A WRITE of what an atomic leaves behind that found something else
    Decided { found: u64, left: u64 },
    /// An atomic: opcode, `swap_or_add`, `compare`
    Atomic(Opcode, u64, u64),
}

impl Under {
    /// Whether it takes one of the server's resources for READs and atomics
    pub(crate) const fn is_atomic(self) -> bool {
        matches!(self, Self::Atomic(..))
    }
}

/// A connection that is shared. Its number among the flows is that of its owner, whose connection it is.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Whose connection it is; `NONE` for nobody's
    pub owner: Id,
    pub server: u8,
    /// It is the switch's own, and its owner no client
    pub is_own: bool,
    /// Its owner gets it back as soon as nothing is under way, as the switch has lanes of its own now
    pub is_given_back: bool,
    /// Keys that are good on a lane of the switch's own
    pub keys: Keys,
    /// What tries a lane of the switch's own, or a key there. Nothing else is under way meanwhile
    pub probe: Option<Probe>,
    /// The first PSN that is not acknowledged; the next is its owner's `own_next`
    pub acked: Psn,
    /// Operations under way
    pub under_way: u32,
    /// Those among them that take one of the server's resources for READs and atomics
    pub atomics: u32,
    /// How many of them the server takes
    pub max_atomics: u32,
    /// Flows that wait for it
    pub waiting: [Id; 2],
    /// Which of the connections that were this lane, one after another, it is now
    pub incarnation: u32,
    /// Earliest time at which its queue pair at the server is known to exist. A connection that was alive later is not of a
    /// previous incarnation of the server
    pub existed_at: Nanos,
    /// When something was last acknowledged; zero if nothing was
    pub heard: Nanos,
    /// When something was last acknowledged, or sent to an empty lane
    pub moved: Nanos,
    /// When it was last sent again
    pub resent: Nanos,
    /// Since `moved`
    pub tries: u32,
    /// Start of the time for which its owner's own requests have made no progress; zero if none is under way. And how far they
    /// had come then
    pub stuck: Nanos,
    pub stuck_at: (Psn, Psn),
    /// Start of the time for which clients have waited without a break for the owner's requests; zero if none waits
    pub kept_since: Nanos,
    /// Until then nobody but its owner begins anything: it has been asked to send again what could not wait here
    pub reserved: Nanos,
    /// From sending to acknowledgement, smoothed
    pub round_trip: Nanos,
    /// The operation whose round trip is measured, and when it was sent
    pub timed: Option<(Psn, Nanos)>,
    /// By PSN, in as many places from the first on as were ever needed at once: so few stay in the cache
    entries: Box<[Entry]>,
    /// What is written by those that are WRITEs
    payloads: Box<[[u8; LONGEST_WRITE]]>,
    /// Places in use, less one
    mask: usize,
}

/// Places in use at first
const FEWEST: usize = 64;

const NOTHING: Entry = Entry {
    asked: Asked { what: Under::Write(0), va: 0, rkey: 0, class: Class8(0), solicited: false },
    flow: NONE,
    to: NONE,
    psn: Psn::ZERO,
    line: NONE,
    detours: 0,
    teaches: false,
    ack_req: false,
    tag: 0,
};

impl Lane {
    pub(crate) fn new(server: u8, is_own: bool, in_flight: usize) -> Self {
        Self {
            owner: NONE,
            server,
            is_own,
            is_given_back: false,
            keys: Keys::new(),
            probe: None,
            acked: Psn::ZERO,
            under_way: 0,
            atomics: 0,
            max_atomics: 1,
            waiting: [NONE; 2],
            incarnation: 0,
            existed_at: Nanos::ZERO,
            heard: Nanos::ZERO,
            moved: Nanos::ZERO,
            resent: Nanos::ZERO,
            tries: 0,
            stuck: Nanos::ZERO,
            stuck_at: (Psn::ZERO, Psn::ZERO),
            kept_since: Nanos::ZERO,
            reserved: Nanos::ZERO,
            round_trip: Nanos::ZERO,
            timed: None,
            entries: vec![NOTHING; in_flight].into(),
            payloads: vec![[0; LONGEST_WRITE]; in_flight].into(),
            mask: in_flight.min(FEWEST) - 1,
        }
    }

    /// What one takes.
    pub(crate) const fn bytes(in_flight: usize) -> usize {
        size_of::<Self>() + in_flight * (size_of::<Entry>() + LONGEST_WRITE)
    }

    /// A connection becomes this lane, whose queue pair at the server existed at `existed_at`.
    pub(crate) fn open(&mut self, owner: Id, acked: Psn, max_atomics: u32, existed_at: Nanos, now: Nanos) {
        self.owner = owner;
        self.existed_at = existed_at;
        self.incarnation = self.incarnation.wrapping_add(1);
        self.heard = Nanos::ZERO;
        self.is_given_back = false;
        self.acked = acked;
        self.max_atomics = max_atomics;
        self.moved = now;
        self.resent = now;
        self.tries = 0;
        self.reserved = Nanos::ZERO;
        self.kept_since = Nanos::ZERO;
        self.round_trip = Nanos::ZERO;
        self.timed = None;
    }

    /// Whether this key is known to be good for this kind of operation here.
    #[inline]
    pub(crate) fn accepts(&self, owner: &Flow, rkey: u32, rights: u8) -> bool {
        if self.is_own { self.keys.has(rkey, rights) } else { owner.has_ever_proven(rkey, rights) }
    }

    /// Returns whether the server has not answered a probe in time.
    #[inline]
    pub(crate) fn is_overdue(&self) -> bool {
        self.probe.is_some_and(|probe| probe.tries > 0)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.under_way as usize == self.entries.len()
    }

    /// One more operation is to be under way: there is a place for it behind the others, if the lane is not full.
    #[inline]
    pub(crate) fn begin(&mut self) {
        if self.under_way as usize > self.mask {
            self.spread();
        }
        self.under_way += 1;
    }

    /// Uses twice as many places.
    #[cold]
    fn spread(&mut self) {
        let before = self.mask;
        self.mask = (before * 2 + 1).min(self.entries.len() - 1);
        for n in 0..self.under_way {
            let psn = self.acked.add(n).get() as usize;
            self.entries[psn & self.mask] = self.entries[psn & before];
            self.payloads[psn & self.mask] = self.payloads[psn & before];
        }
    }

    /// What is kept of `psn`
    #[inline]
    pub(crate) fn entry(&self, psn: Psn) -> &Entry {
        &self.entries[psn.get() as usize & self.mask]
    }

    #[inline]
    pub(crate) fn entry_mut(&mut self, psn: Psn) -> &mut Entry {
        &mut self.entries[psn.get() as usize & self.mask]
    }

    /// What `psn` writes, if it is a WRITE; of the longest length
    #[inline]
    pub(crate) fn payload(&self, psn: Psn) -> &[u8; LONGEST_WRITE] {
        &self.payloads[psn.get() as usize & self.mask]
    }

    #[inline]
    pub(crate) fn put_payload(&mut self, psn: Psn, bytes: &[u8]) {
        let place = &mut self.payloads[psn.get() as usize & self.mask];
        match bytes.first_chunk() {
            Some(longest) => *place = *longest,
            None => place[..bytes.len()].copy_from_slice(bytes),
        }
    }

    /// After which time without an acknowledgement everything is sent again
    pub(crate) fn patience(&self, least: Nanos) -> Nanos {
        let patience = Nanos((self.round_trip.0 * 4).max(least.0));
        Nanos(patience.0 << self.tries.min(6))
    }

    /// Something up to `psn` was acknowledged.
    pub(crate) fn hear(&mut self, psn: Psn, now: Nanos) {
        self.moved = now;
        self.heard = now;
        self.tries = 0;
        self.stuck = Nanos::ZERO;
        if let Some((timed, sent)) = self.timed
            && !psn.precedes(timed)
        {
            let took = now.since(sent).0;
            self.round_trip =
                Nanos(if self.round_trip.0 == 0 { took } else { (self.round_trip.0 * 7 + took) / 8 });
            self.timed = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_keep_their_places_apart_while_there_are_more_and_more() {
        let mut lane = Lane::new(0, false, 1024);
        let first = Psn::new(0xff_ff00);
        lane.open(0, first, 1, Nanos::ZERO, Nanos::ZERO);
        let bytes = |n: u32| [n as u8; LONGEST_WRITE];
        for n in 0..1024 {
            assert!(!lane.is_full());
            lane.begin();
            let psn = first.add(n);
            *lane.entry_mut(psn) = Entry { line: n, ..NOTHING };
            lane.put_payload(psn, &bytes(n));
            // The oldest, the newest, and some between
            for n in [0, n / 3, n / 2, n] {
                assert_eq!((lane.entry(first.add(n)).line, lane.payload(first.add(n))), (n, &bytes(n)));
            }
        }
        assert!(lane.is_full());
    }
}
