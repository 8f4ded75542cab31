//! The requests of one side of a connection, and what has become of them.

use crate::message::LongWrites;
use crate::op::Kind;
use crate::proof::Proof;
use crate::reread::Rereads;
use crate::steering::Lifetime;
use crate::{Id, NONE};
use core::num::NonZero;
use rocev2::{Msn, Psn};
use switch::Nanos;

/// How far a Swordbox takes part in a connection's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// Whose they are is not known for sure: they pass as they are.
    Unpaired,
    /// It is known whose they are. Some from before may still be under way: they pass as they are.
    Paired,
    /// Every request under way is known. They pass as they are.
    Clear,
    /// The same; whether the two sides may come to differ is asked.
    Asked,
    /// The two sides may differ: every packet is in order here, and rewritten.
    Strict,
    /// What the two sides expect is not known any more: nothing passes.
    Ended,
}

/// Bytes of one line, and the key with which they are reached
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    pub va: u64,
    pub len: u8,
    pub rkey: u32,
}

/// Rights that are proven.
pub(crate) mod right {
    pub(crate) const WRITE: u8 = 1;
    pub(crate) const ATOMIC: u8 = 4;
}

/// Rights that a request needs for the memory that it names; 0 for none that count here.
pub(crate) const fn rights_of(kind: Kind) -> u8 {
    match kind {
        Kind::Write => right::WRITE,
        Kind::Atomic => right::ATOMIC,
        _ => 0,
    }
}

const PROOFS: usize = 4;
/// PSNs behind the newest request that are taken to be answered; less than half of all PSNs
const LONG_AGO: i32 = 1 << 22;

/// Returns how many PSNs a READ of `len` bytes takes at most: as many as at the least path MTU.
fn psns_of(len: u32) -> u32 {
    len.div_ceil(256).clamp(1, LONG_AGO as u32)
}

/// PSNs behind what is acknowledged of which a client may want to hear again, and PSNs ahead that it may use while those
/// between are lost. The end of a message that is longer is among them
pub(crate) const BEHIND: i32 = 1 << 16;

/// Oldest PSN, as a distance behind the last acknowledged one, whose request may update a client's address and port: more than
/// the READs under way take
const NEAR: i32 = 1 << 12;

/// PSNs with which a connection's requests may come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    acked: Psn,
    next: Psn,
    ahead: i32,
}

impl Window {
    /// Whether a packet with this PSN may be of the connection.
    #[inline]
    pub(crate) fn fits(&self, psn: Psn) -> bool {
        let ahead = psn.distance(self.next);
        if ahead >= 0 { ahead <= self.ahead } else { self.acked.distance(psn) <= BEHIND }
    }
}

/// The requests that go to one queue pair. PSNs of the client are as its packets have them; those of the server as it
/// expects them on the client's own connection, which others may share.
///
/// `acked <= sent <= next`: behind `acked` everything is done, from `sent` on requests wait here.
///
/// In the order of use: what a request on a shared connection needs of its own flow lies in the first cache line, what it
/// needs of the flow of that connection's owner in the second.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(crate) struct Flow {
    pub stage: Stage,
    /// Which of the servers they go to, if any
    pub server: u8,
    /// Repeated READs wait, or are under way
    pub rereading: bool,
    /// A message has begun that has not ended yet, on the own connection
    pub in_message: bool,
    /// Its connection is about to end: nobody else begins anything on it
    pub leaving: bool,
    /// The client has to be told to send again from `next`, as soon as all before is done
    pub nak_due: bool,
    /// It has been told
    pub nak_sent: bool,
    /// The request at `next` came and found no room here: the client is told when that request's turn has come, and not before,
    /// as each NAK costs the client a retry
    pub turned_away: bool,
    /// The credits that the server last told
    pub credit: u8,
    pub acked: Psn,
    pub sent: Psn,
    pub next: Psn,
    /// Messages done, as the client counts them
    pub msn: Msn,
    /// The shared connection on which requests of this flow are under way; `NONE` for its own
    pub via: Id,
    /// How many are, if any
    pub shared: u32,
    /// The first and last frame that waits
    pub held: [u32; 2],
    /// A READ is the last request, and how many PSNs it takes is not known, for want of the path MTU: its length
    pub unsure: Option<NonZero<u32>>,
    /// The PSN of the newest record, if there is one
    pub newest: Psn,
    /// Its place, or [`NOWHERE`]
    pub newest_at: u16,
    /// Records whose response has not been seen
    pub open: u16,
    pub proofs: [Proof; PROOFS],
    /// When the latest request left that the server has acknowledged on this connection; zero if none. The server's queue pair
    /// existed at that time
    pub alive_at: Nanos,
    /// The next PSN that the server expects on this connection
    pub own_next: Psn,
    /// Messages done, as the server counts them on this connection
    pub own_msn: Msn,
    /// This connection's number among those that are shared, if it is
    pub lane: Id,
    /// It waits for this shared connection
    pub waits: Id,
    /// The next one that waits for the same shared connection
    pub next_waiting: Id,
    /// The PSN that the shared connection was to use next when this flow began to wait for it
    pub waits_until: Psn,
    /// READs and atomics outstanding on the own connection at once, the most so far
    pub most_reads: u8,
    /// READs and atomics that the server takes on this connection at once, as the connection manager told; 0 if it did not
    pub max_reads: u8,
    /// Path MTU in bytes and `max_reads` from the REQ and the REP, which may be forged: unused until the server acknowledges a
    /// request with their starting PSN
    pub cm_params: Option<(u16, u8)>,
    /// Path MTU in bytes; 0 as long as it is not known
    pub mtu: u16,
    /// The longest payload that was seen in one packet, if that is all that is known of the path MTU
    pub longest: u16,
    /// The oldest request that was seen, unless that is very long ago: what is older was not sent through here
    pub first: Psn,
    /// Number of the end that the table has under this id, among all that it has had
    pub incarnation: u32,
    /// Whether the journal has this connection, or was asked to
    pub written: bool,
    /// Both of its ends know that it is over
    pub over: bool,
    /// It is the switch's own: the owner of a lane, and no client's
    pub is_own: bool,
    /// Until then it is not shared: it has begun something that did not end while others waited for its lane
    pub unfit_until: Nanos,
    /// A request has been seen, or a handshake told where they begin
    pub begun: bool,
    /// Atomics of other clients or repeated READs have passed on this connection, and its client may not have the responses to
    /// READs before them
    pub forgotten: bool,
    /// Its client was asked for a message again, to learn whether it repeats a READ instead
    pub asking: bool,
    /// Its number was that of a connection whose sides differed, and which may still be there
    pub haunted: bool,
    /// Up to here the server has done everything on the own connection, though answers before it may be missing
    pub heard: Psn,
    /// Server's PSN less client's, for what is under way on the own connection
    pub delta: u32,
    /// Server's MSN less client's, for what is under way on the own connection
    pub msn_delta: u32,
    /// The server reads again what the client asked for again: requests from this PSN on are not answered before that is
    /// answered. And the last of them that was not, to notice when the client begins once more
    pub reading: Option<(Psn, Option<Psn>)>,
    /// When the first such request left; zero if none
    pub existed_at: Nanos,
    /// Request that updates `alive_at` when everything before this PSN is acknowledged on the own connection, and when it left
    pub showing: Option<(Psn, Nanos)>,
    /// A request to the memory of a structure that has not been asked for before (`structures`): the PSN before which everything
    /// has to be acknowledged, when it left, and the structure's number
    pub asking_structure: Option<(Psn, Nanos, u8)>,
    /// Structures of the server, by bit, to whose memory a request was acknowledged: the queue pair is of the process that has
    /// them, and not of another process of the same host. And when the first such request left
    pub structures: u32,
    pub structures_since: Nanos,
    /// A right that is proven as soon as everything before this PSN is done
    pub proving: Option<(Psn, Proof)>,
    /// End of the PSNs that the server may have counted as responses of READs: an acknowledgement of one before proves no right
    pub taken: Option<Psn>,
    /// Memory that is there as soon as everything before this PSN is done
    pub reaching: Option<(Psn, Memory)>,
    /// Latest WRITEs of several packets
    pub long_writes: LongWrites,
    /// The last request on the own connection that used a right which was not proven, or memory that may not be there
    pub trial: Option<Psn>,
    /// An operation under way on the own connection is a detour that is over when it is done: its PSN, and its line
    pub detouring: Option<(Psn, Id)>,
    /// READs that are done and that its client repeats
    pub rereads: Rereads,
}

/// No place
pub(crate) const NOWHERE: u16 = u16::MAX;

impl Flow {
    pub(crate) const fn new(server: u8) -> Self {
        Self {
            stage: Stage::Unpaired,
            server,
            begun: false,
            rereading: false,
            forgotten: false,
            is_own: false,
            unfit_until: Nanos::ZERO,
            asking: false,
            rereads: Rereads::NONE,
            acked: Psn::ZERO,
            heard: Psn::ZERO,
            sent: Psn::ZERO,
            next: Psn::ZERO,
            own_next: Psn::ZERO,
            delta: 0,
            msn: Msn::ZERO,
            own_msn: Msn::ZERO,
            msn_delta: 0,
            credit: 0x1f,
            lane: NONE,
            via: NONE,
            shared: 0,
            in_message: false,
            unsure: None,
            first: Psn::ZERO,
            mtu: 0,
            longest: 0,
            most_reads: 0,
            max_reads: 0,
            cm_params: None,
            newest: Psn::ZERO,
            newest_at: NOWHERE,
            open: 0,
            over: false,
            written: false,
            incarnation: 0,
            haunted: false,
            leaving: false,
            held: [NONE; 2],
            waits: NONE,
            next_waiting: NONE,
            nak_due: false,
            nak_sent: false,
            turned_away: false,
            waits_until: Psn::ZERO,
            reading: None,
            proofs: [Proof::NONE; PROOFS],
            alive_at: Nanos::ZERO,
            existed_at: Nanos::ZERO,
            showing: None,
            asking_structure: None,
            structures: 0,
            structures_since: Nanos::ZERO,
            proving: None,
            taken: None,
            reaching: None,
            long_writes: LongWrites::NONE,
            trial: None,
            detouring: None,
        }
    }

    /// The first request, of those that count from now on, has this PSN.
    pub(crate) fn begin(&mut self, psn: Psn) {
        if !self.begun {
            self.first = psn;
        }
        self.begun = true;
        self.acked = psn;
        self.heard = psn;
        self.sent = psn;
        self.next = psn;
        self.own_next = psn;
    }

    /// Whether an answer with this PSN may be to one of the requests that were seen, as long as it is not known what was
    /// answered. Of clients that send much without a pause, answers may be far behind.
    pub(crate) fn may_have_asked(&mut self, psn: Psn) -> bool {
        if self.sent.distance(self.first) > LONG_AGO || self.sent.precedes(self.first) {
            self.first = self.sent.sub(LONG_AGO as u32);
        }
        let ahead = psn.distance(self.sent);
        self.begun && if ahead >= 0 { ahead < self.unsure_psns() } else { !psn.precedes(self.first) }
    }

    /// Returns how many PSNs the last request takes at most, if that is a READ of unknown PSN count.
    pub(crate) fn unsure_psns(&self) -> i32 {
        self.unsure.map_or(0, |len| psns_of(len.get()) as i32)
    }

    /// A request was seen that others overtook.
    pub(crate) fn saw(&mut self, psn: Psn) {
        if psn.precedes(self.first) {
            self.first = psn;
            self.cm_params = None;
        }
    }

    /// PSNs with which its client's requests may come.
    pub(crate) fn window(&self) -> Window {
        let ahead = BEHIND + self.unsure_psns();
        Window { acked: self.acked, next: self.next, ahead }
    }

    /// Returns whether a request may update its client's headers and port. A forged request that does so diverts responses, so its
    /// PSN has to be nearly as exact as that of a request that the server executes.
    pub(crate) fn is_believed(&self, psn: Psn) -> bool {
        self.stage < Stage::Strict
            || psn == self.next
            || (psn.precedes(self.next) && self.acked.distance(psn) <= NEAR)
    }

    /// PSNs with which the server's answers may come, on the own connection.
    pub(crate) fn own_window(&self) -> Window {
        let span = self.next.distance(self.acked).max(0) as u32;
        let ahead = BEHIND + self.unsure_psns();
        Window { acked: self.own_next.sub(span), next: self.own_next, ahead }
    }

    /// Whether an answer with this PSN may belong to the connection: to what the server has got, or what its client sent.
    #[inline]
    pub(crate) fn may_answer(&self, psn: Psn) -> bool {
        !self.begun || self.own_window().fits(psn) || self.window().fits(psn)
    }

    /// How far it has come: what has been sent, and what is done
    pub(crate) fn came(&self) -> (Psn, Psn) {
        (self.sent, self.acked)
    }

    /// Nothing is under way.
    pub(crate) fn is_quiet(&self) -> bool {
        self.acked == self.sent
    }

    /// Whether a request is under way on the own connection.
    pub(crate) fn is_private(&self) -> bool {
        self.rereading || (self.via == NONE && (!self.is_quiet() || self.in_message))
    }

    pub(crate) fn holds(&self) -> bool {
        self.held[0] != NONE
    }

    /// Updates `alive_at` from `showing`, now that everything before `acked` is done on the own connection.
    pub(crate) fn show_alive(&mut self) {
        let Some((psn, left)) = self.showing else { return };
        if !self.acked.precedes(psn) {
            self.showing = None;
            self.alive_at = left;
            if self.existed_at == Nanos::ZERO {
                self.existed_at = left;
            }
        }
    }

    /// Bit of a structure's number; those from 31 on share one.
    pub(crate) fn bit_of(structure: u8) -> u32 {
        1 << structure.min(31)
    }

    /// Notes that the last request, which leaves now, is for a structure's memory.
    pub(crate) fn asks_structure(&mut self, structure: u8, now: Nanos) {
        if self.structures & Self::bit_of(structure) == 0 && self.asking_structure.is_none() {
            self.asking_structure = Some((self.sent, now, structure));
        }
    }

    /// Updates `structures` now that everything before `acked` is done on the own connection.
    pub(crate) fn show_structure(&mut self) {
        let acked = self.acked;
        if let Some((_, left, structure)) = self.asking_structure.take_if(|(psn, ..)| !acked.precedes(*psn)) {
            if self.structures == 0 {
                self.structures_since = left;
            }
            self.structures |= Self::bit_of(structure);
        }
    }

    /// Forgets which structures were asked for: the requests that come now may be those of another connection with the same queue
    /// pair numbers, after a restart of the server.
    pub(crate) fn forget_structures(&mut self) {
        (self.asking_structure, self.structures) = (None, 0);
    }

    /// Returns the time in which the server's queue pair is known to have existed, if it is of the process that has this structure.
    pub(crate) fn lifetime(&self, structure: u8) -> Option<Lifetime> {
        let first = self.structures_since;
        (self.structures & Self::bit_of(structure) != 0)
            .then_some(Lifetime { first, last: self.alive_at.max(first) })
    }

    /// Extends `taken` by a READ of `len` bytes that is repeated, late, or of unknown PSN count. The server takes requests with
    /// PSNs of its responses for duplicates, and acknowledges those without looking at the R_key.
    pub(crate) fn take_psns(&mut self, psn: Psn, len: u32) {
        let end = psn.add(psns_of(len));
        self.taken = Some(self.taken.map_or(end, |taken| taken.later(end)));
    }

    /// Returns whether the PSN of the last request is behind those that READs may have taken.
    pub(crate) fn is_unique(&mut self) -> bool {
        let last = self.sent.sub(1);
        // Cleared as soon as it is passed, as PSNs wrap.
        self.taken.take_if(|taken| !last.precedes(*taken));
        self.unsure.is_none() && self.taken.is_none()
    }

    /// Memory that is there, now that everything before `acked` is done.
    pub(crate) fn reached(&mut self) -> Option<Memory> {
        self.reaching.take_if(|(psn, _)| !self.acked.precedes(*psn)).map(|(_, memory)| memory)
    }

    /// The last request was a READ of unknown count, and now comes one with this PSN: whether it took one. (If the PSN is
    /// further on, requests between may be lost.)
    pub(crate) fn took_one(&self, psn: Psn) -> bool {
        self.unsure.is_some_and(|len| len.get() <= 4096) && psn == self.next
    }

    /// Learns the path MTU from the length of a packet's payload, in bytes.
    #[inline]
    pub(crate) fn saw_payload(&mut self, len: usize) {
        self.longest = self.longest.max(len as u16);
    }

    /// How many PSNs a READ of `len` bytes takes, if that is known.
    pub(crate) fn count_of(&self, len: u32) -> Option<u32> {
        match u32::from(self.mtu) {
            0 => (len <= 256.max(self.longest.into())).then_some(1),
            mtu => Some(len.div_ceil(mtu).max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_ahead_are_of_the_last_read_if_it_may_take_as_many_psns() {
        let mut flow = Flow::new(0);
        flow.begin(Psn::new(0xff_fffe));
        let answers = |flow: &mut Flow, ahead: u32| flow.may_have_asked(flow.sent.add(ahead));
        assert!(!answers(&mut flow, 0), "no request has this PSN");
        // A READ of 1,024 bytes, whose first PSN is known: four at a path MTU of 256.
        flow.unsure = NonZero::new(1024);
        assert!((0..4).all(|ahead| answers(&mut flow, ahead)));
        assert!(!answers(&mut flow, 4));
        let first = flow.first;
        assert!(flow.may_have_asked(first.add(2)) && !flow.may_have_asked(first.sub(1)));
    }
}
