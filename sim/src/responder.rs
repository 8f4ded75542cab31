//! Execution times of requests in a server's NIC, as measured on a ConnectX-5 by the authors of Swordbox
//! (Grant et al., figures "Achieved throughput of RDMA verbs" and "serialized RDMA operations").
//!
//! A request that arrives waits for the preceding request of its queue pair, then for all preceding accesses
//! to the memory that it touches, then for its turn at the NIC. When it has passed all three it is executed
//! and answered: the frame reaches the [`rnic::Rnic`] at that moment and not before, so that
//! acknowledgements, READ responses and all timers remain the NIC's own. All other frames (responses, the
//! communication manager, ARP) pass at once.
//!
//! ```text
//!   arrives -> [ its queue pair, in order ] -> [ the word, in order ] -> [ the NIC ] -> executed
//!                 2.7 M atomics/s               2.9 M atomics/s          55 M atomics/s
//!                18.3 M WRITEs/s               18.3 M WRITEs/s          104 M WRITEs/s
//! ```

use core::cmp::Reverse;
use core::ops::Range;
use rocev2::{Class, Opcode, Packet, Qpn, classify};
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use switch::{Nanos, Probability, Rng};

/// Picoseconds per nanosecond
const PS: u64 = 1_000;
/// Size of an atomic's operand in bytes
const WORD: u64 = 8;
/// Number of words, and of queue pairs, above which idle ones are discarded
const MAX_IDLE: usize = 1 << 12;

/// Execution times of requests to one kind of memory, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryCosts {
    /// How long an atomic occupies its word
    pub atomic_ps: u64,
    /// How long an atomic delays the next request of its queue pair
    pub atomic_qp_ps: u64,
    /// How long a WRITE occupies its memory and its queue pair
    pub write_ps: u64,
    /// How long a READ occupies its queue pair. It waits for preceding atomics and WRITEs to the same memory,
    /// but no request waits for it
    pub read_ps: u64,
}

/// Execution times of requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Times in the host's memory
    pub host: MemoryCosts,
    /// Times in the NIC's memory
    pub device: MemoryCosts,
    /// Virtual addresses of the NIC's memory, if it has any
    pub on_device: Option<Range<u64>>,
    /// Time between two WRITEs or SENDs of the whole NIC
    pub nic_write_ps: u64,
    /// Time between two READs of the whole NIC
    pub nic_read_ps: u64,
    /// Time between two atomics of the whole NIC
    pub nic_atomic_ps: u64,
    /// Share of requests that later ones overtake, because they take longer from the link to the execution.
    /// Requests of one queue pair stay in order. The authors measured 3 % of requests out of order, by up to
    /// 15 requests at a million requests per second (figure "PDF of request reorderings")
    pub overtaken: Probability,
    /// Upper bound of that extra time
    pub overtaken_by: Nanos,
    /// Seed that decides which requests are overtaken
    pub seed: u64,
}

/// Returns the time between two operations at this rate.
const fn every_ps(operations_per_s: u64) -> u64 {
    1_000_000_000_000 / operations_per_s
}

impl Costs {
    /// Returns the times of a ConnectX-5 whose own memory has these virtual addresses.
    ///
    /// Measured: on one address 2.93 M CAS/s and 18.26 M WRITEs/s in the host's memory, 8.97 M and 22.14 M in
    /// the NIC's; on independent addresses 2.7 M atomics/s per queue pair and 55 M per NIC; 103.6 M WRITEs/s
    /// and 84.5 M READs/s. Not measured but assumed: READs of one queue pair are as fast as WRITEs, and in
    /// the NIC's memory an atomic occupies its queue pair for no longer than its word.
    pub fn connect_x5(on_device: Option<Range<u64>>) -> Self {
        let (host_write, device_write) = (every_ps(18_260_000), every_ps(22_140_000));
        Self {
            host: MemoryCosts {
                atomic_ps: every_ps(2_930_000),
                atomic_qp_ps: every_ps(2_700_000),
                write_ps: host_write,
                read_ps: host_write,
            },
            device: MemoryCosts {
                atomic_ps: every_ps(8_970_000),
                atomic_qp_ps: every_ps(8_970_000),
                write_ps: device_write,
                read_ps: device_write,
            },
            on_device,
            nic_write_ps: every_ps(103_600_000),
            nic_read_ps: every_ps(84_500_000),
            nic_atomic_ps: every_ps(55_000_000),
            overtaken: Probability::NEVER,
            overtaken_by: Nanos::ZERO,
            seed: 0,
        }
    }

    fn of(&self, va: Option<u64>) -> &MemoryCosts {
        match va {
            Some(va) if self.on_device.as_ref().is_some_and(|range| range.contains(&va)) => &self.device,
            _ => &self.host,
        }
    }
}

/// Counts of executed requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Executed {
    /// Packets of WRITEs and SENDs
    pub writes: u64,
    /// READs
    pub reads: u64,
    /// Atomics
    pub atomics: u64,
    /// Largest number of requests that had arrived and were not executed, at any moment
    pub most_waiting: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Atomic,
}

/// A request that has arrived.
#[derive(Debug)]
struct Request {
    frame: Vec<u8>,
    /// Earliest time at which it may be executed
    ready_ps: u64,
    kind: Kind,
    /// Memory that it touches; unknown for all but the first packet of a message
    accessed: Option<Range<u64>>,
}

impl Request {
    /// Parses the request in a frame. Returns `None` if the frame has none.
    fn of(frame: &[u8]) -> Option<(Qpn, Kind, Option<Range<u64>>)> {
        let Class::Roce(layout) = classify(frame) else { return None };
        let packet = Packet::new(frame, layout);
        let opcode = layout.opcode();
        // RC and UC requests: of RC, everything but the responses
        let kind = match opcode {
            Opcode::RC_COMPARE_SWAP | Opcode::RC_FETCH_ADD => Kind::Atomic,
            Opcode::RC_READ_REQUEST => Kind::Read,
            Opcode(0x00..=0x0b | 0x16 | 0x17 | 0x1d | 0x20..=0x2b) => Kind::Write,
            _ => return None,
        };
        let accessed = match (packet.reth(), packet.atomic()) {
            (Some(reth), _) => Some((reth.va.get(), u64::from(reth.len.get()))),
            (None, Some(atomic)) => Some((atomic.va.get(), WORD)),
            (None, None) => None,
        };
        let accessed = accessed.map(|(va, len)| va..va.saturating_add(len));
        Some((packet.bth().dest_qp(), kind, accessed))
    }
}

/// Requests of one queue pair.
#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Request>,
    /// When the next request may proceed
    free_ps: u64,
    /// Whether the queue pair is in the schedule
    scheduled: bool,
}

/// Memory in use, and until when.
#[derive(Debug, Default)]
struct Memory {
    /// End of use by word number (virtual address / 8)
    words: BTreeMap<u64, u64>,
    /// WRITEs of more than a word. Few at a time, because each takes little longer than the time between two
    /// WRITEs of the NIC
    ranges: Vec<(Range<u64>, u64)>,
}

const fn words(range: &Range<u64>) -> Range<u64> {
    range.start / WORD..range.end.div_ceil(WORD)
}

impl Memory {
    /// Returns when all of a range is free.
    fn free_ps(&self, range: &Range<u64>) -> u64 {
        let overlaps = |other: &Range<u64>| other.start < range.end && range.start < other.end;
        let ranges = self.ranges.iter().filter(|(other, _)| overlaps(other)).map(|(_, until)| *until);
        let words = self.words.range(words(range)).map(|(_, until)| *until);
        ranges.chain(words).max().unwrap_or(0)
    }

    /// Marks a range as in use until `until_ps`.
    fn occupy(&mut self, range: &Range<u64>, until_ps: u64, now_ps: u64) {
        if range.end - range.start > WORD {
            self.ranges.retain(|(_, until)| *until > now_ps);
            self.ranges.push((range.clone(), until_ps));
            return;
        }
        if self.words.len() >= MAX_IDLE {
            self.words.retain(|_, until| *until > now_ps);
        }
        for word in words(range) {
            self.words.insert(word, until_ps);
        }
    }
}

/// Requests on their way to a NIC that takes time to execute them.
#[derive(Debug)]
pub(crate) struct Responder {
    costs: Costs,
    queues: BTreeMap<Qpn, Queue>,
    memory: Memory,
    nic_free_ps: u64,
    /// Queue pairs and when their next request may proceed; entries of equal time in the order in which they
    /// were added
    schedule: BinaryHeap<Reverse<(u64, u64, Qpn)>>,
    /// Requests by the end of their execution
    finished: BTreeMap<(u64, u64), Vec<u8>>,
    sequence: u64,
    rng: Rng,
    waiting: u64,
    executed: Executed,
}

impl Responder {
    /// Creates an idle NIC.
    pub(crate) fn new(costs: Costs) -> Self {
        Self {
            rng: Rng::stream(costs.seed, 0x6f76_6572),
            costs,
            queues: BTreeMap::new(),
            memory: Memory::default(),
            nic_free_ps: 0,
            schedule: BinaryHeap::new(),
            finished: BTreeMap::new(),
            sequence: 0,
            waiting: 0,
            executed: Executed::default(),
        }
    }

    /// Returns the counts of executed requests.
    pub(crate) fn executed(&self) -> Executed {
        self.executed
    }

    /// Queues the request in a frame that arrives.
    ///
    /// # Errors
    /// Returns the frame if it holds no request.
    pub(crate) fn admit(&mut self, frame: Vec<u8>, now: Nanos) -> Result<(), Vec<u8>> {
        let Some((qpn, kind, accessed)) = Request::of(&frame) else { return Err(frame) };
        self.advance(now);
        if self.queues.len() >= MAX_IDLE {
            self.queues.retain(|_, queue| queue.scheduled || queue.free_ps > now.0 * PS);
        }
        self.waiting += 1;
        self.executed.most_waiting = self.executed.most_waiting.max(self.waiting);
        // Drawn for every request, so that changing the share changes nothing else.
        let extra = self.rng.between(0, self.costs.overtaken_by.0);
        let overtaken = self.rng.happens(self.costs.overtaken);
        let ready = if overtaken { now + Nanos(extra) } else { now };
        let queue = self.queues.entry(qpn).or_default();
        queue.waiting.push_back(Request { frame, ready_ps: ready.0 * PS, kind, accessed });
        if !queue.scheduled {
            queue.scheduled = true;
            self.sequence += 1;
            self.schedule.push(Reverse((queue.free_ps.max(ready.0 * PS), self.sequence, qpn)));
            self.advance(now);
        }
        Ok(())
    }

    /// Removes and returns the next request that is executed by now.
    pub(crate) fn poll(&mut self, now: Nanos) -> Option<Vec<u8>> {
        self.advance(now);
        let first = self.finished.first_entry().filter(|entry| entry.key().0 <= now.0 * PS)?;
        self.waiting -= 1;
        Some(first.remove())
    }

    /// Returns when [`poll`](Self::poll) or an internal step is due.
    pub(crate) fn next_timer(&self) -> Option<Nanos> {
        let next = self.schedule.peek().map(|Reverse((at, ..))| *at);
        let finished = self.finished.first_key_value().map(|((at, _), _)| *at);
        [next, finished].into_iter().flatten().min().map(|at_ps| Nanos(at_ps.div_ceil(PS)))
    }

    /// Starts all requests that may proceed by now.
    fn advance(&mut self, now: Nanos) {
        while let Some(&Reverse((at_ps, _, qpn))) = self.schedule.peek()
            && at_ps <= now.0 * PS
        {
            self.schedule.pop();
            let Some(queue) = self.queues.get_mut(&qpn) else { continue };
            queue.scheduled = false;
            let Some(request) = queue.waiting.pop_front() else { continue };
            let costs = self.costs.of(request.accessed.as_ref().map(|range| range.start));
            let (nic_ps, memory_ps, qp_ps) = match request.kind {
                Kind::Write => (self.costs.nic_write_ps, costs.write_ps, costs.write_ps),
                Kind::Read => (self.costs.nic_read_ps, costs.read_ps, costs.read_ps),
                Kind::Atomic => (self.costs.nic_atomic_ps, costs.atomic_ps, costs.atomic_qp_ps),
            };
            let turn_ps = self.nic_free_ps.max(at_ps);
            self.nic_free_ps = turn_ps + nic_ps;
            let memory_free_ps = request.accessed.as_ref().map_or(0, |range| self.memory.free_ps(range));
            let start_ps = turn_ps.max(memory_free_ps);
            let end_ps = start_ps + memory_ps;
            if let (Some(range), Kind::Write | Kind::Atomic) = (&request.accessed, request.kind) {
                self.memory.occupy(range, end_ps, at_ps);
            }
            match request.kind {
                Kind::Write => self.executed.writes += 1,
                Kind::Read => self.executed.reads += 1,
                Kind::Atomic => self.executed.atomics += 1,
            }
            self.sequence += 1;
            self.finished.insert((end_ps, self.sequence), request.frame);
            queue.free_ps = end_ps.max(start_ps + qp_ps);
            if let Some(next) = queue.waiting.front() {
                queue.scheduled = true;
                self.sequence += 1;
                self.schedule.push(Reverse((queue.free_ps.max(next.ready_ps), self.sequence, qpn)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rocev2::ethernet::{Ethernet, ethertype};
    use rocev2::ipv4::Ipv4;
    use rocev2::repr::{Extended, Ip, Repr};
    use rocev2::{Bth, Psn};

    /// Builds a request; its PSN identifies it.
    fn frame(opcode: Opcode, qp: u32, psn: u32, va: u64, len: u32) -> Vec<u8> {
        let mut extended = Extended::default();
        (extended.reth.va, extended.reth.len) = (va.into(), len.into());
        extended.atomic.va = va.into();
        let bth = Bth::new(opcode, Qpn::new(qp), Psn::new(psn));
        let ethernet = Ethernet { ethertype: ethertype::IPV4.into(), ..Ethernet::default() };
        let mut repr = Repr { extended, ..Repr::new(ethernet, Ip::V4(Ipv4::default(), &[]), bth) };
        let mut bytes = vec![0; repr.frame_len()];
        repr.build(&mut bytes).unwrap();
        bytes
    }

    fn psn(frame: &[u8]) -> u32 {
        Packet::parse(frame).unwrap().bth().psn().get()
    }

    /// Runs until nothing is left. Returns the time of each execution (ns) and the request's PSN.
    fn drain(responder: &mut Responder) -> Vec<(u64, u32)> {
        let mut executed = Vec::new();
        while let Some(at) = responder.next_timer() {
            while let Some(frame) = responder.poll(at) {
                executed.push((at.0, psn(&frame)));
            }
        }
        executed
    }

    const CAS: Opcode = Opcode::RC_COMPARE_SWAP;
    const WRITE: Opcode = Opcode::RC_WRITE_ONLY;
    const READ: Opcode = Opcode::RC_READ_REQUEST;

    #[test]
    fn requests_wait_for_earlier_accesses_to_their_memory() {
        let mut responder = Responder::new(Costs::connect_x5(Some(0x2000..0x3000)));
        let requests = [
            (CAS, 1, 0x1000, 8),
            // The same word from another queue pair; then the next word; then ranges around both
            (CAS, 2, 0x1000, 8),
            (CAS, 3, 0x1008, 8),
            (READ, 4, 0x0f80, 256),
            (WRITE, 5, 0x0f80, 256),
            (READ, 6, 0x1100, 8),
            (READ, 7, 0x1078, 8),
            // In the NIC's memory
            (CAS, 8, 0x2000, 8),
        ];
        for (n, (opcode, qp, va, len)) in requests.into_iter().enumerate() {
            assert_eq!(responder.admit(frame(opcode, qp, n as u32, va, len), Nanos(100)), Ok(()));
        }
        let executed = drain(&mut responder);
        let at = |psn| executed.iter().find(|(_, other)| *other == psn).unwrap().0;
        assert_eq!((at(0), at(1)), (442, 783), "341.3 ns each");
        assert_eq!(at(2), 478, "waits only for the NIC, not for the other word");
        assert_eq!(
            (at(3), at(4)),
            (838, 838),
            "both wait for both CAS, and the WRITE does not wait for the READ"
        );
        assert_eq!((at(5), at(6)), (231, 893), "only the second one overlaps with the WRITE");
        assert!(at(7) < 350, "111.5 ns");
        let Executed { writes, reads, atomics, most_waiting } = responder.executed();
        assert_eq!((writes, reads, atomics, most_waiting), (1, 3, 4, 8));
    }

    #[test]
    fn frames_without_a_request_pass_at_once() {
        let mut responder = Responder::new(Costs::connect_x5(None));
        for opcode in
            [Opcode::RC_ACKNOWLEDGE, Opcode::RC_READ_RESPONSE_ONLY, Opcode::UD_SEND_ONLY, Opcode::CNP]
        {
            let frame = frame(opcode, 1, 7, 0, 0);
            assert_eq!(responder.admit(frame.clone(), Nanos(1)), Err(frame));
        }
        assert_eq!(responder.admit(vec![0; 60], Nanos(1)), Err(vec![0; 60]));
        assert_eq!(responder.next_timer(), None);
    }

    #[test]
    fn requests_overtake_other_queue_pairs_but_stay_in_order_within_theirs() {
        let mut costs = Costs::connect_x5(None);
        (costs.overtaken, costs.overtaken_by) = (Probability::percent(10), Nanos::from_micros(10));
        let mut responder = Responder::new(costs);
        let mut executed = Vec::new();
        for n in 0..10_000 {
            let now = Nanos(u64::from(n) * 1000);
            while let Some(frame) = responder.poll(now) {
                executed.push(psn(&frame));
            }
            let request = frame(WRITE, n % 32, n, u64::from(n % 100) * 64, 8);
            assert_eq!(responder.admit(request, now), Ok(()));
        }
        executed.extend(drain(&mut responder).into_iter().map(|(_, psn)| psn));
        assert_eq!(executed.len(), 10_000);
        let late = executed.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!((500..1000).contains(&late), "{late}");
        let of_one: Vec<_> = executed.iter().filter(|psn| **psn % 32 == 7).collect();
        assert!(of_one.is_sorted());
    }
}
