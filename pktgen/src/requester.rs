//! Requests that wait for answers: a ring of them for each queue pair. What an answer covers is IB 9.7.5: an acknowledgement
//! covers all up to its PSN, a NAK all before its PSN, and a response of a READ or an atomic nothing but its own request.

use rocev2::Psn;
use switch::Nanos;

/// A request under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    /// When its last packet was sent
    pub(crate) sent_at: Nanos,
    /// The position of its first packet: a PSN that does not wrap with 24 bits
    pub(crate) first: u32,
    /// PSNs that it takes, its response's included
    pub(crate) psns: u32,
}

impl Request {
    /// The PSN that answers it
    fn last(&self) -> Psn {
        Psn::new(self.first.wrapping_add(self.psns - 1))
    }
}

/// What an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Requests that it answered, and those that no answer can come to any more
    pub(crate) answered: u32,
    pub(crate) unanswered: u32,
    /// When the request was sent that it is the very answer to
    pub(crate) sent_at: Option<Nanos>,
}

/// The requests under way of a queue pair.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    /// Where the oldest is
    oldest: u16,
    len: u16,
    /// Packets of the oldest one's response that came, in order
    came: u32,
}

/// The requests under way of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    requests: Box<[Request]>,
    /// By queue pair
    rings: Box<[Ring]>,
    /// Of each queue pair
    most: u16,
    timeout: Nanos,
}

impl Requester {
    pub(crate) fn new(qps: u32, most: u16, timeout: Nanos) -> Self {
        Self {
            requests: vec![Request::default(); qps as usize * usize::from(most)].into(),
            rings: vec![Ring::default(); qps as usize].into(),
            most,
            timeout,
        }
    }

    fn at(&self, qp: u32, n: u16) -> usize {
        let place = (usize::from(self.rings[qp as usize].oldest) + usize::from(n)) % usize::from(self.most);
        qp as usize * usize::from(self.most) + place
    }

    fn oldest(&self, qp: u32) -> Option<Request> {
        (self.rings[qp as usize].len > 0).then(|| self.requests[self.at(qp, 0)])
    }

    fn pop(&mut self, qp: u32) {
        let ring = &mut self.rings[qp as usize];
        *ring = Ring { oldest: (ring.oldest + 1) % self.most, len: ring.len - 1, came: 0 };
    }

    /// Whether there is room for another request; how many were given up to make it.
    #[inline]
    pub(crate) fn make_room(&mut self, qp: u32, now: Nanos) -> (bool, u32) {
        let mut given_up = 0;
        while self.rings[qp as usize].len == self.most {
            let oldest = self.requests[self.at(qp, 0)];
            if now.since(oldest.sent_at) < self.timeout {
                return (false, given_up);
            }
            self.pop(qp);
            given_up += 1;
        }
        (true, given_up)
    }

    /// A request was sent; there was room for it.
    #[inline]
    pub(crate) fn push(&mut self, qp: u32, request: Request) {
        let at = self.at(qp, self.rings[qp as usize].len);
        self.requests[at] = request;
        self.rings[qp as usize].len += 1;
    }

    /// An acknowledgement of all up to this PSN came. `came` says of a request whether all of its packets are known to have
    /// arrived.
    #[inline]
    pub(crate) fn acknowledge(&mut self, qp: u32, psn: Psn, came: impl Fn(&Request) -> bool) -> Ended {
        let mut ended = Ended::default();
        while let Some(oldest) = self.oldest(qp)
            && psn.distance(oldest.last()) >= 0
        {
            self.pop(qp);
            if !came(&oldest) {
                ended.unanswered += 1;
                continue;
            }
            ended.answered += 1;
            if psn == oldest.last() {
                ended.sent_at = Some(oldest.sent_at);
            }
        }
        ended
    }

    /// A NAK of this PSN came: the request that has it was refused, and is not repeated; of those before it, `covers` says whether
    /// they are covered.
    pub(crate) fn refuse(&mut self, qp: u32, psn: Psn, covers: impl Fn(&Request) -> bool) -> Ended {
        let mut ended = Ended::default();
        while let Some(oldest) = self.oldest(qp)
            && psn.distance(Psn::new(oldest.first)) >= 0
        {
            self.pop(qp);
            let before = psn.distance(oldest.last()) > 0;
            let covered = before && covers(&oldest);
            ended.answered += u32::from(covered);
            ended.unanswered += u32::from(!covered);
        }
        ended
    }

    /// A packet of a response came. It answers its request if it is the last, and all others came before it, in order; a request
    /// before it whose response is not whole will never have an answer.
    #[inline]
    pub(crate) fn respond(&mut self, qp: u32, psn: Psn) -> Ended {
        let mut ended = Ended::default();
        while let Some(oldest) = self.oldest(qp) {
            let distance = psn.distance(oldest.last());
            if distance > 0 {
                self.pop(qp);
                ended.unanswered += 1;
                continue;
            }
            let ring = &mut self.rings[qp as usize];
            ring.came += u32::from(psn == Psn::new(oldest.first).add(ring.came));
            if distance == 0 {
                if ring.came == oldest.psns {
                    ended.answered += 1;
                    ended.sent_at = Some(oldest.sent_at);
                } else {
                    ended.unanswered += 1;
                }
                self.pop(qp);
            }
            break;
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at: u64, first: u32, psns: u32) -> Request {
        Request { sent_at: Nanos(at), first, psns }
    }

    fn ended(answered: u32, unanswered: u32, sent_at: Option<u64>) -> Ended {
        Ended { answered, unanswered, sent_at: sent_at.map(Nanos) }
    }

    /// Of one, four and two PSNs, over the end of their circle.
    fn three() -> Requester {
        let mut requester = Requester::new(2, 3, Nanos(100));
        for (n, (first, psns)) in [(0xff_fffe, 1), (0xff_ffff, 4), (0x100_0003, 2)].into_iter().enumerate() {
            assert_eq!(requester.make_room(1, Nanos(n as u64)), (true, 0));
            requester.push(1, request(n as u64, first, psns));
        }
        assert_eq!(requester.make_room(1, Nanos(50)), (false, 0));
        assert_eq!(requester.make_room(0, Nanos(50)), (true, 0), "queue pairs have their own");
        requester
    }

    #[test]
    fn an_acknowledgement_covers_what_is_before_it() {
        let mut requester = three();
        assert_eq!(
            requester.acknowledge(1, Psn::new(1), |_| true),
            ended(1, 0, None),
            "a part of the second"
        );
        assert_eq!(requester.acknowledge(1, Psn::new(2), |_| true), ended(1, 0, Some(1)));
        assert_eq!(requester.acknowledge(1, Psn::new(2), |_| true), Ended::default(), "it says nothing new");
        assert_eq!(requester.acknowledge(1, Psn::new(9), |_| true), ended(1, 0, None));
        let mut requester = three();
        let came = |request: &Request| request.first != 0xff_ffff;
        assert_eq!(
            requester.acknowledge(1, Psn::new(4), came),
            ended(2, 1, Some(2)),
            "but for what did not come"
        );
    }

    #[test]
    fn a_nak_covers_what_is_before_it_and_refuses_one() {
        let mut requester = three();
        assert_eq!(requester.refuse(1, Psn::new(1), |_| true), ended(1, 1, None));
        assert_eq!(requester.refuse(1, Psn::new(1), |_| true), Ended::default(), "it was refused before");
        assert_eq!(requester.acknowledge(1, Psn::new(4), |_| true), ended(1, 0, Some(2)));
        let mut requester = three();
        assert_eq!(
            requester.refuse(1, Psn::new(3), |_| false),
            ended(0, 3, None),
            "responses are not covered"
        );
    }

    #[test]
    fn a_response_answers_when_it_is_whole() {
        let mut requester = three();
        let respond = |requester: &mut Requester, psns: &[u32]| {
            psns.iter().map(|psn| requester.respond(1, Psn::new(*psn))).collect::<Vec<_>>()
        };
        let nothing = Ended::default();
        let first = respond(&mut requester, &[0xff_fffe, 0xff_fffe, 0xff_ffff, 0, 1, 2]);
        assert_eq!(first, [ended(1, 0, Some(0)), nothing, nothing, nothing, nothing, ended(1, 0, Some(1))]);
        let mut requester = three();
        let hole = respond(&mut requester, &[0xff_ffff, 1, 2, 3, 4]);
        assert_eq!(hole, [ended(0, 1, None), nothing, ended(0, 1, None), nothing, ended(1, 0, Some(2))]);
    }

    #[test]
    fn what_is_not_answered_is_given_up() {
        let mut requester = Requester::new(1, 2, Nanos(100));
        requester.push(0, request(10, 0, 1));
        requester.push(0, request(60, 1, 1));
        assert_eq!(requester.make_room(0, Nanos(109)), (false, 0));
        assert_eq!(requester.make_room(0, Nanos(110)), (true, 1));
        requester.push(0, request(110, 2, 1));
        assert_eq!(requester.make_room(0, Nanos(500)), (true, 1), "one at a time, as room is needed");
        assert_eq!(requester.acknowledge(0, Psn::new(2), |_| true).answered, 1);
    }
}
