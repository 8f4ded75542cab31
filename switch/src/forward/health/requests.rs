//! PSNs of the requests to one queue pair: what is missing, late or sent again. Takes the same memory for any
//! number of packets. The terms are those of `understudy diagnose`.

use super::MAX_JUMP;
use crate::Nanos;
use rocev2::Psn;

/// Time within which a missing packet that arrives without a NAK was reordered rather than sent again
const REORDER: Nanos = Nanos::from_micros(200);
/// Ranges of missing PSNs that are remembered
const MAX_HOLES: usize = 4;
/// PSNs that a retransmission may skip, because the network lost them
const MAX_SKIP: i32 = 64;
/// Smallest path MTU, as a power of two
const MIN_MTU: u8 = 8;
/// Largest path MTU, as a power of two
const MAX_MTU: u8 = 12;

/// A range of PSNs that were not seen.
#[derive(Clone, Copy, Debug)]
struct Hole {
    from: Psn,
    len: u32,
    /// Time of the packet that revealed the hole
    at: Nanos,
    /// Whether the responder has asked for the packets
    refused: bool,
}

impl Hole {
    const NONE: Self = Self { from: Psn::ZERO, len: 0, at: Nanos::ZERO, refused: false };

    fn contains(&self, psn: Psn) -> bool {
        (0..self.len as i32).contains(&psn.distance(self.from))
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) psn: Psn,
    /// Whether the service retransmits: RC does, UC does not
    pub(super) reliable: bool,
    /// Bytes that a READ requests
    pub(super) read: Option<u32>,
}

/// What a request shows, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Findings {
    /// Packets before this one that were not seen
    pub(super) gap: u32,
    /// Packets before this one, or this one, that came late
    pub(super) reordered: u32,
    /// Packets before this one, or this one, that were sent again
    pub(super) retransmitted: u32,
}

/// Requests to one queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Requests {
    started: bool,
    /// PSN behind the latest new packet
    pub(super) next: Psn,
    /// Count of PSNs from `next` on that the latest READ may take, because the path MTU is not known
    uncertain: u32,
    /// Bytes that the latest READ requests, while `uncertain`
    read: u32,
    /// Next PSN of a retransmission in progress
    run: Option<Psn>,
    /// Late packets of which the next packet decides whether they were reordered or sent again, and the PSN
    /// behind the last of them
    late: (u32, Psn),
    /// Path MTU as a power of two; 0 if not known
    mtu: u8,
    /// Whether a packet or the communication manager has shown the path MTU
    shown: bool,
    /// Path MTU that explains how many PSNs the READ before the latest took, or 0
    guess: u8,
    holes: [Hole; MAX_HOLES],
}

impl Requests {
    /// Returns the state before the first request.
    pub(super) const fn new() -> Self {
        Self {
            started: false,
            next: Psn::ZERO,
            uncertain: 0,
            read: 0,
            run: None,
            late: (0, Psn::ZERO),
            mtu: 0,
            shown: false,
            guess: 0,
            holes: [Hole::NONE; MAX_HOLES],
        }
    }

    /// Begins a connection whose first PSN is known, and its path MTU in bytes, if it is not zero.
    pub(super) const fn connect(&mut self, first: Psn, mtu: u32) {
        *self = Self { started: true, next: first, ..Self::new() };
        self.learn_mtu(mtu);
    }

    /// Learns the path MTU in bytes from the payload of a packet that fills it.
    pub(super) const fn learn_mtu(&mut self, payload: u32) {
        if payload.is_power_of_two() && payload >= 1 << MIN_MTU && payload <= 1 << MAX_MTU {
            (self.mtu, self.shown) = (payload.trailing_zeros() as u8, true);
        }
    }

    /// Returns whether a packet or the communication manager has shown the path MTU.
    pub(super) const fn knows_mtu(&self) -> bool {
        self.shown
    }

    /// Returns whether a request with PSN [`next`](Self::next) is new and shows nothing else, so that it need
    /// not be [taken](Self::take): `next` may be advanced.
    pub(super) const fn is_settled(&self) -> bool {
        self.started && self.run.is_none() && self.late.0 == 0 && self.uncertain == 0
    }

    /// Returns whether a request with this PSN continues the connection.
    pub(super) const fn continues(&self, psn: Psn) -> bool {
        self.started && psn.distance(self.next).unsigned_abs() <= MAX_JUMP
    }

    /// Takes a request. One that does not [continue](Self::continues) the connection begins another.
    pub(super) fn take(&mut self, request: Request, now: Nanos) -> Findings {
        if !self.continues(request.psn) {
            self.connect(request.psn, 0);
        }
        let ahead = request.psn.distance(self.next);
        if ahead >= 0 { self.advance(request, ahead as u32, now) } else { self.go_back(request, now) }
    }

    /// Notes that the responder has refused the packet with this PSN, because it misses it.
    pub(super) fn refuse(&mut self, psn: Psn) {
        for hole in self.holes.iter_mut().filter(|hole| hole.contains(psn)) {
            hole.refused = true;
        }
    }

    fn advance(&mut self, request: Request, ahead: u32, now: Nanos) -> Findings {
        let (reordered, _) = core::mem::take(&mut self.late);
        self.run = None;
        let gap = ahead.saturating_sub(self.uncertain);
        if gap > 0 {
            let hole = Hole { from: request.psn.sub(gap), len: gap, at: now, refused: false };
            self.holes.rotate_right(1);
            self.holes[0] = hole;
        } else if self.uncertain > 0 {
            self.learn_span(ahead);
        }
        let (least, most) = self.span(request.read);
        self.next = request.psn.add(least);
        self.uncertain = most - least;
        self.read = request.read.unwrap_or(0);
        Findings { gap, reordered, retransmitted: 0 }
    }

    /// Returns the least and the largest count of PSNs that a request takes.
    fn span(&self, read: Option<u32>) -> (u32, u32) {
        let Some(bytes) = read else { return (1, 1) };
        let span = |mtu: u8| bytes.div_ceil(1 << mtu).max(1);
        if self.mtu > 0 { (span(self.mtu), span(self.mtu)) } else { (span(MAX_MTU), span(MIN_MTU)) }
    }

    /// Learns the path MTU from the count of PSNs that the latest READ took, `beyond` the least count. Two READs
    /// have to agree, as one may have been followed by a loss.
    fn learn_span(&mut self, beyond: u32) {
        let (least, _) = self.span(Some(self.read));
        let took = least + beyond;
        let mut fitting = (MIN_MTU..=MAX_MTU).filter(|&mtu| self.read.div_ceil(1 << mtu) == took);
        let Some(mtu) = fitting.next().filter(|_| fitting.next().is_none()) else { return };
        if core::mem::replace(&mut self.guess, mtu) == mtu {
            self.mtu = mtu;
        }
    }

    /// Takes a request with a PSN that was passed before.
    fn go_back(&mut self, request: Request, now: Nanos) -> Findings {
        let Request { psn, reliable, read } = request;
        let behind = psn.add(self.span(read).0);
        let missing = self.holes.iter().position(|hole| hole.contains(psn));
        let in_run = self.run.is_some_and(|run| (0..MAX_SKIP).contains(&psn.distance(run)));
        let mut findings = Findings::default();
        match missing.map(|at| self.holes[at]) {
            Some(hole) if !in_run && (!reliable || !(hole.refused || now.since(hole.at) > REORDER)) => {
                self.late = (self.late.0 + 1, behind);
            }
            // The network has duplicated it.
            None if !reliable => {}
            _ => {
                // A requester that goes back continues with packets that were seen: late ones before them were
                // sent again, too.
                let (late, at) = core::mem::take(&mut self.late);
                let again = missing.is_none() && at == psn;
                findings.reordered = if again { 0 } else { late };
                findings.retransmitted = 1 + if again { late } else { 0 };
                self.run = Some(behind);
            }
        }
        if let Some(at) = missing {
            self.fill(at, psn);
        }
        findings
    }

    /// Removes a PSN from a hole. The second part of a hole that this splits takes the place of the oldest.
    fn fill(&mut self, at: usize, psn: Psn) {
        let hole = self.holes[at];
        let front = Hole { len: psn.distance(hole.from) as u32, ..hole };
        let back = Hole { from: psn.add(1), len: hole.len - front.len - 1, ..hole };
        self.holes[at] = if back.len > 0 { back } else { front };
        if front.len > 0 && back.len > 0 {
            let free = self.holes.iter().position(|hole| hole.len == 0);
            // The parts have the age of the whole, so that one of them may be the oldest.
            self.holes[free.unwrap_or(MAX_HOLES - 1)] = front;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Nanos = Nanos(1_000);
    const LATER: Nanos = Nanos::from_millis(4);

    fn request(psn: u32) -> Request {
        Request { psn: Psn::new(psn), reliable: true, read: None }
    }

    /// Takes requests at their times and returns the sums: gaps, reordered, retransmitted.
    fn sums(requests: &mut Requests, taken: impl IntoIterator<Item = (Request, Nanos)>) -> [u32; 3] {
        taken.into_iter().fold([0; 3], |[gap, reordered, retransmitted], (request, at)| {
            let found = requests.take(request, at);
            [gap + found.gap, reordered + found.reordered, retransmitted + found.retransmitted]
        })
    }

    fn of(psns: &[u32], from: usize, later: Nanos) -> [u32; 3] {
        let at = |n: usize| if n < from { Nanos::ZERO } else { later };
        let taken = psns.iter().enumerate().map(|(n, &psn)| (request(psn), at(n)));
        sums(&mut Requests::new(), taken)
    }

    #[test]
    fn sequences_without_loss_show_nothing() {
        assert_eq!(of(&[0xff_fffe, 0xff_ffff, 0, 1], 9, SOON), [0, 0, 0], "PSNs wrap");
        assert_eq!(of(&[5, 6, 800_000, 800_001], 9, SOON), [0, 0, 0], "another connection begins");
    }

    #[test]
    fn lost_packets_are_a_gap_and_their_repetition_a_retransmission() {
        assert_eq!(of(&[1, 2, 5, 6], 9, SOON), [2, 0, 0]);
        assert_eq!(of(&[1, 2, 5, 6, 3, 4, 5, 6, 7], 4, LATER), [2, 0, 4], "after a time-out");
        assert_eq!(of(&[1, 2, 5, 6, 3, 4, 5, 6, 7], 4, SOON), [2, 0, 4], "after a NAK that was not seen");
        assert_eq!(of(&[1, 2, 3, 2, 3, 4, 2, 3, 4, 5], 9, SOON), [0, 0, 5], "lost behind, twice");
        assert_eq!(of(&[1, 2, 3, 4, 5, 6, 2, 3, 5, 6, 7], 9, SOON), [0, 0, 4], "lost in a retransmission");
    }

    #[test]
    fn late_packets_without_a_retransmission_are_reordered() {
        assert_eq!(of(&[1, 3, 2, 4], 2, SOON), [1, 1, 0]);
        assert_eq!(of(&[1, 5, 3, 2, 4, 6], 2, SOON), [3, 3, 0], "a hole is split");
        assert_eq!(of(&[1, 4, 2, 3, 5], 2, SOON), [2, 2, 0]);
        assert_eq!(of(&[1, 3, 2, 4], 2, LATER), [1, 0, 1], "too late");
    }

    #[test]
    fn packets_that_were_refused_are_sent_again() {
        let mut requests = Requests::new();
        sums(&mut requests, [1, 3].map(|psn| (request(psn), Nanos::ZERO)));
        requests.refuse(Psn::new(2));
        assert_eq!(sums(&mut requests, [2, 4].map(|psn| (request(psn), SOON))), [0, 0, 1]);
    }

    #[test]
    fn unreliable_requests_are_never_sent_again() {
        let of = |psns: &[u32], at: Nanos| {
            let unreliable = |&psn: &u32| (Request { reliable: false, ..request(psn) }, at);
            sums(&mut Requests::new(), psns.iter().map(unreliable))
        };
        assert_eq!(of(&[1, 2, 5], SOON), [2, 0, 0]);
        assert_eq!(of(&[1, 2, 2, 3], SOON), [0, 0, 0], "duplicated");
        assert_eq!(of(&[1, 3, 2, 4], LATER), [1, 1, 0]);
    }

    #[test]
    fn reads_take_the_psns_of_their_responses() {
        let read = |psn: u32, bytes: u32| (Request { read: Some(bytes), ..request(psn) }, Nanos::ZERO);
        let plain = |psn: u32| (request(psn), Nanos::ZERO);
        for (mtu, next) in [(256, 16), (512, 8), (1024, 4), (4096, 1)] {
            let mut requests = Requests::new();
            let pairs = |first: u32| (0..2).map(move |n| first + n * (next + 1));
            let taken = pairs(0).flat_map(|psn| [read(psn, 4096), plain(psn + next)]);
            assert_eq!(sums(&mut requests, taken), [0; 3], "MTU {mtu} is learned");
            let taken = [read(2 * next + 2, 4096), plain(3 * next + 3)];
            assert_eq!(sums(&mut requests, taken), [1, 0, 0], "MTU {mtu} is known");
        }
        let mut requests = Requests::new();
        assert_eq!(
            sums(&mut requests, [read(0, 2000), plain(4), read(5, 5000)]),
            [0; 3],
            "a loss, or MTU 512"
        );
        assert_eq!(
            sums(&mut requests, [plain(10), plain(11)]),
            [0; 3],
            "one READ does not show the path MTU"
        );
        let mut requests = Requests::new();
        assert_eq!(sums(&mut requests, [read(0, 1000), plain(7)]), [3, 0, 0], "no path MTU explains 7 PSNs");
        requests.connect(Psn::new(0), 1024);
        let taken = [read(0, 5000), read(2, 3000), plain(5), plain(6)];
        assert_eq!(sums(&mut requests, taken), [0, 0, 1], "a retry of the rest of a READ");
    }
}
