//! Outstanding requests: a ring for each queue pair. A response covers requests as in IB 9.7.5: an
//! acknowledgement covers all up to its PSN, a NAK all before its PSN, and a response to a READ or an atomic
//! only its own request.

use crate::memory::try_filled;
use rocev2::Psn;
use switch::Nanos;

/// An outstanding request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    /// Time at which its last packet was sent
    pub(crate) sent_at: Nanos,
    /// Run time of the worker at that time, in microseconds; it wraps
    run_time_us: u32,
    /// Position of its first packet: a PSN that does not wrap at 24 bits
    pub(crate) first: u32,
    /// PSNs that it takes, including those of its response
    pub(crate) psns: u32,
    /// Whether it requests a response; otherwise the response to the next one that does covers it
    requests_response: bool,
}

// There may be 256 of them for each of a million queue pairs.
const _: () = assert!(size_of::<Request>() == 24);

impl Request {
    /// Creates a request that is sent now.
    pub(crate) const fn new(sent_at: Nanos, first: u32, psns: u32, requests_response: bool) -> Self {
        Self { sent_at, run_time_us: 0, first, psns, requests_response }
    }

    /// Returns the PSN of the response that completes it.
    fn last(&self) -> Psn {
        Psn::new(self.first.wrapping_add(self.psns - 1))
    }
}

/// Requests that a response completed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Completed {
    /// Requests that it answered
    pub(crate) answered: u32,
    /// Requests that cannot be answered any more
    pub(crate) unanswered: u32,
    /// Time at which the request was sent whose own response this is
    pub(crate) sent_at: Option<Nanos>,
}

/// Ring of a queue pair's outstanding requests.
#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    /// Index of the oldest
    oldest: u16,
    len: u16,
    /// Packets of the oldest request's response received in order
    received: u32,
}

/// Outstanding requests of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    requests: Box<[Request]>,
    /// By queue pair
    rings: Box<[Ring]>,
    /// Capacity of each ring
    capacity: u16,
    timeout_us: u32,
    /// Outstanding requests that request a response
    awaiting: u32,
    /// Run time of the worker, in microseconds; it wraps. It excludes absences: a worker that is kept from
    /// its CPU does not see that a response arrived
    run_time_us: u32,
}

impl Requester {
    /// Creates empty rings of capacity `capacity`.
    ///
    /// # Errors
    ///
    /// The size in MB, if it could not be allocated.
    pub(crate) fn new(qps: u32, capacity: u16, timeout: Nanos) -> Result<Self, u64> {
        Ok(Self {
            requests: try_filled(qps as usize * usize::from(capacity), Request::default())?.into(),
            rings: try_filled(qps as usize, Ring::default())?.into(),
            capacity,
            timeout_us: u32::try_from(timeout.0.div_ceil(1_000)).unwrap_or(u32::MAX),
            awaiting: 0,
            run_time_us: 0,
        })
    }

    /// Returns the memory that the rings of `qps` queue pairs need, in bytes.
    pub(crate) fn bytes_of(qps: u32, capacity: u16) -> u64 {
        let ring = size_of::<Ring>() as u64 + u64::from(capacity) * size_of::<Request>() as u64;
        u64::from(qps) * ring
    }

    /// Sets the worker's run time.
    pub(crate) const fn set_run_time(&mut self, run_time: Nanos) {
        self.run_time_us = (run_time.0 / 1_000) as u32;
    }

    fn index(&self, qp: u32, n: u16) -> usize {
        let offset =
            (usize::from(self.rings[qp as usize].oldest) + usize::from(n)) % usize::from(self.capacity);
        qp as usize * usize::from(self.capacity) + offset
    }

    fn oldest(&self, qp: u32) -> Option<Request> {
        (self.rings[qp as usize].len > 0).then(|| self.requests[self.index(qp, 0)])
    }

    /// Returns whether a response is still to arrive. Requests after the last that requests a response await
    /// none.
    pub(crate) const fn awaits_response(&self) -> bool {
        self.awaiting > 0
    }

    /// Returns the number of outstanding requests of each queue pair.
    pub(crate) fn outstanding(&self) -> impl Iterator<Item = u64> {
        self.rings.iter().map(|ring| ring.len.into())
    }

    fn pop(&mut self, qp: u32) {
        self.awaiting -= u32::from(self.requests[self.index(qp, 0)].requests_response);
        let ring = &mut self.rings[qp as usize];
        *ring = Ring { oldest: (ring.oldest + 1) % self.capacity, len: ring.len - 1, received: 0 };
    }

    /// Makes room for another request by giving up overdue ones. Returns whether there is room, and how many
    /// were given up.
    #[inline]
    pub(crate) fn make_room(&mut self, qp: u32) -> (bool, u32) {
        let mut given_up = 0;
        while self.rings[qp as usize].len == self.capacity {
            if !self.is_overdue(qp) {
                return (false, given_up);
            }
            self.pop(qp);
            given_up += 1;
        }
        (true, given_up)
    }

    /// Returns whether the oldest request of a full ring is overdue: it, and the first from it on that
    /// requests a response, were sent longer ago than the timeout.
    fn is_overdue(&self, qp: u32) -> bool {
        let mut requests = (0..self.capacity).map(|n| &self.requests[self.index(qp, n)]);
        let is_old = |request: &Request| self.run_time_us.wrapping_sub(request.run_time_us) > self.timeout_us;
        // Requests behind the oldest are younger.
        is_old(&self.requests[self.index(qp, 0)])
            && requests.find(|request| request.requests_response).is_none_or(is_old)
    }

    /// Adds a request that was sent. The ring has to have room.
    #[inline]
    pub(crate) fn push(&mut self, qp: u32, request: Request) {
        let at = self.index(qp, self.rings[qp as usize].len);
        self.requests[at] = Request { run_time_us: self.run_time_us, ..request };
        self.awaiting += u32::from(request.requests_response);
        self.rings[qp as usize].len += 1;
    }

    /// Handles an acknowledgement of all PSNs up to `psn`. `arrived` returns whether all packets of a request
    /// are known to have arrived.
    #[inline]
    pub(crate) fn on_ack(&mut self, qp: u32, psn: Psn, arrived: impl Fn(&Request) -> bool) -> Completed {
        let mut completed = Completed::default();
        while let Some(oldest) = self.oldest(qp)
            && psn.distance(oldest.last()) >= 0
        {
            self.pop(qp);
            if !arrived(&oldest) {
                completed.unanswered += 1;
                continue;
            }
            completed.answered += 1;
            if psn == oldest.last() {
                completed.sent_at = Some(oldest.sent_at);
            }
        }
        completed
    }

    /// Handles a NAK of `psn`: the request that has this PSN was refused, and is not repeated. For those
    /// before it, `covers` returns whether they are acknowledged.
    pub(crate) fn on_nak(&mut self, qp: u32, psn: Psn, covers: impl Fn(&Request) -> bool) -> Completed {
        let mut completed = Completed::default();
        while let Some(oldest) = self.oldest(qp)
            && psn.distance(Psn::new(oldest.first)) >= 0
        {
            self.pop(qp);
            let before = psn.distance(oldest.last()) > 0;
            let covered = before && covers(&oldest);
            completed.answered += u32::from(covered);
            completed.unanswered += u32::from(!covered);
        }
        completed
    }

    /// Handles a packet of a response. The last packet completes its request if all others arrived before it,
    /// in order. A request before it whose response is not complete will never be answered.
    #[inline]
    pub(crate) fn on_response(&mut self, qp: u32, psn: Psn) -> Completed {
        let mut completed = Completed::default();
        while let Some(oldest) = self.oldest(qp) {
            let distance = psn.distance(oldest.last());
            if distance > 0 {
                self.pop(qp);
                completed.unanswered += 1;
                continue;
            }
            let ring = &mut self.rings[qp as usize];
            ring.received += u32::from(psn == Psn::new(oldest.first).add(ring.received));
            if distance == 0 {
                if ring.received == oldest.psns {
                    completed.answered += 1;
                    completed.sent_at = Some(oldest.sent_at);
                } else {
                    completed.unanswered += 1;
                }
                self.pop(qp);
            }
            break;
        }
        completed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at: u64, first: u32, psns: u32) -> Request {
        Request::new(Nanos(at), first, psns, true)
    }

    fn completed(answered: u32, unanswered: u32, sent_at: Option<u64>) -> Completed {
        Completed { answered, unanswered, sent_at: sent_at.map(Nanos) }
    }

    /// A ring of requests of one, four and two PSNs, across the wrap of PSNs.
    fn ring_of_three() -> Requester {
        let mut requester = Requester::new(2, 3, Nanos::from_micros(100)).unwrap();
        for (n, (first, psns)) in [(0xff_fffe, 1), (0xff_ffff, 4), (0x100_0003, 2)].into_iter().enumerate() {
            assert_eq!(requester.make_room(1), (true, 0));
            requester.push(1, request(n as u64, first, psns));
        }
        assert_eq!(requester.make_room(1), (false, 0));
        assert_eq!(requester.make_room(0), (true, 0), "queue pairs have rings of their own");
        requester
    }

    #[test]
    fn an_acknowledgement_covers_all_requests_up_to_its_psn() {
        let mut requester = ring_of_three();
        assert_eq!(
            requester.on_ack(1, Psn::new(1), |_| true),
            completed(1, 0, None),
            "the second is covered only in part"
        );
        assert_eq!(requester.on_ack(1, Psn::new(2), |_| true), completed(1, 0, Some(1)));
        assert_eq!(
            requester.on_ack(1, Psn::new(2), |_| true),
            Completed::default(),
            "it covers no further request"
        );
        assert_eq!(requester.on_ack(1, Psn::new(9), |_| true), completed(1, 0, None));
        let mut requester = ring_of_three();
        let arrived = |request: &Request| request.first != 0xff_ffff;
        assert_eq!(
            requester.on_ack(1, Psn::new(4), arrived),
            completed(2, 1, Some(2)),
            "all but the one that did not arrive"
        );
    }

    #[test]
    fn a_nak_covers_requests_before_its_psn_and_refuses_one() {
        let mut requester = ring_of_three();
        assert_eq!(requester.on_nak(1, Psn::new(1), |_| true), completed(1, 1, None));
        assert_eq!(requester.on_nak(1, Psn::new(1), |_| true), Completed::default(), "already refused");
        assert_eq!(requester.on_ack(1, Psn::new(4), |_| true), completed(1, 0, Some(2)));
        let mut requester = ring_of_three();
        assert_eq!(
            requester.on_nak(1, Psn::new(3), |_| false),
            completed(0, 3, None),
            "responses are not covered"
        );
    }

    #[test]
    fn a_response_completes_its_request_when_all_packets_arrived() {
        let mut requester = ring_of_three();
        let on_response = |requester: &mut Requester, psns: &[u32]| {
            psns.iter().map(|psn| requester.on_response(1, Psn::new(*psn))).collect::<Vec<_>>()
        };
        let nothing = Completed::default();
        let first = on_response(&mut requester, &[0xff_fffe, 0xff_fffe, 0xff_ffff, 0, 1, 2]);
        assert_eq!(
            first,
            [completed(1, 0, Some(0)), nothing, nothing, nothing, nothing, completed(1, 0, Some(1))]
        );
        let mut requester = ring_of_three();
        let hole = on_response(&mut requester, &[0xff_ffff, 1, 2, 3, 4]);
        assert_eq!(
            hole,
            [completed(0, 1, None), nothing, completed(0, 1, None), nothing, completed(1, 0, Some(2))]
        );
    }

    #[test]
    fn a_request_without_a_response_is_given_up_after_the_timeout() {
        let mut requester = Requester::new(1, 2, Nanos::from_micros(100)).unwrap();
        assert!(Requester::new(u32::MAX, u16::MAX, Nanos::ZERO).is_err(), "too large to allocate");
        // Across the wrap of the microseconds
        let end = 1_000 << 32;
        let room = |requester: &mut Requester, us: u64| {
            requester.set_run_time(Nanos(end - 70_000 + us * 1_000));
            requester.make_room(0)
        };
        assert_eq!(room(&mut requester, 10), (true, 0));
        requester.push(0, request(10, 0, 1));
        assert_eq!(room(&mut requester, 60), (true, 0));
        requester.push(0, request(60, 1, 1));
        assert_eq!(room(&mut requester, 110), (false, 0), "no longer than the timeout");
        assert_eq!(room(&mut requester, 111), (true, 1));
        requester.push(0, request(111, 2, 1));
        assert_eq!(room(&mut requester, 500), (true, 1), "one at a time, as room is needed");
        assert_eq!(requester.on_ack(0, Psn::new(2), |_| true).answered, 1);
    }

    #[test]
    fn a_silent_request_is_as_old_as_the_next_that_requests_a_response() {
        let mut requester = Requester::new(1, 3, Nanos::from_micros(100)).unwrap();
        let mut send = |us: u64, first, requests_response| {
            requester.set_run_time(Nanos::from_micros(us));
            let room = requester.make_room(0);
            if room.0 {
                requester.push(0, Request::new(Nanos::from_micros(us), first, 1, requests_response));
            }
            room
        };
        assert_eq!([send(0, 0, false), send(500, 1, true), send(510, 2, false)], [(true, 0); 3]);
        assert_eq!(send(600, 3, true), (false, 0), "no request for a response is older than the timeout");
        assert_eq!(send(601, 3, true), (true, 1));
        assert_eq!(send(601, 4, false), (true, 1), "the one that requested a response");
        assert_eq!(send(701, 5, false), (false, 0), "the next that requests a response was sent at 601");
        assert_eq!(send(702, 5, false), (true, 1));
    }
}
