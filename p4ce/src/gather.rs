//! The gather (P4CE, section IV-C): combines the replicas' acknowledgements into one acknowledgement for the
//! leader.
//!
//! The paper counts acknowledgements per PSN. Such a count reaches a quorum wrongly when a replica
//! acknowledges a retransmission after a late acknowledgement of the original, and misses a quorum when a NIC
//! acknowledges several packets at once. Here each replica has the newest PSN up to which it holds
//! everything. The *frontier* is the f-th largest of these PSNs: f replicas hold everything up to it. The
//! leader never receives an acknowledgement beyond the frontier.
//!
//! All PSNs and MSNs in this module are the leader's.

use rocev2::aeth::{Aeth, Credit, NakCode, RnrTimer, Syndrome};
use rocev2::{Msn, Psn};
use switch::Nanos;

/// Limit of replicas in a group
pub const MAX_MEMBERS: usize = 16;
/// Limit of PSNs that a leader's packet may skip and still count as sent, because the network reordered
/// packets. After a longer gap the replicas send NAKs. The limit also keeps a packet that is forged in the
/// leader's name from making forged acknowledgements with an arbitrary PSN plausible.
const MAX_SKIPPED: i32 = 64;
/// Limit of packets that a replica may be behind the frontier: at twice this distance PSNs before and after
/// are indistinguishable.
pub const MAX_LAG: u32 = 1 << 22;

/// Progress of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    /// PSN up to which it holds everything
    acked: Psn,
    /// MSN of the response that acknowledged `acked`
    msn: Msn,
    /// Newest message for which it has credits; `None` is unlimited
    limit: Option<Msn>,
    /// Timer of its latest RNR NAK for the packet after `acked`
    rnr: Option<RnrTimer>,
    /// Whether its acknowledgements count
    member: bool,
    /// Value of `acked` at the latest check, and since when it has not changed; `None` while it is not behind
    behind: Option<(Psn, Nanos)>,
}

/// An acknowledgement or NAK for the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderResponse {
    /// PSN of the response
    pub psn: Psn,
    /// Syndrome, with the leader's MSN and credits
    pub aeth: Aeth,
}

/// Result of a replica's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GatherResult {
    /// Send this to the leader.
    Respond(LeaderResponse),
    /// The response was counted; nothing is sent to the leader.
    Absorbed,
    /// The response carries nothing new, or nothing plausible.
    Stale,
    /// The replica sent a fatal NAK, and a quorum remains without it: exclude it. The answer is sent to the
    /// leader if the response moved the frontier.
    Failed(Option<LeaderResponse>),
}

/// Acknowledgement state of a group.
#[derive(Clone, Debug)]
#[repr(C)]
pub struct Gather {
    /// The PSN after the newest that the leader has sent
    next: Psn,
    /// The newest PSN that a quorum holds, and its MSN
    frontier: Psn,
    msn: Msn,
    /// The PSN of the last NAK sent to the leader, until the leader has gone back to it
    pending_nak: Option<Psn>,
    /// The PSN and timer of the last RNR NAK sent to the leader, until the leader has gone back to it
    pending_rnr_nak: Option<(Psn, RnrTimer)>,
    /// Credits of the last acknowledgement sent to the leader
    credit: Credit,
    outvote: bool,
    /// Replicas dropped for their lag and not reported yet, one bit each
    dropped: u16,
    /// Limit of packets that a replica may be behind the frontier
    max_lag: i32,
    quorum: usize,
    members: [Progress; MAX_MEMBERS],
    count: usize,
    /// Planted bug
    bug: Option<crate::Bug>,
}

impl Gather {
    /// Creates the state of `count` replicas, of which `quorum` have to hold a packet. The leader's first PSN
    /// is `first`.
    ///
    /// # Panics
    /// If `quorum` is not in 1..=`count`, or `count` exceeds [`MAX_MEMBERS`].
    pub fn new(count: usize, quorum: usize, outvote: bool, first: Psn) -> Self {
        assert!(
            (1..=count).contains(&quorum) && count <= MAX_MEMBERS,
            "invalid quorum: {quorum} of {count} replicas, at most {MAX_MEMBERS}"
        );
        let acked = first.sub(1);
        let member = Progress { acked, msn: Msn::ZERO, limit: None, rnr: None, member: true, behind: None };
        let unused = Progress { member: false, ..member };
        Self {
            quorum,
            outvote,
            dropped: 0,
            max_lag: MAX_LAG as i32,
            next: first,
            frontier: acked,
            msn: Msn::ZERO,
            pending_nak: None,
            pending_rnr_nak: None,
            credit: Credit::UNLIMITED,
            members: core::array::from_fn(|at| if at < count { member } else { unused }),
            count,
            bug: None,
        }
    }

    /// Drops replicas that are more than `packets` behind the frontier; values above [`MAX_LAG`], the
    /// default, are reduced to it.
    #[must_use]
    pub fn with_max_lag(mut self, packets: u32) -> Self {
        self.max_lag = packets.min(MAX_LAG) as i32;
        self
    }

    /// Plants a bug.
    pub fn plant(&mut self, bug: Option<crate::Bug>) {
        self.bug = bug;
    }

    /// Returns whether this bug was planted. Release builds have no bugs.
    #[inline]
    fn has_bug(&self, bug: crate::Bug) -> bool {
        cfg!(debug_assertions) && self.bug == Some(bug)
    }

    /// Returns the newest PSN that a quorum holds.
    pub fn frontier(&self) -> Psn {
        self.frontier
    }

    /// Returns the PSN after the newest that the leader has sent.
    #[inline]
    pub fn next(&self) -> Psn {
        self.next
    }

    /// Returns the newest PSN up to which a replica holds everything; `None` if it is excluded.
    pub fn acked(&self, member: usize) -> Option<Psn> {
        let progress = self.members.get(member)?;
        progress.member.then_some(progress.acked)
    }

    /// Returns the number of replicas whose acknowledgements count.
    pub fn members(&self) -> usize {
        self.members[..self.count].iter().filter(|progress| progress.member).count()
    }

    /// Returns the number of replicas that have to hold a packet.
    pub fn quorum(&self) -> usize {
        self.quorum
    }

    /// Returns whether there are enough replicas for a quorum.
    pub fn is_possible(&self) -> bool {
        self.members() >= self.quorum
    }

    /// Excludes a replica: its acknowledgements no longer count. The frontier does not go back.
    pub fn exclude(&mut self, member: usize) {
        if let Some(progress) = self.members.get_mut(member) {
            progress.member = false;
        }
    }

    /// Returns a replica that was dropped for its lag, once per replica: no packet may be sent to it any
    /// more.
    #[inline]
    pub fn take_dropped(&mut self) -> Option<usize> {
        let member = self.dropped.trailing_zeros();
        // Clears the lowest bit.
        self.dropped &= self.dropped.wrapping_sub(1);
        (member < u16::BITS).then_some(member as usize)
    }

    /// Changes the quorum. Returns an acknowledgement for the leader if the frontier moves.
    pub fn set_quorum(&mut self, quorum: usize) -> Option<LeaderResponse> {
        self.quorum = quorum.clamp(1, self.count);
        self.advance()
    }

    /// Records a packet of the leader, which is passed to the replicas. If a quorum already holds it, the
    /// leader missed the acknowledgement, which is returned to be sent again.
    #[inline]
    pub fn on_request(&mut self, psn: Psn, ack_req: bool) -> Option<LeaderResponse> {
        if psn == self.next {
            self.next = psn.add(1);
            return None;
        }
        self.on_request_out_of_order(psn, ack_req)
    }

    fn on_request_out_of_order(&mut self, psn: Psn, ack_req: bool) -> Option<LeaderResponse> {
        if (1..=MAX_SKIPPED).contains(&psn.distance(self.next)) {
            self.next = psn.add(1);
        }
        if self.pending_nak.is_some_and(|pending| !pending.precedes(psn)) {
            self.pending_nak = None;
        }
        if self.pending_rnr_nak.is_some_and(|(pending, _)| !pending.precedes(psn)) {
            self.pending_rnr_nak = None;
        }
        (ack_req && !self.frontier.precedes(psn)).then(|| self.acknowledge())
    }

    /// Returns whether the leader may wait for a request with this PSN: the next one, or one after the
    /// frontier that was passed on. A responder sends no NAK for any other request: it checks a packet's PSN
    /// first (IB 9.7.4.1).
    pub fn is_outstanding(&self, psn: Psn) -> bool {
        psn == self.next || (psn.precedes(self.next) && self.frontier.precedes(psn))
    }

    /// Returns the NAK for a request that the switch refuses. It implicitly acknowledges nothing that no
    /// quorum holds.
    pub fn refuse(&self, psn: Psn, code: NakCode) -> LeaderResponse {
        LeaderResponse { psn: self.clamped_to_frontier(psn), aeth: Aeth::new(Syndrome::Nak(code), self.msn) }
    }

    /// Processes a replica's response. `psn` is in the leader's numbering.
    #[inline]
    pub fn on_response(&mut self, member: usize, psn: Psn, aeth: Aeth) -> GatherResult {
        let Some(progress) = self.members[..self.count].get(member).filter(|progress| progress.member) else {
            return GatherResult::Stale;
        };
        // A response can neither acknowledge nor NAK a packet that was never sent; a NAK may name the next
        // one.
        let (held, missing) = match aeth.kind() {
            Syndrome::Ack(_) => (psn, false),
            Syndrome::Nak(_) | Syndrome::RnrNak(_) => (psn.sub(1), true),
            Syndrome::Reserved(_) => return GatherResult::Stale,
        };
        let gained = self.distance(held, progress.acked);
        if !held.precedes(self.next) || gained < 0 {
            return GatherResult::Stale;
        }
        self.record(member, held, gained > 0, aeth);
        let advanced = self.advance();
        let nak = if missing {
            match aeth.kind() {
                Syndrome::RnrNak(timer) => self.on_not_ready(member, psn, timer),
                Syndrome::Nak(NakCode::PSN_SEQUENCE_ERROR) => self.on_missing(psn),
                Syndrome::Nak(code) => {
                    if self.outvote && self.members() > self.quorum {
                        return GatherResult::Failed(advanced);
                    }
                    Some(self.refuse(psn, code))
                }
                Syndrome::Ack(_) | Syndrome::Reserved(_) => None,
            }
        } else {
            None
        };
        match nak.or(advanced).or_else(|| self.renewed_credit()) {
            Some(response) => GatherResult::Respond(response),
            None => GatherResult::Absorbed,
        }
    }

    /// Returns how far PSN `a` is ahead of `b`.
    #[inline]
    fn distance(&self, a: Psn, b: Psn) -> i32 {
        if self.has_bug(crate::Bug::WrongWrap) {
            return a.get() as i32 - b.get() as i32;
        }
        a.distance(b)
    }

    #[inline]
    fn record(&mut self, member: usize, held: Psn, progressed: bool, aeth: Aeth) {
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

    /// Returns the newest PSN that a quorum holds, as a distance from the frontier, and its MSN.
    #[inline]
    fn quorum_psn(&self) -> Option<(i32, Msn)> {
        let quorum = self.required();
        // Sorted by distance, largest first; for a few replicas nothing is faster than insertion.
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

    /// Returns the number of replicas that have to hold a packet.
    #[inline]
    fn required(&self) -> usize {
        if self.has_bug(crate::Bug::FirstAck) {
            return 1;
        }
        if self.has_bug(crate::Bug::Minority) {
            return (self.quorum - 1).max(1);
        }
        self.quorum
    }

    /// Moves the frontier, if a quorum holds more.
    #[inline]
    fn advance(&mut self) -> Option<LeaderResponse> {
        let (ahead, msn) = self.quorum_psn().filter(|(ahead, _)| *ahead > 0)?;
        self.frontier = self.frontier.add(ahead as u32);
        self.msn = msn;
        for (member, progress) in self.members[..self.count].iter_mut().enumerate() {
            let is_dropped = progress.member && self.frontier.distance(progress.acked) > self.max_lag;
            progress.member &= !is_dropped;
            self.dropped |= u16::from(is_dropped) << member;
        }
        if self.has_bug(crate::Bug::LagIgnored) {
            let lagging = self.members[..self.count].iter_mut();
            lagging.for_each(|progress| progress.acked = progress.acked.later(self.frontier));
        }
        self.forget_pending_naks();
        Some(self.acknowledge())
    }

    /// Forgets NAKs of packets that a quorum holds by now: a leader that receives the acknowledgement does
    /// not go back to them, and a pending NAK suppresses all later ones.
    #[inline]
    fn forget_pending_naks(&mut self) {
        if self.has_bug(crate::Bug::StaleNakPending) {
            return;
        }
        let frontier = self.frontier;
        self.pending_nak.take_if(|pending| !frontier.precedes(*pending));
        self.pending_rnr_nak.take_if(|(pending, _)| !frontier.precedes(*pending));
    }

    /// Returns the newest PSN that a NAK may carry, at most `psn`: a NAK acknowledges everything before its
    /// PSN (IB 9.7.5.2.8).
    fn clamped_to_frontier(&self, psn: Psn) -> Psn {
        let limit = self.frontier.add(1);
        if limit.precedes(psn) { limit } else { psn }
    }

    fn acknowledge(&mut self) -> LeaderResponse {
        self.credit = self.credits();
        LeaderResponse { psn: self.frontier, aeth: Aeth::new(Syndrome::Ack(self.credit), self.msn) }
    }

    /// Returns the credits of the replica with the fewest, counted from the frontier's MSN (IB 9.7.7.2.1).
    fn credits(&self) -> Credit {
        let limits =
            self.members[..self.count].iter().filter(|p| p.member).filter_map(|progress| progress.limit);
        limits
            .map(|limit| limit.distance(self.msn).max(0) as u32)
            .min()
            .map_or(Credit::UNLIMITED, Credit::at_most)
    }

    /// Returns an acknowledgement if credits are available again: a leader without credits waits, and sends
    /// nothing that would be acknowledged.
    fn renewed_credit(&mut self) -> Option<LeaderResponse> {
        (self.credit == Credit(0) && self.credits() != Credit(0)).then(|| self.acknowledge())
    }

    /// Returns whether a quorum holds the packet that a replica lacks, and `outvote` is set.
    fn is_outvoted(&self, psn: Psn) -> bool {
        self.outvote && !self.frontier.precedes(psn)
    }

    /// Handles a PSN sequence error NAK.
    fn on_missing(&mut self, psn: Psn) -> Option<LeaderResponse> {
        let back_to = self.clamped_to_frontier(psn);
        if self.is_outvoted(psn) || self.pending_nak.is_some_and(|pending| !back_to.precedes(pending)) {
            return None;
        }
        // The leader does not go back to a packet that was acknowledged.
        if self.frontier.precedes(back_to) {
            self.pending_nak = Some(back_to);
        }
        Some(self.refuse(psn, NakCode::PSN_SEQUENCE_ERROR))
    }

    /// Handles an RNR NAK.
    fn on_not_ready(&mut self, member: usize, psn: Psn, timer: RnrTimer) -> Option<LeaderResponse> {
        self.members[member].rnr = Some(timer);
        if self.is_outvoted(psn) {
            return None;
        }
        let back_to = self.clamped_to_frontier(psn);
        let waiting = self.members[..self.count].iter().filter(|progress| progress.member);
        let longest = waiting.filter_map(|progress| progress.rnr).max_by_key(|rnr| rnr.microseconds())?;
        let already_sent = self.pending_rnr_nak.is_some_and(|(pending, sent)| {
            !back_to.precedes(pending) && sent.microseconds() >= longest.microseconds()
        });
        if already_sent {
            return None;
        }
        if self.frontier.precedes(back_to) {
            self.pending_rnr_nak = Some((back_to, longest));
        }
        Some(LeaderResponse { psn: back_to, aeth: Aeth::new(Syndrome::RnrNak(longest), self.msn) })
    }

    /// Returns a replica that has been behind the frontier without progress for `after`.
    pub fn find_stalled(&mut self, now: Nanos, after: Nanos) -> Option<usize> {
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
