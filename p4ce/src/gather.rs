//! The gather (paper IV-C): what the replicas have acknowledged, and what the leader may be told.
//!
//! The paper counts acknowledgements per PSN. That reaches a quorum falsely when a retransmission meets a late
//! acknowledgement of the same replica, and misses one when a NIC acknowledges several packets at once. Here each replica
//! has the newest PSN up to which it holds everything, and the *frontier* is the f-th of them, the furthest first: what it
//! covers is held by f replicas. The leader is never told more.
//!
//! All PSNs and MSNs here are the leader's.

use rocev2::aeth::{Aeth, Credit, NakCode, RnrTimer, Syndrome};
use rocev2::{Msn, Psn};
use switch::Nanos;

/// Replicas of a group at most
pub const MAX_MEMBERS: usize = 16;
/// Packets of the leader that may overtake others and still count as sent. Behind a longer gap the replicas miss packets, and ask for
/// them; and a packet with an arbitrary PSN, forged in the leader's name, must not have acknowledgements believed that are none.
const MAX_SKIPPED: i32 = 64;
/// Packets that a replica may be behind the frontier at most: beyond twice as many, before and after look the same.
pub const MAX_LAG: u32 = 1 << 22;

/// What a replica has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    /// It holds everything up to here
    acked: Psn,
    /// The MSN that it told with that
    msn: Msn,
    /// The newest message that it has room for, unless it has no limit
    limit: Option<Msn>,
    /// It was not ready for what follows `acked`
    rnr: Option<RnrTimer>,
    /// Its acknowledgements count
    member: bool,
    /// What `acked` was when its progress was last looked at, and since when; `None` while it is not behind
    behind: Option<(Psn, Nanos)>,
}

/// What the leader is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The packet that it is about
    pub psn: Psn,
    /// Acknowledged or not, with the leader's MSN and credits
    pub aeth: Aeth,
}

/// What became of a response of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gathered {
    /// The leader is told this.
    Tell(Answer),
    /// It was taken in; there is nothing to tell.
    Absorbed,
    /// It says nothing new, or nothing that can be.
    Stale,
    /// It refuses for good, which a quorum of the others outvotes: it is to be excluded. The leader is told this, if a quorum
    /// holds more by what it has acknowledged.
    Failed(Option<Answer>),
}

/// The state of a group's acknowledgements.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Gather {
    /// The PSN behind the newest that the leader has sent
    next: Psn,
    /// The newest PSN that a quorum holds, and the MSN there
    frontier: Psn,
    msn: Msn,
    /// The leader was told to go back to here, and has not yet
    asked: Option<Psn>,
    /// It was told to wait for so long before it goes back to here, and has not yet
    asked_later: Option<(Psn, RnrTimer)>,
    /// The credits that it was told last
    credit: Credit,
    outvote: bool,
    /// Replicas dropped as too far behind and not reported yet, a bit each
    dropped: u16,
    /// Packets that a replica may be behind the frontier
    max_lag: i32,
    quorum: usize,
    members: [Progress; MAX_MEMBERS],
    count: usize,
    #[cfg(debug_assertions)]
    bug: Option<crate::Bug>,
}

impl Gather {
    /// `count` replicas, of which `quorum` have to hold a packet. The leader begins with `first`.
    ///
    /// # Panics
    /// If there are not 1 to `count` in a quorum, or more than [`MAX_MEMBERS`].
    pub fn new(count: usize, quorum: usize, outvote: bool, first: Psn) -> Self {
        assert!((1..=count).contains(&quorum) && count <= MAX_MEMBERS, "{quorum} of {count}");
        let acked = first.sub(1);
        let member = Progress { acked, msn: Msn::ZERO, limit: None, rnr: None, member: true, behind: None };
        let nobody = Progress { member: false, ..member };
        Self {
            quorum,
            outvote,
            dropped: 0,
            max_lag: MAX_LAG as i32,
            next: first,
            frontier: acked,
            msn: Msn::ZERO,
            asked: None,
            asked_later: None,
            credit: Credit::UNLIMITED,
            members: core::array::from_fn(|at| if at < count { member } else { nobody }),
            count,
            #[cfg(debug_assertions)]
            bug: None,
        }
    }

    /// Drops replicas that are more than `packets` behind the frontier, instead of [`MAX_LAG`], which is the most.
    #[must_use]
    pub fn with_max_lag(mut self, packets: u32) -> Self {
        self.max_lag = packets.min(MAX_LAG) as i32;
        self
    }

    /// Plants a bug.
    #[cfg(debug_assertions)]
    pub fn plant(&mut self, bug: Option<crate::Bug>) {
        self.bug = bug;
    }

    #[cfg(debug_assertions)]
    fn has_bug(&self, bug: crate::Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The newest PSN that a quorum holds
    pub fn frontier(&self) -> Psn {
        self.frontier
    }

    /// The PSN behind the newest that the leader has sent
    #[inline]
    pub fn next(&self) -> Psn {
        self.next
    }

    /// The newest PSN up to which a replica holds everything; `None` if it is excluded
    pub fn acked(&self, member: usize) -> Option<Psn> {
        let progress = self.members.get(member)?;
        progress.member.then_some(progress.acked)
    }

    /// Replicas whose acknowledgements count
    pub fn members(&self) -> usize {
        self.members[..self.count].iter().filter(|progress| progress.member).count()
    }

    /// Replicas that have to hold a packet
    pub fn quorum(&self) -> usize {
        self.quorum
    }

    /// Whether there are enough replicas for a quorum.
    pub fn is_possible(&self) -> bool {
        self.members() >= self.quorum
    }

    /// A replica's acknowledgements count no more. What a quorum held stays acknowledged.
    pub fn exclude(&mut self, member: usize) {
        if let Some(progress) = self.members.get_mut(member) {
            progress.member = false;
        }
    }

    /// Returns a replica that was dropped as too far behind, each once: no packet may be sent to it any more.
    #[inline]
    pub fn take_dropped(&mut self) -> Option<usize> {
        let member = self.dropped.trailing_zeros();
        // Clears the lowest bit.
        self.dropped &= self.dropped.wrapping_sub(1);
        (member < u16::BITS).then_some(member as usize)
    }

    /// Another quorum counts from now on: the leader is told if it holds more.
    pub fn set_quorum(&mut self, quorum: usize) -> Option<Answer> {
        self.quorum = quorum.clamp(1, self.count);
        self.advance()
    }

    /// The leader has sent a packet, which goes to the replicas. If a quorum holds it already, the leader has missed
    /// that, and is told again.
    #[inline]
    pub fn on_request(&mut self, psn: Psn, ack_req: bool) -> Option<Answer> {
        if psn == self.next {
            self.next = psn.add(1);
            return None;
        }
        self.on_request_out_of_order(psn, ack_req)
    }

    fn on_request_out_of_order(&mut self, psn: Psn, ack_req: bool) -> Option<Answer> {
        if (1..=MAX_SKIPPED).contains(&psn.distance(self.next)) {
            self.next = psn.add(1);
        }
        if self.asked.is_some_and(|asked| !asked.precedes(psn)) {
            self.asked = None;
        }
        if self.asked_later.is_some_and(|(asked, _)| !asked.precedes(psn)) {
            self.asked_later = None;
        }
        (ack_req && !self.frontier.precedes(psn)).then(|| self.acknowledge())
    }

    /// Returns whether a request with this PSN may be one that the leader waits for: the next one, or one behind the frontier that was
    /// passed on. A responder refuses no other (IB 9.7.4.1): it looks at a packet's PSN first.
    pub fn is_outstanding(&self, psn: Psn) -> bool {
        psn == self.next || (psn.precedes(self.next) && self.frontier.precedes(psn))
    }

    /// What the leader is told of a request that is refused here: that, but nothing that no quorum holds.
    pub fn refuse(&self, psn: Psn, code: NakCode) -> Answer {
        Answer { psn: self.clamped(psn), aeth: Aeth::new(Syndrome::Nak(code), self.msn) }
    }

    /// A replica's response: `psn` is the leader's.
    #[inline]
    pub fn on_response(&mut self, member: usize, psn: Psn, aeth: Aeth) -> Gathered {
        let Some(progress) = self.members[..self.count].get(member).filter(|progress| progress.member) else {
            return Gathered::Stale;
        };
        // What was never sent cannot be acknowledged, and not be missed: the next one may be expected, at most.
        let (held, missing) = match aeth.kind() {
            Syndrome::Ack(_) => (psn, false),
            Syndrome::Nak(_) | Syndrome::RnrNak(_) => (psn.sub(1), true),
            Syndrome::Reserved(_) => return Gathered::Stale,
        };
        let news = self.distance(held, progress.acked);
        if !held.precedes(self.next) || news < 0 {
            return Gathered::Stale;
        }
        self.note(member, held, news > 0, aeth);
        let advanced = self.advance();
        let told = if missing {
            match aeth.kind() {
                Syndrome::RnrNak(timer) => self.on_not_ready(member, psn, timer),
                Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => self.on_missing(psn),
                Syndrome::Nak(code) => {
                    if self.outvote && self.members() > self.quorum {
                        return Gathered::Failed(advanced);
                    }
                    Some(self.refuse(psn, code))
                }
                Syndrome::Ack(_) | Syndrome::Reserved(_) => None,
            }
        } else {
            None
        };
        match told.or(advanced).or_else(|| self.more_credit()) {
            Some(answer) => Gathered::Tell(answer),
            None => Gathered::Absorbed,
        }
    }

    #[cfg(not(debug_assertions))]
    #[allow(clippy::unused_self, reason = "it is otherwise with a bug in it")]
    #[inline]
    fn distance(&self, a: Psn, b: Psn) -> i32 {
        a.distance(b)
    }

    #[cfg(debug_assertions)]
    fn distance(&self, a: Psn, b: Psn) -> i32 {
        if self.has_bug(crate::Bug::WrongWrap) {
            return a.get() as i32 - b.get() as i32;
        }
        a.distance(b)
    }

    #[inline]
    fn note(&mut self, member: usize, held: Psn, progressed: bool, aeth: Aeth) {
        let progress = &mut self.members[member];
        if progressed {
            progress.acked = held;
            progress.rnr = None;
        }
        progress.msn = aeth.msn();
        if let Syndrome::Ack(credit) = aeth.kind() {
            progress.limit = credit.messages().map(|room| aeth.msn().add(room.into()));
        }
    }

    /// The furthest PSN that a quorum holds, as a distance from the frontier, and the MSN there
    #[inline]
    fn reached(&self) -> Option<(i32, Msn)> {
        let quorum = self.needed();
        // The furthest first; as short as a group is, nothing is faster than putting each in its place.
        let mut furthest = [(0, Msn::ZERO); MAX_MEMBERS];
        let mut len = 0;
        for progress in self.members[..self.count].iter().filter(|progress| progress.member) {
            let ahead = self.distance(progress.acked, self.frontier);
            let mut at = len;
            while at > 0 && furthest[at - 1].0 < ahead {
                furthest[at] = furthest[at - 1];
                at -= 1;
            }
            furthest[at] = (ahead, progress.msn);
            len += 1;
        }
        (len >= quorum).then(|| furthest[quorum - 1])
    }

    #[cfg(not(debug_assertions))]
    #[inline]
    fn needed(&self) -> usize {
        self.quorum
    }

    #[cfg(debug_assertions)]
    fn needed(&self) -> usize {
        let missing = usize::from(self.has_bug(crate::Bug::Minority));
        if self.has_bug(crate::Bug::FirstAck) { 1 } else { (self.quorum - missing).max(1) }
    }

    /// Moves the frontier, if a quorum holds more.
    #[inline]
    fn advance(&mut self) -> Option<Answer> {
        let (ahead, msn) = self.reached().filter(|(ahead, _)| *ahead > 0)?;
        self.frontier = self.frontier.add(ahead as u32);
        self.msn = msn;
        for (member, progress) in self.members[..self.count].iter_mut().enumerate() {
            let drops = progress.member && self.frontier.distance(progress.acked) > self.max_lag;
            progress.member &= !drops;
            self.dropped |= u16::from(drops) << member;
            #[cfg(debug_assertions)]
            if self.bug == Some(crate::Bug::LeftBehind) && progress.acked.precedes(self.frontier) {
                progress.acked = self.frontier;
            }
        }
        self.forget_asked();
        Some(self.acknowledge())
    }

    /// Forgets NAKs for packets that a quorum holds by now: a leader that hears so does not go back to them, and a NAK that
    /// it is still expected to follow withholds all later ones.
    #[inline]
    fn forget_asked(&mut self) {
        #[cfg(debug_assertions)]
        if self.has_bug(crate::Bug::AskedForever) {
            return;
        }
        let frontier = self.frontier;
        self.asked.take_if(|asked| !frontier.precedes(*asked));
        self.asked_later.take_if(|(asked, _)| !frontier.precedes(*asked));
    }

    /// The newest that may be told to be expected: what is before it counts as acknowledged (IB 9.7.5.2.8).
    fn clamped(&self, psn: Psn) -> Psn {
        let limit = self.frontier.add(1);
        if limit.precedes(psn) { limit } else { psn }
    }

    fn acknowledge(&mut self) -> Answer {
        self.credit = self.credits();
        Answer { psn: self.frontier, aeth: Aeth::new(Syndrome::Ack(self.credit), self.msn) }
    }

    /// What the replica with the least room has room for, counted from the frontier's MSN (IB 9.7.7.2.1)
    fn credits(&self) -> Credit {
        let limits =
            self.members[..self.count].iter().filter(|p| p.member).filter_map(|progress| progress.limit);
        limits
            .map(|limit| limit.distance(self.msn).max(0) as u32)
            .min()
            .map_or(Credit::UNLIMITED, Credit::at_most)
    }

    /// A leader without credits waits, and learns of new ones only if it is told.
    fn more_credit(&mut self) -> Option<Answer> {
        (self.credit == Credit(0) && self.credits() != Credit(0)).then(|| self.acknowledge())
    }

    /// Whether a quorum holds what a replica does not, and that is enough.
    fn is_outvoted(&self, psn: Psn) -> bool {
        self.outvote && !self.frontier.precedes(psn)
    }

    /// A replica misses a packet.
    fn on_missing(&mut self, psn: Psn) -> Option<Answer> {
        let back_to = self.clamped(psn);
        if self.is_outvoted(psn) || self.asked.is_some_and(|asked| !back_to.precedes(asked)) {
            return None;
        }
        // A leader that has been told of a packet does not go back to it.
        if self.frontier.precedes(back_to) {
            self.asked = Some(back_to);
        }
        Some(self.refuse(psn, NakCode::PSN_SEQUENCE_ERROR))
    }

    /// A replica has no receive for a message.
    fn on_not_ready(&mut self, member: usize, psn: Psn, timer: RnrTimer) -> Option<Answer> {
        self.members[member].rnr = Some(timer);
        if self.is_outvoted(psn) {
            return None;
        }
        let back_to = self.clamped(psn);
        let waiting = self.members[..self.count].iter().filter(|progress| progress.member);
        let longest = waiting.filter_map(|progress| progress.rnr).max_by_key(|rnr| rnr.microseconds())?;
        let told = self.asked_later.is_some_and(|(asked, told)| {
            !back_to.precedes(asked) && told.microseconds() >= longest.microseconds()
        });
        if told {
            return None;
        }
        if self.frontier.precedes(back_to) {
            self.asked_later = Some((back_to, longest));
        }
        Some(Answer { psn: back_to, aeth: Aeth::new(Syndrome::RnrNak(longest), self.msn) })
    }

    /// A replica that has been behind the frontier for so long without moving.
    pub fn find_silent(&mut self, now: Nanos, after: Nanos) -> Option<usize> {
        let frontier = self.frontier;
        for (at, progress) in self.members[..self.count].iter_mut().enumerate() {
            if !progress.member || !progress.acked.precedes(frontier) {
                progress.behind = None;
                continue;
            }
            match progress.behind {
                Some((was, since)) if was == progress.acked => {
                    if now.since(since) >= after {
                        return Some(at);
                    }
                }
                _ => progress.behind = Some((progress.acked, now)),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
