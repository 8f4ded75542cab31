//! Requests that wait for answers: a ring of them for each queue pair.

use rocev2::Psn;
use switch::Nanos;

/// A request under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    /// When its last packet was sent
    pub(crate) sent_at: Nanos,
    /// The PSN that answers it
    pub(crate) psn: Psn,
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

/// The requests under way of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    requests: Box<[Request]>,
    /// By queue pair: where its oldest is in its ring, and how many there are
    rings: Box<[(u16, u16)]>,
    /// Of each queue pair
    most: u16,
    timeout: Nanos,
    /// Whether an answer ends what came before it, too, as an acknowledgement does; a response that is lost is not made up for
    acknowledges: bool,
}

impl Requester {
    pub(crate) fn new(qps: u32, most: u16, timeout: Nanos, acknowledges: bool) -> Self {
        Self {
            requests: vec![Request::default(); qps as usize * usize::from(most)].into(),
            rings: vec![(0, 0); qps as usize].into(),
            most,
            timeout,
            acknowledges,
        }
    }

    fn at(&self, qp: u32, n: u16) -> usize {
        let place = (usize::from(self.rings[qp as usize].0) + usize::from(n)) % usize::from(self.most);
        qp as usize * usize::from(self.most) + place
    }

    fn pop(&mut self, qp: u32) {
        let (oldest, len) = &mut self.rings[qp as usize];
        *oldest = (*oldest + 1) % self.most;
        *len -= 1;
    }

    /// Whether there is room for another request; how many were given up to make it.
    #[inline]
    pub(crate) fn make_room(&mut self, qp: u32, now: Nanos) -> (bool, u32) {
        let mut given_up = 0;
        while self.rings[qp as usize].1 == self.most {
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
        let at = self.at(qp, self.rings[qp as usize].1);
        self.requests[at] = request;
        self.rings[qp as usize].1 += 1;
    }

    /// An answer of this PSN came.
    #[inline]
    pub(crate) fn answer(&mut self, qp: u32, psn: Psn) -> Ended {
        let mut ended = Ended::default();
        while self.rings[qp as usize].1 > 0 {
            let oldest = self.requests[self.at(qp, 0)];
            let distance = psn.distance(oldest.psn);
            if distance < 0 {
                break;
            }
            self.pop(qp);
            if distance == 0 {
                ended.sent_at = Some(oldest.sent_at);
                ended.answered += 1;
                break;
            }
            if self.acknowledges {
                ended.answered += 1;
            } else {
                ended.unanswered += 1;
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at: u64, psn: u32) -> Request {
        Request { sent_at: Nanos(at), psn: Psn::new(psn) }
    }

    #[test]
    fn answers_end_requests_in_order() {
        for (acknowledges, expected) in [(true, (2, 0)), (false, (1, 1))] {
            let mut requester = Requester::new(2, 3, Nanos(100), acknowledges);
            for (n, psn) in [0xff_fffe, 1, 4].into_iter().enumerate() {
                assert_eq!(requester.make_room(1, Nanos(n as u64)), (true, 0));
                requester.push(1, request(n as u64, psn));
            }
            assert_eq!(requester.make_room(1, Nanos(50)), (false, 0));
            assert_eq!(requester.make_room(0, Nanos(50)), (true, 0), "queue pairs have their own");
            let ended = requester.answer(1, Psn::new(1));
            assert_eq!((ended.answered, ended.unanswered), expected);
            assert_eq!(ended.sent_at, Some(Nanos(1)));
            assert_eq!(requester.answer(1, Psn::new(1)), Ended::default(), "it says nothing new");
            assert_eq!(requester.answer(1, Psn::new(3)), Ended::default(), "a part of the last one's");
            assert_eq!(requester.answer(1, Psn::new(4)).answered, 1);
        }
    }

    #[test]
    fn what_is_not_answered_is_given_up() {
        let mut requester = Requester::new(1, 2, Nanos(100), true);
        requester.push(0, request(10, 0));
        requester.push(0, request(60, 1));
        assert_eq!(requester.make_room(0, Nanos(109)), (false, 0));
        assert_eq!(requester.make_room(0, Nanos(110)), (true, 1));
        requester.push(0, request(110, 2));
        assert_eq!(requester.make_room(0, Nanos(500)), (true, 1), "one at a time, as room is needed");
        assert_eq!(requester.answer(0, Psn::new(2)).answered, 1);
    }
}
